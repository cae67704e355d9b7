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

/* SOBAS looks this often per round trip and when a measurement is due, within these bounds (us). */
#define BW_LOOKS 4
#define BW_LOOK_SHORTEST 500
#define BW_LOOK_LONGEST BW_SLOT
/* tcp_sock.scaling_ratio: window per memory of the receive buffer, in 256ths. */
#define BW_SCALING_SHIFT 8
#define BW_SCALING_HALF (1 << (BW_SCALING_SHIFT - 1))
/* That ratio is the last segment's; others may need more: an eighth. */
#define BW_ROOM_SLACK 8

/*
 * The receive rule, part by part. These are not static, so that the verifier proves each of them once by itself, and not
 * again for every way in which its caller may go on. Kernels before Linux 5.13 take numbers alone as arguments of such
 * functions: each finds the record anew.
 */
__noinline __u64 drs_window(__u64 cookie, __u64 now)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_decide_drs(&config, f, now) : 0;
}

__noinline int sobas_take_in(__u64 cookie, __u64 now)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_sobas_part_take_in(&config, f, now) : 0;
}

__noinline int sobas_is_flat(__u64 cookie)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_sobas_part_is_flat(f) : 0;
}

__noinline int sobas_conclude(__u64 cookie, int flat)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_sobas_part_conclude(&config, f, flat);
	return 0;
}

/* As bw_decide_window(). */
static __u64 receive_window(const struct bw_flow *f, __u64 cookie, __u64 now)
{
	__u64 drs;

	if (config.receive_rule == BW_RECEIVE_FIXED)
		return config.fixed;
	drs = drs_window(cookie, now);
	if (config.receive_rule != BW_RECEIVE_SOBAS)
		return drs;
	if (sobas_take_in(cookie, now))
		sobas_conclude(cookie, sobas_is_flat(cookie));
	return f->sobas.window;
}

/* The socket's scaling_ratio; before Linux 6.6 a window took half of the buffer (tcp_adv_win_scale = 1). */
static __u32 scaling_ratio(const struct tcp_sock *tp)
{
	__u32 ratio = bpf_core_field_exists(tp->scaling_ratio) ? tp->scaling_ratio : 0;

	return ratio ? ratio : BW_SCALING_HALF;
}

/* Memory for the data that is not yet read, and for the window, which the peer may fill at any time. */
static __u64 memory_of_window(const struct tcp_sock *tp)
{
	__s32 window = tp->rcv_wup + tp->rcv_wnd - tp->copied_seq;
	__u64 offered = window > 0 ? window : 0;
	__u64 memory = (offered << BW_SCALING_SHIFT) / scaling_ratio(tp);

	return memory + memory / BW_ROOM_SLACK;
}

static void grow_rcvbuf(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
			__u64 window, bool stale)
{
	__u64 wanted = bw_decide_rcvbuf(&config, f, window, memory_of_window(tp));

	if (wanted)
		set_rcvbuf(ctx, f, tp, cookie, wanted, stale);
}

/* When the rule has something to measure; SOBAS, which also counts losses and time, some times per round trip too. */
static __u64 next_look(const struct bw_flow *f, __u64 now)
{
	__u64 rtt = bw_unloaded_rtt(f), next = now + bw_min(rtt / BW_LOOKS, BW_LOOK_LONGEST), due;

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
	bool stale = is_stale(now);

	if (!f)
		return;
	look(f, tp, now);
	f->rtt_at = bw_max(f->rtt_at, glance->rtt_at);
	settle(f, &tp->inet_conn.icsk_inet.sk);
	window = bw_shared_window(&control, f, receive_window(f, cookie, now), stale);
	f->decided_window = window;
	glance->next_look = next_look(f, now);
	glance->clamp = 0;
	if (config.observe_only || f->owned & RECEIVE_LOCK)
		return;
	grow_rcvbuf(ctx, f, tp, cookie, window, stale);
	set_clamp(ctx, f, tp, cookie, window, stale);
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
