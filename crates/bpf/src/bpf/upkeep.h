/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Upkeep of a connection's record: the owner of its buffers, what to set or to request, and what to give back.
 *
 * Problem: bufwise shares each buffer with the application, which may set it at any time, with the kernel's autotuning,
 * and with a cap (wmem_max, rmem_max) beyond which only user space may set it.
 * Terms: a *request* asks user space, through a ring buffer, to set what a program may not; it is *granted* when
 * user space has set it. A buffer that the application has set is *owned* by it and left alone.
 * Properties kept: a buffer that the application set is never touched again. A request is not repeated within a second.
 * A silent connection keeps room for the window that it has offered.
 */
#ifndef BUFWISE_UPKEEP_H
#define BUFWISE_UPKEEP_H

#include "flow.h"

/* sk_userlocks, bw_flow.owned and bw_flow.given_back: the send buffer, the receive buffer. */
#define BW_SEND_LOCK 1
#define BW_RECEIVE_LOCK 2
/*
 * A request is not repeated for so long (us): a late grant of the first would look like the application's own setting.
 */
#define BW_REQUEST_PATIENCE 1000000
/* Largest size of a socket option. */
#define BW_LARGEST_OPTION (1ULL << 30)
/* Pacing rates closer to each other than an eighth are the same. */
#define BW_PACE_STEP 8
/*
 * Below a roof, so much written and not sent is enough: what leaves in so long (us). The kernel wakes a writer when half of
 * it has left, and on a busy host a writer may wait for a processor for 10 ms. At least so many bytes (two of the kernel's
 * largest buffers), doubled so many times at most.
 */
#define BW_UNSENT_TIME 20000
#define BW_UNSENT_LEAST (128U << 10)
#define BW_UNSENT_DOUBLED 10
/* sk_max_pacing_rate without a bound. */
#define BW_UNPACED (~0ULL)

/* ---- Ownership ------------------------------------------------------------------------------------------ */

/* Grants, by the size and by the lock: autotuning may have reached the same size, but only a setting locks. */
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
 * After a sample: recognizes grants, and buffers that the application has set. A request stands until it is granted or
 * replaced, for user space may grant it after the rule has changed its mind. Any other size than the one set is the
 * application's: setting a buffer locks it, so only another setsockopt() can have moved it. locks: sk_userlocks.
 */
BW_FN void bw_settle(const volatile struct bw_config *c, struct bw_flow *f, __u32 locks)
{
	bw_settle_grants(f, locks);
	if (c->take_over)
		return;
	if (f->set_sndbuf && f->sndbuf != f->set_sndbuf)
		f->owned |= BW_SEND_LOCK;
	if (f->set_rcvbuf && f->rcvbuf != f->set_rcvbuf)
		f->owned |= BW_RECEIVE_LOCK;
}

/* ---- Setting and requesting ----------------------------------------------------------------------------- */

/* The next step for one buffer; a field that is 0 asks for nothing. */
struct bw_step {
	/* Value of SO_SNDBUF or SO_RCVBUF. */
	__u32 value;
	/* Memory to request of user space. */
	__u32 request;
};

BW_FN int bw_is_requesting(const struct bw_flow *f)
{
	return (f->requested_sndbuf || f->requested_rcvbuf) && f->sampled_at - f->requested_at < BW_REQUEST_PATIENCE;
}

/*
 * How the send buffer gets to hold that payload. Beyond the cap a program's setsockopt() would cut the buffer to the cap,
 * so the size is requested, as long as there is a user space; until it is granted the cap is set.
 */
BW_FN void bw_step_send(struct bw_step *step, const volatile struct bw_config *c, struct bw_flow *f,
			__u64 payload, int stale)
{
	__u32 value = bw_min(bw_min(payload, c->max_send), BW_LARGEST_OPTION);

	step->value = 0;
	step->request = 0;
	f->decided_send = value;
	if (c->observe_only)
		return;
	if (value > c->send_cap && !stale) {
		if ((f->set_sndbuf && f->sndbuf == 2ULL * value) || bw_is_requesting(f))
			return;
		step->request = 2 * value;
		if (f->sndbuf >= 2ULL * c->send_cap)
			return;
		value = c->send_cap;
	}
	if (!f->set_sndbuf || f->sndbuf != 2ULL * value)
		step->value = value;
}

/* How the receive buffer gets that memory. */
BW_FN void bw_step_receive(struct bw_step *step, const volatile struct bw_config *c, struct bw_flow *f,
			   __u64 memory, int stale)
{
	__u32 value = bw_min(memory / 2, BW_LARGEST_OPTION);

	step->value = 0;
	step->request = 0;
	if (value > c->receive_cap && !stale) {
		if (bw_is_requesting(f))
			return;
		step->request = 2 * value;
		if (f->rcvbuf >= 2ULL * c->receive_cap)
			return;
		value = c->receive_cap;
	}
	step->value = value;
}

/*
 * Whether the pacing rate is to be set to `rate` (0: no bound), where the socket's is `present`. Any other rate than the one
 * set is the application's, and stays. Small changes count for fit's roof alone.
 */
BW_FN int bw_step_pace(const struct bw_flow *f, __u64 present, __u32 rate)
{
	if (present != (f->set_pace ? f->set_pace : BW_UNPACED) || rate == f->set_pace)
		return 0;
	return rate == f->fit.roof || bw_distance(rate, f->set_pace) * BW_PACE_STEP >= f->set_pace;
}

/*
 * Bytes that may be written and not sent, as a value of TCP_NOTSENT_LOWAT; 0: no bound. Below fit's roof a send buffer of two
 * windows would hold one that only waits. Steps are doublings, so that the value changes rarely.
 */
BW_FN __u32 bw_decide_unsent(const volatile struct bw_config *c, const struct bw_flow *f)
{
	__u64 wanted = bw_product(f->fit.roof, BW_UNSENT_TIME);
	__u32 value = BW_UNSENT_LEAST, i;

	for (i = 0; i < BW_UNSENT_DOUBLED && value < wanted; i++)
		value *= 2;
	return f->fit.roof && !(f->owned & BW_SEND_LOCK) && value < c->usual_unsent ? value : 0;
}

/* The value that this bound is to be set to, where the socket's is `present`: another than the one set is the application's. */
BW_FN __u32 bw_step_unsent(const volatile struct bw_config *c, const struct bw_flow *f, __u32 present)
{
	return !c->observe_only && present == f->set_unsent ? bw_decide_unsent(c, f) : f->set_unsent;
}

/* ---- Giving back ---------------------------------------------------------------------------------------- */

/*
 * Whether nothing was sent, acknowledged or received for so long that the buffers are given back. moved: bytes so far, in
 * both directions. Probes of a silent connection (keepalive) do not count. active_at: when it moved, if it has.
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

/* The SO_SNDBUF that a silent connection is left with; 0: leave the buffer as it is. */
BW_FN __u32 bw_give_back_send(const volatile struct bw_config *c, const struct bw_flow *f)
{
	if (c->observe_only || c->send_rule == BW_SEND_KERNEL || c->send_rule == BW_SEND_FIXED)
		return 0;
	if ((f->owned | f->given_back) & BW_SEND_LOCK || !f->set_sndbuf || f->send_queued)
		return 0;
	return f->sndbuf > 2ULL * c->idle_size ? c->idle_size : 0;
}

/*
 * The SO_RCVBUF that a silent connection is left with; 0: leave the buffer as it is. in_use: memory for the window on
 * offer; unread: there is data that nobody has read; cap: the largest size that can be set, for the cap would cut it
 * below the window.
 */
BW_FN __u32 bw_give_back_receive(const volatile struct bw_config *c, const struct bw_flow *f, __u64 in_use,
				 int unread, __u64 cap)
{
	__u64 value = bw_min(bw_max(in_use, 2ULL * c->idle_size) / 2 + 1, BW_LARGEST_OPTION);

	if (c->observe_only || c->receive_rule == BW_RECEIVE_KERNEL || c->receive_rule == BW_RECEIVE_FIXED)
		return 0;
	if ((f->owned | f->given_back) & BW_RECEIVE_LOCK || !f->set_rcvbuf || unread)
		return 0;
	return f->rcvbuf > 2 * value && value <= cap ? value : 0;
}

#endif
