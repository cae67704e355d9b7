/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Data that the kernel side and user space exchange. Rust gets these structures from the compiled
 * object (by way of the skeleton) or has a twin in src/abi.rs; both sides assert the sizes, and all padding is
 * explicit.
 *
 * Sizes are bytes. A *payload* size is what the application sees; a *memory* size counts the kernel's overhead,
 * and is what sk_sndbuf and sk_rcvbuf hold: twice what was set with SO_SNDBUF or SO_RCVBUF. Times are
 * microseconds of the monotonic clock where not said otherwise. 0 means "not known" unless said otherwise.
 */
#ifndef BUFWISE_FLOW_H
#define BUFWISE_FLOW_H

#include <linux/types.h>
#include "arrivals.h"
#include "bound.h"
#include "drs.h"
#include "fit.h"
#include "fit_window.h"
#include "losses.h"
#include "send.h"
#include "sobas.h"

/* Raised when a field of bw_flow moves: programs that were left behind may be those of another version. */
#define BW_LAYOUT 8

/* Fixed when the programs are loaded. */
struct bw_config {
	__u32 send_rule;
	__u32 receive_rule;
	/* Payload of either buffer under the fixed rules. */
	__u64 fixed;
	/* Largest payload of a send buffer, and largest window. */
	__u64 max_send;
	__u64 max_window;
	/* Caps of SO_SNDBUF and SO_RCVBUF as called from here (net.core.wmem_max and rmem_max). */
	__u32 send_cap;
	__u32 receive_cap;
	/* Take buffers that the application has set. */
	__u32 take_over;
	/* Decide, and set nothing. */
	__u32 observe_only;
	/* A document up to this size (payload) goes out at once, and takes no part in the shares; 0: none is small. */
	__u32 small_document;
	/* Payload of the buffers that a silent connection is left with. */
	__u32 idle_size;
	/* How long user space may be silent before nothing that it said counts, nanoseconds. */
	__u64 stale_ns;
	/* How long a connection must be silent before its buffers are given back. */
	__u64 idle;
	/* The most that the kernel's own autotuning would give a send buffer (memory): the maximum of tcp_wmem. */
	__u64 usual_send;
	/* The callbacks of data and segments return at once, so that the cost of a call alone can be measured. */
	__u64 only_called;
	/* Bound of the bytes that any connection may have written and not sent (tcp_notsent_lowat); all ones: none. */
	__u32 usual_unsent;
	/* ABT and SABT as their papers have them: cwnd counts, used or not; no bound, no pace, no room for last buffers. */
	__u32 published;
};

/* Written by user space, some times a second. */
struct bw_control {
	/* When user space last was alive, nanoseconds. */
	__u64 heartbeat_ns;
	/* Memory that every connection may hold in its send buffer; BW_NO_LIMIT: no bound. */
	__u64 send_level;
	/* Largest window of any connection (payload); BW_NO_LIMIT: no bound. */
	__u64 window_level;
	/* Memory in use exceeds the budget. */
	__u32 pressure;
	/* BW_LAYOUT of the structures here. */
	__u32 layout;
	/* The owner, which writes this: process, the namespace (inode) of that number, and its start time (ticks). */
	__u32 owner_pid;
	__u32 owner_pidns;
	__u64 owner_began;
	/* The connections are being given back: set none any more. The programs stay attached until all are, for by them the next
	 * start finds the records if the owner is killed meanwhile. */
	__u64 resting;
};

/* User space's demand and limit for one connection, where they differ from all others'. */
struct bw_order {
	/* Payload that the send buffer should hold: SABT's demand. */
	__u64 demand;
	/* Memory that the connection may hold; BW_NO_LIMIT: no bound. */
	__u64 limit;
};

/* Congestion controls, as far as SABT's demand depends on them. */
enum bw_cc {
	BW_CC_OTHER,
	BW_CC_RENO,
	BW_CC_CUBIC,
};

/* One connection: filled here, read by user space. */
struct bw_flow {
	/* IPv4 addresses stand in the first word. Network byte order; ports in host order. */
	__u32 local_ip[4];
	__u32 remote_ip[4];
	__u32 local_port;
	__u32 remote_port;
	/* 4 or 6; an IPv4 connection of an IPv6 socket is 6 with mapped addresses. */
	__u32 family;
	/* TCP state as the kernel numbers it. */
	__u32 state;
	/* Opened, last sampled. */
	__u64 opened_at;
	__u64 sampled_at;
	/* As in struct tcp_info. */
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u32 cwnd;
	__u32 mss;
	__u32 rcv_mss;
	__u32 srtt;
	__u32 min_rtt;
	__u32 rcv_rtt;
	__u32 retrans;
	__u32 segs_out;
	__u32 segs_in;
	__u32 out_of_order;
	__u32 rcv_wnd;
	__u32 delivered;
	__u32 delivered_in;
	/* Memory: limits, and what the send queue holds. */
	__u32 sndbuf;
	__u32 rcvbuf;
	__u32 send_queued;
	/* Bits 1 (send) and 2 (receive): buffers that the application set; bufwise leaves them alone. */
	__u32 owned;
	/* Limits that bufwise set last (memory), 0: none; the clamp is payload. */
	__u32 set_sndbuf;
	__u32 set_rcvbuf;
	__u32 set_clamp;
	/* Requested of user space, for programs may not set it (memory; the clamp is payload). 0: nothing. */
	__u32 requested_sndbuf;
	__u32 requested_rcvbuf;
	__u32 requested_clamp;
	/* Segments that have arrived, modulo 2^32. */
	__u32 delivered_segs;
	/* The rules' last decisions (payload), set or not; 0: none yet. */
	__u64 decided_send;
	__u64 decided_window;
	/* The connection's share of the send memory (payload); BW_NO_LIMIT: no bound. */
	__u64 share;
	/* How often each was changed. */
	__u32 send_changes;
	__u32 clamp_changes;
	/* How often the connection was sampled, by callbacks and by sweeps. */
	__u32 samples;
	__u32 initiator;
	__u32 rcv_wscale;
	/* Largest memory the send queue was seen to hold. */
	__u32 send_queued_max;
	/* Bytes that a writer fills at once, whatever the limit is. */
	__u32 last_buffer;
	/* No program is called for it: user space sizes it. */
	__u32 user_space;
	/* When the sender-side round-trip time was measured last. */
	__u64 rtt_at;
	/* When the last request was made. */
	__u64 requested_at;
	/* DRS: begin of the interval before, its largest measurement, and whether that has grown since. */
	__u64 drs_began_at;
	__u64 drs_before;
	__u32 drs_grows;
	/* Pacing rate that holds it to its share, bytes per second; 0: none. */
	__u32 set_pace;
	struct bw_abt abt;
	struct bw_drs drs;
	struct bw_sobas sobas;
	struct bw_arrivals arrivals;
	struct bw_losses losses;
	struct bw_loss_events loss_events;
	struct bw_bound bound;
	struct bw_fit fit;
	/* When the last acknowledgement came, of which fit sees what it has delivered at the next one. */
	__u64 acknowledged_at;
	struct bw_fit_window fit_window;
	/* Retransmission time-out; the kernel's flag that the application left the sender without data; enum bw_cc. */
	__u32 rto;
	__u32 app_limited;
	__u32 congestion_control;
	/* TCP paces the connection by itself, or may do so. */
	__u32 paced;
	/* Bound of what is written and not sent (TCP_NOTSENT_LOWAT) that bufwise set last; 0: none. */
	__u32 set_unsent;
	/* Memory that received data holds until it is read. */
	__u32 receive_queued;
	/* Inode of the socket in /proc/PID/fd, and of its network namespace; 0: not known. */
	__u64 inode;
	__u32 netns;
	/* How it was found: sk_userlocks, and limits (memory). */
	__u32 found_locks;
	__u32 found_sndbuf;
	__u32 found_rcvbuf;
	/* It existed before; what it had moved by then. */
	__u32 adopted;
	/* BW_GAVE_*: since it last moved data. */
	__u32 given_back;
	__u64 base_acked;
	__u64 base_received;
	/* The sweep: when it last met the connection, all bytes moved by then, when they moved. */
	__u64 swept_at;
	__u64 moved;
	__u64 active_at;
	/* Groups that ask for its program, and BW_KNOWN where that is known (match.h). */
	__u32 program_groups;
	__u32 unused;
};

/* Counts of one pass over a namespace. */
struct bw_swept {
	__u64 seen;
	__u64 adopted;
	__u64 given_back;
	/* Connections that are user space's, for the kernel lets no iterator switch callbacks on. */
	__u64 refused;
};

/* A request that only user space can carry out. */
struct bw_request {
	__u64 cookie;
	__u32 sndbuf;
	__u32 rcvbuf;
	/* Window clamp, payload. */
	__u32 clamp;
	__u32 unused;
};

_Static_assert(sizeof(struct bw_flow) == 1512, "the Rust twin has 1512 bytes");
_Static_assert(sizeof(struct bw_config) == 96, "the Rust twin has 96 bytes");
_Static_assert(sizeof(struct bw_control) == 56, "the Rust twin has 56 bytes");
_Static_assert(sizeof(struct bw_order) == 16, "the Rust twin has 16 bytes");
_Static_assert(sizeof(struct bw_swept) == 32, "the Rust twin has 32 bytes");
_Static_assert(sizeof(struct bw_request) == 24, "the Rust twin has 24 bytes");

#endif
