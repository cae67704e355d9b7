/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Makes a connection's record, and sweeps all TCP sockets of a network namespace.
 *
 * Problem: sock_ops programs see a connection when it is established and when it moves data. They do not see
 * connections that are older than the programs, or silent. An iterator over the TCP sockets of one namespace visits
 * each socket with its lock held; user space runs it every second or two.
 * - Adoption: a connection of a watched cgroup without a record gets one, and its callbacks, unless it belongs to a
 *   nearer program (nearer.h).
 * - Giving back: a connection that has been silent for config.idle, with nothing queued, gets small buffers again. With
 *   its next data they grow by the rules, as those of a new connection.
 * - Presence: swept_at. A record whose connection the last sweep of its namespace did not meet belongs to a closed one.
 *
 * Properties kept: buffers that bufwise did not set, or that the application set, are not touched. The receive buffer
 * keeps room for the offered window, which cannot be taken back. Callback flags of other programs on the socket stay.
 */
#ifndef BUFWISE_SWEEP_H
#define BUFWISE_SWEEP_H

#include "group_of.h"
#include "nearer.h"
#include "socket.h"

/* ---- Records -------------------------------------------------------------------------------------------- */

static int wanted_callbacks(void)
{
	int flags = BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG;

	if (config.receive_rule != BW_RECEIVE_KERNEL)
		flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	return flags;
}

static void note_addresses(struct bw_flow *f, const struct sock_common *skc)
{
	f->local_port = skc->skc_num;
	f->remote_port = __builtin_bswap16(skc->skc_dport);
	if (skc->skc_family == AF_INET) {
		f->family = 4;
		f->local_ip[0] = skc->skc_rcv_saddr;
		f->remote_ip[0] = skc->skc_daddr;
		return;
	}
	f->family = 6;
	f->local_ip[0] = skc->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
	f->local_ip[1] = skc->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
	f->local_ip[2] = skc->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
	f->local_ip[3] = skc->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	f->remote_ip[0] = skc->skc_v6_daddr.in6_u.u6_addr32[0];
	f->remote_ip[1] = skc->skc_v6_daddr.in6_u.u6_addr32[1];
	f->remote_ip[2] = skc->skc_v6_daddr.in6_u.u6_addr32[2];
	f->remote_ip[3] = skc->skc_v6_daddr.in6_u.u6_addr32[3];
}

/* The socket's inode; 0 until it has a descriptor: an incoming connection gets one at accept(). */
static __u64 inode_of(const struct sock *sk)
{
	return sk->sk_socket->file->f_inode->i_ino;
}

/* Makes the record of a connection; NULL if the map is full: the kernel then sizes the connection. */
static struct bw_flow *remember(__u64 cookie, struct tcp_sock *tp, __u64 now)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct bw_flow *f;
	__u32 zero = 0;

	f = bpf_map_lookup_elem(&blank, &zero);
	if (!f || bpf_map_update_elem(&flows, &cookie, f, BPF_ANY))
		return NULL;
	f = bpf_map_lookup_elem(&flows, &cookie);
	if (!f)
		return NULL;
	note_addresses(f, &sk->__sk_common);
	f->opened_at = now;
	f->active_at = now;
	f->state = sk->__sk_common.skc_state;
	f->rcv_wscale = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	sample(f, tp, now);
	f->netns = sk->__sk_common.skc_net.net->ns.inum;
	f->inode = inode_of(sk);
	f->program_groups = groups_of_program(tp);
	f->found_locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks) & (BW_SEND_LOCK | BW_RECEIVE_LOCK);
	f->found_sndbuf = f->sndbuf;
	f->found_rcvbuf = f->rcvbuf;
	if (!config.take_over)
		f->owned = f->found_locks;
	bw_rules_begin(&config, f);
	return f;
}

/* ---- Adoption ------------------------------------------------------------------------------------------- */

/* States in which a process can still move data. */
static bool is_connected(__u8 state)
{
	return state == BPF_TCP_ESTABLISHED || state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2 ||
	       state == BPF_TCP_CLOSE_WAIT;
}

/* Whether the socket is in or below a watched cgroup, and no cgroup between has programs of another bufwise. */
static bool is_watched(const struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;
	int depth;

	for (depth = 0; depth < BW_CGROUP_DEPTH && cgroup; depth++) {
		struct cgroup_subsys_state *above = cgroup->self.parent;
		__u64 id = cgroup->kn->id;

		if (bpf_map_lookup_elem(&watched, &id))
			return true;
		if (!above || bpf_map_lookup_elem(&others, &id))
			return false;
		cgroup = above->cgroup;
	}
	return false;
}

/* Makes the record of a connection that existed before. */
static struct bw_flow *adopt(__u64 cookie, struct tcp_sock *tp, __u64 now)
{
	struct bw_flow *f = remember(cookie, tp, now);

	if (!f)
		return NULL;
	wake(tp);
	f->adopted = 1;
	f->base_acked = f->bytes_acked;
	f->base_received = f->bytes_received;
	/* The kernel's autotuning has measured what DRS measures: the most that was read in a round trip. */
	f->drs.largest = tp->rcvq_space.space;
	f->drs_before = f->drs.largest;
	return f;
}

/*
 * Switches on the callbacks that an adopted connection, or one of earlier programs with other rules, lacks. False where
 * the kernel refuses: before Linux 6.12.
 */
static bool ask_for_callbacks(struct tcp_sock *tp)
{
	int flags = tp->bpf_sock_ops_cb_flags | wanted_callbacks();

	return flags == tp->bpf_sock_ops_cb_flags ||
	       !bpf_setsockopt(tp, SOL_TCP, BW_TCP_CALLBACKS, &flags, sizeof(flags));
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
	int value = bw_give_back_receive(&config, f, memory_of_window(tp), unread, config.receive_cap);

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
	if (!f) {
		if (!is_connected(skc->skc_state) || was_taken(tp) || !is_watched(&tp->inet_conn.icsk_inet.sk) ||
		    !is_own(tp))
			return 0;
		if (!ask_for_callbacks(tp)) {
			count->refused++;
			return 0;
		}
		f = adopt(cookie, tp, now);
		if (!f)
			return 0;
		count->adopted++;
	}
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
	ask_for_callbacks(tp);
	if (is_idle(f, tp, now) && give_back(f, tp))
		count->given_back++;
	return 0;
}

#endif
