/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, second part: the phases until it knows the path. fit_window.h has the problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_RAMP_H
#define BUFWISE_FIT_RAMP_H

#include "fit_window_state.h"

/* ---- Start ---------------------------------------------------------------------------------------------- */

/*
 * A pause ends a train: four times the mean distance and a millisecond. Before there is a mean, what came since the last
 * sample would have taken a quarter of the time at C' (a burst of two segments may come long before its flight); without C', half a
 * round trip.
 */
BW_FN int bw_fit_window_is_pause(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 gap = bw_less(x->now, s->last_at), came = bw_less(x->received, s->last_bytes);

	if (s->observed >= BW_FIT_OBSERVED)
		return gap > 4 * bw_less(s->last_at, s->train_at) / s->observed + 1000;
	if (s->capacity)
		return gap > x->rtt / 16 + 4 * bw_min(came, BW_MOST_BYTES) * 1000000 / s->capacity + 1000;
	return gap > x->rtt / 2;
}

/* The train is long enough to tell a rate. */
BW_FN int bw_fit_window_is_train(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes)
{
	return s->observed >= BW_FIT_OBSERVED && bytes >= BW_FIT_TRAIN * bw_segment(x->mss);
}

/*
 * Whether a train comes in bunches, as jitter leaves it, and a host that holds back: without its longest distance, its rate
 * would be a third more, or what ended this would have taken a millisecond. A device joins segments (GRO), so that a few
 * observations tell nothing of bunches.
 */
BW_FN int bw_fit_window_is_bunched(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes,
				   __u64 time)
{
	__u64 held_back = bw_less(s->gap_bytes, BW_FIT_WINDOW_BURST * bw_segment(x->mss));

	bytes = bw_min(bytes, BW_FIT_WINDOW_LONGEST_TRAIN);
	time = bw_min(time, BW_LONGEST);
	if (s->observed < BW_FIT_WINDOW_MANY)
		return 0;
	return held_back * time > bytes * BW_FIT_WINDOW_BUNCH ||
	       bw_less(bytes, s->gap_bytes) * time * 3 > bytes * bw_less(time, s->gap) * 4;
}

/* The last train has the rate of the longest one. */
BW_FN int bw_fit_window_agrees(const struct bw_fit_window *s)
{
	return s->capacity && bw_distance(s->capacity, s->train_rate) <= s->capacity / BW_FIT_WINDOW_SAME;
}

BW_FN void bw_fit_window_begin_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes = bw_less(s->last_bytes, s->train_bytes), time = bw_less(s->last_at, s->train_at);

	/* Where segments were lost, the rate is not the path's. */
	if (s->train_at && x->out_of_order == s->train_out_of_order && bw_fit_window_is_train(s, x, bytes)) {
		s->train_rate = bw_fit_window_is_bunched(s, x, bytes, time) ? 0 : bw_rate(bytes, time);
		if (bw_fit_window_agrees(s))
			s->doubts = bw_less(s->doubts, 1);
		else if (s->phase == BW_FIT_RAMP || s->doubts)
			s->doubts++;
	}
	s->gap = 0;
	s->train_at = x->now;
	s->train_bytes = x->received;
	s->train_out_of_order = x->out_of_order;
	s->observed = 0;
}

/* C' is the rate of the longest train. Beyond half a round trip it may be the sender's rate that is seen. */
BW_FN void bw_fit_window_watch_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes, time, rate;

	if (!s->train_at || x->out_of_order != s->train_out_of_order || bw_fit_window_is_pause(s, x)) {
		bw_fit_window_begin_train(s, x);
		return;
	}
	s->observed++;
	if (bw_less(x->now, s->last_at) > s->gap) {
		s->gap = bw_min(bw_less(x->now, s->last_at), BW_LONGEST);
		s->gap_bytes = bw_min(bw_less(x->received, s->last_bytes), BW_FIT_WINDOW_LONGEST_TRAIN);
	}
	bytes = bw_less(x->received, s->train_bytes);
	time = bw_less(x->now, s->train_at);
	if (!bw_fit_window_is_train(s, x, bytes) || bytes < s->evidence || time > x->rtt / 2 ||
	    bw_fit_window_is_bunched(s, x, bytes, time))
		return;
	rate = bw_rate(bytes, time);
	/* A delayed acknowledgement may put a pause into a train that is hardly longer than the best one. */
	if (rate < s->capacity - s->capacity / BW_FIT_WINDOW_SAME && bytes < 2 * s->evidence)
		return;
	s->evidence = bytes;
	s->capacity = rate;
}

/*
 * The round trip is longer than the queue makes it that slow start has filled by now: T is not the path's, or the trains are none.
 */
BW_FN int bw_fit_window_is_jittery(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 queue = bw_min(x->largest, BW_MOST_BYTES) * 1000000 / bw_max(s->capacity, 1);

	return x->rcv_rtt > x->rtt + x->rtt / BW_FIT_JITTER + queue + 1000;
}

BW_FN int bw_fit_window_is_evident(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->doubts || !bw_fit_window_agrees(s) || bw_fit_window_is_jittery(s, x))
		return 0;
	return bw_min(x->drs, BW_MOST_BYTES) * BW_FIT_WINDOW_EVIDENCE >= bw_fit_window_held(x, s->capacity);
}

/*
 * The window in the start: what the kernel offered when the connection began, and what slow start needs, which sends two
 * segments for each that arrives. No more, for what was offered once cannot be taken back when the capacity is known.
 */
BW_FN __u64 bw_fit_window_first(const struct bw_fit_window_sample *x)
{
	__u64 received = bw_min(x->received, BW_MOST_BYTES), largest = bw_min(x->largest, BW_MOST_BYTES);
	__u64 doubled = received + bw_max(largest, BW_FIT_WINDOW_INITIAL * bw_segment(x->mss));

	doubled = bw_max(doubled, bw_less(BW_FIT_WINDOW_FIRST, received));
	return bw_min(doubled, bw_max(x->drs, BW_FIT_WINDOW_FIRST));
}

/*
 * The window beside others' queue: more than has been under way lately. A sender in slow start fills what it is given, so that a
 * window that doubled, as DRS's does, would overflow any queue within some round trips.
 */
BW_FN __u64 bw_fit_window_beside(const struct bw_fit_window *s)
{
	return s->known + s->known / BW_FIT_WINDOW_OPEN;
}

/* The window where the rule has none of its own. */
BW_FN __u64 bw_fit_window_unbound(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_min(s->phase == BW_FIT_START ? bw_fit_window_first(x) : bw_fit_window_beside(s), x->max);
}

/* Growth of the window in a round trip. */
BW_FN __u64 bw_fit_window_step(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 part = 1024 * bw_min(x->rtt, BW_LONGEST) / BW_FIT_WINDOW_RAMP;

	part = bw_min(bw_max(part, BW_FIT_WINDOW_SMALLEST_STEP), BW_FIT_WINDOW_LARGEST_STEP);
	part = bw_fit_window_held(x, s->capacity) / 1024 * part;
	return bw_max(bw_less(part, BW_FIT_WINDOW_BURST * bw_segment(x->mss)), bw_segment(x->mss));
}

BW_FN void bw_fit_window_begin_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 under_way = 2 * bw_min(x->largest, BW_MOST_BYTES);

	bw_fit_window_set(s, bw_min(bw_fit_window_unbound(s, x), under_way + bw_fit_window_step(s, x)), x);
	s->phase = BW_FIT_RAMP;
	s->rest = 0;
	s->above = BW_FIT_WINDOW_ABOVE;
	s->arrived = under_way;
	s->known = s->window;
	s->stuck = 0;
	bw_fit_window_begin_round(s, x);
}

/*
 * In the start, each round: more is under way, and R is not more: R is C. A window that stays tells nothing, whatever the round
 * trips are: the sender has left slow start. 0: not so.
 */
BW_FN __u64 bw_fit_window_full_rate(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 elapsed = bw_less(x->now, s->round_at), rate, under_way;

	if (elapsed < x->rtt)
		return 0;
	rate = bw_rate(bw_less(x->received, s->round_bytes), elapsed);
	under_way = bw_product(rate, bw_fit_window_round_trip(x));
	bw_fit_window_begin_round(s, x);
	if (rate > s->anchor_rate + s->anchor_rate / BW_FIT_WINDOW_SAME_RATE) {
		s->anchor_rate = rate;
		s->anchor_window = under_way;
		return 0;
	}
	return bw_fit_window_is_delayed(x) && under_way > s->anchor_window + s->anchor_window / BW_FIT_WINDOW_MORE ? rate : 0;
}

BW_FN void bw_fit_window_start(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate;

	if (!s->round_at)
		bw_fit_window_begin_round(s, x);
	rate = bw_fit_window_full_rate(s, x);
	if (rate) {
		s->capacity = rate;
		bw_fit_window_enter_from(s, x, rate, rate);
	} else if (bw_fit_window_is_evident(s, x)) {
		bw_fit_window_begin_ramp(s, x);
	}
}

/* The trains do not agree: the kernel's way goes on, until they do. */
BW_FN void bw_fit_window_begin_again(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->phase = BW_FIT_START;
	s->window = 0;
	s->doubts = bw_max(s->doubts, BW_FIT_WINDOW_DOUBTS);
	s->capacity = 0;
	s->evidence = 0;
	s->train_rate = 0;
	s->anchor_rate = 0;
	bw_fit_window_begin_round(s, x);
}

/* ---- Ramp ----------------------------------------------------------------------------------------------- */

/*
 * R is C', and yet the window holds more than R * T: acknowledgements or segments come in bursts, and T is longer. `arrived`: in
 * the last round, which began with the window `known`.
 */
BW_FN void bw_fit_window_lengthen(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 step)
{
	__u64 most = s->arrived + 7 * step / 4 + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);

	if (bw_fit_window_is_delayed(x) && s->known > most)
		s->extra = bw_min((s->known - step - s->arrived) * 1024 / bw_max(s->arrived, 1), BW_FIT_WINDOW_LONGER);
}

/* Each round trip of the ramp; 1: the window has grown and what arrives has not, twice: the path is full. */
BW_FN int bw_fit_window_is_full(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 step)
{
	__u64 elapsed = bw_less(x->now, s->round_at), arrived;

	if (elapsed < x->rtt)
		return 0;
	arrived = bw_fit_window_held(x, bw_rate(bw_less(x->received, s->round_bytes), elapsed));
	if (s->window >= arrived + 3 * step / 2 && arrived <= s->arrived + s->arrived / 64 &&
	    x->rcv_rtt > x->rtt + x->rtt / 16 + 600 && bw_fit_window_is_used(s, x, bw_rate(arrived, x->rtt)))
		s->stuck++;
	else
		s->stuck = 0;
	s->arrived = arrived;
	s->rest = 1;
	s->known = s->window;
	bw_fit_window_begin_round(s, x);
	return s->stuck >= 2;
}

BW_FN void bw_fit_window_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 step = bw_fit_window_step(s, x), product = bw_fit_window_held(x, s->capacity), most;
	__u64 came = bw_min(bw_less(x->received, s->last_bytes), 1ULL << 28);

	/* The trains contradict C', or more arrives than they told. */
	if (s->doubts >= BW_FIT_WINDOW_DOUBTS || (s->rest && s->arrived > product + product / BW_FIT_WINDOW_REACHED)) {
		bw_fit_window_begin_again(s, x);
		return;
	}
	if (bw_fit_window_is_full(s, x, step)) {
		/* R stays below C': others' queue, or R differs from round to round. */
		if (s->arrived < product - product / BW_FIT_WINDOW_REACHED) {
			bw_fit_window_open(s, x);
			return;
		}
		s->capacity = bw_rate(s->arrived, x->rtt);
		bw_fit_window_enter_from(s, x, s->capacity, s->capacity);
		return;
	}
	most = bw_product(bw_rate(s->arrived, x->rtt), bw_fit_window_round_trip(x)) + 2 * bw_max(step, bw_segment(x->mss)) +
	       BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);
	if (s->known > step)
		came = came * bw_min(step, 1ULL << 32) / s->known;
	bw_fit_window_set(s, bw_max(s->window, bw_min(s->window + came, most)), x);
	if (!s->rest || s->window < bw_fit_window_target(s, x, product) || s->arrived < product - product / BW_FIT_WINDOW_REACHED)
		return;
	bw_fit_window_lengthen(s, x, step);
	bw_fit_window_enter_follow(s, x, s->capacity);
}

#endif
