/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Sizes the buffers of the connections of one cgroup, from inside the kernel's TCP.
 *
 * One sock_ops program. ESTABLISHED: who owns the buffers, and which callbacks to make. RTT (once per round
 * trip, where data is sent): the send rule, applied as SO_SNDBUF. HDR_OPT_LEN (whenever a segment is built; no
 * option is reserved): the receive rule, some times per round trip, applied as TCP_WINDOW_CLAMP. STATE: the
 * last look. What none of these sees, an iterator does (sweep.h): connections that were there before, and silent
 * ones. User space reads the flows, and tells the shares of the memory (struct bw_control, bw_order).
 *
 * What may not be done from here (beyond wmem_max and rmem_max) is wished for through a ring buffer.
 * When user space is gone for longer than config.stale_ns the shares no longer count, and closed connections are
 * forgotten here.
 */
#include "vmlinux.h"
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"

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
/* DRS's first window in segments: what 003 allowed a modem (section 8.2). */
#define BW_INITIAL_SEGMENTS 8
/* A receive rule looks this often per round trip and when a measurement is due, within these bounds (us). */
#define BW_LOOKS 4
#define BW_LOOK_SHORTEST 500
#define BW_LOOK_LONGEST BW_SLOT
/* A sender-side round-trip time older than this many of itself says nothing of the path now. */
#define BW_FRESH_RTTS 8
/* DRS's measurements grow while the largest rises by more than a quarter per round trip. */
#define BW_DRS_GROWN_BY 4
/* The window makes room for a queue that makes the round trip this many times as long. */
#define BW_DRS_QUEUED 2
/* Receive buffer at the start; under SOBAS it doubles when the window has reached a quarter of it. */
#define BW_FIRST_RCVBUF (1 << 20)
#define BW_RCVBUF_FILLED 4
/* tcp_sock.scaling_ratio: window per memory of the receive buffer, in 256ths. */
#define BW_SCALING_SHIFT 8
/* That ratio is the last segment's; others may need more: an eighth. */
#define BW_ROOM_SLACK 8
/* SOBAS: the window holds a little more than R * T0, or the clock's and the hosts' jitter would starve it. */
#define BW_SOBAS_SLACK_SHIFT 4
#define BW_SOBAS_JITTER 500

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

/*
 * What a segment is asked: is a look due, or has the clamp been overwritten? Most are let go by this alone: a
 * socket's own storage is found in a fraction of the time that the flow takes.
 */
struct bw_glance {
	__u64 next_look;
	/* As set; 0: none. */
	__u32 clamp;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bw_glance);
} glances SEC(".maps");

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
	f->delivered = tp->rate_delivered;
	f->delivered_in = tp->rate_interval_us;
	f->sndbuf = sk->sk_sndbuf;
	f->rcvbuf = sk->sk_rcvbuf;
	queued = sk->sk_wmem_queued;
	f->send_queued = queued;
	if (queued > f->send_queued_max)
		f->send_queued_max = queued;
}

/*
 * A limit that is neither the kernel's nor ours is the application's: ours locks the buffer, so only a
 * setsockopt() can have moved it since.
 */
static void watch_owner(struct bw_flow *f)
{
	if (config.take_over)
		return;
	if (f->set_sndbuf && f->sndbuf != f->set_sndbuf && f->sndbuf != f->want_sndbuf)
		f->owned |= SEND_LOCK;
	if (f->set_rcvbuf && f->rcvbuf != f->set_rcvbuf && f->rcvbuf != f->want_rcvbuf)
		f->owned |= RECEIVE_LOCK;
}

/* ---- Setting -------------------------------------------------------------------------------------------- */

/* A wish is given this long (us); another one in between would make its fulfilment look like the application's. */
#define BW_WISH_PATIENCE 1000000

static bool is_wishing(const struct bw_flow *f)
{
	bool open = (f->want_sndbuf && f->sndbuf != f->want_sndbuf) ||
		    (f->want_rcvbuf && f->rcvbuf != f->want_rcvbuf);

	return open && f->seen_at - f->wished_at < BW_WISH_PATIENCE;
}

static void wish(struct bw_flow *f, __u64 cookie, __u32 sndbuf, __u32 rcvbuf)
{
	struct bw_wish *w = bpf_ringbuf_reserve(&wishes, sizeof(*w), 0);

	/* A full ring: the next look wishes again. */
	if (!w)
		return;
	w->cookie = cookie;
	w->sndbuf = sndbuf;
	w->rcvbuf = rcvbuf;
	f->wished_at = f->seen_at;
	bpf_ringbuf_submit(w, 0);
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
		if (f->sndbuf == 2 * value || is_wishing(f))
			return;
		f->want_sndbuf = 2 * value;
		wish(f, cookie, f->want_sndbuf, 0);
		if (f->sndbuf >= 2ULL * config.send_cap)
			return;
		/* Until then, or where nobody can: as much as may be. */
		value = config.send_cap;
	} else {
		f->want_sndbuf = 0;
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
		wish(f, cookie, 0, f->want_rcvbuf);
		if (f->rcvbuf >= 2ULL * config.receive_cap)
			return;
		value = config.receive_cap;
	}
	if (bpf_setsockopt(ctx, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)))
		return;
	f->rcvbuf = sk->sk_rcvbuf;
	f->set_rcvbuf = f->rcvbuf;
}

static void set_clamp(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 window)
{
	int value = bw_min(window, 1 << 30);

	if (!value || tp->window_clamp == value)
		return;
	if (bpf_setsockopt(ctx, SOL_TCP, TCP_WINDOW_CLAMP, &value, sizeof(value)))
		return;
	if (f->set_clamp != value)
		f->clamp_changes++;
	f->set_clamp = value;
}

#include "pace.h"

/* ---- The send side -------------------------------------------------------------------------------------- */

static void tune_send(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie, __u64 now)
{
	struct bw_order *order = config.send_rule == BW_SEND_SABT ? bpf_map_lookup_elem(&orders, &cookie) : NULL;
	bool stale = is_stale(now);
	__u64 limit = control.send_level, payload;
	struct bw_send_sample x = {
		.cwnd = (__u64)f->cwnd * f->mss,
		.mss = f->mss,
		.bytes_acked = f->bytes_acked,
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
	};
	struct bw_send_bounds b = {
		.max = config.max_send,
		.demand = order ? order->demand : 0,
		.pressure = control.pressure,
		.stale = stale,
	};

	x.app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	if (order)
		limit = order->limit;
	b.limit = limit == BW_NO_LIMIT ? limit : limit / 2;
	/* A small document is no matter of shares (002, section 2.2.2). */
	if (f->bytes_acked < config.small_document) {
		b.limit = BW_NO_LIMIT;
		b.pressure = 0;
	}
	payload = bw_send_target(config.send_rule, config.fixed, &f->abt, &x, &b);
	if (f->bytes_acked < config.small_document && payload != BW_LEAVE)
		payload = bw_max(payload, config.small_document);
	if (payload == BW_LEAVE || f->owned & SEND_LOCK)
		return;
	set_send(ctx, f, tp, cookie, payload, stale);
	if (config.send_rule != BW_SEND_FIXED)
		hold_to_share(ctx, f, &tp->inet_conn.icsk_inet.sk, stale ? BW_NO_LIMIT : b.limit);
}

static void on_rtt(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = tcp_of(ctx);
	__u64 cookie, now;
	struct bw_flow *f;

	if (!tp)
		return;
	cookie = cookie_of(tp);
	now = tp->tcp_mstamp;
	f = bpf_map_lookup_elem(&flows, &cookie);
	if (!f)
		return;
	look(f, tp, now);
	f->rtt_at = now;
	if (f->want_sndbuf && f->sndbuf == f->want_sndbuf && f->set_sndbuf != f->sndbuf) {
		f->set_sndbuf = f->sndbuf;
		f->send_changes++;
	}
	watch_owner(f);
	if (config.send_rule != BW_SEND_KERNEL)
		tune_send(ctx, f, tp, cookie, now);
}

/* ---- The receive side ----------------------------------------------------------------------------------- */

static __u64 shorter(__u64 a, __u64 b)
{
	return !a || (b && b < a) ? b : a;
}

/* The path's round-trip time without a queue: the handshake's, or whatever was shorter since. */
static __u64 unloaded_rtt(const struct bw_flow *f)
{
	__u64 rtt = f->min_rtt == ~0U ? 0 : f->min_rtt;

	return shorter(rtt, f->drs.own_rtt);
}

/*
 * DRS measures once per round trip, and what it measured is a round trip old when it counts: a sender in slow
 * start has doubled twice by then. So while the measurements grow, the window doubles once more. Later a sender that
 * fills a queue has more under way than arrives in the shortest round trip; the window follows the present one, to
 * twice the shortest: a queue of one bandwidth-delay product, and none that stands for seconds.
 */
static __u64 drs_window(struct bw_flow *f, const struct bw_receive_sample *x)
{
	__u64 window = bw_drs_observe(&f->drs, x, bw_mss(x->mss) * BW_INITIAL_SEGMENTS, config.max_window);
	__u64 rtt = bw_min(unloaded_rtt(f), BW_LONGEST), now = bw_min(f->rcv_rtt, BW_DRS_QUEUED * rtt);

	if (f->drs.began_at != f->drs_began_at) {
		f->drs_grows = f->drs.largest * BW_DRS_GROWN_BY > f->drs_before * (BW_DRS_GROWN_BY + 1);
		f->drs_began_at = f->drs.began_at;
		f->drs_before = f->drs.largest;
	}
	if (f->drs_grows)
		window *= 2;
	else if (rtt && now > rtt)
		window = window * now / rtt;
	return bw_min(window, config.max_window);
}

/*
 * The window that the rule wants. Not static, so that the verifier proves it once by itself, and not again for every
 * way in which its caller may go on.
 */
__noinline __u64 receive_window(struct bw_flow *f, __u64 now)
{
	struct bw_receive_sample x = { .now = now };
	__u64 drs, rtt;

	if (!f)
		return 0;
	x.received = f->bytes_received;
	x.mss = bw_max(f->rcv_mss, f->mss);
	/* The handshake's, before there is one of the receiver's own. */
	x.rcv_rtt = shorter(f->rcv_rtt, unloaded_rtt(f));
	x.scale = f->rcv_wscale;
	if (config.receive_rule == BW_RECEIVE_FIXED)
		return config.fixed;
	if (f->rtt_at && now - f->rtt_at < (__u64)f->srtt * BW_FRESH_RTTS)
		x.srtt = f->srtt;
	drs = drs_window(f, &x);
	if (config.receive_rule != BW_RECEIVE_SOBAS)
		return drs;
	rtt = unloaded_rtt(f);
	x.srtt = 0;
	x.rcv_rtt = rtt ? rtt + (rtt >> BW_SOBAS_SLACK_SHIFT) + BW_SOBAS_JITTER : 0;
	x.losses = bw_slots_observe(&f->slots, now, f->out_of_order);
	return bw_sobas_observe(&f->sobas, &x, config.max_window);
}

/* Memory for what nobody has read yet, and for the window, which the peer may fill at any time. */
static __u64 memory_of_window(const struct tcp_sock *tp)
{
	__s32 window = tp->rcv_wup + tp->rcv_wnd - tp->copied_seq;
	__u64 offered = window > 0 ? window : 0;

	__u64 memory = tp->scaling_ratio ? (offered << BW_SCALING_SHIFT) / tp->scaling_ratio : 2 * offered;

	return memory + memory / BW_ROOM_SLACK;
}

/* The buffer grows with the window that is used, so that a reader that stops reading costs little. */
static void grow_rcvbuf(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
			__u64 window, __u64 now)
{
	__u64 largest = bw_min(bw_times(config.max_window, 2), 1ULL << 30), wanted = BW_FIRST_RCVBUF;
	bool fixed = config.receive_rule == BW_RECEIVE_FIXED;

	if (fixed)
		wanted = 2 * window;
	else if (config.receive_rule == BW_RECEIVE_DRS)
		wanted = bw_max(wanted, bw_times(window, 2));
	else if (f->set_rcvbuf && (__u64)f->rcv_wnd * BW_RCVBUF_FILLED > f->rcvbuf)
		wanted = 2ULL * f->rcvbuf;
	wanted = bw_min(wanted, largest);
	/* What the peer may send already has room: an adopted connection's window may be open wide. */
	if (!f->set_rcvbuf || fixed)
		wanted = bw_max(wanted, memory_of_window(tp));
	if (!f->set_rcvbuf || wanted > f->rcvbuf || (fixed && wanted < f->rcvbuf))
		set_rcvbuf(ctx, f, tp, cookie, wanted, is_stale(now));
}

/* The window within the connection's share of the memory, as long as somebody speaks of shares. */
static __u64 shared_window(const struct bw_flow *f, __u64 window, __u64 now)
{
	__u64 floor = (__u64)bw_mss(bw_max(f->rcv_mss, f->mss)) * BW_DRS_FLOOR_SEGMENTS;

	if (is_stale(now))
		return window;
	return bw_min(window, bw_max(control.window_level, floor));
}

/* When the rule has something to measure, or else some times per round trip. */
static __u64 next_look(const struct bw_flow *f, __u64 now)
{
	__u64 rtt = unloaded_rtt(f), next = now + bw_min(rtt / BW_LOOKS, BW_LOOK_LONGEST);
	__u64 due = config.receive_rule == BW_RECEIVE_SOBAS ? f->sobas.start + f->sobas.length :
							      f->drs.began_at + rtt;

	return bw_max(due > now ? bw_min(due, next) : next, now + BW_LOOK_SHORTEST);
}

static void look_at_receiver(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct bw_glance *glance)
{
	__u64 cookie = cookie_of(tp), now = bpf_ktime_get_ns() / 1000, window;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f)
		return;
	look(f, tp, now);
	if (f->want_rcvbuf && f->rcvbuf == f->want_rcvbuf)
		f->set_rcvbuf = f->rcvbuf;
	watch_owner(f);
	window = shared_window(f, receive_window(f, now), now);
	f->decided_window = window;
	glance->next_look = next_look(f, now);
	glance->clamp = 0;
	if (config.observe_only || f->owned & RECEIVE_LOCK)
		return;
	grow_rcvbuf(ctx, f, tp, cookie, window, now);
	set_clamp(ctx, f, tp, window);
	glance->clamp = tp->window_clamp;
}

static void on_segment(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_glance *glance;
	struct tcp_sock *tp;

	if (!ctx->is_fullsock || !sk)
		return;
	glance = bpf_sk_storage_get(&glances, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!glance || !tp)
		return;
	/* TCP's own clock, read when the segment's cause came: no call is needed to read it. */
	if (tp->tcp_mstamp >= glance->next_look || (glance->clamp && tp->window_clamp != glance->clamp))
		look_at_receiver(ctx, tp, glance);
}

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

	if (!tp)
		return;
	f = remember(cookie, tp, now);
	if (!f)
		return;
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
		on_rtt(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		on_segment(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		on_state(ctx);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
