/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * How much memory a send buffer may hold at all, whatever rule sizes it.
 *
 * Problem: the send rules follow the congestion window, and before a deep queue a loss-based window grows until the queue
 * is full. Linux's own autotuning ends at the maximum of tcp_wmem, 4 MB by default, and so bounds the queue by chance;
 * a rule without that maximum fills the queue for everybody behind it, and holds several windows of memory besides.
 *
 * Terms: R is the largest delivery rate seen lately, T the shortest round-trip time. A sender alone on its path needs R * T
 * under way. The *lean* bound is memory for two of these (5/2 R T, for four fifths of the memory are payload) and a
 * slack; while R grows, for four. The *usual* bound is what the kernel's autotuning would have allowed, for the window and
 * at most.
 *
 * Rule: the lean bound, as long as it costs nothing. Alone on a path, a sender within the lean bound keeps its rate, and
 * its queue makes the round trip twice as long at most. If the rate falls below 7/8 of R while there is a queue, then
 * either that queue is others' (a loss-based flow would take the whole path from a sender that keeps to two R T), or the
 * path has changed. Which of the two does not matter: the bound rises to the usual one, under which the connection
 * competes as the kernel would. The bound need not bind by then: a newcomer whose window is still small in others' queue
 * would else find a bound that had descended meanwhile. It rises, too, where it binds and the round trip stays longer than
 * R takes for the payload of the lean bound. After a while R is measured anew and the bound descends, an eighth at a time, and
 * rises again at once if that costs rate; each time that it does, the next attempt comes later. The same holds for a
 * writer that comes late, so that a buffer that was full runs empty: it needs more than its path. And where there is no queue
 * the lean bound has nothing to gain, and the usual one holds.
 *
 * Properties kept: the bound never falls while the application limits the sender, and no pause makes R smaller. Without a
 * measured rate there is no bound. It is never below the slack.
 */
#ifndef BUFWISE_BOUND_H
#define BUFWISE_BOUND_H

#include "send.h"

/* Memory for two times R * T, in halves of these; while the rate grows, for four. */
#define BW_BOUND_LEAN 5
/* For the start, and for what hosts and devices hold back: 256 KB less the buffer that a writer fills to its end. */
#define BW_BOUND_SLACK (192ULL << 10)
/* Below this (us) the hosts' own delays count for more than the path's. */
#define BW_BOUND_SHORTEST 5000ULL
/* A measurement takes so many of the shortest round-trip times, and at least the present one. */
#define BW_BOUND_ROUNDS 4
/* The rate grows as long as one of so many measurements exceeds all before by a quarter (as BBR ends its start). */
#define BW_BOUND_PATIENCE 3
/* The rate still rises as long as one of so many measurements exceeds all before by a 32nd. */
#define BW_BOUND_RISING 4
#define BW_BOUND_RISE 32
/* The rate counts as fallen below 7/8 of R, in so many measurements one after the other. */
#define BW_BOUND_FALLEN 2
/* An own queue drains by a part of so many, at least, from one measurement to the next while the bound descends. */
#define BW_BOUND_DRAINS 16
/* Memory per window that the kernel gives: 3.2 of 6.18's, rounded up to what loses no rate (ABT's lower edge). */
#define BW_BOUND_USUAL 4
/* There is no queue if so many measurements one after the other find none. */
#define BW_BOUND_EMPTY 2
/* A buffer has run empty if it holds less than this share of its limit. */
#define BW_BOUND_RUN_EMPTY 4
/* R is the largest of this period of data and of the one before (us). */
#define BW_BOUND_PERIOD 8000000ULL
/* The usual bound holds for so long at first, and at most (us). */
#define BW_BOUND_HOLD 2000000U
#define BW_BOUND_LONGEST_HOLD 64000000U

struct bw_bound {
	/* Largest rates of this period and of the one before, and the last one, bytes per second. */
	__u64 rate;
	__u64 rate_before;
	__u64 rate_last;
	/* Time of this period in which there was data to send. */
	__u64 period;
	/* Begin of the measurement. */
	__u64 began_at;
	/* The bound (memory); 0: none yet. */
	__u64 memory;
	/* The usual bound holds until then; 0: the lean one does. */
	__u64 usual_until;
	/* The smoothed round-trip time at the last measurement. */
	__u64 srtt_before;
	/* How long the usual bound will hold the next time; 0: BW_BOUND_HOLD. */
	__u32 hold;
	/* At the begin of the measurement: segments delivered, and whether the application limited the sender. */
	__u32 began_delivered;
	__u32 began_limited;
	/* Measurements since the rate last grew by a quarter, and in a row in which it had fallen. */
	__u32 since_growth;
	__u32 fallen;
	/* Measurements since the rate last rose, and in a row without a queue. */
	__u32 since_rise;
	__u32 empty;
	/* The bound was seen to bind with a buffer that was full. */
	__u32 was_full;
};

struct bw_bound_sample {
	__u64 now;
	__u64 mss;
	__u64 cwnd;
	__u64 srtt;
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

BW_FN __u64 bw_bound_rate(const struct bw_bound *s)
{
	return bw_max(s->rate, s->rate_before);
}

BW_FN int bw_bound_grows(const struct bw_bound *s)
{
	return s->since_growth < BW_BOUND_PATIENCE;
}

/* There is more of a queue than a fourth of the shortest round trip, and a millisecond. */
BW_FN int bw_bound_is_queued(const struct bw_bound_sample *x)
{
	return x->srtt > x->min_rtt + x->min_rtt / 4 + 1000;
}

/* The buffer that the kernel's autotuning would have allowed. */
BW_FN __u64 bw_bound_usual(const struct bw_bound_sample *x)
{
	return bw_min(x->usual, bw_times(bw_min(x->cwnd, BW_MOST_BYTES), BW_BOUND_USUAL) + BW_BOUND_SLACK);
}

/* Memory for two R T. */
BW_FN __u64 bw_bound_lean(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 product = bw_product(bw_min(bw_bound_rate(s), BW_FASTEST), bw_max(x->min_rtt, BW_BOUND_SHORTEST));

	return product * BW_BOUND_LEAN / 2 + BW_BOUND_SLACK;
}

/*
 * Memory by R and T. A rate that no longer doubles and still rises gets the room of one that grows, too, as far as the
 * kernel would have given that much: there it costs nobody anything.
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

/* A window is more than half of the bound. */
BW_FN int bw_bound_binds(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	return bw_times(x->cwnd, 2) > s->memory;
}

/* The round trip is longer than R takes for the payload of the lean bound, and becomes no shorter: the queue is others'. */
BW_FN int bw_bound_is_others(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	return bw_product(bw_min(bw_bound_rate(s), BW_FASTEST), x->srtt) * 5 > bw_bound_lean(s, x) * 4 &&
	       x->srtt >= s->srtt_before - s->srtt_before / BW_BOUND_DRAINS;
}

/* There is a queue, and the rate has fallen, or the bound binds and the queue is others'. */
BW_FN int bw_bound_has_fallen(const struct bw_bound *s, const struct bw_bound_sample *x, __u64 rate)
{
	if (!bw_bound_is_queued(x))
		return 0;
	return rate < bw_bound_rate(s) - bw_bound_rate(s) / 8 || (bw_bound_binds(s, x) && bw_bound_is_others(s, x));
}

BW_FN void bw_bound_begin_usual(struct bw_bound *s, __u64 now)
{
	__u32 hold = s->hold ? s->hold : BW_BOUND_HOLD;

	s->usual_until = now + hold;
	s->hold = bw_min(2ULL * hold, BW_BOUND_LONGEST_HOLD);
	s->fallen = 0;
	s->was_full = 0;
}

/* One measurement of a sender that had data for all of its time. */
BW_FN void bw_bound_follow(struct bw_bound *s, const struct bw_bound_sample *x, __u64 rate, __u64 elapsed)
{
	if (bw_bound_grows(s)) {
		s->since_growth++;
		/* The start's bursts count no more. */
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

/* A smaller segment takes about as much memory as one of BW_MSS, and counts as such. */
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

/* Down an eighth at a time; up at once, but not for a sixteenth. While the rate grows, at once. */
BW_FN void bw_bound_move(struct bw_bound *s, __u64 wanted)
{
	if (!s->memory || bw_bound_grows(s) || wanted > s->memory + s->memory / 16)
		s->memory = wanted;
	else
		s->memory = bw_max(bw_min(wanted, s->memory), s->memory - s->memory / 8);
}

/* A writer that comes late lets a buffer run empty that was full: the bound was too tight for it. */
BW_FN void bw_bound_watch_writer(struct bw_bound *s, const struct bw_bound_sample *x)
{
	if (bw_bound_grows(s) || s->usual_until || !s->memory)
		return;
	if (!x->app_limited && bw_bound_binds(s, x))
		s->was_full = 1;
	else if (s->was_full && bw_times(x->send_queued, BW_BOUND_RUN_EMPTY) < x->sndbuf)
		bw_bound_begin_usual(s, x->now);
}

/* How long a measurement takes. While the rate grows, a round trip: callbacks come no more often. */
BW_FN __u64 bw_bound_span(const struct bw_bound *s, const struct bw_bound_sample *x)
{
	__u64 rtt = bw_max(bw_min(x->min_rtt, BW_LONGEST), 1);

	if (bw_bound_grows(s))
		return rtt - rtt / 8;
	return bw_max(BW_BOUND_ROUNDS * rtt, x->srtt);
}

/* The memory that the send buffer may hold; BW_NO_LIMIT: no bound. */
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
