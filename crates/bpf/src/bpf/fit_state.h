/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the sender: the constants, the state, the sample, and the functions that all phases use. fit.h has the
 * problem, the terms and the rule.
 */
#ifndef BUFWISE_FIT_STATE_H
#define BUFWISE_FIT_STATE_H

#include "send.h"

/* The shortest round-trip time (us) that the rule handles: below it, delays of the hosts outweigh the path's. */
#define BW_FIT_SHORTEST 2000
/* A train needs this many segments after its first acknowledgement, and this many observations. */
#define BW_FIT_TRAIN 7
#define BW_FIT_OBSERVED 2
/* A train shorter than this (us) may consist of segments that a host has held back. */
#define BW_FIT_SHORTEST_TRAIN 400
/* Two distances of acknowledgements differ if one is longer than four times the other and this (us). */
#define BW_FIT_BUNCH 60
/*
 * The start ends when the congestion window reaches 1/SOON of C' T with a train of LONG_TRAIN (us), or 1/LATER of it
 * with a train of SHORT_TRAIN (us): clocks err by some tenths of a millisecond. With a shorter train, flights are paced
 * from 1/LATER on.
 */
#define BW_FIT_SOON 16
#define BW_FIT_LONG_TRAIN 4000
#define BW_FIT_LATER 8
#define BW_FIT_SHORT_TRAIN 2500
/* A first train alone, which jitter may have spread, gives a roof when the congestion window has reached 1/LATEST of C' T. */
#define BW_FIT_LATEST 4
/*
 * C' is at most this many times the rate delivered by a full path: C' may be wrong, or the connection has a share of C.
 */
#define BW_FIT_LARGEST_EXCESS 8ULL
/* Rates of two trains are the same if they differ by at most one part in this many. */
#define BW_FIT_AGREED 8
/* The longest train has at least one part in this many of the congestion window. */
#define BW_FIT_WHOLE 5
/* The first train is evidence by itself if it lasts for one part in this many of T, and 2 ms. */
#define BW_FIT_ALONE 8
/* Trains contradict each other if their rates differ by more than one part in this many. */
#define BW_FIT_CONTRADICTED 4
/* A round trip refutes a train if its rate is higher by more than one part in this many. */
#define BW_FIT_REFUTED 16
/* In the ramp, a time window of T / 4 refutes the train if its rate exceeds the roof by more than one part in this many. */
#define BW_FIT_BURST_BEYOND 4
/* In the start, a delay of one part in this many of T beyond the connection's own queue is jitter. */
#define BW_FIT_JITTER 16
/* A full path delivers LEAST to MOST (in 8ths) of the congestion window in a round trip; more is a burst. */
#define BW_FIT_FULL 8
#define BW_FIT_FULL_LEAST 5
#define BW_FIT_FULL_MOST 9
/* The rate is steady if two consecutive time windows differ by at most one part in this many. */
#define BW_FIT_STEADY 4
/* In the start the path is full once the queue has grown by one part in this many of a round trip at a steady rate. */
#define BW_FIT_LONGER 8
/*
 * When TCP paces, it sends up to twice its window per round trip in slow start, and the train has that rate: only a
 * faster train (PACED, quarters of a window per round trip) is evidence. Windows of up to BURST segments leave in a
 * burst all the same.
 */
#define BW_FIT_PACED 9
#define BW_FIT_BURST 20
/*
 * If the first flight's train is the only evidence, it has to last for at least this time (us). Its rate is computed as if
 * it had lasted this much longer, because hosts' timers are late.
 */
#define BW_FIT_CLOCK 150
/* After a paced start the roof rises by one part in this many, until it reaches what the train has shown. */
#define BW_FIT_TOLD_STEP 8
/* The roof after the start, as a fraction of C'. */
#define BW_FIT_RAMP_NUMERATOR 15
#define BW_FIT_RAMP_DENOMINATOR 16
/* The ramp has reached the roof when this fraction of it is delivered. */
#define BW_FIT_REACHED_NUMERATOR 7
#define BW_FIT_REACHED_DENOMINATOR 8
/* Steps of the roof upwards, in 1024ths of C': the first, the first while the path was never full, the largest. */
#define BW_FIT_STEP 6
#define BW_FIT_UNSURE_STEP 16
#define BW_FIT_LARGEST_STEP 128
/*
 * Steps double once the roof exceeds the rate of the full path by one part in this many. Rates that fall by more count
 * as lower.
 */
#define BW_FIT_BEYOND 32
/* While the path was never full, steps grow once the roof exceeds C' by one part in this many. */
#define BW_FIT_ABOVE 64
/* Steps are multiplied by the square of C' / roof, and that quotient is at most this. */
#define BW_FIT_LARGEST_HELP 3
/* The path has changed if the rates of a round and of its last round trip differ by more than one part in this many. */
#define BW_FIT_CHANGED 8
/* The roof is used if this many 16ths of it were delivered in a round trip. */
#define BW_FIT_USED 15
/*
 * After SPARE such rounds, a roof that the host's pauses leave unused rises by MAKE_UP_STEP 1024ths of what the path is
 * known to carry, while one part in MISSING of that is missing, to one part in MAKE_UP above it.
 */
#define BW_FIT_SPARE 3
#define BW_FIT_MAKE_UP_STEP 20
#define BW_FIT_MISSING 64
#define BW_FIT_MAKE_UP 8
/* Steps downwards are at least a 128th and at most an eighth of the delivered rate. */
#define BW_FIT_DOWN 128
#define BW_FIT_LARGEST_DOWN 8
/*
 * At most this many rounds in a row are taken for pauses, each of which delivered at least this many eighths of the
 * rate before.
 */
#define BW_FIT_DOUBTS 1
#define BW_FIT_PAUSED 6
/*
 * A path whose rate varies needs a queue: from an empty queue, nothing can be sent at the moment when the rate rises
 * again. A fall was temporary if, within FALL_ROUNDS rounds, the rate rises by one part in RISEN. Each such fall adds
 * VARIES to a counter, which is at most MOST_VARIES and loses 1 per round.
 */
#define BW_FIT_FALL_ROUNDS 16
#define BW_FIT_RISEN 16
#define BW_FIT_VARIES 6
#define BW_FIT_MOST_VARIES 24
/*
 * From this counter value on, a queue is allowed: at most T / LARGEST_ALLOWED, raised in steps of T / ALLOWED_STEP. At
 * a counter of 0, it loses one part in ALLOWED_LESS per round.
 */
#define BW_FIT_VARIES_OFTEN 10
#define BW_FIT_LARGEST_ALLOWED 2
#define BW_FIT_ALLOWED_STEP 32
#define BW_FIT_ALLOWED_LESS 128
/*
 * If falls of less than one part in this many add up to one part, then delays that are no queue push the rate down bit by
 * bit, and a queue is allowed.
 */
#define BW_FIT_SLID 8
/* A delay that stays for this many rounds, with a descent among them, belongs to the path. */
#define BW_FIT_FLOOR_ROUNDS 4
/* A queue longer than one part in this many of T is the connection's own even if it does not use its roof. */
#define BW_FIT_LONG_QUEUE 4
/* The phase Open begins after this many descents in a row that do not shorten the queue: the first time, and later. */
#define BW_FIT_IN_VAIN 3
#define BW_FIT_IN_VAIN_AGAIN 2
/*
 * A descent was also in vain if the rate fell by more than one part in FALLEN and is that of the roof, within one part in
 * ALONG: a path with a queue delivers its rate whatever the roof is.
 */
#define BW_FIT_FALLEN 16
#define BW_FIT_ALONG 8
/* In the phase Open, the rate still grows if it rises by more than one part in this many. */
#define BW_FIT_GROWN 16
/*
 * It tries a roof again only if this many times the bytes of a round trip fill the congestion window. (Slow start may leave
 * half of the window unused.)
 */
#define BW_FIT_OPEN_USED 4
/*
 * Most of a queue is others' if it holds, at the sure rate, more than this many times what the connection has under way, in
 * CROWDED_ROUNDS rounds in a row. Connections that share a path with the same rule would leave a queue to each other with a smaller
 * number. The phase Open then lasts for CROWDED_HOLD (us) at least.
 */
#define BW_FIT_CROWDED 4
#define BW_FIT_CROWDED_ROUNDS 2
#define BW_FIT_CROWDED_HOLD 16000000U
/* The sure rate is this connection's own once a round delivers one part in this many of it. */
#define BW_FIT_OWN 2
/* The first and the longest hold time of the phase Open (us). */
#define BW_FIT_HOLD 2000000U
#define BW_FIT_LONGEST_HOLD 64000000U
/* Each hold time lasts for at least this many round trips. */
#define BW_FIT_HOLD_TRIPS 48
/* Payload (bytes) in the send buffer beyond the bytes in flight: the part that hosts and devices hold back. */
#define BW_FIT_SLACK (96ULL << 10)
/*
 * A connection adopted after more than this many acknowledged bytes has its first flights behind it, and begins in
 * Open.
 */
#define BW_FIT_BEGUN (64 << 10)
/*
 * The highest roof (bytes per second): SO_MAX_PACING_RATE has 32 bits here, and all ones mean no bound. A roof of this height
 * is not set, because the path may carry more.
 */
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
	/*
	 * The rate that the path carried when it was last full, and the rate carried since (in Start and Open: the
	 * highest rate of a round); 0: not known.
	 */
	__u64 known;
	__u64 carried;
	/* Times (us) of the train's first acknowledgement and of the last one. */
	__u64 train_at;
	__u64 last_at;
	/* Begin of the present time window, and the rates in the last one and in the one before it. */
	__u64 window_at;
	__u64 window_rate;
	__u64 former_window_rate;
	/* Begin of the present round; end of the present hold time. */
	__u64 round_at;
	__u64 open_until;
	/* Time since which there has been a queue; 0: there is none. */
	__u64 queued_since;
	/* Segments delivered in total at the four times above: train_at, last_at, window_at, round_at. */
	__u32 train_segments;
	__u32 last_segments;
	__u32 window_segments;
	__u32 round_segments;
	/* The longest train: segments, time (us). */
	__u32 evidence;
	__u32 train_time;
	/* Begin of the longest train. The train that was the longest before it: rate, time; 0: there was none. */
	__u64 evidence_at;
	__u64 former_rate;
	__u32 former_time;
	/* Descents in a row that were taken for pauses. */
	__u32 doubts;
	/* Observations of the present train after its first. */
	__u32 observed;
	/* enum bw_fit_phase */
	__u32 phase;
	/* The next step upwards, 1024ths. */
	__u32 step;
	/*
	 * The queue (us) at the last descent, the time by which it should be shorter now (0: no descent to judge), and
	 * the number of descents in a row that did not shorten it.
	 */
	__u32 queue;
	__u32 expected;
	__u32 in_vain;
	/* The last hold time (us); 0: none so far. */
	__u32 hold;
	/* The application limited the sender in this round. */
	__u32 limited;
	/* Segments retransmitted by the begin of the round. */
	__u32 round_retransmitted;
	/* Number of descents of the roof. */
	__u32 descents;
	/* The shortest queue (us) in the present time window, and in the last one. */
	__u32 window_least;
	__u32 window_queue;
	/* The roof has just descended: the queue drains. */
	__u32 drains;
	/* Number of times that the phase Open began because descents failed. */
	__u32 opened;
	/* The allowed queue (us); the counter of temporary falls (BW_FIT_VARIES). */
	__u32 allowed;
	__u32 varies;
	/* The rate after the last fall; 0: no fall is being judged. The longest queue (us) and the rounds since. */
	__u64 fell_to;
	__u32 fell_queue;
	__u32 fell_rounds;
	/* The rate from which small falls are added up: the highest since the last large fall; 0: none. */
	__u64 slid_from;
	/*
	 * The longest distance in this train (us), and the segments delivered with it. Whether the train of C' came in
	 * bunches.
	 */
	__u32 gap;
	__u32 gap_segments;
	__u32 bunched;
	/* Whether a queue too long to be jitter was seen. */
	__u32 confirmed;
	/* The shortest queue (us) since time windows have the rate steady_rate. */
	__u32 steady_queue;
	/* T at the first sample, which is the handshake's (us). */
	__u32 first_rtt;
	__u64 steady_rate;
	/* The shortest queue (us) in the ramp, or since floor_rounds rounds; descents until then. */
	__u32 floor;
	__u32 floor_rounds;
	__u32 floor_descents;
	/*
	 * Rounds without a queue, in a row, in which the sender left a part of the roof unused although its congestion window
	 * allowed more.
	 */
	__u32 spare;
	/* Rounds in a row in which most of the queue was others' (BW_FIT_CROWDED_ROUNDS). */
	__u32 crowded;
	/* Whether bufwise has switched on the callback for each segment that arrives (late.h); of both directions. */
	__u32 asked;
	/*
	 * The fastest rate that two trains in a row have agreed on; 0: none, or a round has delivered a good part of it, so that
	 * the rate of the path has become this connection's own.
	 */
	__u64 sure;
};

/* Sample of a sender: times in us, mss in bytes. min_rtt 0: not measured yet. */
struct bw_fit_sample {
	__u64 now;
	__u64 mss;
	__u64 srtt;
	__u64 min_rtt;
	/* Congestion window (segments). */
	__u64 cwnd;
	/* Segments delivered so far, modulo 2^32. */
	__u32 delivered;
	/* Whether the application or the peer's window leaves the sender without data that it may send. */
	__u32 app_limited;
	/* Whether the congestion control paces by itself (neither CUBIC nor Reno). */
	__u32 paces_itself;
	/* Whether TCP paces, or may pace, below any congestion control: two windows per round trip in slow start. */
	__u32 paced;
	/* Segments retransmitted so far, modulo 2^32. */
	__u32 retransmitted;
	__u32 unused;
};

/*
 * Returns the queue (us): the round trip minus T, the allowed queue and the time of two segments at C'. Two segments,
 * because T may come from the small packets of the handshake, and an acknowledgement waits for a second segment.
 */
BW_FN __u64 bw_fit_queue(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 segments = s->capacity ? 2 * bw_segment(x->mss) * 1000000 / s->capacity : 0;

	return bw_min(bw_less(x->srtt, x->min_rtt + segments + s->allowed), BW_LONGEST);
}

/*
 * Returns the shortest queue (us) that counts. Shorter ones are jitter of clocks and hosts, or the connection's own bursts: a
 * paced TCP sends what its rate gives in a millisecond at once, and a segment waits for half of that on the mean.
 */
BW_FN __u64 bw_fit_threshold(const struct bw_fit_sample *x)
{
	return bw_max(bw_min(x->min_rtt, BW_LONGEST) / 64 + 500, 800);
}

/* Returns the longest delay (us) beyond T that may be jitter of a path on which trains tell something. */
BW_FN __u64 bw_fit_jitter(__u64 rtt)
{
	return rtt / BW_FIT_JITTER + 1000;
}

/*
 * Whether a path is jittery, so that trains tell nothing. Either of two delays shows it, if it exceeds bw_fit_jitter():
 * - the delay `queue` beyond T (us), less the half of `train_time` that slow start's own flights explain;
 * - the time by which the handshake's round trip `first_rtt` was longer than T.
 */
BW_FN int bw_fit_has_jitter(__u64 queue, __u64 train_time, __u64 first_rtt, __u64 rtt)
{
	__u64 beyond = bw_fit_jitter(rtt);

	return queue > train_time / 2 + beyond || bw_less(first_rtt, rtt) > beyond;
}

/* Begins to watch the shortest queue. */
BW_FN void bw_fit_begin_floor(struct bw_fit *s)
{
	s->floor = ~0U;
	s->floor_rounds = 0;
	s->floor_descents = s->descents;
}

/* Returns the rate (bytes per second) of `segments` in `time` (us). */
BW_FN __u64 bw_fit_rate(const struct bw_fit_sample *x, __u32 segments, __u64 time)
{
	return bw_rate(segments * bw_segment(x->mss), time);
}

/* Whether there is a roof that bounds the rate. */
BW_FN int bw_fit_bounds(const struct bw_fit *s)
{
	return s->roof && s->roof < BW_FIT_HIGHEST;
}

/* Sets the roof, within two segments per round trip and BW_FIT_HIGHEST. */
BW_FN void bw_fit_set(struct bw_fit *s, __u64 roof, const struct bw_fit_sample *x)
{
	__u64 least = bw_fit_rate(x, 2, x->srtt);

	s->roof = bw_min(bw_max(roof, least), BW_FIT_HIGHEST);
}

/*
 * Whether `amount` (bytes or segments) in `time` (us) came in bunches, because of jitter or a host that holds segments
 * back: without the longest gap `gap` (us), and the `gap_amount` that ended it, the rate would be more than a third higher.
 */
BW_FN int bw_fit_is_bunched(__u64 amount, __u64 time, __u64 gap_amount, __u64 gap)
{
	amount = bw_min(amount, BW_LONGEST);
	time = bw_min(time, BW_LONGEST);
	return bw_less(amount, gap_amount) * time * 3 > amount * bw_less(time, gap) * 4;
}

/* Raises the allowed queue to `queue` (us) and adds a step of T / 32. The allowed queue is at most half of T. */
BW_FN void bw_fit_allow(struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue)
{
	__u64 rtt = bw_min(x->min_rtt, BW_LONGEST);

	s->allowed = bw_min(bw_max(s->allowed, queue) + rtt / BW_FIT_ALLOWED_STEP, rtt / BW_FIT_LARGEST_ALLOWED);
}

/* Begins a round, and a time window with it. */
BW_FN void bw_fit_begin_round(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->round_at = x->now;
	s->round_segments = x->delivered;
	s->round_retransmitted = x->retransmitted;
	s->limited = x->app_limited;
	s->window_at = x->now;
	s->window_segments = x->delivered;
}

/* Enters the phase Follow with the present roof. */
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
	bw_fit_begin_floor(s);
	bw_fit_begin_round(s, x);
}

_Static_assert(sizeof(struct bw_fit) == 296, "the Rust twin has 296 bytes");

#endif
