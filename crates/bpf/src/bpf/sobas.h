/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * SOBAS at the receiver: limits the window to what a full path holds.
 *
 * Source: Prasad 2004, sections IV and V, figure 8; the continuous form. The Rust twin (crates/policy/src/sobas)
 * explains each rule and equals this file step by step. This form has no capacity estimate, which needs packet trains,
 * and its T is the path's round-trip time without a queue.
 * Terms: sizes are payload bytes, times microseconds, rates bytes per second. S is the window limit, R the rate, T the
 * round-trip time. A reading is the rate over one rate window of 2 T, at least 10 ms. States:
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

/* Readings in the series. */
#define BW_SOBAS_HISTORY 5
/* Size of the array of readings: a power of two, so that a mask proves to the verifier that an index is in range. */
#define BW_SOBAS_PLACES 8
#define BW_SOBAS_PLACE(index) ((index) & (BW_SOBAS_PLACES - 1))
/* Largest rate (bytes/s) and longest span (us) that enter a product. */
#define BW_SOBAS_MOST_RATE (1ULL << 39)
#define BW_SOBAS_LONGEST (1ULL << 24)
/* Shortest rate window (us): probes come every 10 ms (Prasad 2004, section IV-B). */
#define BW_SOBAS_SHORTEST 10000
/* Lossy slots of the last 100 that a path without congestion may show (Prasad 2004, section IV-B). */
#define BW_SOBAS_MAY_BE_LOST 1
/* Time without congestion (us) before the search for the limit starts again. */
#define BW_SOBAS_PATIENCE 2000000
/* Time (us) after which a decided limit is tested again. */
#define BW_SOBAS_RETRY 10000000
/* Smallest window, segments. */
#define BW_SOBAS_SMALLEST_SEGMENTS 2
/* Readings in a row that differ from the decision by more than 1/5: the path has changed. */
#define BW_SOBAS_STRAYS 4
#define BW_SECOND 1000000ULL

struct bw_reading {
	/* End of its rate window (us). */
	__u64 at;
	/* Bytes per second. */
	__u64 rate;
	/* Length of its rate window (us), at most BW_SOBAS_LONGEST. */
	__u64 span;
};

struct bw_sobas {
	/* S. */
	__u64 window;
	/* The open rate window: begin, bytes received by then, planned length; length 0: none open. */
	__u64 start;
	__u64 before;
	__u64 length;
	/* The last call: time, bytes received by then. */
	__u64 last_at;
	__u64 last_received;
	/* Largest rate on this path so far. */
	__u64 peak;
	/* State 4: when the window was last increased. */
	__u64 grown_at;
	/* When `lossy` last changed. */
	__u64 congestion_since;
	/* State 5: rate, T, time and window of the last decision; 0: none yet. */
	__u64 decided_rate;
	__u64 decided_rtt;
	__u64 decided_at;
	__u64 decided_window;
	/* State 5: readings in a row that differ from the decision. */
	__u32 strays;
	/* enum bw_sobas_state. */
	__u32 state;
	/* More losses than BW_SOBAS_MAY_BE_LOST. */
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

/* Returns R * T (bytes). */
BW_FN __u64 bw_sobas_held(__u64 rate, __u64 rtt)
{
	return rate * bw_min(rtt, BW_SOBAS_LONGEST) / BW_SECOND;
}

/* Returns the rate that one segment adds to a reading. */
BW_FN __u64 bw_sobas_segment(const struct bw_reading *r, __u64 mss)
{
	return mss * BW_SECOND / bw_max(r->span, 1);
}

/* Whether a reading is below the peak by more than jitter: 2% and one segment. */
BW_FN int bw_sobas_falls(__u64 peak, const struct bw_reading *r, __u64 mss)
{
	return (r->rate + bw_sobas_segment(r, mss)) * 100 < peak * 98;
}

/* ---- Readings ----------------------------------------------------------------------------------------- */

BW_FN __u64 bw_sobas_rate(__u64 bytes, __u64 span)
{
	return bw_min(bw_min(bytes, BW_MOST_BYTES) * BW_SECOND / bw_max(span, 1), BW_SOBAS_MOST_RATE);
}

/*
 * Closes the rate window when it is due, opens the next one of `length` (us), and returns 1 with the reading filled in.
 * A call that comes less than `length` late counts the bytes up to the planned end, interpolated between the last two
 * calls.
 */
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

/* Returns the reading `back` places before the newest, which is 0; back < s->count. */
BW_FN const struct bw_reading *bw_sobas_last(const struct bw_sobas *s, __u32 back)
{
	return &s->readings[BW_SOBAS_PLACE(s->count - 1 - back)];
}

/* ---- The two signatures of a full path ------------------------------------------------------------------ */

/* Whether the path could be full: a full path delivers at least 0.8 of the peak (a drop is 20%: Prasad 2004). */
BW_FN int bw_sobas_could_be_full(const struct bw_sobas *s, __u64 rate)
{
	return rate * 5 >= s->peak * 4;
}

/* Returns, for const-rate-drop, the rate before a drop of more than 20% that follows two readings within 5%; 0: no drop. */
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

/* Whether the last two readings are flat (flat-rate): a rise of at most 5%, a fall of at most 2%, and one segment. */
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

/* Whether all five readings are within 5% and one segment of their mean; sum: of their rates. */
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

		/* |rate - mean| > mean / 20 + segment, times 100. */
		if (bw_distance(5 * r->rate, *sum) * 20 > *sum + 100 * bw_sobas_segment(r, mss))
			return 0;
	}
	return 1;
}

/*
 * Returns the right shift, at most 20, that brings the largest deviation below 2^24. Counts without a branch, because
 * the verifier would follow each.
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
 * Whether five readings are flat (flat-rate): they are level, and the least-squares slope plus its standard error is
 * below half of the growth of a window that gains half a segment per round trip. Times are in 16ths of T, slopes in
 * 16ths of (bytes/s) / (T/16); that growth is mss / (32 * T) in (bytes/s) / (T/16).
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
	/* Half of that growth, as a slope. Below 2^32, because it is squared. */
	growth = bw_min(bw_min(mss, 1 << 20) * BW_SECOND / 4 / rtt >> shift, ~0U);
	if (steep >= growth)
		return 0;
	BW_UNROLL
	for (i = 0; i < BW_SOBAS_HISTORY; i++) {
		__s64 off = rate[i] - (slope * time[i] >> 4);

		residual += off * off;
	}
	/* |slope| + error < growth, with the root squared away; both sides in 256ths. */
	room = growth - steep;
	return residual * 256 / (3 * variance) < room * room;
}

/*
 * Whether the readings that the state needs are flat (flat-rate). It changes nothing, so it can be computed before the
 * step.
 */
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

/*
 * Enters state 5: S = R * T. A retry that found at most 5% more rate does not raise S, or its own queue would enlarge
 * S.
 */
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

/* Handles a path that has changed: enters state 3 and forgets the peak and the decision. */
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
 * Enters state 5 if either signature shows. In slow start, a flat rate below that of a full path means a loss: enters
 * state 3. Returns 1 if the state has changed.
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

/* Whether S limits the sender: R * T is at least 9/10 of S, or within two segments of it. */
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

/* Whether a value differs by more than 1/5. */
BW_FN int bw_sobas_off(__u64 now, __u64 then)
{
	return bw_distance(now, then) * 5 > then;
}

/*
 * Acts in state 5: BW_SOBAS_STRAYS readings in a row mean another path; after BW_SOBAS_RETRY, it tests a larger window
 * (state 4).
 */
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

/* Enters state 6, without a limit, while losses are many; leaves it after BW_SOBAS_PATIENCE without. */
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

/* Acts in state 4: the window gains one segment for each round trip since the last increase. */
BW_FN void bw_sobas_grow(struct bw_sobas *s, const struct bw_sobas_view *v, __u64 now)
{
	__u64 rounds;

	if (s->state != BW_SOBAS_BUFFER_LIMITED)
		return;
	rounds = bw_less(now, s->grown_at) / v->rtt;
	s->grown_at += rounds * v->rtt;
	s->window = bw_sobas_clamped(s->window + bw_min(rounds, 1ULL << 32) * v->mss, v->mss, v->max);
}

/* ---- One call in three parts, each of which the verifier can check by itself -------------------------------- */

BW_FN __u64 bw_sobas_rtt(const struct bw_receive_sample *x)
{
	return x->rcv_rtt ? x->rcv_rtt : x->srtt;
}

/* Takes in a sample; returns 1 if it completes a reading. */
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

/* Runs the state machine on the newest reading; flat: the result of bw_sobas_is_flat(). */
BW_FN void bw_sobas_conclude(struct bw_sobas *s, const struct bw_receive_sample *x, __u64 max, int flat)
{
	struct bw_sobas_view view = { .rtt = bw_sobas_rtt(x), .mss = bw_mss(x->mss), .max = max, .flat = flat };

	if (!s->count)
		return;
	view.reading = *bw_sobas_last(s, 0);
	bw_sobas_step(s, &view);
}

/* Runs all three parts; returns S. max: the largest window. */
BW_FN __u64 bw_sobas_observe(struct bw_sobas *s, const struct bw_receive_sample *x, __u64 max)
{
	if (bw_sobas_take_in(s, x, max))
		bw_sobas_conclude(s, x, max, bw_sobas_is_flat(s, bw_mss(x->mss), bw_sobas_rtt(x)));
	return s->window;
}

_Static_assert(sizeof(struct bw_sobas) == 312, "the Rust twin has 312 bytes");

#endif
