/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Makes the record of a new connection late: once it moves more than a little payload.
 *
 * Problem: most connections of a web server move some KB and end. The record costs more than their other callbacks
 * together: it is allocated, filled, read by user space, and deleted. No buffer size helps such a connection either:
 * - Sender: the initial window is 10 segments (RFC 6928), 14 KB on Ethernet, and the kernel's first send buffer holds
 *   two such windows. So until 16 KB are acknowledged, which takes the second round trip, no send buffer limits the
 *   rate.
 * - Receiver: the first window offered is 64 KB.
 * So config.record_after is 16 KB where user space has chosen this, and 0 for rules that need every connection.
 *
 * The policy fit times the segments of the first flights, so it needs the record during these:
 * - Sender: payload counts from when it is written, not from when it is acknowledged. So a connection that writes more than
 *   config.record_after has its record while the first flight is under way. One that writes less than an initial window
 *   has no second flight.
 * - Receiver: the amount that will come is unknown. A full segment (config.record_at_segment) is no small request, so the
 *   first one makes the record due.
 *
 * Without a record, a connection has no entry in any map and no storage in its socket, and its callbacks end at a
 * comparison (fast.h). The record is made by the first callback that finds it due, or by a sweep once the connection is
 * silent. The map `turnover` counts the connections that have no record.
 *
 * Terms: a record is *due* if the connection has moved config.record_after, or has received a full segment as above, or
 * if a share is less than its buffers.
 *
 * Properties kept: each connection belongs to one bufwise, as in nearer.h. It is taken when it is established, although
 * the map may turn out to have no room for its record. Records are made late only after a sweep has met the connections
 * that are older than the programs. Before that, records are made when connections are established, and the sweep
 * handles connections without one.
 */
#ifndef BUFWISE_LATE_H
#define BUFWISE_LATE_H

#include "record.h"

/* Whether records are made late. Sockets before Linux 5.15 lack the field from which is_watched() reads their cgroup. */
static bool is_late(void)
{
	return config.record_after && bpf_core_field_exists(((struct sock_cgroup_data *)0)->cgroup) && control.swept;
}

static bool is_record_due(const struct tcp_sock *tp)
{
	const struct bw_unrecorded one = {
		.written = tp->bytes_acked + (tp->write_seq - tp->snd_una),
		.received = tp->bytes_received,
		.segment = tp->inet_conn.icsk_ack.rcv_mss,
		.sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf,
		.rcvbuf = tp->inet_conn.icsk_inet.sk.sk_rcvbuf,
	};

	return bw_is_record_due(&config, &control, &one);
}

/* Returns the callbacks that find out whether a record is due. */
static int callbacks_before_record(void)
{
	return wanted_callbacks() & ~BPF_SOCK_OPS_STATE_CB_FLAG;
}

/* Returns the callbacks of a connection that begins: fit at the sender needs those of each segment. */
static int callbacks_at_start(void)
{
	int flags = wanted_callbacks();

	if (config.send_rule == BW_SEND_FIT)
		flags |= BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	return flags;
}

/*
 * Notes, before the callbacks `wanted` are switched on beside `flags`, whether bufwise thereby switches on the one for each arriving
 * segment. Only then will it switch that one off: a program that reads TCP options may have switched it on before.
 */
static void note_asked(struct bw_flow *f, __u32 flags, __u32 wanted)
{
	f->fit.asked |= !!(wanted & ~flags & BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
}

/* Switches callbacks on. */
static void ask(struct bpf_sock_ops *ctx, struct bw_flow *f, __u32 wanted)
{
	__u32 flags = ctx->bpf_sock_ops_cb_flags;

	note_asked(f, flags, wanted);
	bpf_sock_ops_cb_flags_set(ctx, flags | wanted);
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

/* Makes the record, unless a sweep has made it, or the connection belongs to a nearer program. */
static void make_record(struct bpf_sock_ops *ctx, struct tcp_sock *tp)
{
	__u64 cookie = bpf_get_socket_cookie(ctx), now = bpf_ktime_get_ns() / 1000;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (is_over(f)) {
		if (!is_watched(&tp->inet_conn.icsk_inet.sk))
			return;
		f = remember_late(cookie, tp, now);
		if (!f)
			return;
	}
	ask(ctx, f, callbacks_at_start());
}

/* Whether a process still has the connection, so that it may move more data; false for the kernel's own. */
static bool is_held(const struct sock *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return (state == BPF_TCP_ESTABLISHED || (is_connected(state) && sk->sk_socket)) && !is_of_kernel(sk);
}

/* Returns the fast path's figures of a connection; NULL while it has no record, and none is due. */
static struct bw_fast *figures_of(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp)
{
	struct bw_fast *fast;

	if (!is_late())
		return fast_of(sk);
	if (!is_record_due(tp))
		return NULL;
	fast = bpf_sk_storage_get(&fast_path, sk, NULL, 0);
	if (fast && fast->next_window != BW_CLOSED)
		return fast;
	if (!is_held(&tp->inet_conn.icsk_inet.sk))
		return NULL;
	make_record(ctx, tp);
	/* If no record could be made, the next sample finds none and marks the connection (BW_UNTIL_ADOPTED). */
	fast = fast_of(sk);
	if (fast)
		fast->received = bw_min(tp->bytes_received, config.record_after);
	return fast;
}

#endif
