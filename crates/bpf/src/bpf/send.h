/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The send rules: how much payload a send buffer should hold, from the congestion window and the shares of the memory.
 *
 * Problem: a send buffer below the congestion window starves its connection, one far above it keeps memory from others.
 * Source: Semke 1998, section 2.2 (ABT). SABT's demand (Matsuo) needs floating point: user space computes it, and only
 * the bound is applied here. Shares and pacing are ours.
 * Terms: sizes are payload bytes, times microseconds. The share is what the connection may hold of the host's budget.
 * Properties kept: without pressure ABT's target stays within two and four congestion windows. A share is never
 * exceeded. Without user space every shared rule is ABT without a share.
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
/* Under pressure a buffer shrinks no further than this. */
#define BW_ABT_FLOOR_SEGMENTS 2

struct bw_abt {
	__u64 net_target;
	/* bytes_acked at the last look. */
	__u64 acked;
	/* The shrinking limit, while the second says that there is pressure. */
	__u64 shrunk;
	__u32 shrinking;
	__u32 unused;
};

struct bw_send_sample {
	__u64 cwnd;
	__u64 mss;
	__u64 bytes_acked;
	/* Memory: what the send queue holds, and its limit; 0: not known. */
	__u64 send_queued;
	__u64 sndbuf;
	/* The kernel's flag. */
	__u32 app_limited;
	__u32 unused;
};

/* User space's bounds on the memory. */
struct bw_send_bounds {
	/* Largest buffer at all. */
	__u64 max;
	/* The connection's share; BW_NO_LIMIT: no bound. */
	__u64 limit;
	/* SABT: the demand; 0: not known. */
	__u64 demand;
	/* Memory in use exceeds the budget. */
	__u32 pressure;
	/* User space is gone: nothing of the above but max is to be believed. */
	__u32 stale;
};

/*
 * The kernel also calls a sender application-limited when its send buffer is full. Whose buffer is half used or
 * more, its application has data (the writer is woken when a third is free).
 */
BW_FN int bw_application_limits(const struct bw_send_sample *x)
{
	return x->app_limited && (!x->sndbuf || bw_times(x->send_queued, 2) < x->sndbuf);
}

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
	floor = bw_min(bw_mss(x->mss) * BW_ABT_FLOOR_SEGMENTS, target);
	before = s->shrinking ? bw_min(s->shrunk, target) : target;
	s->shrinking = 1;
	s->shrunk = bw_max(bw_less(before, acked), floor);
	return s->shrunk;
}

/*
 * The payload that the send buffer should hold under a rule. Without user space only the congestion window is
 * left to go by, so every shared rule becomes ABT without a share.
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

/* Memory of a payload in full segments: what sk_wmem_queued was measured to hold of it, 5/4. */
#define BW_HELD_NUMERATOR 5
#define BW_HELD_DENOMINATOR 4

/*
 * The limit (payload) under which a sender that never runs out of data holds no more than its share on the mean. Its
 * writer is woken at two thirds of the limit (sk_stream_is_writeable()) and writes until the limit is reached, and to
 * the end of the buffer then begun, for tcp_sendmsg() asks for memory only when it begins one: so it holds between two
 * thirds of the limit, and the limit and a buffer; five sixths and half a buffer on the mean.
 */
BW_FN __u64 bw_limit_of_share(__u64 share, __u64 last_buffer)
{
	__u64 room = bw_less(share, last_buffer / 4);

	return bw_min(share, room + room / 5);
}

/*
 * Filled part of writers' last buffers: a half on the mean, and an eighth for chance (two standard deviations of twenty
 * writers, each of which is equally likely to hold anything up to a whole one).
 */
#define BW_FILLED_NUMERATOR 5
#define BW_FILLED_DENOMINATOR 8

/*
 * The rate, bytes per second, at which no more is under way than a share of so much payload (of twice as much memory)
 * has room for beside what the last buffer holds (memory); at least a quarter of the share, and two segments. 0: not
 * known.
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
