/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * SOBAS at the receiver, inside the kernel: Prasad 2004, sections IV and V, figure 8; in the continuous form.
 * The Rust one (crates/policy/src/sobas) says what each rule means and why, and is equal to this one step by step. Here it
 * has no capacity estimate, which takes packet trains, and its T is the path's round-trip time without a queue, so that
 * no queue shows in it.
 *
 *  1 estimating, 2 slow start, 3 recovery, 4 buffer-limited, 5 final, 6 congested
 *
 * Bounds that keep products in 64 bits: rates up to 2^39 bytes/s, spans up to 2^24 us (16 s); deviations of a
 * rate are scaled to 24 bits before they are squared.
 */
#ifndef BUFWISE_SOBAS_H
#define BUFWISE_SOBAS_H

#include "drs.h"
#include "number.h"

enum bw_sobas_state {
	BW_SOBAS_ESTIMATING = 1,
	BW_SOBAS_SLOW_START,
	BW_SOBAS_RECOVERY,
	BW_SOBAS_BUFFER_LIMITED,
	BW_SOBAS_FINAL,
	BW_SOBAS_CONGESTED,
};

#define BW_SOBAS_HISTORY 5
/* Places for readings: a power of two, so that a mask shows the verifier the bound of an index. */
#define BW_SOBAS_PLACES 8
#define BW_SOBAS_PLACE(index) ((index) & (BW_SOBAS_PLACES - 1))
#define BW_SOBAS_MOST_RATE (1ULL << 39)
#define BW_SOBAS_LONGEST (1ULL << 24)
/* Shortest rate window: probes come every 10 ms (Prasad 2004, section IV-B). */
#define BW_SOBAS_SHORTEST 10000
/* Losses among the last 100 that a path without congestion may show (Prasad 2004, section IV-B). */
#define BW_SOBAS_MAY_BE_LOST 1
/* How long a path must be without congestion before the limit is looked for again. */
#define BW_SOBAS_PATIENCE 2000000
/* How often a decision is tried again. */
#define BW_SOBAS_RETRY 10000000
#define BW_SOBAS_SMALLEST_SEGMENTS 2
/* Readings in a row, off by a fifth, that mean another path. */
#define BW_SOBAS_STRAYS 4
#define BW_SECOND 1000000ULL

struct bw_reading {
	__u64 at;
	/* Bytes per second. */
	__u64 rate;
	__u64 span;
};

struct bw_sobas {
	/* S. */
	__u64 window;
	/* The open rate window: begin, bytes received by then, planned length; 0: none open. */
	__u64 start;
	__u64 before;
	__u64 length;
	/* The last call: time, bytes received by then. */
	__u64 last_at;
	__u64 last_received;
	/* Largest rate so far. */
	__u64 peak;
	__u64 grown_at;
	__u64 congestion_since;
	/* The values on which the decision rested. */
	__u64 decided_rate;
	__u64 decided_rtt;
	__u64 decided_at;
	__u64 decided_window;
	__u32 strays;
	__u32 state;
	__u32 lossy;
	/* Readings in the series, oldest first. */
	__u32 count;
	struct bw_reading readings[BW_SOBAS_PLACES];
};

BW_FN void bw_sobas_init(struct bw_sobas *s, __u64 max)
{
	s->state = BW_SOBAS_ESTIMATING;
	s->window = max;
}

BW_FN __u64 bw_sobas_clamped(__u64 window, __u64 mss, __u64 max)
{
	return bw_min(bw_max(window, mss * BW_SOBAS_SMALLEST_SEGMENTS), max);
}

/* R * T. */
BW_FN __u64 bw_sobas_held(__u64 rate, __u64 rtt)
{
	return rate * bw_min(rtt, BW_SOBAS_LONGEST) / BW_SECOND;
}

/* The rate of one segment in the window of a reading. */
BW_FN __u64 bw_sobas_segment(const struct bw_reading *r, __u64 mss)
{
	return mss * BW_SECOND / bw_max(r->span, 1);
}

/* Lower than the largest rate before it by more than jitter: 2% and a segment. */
BW_FN int bw_sobas_falls(__u64 peak, const struct bw_reading *r, __u64 mss)
{
	return (r->rate + bw_sobas_segment(r, mss)) * 100 < peak * 98;
}

/* ---- Readings ----------------------------------------------------------------------------------------- */

BW_FN __u64 bw_sobas_rate(__u64 bytes, __u64 span)
{
	return bw_min(bw_min(bytes, BW_MOST_BYTES) * BW_SECOND / bw_max(span, 1), BW_SOBAS_MOST_RATE);
}

/* Closes the rate window if its time has come; then fills the reading and returns 1. */
BW_FN int bw_sobas_meter(struct bw_sobas *s, __u64 received, __u64 length, __u64 now, struct bw_reading *r)
{
	__u64 last_at = s->last_at, last = s->last_received, planned, between, end = now, by_then = received;

	if (!received)
		return 0;
	s->last_at = now;
	s->last_received = received;
	planned = s->start + s->length;
	if (s->length && (now < planned || now <= s->start))
		return 0;
	if (s->length) {
		between = bw_less(now, last_at);
		if (now - planned < length && between && between < BW_LONGEST) {
			end = planned;
			by_then = last + bw_min(bw_less(received, last), BW_MOST_BYTES) *
						 bw_min(bw_less(planned, last_at), between) / between;
		}
		r->at = end;
		r->span = bw_min(bw_less(end, s->start), BW_SOBAS_LONGEST);
		r->rate = bw_sobas_rate(bw_less(by_then, s->before), bw_less(end, s->start));
	}
	planned = s->length;
	s->start = end;
	s->before = by_then;
	s->length = length;
	return planned != 0;
}

BW_FN void bw_sobas_push(struct bw_sobas *s, const struct bw_reading *r)
{
	int i;

	if (s->count >= BW_SOBAS_HISTORY) {
		BW_UNROLL
		for (i = 0; i < BW_SOBAS_HISTORY - 1; i++)
			s->readings[i] = s->readings[i + 1];
		s->count = BW_SOBAS_HISTORY - 1;
	}
	s->readings[BW_SOBAS_PLACE(s->count)] = *r;
	s->count++;
}

/* The reading that many places from the end; 0 is the newest. The caller has checked the count. */
BW_FN const struct bw_reading *bw_sobas_last(const struct bw_sobas *s, __u32 back)
{
	return &s->readings[BW_SOBAS_PLACE(s->count - 1 - back)];
}

/* ---- The two signatures of a full path ------------------------------------------------------------------ */

/* A rate this far below the largest is not the path's: 0.8 (Prasad's measure of a drop). */
BW_FN int bw_sobas_could_be_full(const struct bw_sobas *s, __u64 rate)
{
	return rate * 5 >= s->peak * 4;
}

/* const-rate-drop: the rate before a fall of more than 20% after two within 5%; else 0. */
BW_FN __u64 bw_sobas_dropped(const struct bw_sobas *s)
{
	__u64 before, steady, last;

	if (s->count < 3)
		return 0;
	before = bw_sobas_last(s, 2)->rate;
	steady = bw_sobas_last(s, 1)->rate;
	last = bw_sobas_last(s, 0)->rate;
	if (bw_distance(before, steady) * 20 > bw_max(before, steady) || last * 10 >= steady * 8)
		return 0;
	before = bw_max(before, steady);
	return bw_sobas_could_be_full(s, before) ? before : 0;
}

BW_FN int bw_sobas_holds_a_segment(const struct bw_reading *r, __u64 mss)
{
	return r->rate * r->span >= mss * BW_SECOND;
}

/* flat-rate over the last two: within 5% upwards, 2% downwards. */
BW_FN int bw_sobas_flat_two(const struct bw_sobas *s, __u64 mss)
{
	const struct bw_reading *first, *second;

	if (s->count < 2)
		return 0;
	first = bw_sobas_last(s, 1);
	second = bw_sobas_last(s, 0);
	if (!bw_sobas_holds_a_segment(first, mss) || !bw_sobas_holds_a_segment(second, mss))
		return 0;
	return bw_less(second->rate, first->rate) * 20 <= second->rate + 20 * bw_sobas_segment(second, mss) &&
	       !bw_sobas_falls(first->rate, second, mss);
}

/* Whether all five are within 5% and a segment of their mean. */
BW_FN int bw_sobas_level(const struct bw_sobas *s, __u64 mss, __u64 *sum)
{
	int i;

	*sum = 0;
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		if (!bw_sobas_holds_a_segment(&s->readings[i], mss))
			return 0;
		*sum += s->readings[i].rate;
	}
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		const struct bw_reading *r = &s->readings[i];

		/* All times five, and the 5% as a twentieth. */
		if (bw_distance(5 * r->rate, *sum) * 20 > *sum + 100 * bw_sobas_segment(r, mss))
			return 0;
	}
	return 1;
}

/*
 * Shift that brings the largest deviation below 24 bits; at most 20. One bit for each power of two that it reaches, and
 * no branch: the verifier would follow each of them.
 */
BW_FN __u32 bw_sobas_shift(__u64 largest)
{
	__u32 shift = 0;
	int i;

	BW_UNROLL
	for (i = 0; i < 20; i++) {
		__u64 above = largest >> (24 + i);

		shift += (above | -above) >> 63;
	}
	return shift;
}

/*
 * flat-rate over five: level, and the least-squares slope plus its standard error below half of what half a segment
 * per round trip per round trip would add. Times are counted in 16ths of a round trip and slopes in 16ths of
 * (bytes/s) / (T/16), where that growth is mss / (32 * T).
 */
BW_FN int bw_sobas_flat_five(const struct bw_sobas *s, __u64 mss, __u64 rtt)
{
	__s64 time[BW_SOBAS_HISTORY], rate[BW_SOBAS_HISTORY], times = 0, product = 0, slope;
	__u64 sum, largest = 0, variance = 0, residual = 0, growth, steep, room;
	__u32 shift;
	int i;

	if (s->count < BW_SOBAS_HISTORY || !bw_sobas_level(s, mss, &sum))
		return 0;
	rtt = bw_min(bw_max(rtt, 1), BW_SOBAS_LONGEST);
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		time[i] = bw_min(bw_less(s->readings[i].at, s->readings[0].at), 1ULL << 40) * 16 / rtt;
		time[i] = bw_min(time[i], 1 << 14);
		times += time[i];
		largest = bw_max(largest, bw_distance(5 * s->readings[i].rate, sum));
	}
	shift = bw_sobas_shift(largest);
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		/* Deviations from the mean, times five. */
		time[i] = 5 * time[i] - times;
		rate[i] = (__s64)(5 * s->readings[i].rate - sum) >> shift;
		variance += time[i] * time[i];
		product += time[i] * rate[i];
	}
	if (!variance)
		return 0;
	steep = (product < 0 ? -product : product) * 16ULL / variance;
	slope = product < 0 ? -(__s64)steep : (__s64)steep;
	/* Below 2^32, for it is squared. */
	growth = bw_min(bw_min(mss, 1 << 20) * BW_SECOND / 4 / rtt >> shift, ~0U);
	if (steep >= growth)
		return 0;
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		__s64 off = rate[i] - (slope * time[i] >> 4);

		residual += off * off;
	}
	/* slope + error < growth / 2, squared; both sides in 256ths. */
	room = growth - steep;
	return residual * 256 / (3 * variance) < room * room;
}

/* flat-rate, over as many readings as the state asks for; it is pure, so that it can be computed before the step. */
BW_FN int bw_sobas_is_flat(const struct bw_sobas *s, __u64 mss, __u64 rtt)
{
	if (s->state == BW_SOBAS_SLOW_START)
		return bw_sobas_flat_two(s, mss);
	if (s->state == BW_SOBAS_RECOVERY || s->state == BW_SOBAS_BUFFER_LIMITED)
		return bw_sobas_flat_five(s, mss, rtt);
	return 0;
}

/* ---- States ----------------------------------------------------------------------------------------------- */

struct bw_sobas_view {
	struct bw_reading reading;
	/* bw_sobas_is_flat(). */
	__u64 flat;
	__u64 rtt;
	__u64 mss;
	__u64 max;
};

/* To state 5: S = R * T. A retry that found no more does not add its own standing queue to the limit. */
BW_FN void bw_sobas_decide(struct bw_sobas *s, const struct bw_sobas_view *v, __u64 rate)
{
	__u64 window = bw_sobas_clamped(bw_sobas_held(rate, v->rtt), v->mss, v->max);

	if (s->decided_window && rate * 20 <= s->decided_rate * 21)
		window = bw_min(window, s->decided_window);
	s->state = BW_SOBAS_FINAL;
	s->window = window;
	s->decided_rate = rate;
	s->decided_rtt = v->rtt;
	s->decided_at = v->reading.at;
	s->decided_window = window;
	s->strays = 0;
	s->count = 0;
}

BW_FN void bw_sobas_recover(struct bw_sobas *s)
{
	s->state = BW_SOBAS_RECOVERY;
	s->count = 0;
}

/* Another path than before: state 3, with nothing to compare with. */
BW_FN void bw_sobas_forget(struct bw_sobas *s)
{
	s->peak = 0;
	s->decided_rate = 0;
	s->decided_rtt = 0;
	s->decided_at = 0;
	s->decided_window = 0;
	s->strays = 0;
	bw_sobas_recover(s);
}

/*
 * To state 5 if either signature shows; 1 if so. In slow start a rate that is flat without the path being full has
 * met a loss: to state 3.
 */
BW_FN int bw_sobas_to_final(struct bw_sobas *s, const struct bw_sobas_view *v)
{
	__u64 dropped = bw_sobas_dropped(s);

	if (dropped) {
		bw_sobas_decide(s, v, dropped);
		return 1;
	}
	if (!v->flat)
		return 0;
	if (bw_sobas_could_be_full(s, v->reading.rate))
		bw_sobas_decide(s, v, v->reading.rate);
	else if (s->state == BW_SOBAS_SLOW_START)
		bw_sobas_recover(s);
	else
		return 0;
	return 1;
}

BW_FN int bw_sobas_buffer_limited(const struct bw_sobas *s, const struct bw_sobas_view *v)
{
	__u64 held = bw_sobas_held(v->reading.rate, v->rtt);

	if (s->window == v->max)
		return 0;
	return held >= bw_min(s->window, 1ULL << 50) * 9 / 10 || held + 2 * v->mss >= s->window;
}

/* States 2 and 3. */
BW_FN void bw_sobas_step_growing(struct bw_sobas *s, const struct bw_sobas_view *v)
{
	int recovers = s->state == BW_SOBAS_RECOVERY;

	if (!bw_sobas_dropped(s) && bw_sobas_buffer_limited(s, v)) {
		s->state = BW_SOBAS_BUFFER_LIMITED;
		s->window = bw_sobas_clamped(s->window + v->mss, v->mss, v->max);
		s->grown_at = v->reading.at;
		s->count = 0;
		return;
	}
	if (bw_sobas_to_final(s, v) || recovers)
		return;
	if (bw_sobas_falls(s->peak, &v->reading, v->mss))
		bw_sobas_recover(s);
}

BW_FN int bw_sobas_off(__u64 now, __u64 then)
{
	return bw_distance(now, then) * 5 > then;
}

/* State 5: readings in a row off by a fifth mean another path; now and then more is tried. */
BW_FN void bw_sobas_watch(struct bw_sobas *s, const struct bw_sobas_view *v)
{
	int strayed = bw_sobas_off(v->reading.rate, s->decided_rate) || bw_sobas_off(v->rtt, s->decided_rtt);

	s->strays = strayed ? s->strays + 1 : 0;
	if (s->strays >= BW_SOBAS_STRAYS) {
		bw_sobas_forget(s);
		s->window = v->max;
	} else if (bw_less(v->reading.at, s->decided_at) >= BW_SOBAS_RETRY) {
		s->state = BW_SOBAS_BUFFER_LIMITED;
		s->grown_at = v->reading.at;
		s->count = 0;
	}
}

BW_FN void bw_sobas_step(struct bw_sobas *s, const struct bw_sobas_view *v)
{
	s->peak = bw_max(s->peak, v->reading.rate);
	if (s->state == BW_SOBAS_SLOW_START || s->state == BW_SOBAS_RECOVERY) {
		bw_sobas_step_growing(s, v);
	} else if (s->state == BW_SOBAS_BUFFER_LIMITED) {
		bw_sobas_to_final(s, v);
	} else if (s->state == BW_SOBAS_FINAL) {
		bw_sobas_watch(s, v);
	}
}

BW_FN void bw_sobas_congestion(struct bw_sobas *s, __u32 losses, __u64 max, __u64 now)
{
	__u32 lossy = losses > BW_SOBAS_MAY_BE_LOST;

	if (lossy != s->lossy) {
		s->lossy = lossy;
		s->congestion_since = now;
	}
	if (lossy && s->state >= BW_SOBAS_SLOW_START && s->state <= BW_SOBAS_FINAL) {
		s->state = BW_SOBAS_CONGESTED;
		s->window = max;
	} else if (s->state == BW_SOBAS_CONGESTED && !lossy &&
		   bw_less(now, s->congestion_since) >= BW_SOBAS_PATIENCE) {
		bw_sobas_forget(s);
	}
}

/* State 4: one segment for each round trip that passed since the last increase. */
BW_FN void bw_sobas_grow(struct bw_sobas *s, const struct bw_sobas_view *v, __u64 now)
{
	__u64 rounds;

	if (s->state != BW_SOBAS_BUFFER_LIMITED)
		return;
	rounds = bw_less(now, s->grown_at) / v->rtt;
	s->grown_at += rounds * v->rtt;
	s->window = bw_sobas_clamped(s->window + bw_min(rounds, 1ULL << 32) * v->mss, v->mss, v->max);
}

/* ---- A call in three parts, so that a program can have each of them verified by itself ---------------------- */

BW_FN __u64 bw_sobas_rtt(const struct bw_receive_sample *x)
{
	return x->rcv_rtt ? x->rcv_rtt : x->srtt;
}

/* Takes in what has arrived; 1 if that makes a new reading. */
BW_FN int bw_sobas_take_in(struct bw_sobas *s, const struct bw_receive_sample *x, __u64 max)
{
	struct bw_sobas_view view = { .rtt = bw_sobas_rtt(x), .mss = bw_mss(x->mss), .max = max };
	__u64 length;

	if (!view.rtt)
		return 0;
	if (s->state == BW_SOBAS_ESTIMATING && x->received)
		s->state = BW_SOBAS_SLOW_START;
	bw_sobas_congestion(s, x->losses, max, x->now);
	bw_sobas_grow(s, &view, x->now);
	length = bw_max(bw_min(view.rtt, BW_SOBAS_LONGEST / 2) * 2, BW_SOBAS_SHORTEST);
	if (!bw_sobas_meter(s, x->received, length, x->now, &view.reading))
		return 0;
	bw_sobas_push(s, &view.reading);
	return 1;
}

/* Draws the conclusions from the newest reading; flat: the result of bw_sobas_is_flat(). */
BW_FN void bw_sobas_conclude(struct bw_sobas *s, const struct bw_receive_sample *x, __u64 max, int flat)
{
	struct bw_sobas_view view = { .rtt = bw_sobas_rtt(x), .mss = bw_mss(x->mss), .max = max, .flat = flat };

	if (!s->count)
		return;
	view.reading = *bw_sobas_last(s, 0);
	bw_sobas_step(s, &view);
}

/* The window limit S. */
BW_FN __u64 bw_sobas_observe(struct bw_sobas *s, const struct bw_receive_sample *x, __u64 max)
{
	if (bw_sobas_take_in(s, x, max))
		bw_sobas_conclude(s, x, max, bw_sobas_is_flat(s, bw_mss(x->mss), bw_sobas_rtt(x)));
	return s->window;
}

_Static_assert(sizeof(struct bw_sobas) == 312, "the Rust twin has 312 bytes");

#endif
