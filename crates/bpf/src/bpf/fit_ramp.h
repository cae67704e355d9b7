/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, first part: the phases Start and Ramp, which find the capacity. fit_window.h has the problem, the terms
 * and the rule.
 */
#ifndef BUFWISE_FIT_RAMP_H
#define BUFWISE_FIT_RAMP_H

#include "fit_window_state.h"

/* ---- Start ---------------------------------------------------------------------------------------------- */

/* Returns how long the train of C' has lasted (us). */
BW_FN __u64 bw_fit_window_train_time(const struct bw_fit_window *s)
{
	return bw_min(s->evidence, BW_MOST_BYTES) * 1000000 / bw_max(s->capacity, 1);
}

/* Whether a train of `time` (us) up to the connection's byte `bytes` is a first flight, too short for the usual samples. */
BW_FN int bw_fit_window_is_short(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 time, __u64 bytes)
{
	return bytes < BW_FIT_WINDOW_FIRST_FLIGHT * bw_segment(x->mss) && time < BW_FIT_OBSERVED * s->tick;
}

/*
 * Whether the gap before this sample is a pause, which ends the train: more than four times the mean distance of samples and 1 ms.
 * Before there is a mean: more than four times what the new bytes take at C', T / 16 and 1 ms (a burst of two segments may come
 * long before its flight); without C', half of T.
 */
BW_FN int bw_fit_window_is_pause(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 gap = bw_less(x->now, s->last_at), came = bw_less(x->received, s->last_bytes);

	if (s->observed >= BW_FIT_OBSERVED)
		return gap > 4 * bw_max(bw_less(s->last_at, s->train_at) / s->observed, s->tick) + 1000;
	if (s->capacity && !s->is_short)
		return gap > x->rtt / 16 + 4 * bw_min(came, BW_MOST_BYTES) * 1000000 / s->capacity + 1000;
	return gap > x->rtt / 2;
}

/*
 * Whether segments are delayed by jitter, so that they arrive in bunches and trains tell nothing: round trips are longer than the
 * queue that the flight of C' has left, or the handshake's round trip was longer than T.
 */
BW_FN int bw_fit_window_is_jittery(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_fit_has_jitter(bw_less(x->rcv_rtt, x->rtt), bw_fit_window_train_time(s), s->first_rtt, x->rtt);
}

/* Whether the train has enough observations, and enough bytes for `segments` after the first one, to tell a rate. */
BW_FN int bw_fit_window_is_train(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes, __u64 segments)
{
	return s->observed >= BW_FIT_OBSERVED && bytes >= segments * bw_segment(x->mss);
}

/* Counts the train up to the last sample, if it tells a rate: as one with the rate C', or in the ramp as a faster one. */
BW_FN void bw_fit_window_count_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes = bw_less(s->last_bytes, s->train_bytes), rate;
	int is_faster;

	if (!bw_fit_window_is_train(s, x, bytes, BW_FIT_TRAIN) || bw_fit_window_is_short(s, x, bw_less(s->last_at, s->train_at), s->last_bytes))
		return;
	rate = bw_rate(bytes, bw_less(s->last_at, s->train_at));
	is_faster = s->phase == BW_FIT_RAMP && rate > s->fastest + s->fastest / BW_FIT_WINDOW_SAME;
	s->former_train_rate = s->train_rate;
	s->train_rate = rate;
	s->is_present = 0;
	s->faster += is_faster;
	if (!is_faster && bw_distance(rate, s->capacity) <= s->capacity / BW_FIT_WINDOW_AGREED) {
		s->agreed++;
		s->fastest = bw_max(s->fastest, rate);
	} else if (s->agreed < BW_FIT_WINDOW_SURE) {
		s->agreed /= 2;
	}
}

/* Whether a train of the start has lasted for half of T at the time `at` (us). It was counted at that moment. */
BW_FN int bw_fit_window_is_long(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 at)
{
	return s->phase == BW_FIT_START && bw_less(at, s->train_at) > x->rtt / 2;
}

/* Counts the train that has ended, and begins one with this sample. */
BW_FN void bw_fit_window_begin_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	/* A train with lost segments does not have the path's rate. */
	if (s->train_at && x->out_of_order == s->train_out_of_order && !bw_fit_window_is_long(s, x, s->last_at))
		bw_fit_window_count_train(s, x);
	s->train_at = x->now;
	s->train_bytes = x->received;
	s->train_out_of_order = x->out_of_order;
	s->observed = 0;
	s->is_present = 0;
	s->gap = 0;
	s->gap_bytes = 0;
}

/*
 * Whether the sender has spread a train of the ramp, so that it does not tell C: the train is slower than C', and no queue shows.
 * The sender paces, as fit does at the other end, or its window was used up.
 */
BW_FN int bw_fit_window_is_paced(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return s->phase == BW_FIT_RAMP && rate < s->capacity - s->capacity / BW_FIT_WINDOW_AGREED && bw_fit_window_is_empty(x);
}

/* Whether a train is hardly longer than that of C': a delayed acknowledgement may have put a pause into it. */
BW_FN int bw_fit_window_is_hardly_longer(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes)
{
	return !s->is_short && bytes < 2 * s->evidence && s->evidence >= BW_FIT_TRAIN * bw_segment(x->mss);
}

/* Whether this may be a second flight that the sender has spread; bw_fit_window_is_slow_train() judges it after a quarter of T. */
BW_FN int bw_fit_window_may_be_paced(const struct bw_fit_window_sample *x, __u64 time)
{
	return x->received < BW_FIT_WINDOW_FLIGHTS * bw_segment(x->mss) && time > x->rtt / (4 * BW_FIT_WINDOW_PACED) &&
	       time < 3 * x->rtt / (2 * BW_FIT_WINDOW_PACED);
}

/*
 * Takes a sample into the present train. C' is the rate of the longest train of at most half a round trip: a longer one may have
 * the sender's rate.
 */
BW_FN void bw_fit_window_watch_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes, time, rate;
	int is_short;

	if (!s->train_at || x->out_of_order != s->train_out_of_order || bw_fit_window_is_pause(s, x)) {
		bw_fit_window_begin_train(s, x);
		return;
	}
	/*
	 * In the start, a train is counted once it has lasted for half a round trip: if the first flights fill the path, no pause
	 * ends the train before the queue overflows.
	 */
	if (bw_fit_window_is_long(s, x, x->now) && !bw_fit_window_is_long(s, x, s->last_at))
		bw_fit_window_count_train(s, x);
	s->observed++;
	if (bw_less(x->now, s->last_at) > s->gap) {
		s->gap = bw_min(bw_less(x->now, s->last_at), BW_LONGEST);
		s->gap_bytes = bw_min(bw_less(x->received, s->last_bytes), BW_LONGEST);
	}
	bytes = bw_less(x->received, s->train_bytes);
	time = bw_less(x->now, s->train_at);
	is_short = bw_fit_window_is_short(s, x, time, x->received);
	if (!bw_fit_window_is_train(s, x, bytes, BW_FIT_WINDOW_TRAIN) || bytes < s->evidence || time > x->rtt / 2 ||
	    (is_short && s->capacity && !s->is_short))
		return;
	rate = bw_rate(bytes, time);
	if (rate < s->capacity - s->capacity / BW_FIT_WINDOW_SAME &&
	    (bw_fit_window_is_hardly_longer(s, x, bytes) || bw_fit_window_may_be_paced(x, time)))
		return;
	if (s->paced || bw_fit_window_is_paced(s, x, rate))
		return;
	s->evidence = bytes;
	s->capacity = rate;
	s->is_short = is_short;
	s->is_present = 1;
	s->bunched = bw_fit_is_bunched(bytes, time, s->gap_bytes, s->gap);
}

/*
 * Whether the sender paces, as fit does in its ramp at the other end, so that trains have the sender's rate: the longest train is a
 * good part of C' T and more than the first flights, but no queue shows. A burst of this size would have left one.
 */
BW_FN int bw_fit_window_is_spread(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return s->evidence > BW_FIT_WINDOW_FLIGHTS * bw_segment(x->mss) &&
	       s->evidence * BW_FIT_WINDOW_SPREAD > bw_fit_window_held(x, s->capacity) && bw_fit_window_is_empty(x);
}

/* Whether a round trip has delivered far more than C' allows. */
BW_FN int bw_fit_window_is_refuted(const struct bw_fit_window *s, __u64 rate)
{
	return rate > s->capacity + s->capacity / BW_FIT_WINDOW_REFUTED;
}

/*
 * Whether C' is evident: two trains in a row have this rate, nothing speaks against it, and the window has reached the part of C' T
 * at which the start ends.
 */
BW_FN int bw_fit_window_is_evident(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 other = s->is_present ? s->train_rate : s->former_train_rate, most = s->capacity / BW_FIT_WINDOW_SAME;

	if (!s->capacity || (s->bunched | s->is_short) || bw_fit_window_is_refuted(s, s->start_rate) || bw_fit_window_is_spread(s, x) || !other ||
	    bw_distance(s->capacity, other) > most || bw_distance(s->capacity, s->train_rate) > most ||
	    bw_fit_window_is_jittery(s, x))
		return 0;
	return bw_min(x->drs, BW_MOST_BYTES) * BW_FIT_WINDOW_EVIDENCE >= bw_fit_window_held(x, s->capacity);
}

/*
 * Returns the window in the start: what slow start needs, which sends two segments for each one that arrives, but at least the
 * kernel's first window. It is no larger, because an offered window cannot be taken back when the capacity is known. DRS measures
 * over the shortest round trip. On a jittery path that is far shorter than the usual one, and DRS's first measurements may be of
 * almost nothing.
 */
BW_FN __u64 bw_fit_window_first(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 received = bw_min(x->received, BW_MOST_BYTES), largest = bw_min(x->largest, BW_MOST_BYTES);
	__u64 doubled = received + bw_max(largest, BW_INITIAL_WINDOW * bw_segment(x->mss));
	__u64 drs = bw_min(x->drs, BW_MOST_BYTES) * bw_max(s->steady_rtt, bw_fit_window_round_trip(x)) / bw_max(x->rtt, 1);

	doubled = bw_max(doubled, bw_less(BW_FIT_WINDOW_FIRST, received));
	if (received < BW_FIT_WINDOW_UNMEASURED && bw_fit_window_is_jittery(s, x))
		return doubled;
	return bw_min(doubled, bw_max(drs, BW_FIT_WINDOW_FIRST));
}

/*
 * Returns the window in the phase Open: a quarter more than the most that was under way. A sender in slow start fills what it is
 * offered, so a window that doubles, as DRS's does, would overflow any queue within some round trips.
 */
BW_FN __u64 bw_fit_window_beside(const struct bw_fit_window *s)
{
	return s->most_under_way + s->most_under_way / BW_FIT_WINDOW_OPEN;
}

/* Returns the window while the rule has not set one (bw_fit_window.window is 0). */
BW_FN __u64 bw_fit_window_unbound(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_min(s->phase == BW_FIT_START ? bw_fit_window_first(s, x) : bw_fit_window_beside(s), x->max);
}

/* Returns the window's growth in a round trip of the ramp: at least an initial window, because the queue has taken one before. */
BW_FN __u64 bw_fit_window_step(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 product = bw_fit_window_held(x, s->capacity), mss = bw_segment(x->mss), step;

	step = product / 1024 * bw_max(1024 * bw_min(x->rtt, BW_LONGEST) / BW_FIT_WINDOW_RAMP, BW_FIT_WINDOW_SMALLEST_STEP);
	step = bw_min(bw_max(step, BW_FIT_WINDOW_ANY_QUEUE), product / 1024 * BW_FIT_WINDOW_LARGEST_STEP);
	step <<= s->doublings & 3;
	return bw_max(bw_less(step, BW_FIT_WINDOW_BURST * mss), BW_INITIAL_WINDOW * mss);
}

/* Enters the phase Ramp, with a window of what is under way and one step. */
BW_FN void bw_fit_window_begin_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 under_way = 2 * bw_min(x->largest, BW_MOST_BYTES);

	bw_fit_window_set(s, bw_min(bw_fit_window_unbound(s, x), under_way + bw_fit_window_step(s, x)), x);
	s->phase = BW_FIT_RAMP;
	s->fastest = bw_max(s->fastest, s->capacity);
	s->faster = 0;
	s->sure_by = x->now + bw_max(BW_FIT_WINDOW_UNSURE_ROUNDS * x->rtt, BW_FIT_WINDOW_UNSURE_TIME);
	s->above = BW_FIT_WINDOW_ABOVE;
	s->arrived = under_way;
	s->ramp_window = s->window;
	s->stuck = 0;
	s->ramp_rounds = 1;
	s->cut = 0;
	s->crowded = 0;
	bw_fit_window_begin_round(s, x);
}

/*
 * In the start, returns R if the path is full: R stays while round trips become longer by a quarter than any before, so what the
 * sender adds goes into a queue, and R is C. Returns 0 otherwise. A long round trip alone tells nothing: if jitter has made the
 * sender leave slow start, R stays as well, and some round trips are long.
 */
BW_FN __u64 bw_fit_window_full_rate(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 elapsed = bw_less(x->now, s->round_at), rate, rtt = bw_fit_window_round_trip(x);

	if (elapsed < x->rtt)
		return 0;
	rate = bw_rate(bw_less(x->received, s->round_bytes), elapsed);
	bw_fit_window_begin_round(s, x);
	if (bw_distance(rate, s->start_rate) > rate / BW_FIT_WINDOW_SAME_RATE) {
		s->start_rate = rate;
		s->steady_rtt = bw_max(s->steady_rtt, rtt);
		return 0;
	}
	return bw_fit_window_is_delayed(x) && rtt > s->steady_rtt + s->steady_rtt / 4 ? rate : 0;
}

/* Takes a sample in the phase Start, and decides when the phase ends. */
BW_FN void bw_fit_window_start(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate;

	if (!s->round_at) {
		bw_fit_window_begin_round(s, x);
		s->first_rtt = bw_min(x->rtt, BW_LONGEST);
		s->tick = bw_fit_window_tick(x->rtt);
	}
	rate = bw_fit_window_full_rate(s, x);
	if (rate && !s->others) {
		s->capacity = rate;
		bw_fit_window_enter_follow(s, x, rate);
		/*
		 * T may be that of one lucky packet: the window keeps the bytes in flight from before the queue, until descents
		 * show that some of them were a queue, too.
		 */
		bw_fit_window_set(s, bw_max(s->window, bw_product(rate, s->steady_rtt)), x);
		s->extra = bw_min(bw_less(s->steady_rtt, x->rtt) * 1024 / x->rtt, BW_FIT_WINDOW_MOST_LONGER);
	} else if (rate) {
		/* Other flows fill the path: a ramp that ends at once leads to the phase Open. */
		s->phase = BW_FIT_RAMP;
		s->crowded = BW_FIT_WINDOW_CROWDED;
		s->arrived = bw_fit_window_held(x, rate);
		s->descent_window = 2 * bw_min(x->largest, BW_MOST_BYTES);
	} else if (bw_fit_window_is_evident(s, x)) {
		bw_fit_window_begin_ramp(s, x);
	}
}

/* Returns the least rate that the longest train shows: it may have lasted BW_FIT_CLOCK longer, because timers of hosts err. */
BW_FN __u64 bw_fit_window_least_capacity(const struct bw_fit_window *s)
{
	return bw_rate(s->evidence, bw_fit_window_train_time(s) + BW_FIT_CLOCK);
}

/*
 * Whether the train up to the last sample shows that TCP paces at the sender: the train has as much payload as that of C', is far
 * slower, and lasts for a good part of a round trip. A TCP that paces sends only its first flight as a burst, so the train of that
 * flight alone tells C. The second flight, twice as long, has the rate of two windows per round trip. Jitter would spread it to any
 * rate, so only rates near that one count.
 */
BW_FN int bw_fit_window_is_slow_train(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes = bw_less(s->last_bytes, s->train_bytes), time = bw_less(s->last_at, s->train_at);
	__u64 rate = bw_rate(bytes, time), trip = bw_fit_window_held(x, rate);

	return s->capacity && s->evidence <= BW_INITIAL_WINDOW * bw_segment(x->mss) && bytes >= s->evidence && time > x->rtt / BW_FIT_WINDOW_PACED &&
	       rate < s->capacity - s->capacity / BW_FIT_WINDOW_SAME &&
	       trip >= BW_FIT_WINDOW_PACED_LEAST * s->evidence && trip <= BW_FIT_WINDOW_PACED_MOST * s->evidence;
}

/*
 * In Start and Ramp, notes for the next parts whether the queue belongs to other flows. In Start, it also begins the ramp if the
 * sender paces. Such a sender puts nothing into the queue before its congestion window is half of C' T, so the ramp may wait until
 * then.
 */
BW_FN void bw_fit_window_judge_pacing(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->phase == BW_FIT_RAMP)
		s->others = bw_fit_window_is_queue_beyond(x, s->fastest, 2 * s->window);
	if (s->phase != BW_FIT_START)
		return;
	s->others = bw_fit_window_is_others_queue(s, x, s->start_rate);
	if (!s->paced && bw_fit_window_is_slow_train(s, x)) {
		s->capacity = bw_fit_window_least_capacity(s);
		s->paced = 1;
	}
	if (s->paced && !s->bunched && !bw_fit_window_is_refuted(s, s->start_rate) && !bw_fit_window_is_jittery(s, x) &&
	    bw_min(x->drs, BW_MOST_BYTES) * BW_FIT_WINDOW_HALF >= bw_fit_window_held(x, s->capacity))
		bw_fit_window_begin_ramp(s, x);
}

/* ---- Ramp ----------------------------------------------------------------------------------------------- */

/*
 * Lengthens T if more arrives as the window grows although the window holds more than R * T: acknowledgements or segments come in
 * bursts.
 */
BW_FN void bw_fit_window_lengthen(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 arrived, __u64 step)
{
	__u64 most = arrived + 7 * step / 4 + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);

	if (!bw_fit_window_is_delayed(x) || arrived <= s->arrived + s->arrived / BW_FIT_BEYOND || s->ramp_window <= most)
		return;
	s->extra = bw_min((s->ramp_window - step - arrived) * 1024 / bw_max(arrived, 1), BW_FIT_WINDOW_LONGER);
}

/*
 * Evaluates each round trip of the ramp. Returns 1 if the path is full: in two round trips in a row, the window has grown and what
 * arrives has not.
 */
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
	bw_fit_window_lengthen(s, x, arrived, step);
	s->arrived = arrived;
	s->ramp_window = s->window;
	s->ramp_rounds++;
	s->crowded = s->others ? s->crowded + 1 : 0;
	bw_fit_window_begin_round(s, x);
	return s->stuck >= 2 && !s->crowded;
}

/* Takes a sample in the phase Ramp: raises the window, and decides when the phase ends. */
BW_FN void bw_fit_window_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 step = bw_fit_window_step(s, x), roof = bw_fit_window_target(s, x, bw_fit_window_held(x, s->capacity));
	__u64 came = bw_min(bw_less(x->received, s->last_bytes), 1ULL << 28), most;

	if (bw_fit_window_is_full(s, x, step)) {
		s->capacity = bw_rate(s->arrived, x->rtt);
		bw_fit_window_enter_follow(s, x, s->capacity);
		return;
	}
	most = s->arrived + s->arrived / 1024 * s->extra + 2 * bw_max(step, bw_segment(x->mss)) + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);
	if (s->ramp_window > step)
		came = came * bw_min(step, 1ULL << 32) / s->ramp_window;
	bw_fit_window_set(s, bw_max(s->window, bw_min(s->window + came, most)), x);
	if (s->window >= roof)
		bw_fit_window_enter_follow(s, x, s->capacity);
}

#endif
