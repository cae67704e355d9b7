/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The fast path: whether a callback has anything to do.
 *
 * Problem: callbacks are many (once per round trip where data is sent, about once per acknowledgement where it is
 * received), and most change nothing. Their cost is the memory that they touch and that nothing has touched since the
 * last one: of 2.4 us for a round trip of a busy sender, finding the record in its map took 0.9 to 1.5. The storage of
 * the socket itself is found for a tenth of that. So the figures that tell whether to take a sample lie there, in one
 * cache line (64 bytes, of which the kernel's own head takes 8), and the record is left alone until one is due.
 *
 * Properties kept: a change that would make a rule of the send side decide otherwise is noticed at the next callback
 * (congestion window, losses under SABT, whether the application limits, a buffer that was set) or, where it comes from
 * user space, within BW_LONGEST_REST. The memory that the queue of a busy connection holds is known within a factor of
 * two and a buffer. Under pressure every round trip is sampled.
 */
#ifndef BUFWISE_FAST_H
#define BUFWISE_FAST_H

#include "rules.h"

/* Figures of a connection that moves data are no older than this (us). */
#define BW_LONGEST_REST 100000
/* A change of the queue counts no sooner than this (us) after the last sample. */
#define BW_SHORTEST_REST 1000
/* Largest buffer that a writer fills at once, but for devices with larger ones. */
#define BW_BUFFER 65536
/* bw_fast.next_window of a connection that is another program's: never. */
#define BW_NEVER (~0ULL)
/* The same of one without a record, as those of another group: not until it is adopted. */
#define BW_UNTIL_ADOPTED (~0ULL - 1)
/* The receive rules take samples no closer than this (us); SOBAS so many per round trip, no further apart than a slot. */
#define BW_WINDOW_SHORTEST 500
#define BW_WINDOW_SAMPLES 4
/* fit at the receiver looks at trains until it knows the capacity: this often per round trip, at these distances (us). */
#define BW_FIT_WINDOW_START_SAMPLES 128
#define BW_FIT_WINDOW_RAMP_SAMPLES 32
#define BW_FIT_WINDOW_CLOSEST 100
#define BW_FIT_WINDOW_FURTHEST 1000
/* So many segments without a train that tells, and it looks no longer. */
#define BW_FIT_WINDOW_SEGMENTS_SEEN 4096

struct bw_fast {
	/* The receive side: when a sample is due. */
	__u64 next_window;
	/* The send side: when the last sample was taken; 0: the next round trip needs one. */
	__u64 sampled_at;
	/* When a round trip was last measured. */
	__u64 rtt_at;
	/* Window clamp as set; 0: none. */
	__u32 clamp;
	/* sk_sndbuf at the last sample. */
	__u32 sndbuf;
	/*
	 * The congestion windows, in segments, for which the decision stands; where the application limits the sender, no
	 * largest.
	 */
	__u32 least_cwnd;
	__u32 most_cwnd;
	__u32 app_limited;
	/* Memory that the send queue held, and retransmissions, at the last sample. */
	__u32 send_queued;
	__u32 retransmitted;
};

_Static_assert(sizeof(struct bw_fast) <= 56, "a cache line less the kernel's head");

/* A sender as its socket shows it now. */
struct bw_fast_view {
	__u64 now;
	__u32 cwnd;
	__u32 sndbuf;
	__u32 send_queued;
	__u32 retransmitted;
	/* The application limits the sender (bw_application_limits()). */
	__u32 app_limited;
};

/* The queue is empty and was not, or holds less than half of what it held or more than twice as much, and a buffer. */
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

/* After a sample: for which congestion windows a round trip tells the send rule nothing new. */
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
	/* The edges of ABT's band; every rule but the fixed one follows it, for the pace or when user space is gone. */
	g->least_cwnd = (target / BW_ABT_HIGH + mss - 1) / mss;
	g->app_limited = !c->published && bw_application_limits(&x);
	if (!g->app_limited && target < c->max_send)
		g->most_cwnd = target / BW_ABT_LOW / mss;
	/* fit judges its roof each other round trip. */
	if (c->send_rule == BW_SEND_FIT && f->fit.phase > BW_FIT_RAMP)
		g->sampled_at = 0;
	/* The bound follows a start that doubles the rate each round trip (bound.h). */
	if (!c->published && !g->app_limited && bw_bound_grows(&f->bound))
		g->sampled_at = 0;
}

/*
 * Whether a segment needs a sample: one is due, or the clamp was overwritten. (A lack of progress is no reason to rest:
 * what arrives may find no room.)
 */
BW_FN int bw_is_window_due(const struct bw_fast *g, __u64 now, __u32 window_clamp)
{
	return now >= g->next_window || (g->clamp && window_clamp != g->clamp);
}

/* fit: the distance of the next sample. */
BW_FN __u64 bw_fit_window_distance(const struct bw_flow *f, __u64 rtt)
{
	if (rtt < BW_FIT_SHORTEST || f->fit_window.phase >= BW_FIT_FOLLOW ||
	    (f->fit_window.phase == BW_FIT_START && f->segs_in > BW_FIT_WINDOW_SEGMENTS_SEEN))
		return bw_max(bw_min(rtt / BW_WINDOW_SAMPLES, BW_LONGEST_REST), BW_WINDOW_SHORTEST);
	if (f->fit_window.phase == BW_FIT_RAMP)
		return bw_max(bw_min(rtt / BW_FIT_WINDOW_RAMP_SAMPLES, BW_SLOT), BW_FIT_WINDOW_CLOSEST);
	return bw_max(bw_min(rtt / BW_FIT_WINDOW_START_SAMPLES, BW_FIT_WINDOW_FURTHEST), BW_FIT_WINDOW_CLOSEST);
}

/* When the receive rule has something to measure; SOBAS, which also counts losses and time, several times per round trip. */
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
