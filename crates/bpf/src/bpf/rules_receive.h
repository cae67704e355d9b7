/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The receive side of the rules (rules.h): the window, and the memory behind it, of one connection.
 */
#ifndef BUFWISE_RULES_RECEIVE_H
#define BUFWISE_RULES_RECEIVE_H

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

/* Returns the shorter of two times; 0: not known. */
BW_FN __u64 bw_shorter(__u64 a, __u64 b)
{
	return !a || (b && b < a) ? b : a;
}

/*
 * Returns the path's round-trip time without a queue (us): the shortest of bw_take_rtt(), at first the handshake's; 0:
 * not known.
 */
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
 * Returns DRS's window (payload). DRS measures once per round trip, and a measurement is a round trip old when it takes
 * effect: a sender in slow start has doubled twice by then. So while the measurements grow, the window doubles once
 * more. Later, a sender that fills a queue of up to a bandwidth-delay product has more under way than arrives in the
 * shortest round trip, so the window is scaled to the present one. Beyond 17/8 of the shortest round trip the queue is
 * bloat; do not grow the window for it.
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

/* Returns the largest window (bytes) that a connection can offer, whatever its buffer is. */
BW_FN __u64 bw_largest_window(const struct bw_flow *f)
{
	return BW_LARGEST_FIELD << bw_min(f->rcv_wscale, BW_LARGEST_SCALE);
}

/* Returns DRS's window (payload), before the share; call after bw_take_arrivals(). */
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

/* Runs the first part of fit_window.h with figures from a record. */
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

/*
 * Returns the receive rule's window (payload), before the share. receive_window() in receiver.h does the same part by
 * part.
 */
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
			if (bw_fit_window_is_starting(&f->fit_window))
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

/*
 * Returns the window (payload) within the connection's share of the memory, but never below DRS's floor. Notes whether the share has
 * made fit's window smaller (peers.h).
 */
BW_FN __u64 bw_shared_window(const volatile struct bw_control *all, struct bw_flow *f, __u64 window, int stale)
{
	__u64 floor = bw_mss(bw_max(f->rcv_mss, f->mss)) * BW_DRS_FLOOR_SEGMENTS;
	__u64 most = stale ? BW_NO_LIMIT : bw_max(all->window_level, floor);

	f->fit_window.cut |= f->fit_window.window > most;
	return bw_min(window, most);
}

/* tcp_sock.scaling_ratio: window per memory of the receive buffer, in 256ths; before Linux 6.6 always one half. */
#define BW_SCALING_SHIFT 8
#define BW_SCALING_HALF (1 << (BW_SCALING_SHIFT - 1))
/* The ratio before Linux 6.6 where tcp_adv_win_scale is -2. */
#define BW_SCALING_QUARTER (1 << (BW_SCALING_SHIFT - 2))
/* The ratio is that of the last segment; other segments may need more memory: 1/8 is added. */
#define BW_ROOM_SLACK 8

/*
 * Returns the memory for a window that the peer may fill at any time. offered: payload, capped at 4 GiB; ratio 0: not
 * known.
 */
BW_FN __u64 bw_memory_of_window(__u64 offered, __u32 ratio)
{
	__u64 memory = (bw_min(offered, 1ULL << 32) << BW_SCALING_SHIFT) / (ratio ? ratio : BW_SCALING_HALF);

	return memory + memory / BW_ROOM_SLACK;
}

/*
 * Returns the window that the kernel gives a buffer of that memory, at most half of it: the ratio grows while a clamp stays. ratio 0:
 * not known.
 */
BW_FN __u64 bw_window_of_memory(__u64 memory, __u32 ratio)
{
	return memory * bw_min(ratio ? ratio : BW_SCALING_QUARTER, BW_SCALING_HALF) >> BW_SCALING_SHIFT;
}

/* The smallest room (memory), whatever the share: several Ethernet segments, each of which takes 2 KB or more. */
#define BW_LEAST_ROOM 16384
/* Shares vary: a buffer shrinks only if it exceeds its room by more than 1/4, and by no less than 1/8 of its size. */
#define BW_ROOM_EXCESS 4
#define BW_SHRINK_LEAST 8

/* Returns the memory that the share allows the receive buffer: a reader that stops can hold this much. */
BW_FN __u64 bw_receive_room(const volatile struct bw_config *c, __u64 share, __u64 window)
{
	if (c->receive_rule == BW_RECEIVE_FIXED)
		return BW_NO_LIMIT;
	return bw_max(bw_times(bw_max(share, window), 2), BW_LEAST_ROOM);
}

/*
 * Returns the memory to which a buffer beyond its room shrinks, never below what is in use; 0: leave the buffer
 * unchanged.
 */
BW_FN __u64 bw_shrink_rcvbuf(__u64 rcvbuf, __u64 room, __u64 in_use)
{
	__u64 wanted = bw_max(room, in_use);

	if (bw_less(rcvbuf, room) <= room / BW_ROOM_EXCESS)
		return 0;
	return bw_less(rcvbuf, wanted) >= rcvbuf / BW_SHRINK_LEAST ? wanted : 0;
}

/*
 * Returns the memory that the receive buffer should have for a window (payload); 0: leave the buffer unchanged. The buffer
 * grows with the window in use, so that a reader that stops costs little, and stays within the room of the share,
 * because unread data fills it. share: the largest window of any connection (payload). in_use: memory for unread data
 * and the offered window.
 *
 * awaited: memory of the unread data at which the reader still sleeps (SO_RCVLOWAT); it comes on top, whatever the share. In a buffer
 * without this room the window would close before the reader wakes, and each buffer's worth of data would cost a round trip. The
 * kernel enlarges the buffer for SO_RCVLOWAT as well (tcp_set_rcvlowat()), unless it is locked.
 *
 * An adopted connection keeps its buffer at first: its peer may already fill a wide window, and the memory that a full
 * window takes is not known in advance.
 */
BW_FN __u64 bw_decide_rcvbuf(const volatile struct bw_config *c, const struct bw_flow *f, __u64 share, __u64 window,
			     __u64 in_use, __u64 awaited)
{
	__u64 largest = bw_min(bw_times(c->max_window, 2), 1ULL << 30), wanted = BW_FIRST_RCVBUF;
	__u64 room = bw_min(bw_receive_room(c, share, window), BW_NO_LIMIT - awaited) + awaited;
	__u64 for_window = bw_less(f->rcvbuf, awaited);
	int fixed = c->receive_rule == BW_RECEIVE_FIXED;

	if (fixed)
		wanted = bw_times(window, 2);
	else if (c->receive_rule == BW_RECEIVE_DRS)
		wanted = bw_max(wanted, bw_times(window, 2));
	else if (f->set_rcvbuf && (__u64)f->rcv_wnd * BW_RCVBUF_FILLED > for_window)
		wanted = bw_max(wanted, 2 * for_window);
	wanted = bw_min(bw_min(wanted, largest) + awaited, bw_min(largest, room));
	if (!f->set_rcvbuf || fixed)
		wanted = bw_max(wanted, in_use);
	if (f->adopted && !f->set_rcvbuf)
		wanted = bw_max(wanted, f->rcvbuf);
	if (!f->set_rcvbuf || wanted > f->rcvbuf || (fixed && wanted < f->rcvbuf))
		return wanted;
	return bw_shrink_rcvbuf(f->rcvbuf, room, in_use);
}

#endif
