/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Makes a connection's record.
 */
#ifndef BUFWISE_RECORD_H
#define BUFWISE_RECORD_H

#include "group_of.h"
#include "nearer.h"
#include "socket.h"

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
	/* Kernels built without IPv6 lack its fields. */
	if (skc->skc_family == AF_INET || !bpf_core_field_exists(skc->skc_v6_daddr)) {
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

/*
 * Whether the socket is the kernel's own, such as one of its NFS and SMB clients, or a subflow of MPTCP. No process holds
 * such a socket, so user space could not give its buffers back (release.rs), and it is left to the kernel.
 *
 * An incoming connection of an MPTCP listener begins as a socket of the kernel. accept() turns it into an ordinary one if
 * the peer speaks plain TCP. So the result is final once a connection is accepted.
 */
static bool is_of_kernel(const struct sock *sk)
{
	const struct socket *socket = sk->sk_socket;

	return BPF_CORE_READ_BITFIELD(sk, sk_kern_sock) || (socket && !socket->file);
}

/*
 * Computes is_of_kernel() for a connection that has just been established. Of the incoming ones, only the subflows of
 * MPTCP are known by then.
 */
static bool is_new_of_kernel(const struct tcp_sock *tp, bool initiator)
{
	if (initiator)
		return is_of_kernel(&tp->inet_conn.icsk_inet.sk);
	return bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

/*
 * Whether this end connected. A SYN counts as one byte in bytes_acked and in no other counter, so the end that connected has
 * one byte more acknowledged or under way than sent. A FIN counts likewise: after one is sent, the result is false.
 */
static bool is_initiator(const struct tcp_sock *tp)
{
	__u8 state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;

	return (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) &&
	       tp->bytes_acked + (tp->snd_nxt - tp->snd_una) > tp->bytes_sent - tp->bytes_retrans;
}

static void fill_peer(struct bw_peer *peer, const struct bw_flow *f)
{
	peer->ip[0] = f->remote_ip[0];
	peer->ip[1] = f->remote_ip[1];
	peer->ip[2] = f->remote_ip[2];
	peer->ip[3] = f->remote_ip[3];
	peer->netns = f->netns;
}

/* Returns how often the steps of a ramp are doubled, because earlier connections have shown room on the peer's path. */
static __u32 remembered_room(const struct bw_flow *f, __u64 now)
{
	struct bw_peer peer;
	struct bw_room *r;

	if (config.receive_rule != BW_RECEIVE_FIT)
		return 0;
	fill_peer(&peer, f);
	r = bpf_map_lookup_elem(&rooms, &peer);
	return r ? bw_room_doublings(r, now) : 0;
}

/*
 * Whether a record is missing, or is that of a connection that has closed. Callbacks may come after the end: for an RST, or because
 * the socket is connected again. They must leave the record alone, because user space reads it once more and forgets it. (Inlined, so
 * that the verifier learns that the pointer is not NULL.)
 */
static __always_inline bool is_over(const struct bw_flow *f)
{
	return !f || f->state == BPF_TCP_CLOSE;
}

/*
 * Notes which buffers bufwise has set when their connection closes. A socket may be connected again (connect() to AF_UNSPEC, then to
 * a peer); its buffers are still locked then, and would look like the application's.
 */
static void note_locks(const struct bw_flow *f, struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);
	__u32 theirs = f->owned | f->found_locks;

	if (!fast)
		return;
	__builtin_memset(fast, 0, sizeof(*fast));
	fast->next_window = BW_CLOSED;
	fast->sndbuf = theirs & BW_SEND_LOCK ? 0 : f->set_sndbuf;
	fast->send_queued = theirs & BW_RECEIVE_LOCK ? 0 : f->set_rcvbuf;
}

/* Takes what note_locks() has noted into the record of the socket's next connection. */
static void go_on_after_close(struct bw_flow *f, struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);

	if (!fast || fast->next_window != BW_CLOSED)
		return;
	fast->next_window = 0;
	if (fast->sndbuf == f->sndbuf)
		f->set_sndbuf = f->sndbuf;
	if (fast->send_queued == f->rcvbuf)
		f->set_rcvbuf = f->rcvbuf;
}

/* Returns the buffers that are locked, but not by bufwise. */
static __u32 foreign_locks(const struct bw_flow *f, const struct sock *sk)
{
	__u32 own = (f->set_sndbuf ? BW_SEND_LOCK : 0) | (f->set_rcvbuf ? BW_RECEIVE_LOCK : 0);

	return BPF_CORE_READ_BITFIELD(sk, sk_userlocks) & (BW_SEND_LOCK | BW_RECEIVE_LOCK) & ~own;
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
	count_turnover();
	note_addresses(f, &sk->__sk_common);
	f->opened_at = now;
	f->began_at = now;
	f->active_at = now;
	f->state = sk->__sk_common.skc_state;
	f->rcv_wscale = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	sample(f, tp, now);
	f->base_acked = f->bytes_acked;
	f->base_received = f->bytes_received;
	f->netns = sk->__sk_common.skc_net.net->ns.inum;
	f->inode = inode_of(sk);
	f->program_groups = groups_of_program(tp);
	go_on_after_close(f, tp);
	f->found_locks = foreign_locks(f, sk);
	f->found_sndbuf = f->sndbuf;
	f->found_rcvbuf = f->rcvbuf;
	f->initiator = is_initiator(tp);
	if (!config.take_over)
		f->owned = f->found_locks;
	bw_rules_begin(&config, f);
	f->fit_window.doublings = remembered_room(f, now);
	return f;
}

/* Starts DRS from what the kernel's autotuning has measured already: the most that was read in a round trip. */
static void go_on_from_autotuning(struct bw_flow *f, const struct tcp_sock *tp)
{
	f->drs.largest = tp->rcvq_space.space;
	f->drs_before = f->drs.largest;
}

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

#endif
