/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The receive side: from the segments of a connection to its window, and to the memory behind that.
 *
 * Problem: the receive rules measure once per round trip of the receiver, and no callback comes so often and no more
 * often. HDR_OPT_LEN comes whenever a segment is built, which for a receiver is about every acknowledgement; so most of
 * these must be let go for next to nothing (glance.h), and a look be taken only when the rule has something to measure.
 * And the kernel's own autotuning raises sk_rcvbuf and overwrites the clamp: the buffer is set, which locks it, and
 * a clamp that has changed is set again.
 *
 * Source: DRS and SOBAS in policy.h and sobas.h, whose heads name the papers. Here: what they are fed, how often, and
 * how their window is applied (TCP_WINDOW_CLAMP, SO_RCVBUF).
 *
 * Properties kept: a buffer that the application set is not touched, nor is its window. What the peer may send
 * already has room. The buffer only grows here, except to the size of the fixed rule; sweep.h shrinks it. A share never
 * takes the window below the rules' floor.
 */
#ifndef BUFWISE_RECEIVE_H
#define BUFWISE_RECEIVE_H

/* DRS's first window in segments: what 003 allowed a modem (section 8.2). */
#define BW_INITIAL_SEGMENTS 8
/* SOBAS looks this often per round trip and when a measurement is due, within these bounds (us). */
#define BW_LOOKS 4
#define BW_LOOK_SHORTEST 500
#define BW_LOOK_LONGEST BW_SLOT
/* A sender-side round-trip time older than this many of itself says nothing of the path now. */
#define BW_FRESH_RTTS 8
/* DRS's measurements grow while the largest rises by more than a quarter per round trip. */
#define BW_DRS_GROWN_BY 4
/* The window makes room for a queue that makes the round trip up to this many times as long: twice, and an eighth. */
#define BW_DRS_QUEUED 17
#define BW_DRS_QUEUED_DENOMINATOR 8
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
 * fills a queue of up to a bandwidth-delay product has more under way than arrives in the shortest round trip; the
 * window follows the present one. A queue that is longer is none to be fed.
 */
static __u64 drs_window(struct bw_flow *f, const struct bw_receive_sample *x)
{
	__u64 window = bw_drs_observe(&f->drs, x, bw_mss(x->mss) * BW_INITIAL_SEGMENTS, config.max_window);
	__u64 rtt = bw_min(unloaded_rtt(f), BW_LONGEST), now = bw_min(f->rcv_rtt, BW_LONGEST);

	if (f->drs.began_at != f->drs_began_at) {
		f->drs_grows = f->drs.largest * BW_DRS_GROWN_BY > f->drs_before * (BW_DRS_GROWN_BY + 1);
		f->drs_began_at = f->drs.began_at;
		f->drs_before = f->drs.largest;
	}
	if (f->drs_grows)
		window *= 2;
	else if (now > rtt && now * BW_DRS_QUEUED_DENOMINATOR <= rtt * BW_DRS_QUEUED)
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
	/*
	 * What the peer may send already has room: an adopted connection's window may be open wide, and how much memory
	 * a full one takes nobody knows beforehand. So it keeps its buffer at first.
	 */
	if (!f->set_rcvbuf || fixed)
		wanted = bw_max(wanted, memory_of_window(tp));
	if (f->adopted && !f->set_rcvbuf)
		wanted = bw_max(wanted, f->rcvbuf);
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

/* When the rule has something to measure; SOBAS, which also counts losses and time, some times per round trip too. */
static __u64 next_look(const struct bw_flow *f, __u64 now)
{
	__u64 rtt = unloaded_rtt(f), next = now + bw_min(rtt / BW_LOOKS, BW_LOOK_LONGEST), due;

	if (config.receive_rule == BW_RECEIVE_SOBAS) {
		due = f->sobas.start + f->sobas.length;
		next = due > now ? bw_min(due, next) : next;
	} else {
		due = f->drs.began_at + rtt;
		next = due > now ? bw_min(due, now + BW_LONGEST_REST) : next;
	}
	return bw_max(next, now + BW_LOOK_SHORTEST);
}

static void look_at_receiver(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct bw_glance *glance)
{
	__u64 cookie = cookie_of(tp), now = bpf_ktime_get_ns() / 1000, window;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f)
		return;
	look(f, tp, now);
	f->rtt_at = bw_max(f->rtt_at, glance->rtt_at);
	settle(f, &tp->inet_conn.icsk_inet.sk);
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

	/* Asked for its size only, as by every call that sends. */
	if (ctx->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS || !ctx->is_fullsock || !sk)
		return;
	glance = glance_of(sk);
	tp = bpf_skc_to_tcp_sock(sk);
	if (glance && tp && is_look_due(glance, tp))
		look_at_receiver(ctx, tp, glance);
}

#endif
