/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: the constants, the state, the sample, and the functions that all phases use. fit_window.h has the
 * problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_WINDOW_STATE_H
#define BUFWISE_FIT_WINDOW_STATE_H

#include "drs.h"
#include "fit.h"

/* The first window that the kernel offers (bytes). */
#define BW_FIT_WINDOW_FIRST 65536
/* On a jittery path, DRS's window does not limit slow start before this many bytes have arrived. */
#define BW_FIT_WINDOW_UNMEASURED (512 << 10)
/* The smallest window (segments). */
#define BW_FIT_WINDOW_LEAST 4
/* Where R is noisy, the margin of the window is this many times the noise, at most the second (1024ths). */
#define BW_FIT_WINDOW_NOISES 2
#define BW_FIT_WINDOW_MOST_NOISE 320
/* T is lengthened by at most the first (1024ths of T) in the ramp, by the second after a full path or a trial. */
#define BW_FIT_WINDOW_LONGER 512
#define BW_FIT_WINDOW_MOST_LONGER 1280
/* Rounds in the phase Follow before the next trial (fit_trial.h): without losses, and after losses. */
#define BW_FIT_WINDOW_REST 16
#define BW_FIT_WINDOW_LONG_REST 256
/* The window is used if at least this many quarters of it are under way. */
#define BW_FIT_WINDOW_USED 3
/* The window may hold a queue if at least this many 8ths of it are under way. */
#define BW_FIT_WINDOW_NEARLY 7
/* Segments that a window without a queue holds beyond R * T: one on the wire, two that one acknowledgement releases. */
#define BW_FIT_WINDOW_SEGMENTS 3
/* Margin of the window above the size that gives R without a queue (1024ths). Within half of it no queue counts. */
#define BW_FIT_WINDOW_ABOVE 43
/* The start ends when the window has reached one part in this many of C' T. */
#define BW_FIT_WINDOW_EVIDENCE 16
/* C' is refuted if a round trip delivers more by one part in this many. */
#define BW_FIT_WINDOW_REFUTED 4
/* Two trains, and two round trips, have the same rate if the rates differ by at most one part in this many. */
#define BW_FIT_WINDOW_SAME 4
#define BW_FIT_WINDOW_SAME_RATE 8
/* A train has the rate C' if it differs by at most one part in AGREED. After SURE such trains C' is sure. */
#define BW_FIT_WINDOW_AGREED 16
#define BW_FIT_WINDOW_SURE 4
/*
 * A sender paces if a train is slower than C' and lasts for more than one part in PACED of T. The ramp then begins when the
 * window has reached one part in HALF of C' T.
 */
#define BW_FIT_WINDOW_PACED 4
#define BW_FIT_WINDOW_HALF 2
/*
 * The second flight of such a sender has a rate of LEAST to MOST trains of the first flight per round trip. The sender sends
 * four to five first flights per round trip, and the train may have only half of the first flight.
 */
#define BW_FIT_WINDOW_PACED_LEAST 3
#define BW_FIT_WINDOW_PACED_MOST 9
/*
 * A train with this many segments after its first observation gives a first C'. Longer trains replace it, except where the
 * sender paces and the first flight's train is the only one.
 */
#define BW_FIT_WINDOW_TRAIN 5
/* Samples per round trip while the start's trains are timed; the shortest and the longest time between two (us). */
#define BW_FIT_WINDOW_START_SAMPLES 128
#define BW_FIT_WINDOW_CLOSEST 100
#define BW_FIT_WINDOW_FURTHEST 1000
/* The first flight, together with a short exchange before it, has fewer segments than this. */
#define BW_FIT_WINDOW_FIRST_FLIGHT 12
/* No queue shows if the present round trip exceeds T by at most one part in EMPTY and CLOCK (us). */
#define BW_FIT_WINDOW_EMPTY 32
#define BW_FIT_WINDOW_CLOCK 500
/*
 * Unless its sender paces, a train leaves a queue if it is longer than the first flights (FLIGHTS segments) and than one part
 * in SPREAD of C' T.
 */
#define BW_FIT_WINDOW_FLIGHTS 40
#define BW_FIT_WINDOW_SPREAD 4
/*
 * C' is doubtful after CONTRADICTED faster trains. It is also doubtful if round trips are longer than T, and C' is not sure
 * after UNSURE_ROUNDS round trips of the ramp and UNSURE_TIME (us).
 */
#define BW_FIT_WINDOW_CONTRADICTED 2
#define BW_FIT_WINDOW_UNSURE_ROUNDS 6
#define BW_FIT_WINDOW_UNSURE_TIME 300000
/*
 * A ramp ends after CROWDED round trips in a row with a queue of more than two windows. Most of such a queue belongs to other
 * flows, and a loss-based sender keeps its queue. The first hold time of the phase Open is then twice CROWDED_HOLD (us).
 */
#define BW_FIT_WINDOW_CROWDED 2
#define BW_FIT_WINDOW_CROWDED_HOLD 8000000
/*
 * In the phase Follow, a queue has to be this many times as long as in the start before it counts as other flows', and the
 * hold time is the usual one. Otherwise, connections of this rule that share a path would yield to each other.
 */
#define BW_FIT_WINDOW_FEW 2
/*
 * The window grows by one step per round trip of the ramp, and the queue has to take each step. A step is the largest of
 * - C' T times T / RAMP (us), with which the ramp takes 0.7 s;
 * - SMALLEST_STEP (1024ths of C' T), which a queue of C' T / 16 takes;
 * - ANY_QUEUE (bytes), which the queue of any fast link takes;
 * but at most LARGEST_STEP (1024ths of C' T), which a queue of C' T / 8 takes.
 */
#define BW_FIT_WINDOW_RAMP 700000
#define BW_FIT_WINDOW_SMALLEST_STEP 54
#define BW_FIT_WINDOW_ANY_QUEUE 65536
#define BW_FIT_WINDOW_LARGEST_STEP 108
/* Segments that are subtracted from a step: one acknowledgement releases two segments and the growth of the window at once. */
#define BW_FIT_WINDOW_BURST 2
/* In the phase Open, the window exceeds the most that was under way by one part in this many. */
#define BW_FIT_WINDOW_OPEN 4
/*
 * In the phase Open, a window limits the sender if FILLED 16ths of it arrive in a round trip. It is small up to SMALL bytes (the
 * kernel's usual first one).
 */
#define BW_FIT_WINDOW_SMALL (128 << 10)
#define BW_FIT_WINDOW_FILLED 12

/* The queue's answer to a ramp (peers.h): it has taken the steps, or has dropped segments of them. */
enum bw_room_shown { BW_ROOM_UNKNOWN, BW_ROOM_TAKEN, BW_ROOM_LOST };

struct bw_fit_window {
	/* The window (payload); 0: the rule has set none, and bw_fit_window_unbound() applies. */
	__u64 window;
	/* C', and the rate of the train before the present one, bytes per second; 0: none. */
	__u64 capacity;
	__u64 train_rate;
	/* Begin of the train, and the last sample: time (us), and bytes that had arrived by then. */
	__u64 train_at;
	__u64 train_bytes;
	__u64 last_at;
	__u64 last_bytes;
	/* Payload of the longest train, which gives C'. */
	__u64 evidence;
	/* Begin of the round, or of the measurement in it: time (us), and bytes that had arrived by then. */
	__u64 round_at;
	__u64 round_bytes;
	/* Bytes that arrived in the last round trip of the ramp. */
	__u64 arrived;
	/* R * T (bytes) when the path was last full. */
	__u64 known;
	/* In the start: R in the last round, bytes per second. */
	__u64 start_rate;
	/* In the ramp: the window when the round trip began, and the time (us) by which C' has to be sure. */
	__u64 ramp_window;
	__u64 sure_by;
	/* In the phase Open: the most bytes that were under way. */
	__u64 most_under_way;
	/* Window and R when the descent began. */
	__u64 descent_window;
	__u64 descent_rate;
	/* End of the present hold time of the phase Open (us). */
	__u64 open_until;
	/* enum bw_fit_phase */
	__u32 phase;
	/* Observations of the present train after its first. */
	__u32 observed;
	/* Whether the round's first round trip is over. */
	__u32 measuring;
	/* The next step upwards, 1024ths. */
	__u32 step;
	/* Judgements in a row that a descent is in vain. The last hold time (us); 0: none so far. */
	__u32 in_vain;
	__u32 hold;
	/* Segments out of order at the begin of the round. */
	__u32 out_of_order;
	/* Segments out of order at the begin of the train. */
	__u32 train_out_of_order;
	/* Round trips of the ramp in a row in which the window grew and the arriving bytes did not. */
	__u32 stuck;
	/* By how much T is lengthened (1024ths of T): the part of a round trip beyond T that is no queue. */
	__u32 extra;
	/* Margin of the window above the size that gives R without a queue (1024ths). Whether the last round filled the window. */
	__u32 above;
	__u32 was_full;
	/* Number of descents of the window, and of times that the phase Open began. */
	__u32 descents;
	__u32 opened;
	/* Rounds in a row that were taken for a pause of a host. */
	__u32 doubts;
	/* Rounds until the next trial. */
	__u32 rest;
	/* Means of the window and of R over some rounds, and these means when R was highest; 0: none yet. */
	__u64 mean_window;
	__u64 mean_rate;
	__u64 anchor_window;
	__u64 anchor_rate;
	/* Window and R of the last round. */
	__u64 last_window;
	__u64 last_rate;
	/*
	 * In a trial: the window before the present step, and the mean of R at it (0: no step yet); the sum of R over the rounds
	 * at the present window.
	 */
	__u64 trial_window;
	__u64 trial_rate;
	__u64 level_rate;
	/* Step of the trial in progress, 1024ths of the window; 0: no trial. */
	__u32 trial;
	/* The noise: by how much R differs from round to round (1024ths of R). */
	__u32 noise;
	/* Rounds in a row in which R was far lower than its mean and the window was not. */
	__u32 alone;
	/* Rounds at the present window of a trial. */
	__u32 level_rounds;
	/* Trials in a row that have failed. */
	__u32 failed;
	/* Number of trains with the rate C'. Until C' is sure, each train with another rate halves it. */
	__u32 agreed;
	/* The rate of the train before that of train_rate. The highest of C' at the ramp's begin and the rates that confirmed it. */
	__u64 former_train_rate;
	__u64 fastest;
	/* Whether C' is the rate of the present train. */
	__u32 is_present;
	/* Number of trains in the ramp that were far faster than `fastest`. */
	__u32 faster;
	/* The longest gap in the present train (us), and the bytes that ended it. */
	__u32 gap;
	__u32 gap_bytes;
	/* Whether the train of C' came in bunches. */
	__u32 bunched;
	/* Whether the present trial began because R was far below `fastest`. */
	__u32 below;
	/* In the start: the longest round trip (us) while R still changed. */
	__u32 steady_rtt;
	/* How often the steps of the ramp are doubled: earlier connections have shown that the queue has room for them (peers.h). */
	__u32 doublings;
	/* Round trips of the ramp so far, the present one included; 0: there was none, or it told nothing. */
	__u32 ramp_rounds;
	/* enum bw_room_shown: what the ramp has shown so far. */
	__u32 shown;
	/* Round trips of the ramp, in a row, with a queue of more than two windows. */
	__u32 crowded;
	/* T when the first segment came, which is the handshake's (us). */
	__u32 first_rtt;
	/*
	 * Rounds in a row in which the window was used and did not grow, and no queue counted. Whether the present trial lowers
	 * the window.
	 */
	__u32 still;
	__u32 lower;
	/* Whether a train of the start was far slower than C', which shows that the sender paces. */
	__u32 paced;
	/*
	 * The usual time between samples in the start (us); 0: no sample yet. Whether the train of C' has lasted for less than
	 * BW_FIT_OBSERVED of them: it is then a first flight, which tells C' only if the sender paces.
	 */
	__u32 tick;
	__u32 is_short;
	/* Segments that had come out of order before the record was made, modulo 2^32. */
	__u32 found_out_of_order;
	/* Whether most of the queue belongs to other flows: in the ramp, it holds more than two windows. */
	__u32 others;
	/* Whether a share has made the window smaller since the ramp began. */
	__u32 cut;
};

/* Sample of a receiver: times in us, sizes in bytes. */
struct bw_fit_window_sample {
	__u64 now;
	/* Payload that has arrived so far, in order or not (arrivals.h). */
	__u64 received;
	__u64 mss;
	/* T, and the receiver's present estimate of the round-trip time; 0: not known. */
	__u64 rtt;
	__u64 rcv_rtt;
	/* DRS's window and its largest measurement. */
	__u64 drs;
	__u64 largest;
	/* Largest window; shift of the window scale option. */
	__u64 max;
	__u32 scale;
	/* Segments that have come out of order since the record was made, modulo 2^32. */
	__u32 out_of_order;
	/* Payload that has arrived behind a hole (arrivals.h). */
	__u64 behind;
};

/* Returns the bytes that arrive in T at `rate` (bytes per second). */
BW_FN __u64 bw_fit_window_held(const struct bw_fit_window_sample *x, __u64 rate)
{
	return bw_product(rate, x->rtt);
}

/* Returns the present round-trip time (us): the receiver's estimate, at least T. */
BW_FN __u64 bw_fit_window_round_trip(const struct bw_fit_window_sample *x)
{
	return bw_min(bw_max(x->rcv_rtt, x->rtt), BW_LONGEST);
}

/* Whether the receiver's estimate of the round trip, which is coarse, shows a queue. */
BW_FN int bw_fit_window_is_delayed(const struct bw_fit_window_sample *x)
{
	return x->rcv_rtt > x->rtt + x->rtt / 8 + 600;
}

/* Whether that estimate shows that there is no queue. Between the two, it tells nothing. */
BW_FN int bw_fit_window_is_empty(const struct bw_fit_window_sample *x)
{
	return x->rcv_rtt <= x->rtt + x->rtt / BW_FIT_WINDOW_EMPTY + BW_FIT_WINDOW_CLOCK;
}

/* Whether the window is used: at the rate R = `rate`, three quarters of it are under way in the present round trip. */
BW_FN int bw_fit_window_is_used(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return bw_product(rate, bw_fit_window_round_trip(x)) * 4 >= s->window * BW_FIT_WINDOW_USED;
}

/* Returns the window that lets `held` bytes arrive per T without a queue. */
BW_FN __u64 bw_fit_window_need(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	return held + held / 1024 * s->extra + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);
}

/* Returns the margin (1024ths) above that window: `above`, or twice the noise if that is more. */
BW_FN __u64 bw_fit_window_margin(const struct bw_fit_window *s)
{
	return bw_max(s->above, bw_min(BW_FIT_WINDOW_NOISES * s->noise, BW_FIT_WINDOW_MOST_NOISE));
}

/* Returns that window with its margin, which keeps a short queue. */
BW_FN __u64 bw_fit_window_target(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	__u64 need = bw_fit_window_need(s, x, held);

	return need + need / 1024 * bw_fit_window_margin(s);
}

/* Sets the window, within BW_FIT_WINDOW_LEAST segments and the largest window. */
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

/* Returns R over the second round trip of a round, in which a new window shows its effect; 0: the round is not over. */
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

/* Begins to measure R at one window of a trial (fit_trial.h). */
BW_FN void bw_fit_window_begin_level(struct bw_fit_window *s)
{
	s->level_rate = 0;
	s->level_rounds = 0;
}

/* Begins a trial with the present window, at which R is measured first. */
BW_FN void bw_fit_window_begin_trial(struct bw_fit_window *s)
{
	s->trial = 1;
	s->lower = 0;
	s->trial_window = 0;
	bw_fit_window_begin_level(s);
}

/* Enters the phase Follow at R = `rate`: with a trial, unless segments were lost. */
BW_FN void bw_fit_window_enter_follow(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	s->phase = BW_FIT_FOLLOW;
	s->above = BW_FIT_WINDOW_ABOVE;
	s->was_full = 0;
	s->known = bw_fit_window_held(x, rate);
	s->step = BW_FIT_STEP;
	s->in_vain = 0;
	s->descent_window = 0;
	s->anchor_rate = 0;
	s->noise = 0;
	s->last_rate = 0;
	s->below = 0;
	if (x->out_of_order) {
		/* The start has overflowed the queue: it has no room for a trial. */
		s->trial = 0;
		s->rest = BW_FIT_WINDOW_LONG_REST;
		bw_fit_window_set(s, bw_fit_window_target(s, x, s->known), x);
	} else {
		/* A trial begins with half of the usual margin, so that it need not exceed the margin by much. */
		bw_fit_window_begin_trial(s);
		s->rest = BW_FIT_WINDOW_REST;
		bw_fit_window_set(s, (bw_fit_window_need(s, x, s->known) + bw_fit_window_target(s, x, s->known)) / 2, x);
	}
	bw_fit_window_begin_round(s, x);
}

/* Returns the time (us) between two samples in the start. In a first flight, each segment is sampled instead. */
BW_FN __u64 bw_fit_window_tick(__u64 rtt)
{
	return bw_max(bw_min(rtt / BW_FIT_WINDOW_START_SAMPLES, BW_FIT_WINDOW_FURTHEST), BW_FIT_WINDOW_CLOSEST);
}

/* Whether enough trains have confirmed C'. */
BW_FN int bw_fit_window_is_sure(const struct bw_fit_window *s)
{
	return s->agreed >= BW_FIT_WINDOW_SURE;
}

/* Whether the queue of a path with the rate `rate` (bytes per second) holds more than `bytes`. */
BW_FN int bw_fit_window_is_queue_beyond(const struct bw_fit_window_sample *x, __u64 rate, __u64 bytes)
{
	return bw_product(rate, bw_less(x->rcv_rtt, x->rtt)) > bytes;
}

/*
 * Whether most of the queue belongs to other flows: C' is sure, and at this rate the queue holds more than twice the bytes
 * that the connection has under way at `rate` (bytes per second).
 */
BW_FN int bw_fit_window_is_others_queue(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 under_way = bw_product(rate, bw_fit_window_round_trip(x));

	return bw_fit_window_is_sure(s) & bw_fit_window_is_queue_beyond(x, s->capacity, 2 * under_way);
}

_Static_assert(sizeof(struct bw_fit_window) == 408, "the Rust twin has 408 bytes");

#endif
