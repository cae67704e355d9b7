/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The receive side: sets a connection's window, and the memory behind it, as its segments come.
 *
 * Problem: the receive rules measure once per round trip of the receiver, and the kernel has no callback with this
 * pace. HDR_OPT_LEN comes whenever a segment is built, which for a receiver is about every acknowledgement. So most
 * calls must be cheap (fast.h), and a sample is taken only when the rule has something to measure. The kernel's
 * autotuning raises sk_rcvbuf and overwrites the clamp. So the buffer is set, which locks it, and a clamp that has
 * changed is set again.
 *
 * Properties kept: a buffer that the application set is not touched, and neither is its window, nor a clamp that the
 * application set. The buffer has room for all that the peer is allowed to send, and for what the reader waits for
 * (SO_RCVLOWAT). It shrinks only to the fixed rule's size, or when the share leaves less room; sweep.h shrinks the buffers of
 * idle connections. A share never takes the window below DRS's floor.
 */
#ifndef BUFWISE_RECEIVER_H
#define BUFWISE_RECEIVER_H

#include "resting.h"

/*
 * The receive rule, part by part. The parts are global functions, not static, so that the verifier checks each once,
 * and not for every path of its caller. Before Linux 5.13 global functions take only numbers, so each looks the record
 * up again.
 */
__noinline __u64 drs_window(__u64 cookie, __u64 now)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_decide_drs(&config, f, now) : 0;
}

__noinline int take_arrivals(__u64 cookie, __u64 now)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_take_arrivals(f, now);
	return 0;
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

__noinline int fit_watch(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_fit_part_watch(&config, f, now, drs) : 0;
}

__noinline int fit_judge_pacing(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_fit_part_judge_pacing(&config, f, now, drs);
	return 0;
}

__noinline int fit_go_on(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_fit_part_go_on(&config, f, now, drs);
	return 0;
}

__noinline int fit_end_round(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_fit_part_end_round(&config, f, now, drs) : 0;
}

__noinline int fit_judge(__u64 cookie, __u64 now, __u64 drs, int is_futile)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_fit_part_judge(&config, f, now, drs, is_futile) : 0;
}

__noinline int fit_follow(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_fit_part_follow(&config, f, now, drs);
	return 0;
}

__noinline __u64 fit_offer(__u64 cookie, __u64 now, __u64 drs)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_fit_part_offer(&config, f, now, drs) : drs;
}

/* Stores what bw_room_news() has found in the entry of the connection's peer (peers.h). */
__noinline int learn_room(__u64 cookie, __u64 now, int news)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);
	struct bw_room fresh = {}, *r;
	struct bw_peer peer;

	if (!f)
		return 0;
	fill_peer(&peer, f);
	r = bpf_map_lookup_elem(&rooms, &peer);
	if (r) {
		bw_room_learn(r, &f->fit_window, news, now);
		return 0;
	}
	bw_room_learn(&fresh, &f->fit_window, news, now);
	bpf_map_update_elem(&rooms, &peer, &fresh, BPF_ANY);
	return 0;
}

/* Returns the receive rule's window (payload), before the share; as bw_decide_window() in rules_receive.h. */
static __u64 receive_window(const struct bw_flow *f, __u64 cookie, __u64 now)
{
	__u64 drs;
	int seen, news;

	if (config.receive_rule == BW_RECEIVE_FIXED)
		return config.fixed;
	take_arrivals(cookie, now);
	drs = drs_window(cookie, now);
	if (config.receive_rule == BW_RECEIVE_FIT) {
		if (fit_watch(cookie, now, drs)) {
			if (bw_fit_window_is_starting(&f->fit_window))
				fit_judge_pacing(cookie, now, drs);
			fit_go_on(cookie, now, drs);
			seen = fit_end_round(cookie, now, drs);
			if (seen && fit_judge(cookie, now, drs, seen > 1))
				fit_follow(cookie, now, drs);
			news = bw_room_news_of(f);
			if (news)
				learn_room(cookie, now, news);
		}
		return fit_offer(cookie, now, drs);
	}
	if (config.receive_rule != BW_RECEIVE_SOBAS)
		return drs;
	if (sobas_take_in(cookie, now))
		sobas_conclude(cookie, sobas_is_flat(cookie));
	return f->sobas.window;
}

static void size_rcvbuf(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie,
			__u64 window, bool stale)
{
	__u64 share = stale ? BW_NO_LIMIT : control.window_level;
	__u64 wanted = bw_decide_rcvbuf(&config, f, share, window, memory_in_use(f, tp), memory_awaited(tp));

	if (wanted)
		set_rcvbuf(ctx, f, tp, cookie, wanted, stale);
}

/* Whether the receive rule is fit and arriving segments make no callback. */
static bool misses_arrivals(const struct bpf_sock_ops *ctx)
{
	return config.receive_rule == BW_RECEIVE_FIT &&
	       !(ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
}

/*
 * Asks for the callback of each arriving segment until all holes are filled, because fit's window grows by what arrives
 * behind holes. HDR_OPT_LEN does not suffice there: an acknowledgement that lists three runs of segments (SACK) has no
 * space for further options, so the kernel does not call the programs for it.
 */
static void watch_hole(struct bpf_sock_ops *ctx, struct bw_flow *f)
{
	if (misses_arrivals(ctx))
		ask(ctx, f, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
}

/*
 * Whether the window is to be opened, because the application has set its receive buffer after bufwise had bounded the window: the
 * buffer alone bounds it from then on.
 */
static bool is_window_to_open(const struct bw_flow *f)
{
	return f->owned & BW_RECEIVE_LOCK && f->set_clamp && f->set_clamp != bw_largest_window(f);
}

static void sample_receiver(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct bw_fast *fast)
{
	__u64 cookie = cookie_of(tp), now = bpf_ktime_get_ns() / 1000, window;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);
	bool stale = is_stale(now);

	if (is_over(f)) {
		fast->next_window = BW_UNTIL_ADOPTED;
		/* Giving back opens the clamp, and another clamp would make a sample due at each segment. */
		fast->clamp = 0;
		return;
	}
	sample(f, tp, now);
	f->rtt_at = bw_max(f->rtt_at, fast->rtt_at);
	settle(f, &tp->inet_conn.icsk_inet.sk);
	bw_settle_clamp(&config, f, tp->window_clamp, ratio_of(tp));
	window = bw_shared_window(&control, f, receive_window(f, cookie, now), stale);
	f->decided_window = window;
	fast->next_window = bw_next_window(&config, f, now);
	if (f->arrivals.behind)
		watch_hole(ctx, f);
	fast->clamp = 0;
	if (keeps_window(fast, f, tp))
		return;
	fast->received = tp->bytes_received;
	/* A window that stays as the application has bounded it, or under --dry-run, needs no sample at each burst (is_burst()). */
	fast->clamp = tp->window_clamp;
	if (config.observe_only)
		return;
	if (bw_may_size_rcvbuf(f))
		size_rcvbuf(ctx, f, tp, cookie, window, stale);
	else if (is_window_to_open(f))
		window = bw_largest_window(f);
	else
		return;
	set_clamp(ctx, f, tp, cookie, window, stale);
	fast->clamp = tp->window_clamp;
}

/* Whether a receiver with the kernel's window has received more than little; false if another program has the connection. */
static bool is_burst(const struct bw_fast *fast, const struct tcp_sock *tp)
{
	return config.record_after && fast->next_window < BW_CLOSED &&
	       bw_is_burst(fast, tp->bytes_received, tp->advmss);
}

/* Whether segments wait behind a hole that no sample has seen yet. */
static bool is_hole_new(const struct bpf_sock_ops *ctx, const struct bw_fast *fast, const struct tcp_sock *tp)
{
	return misses_arrivals(ctx) && fast->next_window < BW_CLOSED && tp->out_of_order_queue.rb_node;
}

/* Called for each segment that arrives while others wait behind a hole; returns false once none waits. */
static bool on_segment_behind(struct bpf_sock_ops *ctx, const struct bw_flow *f, struct tcp_sock *tp)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_fast *fast;

	if (!f->arrivals.behind || !ctx->is_fullsock || !sk)
		return false;
	fast = fast_of(sk);
	if (!fast || fast->next_window >= BW_CLOSED)
		return false;
	if (bw_is_window_due(fast, tp->tcp_mstamp, tp->window_clamp))
		sample_receiver(ctx, tp, fast);
	return f->arrivals.behind;
}

static void on_segment(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_fast *fast;
	struct tcp_sock *tp;

	if (!ctx->is_fullsock || !sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	fast = tp ? figures_of(ctx, sk, tp) : NULL;
	/* tcp_mstamp, TCP's time of the event that causes this segment, costs no helper call. */
	if (fast && (bw_is_window_due(fast, tp->tcp_mstamp, tp->window_clamp) || is_burst(fast, tp) || is_hole_new(ctx, fast, tp)))
		sample_receiver(ctx, tp, fast);
}

#endif
