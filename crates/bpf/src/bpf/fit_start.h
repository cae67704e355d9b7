/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* fit at the sender, the phases until it knows the path: start and ramp. fit.h has the problem, the terms and the rule. */
#ifndef BUFWISE_FIT_START_H
#define BUFWISE_FIT_START_H

#include "fit_state.h"

/* A train begins at this time, with so many segments delivered. */
BW_FN void bw_fit_begin_train(struct bw_fit *s, __u64 at, __u32 segments)
{
	s->train_at = at;
	s->train_segments = segments;
	s->observed = 0;
	s->gap = 0;
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

/*
 * Segments that a host has held back arrive at once. If a train begins so, or with the pause before, its rest tells the rate:
 * from where the distances become quite different ones.
 */
BW_FN int bw_fit_begins_late(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 gap = x->now - s->last_at, distance = bw_fit_distance(s);

	return gap > 4 * distance + BW_FIT_BUNCH || (s->observed == 1 && distance > 4 * gap + BW_FIT_BUNCH);
}

/*
 * Whether a train comes in bunches: without its longest distance, its rate would be a third more. So jitter leaves it, and a host
 * that holds back.
 */
BW_FN int bw_fit_is_bunched(const struct bw_fit *s, __u64 segments, __u64 time)
{
	return (segments - s->gap_segments) * time * 3 > segments * bw_less(time, s->gap) * 4;
}

/* One observation of the start: C' is the rate of the train with the most segments. */
BW_FN void bw_fit_watch_train(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u32 segments;
	int is_late;

	if (!s->train_at || bw_fit_is_pause(s, x)) {
		bw_fit_begin_train(s, x->now, x->delivered);
		return;
	}
	if (bw_fit_begins_late(s, x))
		bw_fit_begin_train(s, s->last_at, s->last_segments);
	if (x->now - s->last_at > s->gap) {
		s->gap = bw_min(x->now - s->last_at, BW_LONGEST);
		s->gap_segments = x->delivered - s->last_segments;
	}
	/* After a stall of a host in between, the rate is right again when what it has held back is here. */
	is_late = s->observed >= BW_FIT_OBSERVED && x->now - s->last_at > 2 * bw_fit_distance(s);
	s->observed++;
	segments = x->delivered - s->train_segments;
	if (is_late || segments < BW_FIT_TRAIN || s->observed < BW_FIT_OBSERVED || segments < s->evidence ||
	    x->now - s->train_at < BW_FIT_SHORTEST_TRAIN)
		return;
	if (s->evidence_at != s->train_at) {
		s->former_rate = s->capacity;
		s->former_time = s->train_time;
		s->evidence_at = s->train_at;
	}
	s->evidence = segments;
	s->train_time = bw_min(x->now - s->train_at, BW_LONGEST);
	s->capacity = bw_fit_rate(x, segments, s->train_time);
	s->bunched = bw_fit_is_bunched(s, segments, s->train_time);
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

/* Bytes of the congestion window. */
BW_FN __u64 bw_fit_cwnd(const struct bw_fit_sample *x)
{
	return bw_min(x->cwnd, 1 << 24) * bw_segment(x->mss);
}

/* Whether what arrives is the window in a round trip, or as much of it as slow start has under way. */
BW_FN int bw_fit_delivers_window(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 delivers = bw_product(s->window_rate, x->srtt) * BW_FIT_FULL, window = bw_fit_cwnd(x);

	return delivers >= window * BW_FIT_FULL_LEAST && delivers <= window * BW_FIT_FULL_MOST;
}

/*
 * A queue in the start that no flight of slow start explains, at a steady rate: the window has passed the path. After a pause of
 * a host, what it has held back comes at once, and then nothing.
 */
BW_FN int bw_fit_is_full(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 queue = s->window_queue;

	/* In the ramp a C' of twice what the path carries has to be found out, too. */
	if (!s->window_rate || s->window_rate < s->capacity / (s->phase == BW_FIT_RAMP ? BW_FIT_LARGEST_EXCESS : 2))
		return 0;
	if (bw_distance(s->window_rate, s->former_window_rate) > s->window_rate / BW_FIT_STEADY)
		return 0;
	/* Segments that left before the roof was set return for one more round trip. */
	if (s->phase == BW_FIT_RAMP)
		return x->now - s->round_at > x->srtt + x->srtt / 4 && queue > 2 * bw_fit_threshold(x);
	return queue > x->min_rtt / 4 + 2000 && bw_fit_delivers_window(s, x);
}

/* TCP paces, and the train is no faster than that: its rate is the sender's own. */
BW_FN int bw_fit_is_own_rate(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return x->paced && x->cwnd > BW_FIT_BURST && bw_product(s->capacity, x->min_rtt) * 4 < bw_fit_cwnd(x) * BW_FIT_PACED;
}

/*
 * The round trip is longer than the queue makes it that slow start has filled by now: what comes so late comes in bunches. If a
 * congestion control leaves slow start for that, a roof from such a train would keep its window small for seconds.
 */
BW_FN int bw_fit_is_jittery(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return bw_fit_queue(s, x) > s->train_time / 2 + x->min_rtt / BW_FIT_JITTER + 1000;
}

/* The best rate of a whole round trip in the start. */
BW_FN void bw_fit_watch_round(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at;

	if (s->roof || (s->round_at && elapsed < x->srtt))
		return;
	if (s->round_at)
		s->carried = bw_max(s->carried, bw_fit_rate(x, x->delivered - s->round_segments, elapsed));
	s->round_at = x->now;
	s->round_segments = x->delivered;
}

/* More was delivered in a round trip than the train's rate: it is none of the path. */
BW_FN int bw_fit_is_refuted(const struct bw_fit *s)
{
	return s->carried > s->capacity + s->capacity / BW_FIT_REFUTED;
}

/* The train is long enough. */
BW_FN int bw_fit_is_evident(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 window = bw_fit_cwnd(x), product = bw_product(s->capacity, x->min_rtt);
	__u64 time = s->train_time;

	/* Two trains of the same rate are better than one as long as both, for they confirm each other. */
	if (s->former_rate && bw_distance(s->capacity, s->former_rate) <= s->capacity / BW_FIT_AGREED)
		time = (time + s->former_time) * 5 / 4;
	if (!s->capacity || s->bunched || bw_fit_is_refuted(s) || bw_fit_is_own_rate(s, x))
		return 0;
	if (time >= BW_FIT_LONG_TRAIN)
		return window * BW_FIT_SOON >= product;
	return time >= BW_FIT_SHORT_TRAIN && window * BW_FIT_LATER >= product;
}

/*
 * The next flights would overflow a short queue, whatever C' is worth: the slower of the last two trains is taken for it, for
 * acknowledgements that a host has held back come at once, in a train that is too fast.
 */
BW_FN int bw_fit_is_late(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 rate = s->former_rate ? bw_min(s->former_rate, s->capacity) : s->capacity;

	return rate && !x->paced && !bw_fit_is_refuted(s) && bw_fit_cwnd(x) * BW_FIT_LATER >= bw_product(rate, x->min_rtt);
}

BW_FN void bw_fit_set_first(struct bw_fit *s, const struct bw_fit_sample *x, __u64 rate)
{
	bw_fit_set(s, rate / BW_FIT_RAMP_DENOMINATOR * BW_FIT_RAMP_NUMERATOR, x);
}

BW_FN void bw_fit_begin_ramp(struct bw_fit *s, const struct bw_fit_sample *x, __u64 rate)
{
	s->phase = BW_FIT_RAMP;
	s->window_at = 0;
	s->window_rate = 0;
	bw_fit_begin_round(s, x);
	bw_fit_set_first(s, x, rate);
}

/*
 * Flights are paced before their rate is sure where they would overflow a queue otherwise. What has left by then arrives for
 * one more round trip, as the bursts that tell C'.
 */
BW_FN void bw_fit_end_start(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 fastest = bw_max(s->former_rate, s->capacity);

	if (!s->roof && bw_fit_is_jittery(s, x))
		return;
	if (bw_fit_is_evident(s, x)) {
		bw_fit_begin_ramp(s, x, s->capacity);
	} else if (!s->roof && bw_fit_is_late(s, x)) {
		s->round_at = x->now;
		bw_fit_set_first(s, x, fastest);
	} else if (s->roof && x->now - s->round_at > x->srtt) {
		bw_fit_begin_ramp(s, x, fastest);
	}
}

/* More arrives than the path was thought to carry: it was no train. */
BW_FN void bw_fit_begin_again(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->phase = BW_FIT_START;
	s->roof = 0;
	s->capacity = 0;
	s->evidence = 0;
	s->former_rate = 0;
	s->carried = 0;
	bw_fit_begin_round(s, x);
	bw_fit_begin_train(s, x->now, x->delivered);
}

BW_FN void bw_fit_start(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (bw_fit_watch_rate(s, x) && bw_fit_is_full(s, x)) {
		/* Beside others, what is delivered is a share of C. */
		s->capacity = bw_max(bw_min(s->capacity, BW_FIT_LARGEST_EXCESS * s->window_rate), s->window_rate);
		bw_fit_set(s, s->window_rate - s->window_rate / BW_FIT_LARGEST_DOWN, x);
		bw_fit_enter_follow(s, x);
		s->known = s->window_rate;
		s->step = BW_FIT_STEP;
		s->drains = 1;
	} else if (s->phase == BW_FIT_RAMP) {
		if (s->window_rate > s->roof + s->roof * BW_FIT_BURST_BEYOND_QUARTERS / 4)
			bw_fit_begin_again(s, x);
		else if (s->window_rate * BW_FIT_REACHED_DENOMINATOR > s->roof * BW_FIT_REACHED_NUMERATOR)
			bw_fit_enter_follow(s, x);
	} else {
		bw_fit_watch_train(s, x);
		bw_fit_watch_round(s, x);
		bw_fit_end_start(s, x);
	}
}

#endif
