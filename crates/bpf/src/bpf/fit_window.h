/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit, at the receiver: a window that keeps what is under way at what the path carries, whatever the sender is.
 *
 * Problem: a loss-based sender learns the capacity of a path by filling its queue until it drops, and the receiver has to bear
 * the delay. A receiver that knows the capacity can offer a window of that size. The first flights tell it: they leave in
 * bursts, and arrive at the rate of the tightest link.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate, BDP their product. A
 * *train* is a run of segments without a pause; its rate is C' if it left faster than C. The *window* is what the sender may
 * have under way (payload). R is the rate at which segments arrive. A window that is used holds R times the present
 * round-trip time (Little's law), so that what it holds beyond R * T is *queue*.
 *
 * Rule, phase by phase:
 * 1. Start: DRS's window, which doubles. Each train is measured. The phase ends when two trains in a row have the same rate (a
 *    sender that paces its slow start doubles the rate with each) and the window has reached a sixteenth of C' T.
 * 2. Ramp: slow start sends two segments for each one that arrives, and a flight that is longer by a step puts this step
 *    into the queue, however it is spread: the queue's size is not known, so the step is a small part of C' T. The window
 *    grows with the segments that arrive by one step per round trip, until it is a little more than C' T.
 * 3. Follow: every two round trips R is measured. The window is set a little above R * T, which keeps a short queue. Where the
 *    window holds no more than R * T, the path has grown: the window rises, by steps that double.
 * 4. Open: DRS's window. If the window descends and R descends with it while the queue stays, then the queue is
 *    somebody else's, or the delay is none of a queue (radio links, jitter, another path). After a while the rule tries
 *    again, and each time that this fails it waits longer.
 *
 * Properties kept: without evidence the window is DRS's. It is never below BW_FIT_WINDOW_LEAST segments, nor above the
 * largest. It does not fall while the sender leaves it unused. Paths shorter than BW_FIT_SHORTEST are left to DRS. Calls may
 * come at any distance.
 */
#ifndef BUFWISE_FIT_WINDOW_H
#define BUFWISE_FIT_WINDOW_H

#include "drs.h"
#include "fit.h"
#include "number.h"

/* The kernel's first window, and the segments of a sender's (RFC 6928). */
#define BW_FIT_WINDOW_FIRST 65536
#define BW_FIT_WINDOW_INITIAL 10
/* Segments of the smallest window. */
#define BW_FIT_WINDOW_LEAST 4
/* Segments beyond R * T in a window without a queue: one on the wire, two that one acknowledgement sets free. */
#define BW_FIT_WINDOW_SEGMENTS 3
/* The window is larger by this part (1024ths) than what gives R without a queue; with half of it, there is none. */
#define BW_FIT_WINDOW_ABOVE 43
/* The start ends when the window has reached this part of C' T. */
#define BW_FIT_WINDOW_EVIDENCE 16
/* Rates of trains, and of round trips, within these parts of each other are the same. */
#define BW_FIT_WINDOW_SAME 4
#define BW_FIT_WINDOW_SAME_RATE 8
/*
 * A step of the ramp, 1024ths of C' T: as many per round trip as make it last 0.7 s, but no less than what fits into a queue of a
 * sixteenth of the BDP, and no more than what fits into an eighth.
 */
#define BW_FIT_WINDOW_RAMP 700000
/* Less these segments, which come as bursts: an acknowledgement sets free two and what the window has grown by. */
#define BW_FIT_WINDOW_BURST 2
#define BW_FIT_WINDOW_SMALLEST_STEP 54
#define BW_FIT_WINDOW_LARGEST_STEP 108
/* The window is used if what is under way is so much (in 8ths) of it. */
#define BW_FIT_WINDOW_USED 7
/* Less than this part of it under way, and the window has nothing to do with the sender. */
#define BW_FIT_WINDOW_FAR 4
/* Largest descent in a round; and after how much a descent is judged, and when it ends. */
#define BW_FIT_WINDOW_DOWN 8
#define BW_FIT_WINDOW_JUDGED 12
#define BW_FIT_WINDOW_JUDGED_LAST 32
/* A descent ends when the window is so near to its target. */
#define BW_FIT_WINDOW_NEAR 64
/* After so many times the last hold, the next one is short again. */
#define BW_FIT_WINDOW_TRUST 4ULL
/* A delay of this part of the round trip is long. */
#define BW_FIT_WINDOW_LONG 12
/* Judgements in a row that a descent is in vain. */
#define BW_FIT_WINDOW_IN_VAIN 2
/* Largest sizes that enter a product: 64 GiB. */
#define BW_FIT_WINDOW_MOST (1ULL << 36)

struct bw_fit_window {
	/* The window (payload); 0: DRS's. */
	__u64 window;
	/* C', bytes per second; 0: none. The rate of the train before the present one. */
	__u64 capacity;
	__u64 train_rate;
	/* Begin of the train, and the last sample: when, and bytes arrived by then. */
	__u64 train_at;
	__u64 train_bytes;
	__u64 last_at;
	__u64 last_bytes;
	/* Payload of the longest train. */
	__u64 evidence;
	/* Begin of the round, or of the measurement in it: when, and bytes arrived by then. */
	__u64 round_at;
	__u64 round_bytes;
	/* Bytes that arrived in the last round trip of the ramp. */
	__u64 arrived;
	/* R * T when the path was last full. In the start, R in the last round; in the ramp, the window when the round began. */
	__u64 known;
	/* Window and R when the descent began. */
	__u64 descent_window;
	__u64 descent_rate;
	/* Until when the rule leaves the window to DRS. */
	__u64 open_until;
	__u32 phase;
	/* Observations of this train. */
	__u32 observed;
	/* The round's first round trip is over. */
	__u32 measuring;
	/* The next step upwards, 1024ths. */
	__u32 step;
	__u32 in_vain;
	__u32 hold;
	/* Segments out of order at the begin of the round. */
	__u32 out_of_order;
	/* Segments out of order at the begin of the train. */
	__u32 train_out_of_order;
	/* Round trips of the ramp without growth. */
	__u32 stuck;
	/* What the round trip takes beyond T without a queue, 1024ths of T. */
	__u32 extra;
	/* What the window is above what gives R without a queue, 1024ths; whether it was in the last round. */
	__u32 above;
	__u32 was_full;
	/* Descents, times that the window was left to DRS. */
	__u32 descents;
	__u32 opened;
};

struct bw_fit_window_sample {
	__u64 now;
	/* Payload that has arrived so far, in order or not (arrivals.h). */
	__u64 received;
	__u64 mss;
	/* T, and the receiver's present estimate; 0: not known. */
	__u64 rtt;
	__u64 rcv_rtt;
	/* DRS's window and its largest measurement. */
	__u64 drs;
	__u64 largest;
	__u64 max;
	__u32 scale;
	/* Segments that have come out of order, modulo 2^32. */
	__u32 out_of_order;
};

BW_FN __u64 bw_fit_window_mss(const struct bw_fit_window_sample *x)
{
	return bw_min(bw_mss(x->mss), 1 << 16);
}

/* Bytes per second. */
BW_FN __u64 bw_fit_window_rate(__u64 bytes, __u64 time)
{
	return bw_min(bw_min(bytes, BW_FIT_WINDOW_MOST) * 1000000 / bw_max(time, 1), BW_FIT_FASTEST);
}

/* Bytes that arrive at that rate in the shortest round trip. */
BW_FN __u64 bw_fit_window_held(const struct bw_fit_window_sample *x, __u64 rate)
{
	return rate * bw_min(x->rtt, BW_LONGEST) / 1000000;
}

/* The present round-trip time. */
BW_FN __u64 bw_fit_window_round_trip(const struct bw_fit_window_sample *x)
{
	return bw_min(bw_max(x->rcv_rtt, x->rtt), BW_LONGEST);
}

/* The receiver's estimate of the round trip, which is a coarse one, shows a queue. */
BW_FN int bw_fit_window_is_delayed(const struct bw_fit_window_sample *x)
{
	return x->rcv_rtt > x->rtt + x->rtt / 8 + 600;
}

/* The window that gives so many bytes per shortest round trip without a queue. */
BW_FN __u64 bw_fit_window_need(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	return held + held / 1024 * s->extra + BW_FIT_WINDOW_SEGMENTS * bw_fit_window_mss(x);
}

BW_FN __u64 bw_fit_window_target(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	__u64 need = bw_fit_window_need(s, x, held);

	return need + need / 1024 * s->above;
}

BW_FN void bw_fit_window_set(struct bw_fit_window *s, __u64 window, const struct bw_fit_window_sample *x)
{
	window = bw_max(window, BW_FIT_WINDOW_LEAST * bw_fit_window_mss(x));
	s->window = bw_min(bw_min(window, x->max), BW_FIT_WINDOW_MOST);
}

BW_FN void bw_fit_window_begin_round(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->round_at = x->now;
	s->round_bytes = x->received;
	s->out_of_order = x->out_of_order;
	s->measuring = 0;
}

/* R over the second round trip of a round, which the window has had its effect on; 0: not yet. */
BW_FN __u64 bw_fit_window_measure(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 elapsed = bw_less(x->now, s->round_at), bytes = bw_less(x->received, s->round_bytes);

	if (elapsed < bw_fit_window_round_trip(x))
		return 0;
	if (!s->measuring) {
		s->measuring = 1;
		s->round_at = x->now;
		s->round_bytes = x->received;
		return 0;
	}
	return bw_max(bw_fit_window_rate(bytes, elapsed), 1);
}

BW_FN void bw_fit_window_enter_follow(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	s->phase = BW_FIT_FOLLOW;
	s->above = BW_FIT_WINDOW_ABOVE;
	s->was_full = 0;
	s->known = bw_fit_window_held(x, rate);
	s->step = BW_FIT_STEP;
	s->in_vain = 0;
	s->descent_window = 0;
	bw_fit_window_set(s, bw_fit_window_target(s, x, s->known), x);
	bw_fit_window_begin_round(s, x);
}

/* ---- Start ---------------------------------------------------------------------------------------------- */

/*
 * A pause ends a train: four times the mean distance and a millisecond. Before there is a mean, what came since the last sample
 * would have taken a quarter of the time at C' (a burst of two segments may come long before its flight); without C', half a
 * round trip.
 */
BW_FN int bw_fit_window_is_pause(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 gap = bw_less(x->now, s->last_at), came = bw_less(x->received, s->last_bytes);

	if (s->observed >= BW_FIT_OBSERVED)
		return gap > 4 * bw_less(s->last_at, s->train_at) / s->observed + 1000;
	if (s->capacity)
		return gap > x->rtt / 16 + 4 * bw_min(came, BW_FIT_WINDOW_MOST) * 1000000 / s->capacity + 1000;
	return gap > x->rtt / 2;
}

/* The train is long enough to tell a rate. */
BW_FN int bw_fit_window_is_train(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes)
{
	return s->observed >= BW_FIT_OBSERVED && bytes >= BW_FIT_TRAIN * bw_fit_window_mss(x);
}

BW_FN void bw_fit_window_begin_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes = bw_less(s->last_bytes, s->train_bytes);

	/* Where segments were lost, the rate is not the path's. */
	if (s->train_at && x->out_of_order == s->train_out_of_order && bw_fit_window_is_train(s, x, bytes))
		s->train_rate = bw_fit_window_rate(bytes, bw_less(s->last_at, s->train_at));
	s->train_at = x->now;
	s->train_bytes = x->received;
	s->train_out_of_order = x->out_of_order;
	s->observed = 0;
}

/* C' is the rate of the longest train. Beyond half a round trip it may be the sender's rate that is seen. */
BW_FN void bw_fit_window_watch_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes, time;

	if (!s->train_at || x->out_of_order != s->train_out_of_order || bw_fit_window_is_pause(s, x)) {
		bw_fit_window_begin_train(s, x);
		return;
	}
	s->observed++;
	bytes = bw_less(x->received, s->train_bytes);
	time = bw_less(x->now, s->train_at);
	if (!bw_fit_window_is_train(s, x, bytes) || bytes < s->evidence || time > x->rtt / 2)
		return;
	s->evidence = bytes;
	s->capacity = bw_fit_window_rate(bytes, time);
}

BW_FN int bw_fit_window_is_evident(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 apart = bw_distance(s->capacity, s->train_rate);

	if (!s->capacity || !s->train_rate || apart > s->capacity / BW_FIT_WINDOW_SAME)
		return 0;
	return bw_min(x->drs, BW_FIT_WINDOW_MOST) * BW_FIT_WINDOW_EVIDENCE >= bw_fit_window_held(x, s->capacity);
}

/*
 * The window in the start: what the kernel offered when the connection began, and what slow start needs, which sends two segments
 * for each that arrives. No more, for what was offered once cannot be taken back when the capacity is known.
 */
BW_FN __u64 bw_fit_window_first(const struct bw_fit_window_sample *x)
{
	__u64 received = bw_min(x->received, BW_FIT_WINDOW_MOST), largest = bw_min(x->largest, BW_FIT_WINDOW_MOST);
	__u64 doubled = received + bw_max(largest, BW_FIT_WINDOW_INITIAL * bw_fit_window_mss(x));

	doubled = bw_max(doubled, bw_less(BW_FIT_WINDOW_FIRST, received));
	return bw_min(doubled, bw_max(x->drs, BW_FIT_WINDOW_FIRST));
}

/* The window where the rule has none of its own. */
BW_FN __u64 bw_fit_window_unbound(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_min(s->phase == BW_FIT_START ? bw_fit_window_first(x) : x->drs, x->max);
}

/* What the window grows by in a round trip. */
BW_FN __u64 bw_fit_window_step(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 part = 1024 * bw_min(x->rtt, BW_LONGEST) / BW_FIT_WINDOW_RAMP;

	part = bw_min(bw_max(part, BW_FIT_WINDOW_SMALLEST_STEP), BW_FIT_WINDOW_LARGEST_STEP);
	part = bw_fit_window_held(x, s->capacity) / 1024 * part;
	return bw_max(bw_less(part, BW_FIT_WINDOW_BURST * bw_fit_window_mss(x)), bw_fit_window_mss(x));
}

BW_FN void bw_fit_window_begin_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 under_way = 2 * bw_min(x->largest, BW_FIT_WINDOW_MOST);

	bw_fit_window_set(s, bw_min(bw_fit_window_unbound(s, x), under_way + bw_fit_window_step(s, x)), x);
	s->phase = BW_FIT_RAMP;
	s->above = BW_FIT_WINDOW_ABOVE;
	s->arrived = under_way;
	s->known = s->window;
	s->stuck = 0;
	bw_fit_window_begin_round(s, x);
}

/*
 * In the start: R twice in a row, where slow start would have doubled it, and there is a queue: R is then C. 0: not so.
 */
BW_FN __u64 bw_fit_window_full_rate(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 elapsed = bw_less(x->now, s->round_at), before = s->known, rate;

	if (elapsed < x->rtt)
		return 0;
	rate = bw_fit_window_rate(bw_less(x->received, s->round_bytes), elapsed);
	s->known = rate;
	bw_fit_window_begin_round(s, x);
	if (bw_distance(rate, before) > rate / BW_FIT_WINDOW_SAME_RATE)
		return 0;
	return bw_fit_window_is_delayed(x) ? rate : 0;
}

BW_FN void bw_fit_window_start(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate;

	if (!s->round_at)
		bw_fit_window_begin_round(s, x);
	rate = bw_fit_window_full_rate(s, x);
	if (rate) {
		s->capacity = rate;
		bw_fit_window_enter_follow(s, x, rate);
	} else if (bw_fit_window_is_evident(s, x)) {
		bw_fit_window_begin_ramp(s, x);
	}
}

/* ---- Ramp ----------------------------------------------------------------------------------------------- */

/* Each round trip of the ramp; 1: the window has grown and what arrives has not, twice: the path is full. */
BW_FN int bw_fit_window_is_full(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 step)
{
	__u64 elapsed = bw_less(x->now, s->round_at), arrived;

	if (elapsed < x->rtt)
		return 0;
	arrived = bw_fit_window_held(x, bw_fit_window_rate(bw_less(x->received, s->round_bytes), elapsed));
	if (s->window >= arrived + 3 * step / 2 && arrived <= s->arrived + s->arrived / 64 &&
	    x->rcv_rtt > x->rtt + x->rtt / 16 + 600)
		s->stuck++;
	else
		s->stuck = 0;
	s->arrived = arrived;
	s->known = s->window;
	bw_fit_window_begin_round(s, x);
	return s->stuck >= 2;
}

BW_FN void bw_fit_window_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 step = bw_fit_window_step(s, x), roof = bw_fit_window_target(s, x, bw_fit_window_held(x, s->capacity));
	__u64 came = bw_min(bw_less(x->received, s->last_bytes), 1ULL << 28), most;

	if (bw_fit_window_is_full(s, x, step)) {
		s->capacity = bw_fit_window_rate(s->arrived, x->rtt);
		bw_fit_window_enter_follow(s, x, s->capacity);
		return;
	}
	most = s->arrived + 2 * bw_max(step, bw_fit_window_mss(x)) + BW_FIT_WINDOW_SEGMENTS * bw_fit_window_mss(x);
	if (s->known > step)
		came = came * bw_min(step, 1ULL << 32) / s->known;
	bw_fit_window_set(s, bw_max(s->window, bw_min(s->window + came, most)), x);
	if (s->window >= roof)
		bw_fit_window_enter_follow(s, x, s->capacity);
}

/* ---- Follow --------------------------------------------------------------------------------------------- */

BW_FN void bw_fit_window_open(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->hold = s->hold ? bw_min(2ULL * s->hold, BW_FIT_LONGEST_HOLD) : BW_FIT_HOLD;
	s->phase = BW_FIT_OPEN;
	s->open_until = x->now + s->hold;
	s->window = 0;
	s->opened++;
}

/*
 * Whether the rate fell with the window since the descent began: judged a part at a time, and twice where it ends; rate: R,
 * which would be the same if the window had held a queue.
 */
BW_FN int bw_fit_window_is_in_vain(struct bw_fit_window *s, __u64 now, __u64 rate, int ends)
{
	__u64 before = s->descent_window, lowered = bw_less(before, s->window);
	__u64 least = before / (ends ? BW_FIT_WINDOW_JUDGED_LAST : BW_FIT_WINDOW_JUDGED);
	/* Half of the window's part, in 1024ths. */
	__u64 part = lowered * 512 / bw_max(before, 1);
	int falls = rate < s->descent_rate - s->descent_rate / 1024 * part;

	if (before && lowered < least)
		return 0;
	s->in_vain = before && falls ? s->in_vain + 1 : 0;
	if (before && !falls) {
		s->extra /= 2;
		if (now > s->open_until + BW_FIT_WINDOW_TRUST * s->hold)
			s->hold = 0;
	}
	if (!falls || !ends) {
		s->descent_window = s->window;
		s->descent_rate = rate;
	}
	return s->in_vain >= BW_FIT_WINDOW_IN_VAIN;
}

/*
 * A descent was in vain. A long delay is a queue of somebody else's, or jitter: open. A short one belongs to the path and its
 * hosts, and T is longer by it.
 */
BW_FN void bw_fit_window_give_up(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	__u64 need = bw_fit_window_need(s, x, held), beyond = bw_less(s->window, need);

	if (beyond > need / BW_FIT_WINDOW_LONG || s->extra >= 1024 / BW_FIT_WINDOW_LONG) {
		bw_fit_window_open(s, x);
		return;
	}
	s->extra = bw_min(s->extra + beyond * 1024 / bw_max(held, 1) + 1, 1024 / BW_FIT_WINDOW_LONG);
	s->in_vain = 0;
	s->descent_window = 0;
}

/* There is a queue: the window falls towards what keeps a short one. */
BW_FN void bw_fit_window_descend(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 held = bw_fit_window_held(x, rate), target = bw_fit_window_target(s, x, held);

	s->known = held;
	s->step = BW_FIT_STEP;
	if (bw_fit_window_is_in_vain(s, x->now, rate, s->window <= target + target / BW_FIT_WINDOW_NEAR)) {
		bw_fit_window_give_up(s, x, held);
	} else if (s->window > target) {
		s->descents++;
		bw_fit_window_set(s, bw_max(target, s->window - s->window / BW_FIT_WINDOW_DOWN), x);
	} else {
		/* A delay between none and the target's is perhaps no queue: if it is one, R stays, and so does the target. */
		bw_fit_window_set(s, bw_min(target, s->window + s->window / BW_FIT_WINDOW_NEAR), x);
	}
}

BW_FN void bw_fit_window_ascend(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 target = bw_fit_window_target(s, x, s->known);

	s->in_vain = 0;
	s->descent_window = 0;
	if (s->window < target) {
		bw_fit_window_set(s, target, x);
		return;
	}
	bw_fit_window_set(s, s->window + bw_max(s->window * s->step / 1024, bw_fit_window_mss(x)), x);
	if (s->window > target + s->known / BW_FIT_BEYOND)
		s->step = bw_min(2 * s->step, BW_FIT_LARGEST_STEP);
}

/*
 * Segments were lost: no more than what the path has carried. If the window was full before, the queue has no room for
 * what it is above that: half of it.
 */
BW_FN void bw_fit_window_retreat(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->was_full)
		s->above /= 2;
	s->was_full = 0;
	s->step = BW_FIT_STEP;
	bw_fit_window_set(s, bw_min(s->window, bw_fit_window_target(s, x, s->known)), x);
}

/*
 * The sender leaves the window unused. If there is a queue nevertheless, its congestion window fills the path: the window comes
 * down to what is under way, where it binds.
 */
BW_FN void bw_fit_window_approach(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate,
				  __u64 under_way)
{
	if (!bw_fit_window_is_delayed(x) || under_way * BW_FIT_WINDOW_FAR < s->window)
		return;
	s->known = bw_fit_window_held(x, rate);
	bw_fit_window_set(s, bw_max(under_way, s->window - s->window / BW_FIT_WINDOW_DOWN), x);
}

BW_FN void bw_fit_window_follow(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = bw_fit_window_measure(s, x), need, under_way;

	if (!rate)
		return;
	need = bw_fit_window_need(s, x, bw_fit_window_held(x, rate));
	under_way = bw_fit_window_need(s, x, rate * bw_fit_window_round_trip(x) / 1000000);
	if (x->out_of_order != s->out_of_order) {
		bw_fit_window_retreat(s, x);
	} else if (s->window <= need + need / 2048 * s->above) {
		s->was_full = 0;
		bw_fit_window_ascend(s, x);
	} else if (under_way * 8 >= s->window * BW_FIT_WINDOW_USED) {
		s->was_full = 1;
		bw_fit_window_descend(s, x, rate);
	} else {
		s->was_full = 0;
		bw_fit_window_approach(s, x, rate, under_way);
	}
	bw_fit_window_begin_round(s, x);
}

/* ---- All ------------------------------------------------------------------------------------------------ */

/* Try again from what arrives now; one descent in vain is then enough. */
BW_FN void bw_fit_window_rest(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = bw_fit_window_measure(s, x);

	if (!rate)
		return;
	if (x->now >= s->open_until) {
		bw_fit_window_enter_follow(s, x, rate);
		s->descent_window = bw_max(s->window, rate * bw_fit_window_round_trip(x) / 1000000);
		s->descent_rate = rate;
		s->in_vain = BW_FIT_WINDOW_IN_VAIN - 1;
	}
	bw_fit_window_begin_round(s, x);
}

/* Rounded up to what the window field can hold, for less would be below the need. */
BW_FN __u64 bw_fit_window_rounded(__u64 window, const struct bw_fit_window_sample *x)
{
	__u32 shift = x->scale < BW_LARGEST_SCALE ? x->scale : BW_LARGEST_SCALE;

	return bw_min((window + (1ULL << shift) - 1) >> shift << shift, x->max);
}

BW_FN __u64 bw_fit_window_offer(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_fit_window_rounded(s->window ? s->window : bw_fit_window_unbound(s, x), x);
}

/* The window to advertise (payload). */
BW_FN __u64 bw_fit_window_observe(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (x->rtt < BW_FIT_SHORTEST)
		return x->drs;
	if (!x->received)
		return bw_fit_window_offer(s, x);
	/* Nothing new has arrived. */
	if (s->last_at && x->received == s->last_bytes)
		return bw_fit_window_offer(s, x);
	if (s->phase == BW_FIT_START || s->phase == BW_FIT_RAMP)
		bw_fit_window_watch_train(s, x);
	if (s->phase == BW_FIT_START)
		bw_fit_window_start(s, x);
	else if (s->phase == BW_FIT_RAMP)
		bw_fit_window_ramp(s, x);
	else if (s->phase == BW_FIT_FOLLOW)
		bw_fit_window_follow(s, x);
	else if (s->phase == BW_FIT_OPEN)
		bw_fit_window_rest(s, x);
	s->last_at = x->now;
	s->last_bytes = x->received;
	return bw_fit_window_offer(s, x);
}

_Static_assert(sizeof(struct bw_fit_window) == 176, "the Rust twin has 176 bytes");

#endif
