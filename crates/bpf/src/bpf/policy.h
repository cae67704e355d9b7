/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The policies that run inside the kernel, as plain C without the kernel: compiled for BPF, and for the
 * host, where tests hold them against the Rust ones (crates/policy), call by call.
 *
 * ABT: 004 section 2.2. DRS: 003 sections 6 and 7. SOBAS has a file of its own, sobas.h. SABT's throughput
 * equation needs floating point: user space computes the demand, and only the bound is applied here.
 *
 * Integers only; 64 bits and no 128-bit products, which BPF does not have. Where a product could overflow,
 * a factor is capped first at a value that no connection reaches; each cap is named. Sizes are payload bytes,
 * times microseconds.
 */
#ifndef BUFWISE_POLICY_H
#define BUFWISE_POLICY_H

#include <linux/types.h>

/* Kernels before Linux 6.3 refuse a loop that is closed by running on into its head, as compilers lay some of them out. */
#ifdef __bpf__
#define BW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BW_UNROLL
#endif

#define BW_FN static inline __attribute__((always_inline, unused))

/* "Leave the setting as it is." */
#define BW_LEAVE (~0ULL)
/* "No bound." */
#define BW_NO_LIMIT (~0ULL)
/* Payload of a full segment where the sample does not say. */
#define BW_MSS 1448
/* Longest time that enters a product: 134 s. */
#define BW_LONGEST (1ULL << 27)
/* Most bytes of one interval that enter a product: 64 GiB. */
#define BW_MOST_BYTES (1ULL << 36)

/* Which rule sizes the send buffer. */
enum bw_send_rule {
	BW_SEND_KERNEL,
	BW_SEND_FIXED,
	BW_SEND_EQ,
	BW_SEND_ABT,
	BW_SEND_SABT,
};

/* Which rule sizes the receive window. */
enum bw_receive_rule {
	BW_RECEIVE_KERNEL,
	BW_RECEIVE_FIXED,
	BW_RECEIVE_DRS,
	BW_RECEIVE_SOBAS,
};

BW_FN __u64 bw_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

BW_FN __u64 bw_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* a - b, or 0. */
BW_FN __u64 bw_less(__u64 a, __u64 b)
{
	return a > b ? a - b : 0;
}

/* a * factor for a small constant factor, or all ones. */
BW_FN __u64 bw_times(__u64 a, __u64 factor)
{
	return a > ~0ULL / factor ? ~0ULL : a * factor;
}

BW_FN __u64 bw_mss(__u64 mss)
{
	return mss ? mss : BW_MSS;
}

/* ---- Send side -------------------------------------------------------------------------------------- */

/* Edges of ABT's band, in congestion windows (004, section 2.2.1). */
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

/* What user space says of the memory. */
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
	if (rule == BW_SEND_ABT || b->stale)
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
 * What writers' last buffers hold: a half on the mean, and an eighth for chance (two standard deviations of twenty writers,
 * who hold anything up to a whole one alike).
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

/* ---- Receive side: DRS ------------------------------------------------------------------------------- */

/* Largest shift of the window-scale option, and largest value of the window field (RFC 7323). */
#define BW_LARGEST_SCALE 14
#define BW_LARGEST_FIELD 65535ULL
/* What slow start may do in a round trip (003, section 6.5). */
#define BW_DRS_DOUBLING 2
/* A receiver that delays acknowledgements needs room for two segments. */
#define BW_DRS_FLOOR_SEGMENTS 2

struct bw_drs {
	/* Smallest receiver-side round-trip time. */
	__u64 own_rtt;
	/* Largest measurement. */
	__u64 largest;
	/* Begin of the interval, and what had arrived by then. */
	__u64 began_at;
	__u64 began_bytes;
	__u32 began;
	__u32 unused;
};

struct bw_receive_sample {
	__u64 now;
	__u64 received;
	__u64 mss;
	/* Receiver's own estimate; the sender-side one where it is fresh. */
	__u64 rcv_rtt;
	__u64 srtt;
	/* Of the last 100 slots, those with losses (SOBAS). */
	__u32 losses;
	__u32 scale;
};

BW_FN __u64 bw_drs_window(const struct bw_drs *s, __u64 mss, __u32 scale, __u64 initial, __u64 max)
{
	__u32 shift = scale < BW_LARGEST_SCALE ? scale : BW_LARGEST_SCALE;
	__u64 quantum = 1ULL << shift, largest, wanted, up;

	largest = bw_max(bw_min(BW_LARGEST_FIELD << shift, max), quantum);
	wanted = bw_max(bw_times(s->largest, BW_DRS_DOUBLING), mss * BW_DRS_FLOOR_SEGMENTS);
	wanted = bw_min(bw_max(bw_max(wanted, initial), quantum), largest);
	up = (wanted + quantum - 1) >> shift << shift;
	return up > largest ? largest >> shift << shift : up;
}

BW_FN void bw_drs_measure(struct bw_drs *s, const struct bw_receive_sample *x, __u64 rtt)
{
	__u64 elapsed = bw_less(x->now, s->began_at), arrived = bw_less(x->received, s->began_bytes);

	if (s->began) {
		if (elapsed < bw_max(rtt, 1))
			return;
		if (elapsed > rtt)
			arrived = bw_min(arrived, BW_MOST_BYTES) * bw_min(rtt, BW_LONGEST) / elapsed;
		s->largest = bw_max(s->largest, arrived);
	}
	s->began = 1;
	s->began_at = x->now;
	s->began_bytes = x->received;
}

/* The window to advertise. */
BW_FN __u64 bw_drs_observe(struct bw_drs *s, const struct bw_receive_sample *x, __u64 initial, __u64 max)
{
	__u64 rtt;

	if (x->rcv_rtt && (!s->own_rtt || x->rcv_rtt < s->own_rtt))
		s->own_rtt = x->rcv_rtt;
	rtt = x->srtt ? x->srtt : s->own_rtt;
	if (rtt)
		bw_drs_measure(s, x, rtt);
	return bw_drs_window(s, bw_mss(x->mss), x->scale, initial, max);
}

/* ---- Receive side: losses as a receiver sees them ----------------------------------------------------- */

/*
 * SOBAS counts lost probes, one sent every 10 ms, of the last 100 (000, section IV-B). Without probes: of the
 * last 100 slots of 10 ms, those in which a segment came out of order.
 */
#define BW_SLOT 10000
#define BW_SLOTS 100

struct bw_slots {
	/* Bit n of the pair: n slots ago. */
	__u64 low;
	__u64 high;
	__u64 slot;
	__u32 out_of_order;
	__u32 unused;
};

BW_FN void bw_slots_pass(struct bw_slots *s, __u64 passed)
{
	if (passed >= 64) {
		s->high = passed >= BW_SLOTS ? 0 : s->low << (passed - 64);
		s->low = 0;
	} else if (passed) {
		s->high = s->high << passed | s->low >> (64 - passed);
		s->low <<= passed;
	}
	s->high &= (1ULL << (BW_SLOTS - 64)) - 1;
}

BW_FN __u32 bw_bits(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

/* Slots with losses among the last 100, given the count of segments out of order so far. */
BW_FN __u32 bw_slots_observe(struct bw_slots *s, __u64 now, __u32 out_of_order)
{
	__u64 slot = now / BW_SLOT;

	bw_slots_pass(s, bw_less(slot, s->slot));
	s->slot = bw_max(slot, s->slot);
	if (out_of_order != s->out_of_order)
		s->low |= 1;
	s->out_of_order = out_of_order;
	return bw_bits(s->low) + bw_bits(s->high);
}

#include "sobas.h"
#include "bound.h"

_Static_assert(sizeof(struct bw_abt) == 32, "the Rust twin has 32 bytes");
_Static_assert(sizeof(struct bw_drs) == 40, "the Rust twin has 40 bytes");
_Static_assert(sizeof(struct bw_slots) == 32, "the Rust twin has 32 bytes");
_Static_assert(sizeof(struct bw_bound) == 88, "the Rust twin has 88 bytes");
_Static_assert(sizeof(struct bw_sobas) == 312, "the Rust twin has 312 bytes");

#endif
