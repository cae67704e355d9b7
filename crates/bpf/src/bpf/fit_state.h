/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the sender: the constants of the rule, its state, what it sees, and what all phases ask of these. fit.h has the problem,
 * the terms and the rule.
 */
#ifndef BUFWISE_FIT_STATE_H
#define BUFWISE_FIT_STATE_H

#include "send.h"

/* Below this (us) the hosts' own delays count for more than the path's. */
#define BW_FIT_SHORTEST 2000
/* Segments after the first acknowledgement that make a train, and observations besides. */
#define BW_FIT_TRAIN 7
#define BW_FIT_OBSERVED 2
/* A shorter train (us) may be what a host has held back. Acknowledgements that come so much sooner than the next one are. */
#define BW_FIT_SHORTEST_TRAIN 400
#define BW_FIT_BUNCH 60
/*
 * The start ends when the window has reached a share of C' T: the sooner, the longer (us) the train, for clocks err by some
 * tenths of a millisecond. With a shorter train the flights are paced from the latter share on.
 */
#define BW_FIT_SOON 16
#define BW_FIT_LONG_TRAIN 4000
#define BW_FIT_LATER 8
#define BW_FIT_SHORT_TRAIN 2500
/* C' is at most so many times what arrives at a full path: it may be wrong, or the connection has a share of C. */
#define BW_FIT_LARGEST_EXCESS 8ULL
/* Rates of two trains that differ by a part of so many at most are the same. */
#define BW_FIT_AGREED 8
/* A round trip that delivers a part of so many more than a train refutes it. */
#define BW_FIT_REFUTED 16
/* A quarter of a round trip in the ramp that delivers so many quarters more than the roof refutes the train. */
#define BW_FIT_BURST_BEYOND_QUARTERS 3
/* In the start, a delay of this part of T beyond the own queue is jitter. */
#define BW_FIT_JITTER 16
/* A full path delivers this much of the window in a round trip, at least and at most: more is a burst. */
#define BW_FIT_FULL 8
#define BW_FIT_FULL_LEAST 5
#define BW_FIT_FULL_MOST 9
/* Rates in two windows of time in a row that differ by a part of so many at most are steady. */
#define BW_FIT_STEADY 4
/*
 * TCP that paces sends up to twice its window per round trip in slow start, and the train has that rate: evidence is only what
 * is faster (quarters of a window). The initial window is a burst all the same.
 */
#define BW_FIT_PACED 9
#define BW_FIT_BURST 20
/* The roof after the start, in parts of C'. */
#define BW_FIT_RAMP_NUMERATOR 15
#define BW_FIT_RAMP_DENOMINATOR 16
/* The ramp has reached the roof with this much of it. */
#define BW_FIT_REACHED_NUMERATOR 7
#define BW_FIT_REACHED_DENOMINATOR 8
/* Steps of the roof upwards, in 1024ths of C': the first, that before the path was seen full, the largest. */
#define BW_FIT_STEP 6
#define BW_FIT_UNSURE_STEP 16
#define BW_FIT_LARGEST_STEP 128
/* The steps double once the roof is so much (a part) above what the path has carried when it was full. */
#define BW_FIT_BEYOND 32
/* Or, before the path was seen full, above C'. */
#define BW_FIT_ABOVE 64
/* Steps of a connection that has a part of C' are larger by the square of the inverse; of this at most. */
#define BW_FIT_LARGEST_HELP 3
/* Rates of a round and of its last round trip that differ by more than this part: the path has changed. */
#define BW_FIT_CHANGED 8
/* The roof was used if this much of it (in 16ths) was delivered in a round trip. */
#define BW_FIT_USED 15
/* Steps downwards: at least a 128th, at most an eighth. */
#define BW_FIT_DOWN 128
#define BW_FIT_LARGEST_DOWN 8
/* As often in a row a round that delivered less, down to so many eighths, is taken for a pause. */
#define BW_FIT_DOUBTS 1
#define BW_FIT_PAUSED 6
/*
 * A path whose rate varies needs a queue, for an empty one has nothing to send from when it carries more again. A fall that was
 * none, for within so many rounds the path carried a part of so many more, counts so much; each round takes one off; at most.
 */
#define BW_FIT_FALL_ROUNDS 16
#define BW_FIT_RISEN 16
#define BW_FIT_VARIES 6
#define BW_FIT_MOST_VARIES 24
/* From so much on, a queue is allowed: this part of the round trip at most, in such steps, and each round a part less of it. */
#define BW_FIT_VARIES_OFTEN 10
#define BW_FIT_LARGEST_ALLOWED 2
#define BW_FIT_ALLOWED_STEP 32
#define BW_FIT_ALLOWED_LESS 128
/* Falls of less than an eighth each that come to an eighth: delays that are none of a queue push the rate down bit by bit. */
#define BW_FIT_SLID 8
/* Longer queues (part of T) are the own ones even where the roof is not used. */
#define BW_FIT_LONG_QUEUE 4
/* Descents in a row that do not shorten the queue: at first, and once that has been so. */
#define BW_FIT_IN_VAIN 3
#define BW_FIT_IN_VAIN_AGAIN 2
/* The rate of a connection that is left alone grows as long as it becomes a part of so many more. */
#define BW_FIT_GROWN 16
/* How long the sender is left alone at first, and at most (us). */
#define BW_FIT_HOLD 2000000U
#define BW_FIT_LONGEST_HOLD 64000000U
/* Payload besides what is under way: what hosts and devices hold back. */
#define BW_FIT_SLACK (96ULL << 10)
/* A connection that has sent so much (bytes) before it is met has its first flights behind it. */
#define BW_FIT_BEGUN (64 << 10)
/* A roof takes 32 bits, and all ones are no bound. */
#define BW_FIT_HIGHEST ((1ULL << 32) - 2)

enum bw_fit_phase {
	BW_FIT_START,
	BW_FIT_RAMP,
	BW_FIT_FOLLOW,
	BW_FIT_OPEN,
};

struct bw_fit {
	/* The roof and C', bytes per second; 0: none. */
	__u64 roof;
	__u64 capacity;
	/* Rate that the path carried when it was last full, and the rate that it has carried since; 0: not known. */
	__u64 known;
	__u64 carried;
	/* First and last acknowledgement of the train. */
	__u64 train_at;
	__u64 last_at;
	/* The window of time in which the rate is measured now, and the rates in the last one and the one before. */
	__u64 window_at;
	__u64 window_rate;
	__u64 former_window_rate;
	/* Begin of the round in which the roof is judged; until when the sender is left alone. */
	__u64 round_at;
	__u64 open_until;
	/* Since when there has been a queue; 0: there is none. */
	__u64 queued_since;
	/* Segments delivered at these times. */
	__u32 train_segments;
	__u32 last_segments;
	__u32 window_segments;
	__u32 round_segments;
	/* The longest train: segments, time (us). Observations of this one. */
	__u32 evidence;
	__u32 train_time;
	/* When that began. The train that was the longest before it: rate, time; 0: there was none. */
	__u64 evidence_at;
	__u64 former_rate;
	__u32 former_time;
	/* Descents in a row after which the path was thought to carry as much as before. */
	__u32 doubts;
	__u32 observed;
	__u32 phase;
	/* The next step upwards, 1024ths. */
	__u32 step;
	/* The queue (us) at the last descent, and by how much it should be shorter now; descents in vain. */
	__u32 queue;
	__u32 expected;
	__u32 in_vain;
	__u32 hold;
	/* The round was limited by something else than the roof. */
	__u32 limited;
	/* Retransmissions at the begin of the round. */
	__u32 round_retransmitted;
	/* Descents, times that the sender was left alone. */
	__u32 descents;
	/* The shortest queue (us) in this window of time, and in the last one. */
	__u32 window_least;
	__u32 window_queue;
	/* The roof has just descended: the queue drains. */
	__u32 drains;
	__u32 opened;
	/* The queue (us) that may stand; how often what was carried has fallen and risen again lately. */
	__u32 allowed;
	__u32 varies;
	/* The rate carried when it fell last; 0: it did not fall. The longest queue (us) since, and rounds since. */
	__u64 fell_to;
	__u32 fell_queue;
	__u32 fell_rounds;
	/* Most that was carried since it fell by much at once. */
	__u64 slid_from;
	/* The longest distance in this train (us), and the segments after it. The train that C' is from came in bunches. */
	__u32 gap;
	__u32 gap_segments;
	__u32 bunched;
	/* A queue was seen that is longer than jitter makes it seem. */
	__u32 confirmed;
};

struct bw_fit_sample {
	__u64 now;
	__u64 mss;
	__u64 srtt;
	__u64 min_rtt;
	/* Congestion window, segments. */
	__u64 cwnd;
	/* Segments delivered so far, modulo 2^32. */
	__u32 delivered;
	/* The application, or the peer's window, leaves the sender without anything to send. */
	__u32 app_limited;
	/* The congestion control paces by itself. */
	__u32 paces_itself;
	/* TCP paces whatever the congestion control is, or may do so: two windows per round trip in slow start. */
	__u32 paced;
	/* Segments retransmitted so far. */
	__u32 retransmitted;
	__u32 unused;
};

/*
 * The queue: the round trip beyond the shortest (us), less the queue that may stand, and less the time that the path takes for
 * two segments, for the shortest may be that of the handshake's small packets, and acknowledgements wait for a second one.
 */
BW_FN __u64 bw_fit_queue(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 segments = s->capacity ? 2 * bw_segment(x->mss) * 1000000 / s->capacity : 0;

	return bw_min(bw_less(x->srtt, x->min_rtt + segments + s->allowed), BW_LONGEST);
}

/* Shorter queues (us) are the clocks' and the hosts' jitter. */
BW_FN __u64 bw_fit_threshold(const struct bw_fit_sample *x)
{
	return bw_min(x->min_rtt, BW_LONGEST) / 64 + 500;
}

/* Bytes per second of so many segments in so many microseconds. */
BW_FN __u64 bw_fit_rate(const struct bw_fit_sample *x, __u32 segments, __u64 time)
{
	return bw_rate(segments * bw_segment(x->mss), time);
}

BW_FN void bw_fit_set(struct bw_fit *s, __u64 roof, const struct bw_fit_sample *x)
{
	/* Two segments per round trip are the least. */
	__u64 least = bw_fit_rate(x, 2, x->srtt);

	s->roof = bw_min(bw_max(roof, least), BW_FIT_HIGHEST);
}

BW_FN void bw_fit_begin_round(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->round_at = x->now;
	s->round_segments = x->delivered;
	s->round_retransmitted = x->retransmitted;
	s->limited = x->app_limited;
	s->window_at = x->now;
	s->window_segments = x->delivered;
}

BW_FN void bw_fit_enter_follow(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->phase = BW_FIT_FOLLOW;
	s->known = 0;
	s->carried = 0;
	s->drains = 0;
	s->queued_since = 0;
	s->step = BW_FIT_UNSURE_STEP;
	s->in_vain = 0;
	s->expected = 0;
	bw_fit_begin_round(s, x);
}

_Static_assert(sizeof(struct bw_fit) == 248, "the Rust twin has 248 bytes");

#endif
