/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The send side: at each round trip, sets a connection's send buffer, and the pacing rate that keeps it to its share.
 *
 * Properties kept: a buffer that the application set is not touched. A round trip that changes nothing ends in the fast
 * path (fast.h).
 */
#ifndef BUFWISE_SENDER_H
#define BUFWISE_SENDER_H

#include "resting.h"

/* Largest initial window for a small document, segments. */
#define BW_LARGEST_INITIAL_WINDOW 64

/*
 * The send rule, part by part. The parts are global functions, not static, so that the verifier checks each once, and
 * not for every path of its caller. Before Linux 5.13 global functions take only numbers, so each looks the record up
 * again.
 */
__noinline __u64 send_bound(__u64 cookie)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	return f ? bw_bound_of(&config, f) : BW_NO_LIMIT;
}

/* Returns a struct bw_step in one number: the request in the upper 32 bits, the value in the lower; BW_LEAVE: no step. */
__noinline __u64 send_step(__u64 cookie, __u64 now, __u64 bound)
{
	struct bw_order *order = config.send_rule == BW_SEND_SABT ? bpf_map_lookup_elem(&orders, &cookie) : NULL;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);
	struct bw_send_decision d;
	struct bw_step step;
	bool stale = is_stale(now);

	if (!f)
		return BW_LEAVE;
	bw_decide_send(&d, &config, &control, order, f, stale, bound);
	f->share = d.share;
	if (d.payload == BW_LEAVE || f->owned & BW_SEND_LOCK)
		return BW_LEAVE;
	bw_step_send(&step, &config, f, d.payload, stale);
	return (__u64)step.request << 32 | step.value;
}

__noinline int send_train(__u64 cookie, __u64 at)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (f)
		bw_fit_part_watch_train(f, at);
	return 0;
}

__noinline __u32 send_roof(__u64 cookie, __u64 at)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f)
		return 0;
	bw_fit_part_observe(f, at);
	return f->fit.roof;
}

/* Returns the pacing rate, bytes per second; 0: none. A buffer that the application owns has no share. */
__noinline __u32 send_rate(__u64 cookie)
{
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (!f)
		return 0;
	return bw_decide_pace(f, f->owned & BW_SEND_LOCK ? BW_NO_LIMIT : f->share);
}

/* Gives fit a sample of what was delivered by `at` (us), as bw_observe_fit() in rules_send.h; returns the roof (bytes/s), 0: none. */
static __u32 observe_fit(const struct bw_flow *f, __u64 cookie, __u64 at)
{
	if (f->fit.phase == BW_FIT_START)
		send_train(cookie, at);
	return send_roof(cookie, at);
}

static void tune_send(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie, __u64 now)
{
	__u64 step = send_step(cookie, now, send_bound(cookie));

	if (step != BW_LEAVE)
		set_send(ctx, f, tp, cookie, step >> 32, step);
	else if (config.send_rule != BW_SEND_FIT && !f->set_pace)
		return;
	if (config.send_rule != BW_SEND_FIXED && !config.published)
		set_pace(ctx, f, &tp->inet_conn.icsk_inet.sk, send_rate(cookie));
	if (config.send_rule == BW_SEND_FIT)
		set_unsent(ctx, f, tp);
}

static __u32 is_app_limited(struct tcp_sock *tp)
{
	const struct bw_send_sample x = {
		.send_queued = tp->inet_conn.icsk_inet.sk.sk_wmem_queued,
		.sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf,
		.app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited),
	};

	return bw_application_limits(&x);
}

static bool is_round_due(const struct bw_fast *fast, struct tcp_sock *tp)
{
	const struct bw_fast_view view = {
		.now = tp->tcp_mstamp,
		.cwnd = tp->snd_cwnd,
		.sndbuf = tp->inet_conn.icsk_inet.sk.sk_sndbuf,
		.send_queued = tp->inet_conn.icsk_inet.sk.sk_wmem_queued,
		.retransmitted = tp->total_retrans,
		.app_limited = fast->app_limited ? is_app_limited(tp) : 0,
	};

	return bw_is_round_due(&config, fast, &view);
}

static void sample_sender(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct bw_fast *fast)
{
	__u64 cookie = cookie_of(tp), now = tp->tcp_mstamp;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);

	if (is_over(f)) {
		fast->next_window = BW_UNTIL_ADOPTED;
		return;
	}
	sample(f, tp, now);
	bw_note_rtt(f, now);
	settle(f, &tp->inet_conn.icsk_inet.sk);
	if (config.send_rule == BW_SEND_FIT)
		observe_fit(f, cookie, now);
	if (config.send_rule != BW_SEND_KERNEL)
		tune_send(ctx, f, tp, cookie, now);
	bw_rest_rounds(&config, &control, fast, f);
}

static void on_rtt(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_fast *fast;
	struct tcp_sock *tp;

	if (!ctx->is_fullsock || !sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	fast = tp ? figures_of(ctx, sk, tp) : NULL;
	if (!fast || fast->next_window >= BW_CLOSED)
		return;
	fast->rtt_at = tp->tcp_mstamp;
	watch_or_rest(ctx, fast, tp);
	if (is_round_due(fast, tp))
		sample_sender(ctx, tp, fast);
}

/*
 * Samples, while fit is starting, how much was delivered, and when TCP processed the acknowledgement that reported it.
 * Returns false once fit needs no further sample.
 */
static bool sample_delivery(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp, __u64 cookie)
{
	__u32 before = f->fit.roof;

	/* If another program has asked for the callback, it stays on. */
	if (!bw_is_fit_watching(f))
		return false;
	sample_window(f, tp);
	if (tp->delivered_mstamp && observe_fit(f, cookie, tp->delivered_mstamp) != before)
		set_pace(ctx, f, &tp->inet_conn.icsk_inet.sk, send_rate(cookie));
	return bw_is_fit_watching(f);
}

/*
 * Raises the initial window so that a small document is sent in one round trip. Matsuo, section 2.2.2, makes the initial
 * window and the send buffer as large as the document. Its size is not known yet, so the threshold of small documents stands
 * in for it. RFC 6928's window is kept if it is larger.
 */
static void welcome_document(struct bpf_sock_ops *ctx, const struct bw_flow *f)
{
	__u32 mss = bw_mss(f->mss);
	int segments = bw_min((config.small_document + mss - 1) / mss, BW_LARGEST_INITIAL_WINDOW);

	if (segments > BW_INITIAL_WINDOW && !config.observe_only)
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
}

#endif
