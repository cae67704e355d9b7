/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * From a connection's record (struct bw_flow) to what is decided for it: the rules, fed from the record, and kept within
 * the shares of the memory.
 *
 * Problem: the same rules run in two places. Programs in the kernel run them at each callback; user space runs them
 * some times a second for connections for which the kernel makes no callbacks (src/user_space.rs). So every decision
 * stands here, in upkeep.h or in fast.h, as a function of the record, the configuration and what user space says of the
 * memory; nothing in these files reads a socket or sets one, and tests run them on the host.
 *
 * Properties kept: without user space no share counts. A share never takes the window below DRS's floor. Before anything
 * is acknowledged a shared sender holds no more than its initial window takes.
 */
#ifndef BUFWISE_RULES_H
#define BUFWISE_RULES_H

#include "flow.h"

/* A sender-side round-trip time older than this many of itself says nothing of the path now. */
#define BW_FRESH_RTTS 8
/* DRS's first window in segments: what a modem got (Fisk 2000, section 8.2). */
#define BW_INITIAL_SEGMENTS 8
/* DRS's measurements grow while the largest rises by more than a quarter per round trip. */
#define BW_DRS_GROWN_BY 4
/* The window makes room for a queue that makes the round trip up to this many times as long: twice, and an eighth. */
#define BW_DRS_QUEUED 17
#define BW_DRS_QUEUED_DENOMINATOR 8
/* Receive buffer at the start; under SOBAS and fit it doubles when the window has reached a quarter of it. */
#define BW_FIRST_RCVBUF (1 << 20)
#define BW_RCVBUF_FILLED 4
/* SOBAS: the window holds a little more than R * T0, or the clock's and the hosts' jitter would starve it. */
#define BW_SOBAS_SLACK_SHIFT 4
#define BW_SOBAS_JITTER 500

/* A record that was just filled: what was counted before is no news to the rules. */
BW_FN void bw_rules_begin(const volatile struct bw_config *c, struct bw_flow *f)
{
	f->abt.acked = f->bytes_acked;
	bw_sobas_init(&f->sobas, c->max_window);
	f->arrivals.total = f->bytes_received;
	f->arrivals.in_order = f->bytes_received;
	f->arrivals.segments = f->segs_in;
	f->arrivals.out_of_order = f->out_of_order;
	f->losses.in_order = f->bytes_received;
	f->losses.out_of_order = f->out_of_order;
	f->loss_events.retransmitted = f->retrans;
	if (f->bytes_acked > BW_FIT_BEGUN)
		f->fit.phase = BW_FIT_OPEN;
}

/* ---- Send side ------------------------------------------------------------------------------------------ */

struct bw_send_decision {
	/* Payload that the send buffer should hold; BW_LEAVE: leave it as it is. */
	__u64 payload;
	/* The connection's share (payload); BW_NO_LIMIT: no bound. */
	__u64 share;
};

/* Keeps what the rule decided (payload, or BW_LEAVE) within the share. */
BW_FN __u64 bw_within_share(const volatile struct bw_config *c, const struct bw_flow *f,
			    const struct bw_send_bounds *b, __u64 payload)
{
	__u64 window = (__u64)f->cwnd * f->mss;

	if (c->published)
		return payload;
	if (payload != BW_LEAVE && (payload >= b->limit || b->pressure))
		payload = bw_min(payload, bw_limit_of_share(b->limit, f->last_buffer));
	/* Until it sends in earnest nothing calls the rule again, and the share may be out of date then. */
	if (c->send_rule >= BW_SEND_EQ && f->bytes_acked <= window / 4 && b->limit != BW_NO_LIMIT)
		payload = bw_min(payload, window * BW_HELD_NUMERATOR / BW_HELD_DENOMINATOR / 2);
	return payload;
}

/* The most that a send buffer may hold (memory), or BW_NO_LIMIT; the fixed rule is a choice of a size and has no bound. */
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

	if (c->send_rule == BW_SEND_KERNEL || c->send_rule == BW_SEND_FIXED || c->published)
		return BW_NO_LIMIT;
	/* Beside others, and where delays are none of a queue, fit leaves a connection what the kernel would have given. */
	if (c->send_rule == BW_SEND_FIT && f->fit.phase == BW_FIT_OPEN && f->fit.hold)
		return bw_bound_usual(&x);
	x.app_limited = bw_application_limits(&s);
	return bw_bound_observe(&f->bound, &x);
}

/*
 * order: what user space wants of this connection alone, or NULL. stale: user space is gone. bound: as bw_bound_of() has
 * found it.
 */
BW_FN void bw_decide_send(struct bw_send_decision *d, const volatile struct bw_config *c,
			  const volatile struct bw_control *all, const struct bw_order *order, struct bw_flow *f,
			  int stale, __u64 bound)
{
	__u64 limit = order ? order->limit : all->send_level;
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
	/* Round trips that were let go count for no more than one when there is pressure anew. */
	if (!f->abt.shrinking)
		f->abt.acked = bw_max(f->abt.acked, bw_less(f->bytes_acked, x.cwnd));
	b.limit = limit == BW_NO_LIMIT ? limit : limit / 2;
	/* A small document takes no part in the shares (Matsuo, section 2.2.2): a newcomer's share bounds it, or its own size. */
	if (f->bytes_acked < c->small_document) {
		b.limit = bw_max(b.limit, c->small_document);
		b.pressure = 0;
	}
	/* Without user space all shares are out of date. */
	if (stale) {
		b.limit = BW_NO_LIMIT;
		b.pressure = 0;
	}
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

/* fit's roof over the rate: shows the rule what was delivered by `at` (us). */
BW_FN void bw_observe_fit(const volatile struct bw_config *c, struct bw_flow *f, __u64 at)
{
	struct bw_send_sample s = {
		.send_queued = f->send_queued,
		.sndbuf = f->sndbuf,
		.app_limited = f->app_limited,
	};
	struct bw_fit_sample x = {
		.now = at,
		.mss = f->mss,
		.srtt = f->srtt,
		.min_rtt = f->min_rtt == ~0U ? 0 : f->min_rtt,
		.cwnd = f->cwnd,
		.delivered = f->delivered_segs,
		.retransmitted = f->retrans,
		.paces_itself = f->congestion_control == BW_CC_OTHER,
		.paced = f->paced,
	};

	if (c->send_rule != BW_SEND_FIT)
		return;
	x.app_limited = bw_application_limits(&s);
	bw_fit_observe(&f->fit, &x);
}

/* A start is over after so many segments sent; and a connection that has received so many is no sender's. */
#define BW_FIT_LONGEST_START 8192
#define BW_FIT_RECEIVER 256

/* Whether fit wants to see each acknowledgement. */
BW_FN int bw_is_fit_watching(const struct bw_flow *f)
{
	if (f->min_rtt < BW_FIT_SHORTEST || f->congestion_control == BW_CC_OTHER)
		return 0;
	return bw_fit_is_starting(&f->fit) && f->delivered_segs < BW_FIT_LONGEST_START && f->segs_in < BW_FIT_RECEIVER;
}

/* Whether fit still times trains, of those that are sent or that arrive. */
BW_FN int bw_is_fit_timing(const volatile struct bw_config *c, const struct bw_flow *f)
{
	if (c->send_rule == BW_SEND_FIT && f->segs_out >= BW_FIT_TRAIN && bw_is_fit_watching(f))
		return 1;
	return c->receive_rule == BW_RECEIVE_FIT && f->fit_window.phase == BW_FIT_START && f->segs_in >= BW_FIT_TRAIN &&
	       f->segs_in < BW_FIT_LONGEST_START;
}

/*
 * The pacing rate, bytes per second, that keeps a connection to its share (payload) and below fit's roof; 0: none. The share
 * binds when the connection would use more. Under pressure buffers shrink below their shares for a while; the rate does not,
 * or a path would stand idle for want of memory that it never held.
 */
BW_FN __u32 bw_decide_pace(const struct bw_flow *f, __u64 share)
{
	__u64 roof = f->fit.roof, pace;

	if (share >= f->abt.net_target)
		return roof;
	pace = bw_pace(share, f->last_buffer, f->srtt, f->mss);
	return roof && roof < pace ? roof : pace;
}

/* Whether the share binds; while it does not, ABT's target follows the window and needs no setting. */
BW_FN int bw_share_binds(const volatile struct bw_config *c, const volatile struct bw_control *all,
			 const struct bw_flow *f, __u64 share)
{
	return (c->send_rule != BW_SEND_ABT && c->send_rule != BW_SEND_FIT) || all->pressure || share < f->abt.net_target;
}

/* User space has been silent for so long that its shares are out of date; now (us). */
BW_FN int bw_is_stale(const volatile struct bw_config *c, const volatile struct bw_control *all, __u64 now)
{
	/* User space may have spoken since the clock was read. */
	return bw_less(now, all->heartbeat_ns / 1000) > c->stale_ns / 1000;
}

/* ---- Receive side --------------------------------------------------------------------------------------- */

BW_FN __u64 bw_shorter(__u64 a, __u64 b)
{
	return !a || (b && b < a) ? b : a;
}

/* The path's round-trip time without a queue: the handshake's, or whatever was shorter since. */
BW_FN __u64 bw_unloaded_rtt(const struct bw_flow *f)
{
	__u64 rtt = f->min_rtt == ~0U ? 0 : f->min_rtt;

	return bw_shorter(rtt, f->drs.own_rtt);
}

/* Takes in what has arrived; once per sample, before the rules. */
BW_FN void bw_take_arrivals(struct bw_flow *f, __u64 now)
{
	bw_arrivals_observe(&f->arrivals, now, bw_unloaded_rtt(f), f->bytes_received, f->segs_in, f->out_of_order);
}

/*
 * DRS measures once per round trip, and what it measured is a round trip old when it counts: a sender in slow
 * start has doubled twice by then. So while the measurements grow, the window doubles once more. Later a sender that
 * fills a queue of up to a bandwidth-delay product has more under way than arrives in the shortest round trip; the
 * window follows the present one. Beyond 17/8 of the shortest round trip the queue is bloat: the window is not grown
 * for it.
 */
BW_FN __u64 bw_drs_window_of(const volatile struct bw_config *c, struct bw_flow *f,
			     const struct bw_receive_sample *x)
{
	__u64 window = bw_drs_observe(&f->drs, x, bw_mss(x->mss) * BW_INITIAL_SEGMENTS, c->max_window);
	__u64 rtt = bw_min(bw_unloaded_rtt(f), BW_LONGEST), now = bw_min(f->rcv_rtt, BW_LONGEST);

	if (f->drs.began_at != f->drs_began_at) {
		f->drs_grows = f->drs.largest * BW_DRS_GROWN_BY > f->drs_before * (BW_DRS_GROWN_BY + 1);
		f->drs_began_at = f->drs.began_at;
		f->drs_before = f->drs.largest;
	}
	if (f->drs_grows)
		window *= 2;
	else if (now > rtt && now * BW_DRS_QUEUED_DENOMINATOR <= rtt * BW_DRS_QUEUED)
		window = window * now / rtt;
	return bw_min(window, c->max_window);
}

/* The window (payload) that DRS wants, whatever the share; after bw_take_arrivals(). */
BW_FN __u64 bw_decide_drs(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	struct bw_receive_sample x = {
		.now = now,
		.received = f->arrivals.total,
		.mss = bw_max(f->rcv_mss, f->mss),
		/* The handshake's, before there is one of the receiver's own. */
		.rcv_rtt = bw_shorter(f->rcv_rtt, bw_unloaded_rtt(f)),
		.scale = f->rcv_wscale,
	};

	if (f->rtt_at && now - f->rtt_at < (__u64)f->srtt * BW_FRESH_RTTS)
		x.srtt = f->srtt;
	return bw_drs_window_of(c, f, &x);
}

/* Fills SOBAS's sample except for the losses, which only the first of its parts needs. */
BW_FN void bw_sobas_sample(struct bw_receive_sample *x, const struct bw_flow *f, __u64 now)
{
	__u64 rtt = bw_unloaded_rtt(f);

	x->now = now;
	x->received = f->arrivals.total;
	x->mss = bw_max(f->rcv_mss, f->mss);
	x->rcv_rtt = rtt ? rtt + (rtt >> BW_SOBAS_SLACK_SHIFT) + BW_SOBAS_JITTER : 0;
}

/* SOBAS in three parts (sobas.h), after bw_decide_drs(): 1 if there is a new reading. */
BW_FN int bw_sobas_part_take_in(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	struct bw_receive_sample x = {};

	bw_sobas_sample(&x, f, now);
	x.losses = bw_losses_observe(&f->losses, now, bw_unloaded_rtt(f), f->bytes_received, f->out_of_order);
	return bw_sobas_take_in(&f->sobas, &x, c->max_window);
}

BW_FN int bw_sobas_part_is_flat(const struct bw_flow *f)
{
	struct bw_receive_sample x = {};

	bw_sobas_sample(&x, f, 0);
	return bw_sobas_is_flat(&f->sobas, bw_mss(x.mss), x.rcv_rtt);
}

BW_FN void bw_sobas_part_conclude(const volatile struct bw_config *c, struct bw_flow *f, int flat)
{
	struct bw_receive_sample x = {};

	bw_sobas_sample(&x, f, 0);
	bw_sobas_conclude(&f->sobas, &x, c->max_window, flat);
}

/* fit's window (payload); after bw_decide_drs(), whose result is `drs`. */
BW_FN void bw_fit_window_sample_of(struct bw_fit_window_sample *x, const volatile struct bw_config *c,
				   const struct bw_flow *f, __u64 now, __u64 drs)
{
	x->now = now;
	x->received = f->arrivals.total;
	x->mss = bw_max(f->rcv_mss, f->mss);
	x->rtt = bw_unloaded_rtt(f);
	x->rcv_rtt = f->rcv_rtt;
	x->drs = drs;
	x->largest = f->drs.largest;
	x->max = c->max_window;
	x->scale = f->rcv_wscale;
	x->out_of_order = f->out_of_order;
}

/* The parts of fit_window.h, with a record. */
BW_FN int bw_fit_part_watch(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_watch(&f->fit_window, &x);
}

BW_FN void bw_fit_part_go_on(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	bw_fit_window_go_on(&f->fit_window, &x);
}

BW_FN __u64 bw_fit_part_offer(const volatile struct bw_config *c, const struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_offer(&f->fit_window, &x);
}

/* The window that the rule wants (payload), whatever the share. receive_window() in receiver.h does the same part by part. */
BW_FN __u64 bw_decide_window(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	__u64 drs;

	if (c->receive_rule == BW_RECEIVE_FIXED)
		return c->fixed;
	bw_take_arrivals(f, now);
	drs = bw_decide_drs(c, f, now);
	if (c->receive_rule == BW_RECEIVE_FIT) {
		if (bw_fit_part_watch(c, f, now, drs))
			bw_fit_part_go_on(c, f, now, drs);
		return bw_fit_part_offer(c, f, now, drs);
	}
	if (c->receive_rule != BW_RECEIVE_SOBAS)
		return drs;
	if (bw_sobas_part_take_in(c, f, now))
		bw_sobas_part_conclude(c, f, bw_sobas_part_is_flat(f));
	return f->sobas.window;
}

/* The window within the connection's share of the memory. */
BW_FN __u64 bw_shared_window(const volatile struct bw_control *all, const struct bw_flow *f, __u64 window, int stale)
{
	__u64 floor = bw_mss(bw_max(f->rcv_mss, f->mss)) * BW_DRS_FLOOR_SEGMENTS;

	if (stale)
		return window;
	return bw_min(window, bw_max(all->window_level, floor));
}

/* tcp_sock.scaling_ratio: window per memory of the receive buffer, in 256ths; before Linux 6.6 a window took half. */
#define BW_SCALING_SHIFT 8
#define BW_SCALING_HALF (1 << (BW_SCALING_SHIFT - 1))
/* The ratio is the last segment's; others may need more: an eighth. */
#define BW_ROOM_SLACK 8

/* Memory for a window that the peer may fill at any time; ratio: scaling_ratio, 0: not known. */
BW_FN __u64 bw_memory_of_window(__u64 offered, __u32 ratio)
{
	__u64 memory = (bw_min(offered, 1ULL << 32) << BW_SCALING_SHIFT) / (ratio ? ratio : BW_SCALING_HALF);

	return memory + memory / BW_ROOM_SLACK;
}

/* The least room, whatever the share: some segments of Ethernet's size, which the kernel keeps in 2 KB each and more. */
#define BW_LEAST_ROOM 16384
/* Shares vary: a buffer shrinks when it exceeds its room by more than a quarter, and by an eighth of itself at least. */
#define BW_ROOM_EXCESS 4
#define BW_SHRINK_LEAST 8

/* Memory that the share leaves the receive buffer, which is what a reader that stops may hold. */
BW_FN __u64 bw_receive_room(const volatile struct bw_config *c, __u64 share, __u64 window)
{
	if (c->receive_rule == BW_RECEIVE_FIXED)
		return BW_NO_LIMIT;
	return bw_max(bw_times(bw_max(share, window), 2), BW_LEAST_ROOM);
}

/* Beyond its room a buffer that was set shrinks, but never below what is in use; 0: leave it. */
BW_FN __u64 bw_shrink_rcvbuf(__u64 rcvbuf, __u64 room, __u64 in_use)
{
	__u64 wanted = bw_max(room, in_use);

	if (bw_less(rcvbuf, room) <= room / BW_ROOM_EXCESS)
		return 0;
	return bw_less(rcvbuf, wanted) >= rcvbuf / BW_SHRINK_LEAST ? wanted : 0;
}

/*
 * The memory that the receive buffer should have for a window; 0: leave it. It grows with the window that is used, so that
 * a reader that stops reading costs little, and within the room of the share, for unread data fills it. share: the largest
 * window of any connection (payload). in_use: memory for data that is not yet read and for the window on offer.
 *
 * Room for what the peer may send already stays: an adopted connection's window may be open wide, and the memory that a full
 * one takes is not known beforehand. So an adopted connection keeps its buffer at first.
 */
BW_FN __u64 bw_decide_rcvbuf(const volatile struct bw_config *c, const struct bw_flow *f, __u64 share, __u64 window,
			     __u64 in_use)
{
	__u64 largest = bw_min(bw_times(c->max_window, 2), 1ULL << 30), wanted = BW_FIRST_RCVBUF;
	__u64 room = bw_receive_room(c, share, window);
	int fixed = c->receive_rule == BW_RECEIVE_FIXED;

	if (fixed)
		wanted = 2 * window;
	else if (c->receive_rule == BW_RECEIVE_DRS)
		wanted = bw_max(wanted, bw_times(window, 2));
	else if (f->set_rcvbuf && (__u64)f->rcv_wnd * BW_RCVBUF_FILLED > f->rcvbuf)
		wanted = 2ULL * f->rcvbuf;
	wanted = bw_min(bw_min(wanted, largest), room);
	if (!f->set_rcvbuf || fixed)
		wanted = bw_max(wanted, in_use);
	if (f->adopted && !f->set_rcvbuf)
		wanted = bw_max(wanted, f->rcvbuf);
	if (!f->set_rcvbuf || wanted > f->rcvbuf || (fixed && wanted < f->rcvbuf))
		return wanted;
	return bw_shrink_rcvbuf(f->rcvbuf, room, in_use);
}

#endif
