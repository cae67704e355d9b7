/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Sweeps all TCP sockets of a network namespace.
 *
 * Problem: sock_ops programs see a connection when it is established and when it moves data. They do not see
 * connections that are older than the programs, or silent. An iterator over the TCP sockets of one namespace visits
 * each socket with its lock held; user space runs it every two seconds while buffers lie idle, and at least once a minute.
 * - Adoption: a connection of a watched cgroup without a record gets one, and its callbacks, unless it belongs to a
 *   nearer program (nearer.h) or to the kernel (is_of_kernel()). A new connection gets its record late (late.h). If it
 *   has moved little, the sweep makes the record once the connection is silent, so that a short connection of a busy
 *   server costs no record.
 * - Giving back: a connection that has been silent for config.idle, with nothing queued, gets small buffers again. With
 *   its next data they grow by the rules, as those of a new connection.
 * - Presence: the sweep notes in swept_at when it met a connection. A connection that the last sweep of its namespace did
 *   not meet is closed.
 *
 * Properties kept: buffers that bufwise did not set, or that the application set, are not touched. The receive buffer
 * keeps room for the offered window, which cannot be taken back. Callback flags of other programs on the socket stay.
 */
#ifndef BUFWISE_SWEEP_H
#define BUFWISE_SWEEP_H

#include "late.h"

/* A connection with little payload gets its record once it has been silent for this time (us). */
#define BW_QUIET 1000000

/* ---- Adoption ------------------------------------------------------------------------------------------- */

/* Makes the record of a connection that existed before. */
static struct bw_flow *adopt(__u64 cookie, struct tcp_sock *tp, __u64 now)
{
	struct bw_flow *f = remember(cookie, tp, now);

	if (!f)
		return NULL;
	wake(tp);
	f->adopted = 1;
	/*
	 * If the callback for each arriving segment is on, it counts as bufwise's own: an earlier bufwise may have left it on, and
	 * nothing distinguishes that from another program's request.
	 */
	note_asked(f, 0, tp->bpf_sock_ops_cb_flags);
	go_on_from_autotuning(f, tp);
	return f;
}

/*
 * Switches on the callbacks that a connection lacks: an adopted one, or one that earlier programs with other rules had.
 * Returns false where the kernel refuses this (before Linux 6.12).
 */
static bool ask_for_callbacks(struct tcp_sock *tp, int wanted)
{
	int flags = tp->bpf_sock_ops_cb_flags | wanted;

	return flags == tp->bpf_sock_ops_cb_flags ||
	       !bpf_setsockopt(tp, SOL_TCP, BW_TCP_CALLBACKS, &flags, sizeof(flags));
}

/*
 * Whether these programs saw the connection begin and made no record then: they have switched its callbacks on, and it is not older
 * than they are.
 */
static bool began_unrecorded(const struct tcp_sock *tp)
{
	return config.record_after && control.swept && tp->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_RTT_CB_FLAG;
}

/* Makes the record that a socket lacks; NULL: it gets none now. */
static struct bw_flow *take_in(struct bw_swept *count, struct sock_common *skc, struct tcp_sock *tp, __u64 cookie,
			       __u64 now)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct bw_flow *f;

	if (!is_connected(skc->skc_state) || is_of_kernel(sk) || was_taken(tp) || !is_watched(sk) || !is_own(tp))
		return NULL;
	if (began_unrecorded(tp)) {
		/* A share may have become smaller than its buffers since its last callback. */
		if (!is_record_due(tp) && bw_less(now, tp->tcp_mstamp) < BW_QUIET)
			return NULL;
		f = remember_late(cookie, tp, now);
		if (!f)
			return NULL;
		/* If the map had no room for the record before, callbacks take no sample until the connection is woken. */
		wake(tp);
		note_asked(f, tp->bpf_sock_ops_cb_flags, callbacks_at_start());
		ask_for_callbacks(tp, callbacks_at_start());
		return f;
	}
	if (!ask_for_callbacks(tp, wanted_callbacks())) {
		count->refused++;
		return NULL;
	}
	f = adopt(cookie, tp, now);
	if (f)
		count->adopted++;
	return f;
}

/* ---- Giving back ---------------------------------------------------------------------------------------- */

static bool is_idle(struct bw_flow *f, const struct tcp_sock *tp, __u64 now)
{
	__u64 moved = tp->bytes_sent + tp->bytes_acked + tp->bytes_received;

	return bw_is_idle(&config, f, moved, bw_min(tp->tcp_mstamp, now), now);
}

static void give_back_send(struct bw_flow *f, struct tcp_sock *tp)
{
	int value = bw_give_back_send(&config, f);

	if (!value || bpf_setsockopt(tp, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)))
		return;
	f->sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf;
	f->set_sndbuf = f->sndbuf;
	f->send_changes++;
	f->given_back |= BW_SEND_LOCK;
}

static void give_back_receive(struct bw_flow *f, struct tcp_sock *tp)
{
	int unread = tp->rcv_nxt != tp->copied_seq;
	__u64 cap = bw_cap(config.receive_cap, f->cut_rcvbuf);
	int value = bw_give_back_receive(&config, f, memory_of_window(tp), unread, cap);

	if (!value || bpf_setsockopt(tp, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)))
		return;
	f->rcvbuf = tp->inet_conn.icsk_inet.sk.sk_rcvbuf;
	f->set_rcvbuf = f->rcvbuf;
	f->given_back |= BW_RECEIVE_LOCK;
}

/* Gives back both buffers; true if none was given back before and at least one is now. */
static bool give_back(struct bw_flow *f, struct tcp_sock *tp)
{
	__u32 before = f->given_back;

	settle(f, &tp->inet_conn.icsk_inet.sk);
	give_back_send(f, tp);
	give_back_receive(f, tp);
	return !before && f->given_back;
}

/* ---- The pass ------------------------------------------------------------------------------------------- */

SEC("iter/tcp")
int bufwise_sweep(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	__u64 now = bpf_ktime_get_ns() / 1000, cookie;
	struct tcp_sock *tp;
	struct bw_swept *count;
	struct bw_flow *f;
	__u32 zero = 0;

	/* NULL at the end of the list, and for entries without a full socket: TIME_WAIT, half-open requests. */
	tp = skc ? bpf_skc_to_tcp_sock(skc) : NULL;
	count = bpf_map_lookup_elem(&swept, &zero);
	if (!tp || !count)
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	f = bpf_map_lookup_elem(&flows, &cookie);
	if (!f)
		f = take_in(count, skc, tp, cookie, now);
	if (!f)
		return 0;
	/* User space samples the connections that it sizes. */
	if (f->user_space) {
		count->refused++;
		return 0;
	}
	count->seen++;
	sample(f, tp, now);
	f->swept_at = now;
	if (!f->inode)
		f->inode = inode_of(&tp->inet_conn.icsk_inet.sk);
	if (!is_connected(skc->skc_state))
		return 0;
	ask_for_callbacks(tp, wanted_callbacks());
	if (is_idle(f, tp, now) && give_back(f, tp))
		count->given_back++;
	return 0;
}

#endif
