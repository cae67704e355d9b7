/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Samples the kernel's socket into a connection's record, and sets the socket as the rules have decided. This file
 * makes no decisions.
 */
#ifndef BUFWISE_SOCKET_H
#define BUFWISE_SOCKET_H

#include "maps.h"

static struct tcp_sock *tcp_of(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!ctx->is_fullsock || !sk)
		return NULL;
	return bpf_skc_to_tcp_sock(sk);
}

/*
 * Returns the socket's cookie, read from its field, which costs no helper call; the kernel fills the field when the
 * record is made (bpf_get_socket_cookie()). Frequent callbacks likewise take the time from tcp_mstamp, which TCP
 * updates for each packet.
 */
static __u64 cookie_of(const struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter;
}

/* ---- Sampling ------------------------------------------------------------------------------------------- */

/*
 * Returns the bytes that a writer fills at once, as in tcp_xmit_size_goal(): the device's bound, but at most half of
 * the widest window that the peer has offered, and at least one segment.
 */
static __u32 last_buffer(const struct sock *sk, const struct tcp_sock *tp)
{
	return bw_max(bw_min(sk->sk_gso_max_size, tp->max_window / 2), tp->mss_cache);
}

/* Returns the number in enum bw_cc, from the algorithm's name; SABT, fit and the bound use it. */
static __u32 congestion_control(const struct tcp_sock *tp)
{
	const char *name = tp->inet_conn.icsk_ca_ops->name;

	if (name[0] == 'c' && name[1] == 'u' && name[2] == 'b' && name[3] == 'i' && name[4] == 'c' && !name[5])
		return BW_CC_CUBIC;
	if (name[0] == 'r' && name[1] == 'e' && name[2] == 'n' && name[3] == 'o' && !name[4])
		return BW_CC_RENO;
	return BW_CC_OTHER;
}

/*
 * Samples what fit needs at each acknowledgement. It reads the congestion control each time, because an application may
 * choose another one after it has connected.
 */
static void sample_window(struct bw_flow *f, const struct tcp_sock *tp)
{
	f->cwnd = tp->snd_cwnd;
	f->mss = tp->mss_cache;
	f->srtt = tp->srtt_us >> 3;
	f->min_rtt = tp->rtt_min.s[0].v;
	f->retrans = tp->total_retrans;
	f->segs_in = tp->data_segs_in;
	f->delivered_segs = tp->delivered;
	f->app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	f->paced = tp->inet_conn.icsk_inet.sk.sk_pacing_status;
	if (config.send_rule > BW_SEND_FIXED)
		f->congestion_control = congestion_control(tp);
}

/* Fills the record from the socket; now: us. */
static void sample(struct bw_flow *f, struct tcp_sock *tp, __u64 now)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 queued;

	f->sampled_at = now;
	f->samples++;
	f->bytes_acked = tp->bytes_acked;
	f->bytes_received = tp->bytes_received;
	f->bytes_sent = tp->bytes_sent;
	sample_window(f, tp);
	f->rcv_mss = tp->inet_conn.icsk_ack.rcv_mss;
	f->rcv_rtt = tp->rcv_rtt_est.rtt_us >> 3;
	f->segs_out = tp->data_segs_out;
	f->out_of_order = tp->rcv_ooopack - f->fit_window.found_out_of_order;
	f->rcv_wnd = tp->rcv_wnd;
	f->delivered = tp->rate_delivered;
	f->delivered_in = tp->rate_interval_us;
	/* __tcp_set_rto(), in microseconds. */
	if (config.send_rule >= BW_SEND_SABT)
		f->rto = f->srtt + tp->rttvar_us;
	f->sndbuf = sk->sk_sndbuf;
	f->rcvbuf = sk->sk_rcvbuf;
	f->last_buffer = last_buffer(sk, tp);
	f->receive_queued = sk->sk_backlog.rmem_alloc.counter;
	queued = sk->sk_wmem_queued;
	f->send_queued = queued;
	if (queued > f->send_queued_max)
		f->send_queued_max = queued;
}

/* Updates who owns the buffers; after a sample. */
static void settle(struct bw_flow *f, const struct sock *sk)
{
	bw_settle(&config, f, BPF_CORE_READ_BITFIELD(sk, sk_userlocks));
}

/* Returns the ratio of window and memory (256ths); 0: not known. */
static __u32 ratio_of(const struct tcp_sock *tp)
{
	return bpf_core_field_exists(tp->scaling_ratio) ? tp->scaling_ratio : 0;
}

/* Returns the memory for that amount of payload; a negative amount counts as 0. */
static __u64 memory_of(const struct tcp_sock *tp, __s32 payload)
{
	return bw_memory_of_window(payload > 0 ? payload : 0, ratio_of(tp));
}

/* Returns the memory for unread data and for the window on offer, which the peer may fill at any time. */
static __u64 memory_of_window(const struct tcp_sock *tp)
{
	return memory_of(tp, tp->rcv_wup + tp->rcv_wnd - tp->copied_seq);
}

/*
 * Returns the memory in use, like memory_of_window(); unread data in small segments holds more than the last segment's
 * ratio says.
 */
static __u64 memory_in_use(const struct bw_flow *f, const struct tcp_sock *tp)
{
	return bw_max(memory_of_window(tp), f->receive_queued + memory_of(tp, tp->rcv_wup + tp->rcv_wnd - tp->rcv_nxt));
}

/* Returns the memory of the unread data at which the reader still sleeps (SO_RCVLOWAT, by default 1); 0: any byte wakes it. */
static __u64 memory_awaited(const struct tcp_sock *tp)
{
	return memory_of(tp, tp->inet_conn.icsk_inet.sk.sk_rcvlowat - 1);
}

/*
 * Returns the socket's inode; 0 until it has a descriptor: an incoming connection gets one at accept(). The kernel reads 0 through
 * a pointer that is NULL.
 */
static __u64 inode_of(const struct sock *sk)
{
	return sk->sk_socket->file->f_inode->i_ino;
}

/* ---- Setting -------------------------------------------------------------------------------------------- */

/*
 * Sends a request to user space; false if the ring is full, or if it is for a buffer and no process has the socket yet, as before
 * accept(): user space finds the socket by its inode. The next sample sends the request again. The ring may still have an earlier
 * request of the connection, so the record names only what was sent: the grant of another size would look like the application's
 * setting.
 */
static bool request(struct bw_flow *f, const struct tcp_sock *tp, __u64 cookie, __u32 sndbuf, __u32 rcvbuf, __u32 clamp)
{
	struct bw_request *r;

	if (!f->inode)
		f->inode = inode_of(&tp->inet_conn.icsk_inet.sk);
	if (!f->inode && !clamp)
		return false;
	r = bpf_ringbuf_reserve(&requests, sizeof(*r), 0);
	if (!r)
		return false;
	r->cookie = cookie;
	r->sndbuf = sndbuf;
	r->rcvbuf = rcvbuf;
	r->clamp = clamp;
	r->unused = 0;
	/* A window that is requested again and again (set_clamp()) does not delay the next request for a buffer. */
	if (!clamp)
		f->requested_at = f->sampled_at;
	bpf_ringbuf_submit(r, 0);
	return true;
}

/* Requests memory for the send buffer (0: no request), and sets SO_SNDBUF to a value (0: unchanged). */
static void set_send(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		     __u32 requested, __u32 value)
{
	if (requested && request(f, tp, cookie, requested, 0, 0))
		f->requested_sndbuf = requested;
	if (!value || bpf_setsockopt(ctx, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)))
		return;
	f->sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf;
	if (f->sndbuf < 2ULL * value)
		f->cut_sndbuf = f->sndbuf;
	f->send_changes += f->set_sndbuf != f->sndbuf;
	f->set_sndbuf = f->sndbuf;
}

/* Sets the receive buffer's memory, or requests it of user space. */
static void set_rcvbuf(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		       __u64 memory, bool stale)
{
	struct bw_step step;

	bw_step_receive(&step, &config, f, memory, stale);
	if (step.request && request(f, tp, cookie, 0, step.request, 0))
		f->requested_rcvbuf = step.request;
	if (!step.value || bpf_setsockopt(ctx, SOL_SOCKET, SO_RCVBUF, &step.value, sizeof(step.value)))
		return;
	f->rcvbuf = tp->inet_conn.icsk_inet.sk.sk_rcvbuf;
	if (f->rcvbuf < 2ULL * step.value)
		f->cut_rcvbuf = f->rcvbuf;
	f->set_rcvbuf = f->rcvbuf;
}

/* Sets the window clamp. Before Linux 5.11 programs may not set it; then each value is requested once. */
static void set_clamp(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		      __u64 window, bool stale)
{
	int value = bw_max(bw_min(window, BW_LARGEST_OPTION), BW_LEAST_CLAMP);

	if (!window || f->owned & BW_CLAMP_OWNED)
		return;
	/* The clamp may already have this value, by itself or by a grant. */
	if (tp->window_clamp == value) {
		f->requested_clamp = 0;
	} else if (bpf_setsockopt(ctx, SOL_TCP, TCP_WINDOW_CLAMP, &value, sizeof(value))) {
		if (stale || f->requested_clamp == value || !request(f, tp, cookie, 0, 0, value))
			return;
		f->requested_clamp = value;
	}
	if (f->set_clamp != value)
		f->clamp_changes++;
	f->set_clamp = value;
}

/*
 * Sets the pacing rate (bytes per second; 0: no bound) that holds a connection to its share of the memory.
 *
 * Problem: SO_SNDBUF does not bound what a busy sender holds. tcp_sendmsg() asks for memory only when it begins a new
 * buffer of up to 64 KB; until the last buffer is sent completely, a writer goes on filling it, however much is under
 * way. So a sender that the congestion window limits holds a whole congestion window and 64 KB, whatever sk_sndbuf says
 * (measured on Linux 6.18: 590 KB with sk_sndbuf = 32 KB). The pacing rate bounds what is under way to rate * RTT. The
 * congestion window is not changed: TCP_BPF_SNDCWND_CLAMP would also set ssthresh, and when the share grows, the
 * connection would enter slow start.
 */
static void set_pace(struct bpf_sock_ops *ctx, struct bw_flow *f, const struct sock *sk, __u32 rate)
{
	/* SO_MAX_PACING_RATE: 32 bits of ones mean no bound. */
	__u32 value = rate ? rate : ~0U;

	if (config.observe_only || (!rate && !f->set_pace) || !bw_step_pace(f, sk->sk_max_pacing_rate, rate))
		return;
	if (bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value)))
		return;
	f->set_pace = rate;
}

/*
 * Takes both bounds off a socket whose connection closes, because it may be connected again, or listen and hand them on. The record
 * keeps them as the last figures.
 */
static void lift_bounds(struct bpf_sock_ops *ctx, const struct bw_flow *f, const struct tcp_sock *tp)
{
	__u32 unpaced = ~0U, unbound = 0;

	if (f->set_pace && tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate == f->set_pace)
		bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &unpaced, sizeof(unpaced));
	if (f->set_unsent && tp->notsent_lowat == f->set_unsent)
		bpf_setsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &unbound, sizeof(unbound));
}

/* Bounds the bytes that are written and not yet sent (TCP_NOTSENT_LOWAT). */
static void set_unsent(struct bpf_sock_ops *ctx, struct bw_flow *f, const struct tcp_sock *tp)
{
	int value = bw_step_unsent(&config, f, tp->notsent_lowat);

	if (value == f->set_unsent || bpf_setsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &value, sizeof(value)))
		return;
	f->set_unsent = value;
}

#endif
