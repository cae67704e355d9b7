/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Decides buffers, window and pacing rate of one connection: feeds the rules from its record (struct bw_flow) and keeps
 * their results within the connection's share of the memory.
 *
 * Problem: the same rules run in two places. Programs in the kernel run them at each callback; user space runs them
 * several times a second for connections for which the kernel makes no callbacks (src/user_space.rs). So every decision
 * is a function, here, in upkeep.h or in fast.h, of the record, the configuration and user space's figures (struct
 * bw_control, bw_order). These files neither read nor set a socket, and tests run them on the host.
 *
 * Properties kept: without user space no share counts. A share never takes the window below DRS's floor. Before anything
 * is acknowledged, a sender with a share holds at most the memory of its initial window.
 */
#ifndef BUFWISE_RULES_H
#define BUFWISE_RULES_H

#include "flow.h"

/* A sender-side round-trip time is out of date after this many round trips. */
#define BW_FRESH_RTTS 8
/* DRS's first window, segments: the most that fit a modem line's window of 13 KB (Fisk 2000, section 8.2). */
#define BW_INITIAL_SEGMENTS 8
/* DRS's measurements count as growing while the largest rises by more than 1/4 per round trip. */
#define BW_DRS_GROWN_BY 4
/* The window makes room for a queue as long as the round trip is at most 17/8 of the shortest. */
#define BW_DRS_QUEUED 17
#define BW_DRS_QUEUED_DENOMINATOR 8
/*
 * DRS measures over at least this time (us). The round trip between two namespaces takes 4 us, and a sender delivers far more
 * than it holds while the reader waits for a processor.
 */
#define BW_DRS_SHORTEST 1000
/* Length (us) of a period in which the round-trip time has to be longer before the former one is forgotten: as tcp_min_rtt_wlen. */
#define BW_RTT_PERIOD 300000000ULL
/* First receive buffer, bytes of memory; under SOBAS and fit the buffer doubles once the window exceeds 1/4 of it. */
#define BW_FIRST_RCVBUF (1 << 20)
#define BW_RCVBUF_FILLED 4
/* SOBAS's window holds R * T0, 1/16 more, and R times this (us): room for the jitter of clock and hosts. */
#define BW_SOBAS_SLACK_SHIFT 4
#define BW_SOBAS_JITTER 500

/* Starts the rules from a record that was just filled: earlier counts are the baseline, not news. */
BW_FN void bw_rules_begin(const volatile struct bw_config *c, struct bw_flow *f)
{
	f->abt.acked = f->bytes_acked;
	bw_sobas_init(&f->sobas, c->max_window);
	f->arrivals.total = f->bytes_received;
	f->arrivals.in_order = f->bytes_received;
	f->arrivals.segments = f->segs_in;
	f->losses.in_order = f->bytes_received;
	f->fit_window.found_out_of_order += f->out_of_order;
	f->out_of_order = 0;
	f->loss_events.retransmitted = f->retrans;
	if (f->bytes_acked > BW_FIT_BEGUN)
		f->fit.phase = BW_FIT_OPEN;
}

/* ---- Send side ------------------------------------------------------------------------------------------ */

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

/* The most that a send buffer may hold (memory); BW_NO_LIMIT, as for `kernel`, `fixed` and `:published`: no bound. */
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

/* The memory that a connection may hold: the limit of its own order; without an order, the level of newcomers or of all. */
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

/* The first part of fit.h, fed from a record: measures the train. */
BW_FN void bw_fit_part_watch_train(struct bw_flow *f, __u64 at)
{
	struct bw_fit_sample x;

	bw_fit_sample_of(&x, f, at);
	bw_fit_watch(&f->fit, &x);
}

/* The second part: computes the roof. */
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
 * The pacing rate, bytes per second, that keeps a connection to its share (payload) and below fit's roof; 0: none. The
 * share does not limit the rate if it is at or above ABT's target. While the rate still grows, it does not limit the rate
 * either if it has room for all that the congestion window lets under way until the next sample: paced, CUBIC would leave
 * slow start later and overflow the queue (hystart_update()). Under pressure buffers shrink below their shares for a
 * while. The rate does not, or the path would stand idle for memory that this connection does not hold. Programs cannot
 * set a rate above BW_FIT_HIGHEST, so a rate that reaches it is not set.
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

/* Whether user space has been silent for longer than config.stale_ns, so that its shares are out of date; now: us. */
BW_FN int bw_is_stale(const volatile struct bw_config *c, const volatile struct bw_control *all, __u64 now)
{
	/* The heartbeat may be later than `now`, which was read before: bw_less() gives 0 then. */
	return bw_less(now, all->heartbeat_ns / 1000) > c->stale_ns / 1000;
}

/* ---- Receive side --------------------------------------------------------------------------------------- */

/* The shorter of two times; 0: not known. */
BW_FN __u64 bw_shorter(__u64 a, __u64 b)
{
	return !a || (b && b < a) ? b : a;
}

/* The path's round-trip time without a queue (us): the shortest of bw_take_rtt(), at first the handshake's; 0: not known. */
BW_FN __u64 bw_unloaded_rtt(const struct bw_flow *f)
{
	if (f->drs.own_rtt)
		return f->drs.own_rtt;
	return f->min_rtt == ~0U ? 0 : f->min_rtt;
}

/*
 * Returns the sample's shortest round-trip time (us) for DRS; 0: not known. The kernel forgets an old min_rtt only when it measures
 * another one, which it never does while a connection only receives. So an old one does not count.
 *
 * Where DRS decides, the shortest round-trip time so far is forgotten if every sample of a whole period was longer than 17/8 of it:
 * the route has changed for good. DRS would otherwise measure for ever what arrives in a small part of a round trip. fit finds such a
 * path by leaving its window open (fit_window.h).
 */
BW_FN __u64 bw_take_rtt(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	int is_old = bw_less(now, bw_max(f->rtt_at, f->opened_at)) > BW_RTT_PERIOD;
	int is_drs = c->receive_rule == BW_RECEIVE_DRS || f->drs.own_rtt < BW_FIT_SHORTEST;
	__u64 rtt = bw_shorter(f->rcv_rtt, is_old || f->min_rtt == ~0U ? 0 : f->min_rtt);
	__u32 period = now / BW_RTT_PERIOD + 1;

	if (period != f->rtt_period) {
		if (is_drs && (__u64)f->drs.period_rtt * BW_DRS_QUEUED_DENOMINATOR > f->drs.own_rtt * BW_DRS_QUEUED)
			f->drs.own_rtt = f->drs.period_rtt;
		f->drs.period_rtt = 0;
		f->rtt_period = period;
	}
	f->drs.period_rtt = bw_shorter(f->drs.period_rtt, rtt);
	return rtt;
}

/* Counts arrivals; once per sample, before the receive rules. */
BW_FN void bw_take_arrivals(struct bw_flow *f, __u64 now)
{
	bw_arrivals_observe(&f->arrivals, now, bw_unloaded_rtt(f), f->bytes_received, f->segs_in, f->out_of_order);
}

/*
 * DRS's window (payload). DRS measures once per round trip, and a measurement is a round trip old when it takes effect:
 * a sender in slow start has doubled twice by then. So while the measurements grow, the window doubles once more.
 * Later, a sender that fills a queue of up to a bandwidth-delay product has more under way than arrives in the shortest
 * round trip, so the window is scaled to the present one. Beyond 17/8 of the shortest round trip the queue is bloat; do
 * not grow the window for it.
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

/* DRS's window (payload), before the share; call after bw_take_arrivals(). */
BW_FN __u64 bw_decide_drs(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	struct bw_receive_sample x = {
		.now = now,
		.received = f->arrivals.total,
		.mss = bw_max(f->rcv_mss, f->mss),
		/* The handshake's round-trip time stands in until the receiver has its own. */
		.rcv_rtt = bw_take_rtt(c, f, now),
		.scale = f->rcv_wscale,
	};
	__u64 rtt;

	if (f->rtt_at && now - f->rtt_at < (__u64)f->srtt * BW_FRESH_RTTS)
		x.srtt = f->srtt;
	rtt = x.srtt ? x.srtt : bw_shorter(x.rcv_rtt, f->drs.own_rtt);
	if (rtt && rtt < BW_DRS_SHORTEST)
		x.srtt = BW_DRS_SHORTEST;
	return bw_drs_window_of(c, f, &x);
}

/* Fills SOBAS's sample, except for the losses, which only bw_sobas_take_in() reads. */
BW_FN void bw_sobas_sample(struct bw_receive_sample *x, const struct bw_flow *f, __u64 now)
{
	__u64 rtt = bw_unloaded_rtt(f);

	x->now = now;
	x->received = f->arrivals.total;
	x->mss = bw_max(f->rcv_mss, f->mss);
	x->rcv_rtt = rtt ? rtt + (rtt >> BW_SOBAS_SLACK_SHIFT) + BW_SOBAS_JITTER : 0;
}

/* SOBAS in three parts (sobas.h), after bw_decide_drs(). The first returns 1 if there is a new reading. */
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

/* Fills fit's sample at the receiver; drs: the result of bw_decide_drs(), which must come first. */
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
	x->behind = f->arrivals.behind;
}

/* The parts of fit_window.h, fed from a record. */
BW_FN int bw_fit_part_watch(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_watch(&f->fit_window, &x);
}

BW_FN void bw_fit_part_judge_pacing(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	bw_fit_window_judge_pacing(&f->fit_window, &x);
}

BW_FN void bw_fit_part_go_on(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	bw_fit_window_go_on(&f->fit_window, &x);
}

BW_FN int bw_fit_part_end_round(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_end_round(&f->fit_window, &x);
}

BW_FN int bw_fit_part_judge(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs, int is_futile)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_judge(&f->fit_window, &x, is_futile);
}

BW_FN void bw_fit_part_follow(const volatile struct bw_config *c, struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	bw_fit_window_follow(&f->fit_window, &x);
}

BW_FN __u64 bw_fit_part_offer(const volatile struct bw_config *c, const struct bw_flow *f, __u64 now, __u64 drs)
{
	struct bw_fit_window_sample x;

	bw_fit_window_sample_of(&x, c, f, now, drs);
	return bw_fit_window_offer(&f->fit_window, &x);
}

/* The receive rule's window (payload), before the share. receive_window() in receiver.h does the same part by part. */
BW_FN __u64 bw_decide_window(const volatile struct bw_config *c, struct bw_flow *f, __u64 now)
{
	__u64 drs;
	int seen;

	if (c->receive_rule == BW_RECEIVE_FIXED)
		return c->fixed;
	bw_take_arrivals(f, now);
	drs = bw_decide_drs(c, f, now);
	if (c->receive_rule == BW_RECEIVE_FIT) {
		if (bw_fit_part_watch(c, f, now, drs)) {
			bw_fit_part_judge_pacing(c, f, now, drs);
			bw_fit_part_go_on(c, f, now, drs);
			seen = bw_fit_part_end_round(c, f, now, drs);
			if (seen && bw_fit_part_judge(c, f, now, drs, seen > 1))
				bw_fit_part_follow(c, f, now, drs);
		}
		return bw_fit_part_offer(c, f, now, drs);
	}
	if (c->receive_rule != BW_RECEIVE_SOBAS)
		return drs;
	if (bw_sobas_part_take_in(c, f, now))
		bw_sobas_part_conclude(c, f, bw_sobas_part_is_flat(f));
	return f->sobas.window;
}

/* The window (payload) within the connection's share of the memory, but never below DRS's floor. */
BW_FN __u64 bw_shared_window(const volatile struct bw_control *all, const struct bw_flow *f, __u64 window, int stale)
{
	__u64 floor = bw_mss(bw_max(f->rcv_mss, f->mss)) * BW_DRS_FLOOR_SEGMENTS;

	if (stale)
		return window;
	return bw_min(window, bw_max(all->window_level, floor));
}

/* tcp_sock.scaling_ratio: window per memory of the receive buffer, in 256ths; before Linux 6.6 always one half. */
#define BW_SCALING_SHIFT 8
#define BW_SCALING_HALF (1 << (BW_SCALING_SHIFT - 1))
/* The ratio is that of the last segment; other segments may need more memory: 1/8 is added. */
#define BW_ROOM_SLACK 8

/* Memory for a window that the peer may fill at any time. offered: payload, capped at 4 GiB; ratio 0: not known. */
BW_FN __u64 bw_memory_of_window(__u64 offered, __u32 ratio)
{
	__u64 memory = (bw_min(offered, 1ULL << 32) << BW_SCALING_SHIFT) / (ratio ? ratio : BW_SCALING_HALF);

	return memory + memory / BW_ROOM_SLACK;
}

/* The smallest room (memory), whatever the share: several Ethernet segments, each of which takes 2 KB or more. */
#define BW_LEAST_ROOM 16384
/* Shares vary: a buffer shrinks only if it exceeds its room by more than 1/4, and by no less than 1/8 of its size. */
#define BW_ROOM_EXCESS 4
#define BW_SHRINK_LEAST 8

/* Memory that the share allows the receive buffer: a reader that stops can hold this much. */
BW_FN __u64 bw_receive_room(const volatile struct bw_config *c, __u64 share, __u64 window)
{
	if (c->receive_rule == BW_RECEIVE_FIXED)
		return BW_NO_LIMIT;
	return bw_max(bw_times(bw_max(share, window), 2), BW_LEAST_ROOM);
}

/* The memory to which a buffer beyond its room shrinks, never below what is in use; 0: leave the buffer unchanged. */
BW_FN __u64 bw_shrink_rcvbuf(__u64 rcvbuf, __u64 room, __u64 in_use)
{
	__u64 wanted = bw_max(room, in_use);

	if (bw_less(rcvbuf, room) <= room / BW_ROOM_EXCESS)
		return 0;
	return bw_less(rcvbuf, wanted) >= rcvbuf / BW_SHRINK_LEAST ? wanted : 0;
}

/*
 * The memory that the receive buffer should have for a window (payload); 0: leave the buffer unchanged. The buffer
 * grows with the window in use, so that a reader that stops costs little, and stays within the room of the share,
 * because unread data fills it. share: the largest window of any connection (payload). in_use: memory for unread data
 * and the offered window.
 *
 * An adopted connection keeps its buffer at first: its peer may already fill a wide window, and the memory that a full
 * window takes is not known in advance.
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
