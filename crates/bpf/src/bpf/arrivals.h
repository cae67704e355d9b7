/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Counts the payload that has arrived at a receiver, in order or not.
 *
 * Problem: bytes_received counts bytes *in order*. Behind a hole it stands still, and when the hole is filled, a whole
 * window counts at once: a rule that measures arrivals per round trip would see two windows. data_segs_in counts
 * segments as they arrive, but not their payload: devices merge several segments, which the kernel then counts as one
 * on some paths.
 * Rule: while segments come in order, the bytes in order count, and give the mean payload of a counted segment. From
 * the first segment out of order on, each segment counts as that mean, until the bytes in order have caught up.
 * Segments that came twice never catch up: their bytes are forgotten once no segment has come out of order for some
 * round trips, and the bytes in order grow no faster than segments come.
 * Properties kept: the total never falls; without losses it equals the bytes in order; a hole that is filled adds no
 * more than what came meanwhile.
 */
#ifndef BUFWISE_ARRIVALS_H
#define BUFWISE_ARRIVALS_H

#include "number.h"

/* The last sample has a weight of 1/8 in the mean payload of a counted segment. */
#define BW_ARRIVALS_WEIGHT 8
/* Round trips after the last segment out of order, before bytes behind a hole may be forgotten. */
#define BW_ARRIVALS_FILLED_WITHIN 4
/* Largest payload of a counted segment (bytes): devices merge up to 512 KB. */
#define BW_ARRIVALS_LARGEST (1ULL << 20)

struct bw_arrivals {
	/* Bytes that have arrived. */
	__u64 total;
	/* Mean payload of a counted segment; 0: BW_MSS. */
	__u64 payload;
	/* Bytes that came behind a hole and are not in order yet. */
	__u64 behind;
	/* At the last sample: bytes in order, counted segments, segments out of order (both modulo 2^32). */
	__u64 in_order;
	__u32 segments;
	__u32 out_of_order;
	/* When a sample last showed a segment out of order (us). */
	__u64 disordered_at;
};

/* Takes in a sample; returns the bytes that have arrived by `now` (us). rtt: the path's (us), 0: not known. */
BW_FN __u64 bw_arrivals_observe(struct bw_arrivals *s, __u64 now, __u64 rtt, __u64 in_order, __u32 segments,
				__u32 out_of_order)
{
	__u64 payload = s->payload ? s->payload : BW_MSS;
	__u64 newly = bw_min(bw_less(in_order, s->in_order), BW_MOST_BYTES);
	__u32 came = segments - s->segments;
	/* Their payload, at the mean. */
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
