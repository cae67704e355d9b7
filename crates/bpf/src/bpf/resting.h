/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * A receiver that has received little for a long time *rests*: its segments make no callback, and the kernel sizes its window.
 *
 * Problem: the kernel has no callback that comes once per round trip of a receiver (receiver.h), only one for each segment.
 * On a connection that carries requests and small answers, this callback costs more than all the rest of bufwise, although
 * such a connection needs no larger window than its first.
 *
 * Rule, where records are made late (late.h) and sweeps can switch callbacks on: the payload received since the
 * connection's last round trip as a sender is *little* if it is at most an initial window. A connection that has received
 * little keeps the kernel's window. After BW_ROUNDS_OF_LITTLE such round trips, the callback for its segments is switched
 * off. A round trip with more, or a sweep, switches the callback on again. Meanwhile the kernel's autotuning can size the
 * buffer, because bufwise has not locked it.
 *
 * Properties kept: a connection whose window bufwise has set never rests. Neither does one that has received a full
 * segment, where such a segment makes a record due. A share that is less than the buffer is applied all the same. The
 * callback stays on if another program reads TCP options, because that program may also write them, and where the kernel sizes the
 * window, because bufwise has not asked for it.
 */
#ifndef BUFWISE_RESTING_H
#define BUFWISE_RESTING_H

#include "late.h"

/* Flags of programs that read TCP options. bufwise sets the first one itself for a while, when fit starts. */
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

/* Whether the callback for each segment is bufwise's own: where the kernel sizes the window, another program has asked for it. */
static bool watches_segments(void)
{
	return wanted_callbacks() & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
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
	else if (watch == BW_REST && control.swept == BW_SWEPT && !(flags & BW_READS_OPTIONS) && watches_segments())
		flags &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (flags != ctx->bpf_sock_ops_cb_flags)
		bpf_sock_ops_cb_flags_set(ctx, flags);
}

#endif
