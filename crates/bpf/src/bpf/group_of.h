/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Evaluates the conditions of groups (match.h) for a socket, and tells whether its connection belongs to these
 * programs.
 *
 * The process behind a socket is known at connect() and listen(), which run in that process. The groups that name its
 * program are kept in the socket's storage, and connections inherit them from the listener (BPF_F_CLONE). For sockets
 * that are older than the programs, user space writes them there.
 */
#ifndef BUFWISE_GROUP_OF_H
#define BUFWISE_GROUP_OF_H

#include "maps.h"

/* Levels of cgroups above a socket that are searched; systemd and containers nest some ten deep. */
#define BW_CGROUP_DEPTH 64

const volatile struct bw_match matching = {};

/* Cgroups that groups name, by the inode of their directory; the value has the bits of these groups. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} members SEC(".maps");

/* In the storage of each socket: bits of the groups that name its program, and BW_KNOWN. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} programs SEC(".maps");

/* Returns the bits of the groups that name the running program, by the name of its process (group leader), not of a thread. */
static __noinline __u32 groups_of_current(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	char name[BW_NAME] = {};

	BPF_CORE_READ_INTO(&name, task, group_leader, comm);
	name[BW_NAME - 1] = 0;
	return bw_groups_of_name(&matching, name);
}

/* At connect() and listen(): notes which groups name the calling program. */
static void note_program(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 *groups;

	if (!matching.names_count || !ctx->is_fullsock || !sk)
		return;
	groups = bpf_sk_storage_get(&programs, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (groups)
		*groups = groups_of_current() | BW_KNOWN;
}

/* Returns what note_program() has stored for the socket or its listener; 0: its program is not known. */
static __u32 groups_of_program(struct tcp_sock *tp)
{
	__u32 *groups;

	if (!matching.names_count)
		return 0;
	groups = bpf_sk_storage_get(&programs, tp, NULL, 0);
	return groups ? *groups : 0;
}

/* Returns the bits of the groups that name the socket's cgroup or one above it. */
static __u32 groups_of_cgroups(const struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;
	__u32 groups = 0;
	int depth;

	if (matching.any_cgroup == matching.all)
		return 0;
	for (depth = 0; depth < BW_CGROUP_DEPTH && cgroup; depth++) {
		struct cgroup_subsys_state *above = cgroup->self.parent;
		__u64 id = cgroup->kn->id;
		__u32 *found = bpf_map_lookup_elem(&members, &id);

		if (found)
			groups |= *found;
		if (!above)
			break;
		cgroup = above->cgroup;
	}
	return groups;
}

/* Returns the bits of the groups whose conditions admit the peer's address. */
static __u32 groups_of_peer(const struct sock_common *skc)
{
	__u32 ip[4] = { 0, 0, bpf_htonl(0xffff), skc->skc_daddr };

	if (!matching.networks_count)
		return matching.any_peer;
	if (skc->skc_family != AF_INET && bpf_core_field_exists(skc->skc_v6_daddr)) {
		ip[0] = skc->skc_v6_daddr.in6_u.u6_addr32[0];
		ip[1] = skc->skc_v6_daddr.in6_u.u6_addr32[1];
		ip[2] = skc->skc_v6_daddr.in6_u.u6_addr32[2];
		ip[3] = skc->skc_v6_daddr.in6_u.u6_addr32[3];
	}
	return bw_groups_of_peer(&matching, ip);
}

/* Whether a connection belongs to these programs' group; without groups every connection does. */
static bool is_own(struct tcp_sock *tp)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	const struct sock_common *skc = &sk->__sk_common;
	__u32 ports;

	if (!matching.all)
		return true;
	ports = bw_groups_of_ports(&matching, skc->skc_num, __builtin_bswap16(skc->skc_dport));
	return bw_group_of(&matching, groups_of_cgroups(sk), groups_of_program(tp), groups_of_peer(skc), ports) ==
	       matching.own;
}

#endif
