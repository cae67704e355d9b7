/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * What a callback is asked first: is there anything to do?
 *
 * Problem: callbacks are many (once per round trip where data is sent, about once per acknowledgement where it is
 * received), and most change nothing. What they cost is the memory that they touch and that nobody has touched
 * since the last one: of 2.4 us for a round trip of a busy sender, finding the flow in its map took 0.9 to 1.5. The
 * storage of the socket itself is found for a tenth of that. So what decides whether to look lies there, in one cache line
 * (64 bytes, of which the kernel's own head takes 8), and the flow is left alone until a look is due.
 *
 * Properties kept: whatever would make a rule of the send side decide otherwise is noticed at the next callback (cwnd,
 * whether the application limits, a limit that somebody has moved) or, where it comes from user space, within
 * BW_LONGEST_REST. What the send queue of a busy connection holds is known within a factor of two and a buffer. Under
 * pressure every round trip is looked at.
 */
#ifndef BUFWISE_GLANCE_H
#define BUFWISE_GLANCE_H

/* Figures of a connection that moves data are no older than this (us). */
#define BW_LONGEST_REST 100000
/* What a queue holds is no news sooner than this (us) after the last look. */
#define BW_SHORTEST_REST 1000
/* Largest buffer that a writer fills at once, but for devices with larger ones. */
#define BW_BUFFER 65536
/* bw_glance.next_look of a connection that is another's: never. */
#define BW_NEVER ~0ULL

struct bw_glance {
	/* The receive side: when a look is due. */
	__u64 next_look;
	/* The send side: when a look was taken; 0: the next round trip needs one. */
	__u64 round_at;
	/* When a round trip was last measured. */
	__u64 rtt_at;
	/* As set; 0: none. */
	__u32 clamp;
	/* sk_sndbuf at the last look. */
	__u32 sndbuf;
	/* The congestion windows, in segments, for which the decision stands; where the application limits the sender, no
	 * largest. */
	__u32 least_cwnd;
	__u32 most_cwnd;
	__u32 app_limited;
	/* Memory that the send queue held at the last look. */
	__u32 send_queued;
	__u32 unused;
};

_Static_assert(sizeof(struct bw_glance) <= 56, "a cache line less the kernel's head");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bw_glance);
} glances SEC(".maps");

static struct bw_glance *glance_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&glances, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

static bool is_app_limited(struct tcp_sock *tp)
{
	const struct bw_send_sample x = {
		.send_queued = tp->inet_conn.icsk_inet.sk.sk_wmem_queued,
		.sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf,
		.app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited),
	};

	return bw_application_limits(&x);
}

/* The queue is empty and was not, or holds less than half of what it held or more than twice as much, and a buffer. */
static bool is_queue_other(__u64 before, __u64 now)
{
	return (before && !now) || before > 2 * now + BW_BUFFER || now > 2 * before + BW_BUFFER;
}

/* Whether a round trip needs a look. */
static bool is_round_due(const struct bw_glance *g, struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 rested = tp->tcp_mstamp - g->round_at;

	if (rested >= BW_LONGEST_REST)
		return true;
	if (rested >= BW_SHORTEST_REST && is_queue_other(g->send_queued, sk->sk_wmem_queued))
		return true;
	if (config.send_rule == BW_SEND_KERNEL)
		return false;
	return tp->snd_cwnd < g->least_cwnd || tp->snd_cwnd > g->most_cwnd || sk->sk_sndbuf != g->sndbuf ||
	       (g->app_limited && !is_app_limited(tp));
}

/* After a look: within which congestion windows a round trip tells the send rule nothing new. */
static void rest_rounds(struct bw_glance *g, const struct bw_flow *f, struct tcp_sock *tp)
{
	__u64 mss = bw_mss(f->mss), target = f->abt.net_target;

	g->round_at = f->seen_at;
	g->sndbuf = f->sndbuf;
	g->send_queued = f->send_queued;
	g->app_limited = 0;
	g->least_cwnd = 0;
	g->most_cwnd = ~0U;
	if (config.send_rule == BW_SEND_KERNEL || config.send_rule == BW_SEND_FIXED)
		return;
	if (control.pressure || f->bytes_acked < config.small_document) {
		g->round_at = 0;
		return;
	}
	/* The edges of ABT's band; every rule but the fixed one follows it, for the pace or when user space is gone. */
	g->least_cwnd = (target / BW_ABT_HIGH + mss - 1) / mss;
	g->app_limited = is_app_limited(tp);
	if (!g->app_limited && target < config.max_send)
		g->most_cwnd = target / BW_ABT_LOW / mss;
	/* The bound follows a start that doubles the rate each round trip (bound.h). */
	if (!g->app_limited && bw_bound_grows(&f->bound))
		g->round_at = 0;
}

/*
 * Whether a segment needs a look: one is due, or the clamp was overwritten. TCP's own clock, read when the segment's cause
 * came, costs no call. (No progress is no reason to rest: what arrives may find no room.)
 */
static bool is_look_due(const struct bw_glance *g, const struct tcp_sock *tp)
{
	return tp->tcp_mstamp >= g->next_look || (g->clamp && tp->window_clamp != g->clamp);
}

#endif
