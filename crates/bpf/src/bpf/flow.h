/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Data that the kernel side and user space exchange. Rust gets these structures from the compiled object (through the
 * skeleton) or has a twin in src/abi.rs; both sides assert the sizes, and all padding is explicit.
 *
 * Units, where a field does not name others: sizes are bytes, points in time microseconds of the monotonic clock, spans
 * microseconds. A *payload* size is what the application sees; a *memory* size counts the kernel's overhead, and is
 * what sk_sndbuf and sk_rcvbuf hold: twice the value given to SO_SNDBUF or SO_RCVBUF. 0 means "not known".
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
#include "peers.h"
#include "send.h"
#include "sobas.h"

/* Version of the layout. Raise it when a field of bw_flow moves: programs left behind may be of another version. */
#define BW_LAYOUT 23

/* Configuration, constant once the programs are loaded. */
struct bw_config {
	/* enum bw_send_rule, enum bw_receive_rule. */
	__u32 send_rule;
	__u32 receive_rule;
	/* Payload of either buffer under the fixed rules. */
	__u64 fixed;
	/* Largest payload of a send buffer, and largest window. */
	__u64 max_send;
	__u64 max_window;
	/* Caps of SO_SNDBUF and SO_RCVBUF as programs set them (net.core.wmem_max and rmem_max). */
	__u32 send_cap;
	__u32 receive_cap;
	/* 1: size buffers that the application has set, too. */
	__u32 take_over;
	/* 1: decide, but set nothing. */
	__u32 observe_only;
	/*
	 * Documents up to this size (payload) are sent in one round trip and are outside the shares; 0: none is small.
	 */
	__u32 small_document;
	/* Payload of each buffer left to a silent connection. */
	__u32 idle_size;
	/* Silence of user space after which its shares and orders no longer count, nanoseconds. */
	__u64 stale_ns;
	/* Silence of a connection after which its buffers are given back. */
	__u64 idle;
	/* The most that the kernel's own autotuning would give a send buffer (memory): the maximum of tcp_wmem. */
	__u64 usual_send;
	/* 1: the callbacks of round trips and segments return at once, to measure the cost of the call alone. */
	__u64 only_called;
	/* The host's bound of bytes written and not sent (tcp_notsent_lowat); all ones: none. */
	__u32 usual_unsent;
	/* 1: ABT and SABT as published: cwnd counts, used or not; no bound, no pacing, no room for last buffers. */
	__u32 published;
	/*
	 * Payload, written or received, from which a new connection has a record (late.h); 0: each has one when it is
	 * established.
	 */
	__u64 record_after;
	/* Payload of a received segment that makes a record due, however little the connection moves; 0: no segment does. */
	__u64 record_at_segment;
};

/* Whether connections without a record are new. */
enum bw_swept_state {
	/* They may be older than the programs. */
	BW_NOT_SWEPT,
	/* They are new: their cgroup is new, or a sweep has met all connections that are older than the programs. */
	BW_ALL_NEW,
	/* The same, and further sweeps can switch callbacks on again (resting.h). */
	BW_SWEPT,
};

/* Control data, written by user space several times a second. */
struct bw_control {
	/* When user space last wrote this, nanoseconds. */
	__u64 heartbeat_ns;
	/* Memory that every connection may hold in its send buffer; BW_NO_LIMIT: no bound. */
	__u64 send_level;
	/*
	 * The same for newcomers, if that is less. A newcomer has sent little (bw_limit_of()), or has begun after newest_at
	 * (us): the latest began_at of the connections that user space has seen sending.
	 */
	__u64 newcomer_level;
	__u64 newest_at;
	/* Largest window of any connection (payload); BW_NO_LIMIT: no bound. */
	__u64 window_level;
	/* 1: memory in use exceeds the budget. */
	__u32 pressure;
	/* BW_LAYOUT of these structures. */
	__u32 layout;
	/* The process that writes this: its number, the inode of its PID namespace, its start time (clock ticks). */
	__u32 owner_pid;
	__u32 owner_pidns;
	__u64 owner_began;
	/*
	 * 1: the connections are being given back; set nothing. The programs stay attached until all are given back: if
	 * the owner is killed meanwhile, the next start finds the records through them.
	 */
	__u32 suspended;
	/* enum bw_swept_state. */
	__u32 swept;
};

/* Counts since the programs were loaded. */
struct bw_turnover {
	/* Records made plus connections with a record that have closed; user space samples early if that grows fast. */
	__u64 changes;
	/* Connections that moved too little to get a record (late.h), open or closed; below 0 if records were made again. */
	__u64 unrecorded;
};

/* Demand and limit of one connection, where user space sets them apart from the common level. */
struct bw_order {
	/* Payload that the send buffer should hold: SABT's demand. */
	__u64 demand;
	/* Memory that the connection may hold; BW_NO_LIMIT: no bound. */
	__u64 limit;
};

/*
 * Congestion controls that SABT's demand distinguishes. For fit, BW_CC_OTHER is one that paces by itself. bw_bound_of() never
 * bounds such a connection below the kernel's maximum.
 */
enum bw_cc {
	BW_CC_OTHER,
	BW_CC_RENO,
	BW_CC_CUBIC,
};

/* The record of one connection: filled by the programs, or by user space where it sizes the connection. */
struct bw_flow {
	/* Addresses in network byte order, IPv4 in the first word; ports in host byte order. */
	__u32 local_ip[4];
	__u32 remote_ip[4];
	__u32 local_port;
	__u32 remote_port;
	/* 4 or 6; an IPv4 connection of an IPv6 socket is 6 with mapped addresses. */
	__u32 family;
	/* TCP state as the kernel numbers it. */
	__u32 state;
	/*
	 * When the record was made; when the connection began as a sender, which it does anew after BW_SENDER_RESTS; when it was
	 * last sampled.
	 */
	__u64 opened_at;
	__u64 began_at;
	__u64 sampled_at;
	/* Payload so far. */
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	/* Congestion window, segments. */
	__u32 cwnd;
	/* Payload of a segment, sent and received. */
	__u32 mss;
	__u32 rcv_mss;
	/* Round-trip times: smoothed, shortest (all ones: not known), the receiver's own. */
	__u32 srtt;
	__u32 min_rtt;
	__u32 rcv_rtt;
	/* Segments so far, modulo 2^32: retransmitted; with data, sent and received; out of order, since the record was made. */
	__u32 retrans;
	__u32 segs_out;
	__u32 segs_in;
	__u32 out_of_order;
	/* Window on offer, payload. */
	__u32 rcv_wnd;
	/* The kernel's last rate sample: segments delivered, and the time that took. */
	__u32 delivered;
	__u32 delivered_in;
	/* Memory: the limits of both buffers, and what the send queue holds. */
	__u32 sndbuf;
	__u32 rcvbuf;
	__u32 send_queued;
	/*
	 * BW_SEND_LOCK, BW_RECEIVE_LOCK: buffers that the application set; BW_CLAMP_OWNED: it set the clamp. bufwise leaves
	 * them alone.
	 */
	__u32 owned;
	/* Limits that bufwise set last (memory; the clamp is payload, with BW_CLAMP_OWNED the application's); 0: none. */
	__u32 set_sndbuf;
	__u32 set_rcvbuf;
	__u32 set_clamp;
	/* Requested of user space and not granted yet (memory; the clamp is payload); 0: nothing. */
	__u32 requested_sndbuf;
	__u32 requested_rcvbuf;
	__u32 requested_clamp;
	/* Segments delivered to the peer so far, modulo 2^32. */
	__u32 delivered_segs;
	/* The rules' last decisions (payload), whether they were set or not; 0: none yet. */
	__u64 decided_send;
	__u64 decided_window;
	/* The connection's share of the send memory (payload); BW_NO_LIMIT: no bound. */
	__u64 share;
	/* How often bufwise changed the send buffer, and the clamp. */
	__u32 send_changes;
	__u32 clamp_changes;
	/* How often the connection was sampled, by callbacks and by sweeps. */
	__u32 samples;
	/* 1: this end connected. */
	__u32 initiator;
	/* Shift of the window scale option, of the windows offered here. */
	__u32 rcv_wscale;
	/* Largest memory of the send queue in any sample. */
	__u32 send_queued_max;
	/* Bytes that a writer fills at once, whatever the limit is. */
	__u32 last_buffer;
	/* 1: the kernel calls no program for the connection, and user space sizes it. */
	__u32 user_space;
	/* When the sender-side round-trip time was measured last. */
	__u64 rtt_at;
	/* When the last request for a buffer was made. */
	__u64 requested_at;
	/* DRS: begin of the last interval, the largest measurement by then, and whether that grew by more than 1/4. */
	__u64 drs_began_at;
	__u64 drs_before;
	__u32 drs_grows;
	/* Pacing rate that bufwise set last, bytes per second; 0: none. */
	__u32 set_pace;
	struct bw_abt abt;
	struct bw_drs drs;
	struct bw_sobas sobas;
	struct bw_arrivals arrivals;
	struct bw_losses losses;
	struct bw_loss_events loss_events;
	struct bw_bound bound;
	struct bw_fit fit;
	struct bw_fit_window fit_window;
	/* Retransmission time-out. */
	__u32 rto;
	/* The kernel's flag: the application left the sender without data. */
	__u32 app_limited;
	/* enum bw_cc. */
	__u32 congestion_control;
	/* sk_pacing_status: 0 unless TCP or a qdisc paces the connection. */
	__u32 paced;
	/* Bound of bytes written and not sent (TCP_NOTSENT_LOWAT) that bufwise set last; 0: none. */
	__u32 set_unsent;
	/* Memory that received data holds until it is read. */
	__u32 receive_queued;
	/* Inodes of the socket (as in /proc/PID/fd) and of its network namespace. */
	__u64 inode;
	__u32 netns;
	/* State when the record was made: sk_userlocks, and limits (memory). */
	__u32 found_locks;
	__u32 found_sndbuf;
	__u32 found_rcvbuf;
	/* 1: the connection existed before the programs. */
	__u32 adopted;
	/* BW_SEND_LOCK, BW_RECEIVE_LOCK: buffers given back since the connection last moved data. */
	__u32 given_back;
	/* Bytes acknowledged and received when the record was made. */
	__u64 base_acked;
	__u64 base_received;
	/* When the sweep last met the connection, all bytes moved by then, and when the last of them moved. */
	__u64 swept_at;
	__u64 moved;
	__u64 active_at;
	/* Bits of the groups that name the connection's program; with BW_KNOWN if the program is known (match.h). */
	__u32 program_groups;
	/* Number of the present period of bw_take_rtt(); 0: none yet. */
	__u32 rtt_period;
	/* Limits (memory) to which the kernel cut a larger size: the cap was lowered after the load; 0: none was cut. */
	__u32 cut_sndbuf;
	__u32 cut_rcvbuf;
};

/* Connections counted by one sweep of a namespace. */
struct bw_swept {
	__u64 seen;
	__u64 adopted;
	__u64 given_back;
	/* Connections left to user space: the kernel lets no iterator switch their callbacks on. */
	__u64 refused;
};

/* A request that only user space can carry out; 0 in a field: nothing to set. */
struct bw_request {
	__u64 cookie;
	/* Memory. */
	__u32 sndbuf;
	__u32 rcvbuf;
	/* Window clamp, payload. */
	__u32 clamp;
	__u32 unused;
};

_Static_assert(sizeof(struct bw_flow) == 1696, "the Rust twin has 1696 bytes");
_Static_assert(sizeof(struct bw_config) == 112, "the Rust twin has 112 bytes");
_Static_assert(sizeof(struct bw_control) == 72, "the Rust twin has 72 bytes");
_Static_assert(sizeof(struct bw_order) == 16, "the Rust twin has 16 bytes");
_Static_assert(sizeof(struct bw_swept) == 32, "the Rust twin has 32 bytes");
_Static_assert(sizeof(struct bw_request) == 24, "the Rust twin has 24 bytes");

#endif
