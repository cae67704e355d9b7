/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The send side of the rules (rules.h): the send buffer, and the pacing rate, of one connection.
 */
#ifndef BUFWISE_RULES_SEND_H
#define BUFWISE_RULES_SEND_H

#include "flow.h"

struct bw_send_decision {
	/* Payload that the send buffer should hold; BW_LEAVE: leave the buffer unchanged. */
	__u64 payload;
	/* The connection's share (payload); BW_NO_LIMIT: no bound. */
	__u64 share;
};

/* Keeps the rule's decision (payload, or BW_LEAVE) within the share. */
BW_FN __u64 bw_within_share(const volatile struct bw_config *c, const struct bw_flow *f,
			    const struct bw_send_bounds *b, __u64 payload)
{
	__u64 window = (__u64)f->cwnd * f->mss;

	if (c->published)
		return payload;
	if (payload != BW_LEAVE && (payload >= b->limit || b->pressure))
		payload = bw_min(payload, bw_limit_of_share(b->limit, f->last_buffer));
	/* The rule is next called when data moves, and the share may be out of date by then. */
	if (c->send_rule >= BW_SEND_EQ && f->bytes_acked <= window / 4 && b->limit != BW_NO_LIMIT)
		payload = bw_min(payload, window * BW_HELD_NUMERATOR / BW_HELD_DENOMINATOR / 2);
	return payload;
}

/*
 * Returns the most that a send buffer may hold (memory); BW_NO_LIMIT, as for `kernel`, `fixed` and `:published`: no
 * bound.
 */
BW_FN __u64 bw_bound_of(const volatile struct bw_config *c, struct bw_flow *f)
{
	struct bw_send_sample s = {
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.app_limited = f->app_limited,
	};
	struct bw_bound_sample x = {
		.now = f->sampled_at,
		.mss = f->mss,
		.cwnd = (__u64)f->cwnd * f->mss,
		.srtt = f->srtt,
		.min_rtt = f->min_rtt == ~0U ? 0 : f->min_rtt,
		.usual = c->usual_send,
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.delivered = f->delivered_segs,
	};
	__u64 bound;

	if (c->send_rule == BW_SEND_KERNEL || c->send_rule == BW_SEND_FIXED || c->published)
		return BW_NO_LIMIT;
	/* In the phase Open fit has no roof: other flows share the queue, or the delay is no queue. The kernel's size applies. */
	if (c->send_rule == BW_SEND_FIT && f->fit.phase == BW_FIT_OPEN && f->fit.hold)
		return bw_bound_usual(&x);
	x.app_limited = bw_application_limits(&s);
	bound = bw_bound_observe(&f->bound, &x);
	/*
	 * BBR takes a sender that waits for buffer space for one without data, and does not end its startup. So the buffer gets
	 * at least what the kernel would give.
	 */
	return f->congestion_control == BW_CC_OTHER ? bw_max(bound, c->usual_send) : bound;
}

/* A sender without an acknowledgement of new data for this time (us) begins anew with the next one. */
#define BW_SENDER_RESTS 5000000

/*
 * Notes that a round-trip time was measured at `now` (us), which takes an acknowledgement of new data. User space gives the
 * share of a sender at rest to others; until it has seen that the sender sends again, the sender has a newcomer's.
 */
BW_FN void bw_note_rtt(struct bw_flow *f, __u64 now)
{
	if (bw_less(now, bw_max(f->rtt_at, f->opened_at)) >= BW_SENDER_RESTS)
		f->began_at = now;
	f->rtt_at = now;
}

/* A connection with this much payload acknowledged is no newcomer any more: the shares count it by then. */
#define BW_NEWCOMER_BYTES 32768

/*
 * Returns the memory that a connection may hold: the limit of its own order; without an order, the level of newcomers
 * or of all.
 */
BW_FN __u64 bw_limit_of(const volatile struct bw_control *all, const struct bw_order *order, const struct bw_flow *f)
{
	if (order)
		return order->limit;
	if (f->began_at > all->newest_at || f->bytes_acked < BW_NEWCOMER_BYTES)
		return bw_min(all->newcomer_level, all->send_level);
	return all->send_level;
}

/*
 * Decides the send buffer and the share. order: user space's demand and limit for this connection, or NULL. stale: user
 * space is gone. bound: the result of bw_bound_of() (memory).
 */
BW_FN void bw_decide_send(struct bw_send_decision *d, const volatile struct bw_config *c,
			  const volatile struct bw_control *all, const struct bw_order *order, struct bw_flow *f,
			  int stale, __u64 bound)
{
	__u64 limit = bw_limit_of(all, order, f);
	struct bw_send_sample x = {
		.cwnd = (__u64)f->cwnd * f->mss,
		.mss = f->mss,
		.bytes_acked = f->bytes_acked,
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.app_limited = c->published ? 0 : f->app_limited,
	};
	struct bw_send_bounds b = {
		.max = c->max_send,
		.demand = order ? order->demand : 0,
		.pressure = all->pressure,
		.stale = stale,
	};

	bw_loss_events_observe(&f->loss_events, f->sampled_at, f->srtt, f->retrans);
	/* When pressure begins, acknowledgements since the last sample count for at most one window. */
	if (!f->abt.shrinking)
		f->abt.acked = bw_max(f->abt.acked, bw_less(f->bytes_acked, x.cwnd));
	b.limit = limit == BW_NO_LIMIT ? limit : limit / 2;
	/*
	 * Small documents are outside the shares (Matsuo, section 2.2.2): a newcomer's share or their size bounds them.
	 */
	if (f->bytes_acked < c->small_document) {
		b.limit = bw_max(b.limit, c->small_document);
		b.pressure = 0;
	}
	if (stale) {
		b.limit = BW_NO_LIMIT;
		b.pressure = 0;
	}
	/* Shares fit into the budget, so pressure shrinks buffers to half a share at most. The paper's shrink to the floor. */
	b.least = c->published || b.limit == BW_NO_LIMIT ? 0 : b.limit / 2;
	d->share = b.limit;
	d->payload = bw_send_target(c->send_rule, c->fixed, &f->abt, &x, &b);
	d->payload = bw_within_share(c, f, &b, d->payload);
	if (d->payload != BW_LEAVE && bound != BW_NO_LIMIT)
		d->payload = bw_min(d->payload, bound / 2);
	if (d->payload != BW_LEAVE)
		d->payload = bw_min(d->payload, bw_fit_buffer(&f->fit, f->srtt));
	if (f->bytes_acked < c->small_document && d->payload != BW_LEAVE)
		d->payload = bw_max(d->payload, c->small_document);
}

/* Fills fit's sample at the sender, of what was delivered by `at` (us). */
BW_FN void bw_fit_sample_of(struct bw_fit_sample *x, const struct bw_flow *f, __u64 at)
{
	struct bw_send_sample s = {
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.app_limited = f->app_limited,
	};

	x->now = at;
	x->mss = f->mss;
	x->srtt = f->srtt;
	x->min_rtt = f->min_rtt == ~0U ? 0 : f->min_rtt;
	x->cwnd = f->cwnd;
	x->delivered = f->delivered_segs;
	x->app_limited = bw_application_limits(&s);
	x->paces_itself = f->congestion_control == BW_CC_OTHER;
	x->paced = f->paced;
	x->retransmitted = f->retrans;
	x->unused = 0;
}

/* Runs the first part of fit.h with figures from a record: measures the train. */
BW_FN void bw_fit_part_watch_train(struct bw_flow *f, __u64 at)
{
	struct bw_fit_sample x;

	bw_fit_sample_of(&x, f, at);
	bw_fit_watch(&f->fit, &x);
}

/* Runs the second part of fit.h: computes the roof. */
BW_FN void bw_fit_part_observe(struct bw_flow *f, __u64 at)
{
	struct bw_fit_sample x;

	bw_fit_sample_of(&x, f, at);
	bw_fit_observe(&f->fit, &x);
}

/* Gives fit a sample of what was delivered by `at` (us), from which it computes its roof over the rate. */
BW_FN void bw_observe_fit(const volatile struct bw_config *c, struct bw_flow *f, __u64 at)
{
	if (c->send_rule != BW_SEND_FIT)
		return;
	bw_fit_part_watch_train(f, at);
	bw_fit_part_observe(f, at);
}

/* fit's start ends after LONGEST_START segments delivered (or received). A sender has received fewer than RECEIVER. */
#define BW_FIT_LONGEST_START 8192
#define BW_FIT_RECEIVER 256

/*
 * Whether fit needs a sample at each acknowledgement. A congestion control other than CUBIC and Reno ends this only after
 * a train's segments: an application may choose its congestion control after it has connected and sent a little, as
 * iperf3 -C does.
 */
BW_FN int bw_is_fit_watching(const struct bw_flow *f)
{
	__u32 most = f->congestion_control == BW_CC_OTHER ? BW_FIT_TRAIN : BW_FIT_LONGEST_START;

	return f->min_rtt >= BW_FIT_SHORTEST && bw_fit_is_starting(&f->fit) && f->delivered_segs < most && f->segs_in < BW_FIT_RECEIVER;
}

/* Whether fit still times trains of segments, sent or received. */
BW_FN int bw_is_fit_timing(const volatile struct bw_config *c, const struct bw_flow *f)
{
	if (c->send_rule == BW_SEND_FIT && f->segs_out >= BW_FIT_TRAIN && bw_is_fit_watching(f))
		return 1;
	return c->receive_rule == BW_RECEIVE_FIT && f->fit_window.phase == BW_FIT_START && f->segs_in >= BW_FIT_TRAIN &&
	       f->segs_in < BW_FIT_LONGEST_START;
}

/* The most by which a congestion window grows until the next sample, a round trip later. */
#define BW_WINDOW_GROWTH 2

/*
 * Returns the pacing rate, bytes per second, that keeps a connection to its share (payload) and below fit's roof; 0:
 * none. The share does not limit the rate if it is at or above ABT's target. While the rate still grows, it does not
 * limit the rate either if it has room for all that the congestion window lets under way until the next sample: paced,
 * CUBIC would leave slow start later and overflow the queue (hystart_update()). Under pressure buffers shrink below
 * their shares for a while. The rate does not, or the path would stand idle for memory that this connection does not
 * hold. Programs cannot set a rate above BW_FIT_HIGHEST, so a rate that reaches it is not set.
 */
BW_FN __u32 bw_decide_pace(const struct bw_flow *f, __u64 share)
{
	__u64 roof = bw_fit_bounds(&f->fit) ? f->fit.roof : 0, window = (__u64)f->cwnd * f->mss, pace;

	if (share >= f->abt.net_target)
		return roof;
	pace = bw_pace(share, f->last_buffer, f->srtt, f->mss);
	if (pace >= BW_FIT_HIGHEST)
		return roof;
	if (bw_bound_grows(&f->bound) && bw_product(pace, f->srtt) >= window * BW_WINDOW_GROWTH)
		return roof;
	return roof && roof < pace ? roof : pace;
}

/* Whether the share limits the buffer; otherwise ABT's target follows the window, and there is nothing to set. */
BW_FN int bw_share_binds(const volatile struct bw_config *c, const volatile struct bw_control *all,
			 const struct bw_flow *f, __u64 share)
{
	return (c->send_rule != BW_SEND_ABT && c->send_rule != BW_SEND_FIT) || all->pressure || share < f->abt.net_target;
}

#endif
