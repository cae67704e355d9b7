/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The fast path: decides whether a callback takes a sample.
 *
 * Problem: callbacks are frequent (once per round trip for a sender, about once per acknowledgement for a receiver),
 * and most change nothing. Cache misses make up most of their cost: a callback of a busy sender took 2.4 us, of which
 * finding the record in its map took 0.9 to 1.5 us. Finding the socket's own storage takes a tenth of that. So this
 * storage holds the figures that tell whether a sample is due, in one cache line (64 bytes, of which the kernel's header
 * takes 8), and the record is read only when one is due.
 *
 * Properties kept: a change that alters a decision of the send rule is noticed at the next callback (congestion window,
 * losses under SABT, whether the application limits the sender, a buffer that was set) or, if it comes from user space,
 * within BW_LONGEST_REST. The memory of a busy connection's send queue is known within a factor of two and one buffer.
 * Under pressure every round trip is sampled.
 */
#ifndef BUFWISE_FAST_H
#define BUFWISE_FAST_H

#include "rules.h"

/* Longest time (us) between samples of a connection that moves data. */
#define BW_LONGEST_REST 100000
/* Shortest time (us) after a sample at which a change of the queue calls for the next. */
#define BW_SHORTEST_REST 1000
/* Largest buffer (bytes) that a writer fills at once; some devices have larger ones. */
#define BW_BUFFER 65536
/* bw_fast.next_window of a connection that another program has taken: never sample. */
#define BW_NEVER (~0ULL)
/* bw_fast.next_window of a connection without a record, such as another group's: no sample until it is adopted. */
#define BW_UNTIL_ADOPTED (~0ULL - 1)
/*
 * bw_fast.next_window of a connection that has closed: no sample until its socket is connected again and has another record.
 * Until then `sndbuf` and `send_queued` are the limits of the send and the receive buffer that bufwise has set; 0: none.
 */
#define BW_CLOSED (~0ULL - 2)
/* Receive rules: shortest time between samples (us). SOBAS: samples per round trip, at most BW_SLOT apart. */
#define BW_WINDOW_SHORTEST 500
#define BW_WINDOW_SAMPLES 4
/* fit at the receiver: samples per round trip of the ramp. */
#define BW_FIT_WINDOW_RAMP_SAMPLES 32
/*
 * Send buffer (memory) that the kernel gives a connection right after ESTABLISHED: 87 KB on Ethernet, rounded up.
 */
#define BW_INITIAL_SNDBUF (128U << 10)
/* fit at the receiver stops timing trains after this many segments without a useful train. */
#define BW_FIT_WINDOW_SEGMENTS_SEEN 4096
/* The first window that a receiver offers (bytes). */
#define BW_FIRST_WINDOW 65535
/* A receiver rests after this many round trips with little. ssh and git exchange fewer small messages before their data. */
#define BW_ROUNDS_OF_LITTLE 256

/* The fast path's figures of a connection, in the storage of its socket. Times are us; all zero for a new connection. */
struct bw_fast {
	/* The receive side: when the next sample is due; or BW_NEVER, BW_UNTIL_ADOPTED, BW_CLOSED. */
	__u64 next_window;
	/* The send side: when the last sample was taken; 0: the next round trip needs a sample. */
	__u64 sampled_at;
	/* When a round trip was last measured. */
	__u64 rtt_at;
	/* Window clamp that was set, or that stays as the last sample has found it (bytes); 0: none. */
	__u32 clamp;
	/* sk_sndbuf at the last sample. */
	__u32 sndbuf;
	/* Range of congestion windows, segments, for which the decision stands; no upper end while app_limited. */
	__u32 least_cwnd;
	__u32 most_cwnd;
	/* The application limited the sender at the last sample. */
	__u16 app_limited;
	/* Round trips in a row with little received, BW_ROUNDS_OF_LITTLE at most. */
	__u16 rounds;
	/* Payload received (modulo 2^32) by the last measured round trip, or by the last sample that found more than little. */
	__u32 received;
	/* Memory that the send queue held, and retransmissions, at the last sample. */
	__u32 send_queued;
	__u32 retransmitted;
};

_Static_assert(sizeof(struct bw_fast) <= 56, "a cache line less the kernel's head");

/* The present state of a sender, read from its socket. */
struct bw_fast_view {
	__u64 now;
	__u32 cwnd;
	__u32 sndbuf;
	__u32 send_queued;
	__u32 retransmitted;
	/* The application limits the sender (bw_application_limits()). */
	__u32 app_limited;
};

/* The data that a connection without a record has moved, and the sizes of its buffers; all are read from its socket. */
struct bw_unrecorded {
	/* Payload that the application has written (acknowledged, under way or waiting), and payload received. */
	__u64 written;
	__u64 received;
	/* Payload of the largest segment received. */
	__u64 segment;
	/* Limits of both buffers (memory). */
	__u32 sndbuf;
	__u32 rcvbuf;
};

/* Whether a segment of this payload makes a record due, because the receive rule times the first flight's segments. */
BW_FN int bw_is_full_segment(const volatile struct bw_config *c, __u64 segment)
{
	return c->record_at_segment && segment >= c->record_at_segment;
}

/* Whether the receive share is less than the buffer (memory). */
BW_FN int bw_is_window_short(const volatile struct bw_control *all, __u64 rcvbuf)
{
	return bw_times(all->window_level, 2) < rcvbuf;
}

/*
 * Whether a new connection needs a record: it moves config.record_after in one direction, or is the receiver of full
 * segments, or a share is less than a buffer that the kernel gives it.
 */
BW_FN int bw_is_record_due(const volatile struct bw_config *c, const volatile struct bw_control *all,
			   const struct bw_unrecorded *v)
{
	if (v->written >= c->record_after || v->received >= c->record_after || all->pressure)
		return 1;
	if (bw_is_full_segment(c, v->segment))
		return 1;
	return all->newcomer_level < bw_max(v->sndbuf, BW_INITIAL_SNDBUF) || bw_is_window_short(all, v->rcvbuf);
}

/* Whether the queue has become empty, or has changed by more than a factor of two and one buffer. */
BW_FN int bw_is_queue_other(__u64 before, __u64 now)
{
	return (before && !now) || before > 2 * now + BW_BUFFER || now > 2 * before + BW_BUFFER;
}

/* Whether a round trip needs a sample. */
BW_FN int bw_is_round_due(const volatile struct bw_config *c, const struct bw_fast *g, const struct bw_fast_view *v)
{
	__u64 rested = v->now - g->sampled_at;

	if (rested >= BW_LONGEST_REST)
		return 1;
	if (rested >= BW_SHORTEST_REST && bw_is_queue_other(g->send_queued, v->send_queued))
		return 1;
	if (c->send_rule == BW_SEND_KERNEL)
		return 0;
	if (c->send_rule == BW_SEND_SABT && v->retransmitted != g->retransmitted)
		return 1;
	return v->cwnd < g->least_cwnd || v->cwnd > g->most_cwnd || v->sndbuf != g->sndbuf ||
	       (g->app_limited && !v->app_limited);
}

/* Computes, after a sample, for which congestion windows the next round trips need no sample. */
BW_FN void bw_rest_rounds(const volatile struct bw_config *c, const volatile struct bw_control *all,
			  struct bw_fast *g, const struct bw_flow *f)
{
	const struct bw_send_sample x = {
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.app_limited = f->app_limited,
	};
	__u64 mss = bw_mss(f->mss), target = f->abt.net_target;

	g->sampled_at = f->sampled_at;
	g->sndbuf = f->sndbuf;
	g->send_queued = f->send_queued;
	g->retransmitted = f->retrans;
	g->app_limited = 0;
	g->least_cwnd = 0;
	g->most_cwnd = ~0U;
	if (c->send_rule == BW_SEND_KERNEL || c->send_rule == BW_SEND_FIXED)
		return;
	if (all->pressure || f->bytes_acked < c->small_document) {
		g->sampled_at = 0;
		return;
	}
	/*
	 * The edges of ABT's band: every remaining rule follows it, if only for pacing or for when user space is gone.
	 */
	g->least_cwnd = (target / BW_ABT_HIGH + mss - 1) / mss;
	g->app_limited = !c->published && bw_application_limits(&x);
	if (!g->app_limited && target < c->max_send)
		g->most_cwnd = target / BW_ABT_LOW / mss;
	/* fit needs a sample each round trip: it judges its roof every second one. */
	if (c->send_rule == BW_SEND_FIT && f->fit.phase > BW_FIT_RAMP)
		g->sampled_at = 0;
	/* The bound needs a sample each round trip while the start doubles the rate (bound.h). */
	if (!c->published && !g->app_limited && bw_bound_grows(&f->bound))
		g->sampled_at = 0;
}

/*
 * Whether a segment needs a sample: one is due by time, or the clamp was overwritten. A receiver that makes no progress is
 * sampled, too, because arriving data may find no room in its buffer.
 */
BW_FN int bw_is_window_due(const struct bw_fast *g, __u64 now, __u32 window_clamp)
{
	return now >= g->next_window || (g->clamp && window_clamp != g->clamp);
}

/*
 * Whether more than little has been received since g->received was noted. Little is at most a sender's initial window, and
 * at most the first window that a receiver offers: a connection needs no larger window for it.
 */
BW_FN int bw_is_more_than_little(const struct bw_fast *g, __u32 received, __u32 advmss)
{
	return received - g->received > bw_min(BW_INITIAL_WINDOW * bw_min(advmss, BW_FIRST_WINDOW), BW_FIRST_WINDOW);
}

/* Whether a receiver that has kept the kernel's window has received more than little, so that a sample is due. */
BW_FN int bw_is_burst(const struct bw_fast *g, __u32 received, __u32 advmss)
{
	return !g->clamp && bw_is_more_than_little(g, received, advmss);
}

/* A receiver's callback for each segment stays as it is, is switched on, or is switched off (rest). */
enum bw_watch { BW_WATCH_AS_BEFORE, BW_WATCH, BW_REST };

/*
 * Counts the round trips with little in a row, and returns what the callback should do next. It is called for each
 * measured round trip.
 */
BW_FN enum bw_watch bw_count_round(struct bw_fast *g, __u32 received, __u32 advmss)
{
	int more = bw_is_more_than_little(g, received, advmss);

	g->received = received;
	if (more || g->clamp) {
		g->rounds = 0;
		return BW_WATCH;
	}
	if (g->rounds >= BW_ROUNDS_OF_LITTLE)
		return BW_REST;
	g->rounds++;
	return BW_WATCH_AS_BEFORE;
}

/* Returns the time to the next sample of fit at the receiver (us). */
BW_FN __u64 bw_fit_window_distance(const struct bw_flow *f, __u64 rtt)
{
	if (rtt >= BW_FIT_SHORTEST && (f->fit_window.phase == BW_FIT_RAMP || f->arrivals.behind))
		return bw_max(bw_min(rtt / BW_FIT_WINDOW_RAMP_SAMPLES, BW_SLOT), BW_FIT_WINDOW_CLOSEST);
	if (rtt < BW_FIT_SHORTEST || f->fit_window.phase >= BW_FIT_FOLLOW ||
	    (f->fit_window.phase == BW_FIT_START && f->segs_in > BW_FIT_WINDOW_SEGMENTS_SEEN))
		return bw_max(bw_min(rtt / BW_WINDOW_SAMPLES, BW_LONGEST_REST), BW_WINDOW_SHORTEST);
	/* A first flight may last for less than half a millisecond: each of its segments counts. */
	if (f->segs_in < BW_FIT_WINDOW_FIRST_FLIGHT)
		return 0;
	return bw_fit_window_tick(rtt);
}

/*
 * Returns when the next sample of the receive rule is due (us). SOBAS takes several per round trip, because it also
 * counts losses.
 */
BW_FN __u64 bw_next_window(const volatile struct bw_config *c, const struct bw_flow *f, __u64 now)
{
	__u64 rtt = bw_unloaded_rtt(f), next = now + bw_min(rtt / BW_WINDOW_SAMPLES, BW_SLOT), due;

	if (c->receive_rule == BW_RECEIVE_FIT)
		return now + bw_fit_window_distance(f, rtt);
	if (c->receive_rule == BW_RECEIVE_SOBAS) {
		due = f->sobas.start + f->sobas.length;
		next = due > now ? bw_min(due, next) : next;
	} else {
		due = f->drs.began_at + rtt;
		next = due > now ? bw_min(due, now + BW_LONGEST_REST) : next;
	}
	return bw_max(next, now + BW_WINDOW_SHORTEST);
}

#endif
