/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The send rules: how much payload a send buffer should hold, from the congestion window and the shares of the memory.
 *
 * Problem: a send buffer below the congestion window starves its connection; a buffer far above it keeps memory from
 * others.
 * Source: Semke 1998, section 2.2 (ABT). SABT's demand (Matsuo) needs floating point, so user space computes it, and
 * this file applies only the bound. Shares and pacing are ours.
 * Terms: sizes are payload bytes, times microseconds. The share is what the connection may hold of the host's budget.
 * Properties kept: without pressure ABT's target is at most four congestion windows, and at least two unless the application
 * limits the sender. A share is never exceeded. Without user space every rule with shares is ABT without a share.
 */
#ifndef BUFWISE_SEND_H
#define BUFWISE_SEND_H

#include "number.h"

/* "Leave the setting as it is." */
#define BW_LEAVE (~0ULL)
/* "No bound." */
#define BW_NO_LIMIT (~0ULL)

/* Which rule sizes the send buffer. */
enum bw_send_rule {
	BW_SEND_KERNEL,
	BW_SEND_FIXED,
	BW_SEND_EQ,
	BW_SEND_ABT,
	BW_SEND_SABT,
	BW_SEND_FIT,
};

/* Edges of ABT's band, in congestion windows (Semke 1998, section 2.2.1). */
#define BW_ABT_LOW 2
#define BW_ABT_HIGH 4
/* Smallest buffer under pressure, segments. */
#define BW_ABT_FLOOR_SEGMENTS 2

struct bw_abt {
	/* The network's target; 0: none yet. */
	__u64 net_target;
	/* bytes_acked at the last sample. */
	__u64 acked;
	/* The shrinking limit; valid while `shrinking`. */
	__u64 shrunk;
	/* There was pressure at the last sample. */
	__u32 shrinking;
	__u32 unused;
};

struct bw_send_sample {
	__u64 cwnd;
	__u64 mss;
	__u64 bytes_acked;
	/* Memory: what the send queue holds, and its limit; limit 0: not known. */
	__u64 send_queued;
	__u64 sndbuf;
	/* The kernel's flag rate_app_limited; also set when the send buffer is full (bw_application_limits()). */
	__u32 app_limited;
	__u32 unused;
};

/* User space's bounds; sizes are payload. */
struct bw_send_bounds {
	/* Largest buffer. */
	__u64 max;
	/* The connection's share; BW_NO_LIMIT: no bound. */
	__u64 limit;
	/* SABT: the demand; 0: not known. */
	__u64 demand;
	/*
	 * Under pressure no buffer shrinks below this; 0: two segments. Without it, a connection with a short round trip would
	 * shrink too far: many acknowledgements come before user space sees that the pressure is over.
	 */
	__u64 least;
	/* Memory in use exceeds the budget. */
	__u32 pressure;
	/* User space is gone: of the above, only max is valid. */
	__u32 stale;
};

/*
 * Whether the application, and not the send buffer, limits the sender. The kernel sets its flag also when the send
 * buffer is full. While at least half of the buffer is used, the application has data, because a writer is woken when a
 * third is free.
 */
BW_FN int bw_application_limits(const struct bw_send_sample *x)
{
	return x->app_limited && (!x->sndbuf || bw_times(x->send_queued, 2) < x->sndbuf);
}

/* Keeps the target within ABT's band; outside the band it moves to the nearer edge. cwnd 0: not known. */
BW_FN void bw_abt_follow(struct bw_abt *s, const struct bw_send_sample *x, __u64 max)
{
	__u64 low = bw_times(x->cwnd, BW_ABT_LOW), high = bw_times(x->cwnd, BW_ABT_HIGH);

	if (!x->cwnd)
		return;
	if (low > s->net_target && !bw_application_limits(x))
		s->net_target = bw_min(low, max);
	else if (high < s->net_target)
		s->net_target = high;
}

/* Returns ABT's target within the share; under pressure it shrinks by what is acknowledged. BW_LEAVE: no target yet. */
BW_FN __u64 bw_abt_observe(struct bw_abt *s, const struct bw_send_sample *x, const struct bw_send_bounds *b)
{
	__u64 acked = bw_less(x->bytes_acked, s->acked), target, floor, before;

	s->acked = x->bytes_acked;
	bw_abt_follow(s, x, b->max);
	if (!b->pressure)
		s->shrinking = 0;
	if (!s->net_target)
		return BW_LEAVE;
	target = bw_min(s->net_target, b->limit);
	if (!b->pressure)
		return target;
	floor = bw_min(bw_max(bw_mss(x->mss) * BW_ABT_FLOOR_SEGMENTS, b->least), target);
	before = s->shrinking ? bw_min(s->shrunk, target) : target;
	s->shrinking = 1;
	s->shrunk = bw_max(bw_less(before, acked), floor);
	return s->shrunk;
}

/*
 * Returns the payload that the send buffer should hold under a rule; BW_LEAVE: leave it unchanged. Without user space
 * only the congestion window is known, so every rule with shares becomes ABT without a share.
 */
BW_FN __u64 bw_send_target(__u32 rule, __u64 fixed, struct bw_abt *s, const struct bw_send_sample *x,
			   const struct bw_send_bounds *b)
{
	struct bw_send_bounds alone = { .max = b->max, .limit = BW_NO_LIMIT };
	__u64 abt;

	if (rule == BW_SEND_KERNEL)
		return BW_LEAVE;
	if (rule == BW_SEND_FIXED)
		return fixed;
	abt = bw_abt_observe(s, x, b->stale ? &alone : b);
	if (rule == BW_SEND_ABT || rule == BW_SEND_FIT || b->stale)
		return abt;
	if (rule == BW_SEND_EQ)
		return b->limit == BW_NO_LIMIT ? BW_LEAVE : bw_min(b->limit, b->max);
	return b->demand ? bw_min(b->demand, b->limit) : abt;
}

/* Memory per payload in full segments: 5/4, measured as sk_wmem_queued. */
#define BW_HELD_NUMERATOR 5
#define BW_HELD_DENOMINATOR 4

/*
 * Returns the limit (payload) under which a sender that never runs out of data holds its share on average, and no more.
 * Its writer is woken at 2/3 of the limit (sk_stream_is_writeable()) and writes until the limit is reached, and then to
 * the end of the buffer it has begun, because tcp_sendmsg() asks for memory only when it begins a buffer. So the sender
 * holds between 2/3 of the limit and the limit plus one buffer; on average 5/6 of the limit plus half a buffer.
 * last_buffer: memory.
 */
BW_FN __u64 bw_limit_of_share(__u64 share, __u64 last_buffer)
{
	__u64 room = bw_less(share, last_buffer / 4);

	return bw_min(share, room + room / 5);
}

/*
 * Filled part of the writers' last buffers: 1/2 on average, and 1/8 for chance (two standard deviations of the mean of
 * twenty writers, each with a fill that is uniform between none and a whole buffer).
 */
#define BW_FILLED_NUMERATOR 5
#define BW_FILLED_DENOMINATOR 8

/*
 * Returns the pacing rate, bytes per second, at which the data under way fit into the share (payload; its memory is
 * twice that) beside what the last buffer holds (memory). The room is at least a quarter of the share's memory, and two
 * segments. 0: not known, because srtt (us) is 0; at most 2^32 - 2, because all ones mean no bound.
 */
BW_FN __u32 bw_pace(__u64 payload, __u64 last_buffer, __u64 srtt, __u64 mss)
{
	__u64 memory = bw_min(bw_times(payload, 2), BW_MOST_BYTES), room, rate;
	__u64 filled = last_buffer * BW_FILLED_NUMERATOR / BW_FILLED_DENOMINATOR;

	if (!srtt)
		return 0;
	room = bw_less(memory, filled) * BW_HELD_DENOMINATOR / BW_HELD_NUMERATOR;
	room = bw_max(bw_max(room, memory / 4), 2 * bw_mss(mss));
	rate = room * 1000000 / srtt;
	return bw_min(rate, (1ULL << 32) - 2);
}

_Static_assert(sizeof(struct bw_abt) == 32, "the Rust twin has 32 bytes");

#endif
