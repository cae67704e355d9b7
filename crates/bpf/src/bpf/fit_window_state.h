/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: the constants, the state, the sample, and the functions that all phases use. fit_window.h has the
 * problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_WINDOW_STATE_H
#define BUFWISE_FIT_WINDOW_STATE_H

#include "drs.h"
#include "fit.h"

/* The kernel's first window. */
#define BW_FIT_WINDOW_FIRST 65536
/* On a jittery path slow start has what it needs until so much has arrived, whatever DRS has measured. */
#define BW_FIT_WINDOW_UNMEASURED (512 << 10)
/* Segments of the smallest window. */
#define BW_FIT_WINDOW_LEAST 4
/* The margin where R differs from round to round: so many times that, and at most (1024ths). */
#define BW_FIT_WINDOW_NOISES 2
#define BW_FIT_WINDOW_MOST_NOISE 320
/* The ramp finds T longer by half at most (1024ths); a full path, or a trial, by this. */
#define BW_FIT_WINDOW_LONGER 512
#define BW_FIT_WINDOW_MOST_LONGER 1280
/* Rounds of a path that is followed before a larger window is tried; the same after losses. */
#define BW_FIT_WINDOW_REST 16
#define BW_FIT_WINDOW_LONG_REST 256
/* The window is used if what is under way is so much (in quarters) of it. */
#define BW_FIT_WINDOW_USED 3
/* The window may hold a queue if what is under way is so much (in 8ths) of it. */
#define BW_FIT_WINDOW_NEARLY 7
/* Segments beyond R * T in a window without a queue: one on the wire, two that one acknowledgement sets free. */
#define BW_FIT_WINDOW_SEGMENTS 3
/* The window is larger by this part (1024ths) than what gives R without a queue; with half of it, there is none. */
#define BW_FIT_WINDOW_ABOVE 43
/* The start ends when the window has reached this part of C' T. */
#define BW_FIT_WINDOW_EVIDENCE 16
/* C' is refuted if a round trip delivers more by one part in this many. */
#define BW_FIT_WINDOW_REFUTED 4
/* Rates of trains, and of round trips, within these parts of each other are the same. */
#define BW_FIT_WINDOW_SAME 4
#define BW_FIT_WINDOW_SAME_RATE 8
/* A train has the rate C' if it differs from it by at most this part; after so many such trains C' is sure. */
#define BW_FIT_WINDOW_AGREED 16
#define BW_FIT_WINDOW_SURE 4
/* A sender paces if a train is slower than C' and lasts for more than this part of T; the ramp then begins at this part of C' T. */
#define BW_FIT_WINDOW_PACED 4
#define BW_FIT_WINDOW_HALF 2
/*
 * Such a second flight has a rate of so many trains of the first one per round trip: of four to five flights, of which a train may have
 * half.
 */
#define BW_FIT_WINDOW_PACED_LEAST 3
#define BW_FIT_WINDOW_PACED_MOST 9
/*
 * The first flight's train has this many segments after those that its host passed on first. Others tell more, and take its place; only
 * where the sender paces there are none.
 */
#define BW_FIT_WINDOW_TRAIN 5
/* Samples per round trip while the start's trains are timed, and their distances (us). */
#define BW_FIT_WINDOW_START_SAMPLES 128
#define BW_FIT_WINDOW_CLOSEST 100
#define BW_FIT_WINDOW_FURTHEST 1000
/* The first flight, and what an application may say before it, have fewer segments than this. */
#define BW_FIT_WINDOW_FIRST_FLIGHT 12
/* No queue shows if the present round trip is longer than T by this part and this time (us) at most. */
#define BW_FIT_WINDOW_EMPTY 32
#define BW_FIT_WINDOW_CLOCK 500
/* A train longer than so many segments, the first flights, and this part of C' T leaves a queue, if its sender does not pace. */
#define BW_FIT_WINDOW_FLIGHTS 40
#define BW_FIT_WINDOW_SPREAD 4
/* After so many faster trains, or, with longer round trips, after so long a ramp (round trips, us), C' is doubtful. */
#define BW_FIT_WINDOW_CONTRADICTED 2
#define BW_FIT_WINDOW_UNSURE_ROUNDS 6
#define BW_FIT_WINDOW_UNSURE_TIME 300000
/*
 * A ramp ends after so many round trips in a row with a queue of more than two windows: most of it is somebody else's, as a
 * loss-based sender's is, who keeps it. The window is then open for twice this time (us) at first.
 */
#define BW_FIT_WINDOW_CROWDED 2
#define BW_FIT_WINDOW_CROWDED_HOLD 8000000
/*
 * After the ramp the window is left open after so many rounds with a queue of so many times what is under way, and the hold is the usual one:
 * connections of this rule that share a path would otherwise leave it to each other.
 */
#define BW_FIT_WINDOW_FEW 2
/*
 * A step of the ramp, one each round trip, which the queue takes: what gives a ramp of 0.7 s (us), a nineteenth of C' T at least
 * (1024ths; a queue of a sixteenth), or these bytes, which any queue of a fast link takes; but no more than what fits into a
 * queue of an eighth.
 */
#define BW_FIT_WINDOW_RAMP 700000
#define BW_FIT_WINDOW_SMALLEST_STEP 54
#define BW_FIT_WINDOW_ANY_QUEUE 65536
#define BW_FIT_WINDOW_LARGEST_STEP 108
/* Less these segments, which come as bursts: an acknowledgement sets free two and what the window has grown by. */
#define BW_FIT_WINDOW_BURST 2
/* Beside others' queue the window is larger by this part than what was under way. */
#define BW_FIT_WINDOW_OPEN 4

/* The queue has taken the steps of a ramp, or has lost segments of them. */
enum bw_room_shown { BW_ROOM_UNKNOWN, BW_ROOM_TAKEN, BW_ROOM_LOST };

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
	/* R * T when the path was last full. */
	__u64 known;
	/* In the start: R in the last round. */
	__u64 start_rate;
	/* In the ramp: the window when the round trip began, and the time by which C' has to be sure. */
	__u64 ramp_window;
	__u64 sure_by;
	/* Beside others' queue: the most that was under way. */
	__u64 most_under_way;
	/* Window and R when the descent began. */
	__u64 descent_window;
	__u64 descent_rate;
	/* Time until which another flow's queue is left alone. */
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
	/* Rounds in a row that were taken for a pause. */
	__u32 doubts;
	/* Rounds until a larger window may be tried. */
	__u32 rest;
	/* Means of the window and of R over some rounds, and these means when R was highest; 0: none yet. */
	__u64 mean_window;
	__u64 mean_rate;
	__u64 anchor_window;
	__u64 anchor_rate;
	/* Window and R of the last round. */
	__u64 last_window;
	__u64 last_rate;
	/* The window before the present step of a trial, and the mean of R at it; 0: no step yet. Sum of R at the present window. */
	__u64 trial_window;
	__u64 trial_rate;
	__u64 level_rate;
	/* Step of the trial in progress, 1024ths of the window; 0: no trial. */
	__u32 trial;
	/* By how much (1024ths) R differs from round to round. */
	__u32 noise;
	/* Rounds in a row in which R was far lower than its mean and the window was not. */
	__u32 alone;
	/* Rounds at the present window of a trial. */
	__u32 level_rounds;
	/* Trials in a row that have failed. */
	__u32 failed;
	/* Trains at the rate C'; until C' is sure, halved by each train at another rate. */
	__u32 agreed;
	/* The rate of the train before train_rate's; C' when the ramp began, and the highest rate that confirmed C' since. */
	__u64 former_train_rate;
	__u64 fastest;
	/* C' is the rate of the present train. */
	__u32 is_present;
	/* Trains of the ramp that were far faster than C' when it began. */
	__u32 faster;
	/* The longest distance in this train (us) and the bytes that came with it. */
	__u32 gap;
	__u32 gap_bytes;
	/* The train of C' came in bunches. */
	__u32 bunched;
	/* The present trial began because R was far below `fastest`. */
	__u32 below;
	/* In the start: the longest round trip (us) before R was what it is. */
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
	/* Rounds in a row in which the window was used, did not grow, and no queue counted. The present trial lowers the window. */
	__u32 still;
	__u32 lower;
	/* In the start: a train was far slower than C', so that the sender paces. */
	__u32 paced;
	/*
	 * The distance of the start's usual samples (us); 0: no sample yet. Whether the train of C' has lasted for less than two of them: a
	 * first flight, which tells something of a sender alone that paces.
	 */
	__u32 tick;
	__u32 is_short;
	/* Segments that had come out of order before the record was made, modulo 2^32. */
	__u32 found_out_of_order;
	/* In the ramp: the queue holds more than two windows. In the start: most of the queue is others'. */
	__u32 others;
	__u32 unused;
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
	/* Segments that have come out of order since the record was made, modulo 2^32. */
	__u32 out_of_order;
	/* Payload that has arrived behind a hole (arrivals.h). */
	__u64 behind;
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

/* The receiver's estimate of the round trip shows no queue. */
BW_FN int bw_fit_window_is_empty(const struct bw_fit_window_sample *x)
{
	return x->rcv_rtt <= x->rtt + x->rtt / BW_FIT_WINDOW_EMPTY + BW_FIT_WINDOW_CLOCK;
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
		/* A trial begins below the usual margin, and need not pass it by much. */
		bw_fit_window_begin_trial(s);
		s->rest = BW_FIT_WINDOW_REST;
		bw_fit_window_set(s, (bw_fit_window_need(s, x, s->known) + bw_fit_window_target(s, x, s->known)) / 2, x);
	}
	bw_fit_window_begin_round(s, x);
}

/* Returns the distance (us) of a start's samples, but those of a first flight, of which each segment is seen. */
BW_FN __u64 bw_fit_window_tick(__u64 rtt)
{
	return bw_max(bw_min(rtt / BW_FIT_WINDOW_START_SAMPLES, BW_FIT_WINDOW_FURTHEST), BW_FIT_WINDOW_CLOSEST);
}

/* Trains have told C' often enough. */
BW_FN int bw_fit_window_is_sure(const struct bw_fit_window *s)
{
	return s->agreed >= BW_FIT_WINDOW_SURE;
}

/* Returns whether a path of the rate `rate` (bytes per second) holds more than so many bytes in its queue. */
BW_FN int bw_fit_window_is_queue_beyond(const struct bw_fit_window_sample *x, __u64 rate, __u64 bytes)
{
	return bw_product(rate, bw_less(x->rcv_rtt, x->rtt)) > bytes;
}

/*
 * Returns whether the queue is somebody else's for the most part: at the rate C', of which trains are sure, it holds more than twice
 * the bytes that the connection has under way at the rate `rate`.
 */
BW_FN int bw_fit_window_is_others_queue(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 under_way = bw_product(rate, bw_fit_window_round_trip(x));

	return bw_fit_window_is_sure(s) & bw_fit_window_is_queue_beyond(x, s->capacity, 2 * under_way);
}

_Static_assert(sizeof(struct bw_fit_window) == 408, "the Rust twin has 408 bytes");

#endif
