/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Bounds the memory of a send buffer, whatever rule sizes it.
 *
 * Problem: the send rules follow the congestion window, and a loss-based window grows until the queue of its path is
 * full. Linux's autotuning stops at the maximum of tcp_wmem, 4 MB by default, and so bounds the queue by chance. A rule
 * without that maximum fills the queue for every flow behind it, and holds several windows of memory besides.
 *
 * Source: ours. The rate as the largest recent delivery rate, and the end of growth, are from BBR (Cardwell 2016).
 *
 * Terms: R is the largest recent delivery rate (bytes/s), T the shortest round-trip time (us). A sender alone on its
 * path needs R * T under way. The *lean* bound is memory for two R * T (5/2 R * T, because 4/5 of the memory are
 * payload) and a slack; while R grows, for four. The *usual* bound is what the kernel's autotuning would have allowed:
 * memory for the window, within the maximum of tcp_wmem.
 *
 * Rule:
 * - The lean bound holds as long as it costs no rate. A sender alone on its path keeps its rate within it, and its
 *   queue at most doubles the round trip.
 * - If the rate falls below 7/8 of R while there is a queue, either the queue belongs to other flows (a loss-based flow
 *   would take the whole path from a sender with two R * T), or the path has changed. In both cases the bound rises to
 *   the usual one, under which the connection competes as the kernel would. The bound need not bind for this: otherwise
 *   it would descend on a newcomer while others' queue keeps the newcomer's window small.
 * - The bound also rises if it binds and the round trip stays longer than R takes for the payload of the lean bound.
 * - After a while R is measured anew and the bound descends by 1/8 at a time. If that costs rate, the bound rises again
 *   at once; after each failure the next attempt comes later.
 * - The bound also rises when a buffer that was full runs empty: a writer that comes late needs more than its path
 *   does.
 * - Without a queue the lean bound gains nothing, and the usual bound holds.
 *
 * Properties kept: the bound never falls while the application limits the sender, and no pause reduces R. Without a
 * measured rate there is no bound. The bound is never below the slack.
 */
#ifndef BUFWISE_BOUND_H
#define BUFWISE_BOUND_H

#include "send.h"

/* The lean bound's memory, in halves of R * T: 5/4 of the payload of two R * T. */
#define BW_BOUND_LEAN 5
/*
 * Slack for the start and for delays of hosts and devices: 256 KB less the 64 KB buffer that a writer fills to its end.
 */
#define BW_BOUND_SLACK (192ULL << 10)
/* Smallest T (us): below this the delays of hosts exceed those of the path. */
#define BW_BOUND_SHORTEST 5000ULL
/* A measurement takes this many shortest round-trip times, and at least the present one. */
#define BW_BOUND_ROUNDS 4
/* The rate grows as long as one of this many measurements exceeds all before by 1/4 (BBR's end of startup). */
#define BW_BOUND_PATIENCE 3
/* The rate still rises as long as one of this many measurements exceeds all before by 1/32. */
#define BW_BOUND_RISING 4
#define BW_BOUND_RISE 32
/* The rate has fallen after this many measurements in a row below 7/8 of R. */
#define BW_BOUND_FALLEN 2
/*
 * While the bound descends, a queue of the connection's own drains: each measurement finds a round trip at least 1/16
 * shorter than the last.
 */
#define BW_BOUND_DRAINS 16
/* The kernel's memory per congestion window: 3.2 windows on 6.18, rounded up to a factor that loses no throughput. */
#define BW_BOUND_USUAL 4
/* There is no queue after this many measurements in a row without one. */
#define BW_BOUND_EMPTY 2
/* A buffer has run empty if it holds less than 1/4 of its limit. */
#define BW_BOUND_RUN_EMPTY 4
/* R is the largest rate of this period and of the one before; a period counts only time with data to send (us). */
#define BW_BOUND_PERIOD 8000000ULL
/* How long the usual bound holds (us): at first, and at most. Each failed attempt doubles the time. */
#define BW_BOUND_HOLD 2000000U
#define BW_BOUND_LONGEST_HOLD 64000000U

struct bw_bound {
	/* Largest rates of this period and of the one before, and the last rate, bytes per second; 0: none yet. */
	__u64 rate;
	__u64 rate_before;
	__u64 rate_last;
	/* Time of this period in which there was data to send (us). */
	__u64 period;
	/* Begin of the measurement (us); 0: none yet. */
	__u64 began_at;
	/* The bound (memory); 0: none yet. */
	__u64 memory;
	/* When the usual bound ends (us); 0: the lean bound holds. */
	__u64 usual_until;
	/* The smoothed round-trip time at the last measurement (us). */
	__u64 srtt_before;
	/* How long the usual bound will hold the next time (us); 0: BW_BOUND_HOLD. */
	__u32 hold;
	/* At the begin of the measurement: segments delivered, and whether the application limited the sender. */
	__u32 began_delivered;
	__u32 began_limited;
	/* Measurements since the rate last grew by 1/4; measurements in a row in which it had fallen. */
	__u32 since_growth;
	__u32 fallen;
	/* Measurements since the rate last rose by 1/32; in a row without a queue. Each stops counting at its limit. */
	__u32 since_rise;
	__u32 empty;
	/* A sample found the bound binding and the application with data to send. */
	__u32 was_full;
};

/* Sizes are bytes, times microseconds. */
struct bw_bound_sample {
	__u64 now;
	__u64 mss;
	__u64 cwnd;
	__u64 srtt;
	/* 0: not known; then there is no bound. */
	__u64 min_rtt;
	/* The most that the kernel's autotuning would have allowed (memory). */
	__u64 usual;
	/* Memory: what the send queue holds, and its limit. */
	__u64 send_queued;
	__u64 sndbuf;
	/* Segments delivered so far, modulo 2^32. */
	__u32 delivered;
	/* The application left the sender without data. */
	__u32 app_limited;
};

/* Returns R (bytes per second); 0: not known. */
BW_FN __u64 bw_bound_rate(const struct bw_bound *s)
{
	return bw_max(s->rate, s->rate_before);
}

/* Whether the rate still grows by 1/4. */
BW_FN int bw_bound_grows(const struct bw_bound *s)
{
	return s->since_growth < BW_BOUND_PATIENCE;
}

/* Whether the queue exceeds 1/4 of the shortest round trip and a millisecond. */
BW_FN int bw_bound_is_queued(const struct bw_bound_sample *x)
{
	return x->srtt > x->min_rtt + x->min_rtt / 4 + 1000;
}

/* Returns the usual bound (memory): what the kernel's autotuning would have allowed. */
BW_FN __u64 bw_bound_usual(const struct bw_bound_sample *x)
{
	return bw_min(x->usual, bw_times(bw_min(x->cwnd, BW_MOST_BYTES), BW_BOUND_USUAL) + BW_BOUND_SLACK);
}

/* Returns the lean bound: memory for two R * T, and the slack. */
BW_FN __u64 bw_bound_lean(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 product = bw_product(bw_min(bw_bound_rate(s), BW_FASTEST), bw_max(x->min_rtt, BW_BOUND_SHORTEST));

	return product * BW_BOUND_LEAN / 2 + BW_BOUND_SLACK;
}

/*
 * Returns the bound (memory) that R, T and the queue call for. A rate that no longer grows by 1/4 but still rises gets
 * the room of a growing one, within what the kernel would have given: that costs other flows no more than the kernel
 * does.
 */
BW_FN __u64 bw_bound_wanted(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 lean = bw_bound_lean(s, x), growing = 2 * lean - BW_BOUND_SLACK;

	if (bw_bound_grows(s) && !bw_bound_is_queued(x))
		return growing;
	if (s->usual_until || s->empty >= BW_BOUND_EMPTY)
		return bw_max(lean, bw_bound_usual(x));
	return s->since_rise < BW_BOUND_RISING ? bw_max(lean, bw_min(growing, x->usual)) : lean;
}

/* Whether the bound binds: the congestion window exceeds half of it. */
BW_FN int bw_bound_binds(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	return bw_times(x->cwnd, 2) > s->memory;
}

/*
 * Whether the queue belongs to other flows: the round trip is longer than the lean bound's payload takes at rate R, and
 * does not become shorter.
 */
BW_FN int bw_bound_is_others(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	return bw_product(bw_min(bw_bound_rate(s), BW_FASTEST), x->srtt) * 5 > bw_bound_lean(s, x) * 4 &&
	       x->srtt >= s->srtt_before - s->srtt_before / BW_BOUND_DRAINS;
}

/* Whether the lean bound costs rate: there is a queue, and the rate has fallen or the bound binds in other flows' queue. */
BW_FN int bw_bound_has_fallen(const struct bw_bound *s, const struct bw_bound_sample *x, __u64 rate)
{
	if (!bw_bound_is_queued(x))
		return 0;
	return rate < bw_bound_rate(s) - bw_bound_rate(s) / 8 || (bw_bound_binds(s, x) && bw_bound_is_others(s, x));
}

/* Starts the usual bound's time, and doubles the next one. */
BW_FN void bw_bound_begin_usual(struct bw_bound *s, __u64 now)
{
	__u32 hold = s->hold ? s->hold : BW_BOUND_HOLD;

	s->usual_until = now + hold;
	s->hold = bw_min(2ULL * hold, BW_BOUND_LONGEST_HOLD);
	s->fallen = 0;
	s->was_full = 0;
}

/* Evaluates one measurement, of `elapsed` us, in which the sender always had data. */
BW_FN void bw_bound_follow(struct bw_bound *s, const struct bw_bound_sample *x, __u64 rate, __u64 elapsed)
{
	if (bw_bound_grows(s)) {
		s->since_growth++;
		/* When growth ends, drop the rates of the start's bursts. */
		if (!bw_bound_grows(s)) {
			s->rate = bw_max(rate, s->rate_last);
			s->rate_before = 0;
			s->memory = 0;
		}
	} else if (!s->usual_until) {
		s->fallen = bw_bound_has_fallen(s, x, rate) ? s->fallen + 1 : 0;
		if (s->fallen >= BW_BOUND_FALLEN) {
			bw_bound_begin_usual(s, x->now);
			s->rate = rate;
			s->rate_before = 0;
			s->period = 0;
		}
	}
	s->empty = bw_bound_is_queued(x) ? 0 : bw_min(s->empty + 1, BW_BOUND_EMPTY);
	s->period += elapsed;
	if (s->period >= BW_BOUND_PERIOD) {
		s->period = 0;
		s->rate_before = s->rate;
		s->rate = rate;
		if (!s->usual_until)
			s->hold = 0;
	}
}

/* Ends a measurement of `elapsed` us. Smaller segments count as BW_MSS, because they take about as much memory. */
BW_FN void bw_bound_measure(struct bw_bound *s, const struct bw_bound_sample *x, __u64 elapsed)
{
	__u64 segments = x->delivered - s->began_delivered;
	__u64 segment = bw_min(bw_max(x->mss, BW_MSS), 1 << 16), bytes = bw_min(segments * segment, BW_MOST_BYTES);
	__u64 rate = bytes * 1000000 / elapsed, largest = bw_bound_rate(s);

	if (rate > largest + largest / BW_BOUND_RISE)
		s->since_rise = 0;
	else if (s->since_rise < BW_BOUND_RISING)
		s->since_rise++;
	if (bw_bound_grows(s) && rate > largest + largest / 4)
		s->since_growth = 0;
	else if (!x->app_limited && !s->began_limited)
		bw_bound_follow(s, x, rate, elapsed);
	s->rate = bw_max(s->rate, rate);
	s->rate_last = rate;
	s->srtt_before = x->srtt;
}

/*
 * Moves the bound to `wanted`: down by 1/8 at most, up at once if by more than 1/16; both at once while the rate grows.
 */
BW_FN void bw_bound_move(struct bw_bound *s, __u64 wanted)
{
	if (!s->memory || bw_bound_grows(s) || wanted > s->memory + s->memory / 16)
		s->memory = wanted;
	else
		s->memory = bw_max(bw_min(wanted, s->memory), s->memory - s->memory / 8);
}

/* Starts the usual bound when a buffer that was full has run empty: it is too small for a writer that comes late. */
BW_FN void bw_bound_watch_writer(struct bw_bound *s, const struct bw_bound_sample *x)
{
	if (bw_bound_grows(s) || s->usual_until || !s->memory)
		return;
	if (!x->app_limited && bw_bound_binds(s, x))
		s->was_full = 1;
	else if (s->was_full && bw_times(x->send_queued, BW_BOUND_RUN_EMPTY) < x->sndbuf)
		bw_bound_begin_usual(s, x->now);
}

/*
 * Returns the length of a measurement (us). While the rate grows, 7/8 of a round trip, for callbacks come once per
 * round trip.
 */
BW_FN __u64 bw_bound_span(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 rtt = bw_max(bw_min(x->min_rtt, BW_LONGEST), 1);

	if (bw_bound_grows(s))
		return rtt - rtt / 8;
	return bw_max(BW_BOUND_ROUNDS * rtt, x->srtt);
}

/* Takes in a sample; returns the memory that the send buffer may hold. BW_NO_LIMIT: no bound. */
BW_FN __u64 bw_bound_observe(struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 elapsed = bw_less(x->now, s->began_at);

	if (!x->min_rtt)
		return BW_NO_LIMIT;
	bw_bound_watch_writer(s, x);
	if (s->began_at && elapsed < bw_bound_span(s, x))
		return s->memory ? s->memory : BW_NO_LIMIT;
	if (s->began_at)
		bw_bound_measure(s, x, elapsed);
	s->began_at = x->now;
	s->began_delivered = x->delivered;
	s->began_limited = x->app_limited;
	if (!bw_bound_rate(s))
		return BW_NO_LIMIT;
	if (s->usual_until && x->now >= s->usual_until) {
		s->usual_until = 0;
		s->memory = bw_min(s->memory, bw_bound_usual(x));
	}
	bw_bound_move(s, bw_bound_wanted(s, x));
	return s->memory;
}

_Static_assert(sizeof(struct bw_bound) == 96, "the Rust twin has 96 bytes");

#endif
