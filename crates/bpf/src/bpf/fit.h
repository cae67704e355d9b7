/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit, at the sender: a roof over the sending rate that keeps what is under way at what the path carries.
 *
 * Problem: a loss-based congestion control learns the capacity of a path by filling its queue until it drops. A sender that
 * knows the capacity in time needs neither the queue nor the drops. TCP itself shows it: the first flights leave in bursts,
 * arrive at the rate of the tightest link, and their acknowledgements come back so spaced.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate. A *train* is a run of
 * acknowledgements without a pause; its rate is C' if it left faster than C. The *roof* is the largest rate at which the
 * connection may send (SO_MAX_PACING_RATE); the kernel's congestion control goes on below it, so that a connection never
 * sends more than without bufwise. The *queue* is what the round trip takes longer than T.
 *
 * Rule, phase by phase:
 * 1. Start: slow start as the kernel has it, unpaced. Each train is measured; the longer one is the better evidence. A
 *    flight of N segments in slow start puts N/2 of them into the queue. So the phase ends when the congestion window has
 *    reached a sixteenth to a quarter of C' T: the sooner, the longer the train.
 * 2. Ramp: the roof is 15/16 C'. Slow start goes on below it, spread over the round trip, and no burst meets the queue. It ends
 *    when the roof is reached or a queue appears: then C' was too high, and what arrives from now on is C.
 * 3. Follow: every two round trips, the roof rises a little where there is no queue, and is set a little below what was
 *    delivered where there is one. The steps up double as long as no queue appears, so that a path that has grown is found in
 *    some round trips. Steps up are parts of C', steps down parts of the own rate: connections that share a path approach
 *    equal rates.
 * 4. Open: no roof. If the roof descends three times and the queue does not become shorter as it would have to, then
 *    the queue is somebody else's, or the delay is none of a queue (radio links, jitter): the kernel's congestion control
 *    competes by itself. After a while the rule tries again, and each time that this fails it waits longer.
 *
 * Properties kept: without evidence there is no roof. A roof never falls while the application or the congestion window
 * limits the sender. Paths shorter than BW_FIT_SHORTEST and senders that pace themselves (neither CUBIC nor Reno) are left
 * alone. Calls may come at any distance: per acknowledgement, per round trip, or as a timer has it.
 */
#ifndef BUFWISE_FIT_H
#define BUFWISE_FIT_H

#include "send.h"

/* Below this (us) the hosts' own delays count for more than the path's. */
#define BW_FIT_SHORTEST 2000
/* Segments after the first acknowledgement that make a train, and observations besides. */
#define BW_FIT_TRAIN 7
#define BW_FIT_OBSERVED 2
/*
 * The start ends when the window has reached a share of C' T: the sooner, the longer (us) the train, for clocks err by some
 * tenths of a millisecond; at a quarter in any case.
 */
#define BW_FIT_SOON 16
#define BW_FIT_LONG_TRAIN 4000
#define BW_FIT_LATER 8
#define BW_FIT_SHORT_TRAIN 2500
#define BW_FIT_AT_LAST 4
/* Rates of two trains that differ by a part of so many at most are the same. */
#define BW_FIT_AGREED 8
/* Rates in two windows of time in a row that differ by a part of so many at most are steady. */
#define BW_FIT_STEADY 4
/*
 * TCP that paces sends up to twice its window per round trip in slow start, and the train has that rate: evidence is only what
 * is faster (quarters of a window). The initial window is a burst all the same.
 */
#define BW_FIT_PACED 9
#define BW_FIT_BURST 20
/* The roof after the start, in parts of C'. */
#define BW_FIT_RAMP_NUMERATOR 15
#define BW_FIT_RAMP_DENOMINATOR 16
/* The ramp has reached the roof with this much of it. */
#define BW_FIT_REACHED_NUMERATOR 7
#define BW_FIT_REACHED_DENOMINATOR 8
/* Steps of the roof upwards, in 1024ths of C': the first, that before the path was seen full, the largest. */
#define BW_FIT_STEP 6
#define BW_FIT_UNSURE_STEP 16
#define BW_FIT_LARGEST_STEP 128
/* The steps double once the roof is so much (a part) above what the path has carried when it was full. */
#define BW_FIT_BEYOND 32
/* Or, before the path was seen full, above C'. */
#define BW_FIT_ABOVE 64
/* Steps of a connection that has a part of C' are larger by the square of the inverse; of this at most. */
#define BW_FIT_LARGEST_HELP 3
/* The roof was used if this much of it (in 16ths) was delivered. */
#define BW_FIT_USED 15
/* Steps downwards: at least a 128th, at most an eighth. */
#define BW_FIT_DOWN 128
#define BW_FIT_LARGEST_DOWN 8
/* As often in a row a round that delivered less, down to so many eighths, is taken for a pause. */
#define BW_FIT_DOUBTS 1
#define BW_FIT_PAUSED 6
/* Descents in a row that do not shorten the queue: at first, and once that has been so. */
#define BW_FIT_IN_VAIN 3
#define BW_FIT_IN_VAIN_AGAIN 2
/* How long the sender is left alone at first, and at most (us). */
#define BW_FIT_HOLD 2000000U
#define BW_FIT_LONGEST_HOLD 64000000U
/* Payload besides what is under way: what hosts and devices hold back. */
#define BW_FIT_SLACK (96ULL << 10)
/* A connection that has sent so much (bytes) before it is met has its first flights behind it. */
#define BW_FIT_BEGUN (64 << 10)
/* A roof takes 32 bits, and all ones are no bound. */
#define BW_FIT_HIGHEST ((1ULL << 32) - 2)

enum bw_fit_phase {
	BW_FIT_START,
	BW_FIT_RAMP,
	BW_FIT_FOLLOW,
	BW_FIT_OPEN,
};

struct bw_fit {
	/* The roof and C', bytes per second; 0: none. */
	__u64 roof;
	__u64 capacity;
	/* Rate that the path carried when it was last full, and the rate that it has carried since; 0: not known. */
	__u64 known;
	__u64 carried;
	/* First and last acknowledgement of the train. */
	__u64 train_at;
	__u64 last_at;
	/* The window of time in which the rate is measured now, and the rates in the last one and the one before. */
	__u64 window_at;
	__u64 window_rate;
	__u64 former_window_rate;
	/* Begin of the round in which the roof is judged; until when the sender is left alone. */
	__u64 round_at;
	__u64 open_until;
	/* Since when there has been a queue; 0: there is none. */
	__u64 queued_since;
	/* Segments delivered at these times. */
	__u32 train_segments;
	__u32 last_segments;
	__u32 window_segments;
	__u32 round_segments;
	/* The longest train: segments, time (us). Observations of this one. */
	__u32 evidence;
	__u32 train_time;
	/* When that began. The train that was the longest before it: rate, time; 0: there was none. */
	__u64 evidence_at;
	__u64 former_rate;
	__u32 former_time;
	/* Descents in a row after which the path was thought to carry as much as before. */
	__u32 doubts;
	__u32 observed;
	__u32 phase;
	/* The next step upwards, 1024ths. */
	__u32 step;
	/* The queue (us) at the last descent, and by how much it should be shorter now; descents in vain. */
	__u32 queue;
	__u32 expected;
	__u32 in_vain;
	__u32 hold;
	/* The round was limited by something else than the roof. */
	__u32 limited;
	/* Retransmissions at the begin of the round. */
	__u32 round_retransmitted;
	/* Descents, times that the sender was left alone. */
	__u32 descents;
	/* The shortest queue (us) in this window of time, and in the last one. */
	__u32 window_least;
	__u32 window_queue;
	/* The roof has just descended: the queue drains. */
	__u32 drains;
	__u32 opened;
};

struct bw_fit_sample {
	__u64 now;
	__u64 mss;
	__u64 srtt;
	__u64 min_rtt;
	/* Congestion window, segments. */
	__u64 cwnd;
	/* Segments delivered so far, modulo 2^32. */
	__u32 delivered;
	/* The application, or the peer's window, leaves the sender without anything to send. */
	__u32 app_limited;
	/* The congestion control paces by itself. */
	__u32 paces_itself;
	/* TCP paces whatever the congestion control is, or may do so: two windows per round trip in slow start. */
	__u32 paced;
	/* Segments retransmitted so far. */
	__u32 retransmitted;
	__u32 unused;
};

/*
 * The queue: the round trip beyond the shortest (us), less the time that the path takes for two segments, for the
 * shortest may be that of the handshake's small packets, and acknowledgements wait for a second segment.
 */
BW_FN __u64 bw_fit_queue(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 segments = s->capacity ? 2 * bw_segment(x->mss) * 1000000 / s->capacity : 0;

	return bw_min(bw_less(x->srtt, x->min_rtt + segments), BW_LONGEST);
}

/* Shorter queues (us) are the clocks' and the hosts' jitter. */
BW_FN __u64 bw_fit_threshold(const struct bw_fit_sample *x)
{
	return bw_min(x->min_rtt, BW_LONGEST) / 64 + 500;
}

/* Bytes per second of so many segments in so many microseconds. */
BW_FN __u64 bw_fit_rate(const struct bw_fit_sample *x, __u32 segments, __u64 time)
{
	return bw_rate(segments * bw_segment(x->mss), time);
}

BW_FN void bw_fit_set(struct bw_fit *s, __u64 roof, const struct bw_fit_sample *x)
{
	/* Two segments per round trip are the least. */
	__u64 least = bw_fit_rate(x, 2, x->srtt);

	s->roof = bw_min(bw_max(roof, least), BW_FIT_HIGHEST);
}

BW_FN void bw_fit_begin_round(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->round_at = x->now;
	s->round_segments = x->delivered;
	s->round_retransmitted = x->retransmitted;
	s->limited = x->app_limited;
}

BW_FN void bw_fit_enter_follow(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->phase = BW_FIT_FOLLOW;
	s->known = 0;
	s->carried = 0;
	s->drains = 0;
	s->queued_since = 0;
	s->step = BW_FIT_UNSURE_STEP;
	s->in_vain = 0;
	s->expected = 0;
	bw_fit_begin_round(s, x);
}

/* ---- Start ---------------------------------------------------------------------------------------------- */

BW_FN void bw_fit_begin_train(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->train_at = x->now;
	s->train_segments = x->delivered;
	s->observed = 0;
}

/* The mean distance of the train's observations (us). */
BW_FN __u64 bw_fit_distance(const struct bw_fit *s)
{
	return (s->last_at - s->train_at) / bw_max(s->observed, 1);
}

/*
 * A pause ends a train: four times the mean distance and a millisecond, or before there is one an eighth of a round trip and
 * 3 ms, which is less than what an acknowledgement is delayed.
 */
BW_FN int bw_fit_is_pause(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 gap = x->now - s->last_at;

	if (s->observed < BW_FIT_OBSERVED)
		return gap > x->min_rtt / 8 + 3000;
	return gap > 4 * bw_fit_distance(s) + 1000;
}

/* One observation of the start: C' is the rate of the train with the most segments. */
BW_FN void bw_fit_watch_train(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u32 segments;
	int is_late;

	if (!s->train_at || bw_fit_is_pause(s, x)) {
		bw_fit_begin_train(s, x);
		return;
	}
	/* After a stall of a host, what it has held back comes at once: the rate is right again when that is here. */
	is_late = s->observed >= BW_FIT_OBSERVED && x->now - s->last_at > 2 * bw_fit_distance(s);
	s->observed++;
	segments = x->delivered - s->train_segments;
	if (is_late || segments < BW_FIT_TRAIN || s->observed < BW_FIT_OBSERVED || segments < s->evidence)
		return;
	if (s->evidence_at != s->train_at) {
		s->former_rate = s->capacity;
		s->former_time = s->train_time;
		s->evidence_at = s->train_at;
	}
	s->evidence = segments;
	s->train_time = bw_min(x->now - s->train_at, BW_LONGEST);
	s->capacity = bw_fit_rate(x, segments, s->train_time);
}

/*
 * The rate and the shortest queue in windows of a quarter of the shortest round trip: while there is a queue, the rate is C.
 * 1: a window has ended.
 */
BW_FN int bw_fit_watch_rate(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->window_at;

	s->window_least = bw_min(s->window_least, bw_fit_queue(s, x));
	if (s->window_at && elapsed < bw_max(x->min_rtt / 4, 2000))
		return 0;
	s->former_window_rate = s->window_rate;
	s->window_rate = s->window_at ? bw_fit_rate(x, x->delivered - s->window_segments, elapsed) : 0;
	s->window_queue = s->window_least;
	s->window_least = ~0U;
	s->window_at = x->now;
	s->window_segments = x->delivered;
	return 1;
}

/*
 * A queue in the start that no flight of slow start explains, at a steady rate: the window has passed the path. After a pause of
 * a host, what it has held back comes at once, and then nothing.
 */
BW_FN int bw_fit_is_full(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 queue = s->window_queue;

	if (!s->window_rate || s->window_rate < s->capacity / 2)
		return 0;
	if (bw_distance(s->window_rate, s->former_window_rate) > s->window_rate / BW_FIT_STEADY)
		return 0;
	/* Segments that left before the roof was set return for one more round trip. */
	if (s->phase == BW_FIT_RAMP)
		return x->now - s->round_at > x->srtt + x->srtt / 4 && queue > 2 * bw_fit_threshold(x);
	return queue > x->min_rtt / 4 + 2000;
}

/* The train is long enough. */
BW_FN int bw_fit_is_evident(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 window = bw_min(x->cwnd, 1 << 24) * bw_segment(x->mss), product = bw_product(s->capacity, x->min_rtt);
	__u64 time = s->train_time;

	/* Two trains of the same rate are better than one as long as both, for they confirm each other. */
	if (s->former_rate && bw_distance(s->capacity, s->former_rate) <= s->capacity / BW_FIT_AGREED)
		time = (time + s->former_time) * 5 / 4;
	if (!s->capacity || (x->paced && x->cwnd > BW_FIT_BURST && product * 4 < window * BW_FIT_PACED))
		return 0;
	if (time >= BW_FIT_LONG_TRAIN)
		return window * BW_FIT_SOON >= product;
	return window * (time >= BW_FIT_SHORT_TRAIN ? BW_FIT_LATER : BW_FIT_AT_LAST) >= product;
}

BW_FN void bw_fit_start(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (bw_fit_watch_rate(s, x) && bw_fit_is_full(s, x)) {
		/* Beside others, what is delivered is a share of C. */
		s->capacity = bw_max(bw_min(s->capacity, 8 * s->window_rate), s->window_rate);
		bw_fit_set(s, s->window_rate - s->window_rate / BW_FIT_LARGEST_DOWN, x);
		bw_fit_enter_follow(s, x);
		s->known = s->window_rate;
		s->step = BW_FIT_STEP;
		s->drains = 1;
	} else if (s->phase == BW_FIT_RAMP) {
		if (s->window_rate * BW_FIT_REACHED_DENOMINATOR > s->roof * BW_FIT_REACHED_NUMERATOR)
			bw_fit_enter_follow(s, x);
	} else {
		bw_fit_watch_train(s, x);
		if (bw_fit_is_evident(s, x)) {
			s->phase = BW_FIT_RAMP;
			s->window_at = 0;
			s->window_rate = 0;
			bw_fit_begin_round(s, x);
			bw_fit_set(s, s->capacity / BW_FIT_RAMP_DENOMINATOR * BW_FIT_RAMP_NUMERATOR, x);
		}
	}
}

/* ---- Follow --------------------------------------------------------------------------------------------- */

/* How long to leave the connection alone the next time (us), after so long. */
BW_FN __u32 bw_fit_next_hold(__u32 hold)
{
	return hold ? bw_min(2ULL * hold, BW_FIT_LONGEST_HOLD) : BW_FIT_HOLD;
}

BW_FN void bw_fit_open(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->hold = bw_fit_next_hold(s->hold);
	s->phase = BW_FIT_OPEN;
	s->open_until = x->now + s->hold;
	s->roof = 0;
	s->opened++;
}

/* Acknowledgements come in bursts, so one round's rate errs by some percent: rates near each other are averaged. */
BW_FN __u64 bw_fit_smooth(__u64 before, __u64 rate)
{
	if (!before || bw_distance(before, rate) > before / 12)
		return rate;
	return before - before / 4 + rate / 4;
}

/*
 * Whether a round with a queue that carried so much, where it was more before, is taken for a pause: pauses of a host or of a
 * radio link leave a queue, too, and somewhat less arrives in that round. Then the path carries what it did, unless it comes so
 * again.
 */
BW_FN int bw_fit_is_pause_of_host(__u32 doubts, __u64 before, __u64 carried)
{
	return doubts < BW_FIT_DOUBTS && carried < before - before / BW_FIT_BEYOND && carried * 8 >= before * BW_FIT_PAUSED;
}

BW_FN void bw_fit_descend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	__u64 queue = bw_fit_queue(s, x), rtt = bw_max(x->min_rtt, 1), before = bw_max(s->known, s->carried);
	/* Half of the queue's share of the round trip: as long as the round lasts, it drains all. */
	__u64 share = bw_min(queue * 1024 / (2 * rtt) + 1024 / BW_FIT_DOWN, 1024 / BW_FIT_LARGEST_DOWN);

	if (!s->expected || queue + s->expected / 2 <= s->queue)
		s->in_vain = 0;
	else if (queue > 2 * bw_fit_threshold(x))
		s->in_vain++;
	s->queue = queue;
	s->expected = bw_min(queue, share * rtt / 1024);
	s->step = BW_FIT_STEP;
	s->doubts = bw_fit_is_pause_of_host(s->doubts, before, delivered) ? s->doubts + 1 : 0;
	delivered = bw_fit_smooth(before, delivered);
	s->known = s->doubts ? before : delivered;
	s->carried = 0;
	s->drains = 1;
	s->descents++;
	if (s->in_vain >= (s->hold ? BW_FIT_IN_VAIN_AGAIN : BW_FIT_IN_VAIN))
		bw_fit_open(s, x);
	else
		bw_fit_set(s, bw_min(s->roof, delivered - delivered * share / 1024), x);
}

/* The step upwards: of C', and the larger, the smaller the own part of C' is. */
BW_FN __u64 bw_fit_step(const struct bw_fit *s)
{
	__u64 capacity = bw_max(s->capacity, s->carried), step = capacity * s->step / 1024;
	/* Quarters. */
	__u64 part = bw_min(bw_max(capacity * 4 / bw_max(s->roof, 1), 4), 4 * BW_FIT_LARGEST_HELP);

	return step * part * part / 16;
}

/* A roof of more than twice C' without a queue: whatever C' was, it is none any more. */
BW_FN __u32 bw_fit_largest_step(const struct bw_fit *s)
{
	return s->roof > 2 * bw_max(s->known, s->capacity) ? 2 * BW_FIT_LARGEST_STEP : BW_FIT_LARGEST_STEP;
}

BW_FN void bw_fit_ascend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	s->in_vain = 0;
	s->expected = 0;
	s->drains = 0;
	if (delivered * 16 < s->roof * BW_FIT_USED)
		return;
	s->carried = bw_fit_smooth(s->carried, delivered);
	if (s->roof < s->known - s->known / BW_FIT_DOWN) {
		bw_fit_set(s, s->known - s->known / BW_FIT_DOWN, x);
		return;
	}
	s->doubts = 0;
	bw_fit_set(s, s->roof + bw_fit_step(s), x);
	/* An estimate from a train is not as sure as what a full path has delivered, and the search from it is slower. */
	if (s->known ? s->roof > s->known + s->known / BW_FIT_BEYOND : s->roof > s->capacity + s->capacity / BW_FIT_ABOVE)
		s->step = bw_min(s->known ? 2 * s->step : s->step + s->step / 2, bw_fit_largest_step(s));
}

/* Segments were lost without a queue that could be seen: the roof is no higher than what the path has carried. */
BW_FN void bw_fit_retreat(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 carried = bw_max(s->known, s->carried);

	if (s->roof > carried - carried / BW_FIT_DOWN)
		bw_fit_set(s, carried - carried / BW_FIT_DOWN, x);
	s->step = BW_FIT_STEP;
}

/*
 * There is a queue. A delayed acknowledgement looks like one for a moment: a sender that does not fill its roof waits for a
 * round trip.
 */
BW_FN int bw_fit_is_queued(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	return s->queued_since && (delivered * 4 >= s->roof * 3 || x->now - s->queued_since >= x->srtt);
}

/* A round takes two round trips: the roof is felt in the second. */
BW_FN void bw_fit_follow(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at, queue = bw_fit_queue(s, x), delivered;
	int is_long = queue > 2 * bw_fit_threshold(x);

	s->limited |= x->app_limited;
	if (queue <= bw_fit_threshold(x))
		s->queued_since = 0;
	else if (!s->queued_since)
		s->queued_since = x->now;
	if (elapsed < (is_long && !s->drains ? x->srtt - x->srtt / 8 : 2 * x->srtt - x->srtt / 8))
		return;
	delivered = bw_fit_rate(x, x->delivered - s->round_segments, elapsed);
	if (!s->limited && bw_fit_is_queued(s, x, delivered))
		bw_fit_descend(s, x, delivered);
	else if (x->retransmitted != s->round_retransmitted)
		bw_fit_retreat(s, x);
	else if (!s->limited)
		bw_fit_ascend(s, x, delivered);
	bw_fit_begin_round(s, x);
}

/* ---- All ------------------------------------------------------------------------------------------------ */

/* Try again from what is delivered now. */
BW_FN void bw_fit_rest(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at, delivered;

	if (s->round_at && elapsed < 2 * x->srtt)
		return;
	delivered = s->round_at ? bw_fit_rate(x, x->delivered - s->round_segments, elapsed) : 0;
	if (x->now >= s->open_until && delivered) {
		s->capacity = bw_max(s->capacity, delivered);
		bw_fit_set(s, delivered, x);
		bw_fit_enter_follow(s, x);
	} else {
		bw_fit_begin_round(s, x);
	}
}

/*
 * Payload that the send buffer should hold at most: what the roof has under way in a round trip, a quarter more, and some for
 * the start. BW_NO_LIMIT: no roof.
 */
BW_FN __u64 bw_fit_buffer(const struct bw_fit *s, __u64 srtt)
{
	__u64 window = bw_product(s->roof, srtt);

	return s->roof ? window + window / 4 + BW_FIT_SLACK : BW_NO_LIMIT;
}

/* Whether the rule wants to see every acknowledgement. */
BW_FN int bw_fit_is_starting(const struct bw_fit *s)
{
	return s->phase <= BW_FIT_RAMP;
}

/* The roof, bytes per second; 0: none. */
BW_FN __u32 bw_fit_observe(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (!x->min_rtt || x->min_rtt < BW_FIT_SHORTEST || x->paces_itself) {
		s->roof = 0;
		return 0;
	}
	if (bw_fit_is_starting(s)) {
		/* No segment was delivered since the last call. */
		if (s->last_at && x->delivered == s->last_segments)
			return s->roof;
		bw_fit_start(s, x);
		s->last_at = x->now;
		s->last_segments = x->delivered;
	} else if (s->phase == BW_FIT_FOLLOW) {
		bw_fit_follow(s, x);
	} else {
		bw_fit_rest(s, x);
	}
	return s->roof;
}

_Static_assert(sizeof(struct bw_fit) == 200, "the Rust twin has 200 bytes");

#endif
