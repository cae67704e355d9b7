/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Payload that has arrived at a receiver, in order or not.
 *
 * Problem: bytes_received counts what is *in order*. Behind a hole nothing counts, and when the hole is filled a whole
 * window counts at once: a rule that measures what arrives in a round trip would see two. Segments are counted when
 * they come (data_segs_in), but not what they carry: devices merge several, with one segment's count on some ways.
 * Rule: while segments come in order, the bytes in order count, and tell what a counted segment carries on the mean.
 * From the first segment out of order on, segments count by that mean, until the bytes in order have caught up.
 * Segments that came twice never catch up: they are forgotten when no segment has come out of order for some round
 * trips and no more bytes are in order than have come.
 * Properties kept: the total never falls; without losses it is the bytes in order, exactly; a hole that is filled adds
 * no more than what came meanwhile.
 */
#ifndef BUFWISE_ARRIVALS_H
#define BUFWISE_ARRIVALS_H

#include "number.h"

/* Weight of the last sample in the mean payload of a counted segment: one in so many. */
#define BW_ARRIVALS_WEIGHT 8
/* Bytes behind a hole are forgotten no sooner than so many round trips after the last segment out of order. */
#define BW_ARRIVALS_FILLED_WITHIN 4
/* Most payload of a counted segment: devices merge up to 512 KB. */
#define BW_ARRIVALS_LARGEST (1ULL << 20)

struct bw_arrivals {
	/* Bytes that have arrived. */
	__u64 total;
	/* Mean payload of a counted segment; 0: BW_MSS. */
	__u64 payload;
	/* Bytes that came behind a hole and do not count as in order yet. */
	__u64 behind;
	/* The last sample: bytes in order, counted segments, segments out of order. */
	__u64 in_order;
	__u32 segments;
	__u32 out_of_order;
	/* When the last segment out of order was seen. */
	__u64 disordered_at;
};

/* Bytes that have arrived by `now` (us), when so many segments had been counted; rtt: the path's, 0: not known. */
BW_FN __u64 bw_arrivals_observe(struct bw_arrivals *s, __u64 now, __u64 rtt, __u64 in_order, __u32 segments,
				__u32 out_of_order)
{
	__u64 payload = s->payload ? s->payload : BW_MSS;
	__u64 newly = bw_min(bw_less(in_order, s->in_order), BW_MOST_BYTES);
	__u32 came = segments - s->segments;
	/* Payload of these segments, if each carried the mean. */
	__u64 bytes = came * payload;
	int disordered = out_of_order != s->out_of_order;

	if (disordered)
		s->disordered_at = now;
	else if (came && bw_less(now, s->disordered_at) > bw_min(rtt, BW_LONGEST) * BW_ARRIVALS_FILLED_WITHIN &&
		 newly <= bytes + bytes / 4)
		s->behind = 0;
	if (disordered || s->behind) {
		s->total += bytes;
		s->behind = bw_less(s->behind + bytes, newly);
	} else {
		s->total += newly;
		if (came)
			payload = (payload * (BW_ARRIVALS_WEIGHT - 1) + newly / came) / BW_ARRIVALS_WEIGHT;
		s->payload = bw_max(bw_min(payload, BW_ARRIVALS_LARGEST), 1);
	}
	s->in_order = in_order;
	s->segments = segments;
	s->out_of_order = out_of_order;
	return s->total;
}

_Static_assert(sizeof(struct bw_arrivals) == 48, "the Rust twin has 48 bytes");

#endif
