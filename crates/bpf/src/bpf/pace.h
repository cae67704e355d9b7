/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Holding a connection to its share of the memory.
 *
 * Problem: SO_SNDBUF does not bound what a busy sender holds. tcp_sendmsg() asks for memory only when it begins a new
 * buffer of up to 64 KB; as long as the last one is not sent to its end, a writer goes on filling it, however much
 * is under way. So a sender that the congestion window limits holds a whole congestion window and 64 KB, whatever
 * sk_sndbuf says (measured on Linux 6.18: 590 KB with sk_sndbuf = 32 KB).
 *
 * What is under way can be bounded by the rate: rate * RTT. So where a share binds, the sender is paced
 * (SO_MAX_PACING_RATE) at what its share carries in a round trip; where it no longer does, the bound goes. The congestion
 * window is left alone: TCP_BPF_SNDCWND_CLAMP would set ssthresh with it, and a share that grows would start slow start.
 *
 * Properties kept: who set a pacing rate of its own keeps it. No share means no bound.
 */
#ifndef BUFWISE_PACE_H
#define BUFWISE_PACE_H

#define SO_MAX_PACING_RATE 47
/* sk_max_pacing_rate without a bound; SO_MAX_PACING_RATE takes 32 bits of all ones for it. */
#define BW_UNPACED (~0UL)
/* Bounds closer to each other than an eighth are the same. */
#define BW_PACE_STEP 8

static void set_pace(struct bpf_sock_ops *ctx, struct bw_flow *f, const struct sock *sk, __u32 rate)
{
	__u32 value = rate ? rate : ~0U;

	/* Another one than ours is the application's. */
	if (sk->sk_max_pacing_rate != (f->set_pace ? f->set_pace : BW_UNPACED))
		return;
	if (rate && f->set_pace && bw_distance(rate, f->set_pace) * BW_PACE_STEP < f->set_pace)
		return;
	if (rate == f->set_pace || bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value)))
		return;
	f->set_pace = rate;
}

/* As long as the share (payload) binds. */
static void hold_to_share(struct bpf_sock_ops *ctx, struct bw_flow *f, const struct sock *sk, __u64 share)
{
	__u32 rate = bw_decide_pace(f, share);

	if (!config.observe_only && (rate || f->set_pace))
		set_pace(ctx, f, sk, rate);
}

#endif
