/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Data that the programs share with each other and with user space: configuration, control, and maps.
 */
#ifndef BUFWISE_MAPS_H
#define BUFWISE_MAPS_H

#include "vmlinux.h"
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "fast.h"
#include "match.h"
#include "rules.h"
#include "upkeep.h"

#define AF_INET 2
#define SOL_SOCKET 1
#define SO_SNDBUF 7
#define SO_RCVBUF 8
#define SO_MAX_PACING_RATE 47
#define SOL_TCP 6
#define TCP_WINDOW_CLAMP 10
#define TCP_NOTSENT_LOWAT 25
#define TCP_BPF_IW 1001
/* TCP_BPF_SOCK_OPS_CB_FLAGS, missing in headers before Linux 6.12. */
#define BW_TCP_CALLBACKS 1008

const volatile struct bw_config config = {};
struct bw_control control = {
	.send_level = BW_NO_LIMIT,
	.newcomer_level = BW_NO_LIMIT,
	.window_level = BW_NO_LIMIT,
};

/* The connections' records, by socket cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct bw_flow);
} flows SEC(".maps");

/* User space's orders, by socket cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct bw_order);
} orders SEC(".maps");

/* Ring buffer of struct bw_request, read by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} requests SEC(".maps");

/* An empty record to copy from: struct bw_flow is too large for the stack. Never written. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bw_flow);
} blank SEC(".maps");

/* The fast path's figures, in the storage of each socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bw_fast);
} fast_path SEC(".maps");

/* Cgroups, by the inode of their directory, to which another running bufwise has attached programs (nearer.h). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} others SEC(".maps");

/* Cgroups, by the inode of their directory, in and below which existing connections are adopted (sweep.h). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} watched SEC(".maps");

/* Room on the paths of the latest peers (peers.h); one entry where the receive rule is not fit. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bw_peer);
	__type(value, struct bw_room);
} rooms SEC(".maps");

/* Counts since the load. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bw_turnover);
} turnover SEC(".maps");

/* Counts of the running sweep. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bw_swept);
} swept SEC(".maps");

static bool is_stale(__u64 now)
{
	return bw_is_stale(&config, &control, now);
}

/* Notes that a record was made, or that its connection has closed. */
static void count_turnover(void)
{
	__u32 zero = 0;
	struct bw_turnover *count = bpf_map_lookup_elem(&turnover, &zero);

	if (count)
		__sync_fetch_and_add(&count->changes, 1);
}

/* Notes a new connection without a record (1), or that one has got it (-1). */
static void count_unrecorded(__s64 change)
{
	__u32 zero = 0;
	struct bw_turnover *count = bpf_map_lookup_elem(&turnover, &zero);

	if (count)
		__sync_fetch_and_add(&count->unrecorded, change);
}

/* Returns the fast path's figures of a socket, new ones if there are none; NULL for lack of memory. */
static struct bw_fast *fast_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&fast_path, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

#endif
