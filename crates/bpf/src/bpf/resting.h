/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Lets a receiver rest that has received little for long: no callback for its segments, and no size of its own.
 *
 * Problem: the kernel has no callback once per round trip of a receiver (receiver.h). The one for each segment costs a
 * connection that carries requests and small answers more than the rest of bufwise, and such a connection needs no
 * window but the first.
 *
 * Rule, where records are late (late.h) and sweeps switch callbacks on: what has been received since the last round trip
 * as a sender is *little* up to an initial window. A connection that has received little keeps the kernel's window. After
 * BW_ROUNDS_OF_LITTLE such round trips it loses the callback; a round trip with more, or a sweep, switches it on again.
 * Until then the kernel's autotuning sizes the connection, which no buffer of ours has locked.
 *
 * Properties kept: a connection whose window is set never rests, nor one that has got a full segment where that asks for a
 * record. A share that is less than the buffer is applied. The flag of a program that reads TCP's options stays: it may be
 * the one that writes them, too.
 */
#ifndef BUFWISE_RESTING_H
#define BUFWISE_RESTING_H

#include "late.h"

/* Flags of programs that read options; those of ours do for a while, when fit starts. */
#define BW_READS_OPTIONS (BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG)

/* Whether the share is less than the buffer. */
static bool is_short(const struct tcp_sock *tp)
{
	return bw_is_window_short(&control, tp->inet_conn.icsk_inet.sk.sk_rcvbuf);
}

/* Whether a receiver, after a sample, keeps the kernel's window. */
static bool keeps_window(const struct bw_fast *fast, const struct bw_flow *f, const struct tcp_sock *tp)
{
	return config.record_after && !f->set_rcvbuf && !f->set_clamp && !bw_is_full_segment(&config, f->rcv_mss) &&
	       !is_short(tp) && !bw_is_more_than_little(fast, tp->bytes_received, tp->advmss);
}

/* Switches the callback for each segment off, or on again. */
static void watch_or_rest(struct bpf_sock_ops *ctx, struct bw_fast *fast, struct tcp_sock *tp)
{
	__u32 flags = ctx->bpf_sock_ops_cb_flags;
	enum bw_watch watch;

	if (!config.record_after)
		return;
	watch = bw_count_round(fast, tp->bytes_received, tp->advmss);
	if (watch == BW_WATCH || is_short(tp))
		flags |= wanted_callbacks();
	else if (watch == BW_REST && control.swept == BW_SWEPT && !(flags & BW_READS_OPTIONS))
		flags &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (flags != ctx->bpf_sock_ops_cb_flags)
		bpf_sock_ops_cb_flags_set(ctx, flags);
}

#endif
