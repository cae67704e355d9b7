/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, first part: the state of the rule, and the phases until it knows the path. fit_window.h has the
 * problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_RAMP_H
#define BUFWISE_FIT_RAMP_H

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
	/* Segments that have come out of order, modulo 2^32. */
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

/* Trains have told C' often enough. */
BW_FN int bw_fit_window_is_sure(const struct bw_fit_window *s)
{
	return s->agreed >= BW_FIT_WINDOW_SURE;
}

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

/*
 * Round trips are longer than the queue explains that the flight of C' has left, or the handshake's was: segments that are late
 * arrive in bunches, and trains tell nothing.
 */
BW_FN int bw_fit_window_is_jittery(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 time = bw_min(s->evidence, BW_MOST_BYTES) * 1000000 / bw_max(s->capacity, 1);

	return bw_fit_has_jitter(bw_less(x->rcv_rtt, x->rtt), time, s->first_rtt, x->rtt);
}

/* The train is long enough to tell a rate: it has `segments` after its first observation. */
BW_FN int bw_fit_window_is_train(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 bytes, __u64 segments)
{
	return s->observed >= BW_FIT_OBSERVED && bytes >= segments * bw_segment(x->mss);
}

/* Counts the train up to the last sample, if it tells a rate: whether that is C', and, in the ramp, whether it is faster. */
BW_FN void bw_fit_window_count_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes = bw_less(s->last_bytes, s->train_bytes), rate;
	int is_faster;

	if (!bw_fit_window_is_train(s, x, bytes, BW_FIT_TRAIN))
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

/* The train has lasted half a round trip at the time `at` (us), and was counted then if it told a rate. */
BW_FN int bw_fit_window_is_long(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 at)
{
	return s->phase == BW_FIT_START && bw_less(at, s->train_at) > x->rtt / 2;
}

BW_FN void bw_fit_window_begin_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	/* Where segments were lost, the rate is not the path's. */
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
 * In the ramp: a train is slower than C', and no queue shows. The sender has spread it, as fit does at the other end, or its
 * window was used up: such a train does not tell C.
 */
BW_FN int bw_fit_window_is_paced(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return s->phase == BW_FIT_RAMP && rate < s->capacity - s->capacity / BW_FIT_WINDOW_AGREED && bw_fit_window_is_empty(x);
}

/* C' is the rate of the longest train. Beyond half a round trip it may be the sender's rate that is seen. */
BW_FN void bw_fit_window_watch_train(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 bytes, time, rate;

	if (!s->train_at || x->out_of_order != s->train_out_of_order || bw_fit_window_is_pause(s, x)) {
		bw_fit_window_begin_train(s, x);
		return;
	}
	/*
	 * In the start, a train is counted once it has lasted half a round trip: where the first flights fill the path, no pause
	 * ends it before the queue overflows.
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
	if (!bw_fit_window_is_train(s, x, bytes, BW_FIT_WINDOW_TRAIN) || bytes < s->evidence || time > x->rtt / 2)
		return;
	rate = bw_rate(bytes, time);
	/* A delayed acknowledgement may put a pause into a train that is hardly longer than the best one. */
	if (rate < s->capacity - s->capacity / BW_FIT_WINDOW_SAME && bytes < 2 * s->evidence &&
	    s->evidence >= BW_FIT_TRAIN * bw_segment(x->mss))
		return;
	if (s->paced || bw_fit_window_is_paced(s, x, rate))
		return;
	s->evidence = bytes;
	s->capacity = rate;
	s->is_present = 1;
	s->bunched = bw_fit_is_bunched(bytes, time, s->gap_bytes, s->gap);
}

/*
 * The longest train is a good part of C' T and more than the first flights, and no queue shows: sent as a burst it would have left
 * one. The sender paces, as fit does in its ramp at the other end, and trains have its rate.
 */
BW_FN int bw_fit_window_is_spread(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return s->evidence > BW_FIT_WINDOW_FLIGHTS * bw_segment(x->mss) &&
	       s->evidence * BW_FIT_WINDOW_SPREAD > bw_fit_window_held(x, s->capacity) && bw_fit_window_is_empty(x);
}

/* A round trip has delivered far more than C' allows. */
BW_FN int bw_fit_window_is_refuted(const struct bw_fit_window *s, __u64 rate)
{
	return rate > s->capacity + s->capacity / BW_FIT_WINDOW_REFUTED;
}

/* C' is evident: the last train has this rate, and if C' is that train's, the train before has it, too. */
BW_FN int bw_fit_window_is_evident(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 other = s->is_present ? s->train_rate : s->former_train_rate, most = s->capacity / BW_FIT_WINDOW_SAME;

	if (!s->capacity || s->bunched || bw_fit_window_is_refuted(s, s->start_rate) || bw_fit_window_is_spread(s, x) || !other ||
	    bw_distance(s->capacity, other) > most || bw_distance(s->capacity, s->train_rate) > most ||
	    bw_fit_window_is_jittery(s, x))
		return 0;
	return bw_min(x->drs, BW_MOST_BYTES) * BW_FIT_WINDOW_EVIDENCE >= bw_fit_window_held(x, s->capacity);
}

/*
 * The window in the start: what the kernel offered when the connection began, and what slow start needs, which sends two
 * segments for each that arrives. No more, for what was offered once cannot be taken back when the capacity is known. DRS
 * measures over the shortest round trip, which on a jittery path is far shorter than the usual one, and its first
 * measurements there may be of next to nothing.
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
 * The window beside others' queue: more than has been under way lately. A sender in slow start fills what it is given, so that a
 * window that doubled, as DRS's does, would overflow any queue within some round trips.
 */
BW_FN __u64 bw_fit_window_beside(const struct bw_fit_window *s)
{
	return s->most_under_way + s->most_under_way / BW_FIT_WINDOW_OPEN;
}

/* The window where the rule has none of its own. */
BW_FN __u64 bw_fit_window_unbound(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	return bw_min(s->phase == BW_FIT_START ? bw_fit_window_first(s, x) : bw_fit_window_beside(s), x->max);
}

/* Growth of the window in a round trip. A queue that took the first flight takes as much again. */
BW_FN __u64 bw_fit_window_step(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 product = bw_fit_window_held(x, s->capacity), mss = bw_segment(x->mss), step;

	step = product / 1024 * bw_max(1024 * bw_min(x->rtt, BW_LONGEST) / BW_FIT_WINDOW_RAMP, BW_FIT_WINDOW_SMALLEST_STEP);
	step = bw_min(bw_max(step, BW_FIT_WINDOW_ANY_QUEUE), product / 1024 * BW_FIT_WINDOW_LARGEST_STEP);
	step <<= s->doublings & 3;
	return bw_max(bw_less(step, BW_FIT_WINDOW_BURST * mss), BW_INITIAL_WINDOW * mss);
}

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
	s->crowded = 0;
	bw_fit_window_begin_round(s, x);
}

/*
 * In the start: R stays while round trips become longer by a quarter than any before: what the sender adds goes into a queue,
 * and R is C. 0: not so. A long round trip alone tells nothing: where jitter has made the sender leave slow start, R stays as
 * well, and round trips are now long, now short.
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

BW_FN void bw_fit_window_start(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate;

	if (!s->round_at) {
		bw_fit_window_begin_round(s, x);
		s->first_rtt = bw_min(x->rtt, BW_LONGEST);
	}
	rate = bw_fit_window_full_rate(s, x);
	if (rate) {
		s->capacity = rate;
		bw_fit_window_enter_follow(s, x, rate);
		/*
		 * T may be that of one lucky packet: the window keeps the bytes in flight from before the queue, until descents
		 * show that some of them were a queue, too.
		 */
		bw_fit_window_set(s, bw_max(s->window, bw_product(rate, s->steady_rtt)), x);
		s->extra = bw_min(bw_less(s->steady_rtt, x->rtt) * 1024 / x->rtt, BW_FIT_WINDOW_MOST_LONGER);
	} else if (bw_fit_window_is_evident(s, x)) {
		bw_fit_window_begin_ramp(s, x);
	}
}

/* The rate of the longest train, had it lasted for as much longer as timers of hosts err. */
BW_FN __u64 bw_fit_window_least_capacity(const struct bw_fit_window *s)
{
	__u64 evidence = bw_min(s->evidence, BW_MOST_BYTES);

	return bw_rate(evidence, evidence * 1000000 / bw_max(s->capacity, 1) + BW_FIT_CLOCK);
}

/*
 * A train, up to the last sample, has as much payload as that of C', is far slower, and lasts for a good part of a round trip. The
 * sender has spread it, as a TCP does that paces: its first flight alone is a burst, whose train is all that tells C, and the second
 * one, which is twice as long, has the rate of two windows per round trip. Jitter spreads flights to any rate.
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
 * In the start: begins the ramp where the sender paces. It puts nothing into the queue before its congestion window is half of C' T,
 * so the ramp may wait until then.
 */
BW_FN void bw_fit_window_judge_pacing(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->phase != BW_FIT_START)
		return;
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
 * More arrives as the window grows, and yet the window holds more than R * T: acknowledgements or segments come in bursts,
 * and T is longer.
 */
BW_FN void bw_fit_window_lengthen(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 arrived, __u64 step)
{
	__u64 most = arrived + 7 * step / 4 + BW_FIT_WINDOW_SEGMENTS * bw_segment(x->mss);

	if (!bw_fit_window_is_delayed(x) || arrived <= s->arrived + s->arrived / BW_FIT_BEYOND || s->ramp_window <= most)
		return;
	s->extra = bw_min((s->ramp_window - step - arrived) * 1024 / bw_max(arrived, 1), BW_FIT_WINDOW_LONGER);
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
	bw_fit_window_lengthen(s, x, arrived, step);
	s->arrived = arrived;
	s->ramp_window = s->window;
	s->ramp_rounds++;
	s->crowded = bw_product(s->capacity, bw_less(x->rcv_rtt, x->rtt)) > 2 * s->window ? s->crowded + 1 : 0;
	bw_fit_window_begin_round(s, x);
	return s->stuck >= 2 && !s->crowded;
}

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

_Static_assert(sizeof(struct bw_fit_window) == 392, "the Rust twin has 392 bytes");

#endif
