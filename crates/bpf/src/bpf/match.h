/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Finds the group of a connection.
 *
 * Problem: a daemon loads its programs once for each group and once for the rest, the connections without a group;
 * several of them see the same connection. Each must decide, without asking the others, whether the connection is its
 * own.
 * - All have the same table: the conditions of all groups, in the order of the configuration. For each kind of
 *   condition there is a set of groups (bits): those whose conditions of this kind hold, and those with none of this
 *   kind. The first group that is in all four sets has the connection.
 * - A program takes the connections of the group whose bit is in `own`; the program of the rest, whose `own` is 0,
 *   takes those without a group.
 *
 * Kinds: the cgroups above the socket (group_of.h finds them), the program's name, the peer's address, and a port at either
 * end. The order in which the kernel runs the programs does not matter.
 */
#ifndef BUFWISE_MATCH_H
#define BUFWISE_MATCH_H

#include "number.h"

/* Most entries of each kind, for all groups together. */
#define BW_NETWORKS 64
#define BW_PORT_RANGES 64
#define BW_NAMES 16
/* Letters of a program's name, with the 0 at its end (TASK_COMM_LEN). */
#define BW_NAME 16
/* Flag beside the bits of groups (which are below it): the socket's program is known. */
#define BW_KNOWN (1U << 31)

/* A network of peers, network byte order; IPv4 as mapped addresses (::ffff:0:0/96). */
struct bw_network {
	__u32 address[4];
	__u32 mask[4];
	__u32 groups;
};

/* Ports from `first` to `last` inclusive, host byte order. */
struct bw_ports {
	__u16 first;
	__u16 last;
	__u32 groups;
};

/* A pattern of program names, in which `*` stands for any letters. */
struct bw_name {
	char letters[BW_NAME];
	/* Number of letters, without the stars. */
	__u32 count;
	/* Bit i: a star before letter i; bit `count`: a star at the end. */
	__u32 stars;
	__u32 groups;
};

struct bw_match {
	/* Bits of all groups; 0: there are no groups. */
	__u32 all;
	/* Bit of the group that these programs serve; 0: they serve the connections without a group. */
	__u32 own;
	/* Groups without a condition for cgroups, for programs, for peers, for ports. */
	__u32 any_cgroup;
	__u32 any_name;
	__u32 any_peer;
	__u32 any_port;
	__u32 networks_count;
	__u32 ports_count;
	__u32 names_count;
	struct bw_network networks[BW_NETWORKS];
	struct bw_ports ports[BW_PORT_RANGES];
	struct bw_name names[BW_NAMES];
};

_Static_assert(sizeof(struct bw_match) == 36 + 36 * BW_NETWORKS + 8 * BW_PORT_RANGES + 28 * BW_NAMES,
	       "the Rust twin has no padding");

/* Groups whose conditions admit a peer at that address. */
BW_FN __u32 bw_groups_of_peer(const volatile struct bw_match *m, const __u32 *ip)
{
	__u32 groups = m->any_peer, i;

	for (i = 0; i < BW_NETWORKS && i < m->networks_count; i++) {
		const volatile struct bw_network *n = &m->networks[i];
		__u32 differs = ((ip[0] ^ n->address[0]) & n->mask[0]) | ((ip[1] ^ n->address[1]) & n->mask[1]) |
				((ip[2] ^ n->address[2]) & n->mask[2]) | ((ip[3] ^ n->address[3]) & n->mask[3]);

		if (!differs)
			groups |= n->groups;
	}
	return groups;
}

/* Groups whose conditions admit the local port or the peer's. */
BW_FN __u32 bw_groups_of_ports(const volatile struct bw_match *m, __u32 local, __u32 peer)
{
	__u32 groups = m->any_port, i;

	for (i = 0; i < BW_PORT_RANGES && i < m->ports_count; i++) {
		__u32 first = m->ports[i].first, last = m->ports[i].last;

		if ((local >= first && local <= last) || (peer >= first && peer <= last))
			groups |= m->ports[i].groups;
	}
	return groups;
}

/*
 * Returns 1 if both letters are equal. It has no branch, because the verifier would follow both ways of each of 256
 * comparisons.
 */
BW_FN __u64 bw_same_letter(__u8 a, __u8 b)
{
	__u64 differs = a ^ b;

	asm volatile("" : "+r"(differs));
	return (differs - 1) >> 63;
}

/*
 * Returns 1 if the pattern matches the name. Bit i of the state: the first i letters of the pattern match what was read
 * so far.
 */
BW_FN __u64 bw_is_named(const volatile struct bw_name *n, const char *name)
{
	__u64 state = 1, fits;
	__u32 i, j;

	for (i = 0; i < BW_NAME && name[i]; i++) {
		fits = 0;
		for (j = 0; j < BW_NAME; j++)
			fits |= bw_same_letter(n->letters[j], name[i]) << j;
		state = (state & fits) << 1 | (state & n->stars);
	}
	return state >> (n->count & 31) & 1;
}

/* Groups that name a program of that name; name: BW_NAME bytes. */
BW_FN __u32 bw_groups_of_name(const volatile struct bw_match *m, const char *name)
{
	__u64 groups = 0;
	__u32 i;

	for (i = 0; i < BW_NAMES && i < m->names_count; i++)
		groups |= -bw_is_named(&m->names[i], name) & m->names[i].groups;
	return groups;
}

/*
 * Returns the bit of the first group in all sets; 0: none. Here, cgroups and names lack the groups without such a
 * condition.
 */
BW_FN __u32 bw_group_of(const volatile struct bw_match *m, __u32 cgroups, __u32 names, __u32 peers, __u32 ports)
{
	__u32 groups = m->all & (cgroups | m->any_cgroup) & (names | m->any_name) & peers & ports;

	return groups & -groups;
}

#endif
