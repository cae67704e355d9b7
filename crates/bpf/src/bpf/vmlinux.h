/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The kernel's types, as far as flow.bpf.c reads them.
 *
 * Only names and types matter here: the loader finds each field's place in the running kernel by its BTF
 * (preserve_access_index), so order, padding and everything left out are of no account.
 */
#ifndef BUFWISE_VMLINUX_H
#define BUFWISE_VMLINUX_H

#include <linux/types.h>
#include <stdbool.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	int sk_sndbuf;
	int sk_rcvbuf;
	int sk_wmem_queued;
	__u8 sk_userlocks : 4;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
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

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 mss_cache;
	__u64 tcp_mstamp;
	__u32 snd_cwnd;
	__u32 srtt_us;
	struct minmax rtt_min;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u32 total_retrans;
	__u32 data_segs_out;
	__u32 data_segs_in;
	__u32 rcv_ooopack;
	__u32 rcv_wnd;
	__u32 window_clamp;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u8 rate_app_limited : 1;
	struct {
		__u32 rtt_us;
	} rcv_rtt_est;
	struct tcp_options_received rx_opt;
};

#pragma clang attribute pop

#endif
