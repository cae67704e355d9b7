/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the sender: the phases Start and Ramp, which find the capacity. fit.h has the problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_START_H
#define BUFWISE_FIT_START_H

#include "fit_state.h"

/*
 * Whether TCP paces from the start: the first flight alone leaves as a burst, later ones are spread over half a round trip.
 * Then an acknowledgement lets no segment go at once. Few acknowledgements make a callback (on_departure() in flow.bpf.c),
 * and the distances of these tell nothing.
 */
BW_FN int bw_fit_is_paced_start(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return x->paced && !s->roof;
}

/* Begins a train at the time `at` (us), when `segments` had been delivered in total. */
BW_FN void bw_fit_begin_train(struct bw_fit *s, __u64 at, __u32 segments)
{
	s->train_at = at;
	s->train_segments = segments;
	s->observed = 0;
	s->gap = 0;
}

/* Returns the mean distance of the train's observations (us). */
BW_FN __u64 bw_fit_distance(const struct bw_fit *s)
{
	return (s->last_at - s->train_at) / bw_max(s->observed, 1);
}

/*
 * Whether the gap before this sample is a pause, which ends the train: more than four times the mean distance and 1 ms.
 * Before there is a mean: more than T / 8 and 3 ms, which is less than the delay of a delayed acknowledgement. In a paced
 * start few acknowledgements are seen, so the mean is the distance of segments, times those of the gap.
 */
BW_FN int bw_fit_is_pause(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 gap = x->now - s->last_at, distance = bw_fit_distance(s);
	__u32 segments = s->last_segments - s->train_segments;

	if (s->observed < BW_FIT_OBSERVED)
		return gap > x->min_rtt / 8 + 3000;
	if (bw_fit_is_paced_start(s, x))
		distance = (s->last_at - s->train_at) * (x->delivered - s->last_segments) / bw_max(segments, 1);
	return gap > 4 * distance + 1000;
}

/*
 * Whether the train really begins at the previous sample, because the distances change fourfold there. Segments that a host
 * has held back arrive at once, so a train may begin with such a bunch, or with the pause before it.
 */
BW_FN int bw_fit_begins_late(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 gap = x->now - s->last_at, distance = bw_fit_distance(s);

	return gap > 4 * distance + BW_FIT_BUNCH || (s->observed == 1 && distance > 4 * gap + BW_FIT_BUNCH);
}

/* Returns the congestion window in bytes. */
BW_FN __u64 bw_fit_cwnd(const struct bw_fit_sample *x)
{
	return bw_min(x->cwnd, 1 << 24) * bw_segment(x->mss);
}

/* Whether a train's `rate` may be TCP's own pacing rate instead of the path's: it is slower than 9/4 cwnd / T. */
BW_FN int bw_fit_is_own_rate(const struct bw_fit_sample *x, __u64 rate)
{
	return x->paced && x->cwnd > BW_FIT_BURST && bw_product(rate, x->min_rtt) * 4 < bw_fit_cwnd(x) * BW_FIT_PACED;
}

/*
 * Takes a sample into the present train. C' is the rate of the train with the most segments so far. Trains that TCP itself
 * has spread by pacing do not count. A rate on which two trains agreed is remembered as sure, whatever the later ones show.
 */
BW_FN void bw_fit_watch_train(struct bw_fit *s, const struct bw_fit_sample *x)
{
	int is_paced = bw_fit_is_paced_start(s, x), is_late;
	__u32 segments;
	__u64 rate;

	if (!s->train_at || bw_fit_is_pause(s, x)) {
		bw_fit_begin_train(s, x->now, x->delivered);
		return;
	}
	if (!is_paced && bw_fit_begins_late(s, x))
		bw_fit_begin_train(s, s->last_at, s->last_segments);
	/* In a paced start, a gap with many segments is no single distance: acknowledgements within it were not seen. */
	if (x->now - s->last_at > s->gap && (!is_paced || x->delivered - s->last_segments <= BW_FIT_OBSERVED)) {
		s->gap = bw_min(x->now - s->last_at, BW_LONGEST);
		s->gap_segments = x->delivered - s->last_segments;
	}
	/* In the gap that a stalled host leaves, the rate is too low: wait until the held segments have arrived. */
	is_late = !is_paced && s->observed >= BW_FIT_OBSERVED && x->now - s->last_at > 2 * bw_fit_distance(s);
	s->observed++;
	segments = x->delivered - s->train_segments;
	if (is_late || segments < BW_FIT_TRAIN || (!is_paced && s->observed < BW_FIT_OBSERVED) || segments < s->evidence ||
	    x->now - s->train_at < (is_paced ? BW_FIT_CLOCK : BW_FIT_SHORTEST_TRAIN))
		return;
	rate = bw_fit_rate(x, segments, x->now - s->train_at);
	if (bw_fit_is_own_rate(x, rate))
		return;
	if (s->evidence_at != s->train_at) {
		if (s->former_rate && !s->bunched && bw_distance(s->capacity, s->former_rate) <= s->capacity / BW_FIT_AGREED)
			s->sure = bw_max(s->sure, s->capacity);
		s->former_rate = s->capacity;
		s->former_time = s->train_time;
		s->evidence_at = s->train_at;
	}
	s->evidence = segments;
	s->train_time = bw_min(x->now - s->train_at, BW_LONGEST);
	s->capacity = rate;
	s->bunched = bw_fit_is_bunched(segments, s->train_time, s->gap_segments, s->gap);
}

/*
 * Whether the segments that are acknowledged now, in the ramp, were sent below the roof. In the first round trip they
 * are older.
 */
BW_FN int bw_fit_is_roof_in_force(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return x->now - s->round_at > x->srtt + x->srtt / 4;
}

/*
 * Measures the delivered rate and the shortest queue in time windows of T / 4 (at least 2 ms): while there is a queue,
 * the rate is C. Returns 1 if a window has ended.
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
	if (s->phase == BW_FIT_RAMP && bw_fit_is_roof_in_force(s, x))
		s->floor = bw_min(s->floor, s->window_least);
	s->window_least = ~0U;
	if (bw_distance(s->window_rate, s->steady_rate) > s->steady_rate / BW_FIT_STEADY) {
		s->steady_rate = s->window_rate;
		s->steady_queue = s->window_queue;
	}
	s->steady_queue = bw_min(s->steady_queue, s->window_queue);
	s->window_at = x->now;
	s->window_segments = x->delivered;
	return 1;
}

/*
 * Whether 5/8 to 9/8 of the congestion window are delivered in a round trip: slow start alone delivers half, a burst
 * more.
 */
BW_FN int bw_fit_delivers_window(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 delivers = bw_product(s->window_rate, x->srtt) * BW_FIT_FULL, window = bw_fit_cwnd(x);

	return delivers >= window * BW_FIT_FULL_LEAST && delivers <= window * BW_FIT_FULL_MOST;
}

/*
 * Whether the path is full: a queue that slow start's own flights do not explain, at a steady rate. The rate is not
 * steady after a pause of a host: held segments arrive at once, followed by a gap. In the start a steady rate does not
 * suffice, the queue has to grow, too: jitter makes CUBIC leave slow start, and then the rate is steady although the path
 * has room. In the ramp the queue has to exceed a delay that was there all the time, if this is no longer than jitter.
 */
BW_FN int bw_fit_is_full(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 queue = s->window_queue;

	/* A rate far below C' is a gap in delivery. In the ramp, a C' of more than twice C has to be detected, too. */
	if (!s->window_rate || s->window_rate < s->capacity / (s->phase == BW_FIT_RAMP ? BW_FIT_LARGEST_EXCESS : 2))
		return 0;
	if (bw_distance(s->window_rate, s->former_window_rate) > s->window_rate / BW_FIT_STEADY)
		return 0;
	if (s->phase == BW_FIT_RAMP)
		return bw_fit_is_roof_in_force(s, x) &&
		       queue > (s->floor <= bw_fit_jitter(x->min_rtt) ? s->floor : 0) + 2 * bw_fit_threshold(x);
	return queue > x->min_rtt / 4 + 2000 && queue > s->steady_queue + x->srtt / BW_FIT_LONGER &&
	       bw_fit_delivers_window(s, x);
}

/*
 * Whether jitter delays segments (bw_fit_has_jitter()), so that they arrive in bunches. If the congestion control leaves
 * slow start because of such a delay, a roof from a train in bunches would keep the congestion window small for seconds.
 */
BW_FN int bw_fit_is_jittery(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return bw_fit_has_jitter(bw_fit_queue(s, x), s->train_time, s->first_rtt, x->min_rtt);
}

/* Keeps the best delivered rate of a whole round trip in `carried`, while there is no roof. */
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

/* Whether a round trip delivered more than C' allows: the train's rate is not that of the path. */
BW_FN int bw_fit_is_refuted(const struct bw_fit *s)
{
	return s->carried > s->capacity + s->capacity / BW_FIT_REFUTED;
}

/*
 * Whether the train of C' has a good part of a flight. A flight comes back as one train, and the flight before the present one was
 * half as long; jitter breaks flights into short trains of any rate.
 */
BW_FN int bw_fit_is_whole(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return !s->bunched && s->evidence * BW_FIT_WHOLE >= bw_min(x->cwnd, 1 << 24);
}

/*
 * Whether the last two trains have different rates. A flight that jitter has spread is sent at the pace of its acknowledgements, and
 * so is the next one: its rate is twice that of the one before, and not the path's.
 */
BW_FN int bw_fit_is_contradicted(const struct bw_fit *s)
{
	return s->former_rate && bw_distance(s->capacity, s->former_rate) >
				 bw_min(s->capacity, s->former_rate) / BW_FIT_CONTRADICTED;
}

/* Whether the train of C' is the only one, and so short that jitter may have made its rate. */
BW_FN int bw_fit_is_alone(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return !s->former_rate && s->train_time < x->min_rtt / BW_FIT_ALONE + 2000;
}

/* Whether C' is evident: its train is long enough for the present window, and nothing speaks against it. */
BW_FN int bw_fit_is_evident(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 window = bw_fit_cwnd(x), product = bw_product(s->capacity, x->min_rtt);
	__u64 time = s->train_time;

	/* There will be no better train than the first flight's. Paced flights fill no queue until they are as fast as C. */
	if (bw_fit_is_paced_start(s, x))
		return s->capacity && !s->bunched && !bw_fit_is_contradicted(s) && !bw_fit_is_refuted(s) &&
		       window * BW_FIT_LATER >= product;

	/* Two trains of the same rate confirm each other: together they count 5/4 of their time. */
	if (s->former_rate && bw_distance(s->capacity, s->former_rate) <= s->capacity / BW_FIT_AGREED)
		time = (time + s->former_time) * 5 / 4;
	if (!s->capacity || !bw_fit_is_whole(s, x) || bw_fit_is_alone(s, x) || bw_fit_is_contradicted(s) ||
	    bw_fit_is_refuted(s) || bw_fit_is_own_rate(x, s->capacity))
		return 0;
	if (time >= BW_FIT_LONG_TRAIN)
		return window * BW_FIT_SOON >= product;
	return time >= BW_FIT_SHORT_TRAIN && window * BW_FIT_LATER >= product;
}

/*
 * Whether the next flights of slow start could overflow a short queue, so that the roof cannot wait for better
 * evidence. C' is taken as the rate of the slower of the last two trains, because acknowledgements that a host has held back
 * form a train that is too fast. If the two differ much, the slower one tells nothing, and the faster one counts. A first
 * train that jitter may have spread has to wait for a larger window.
 */
BW_FN int bw_fit_is_late(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 rate = s->capacity;
	__u32 part = bw_fit_is_alone(s, x) && s->train_time >= BW_FIT_LONG_TRAIN ? BW_FIT_LATEST : BW_FIT_LATER;

	if (bw_fit_is_contradicted(s))
		rate = bw_max(rate, s->former_rate);
	else if (s->former_rate)
		rate = bw_min(rate, s->former_rate);
	return rate && bw_fit_is_whole(s, x) && !x->paced && !bw_fit_is_refuted(s) &&
	       bw_fit_cwnd(x) * part >= bw_product(rate, x->min_rtt);
}

/* Sets the first roof: 15/16 of `rate`. */
BW_FN void bw_fit_set_first(struct bw_fit *s, const struct bw_fit_sample *x, __u64 rate)
{
	bw_fit_set(s, rate / BW_FIT_RAMP_DENOMINATOR * BW_FIT_RAMP_NUMERATOR, x);
}

BW_FN void bw_fit_begin_ramp(struct bw_fit *s, const struct bw_fit_sample *x, __u64 rate)
{
	s->phase = BW_FIT_RAMP;
	bw_fit_begin_floor(s);
	s->window_rate = 0;
	bw_fit_begin_round(s, x);
	bw_fit_set_first(s, x, rate);
}

/* Returns the least rate that the longest train shows: it may have lasted BW_FIT_CLOCK longer, as clocks and timers err. */
BW_FN __u64 bw_fit_least_capacity(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return bw_fit_rate(x, s->evidence, s->train_time + BW_FIT_CLOCK);
}

/*
 * Begins the ramp once C' is evident. If flights would overflow a short queue before that, a first roof paces them, and
 * the ramp begins a round trip later: until then the bursts that were sent before are still measured.
 */
BW_FN void bw_fit_end_start(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 fastest = bw_max(s->former_rate, s->capacity);

	if (!s->roof && bw_fit_is_jittery(s, x))
		return;
	if (bw_fit_is_evident(s, x)) {
		if (bw_fit_is_paced_start(s, x))
			s->capacity = bw_fit_least_capacity(s, x);
		s->sure = bw_max(s->sure, s->capacity);
		bw_fit_begin_ramp(s, x, s->capacity);
	} else if (!s->roof && bw_fit_is_late(s, x)) {
		s->round_at = x->now;
		bw_fit_set_first(s, x, fastest);
	} else if (s->roof && x->now - s->round_at > x->srtt) {
		bw_fit_begin_ramp(s, x, fastest);
	}
}

/* Restarts the phase Start without a roof, because far more than the roof is delivered: C' was wrong. */
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

/*
 * Ends the ramp, because the roof is reached. The ramp's flights were spread, so a delay that was there all the time belongs
 * to the path. With such a delay trains may have shown less than the path carries: the search for more begins with the
 * largest steps.
 */
BW_FN void bw_fit_end_ramp(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u32 floor = s->floor;

	bw_fit_enter_follow(s, x);
	if (floor > bw_fit_threshold(x) / 2 && floor <= bw_fit_jitter(x->min_rtt)) {
		bw_fit_allow(s, x, floor);
		s->step = BW_FIT_LARGEST_STEP;
	}
}

/* Takes a sample in the phases Start and Ramp, after bw_fit_watch(), and decides when they end. */
BW_FN void bw_fit_start(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (!s->first_rtt)
		s->first_rtt = bw_min(x->min_rtt, BW_LONGEST);
	if (bw_fit_watch_rate(s, x) && bw_fit_is_full(s, x)) {
		/* Beside other flows, the delivered rate is a share of C: C' may be larger. */
		s->capacity = bw_max(bw_min(s->capacity, BW_FIT_LARGEST_EXCESS * s->window_rate), s->window_rate);
		bw_fit_set(s, s->window_rate - s->window_rate / BW_FIT_LARGEST_DOWN, x);
		bw_fit_enter_follow(s, x);
		s->known = s->window_rate;
		s->step = BW_FIT_STEP;
		s->drains = 1;
	} else if (s->phase == BW_FIT_RAMP) {
		if (s->window_rate > s->roof + s->roof / BW_FIT_BURST_BEYOND)
			bw_fit_begin_again(s, x);
		else if (s->window_rate * BW_FIT_REACHED_DENOMINATOR > s->roof * BW_FIT_REACHED_NUMERATOR)
			bw_fit_end_ramp(s, x);
	} else {
		bw_fit_watch_round(s, x);
		bw_fit_end_start(s, x);
	}
}

#endif
