/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, first part: the state of the rule, what it measures, and how phases are entered. fit_window.h has
 * the problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_WINDOW_STATE_H
#define BUFWISE_FIT_WINDOW_STATE_H

#include "drs.h"
#include "fit.h"

/* The kernel's first window, and the segments of a sender's (RFC 6928). */
#define BW_FIT_WINDOW_FIRST 65536
#define BW_FIT_WINDOW_INITIAL 10
/* Trains are not longer (bytes). */
#define BW_FIT_WINDOW_LONGEST_TRAIN (1ULL << 30)
/* Segments of the smallest window. */
#define BW_FIT_WINDOW_LEAST 4
/* The margin where R differs from round to round: so many times that, and at most (1024ths). */
#define BW_FIT_WINDOW_NOISES 2
#define BW_FIT_WINDOW_MOST_NOISE 320
/* The ramp finds T longer by half at most (1024ths). */
#define BW_FIT_WINDOW_LONGER 512
/* Rounds of a path that is followed before a larger window is tried. */
#define BW_FIT_WINDOW_REST 16
/* The window is used if what is under way is so much (in quarters) of it. */
#define BW_FIT_WINDOW_USED 3
/* Segments beyond R * T in a window without a queue: one on the wire, two that one acknowledgement sets free. */
#define BW_FIT_WINDOW_SEGMENTS 3
/* The window is larger by this part (1024ths) than what gives R without a queue; with half of it, there is none. */
#define BW_FIT_WINDOW_ABOVE 43
/* The start ends when the window has reached this part of C' T. */
#define BW_FIT_WINDOW_EVIDENCE 16
/* The ramp ends when R is C' but for this part. */
#define BW_FIT_WINDOW_REACHED 8
/* So many more trains of the ramp that are none, or of another rate than C', than of that rate: C' is none, either. */
#define BW_FIT_WINDOW_DOUBTS 2
/* Fewer observations of a train tell nothing of bunches. */
#define BW_FIT_WINDOW_MANY 8
/* Rates of trains, and of round trips, within these parts of each other are the same. */
#define BW_FIT_WINDOW_SAME 4
#define BW_FIT_WINDOW_SAME_RATE 8
/* More is under way: by this part. */
#define BW_FIT_WINDOW_MORE 4
/*
 * A step of the ramp, one each round trip, in 1024ths of C' T: so large that the ramp lasts 0.7 s, but no smaller than what
 * fits into a queue of a sixteenth of the BDP, and no larger than what fits into an eighth.
 */
#define BW_FIT_WINDOW_RAMP 700000
#define BW_FIT_WINDOW_SMALLEST_STEP 54
#define BW_FIT_WINDOW_LARGEST_STEP 108
/* Segments that come at once, beyond two, take no longer on the path than this (us). */
#define BW_FIT_WINDOW_BUNCH 1000
/* Less these segments, which come as bursts: an acknowledgement sets free two and what the window has grown by. */
#define BW_FIT_WINDOW_BURST 2
/* Largest descent in a round; judgements in a row that a descent is in vain. */
#define BW_FIT_WINDOW_DOWN 8
#define BW_FIT_WINDOW_IN_VAIN 2
/* Beside others' queue the window is larger by this part than what was under way. */
#define BW_FIT_WINDOW_OPEN 4

struct bw_fit_window {
	/* The window (payload); 0: bw_fit_window_unbound(). */
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
	/*
	 * R * T when the path was last full. In the start, R in the last round; in the ramp, the window when the round began; beside
	 * others, the most that was under way.
	 */
	__u64 known;
	/* Window and R when the descent began. */
	__u64 descent_window;
	__u64 descent_rate;
	/* Until when others' queue is let be. */
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
	/* Time of a round trip without a queue beyond T, 1024ths of T. */
	__u32 extra;
	/* Margin of the window above the one that gives R without a queue, 1024ths; whether the last round used it. */
	__u32 above;
	__u32 was_full;
	/* Descents, times that the window was left to DRS. */
	__u32 descents;
	__u32 opened;
	/* Rounds in a row that were taken for a pause; until the path is followed, trains that contradict C' less those that agree. */
	__u32 doubts;
	/* Rounds until a larger window may be tried; in the ramp, whether a round is over. */
	__u32 rest;
	/* Window and R in a round that the following ones are compared with (in the start, what was under way); 0: there is none. */
	__u64 anchor_window;
	__u64 anchor_rate;
	/* Window and R of the last round. */
	__u64 last_window;
	__u64 last_rate;
	/* Those before a larger window was tried; by how much (1024ths) this one is larger, 0: none is tried. */
	__u64 trial_window;
	__u64 trial_rate;
	__u32 trial;
	/* By how much (1024ths) R differs from round to round. */
	__u32 noise;
	/* The longest distance in this train (us), and the payload that ended it. */
	__u32 gap;
	__u32 gap_bytes;
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

/* Bytes that arrive at that rate in the shortest round trip. */
BW_FN __u64 bw_fit_window_held(const struct bw_fit_window_sample *x, __u64 rate)
{
	return bw_product(rate, x->rtt);
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

/* The window is used: so much of it is under way, where so much arrives in a present round trip. */
BW_FN int bw_fit_window_is_used(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return bw_product(rate, bw_fit_window_round_trip(x)) * 4 >= s->window * BW_FIT_WINDOW_USED;
}

/* The window that gives so many bytes per shortest round trip without a queue. */
BW_FN __u64 bw_fit_window_need(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	return held + held / 1024 * s->extra + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);
}

/* The margin above what gives R without a queue: where R differs from round to round, twice as much. */
BW_FN __u64 bw_fit_window_margin(const struct bw_fit_window *s)
{
	return bw_max(s->above, bw_min(BW_FIT_WINDOW_NOISES * s->noise, BW_FIT_WINDOW_MOST_NOISE));
}

BW_FN __u64 bw_fit_window_target(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	__u64 need = bw_fit_window_need(s, x, held);

	return need + need / 1024 * bw_fit_window_margin(s);
}

BW_FN void bw_fit_window_set(struct bw_fit_window *s, __u64 window, const struct bw_fit_window_sample *x)
{
	window = bw_max(window, BW_FIT_WINDOW_LEAST * bw_segment(x->mss));
	s->window = bw_min(bw_min(window, x->max), BW_MOST_BYTES);
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
	return bw_max(bw_rate(bytes, elapsed), 1);
}

BW_FN void bw_fit_window_enter_follow(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	s->phase = BW_FIT_FOLLOW;
	s->above = BW_FIT_WINDOW_ABOVE;
	s->was_full = 0;
	s->doubts = 0;
	s->known = bw_fit_window_held(x, rate);
	s->step = BW_FIT_STEP;
	s->in_vain = 0;
	s->descent_window = 0;
	s->anchor_rate = 0;
	s->trial = 0;
	s->rest = BW_FIT_WINDOW_REST;
	bw_fit_window_set(s, bw_fit_window_target(s, x, s->known), x);
	bw_fit_window_begin_round(s, x);
}

/* The kernel's way for a while, a quarter above what has been under way. */
BW_FN void bw_fit_window_open(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->hold = bw_fit_next_hold(s->hold);
	s->phase = BW_FIT_OPEN;
	s->open_until = x->now + s->hold;
	s->known = bw_max(bw_max(s->window, s->descent_window), s->anchor_window);
	s->window = 0;
	s->opened++;
}

/*
 * Follows from a window that is in use, and perhaps larger than the path: it falls by parts, and a part that is in vain is
 * enough to let it be. One that fell to the target at once would cost most of a share of others' queue, and of R where T is
 * longer than was thought.
 */
BW_FN void bw_fit_window_enter_from(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 capacity, __u64 rate)
{
	__u64 under_way = bw_product(rate, bw_fit_window_round_trip(x));

	bw_fit_window_enter_follow(s, x, capacity);
	if (s->window >= under_way)
		return;
	bw_fit_window_set(s, bw_max(s->window, under_way - under_way / BW_FIT_WINDOW_DOWN), x);
	s->descent_window = bw_max(s->window, under_way);
	s->descent_rate = rate;
	s->in_vain = BW_FIT_WINDOW_IN_VAIN - 1;
}

_Static_assert(sizeof(struct bw_fit_window) == 248, "the Rust twin has 248 bytes");

#endif
