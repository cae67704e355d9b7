/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Upkeep of a connection's record: who owns its buffers, what to set or request, and what to give back.
 *
 * Problem: the application and the kernel's autotuning may change each buffer at any time, and beyond a cap (wmem_max,
 * rmem_max) only user space may set it.
 * Terms: a *request* asks user space, through a ring buffer, to set what a program may not; it is *granted* when user
 * space has set it. An *owned* buffer was set by the application and is left alone. Sizes are memory where not said
 * otherwise.
 * Properties kept: a buffer that the application set is never touched again. A request is not repeated within a second.
 * A silent connection keeps room for the window that it has offered.
 */
#ifndef BUFWISE_UPKEEP_H
#define BUFWISE_UPKEEP_H

#include "rules_receive.h"

/* sk_userlocks, bw_flow.owned and bw_flow.given_back: the send buffer, the receive buffer. */
#define BW_SEND_LOCK 1
#define BW_RECEIVE_LOCK 2
/* bw_flow.owned: the application, or the route, bounds the window (TCP_WINDOW_CLAMP; ip-route(8), window). */
#define BW_CLAMP_OWNED 4
/*
 * Do not repeat a request within this time (us): a late grant of the first would look like the application's setting.
 */
#define BW_REQUEST_PATIENCE 1000000
/*
 * Largest value of SO_SNDBUF and SO_RCVBUF: the kernel doubles it, and cuts it so that the result is no more than 2^31 - 1. A size
 * that was cut would look like the application's setting.
 */
#define BW_LARGEST_OPTION ((1ULL << 30) - 1)
/*
 * Smallest value of SO_SNDBUF that the kernel does not raise (SOCK_MIN_SNDBUF is 4,608 bytes of memory). A share that is less
 * than half of a writer's buffer leaves a limit of 0 (bw_limit_of_share()), which would stand for no step.
 */
#define BW_LEAST_SNDBUF 2304
/* Smallest clamp that bufwise sets (bytes): the kernel raises values below 1,152. */
#define BW_LEAST_CLAMP 2048
/* Changes of the pacing rate by less than 1/8 are not set. */
#define BW_PACE_STEP 8
/*
 * Under fit's roof, the bound of bytes written and not sent is what leaves in this time (us). The kernel wakes a writer
 * when half of that has left, and on a busy host a writer may wait for a processor for 10 ms. The bound is at least two
 * of the kernel's largest buffers (bytes), and at most that size doubled BW_UNSENT_DOUBLED times.
 */
#define BW_UNSENT_TIME 20000
#define BW_UNSENT_LEAST (128U << 10)
#define BW_UNSENT_DOUBLED 10
/* sk_max_pacing_rate without a bound. */
#define BW_UNPACED (~0ULL)

/* ---- Ownership ------------------------------------------------------------------------------------------ */

/* Recognizes grants by size and lock: autotuning may reach the same size, but only a setting locks the buffer. */
BW_FN void bw_settle_grants(struct bw_flow *f, __u32 locks)
{
	if (f->requested_sndbuf && f->sndbuf == f->requested_sndbuf && locks & BW_SEND_LOCK) {
		f->send_changes += f->set_sndbuf != f->sndbuf;
		f->set_sndbuf = f->sndbuf;
		f->requested_sndbuf = 0;
	}
	if (f->requested_rcvbuf && f->rcvbuf == f->requested_rcvbuf && locks & BW_RECEIVE_LOCK) {
		f->set_rcvbuf = f->rcvbuf;
		f->requested_rcvbuf = 0;
	}
}

/*
 * Recognizes, after a sample, grants and buffers that the application has set. A request stands until it is granted or
 * replaced, because user space may grant it after the rule has decided otherwise. A size that differs from the one set
 * is the application's: setting a buffer locks it, so only another setsockopt() can have changed it. So is a locked
 * buffer that was neither set nor requested. locks: sk_userlocks.
 */
BW_FN void bw_settle(const volatile struct bw_config *c, struct bw_flow *f, __u32 locks)
{
	bw_settle_grants(f, locks);
	if (c->take_over)
		return;
	if (f->set_sndbuf ? f->sndbuf != f->set_sndbuf : !f->requested_sndbuf && locks & BW_SEND_LOCK)
		f->owned |= BW_SEND_LOCK;
	if (f->set_rcvbuf ? f->rcvbuf != f->set_rcvbuf : !f->requested_rcvbuf && locks & BW_RECEIVE_LOCK)
		f->owned |= BW_RECEIVE_LOCK;
}

/*
 * Recognizes, after a sample, a window that the application or the route bounds: the clamp is not the one set last, and less than
 * half of the kernel's own. The kernel writes its own when it grows the buffer, and when the ratio of window and memory changes.
 * Once the clamp is wide again, bufwise may set it. clamp: the socket's; ratio: as for bw_memory_of_window().
 */
BW_FN void bw_settle_clamp(const volatile struct bw_config *c, struct bw_flow *f, __u32 clamp, __u32 ratio)
{
	__u64 kernels = bw_min(bw_window_of_memory(f->rcvbuf, ratio), bw_largest_window(f));

	if (c->take_over || f->requested_clamp || clamp == f->set_clamp)
		return;
	if (clamp < kernels / 2) {
		f->owned |= BW_CLAMP_OWNED;
		f->set_clamp = clamp;
	} else if (f->owned & BW_CLAMP_OWNED) {
		f->owned &= ~BW_CLAMP_OWNED;
		f->set_clamp = 0;
	}
}

/*
 * Whether bufwise may size the receive buffer. While the application bounds the window, a buffer that bufwise has not set stays
 * with autotuning, which can open the window again.
 */
BW_FN int bw_may_size_rcvbuf(const struct bw_flow *f)
{
	return !(f->owned & BW_RECEIVE_LOCK) && (f->set_rcvbuf || !(f->owned & BW_CLAMP_OWNED));
}

/* Returns bw_room_news() of a connection; nothing if the application bounds its window, because no ramp has opened it then. */
BW_FN enum bw_room_shown bw_room_news_of(const struct bw_flow *f)
{
	return f->owned & (BW_RECEIVE_LOCK | BW_CLAMP_OWNED) ? BW_ROOM_UNKNOWN : bw_room_news(&f->fit_window, f->out_of_order);
}

/* ---- Setting and requesting ----------------------------------------------------------------------------- */

/* The next step for one buffer; 0 in a field: nothing to do. */
struct bw_step {
	/* Value of SO_SNDBUF or SO_RCVBUF. */
	__u32 value;
	/* Memory to request of user space. */
	__u32 request;
};

/* Whether the last request is younger than BW_REQUEST_PATIENCE and not granted. */
BW_FN int bw_is_requesting(const struct bw_flow *f)
{
	/* A callback's time, which TCP has read before, may be earlier than that of the request: bw_less() gives 0 then. */
	return (f->requested_sndbuf || f->requested_rcvbuf) && bw_less(f->sampled_at, f->requested_at) < BW_REQUEST_PATIENCE;
}

/*
 * Returns the largest value of SO_SNDBUF or SO_RCVBUF that a program can set: the cap at the load, or the value that the kernel made
 * of a larger one since. Another bufwise that ends, or an administrator, may lower wmem_max and rmem_max.
 */
BW_FN __u64 bw_cap(__u64 cap, __u32 cut)
{
	return cut ? bw_min(cap, cut / 2) : cap;
}

/*
 * Chooses the step by which the send buffer gets room for a payload, and at least the kernel's smallest size. Beyond the
 * cap, setsockopt() by a program would cut the buffer to the cap, so the size is requested, unless user space is gone;
 * until the grant the cap is set, also while a request for the other buffer is open. A buffer beyond the cap stays as it is
 * meanwhile: its connection may need all of it.
 */
BW_FN void bw_step_send(struct bw_step *step, const volatile struct bw_config *c, struct bw_flow *f,
			__u64 payload, int stale)
{
	__u32 value = bw_max(bw_min(bw_min(payload, c->max_send), BW_LARGEST_OPTION), BW_LEAST_SNDBUF);
	__u64 cap = bw_cap(c->send_cap, f->cut_sndbuf);
	int is_requesting = !stale && bw_is_requesting(f);

	step->value = 0;
	step->request = 0;
	f->decided_send = value;
	if (c->observe_only)
		return;
	if (value > cap) {
		if (!stale && f->set_sndbuf && f->sndbuf == 2ULL * value)
			return;
		/* A buffer that was never set stays with autotuning, which may grow it beyond the cap. */
		if (is_requesting && !f->set_sndbuf)
			return;
		step->request = stale || is_requesting ? 0 : 2 * value;
		if (f->sndbuf >= 2 * cap)
			return;
		value = cap;
	}
	if (!f->set_sndbuf || f->sndbuf != 2ULL * value)
		step->value = value;
}

/* Chooses the step by which the receive buffer gets that memory, as bw_step_send() does. */
BW_FN void bw_step_receive(struct bw_step *step, const volatile struct bw_config *c, struct bw_flow *f,
			   __u64 memory, int stale)
{
	__u32 value = bw_min(memory / 2, BW_LARGEST_OPTION);
	__u64 cap = bw_cap(c->receive_cap, f->cut_rcvbuf);
	int is_requesting = !stale && bw_is_requesting(f);

	step->value = 0;
	step->request = 0;
	if (value > cap) {
		if (is_requesting && !f->set_rcvbuf)
			return;
		step->request = stale || is_requesting ? 0 : 2 * value;
		if (f->rcvbuf >= 2 * cap)
			return;
		value = cap;
	}
	step->value = value;
}

/*
 * Whether to set the pacing rate to `rate` (bytes per second; 0: no bound), where the socket has `present`. If
 * `present` is not the rate set last, it is the application's, and stays. Small changes are set only when the rate is
 * fit's roof.
 */
BW_FN int bw_step_pace(const struct bw_flow *f, __u64 present, __u32 rate)
{
	if (present != (f->set_pace ? f->set_pace : BW_UNPACED) || rate == f->set_pace)
		return 0;
	return rate == f->fit.roof || bw_distance(rate, f->set_pace) * BW_PACE_STEP >= f->set_pace;
}

/*
 * Returns the bound of bytes written and not sent, as a value of TCP_NOTSENT_LOWAT; 0: no bound. Under fit's roof a
 * send buffer of two windows would hold one window that only waits. The value moves by doublings, so that it changes
 * rarely.
 */
BW_FN __u32 bw_decide_unsent(const volatile struct bw_config *c, const struct bw_flow *f)
{
	__u64 wanted = bw_product(f->fit.roof, BW_UNSENT_TIME);
	__u32 value = BW_UNSENT_LEAST, i;

	for (i = 0; i < BW_UNSENT_DOUBLED && value < wanted; i++)
		value *= 2;
	return f->fit.roof && !(f->owned & BW_SEND_LOCK) && value < c->usual_unsent ? value : 0;
}

/*
 * Returns the value to set this bound to, where the socket has `present`. If `present` is not the value set last, it is
 * the application's, and nothing changes.
 */
BW_FN __u32 bw_step_unsent(const volatile struct bw_config *c, const struct bw_flow *f, __u32 present)
{
	return !c->observe_only && present == f->set_unsent ? bw_decide_unsent(c, f) : f->set_unsent;
}

/* ---- Giving back ---------------------------------------------------------------------------------------- */

/*
 * Whether no byte was sent, acknowledged or received for config.idle, so that the buffers are to be given back. moved:
 * bytes so far, in both directions; keepalive probes do not count. active_at: when data moved, if `moved` has changed
 * (us).
 */
BW_FN int bw_is_idle(const volatile struct bw_config *c, struct bw_flow *f, __u64 moved, __u64 active_at, __u64 now)
{
	if (moved != f->moved) {
		f->moved = moved;
		f->active_at = active_at;
		f->given_back = 0;
	}
	return bw_less(now, f->active_at) >= c->idle;
}

/* Returns the SO_SNDBUF to leave to a silent connection; 0: leave the buffer unchanged. */
BW_FN __u32 bw_give_back_send(const volatile struct bw_config *c, const struct bw_flow *f)
{
	if (c->observe_only || c->send_rule == BW_SEND_KERNEL || c->send_rule == BW_SEND_FIXED)
		return 0;
	if ((f->owned | f->given_back) & BW_SEND_LOCK || !f->set_sndbuf || f->send_queued)
		return 0;
	return f->sndbuf > 2ULL * c->idle_size ? c->idle_size : 0;
}

/*
 * Returns the SO_RCVBUF to leave to a silent connection; 0: leave the buffer unchanged. in_use: memory for the window
 * on offer. unread: there are unread data. cap: the largest value that can be set; a larger one would be cut below the
 * window. Data behind a hole also hold memory, and the kernel would drop them from a buffer without room for them.
 */
BW_FN __u32 bw_give_back_receive(const volatile struct bw_config *c, const struct bw_flow *f, __u64 in_use,
				 int unread, __u64 cap)
{
	__u64 value = bw_min(bw_max(in_use, 2ULL * c->idle_size) / 2 + 1, BW_LARGEST_OPTION);

	if (c->observe_only || c->receive_rule == BW_RECEIVE_KERNEL || c->receive_rule == BW_RECEIVE_FIXED)
		return 0;
	if ((f->owned | f->given_back) & BW_RECEIVE_LOCK || !f->set_rcvbuf || unread || f->receive_queued)
		return 0;
	return f->rcvbuf > 2 * value && value <= cap ? value : 0;
}

#endif
