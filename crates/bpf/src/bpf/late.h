/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Makes the record of a new connection late: once it moves more than a little payload.
 *
 * Problem: most connections of a web server move some KB and end. The record costs more than their other callbacks
 * together: it is allocated, filled, read by user space, and deleted. And no size of a buffer helps such a connection:
 * - Sender: the initial window is 10 segments (RFC 6928), 14 KB on Ethernet, and the kernel's first send buffer holds
 *   two such windows. So until 16 KB are acknowledged, which takes the second round trip, no send buffer limits the
 *   rate.
 * - Receiver: the first window offered is 64 KB.
 * So config.record_after is 16 KB where user space has chosen this, and 0 for rules that need every connection.
 *
 * fit times the segments of the first flights:
 * - Sender: a connection that writes less than an initial window has one flight. What is written and not yet acknowledged
 *   counts, so one that writes more has its record while the first flight is under way.
 * - Receiver: how much will come is not known, but a full segment (config.record_at_segment) is no small request.
 *
 * Until then a connection has no entry in any map and no storage in its socket, and its callbacks end at a comparison
 * (fast.h). The record is made by the first callback that finds it due, or by a sweep once the connection is silent.
 * turnover counts the connections that have none.
 *
 * Terms: a connection is *due* if it moves config.record_after, or gets such a segment, or if a share is less than its
 * buffers.
 *
 * Properties kept: each connection belongs to one bufwise, as in nearer.h: it is taken when it is established, before
 * it is known whether there will be room for its record. Until a sweep has met the connections from before, records are
 * made when connections are established, and a connection without a record is left to the sweep.
 */
#ifndef BUFWISE_LATE_H
#define BUFWISE_LATE_H

#include "record.h"

/* Whether records are made late. Before Linux 5.15 a socket does not name its cgroup as is_watched() reads it. */
static bool is_late(void)
{
	return config.record_after && bpf_core_field_exists(((struct sock_cgroup_data *)0)->cgroup) && control.swept;
}

static bool is_record_due(const struct tcp_sock *tp)
{
	const struct bw_newcomer newcomer = {
		.written = tp->bytes_acked + (tp->write_seq - tp->snd_una),
		.received = tp->bytes_received,
		.segment = tp->inet_conn.icsk_ack.rcv_mss,
		.sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf,
		.rcvbuf = tp->inet_conn.icsk_inet.sk.sk_rcvbuf,
	};

	return bw_is_record_due(&config, &control, &newcomer);
}

/* The callbacks that find out whether a record is due. */
static int callbacks_before_record(void)
{
	return wanted_callbacks() & ~BPF_SOCK_OPS_STATE_CB_FLAG;
}

/* The callbacks of a connection that begins: fit at the sender needs those of each segment. */
static int callbacks_at_start(void)
{
	int flags = wanted_callbacks();

	if (config.send_rule == BW_SEND_FIT)
		flags |= BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	return flags;
}

/* Makes the record of a connection that has had none so far; NULL as remember(). */
static struct bw_flow *remember_late(__u64 cookie, struct tcp_sock *tp, __u64 now)
{
	struct bw_flow *f = remember(cookie, tp, now);

	if (!f)
		return NULL;
	go_on_from_autotuning(f, tp);
	count_unrecorded(-1);
	return f;
}

/* Makes the record, unless a sweep has, or the connection is a nearer program's. */
static void make_record(struct bpf_sock_ops *ctx, struct tcp_sock *tp)
{
	__u64 cookie = bpf_get_socket_cookie(ctx), now = bpf_ktime_get_ns() / 1000;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f) {
		if (!is_watched(&tp->inet_conn.icsk_inet.sk))
			return;
		if (!remember_late(cookie, tp, now))
			return;
	}
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | callbacks_at_start());
}

/* Whether a process still has the connection, so that it may move more data. */
static bool is_held(const struct sock *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return state == BPF_TCP_ESTABLISHED || (is_connected(state) && sk->sk_socket);
}

/* The fast path's figures of a connection; NULL while it has no record, and none is due. */
static struct bw_fast *figures_of(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp)
{
	struct bw_fast *fast;

	if (!is_late())
		return fast_of(sk);
	if (!is_record_due(tp))
		return NULL;
	fast = bpf_sk_storage_get(&fast_path, sk, NULL, 0);
	if (fast)
		return fast;
	if (!is_held(&tp->inet_conn.icsk_inet.sk))
		return NULL;
	make_record(ctx, tp);
	/* Without a record, the sample finds that out and marks the connection. */
	fast = fast_of(sk);
	if (fast)
		fast->received = bw_min(tp->bytes_received, config.record_after);
	return fast;
}

#endif
