/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Sizes the buffers of the connections of one cgroup, from inside the kernel's TCP.
 *
 * One sock_ops program. ESTABLISHED: who owns the buffers, and which callbacks to make. RTT (once per round
 * trip, where data is sent): the send rule, applied as SO_SNDBUF. HDR_OPT_LEN (whenever a segment is built; no
 * option is reserved): the receive rule, some times per round trip, applied as TCP_WINDOW_CLAMP (receive.h). STATE:
 * the last look. Most of those find nothing to do (glance.h). What none of these sees, an iterator does (sweep.h):
 * connections that were there before, and silent ones. User space reads the flows, and tells the shares of the memory
 * (struct bw_control, bw_order).
 *
 * Programs on a cgroup that is nearer to a connection come first (nearer.h).
 *
 * What may not be done from here (beyond wmem_max and rmem_max) is wished for through a ring buffer.
 * When user space is gone for longer than config.stale_ns the shares no longer count, and closed connections are
 * forgotten here.
 */
#include "vmlinux.h"
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "rules.h"

#define AF_INET 2
#define SOL_SOCKET 1
#define SO_SNDBUF 7
#define SO_RCVBUF 8
#define SOL_TCP 6
#define TCP_WINDOW_CLAMP 10
#define TCP_BPF_IW 1001

/* sk_userlocks: the application set the buffer. */
#define SEND_LOCK 1
#define RECEIVE_LOCK 2

/* Initial windows: RFC 6928's; and the largest burst that a small document may be. */
#define BW_INITIAL_WINDOW 10
#define BW_LARGEST_INITIAL_WINDOW 64

const volatile struct bw_config config = {};
struct bw_control control = { .send_level = BW_NO_LIMIT, .window_level = BW_NO_LIMIT };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct bw_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct bw_order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} wishes SEC(".maps");

/* A new flow is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bw_flow);
} blank SEC(".maps");

static struct tcp_sock *tcp_of(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!ctx->is_fullsock || !sk)
		return NULL;
	return bpf_skc_to_tcp_sock(sk);
}

static bool is_stale(__u64 now)
{
	/* User space may have spoken since the clock was read. */
	return bw_less(now, control.heartbeat_ns / 1000) > config.stale_ns / 1000;
}

/*
 * Where callbacks are many, the socket's number and the time are read from the socket, which costs no call: the number
 * was given when the connection was noted, and TCP reads its clock for each packet that it handles.
 */
static __u64 cookie_of(const struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter;
}

/* ---- Looking -------------------------------------------------------------------------------------------- */

/* As tcp_xmit_size_goal() has it: the device's bound, but no more than half of the widest window that the peer has offered. */
static __u32 last_buffer(const struct sock *sk, const struct tcp_sock *tp)
{
	return bw_max(bw_min(sk->sk_gso_max_size, tp->max_window / 2), tp->mss_cache);
}

static void look(struct bw_flow *f, struct tcp_sock *tp, __u64 now)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 queued;

	f->seen_at = now;
	f->looks++;
	f->bytes_acked = tp->bytes_acked;
	f->bytes_received = tp->bytes_received;
	f->bytes_sent = tp->bytes_sent;
	f->cwnd = tp->snd_cwnd;
	f->mss = tp->mss_cache;
	f->rcv_mss = tp->inet_conn.icsk_ack.rcv_mss;
	f->srtt = tp->srtt_us >> 3;
	f->min_rtt = tp->rtt_min.s[0].v;
	f->rcv_rtt = tp->rcv_rtt_est.rtt_us >> 3;
	f->retrans = tp->total_retrans;
	f->segs_out = tp->data_segs_out;
	f->segs_in = tp->data_segs_in;
	f->out_of_order = tp->rcv_ooopack;
	f->rcv_wnd = tp->rcv_wnd;
	f->delivered_segs = tp->delivered;
	f->delivered = tp->rate_delivered;
	f->delivered_in = tp->rate_interval_us;
	f->sndbuf = sk->sk_sndbuf;
	f->rcvbuf = sk->sk_rcvbuf;
	f->last_buffer = last_buffer(sk, tp);
	queued = sk->sk_wmem_queued;
	f->send_queued = queued;
	if (queued > f->send_queued_max)
		f->send_queued_max = queued;
}

/*
 * What user space was asked for and has done is ours; that it did it, and not the kernel's autotuning, which may have
 * been there before or come by, the lock tells. It may do so after the rule has changed its mind, so a wish stands until
 * it is granted or another takes its place. What else is not as we set it is the application's: ours locks the buffer,
 * so only a setsockopt() can have moved it since.
 */
static void settle(struct bw_flow *f, const struct sock *sk)
{
	__u32 locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks);

	if (f->want_sndbuf && f->sndbuf == f->want_sndbuf && locks & SEND_LOCK) {
		f->send_changes += f->set_sndbuf != f->sndbuf;
		f->set_sndbuf = f->sndbuf;
		f->want_sndbuf = 0;
	}
	if (f->want_rcvbuf && f->rcvbuf == f->want_rcvbuf && locks & RECEIVE_LOCK) {
		f->set_rcvbuf = f->rcvbuf;
		f->want_rcvbuf = 0;
	}
	if (config.take_over)
		return;
	if (f->set_sndbuf && f->sndbuf != f->set_sndbuf)
		f->owned |= SEND_LOCK;
	if (f->set_rcvbuf && f->rcvbuf != f->set_rcvbuf)
		f->owned |= RECEIVE_LOCK;
}

/* ---- Setting -------------------------------------------------------------------------------------------- */

/* A wish is given this long (us); another one in between would make its fulfilment look like the application's. */
#define BW_WISH_PATIENCE 1000000

static bool is_wishing(const struct bw_flow *f)
{
	return (f->want_sndbuf || f->want_rcvbuf) && f->seen_at - f->wished_at < BW_WISH_PATIENCE;
}

static bool wish(struct bw_flow *f, __u64 cookie, __u32 sndbuf, __u32 rcvbuf, __u32 clamp)
{
	struct bw_wish *w = bpf_ringbuf_reserve(&wishes, sizeof(*w), 0);

	/* A full ring: the next look wishes again. */
	if (!w)
		return false;
	w->cookie = cookie;
	w->sndbuf = sndbuf;
	w->rcvbuf = rcvbuf;
	w->clamp = clamp;
	w->unused = 0;
	f->wished_at = f->seen_at;
	bpf_ringbuf_submit(w, 0);
	return true;
}

/*
 * Sets the send buffer to hold that payload. Beyond the cap a call from here would cut the buffer to the cap, so
 * that is left to user space, as long as there is one.
 */
static void set_send(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		     __u64 payload, bool stale)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int value = bw_min(bw_min(payload, config.max_send), 1 << 30);

	f->decided_send = value;
	if (config.observe_only)
		return;
	if (value > config.send_cap && !stale) {
		if ((f->set_sndbuf && f->sndbuf == 2 * value) || is_wishing(f))
			return;
		f->want_sndbuf = 2 * value;
		wish(f, cookie, f->want_sndbuf, 0, 0);
		if (f->sndbuf >= 2ULL * config.send_cap)
			return;
		/* Until then, or where nobody can: as much as may be. */
		value = config.send_cap;
	}
	if (f->set_sndbuf && f->sndbuf == 2 * value)
		return;
	if (bpf_setsockopt(ctx, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)))
		return;
	f->sndbuf = sk->sk_sndbuf;
	f->set_sndbuf = f->sndbuf;
	f->send_changes++;
}

static void set_rcvbuf(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		       __u64 memory, bool stale)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int value = bw_min(memory / 2, 1 << 30);

	if (value > config.receive_cap && !stale) {
		if (is_wishing(f))
			return;
		f->want_rcvbuf = 2 * value;
		wish(f, cookie, 0, f->want_rcvbuf, 0);
		if (f->rcvbuf >= 2ULL * config.receive_cap)
			return;
		value = config.receive_cap;
	}
	if (bpf_setsockopt(ctx, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)))
		return;
	f->rcvbuf = sk->sk_rcvbuf;
	f->set_rcvbuf = f->rcvbuf;
}

/* Before Linux 5.11 a program may not set it: then user space is asked, once for each value. */
static void set_clamp(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
		      __u64 window, bool stale)
{
	int value = bw_min(window, 1 << 30);

	if (!value)
		return;
	/* It may be so by itself, or by what user space was asked for. */
	if (tp->window_clamp == value) {
		f->want_clamp = 0;
	} else if (bpf_setsockopt(ctx, SOL_TCP, TCP_WINDOW_CLAMP, &value, sizeof(value))) {
		if (stale || f->want_clamp == value || !wish(f, cookie, 0, 0, value))
			return;
		f->want_clamp = value;
	}
	if (f->set_clamp != value)
		f->clamp_changes++;
	f->set_clamp = value;
}

#include "pace.h"
#include "glance.h"

/* ---- The send side -------------------------------------------------------------------------------------- */

/*
 * Not static, so that the verifier proves it once by itself, and not again for every way in which its caller may go on;
 * by the cookie, for older kernels take numbers alone as arguments of such functions.
 */
__noinline __u64 send_bound(__u64 cookie, __u32 app_limited)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_bound_of(&config, f, app_limited) : BW_NO_LIMIT;
}

static void tune_send(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie, __u64 now)
{
	struct bw_order *order = config.send_rule == BW_SEND_SABT ? bpf_map_lookup_elem(&orders, &cookie) : NULL;
	__u32 app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	bool stale = is_stale(now);
	__u64 bound = send_bound(cookie, app_limited);
	struct bw_send_decision d;

	bw_decide_send(&d, &config, &control, order, f, app_limited, stale, bound);
	if (d.payload == BW_LEAVE || f->owned & SEND_LOCK)
		return;
	set_send(ctx, f, tp, cookie, d.payload, stale);
	if (config.send_rule != BW_SEND_FIXED)
		hold_to_share(ctx, f, &tp->inet_conn.icsk_inet.sk, d.share);
}

static void look_at_sender(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct bw_glance *glance)
{
	__u64 cookie = cookie_of(tp), now = tp->tcp_mstamp;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f)
		return;
	look(f, tp, now);
	f->rtt_at = now;
	settle(f, &tp->inet_conn.icsk_inet.sk);
	if (config.send_rule != BW_SEND_KERNEL)
		tune_send(ctx, f, tp, cookie, now);
	rest_rounds(glance, f, tp);
}

static void on_rtt(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_glance *glance;
	struct tcp_sock *tp;

	if (!ctx->is_fullsock || !sk)
		return;
	glance = glance_of(sk);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!glance || !tp || glance->next_look == BW_NEVER)
		return;
	glance->rtt_at = tp->tcp_mstamp;
	if (is_round_due(glance, tp))
		look_at_sender(ctx, tp, glance);
}

#include "receive.h"
#include "nearer.h"
#include "sweep.h"

/* ---- Birth and death ------------------------------------------------------------------------------------ */

/*
 * A small document is sent in one round trip: its size is the initial window and the send buffer (002, section
 * 2.2.2). Nobody knows yet how large it will be, so the threshold stands for it; today's initial window is kept
 * where it is larger.
 */
static void welcome_document(struct bpf_sock_ops *ctx, const struct bw_flow *f)
{
	__u32 mss = bw_mss(f->mss);
	int segments = bw_min((config.small_document + mss - 1) / mss, BW_LARGEST_INITIAL_WINDOW);

	if (segments > BW_INITIAL_WINDOW && !config.observe_only)
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
}

static void on_established(struct bpf_sock_ops *ctx, bool initiator)
{
	__u64 cookie = bpf_get_socket_cookie(ctx), now = bpf_ktime_get_ns() / 1000;
	struct tcp_sock *tp = tcp_of(ctx);
	struct bw_flow *f;

	if (!tp || is_taken(ctx))
		return;
	f = remember(cookie, tp, now);
	if (!f)
		return;
	take(ctx);
	f->initiator = initiator;
	f->state = BPF_TCP_ESTABLISHED;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | wanted_callbacks());
	if (config.small_document)
		welcome_document(ctx, f);
	/* What the kernel begins with, 87 KB by default, is more than a share may be. */
	if (config.send_rule == BW_SEND_FIXED || config.send_rule == BW_SEND_EQ || control.send_level != BW_NO_LIMIT)
		tune_send(ctx, f, tp, cookie, now);
}

static void on_state(struct bpf_sock_ops *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx), now = bpf_ktime_get_ns() / 1000;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);
	struct tcp_sock *tp = tcp_of(ctx);
	__u32 state = ctx->args[1];

	if (!f)
		return;
	f->state = state;
	if (tp)
		look(f, tp, now);
	if (state == BPF_TCP_CLOSE && is_stale(now)) {
		bpf_map_delete_elem(&flows, &cookie);
		bpf_map_delete_elem(&orders, &cookie);
	}
}

SEC("sockops")
int bufwise_flow(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		on_established(ctx, true);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_established(ctx, false);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		if (!config.only_called)
			on_rtt(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (!config.only_called)
			on_segment(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		on_state(ctx);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
