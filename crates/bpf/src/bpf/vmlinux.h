/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The fields of the kernel's types that flow.bpf.c reads.
 *
 * Only names and types matter: the loader finds each field's offset in the running kernel by its BTF
 * (preserve_access_index), so order and padding do not matter, and other fields are omitted.
 */
#ifndef BUFWISE_VMLINUX_H
#define BUFWISE_VMLINUX_H

#include <linux/types.h>
#include <stdbool.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct {
		__s64 counter;
	} skc_cookie;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct socket {
	struct file *file;
};

struct sock {
	struct sock_common __sk_common;
	int sk_sndbuf;
	int sk_rcvbuf;
	int sk_rcvlowat;
	int sk_wmem_queued;
	struct {
		struct {
			int counter;
		} rmem_alloc;
	} sk_backlog;
	unsigned long sk_max_pacing_rate;
	__u32 sk_pacing_status;
	unsigned int sk_gso_max_size;
	__u8 sk_kern_sock : 1;
	__u8 sk_userlocks : 4;
	struct socket *sk_socket;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_sock {
	struct sock sk;
};

struct tcp_congestion_ops {
	char name[16];
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	struct {
		__u16 rcv_mss;
	} icsk_ack;
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	__u16 rcv_wscale : 4;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u16 advmss;
	__u32 mss_cache;
	__u64 tcp_mstamp;
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 rttvar_us;
	struct minmax rtt_min;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u32 total_retrans;
	__u32 data_segs_out;
	__u32 data_segs_in;
	__u32 rcv_ooopack;
	struct rb_root out_of_order_queue;
	__u32 rcv_wnd;
	__u32 window_clamp;
	__u32 max_window;
	__u32 notsent_lowat;
	__u32 delivered;
	__u64 delivered_mstamp;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u8 rate_app_limited : 1;
	struct {
		__u32 rtt_us;
	} rcv_rtt_est;
	struct {
		__u32 space;
	} rcvq_space;
	struct tcp_options_received rx_opt;
	__u32 snd_una;
	__u32 write_seq;
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 copied_seq;
	__u8 scaling_ratio;
	bool is_mptcp;
	__u8 bpf_sock_ops_cb_flags;
};

struct task_struct {
	struct task_struct *group_leader;
	char comm[16];
};

struct bpf_iter__tcp {
	struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif
