/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * DRS: the receive window from what arrives in a round trip.
 *
 * Problem: a receiver sees neither the sender's window nor the path. The bytes that arrive in one round trip are what the sender
 * had under way one round trip earlier.
 * Source: Fisk 2000, sections 6 and 7.
 * Terms: sizes are payload bytes, times microseconds. A measurement is what arrived in one round trip.
 * Properties kept: the window is at least twice the largest measurement (within the maximum), never shrinks, and is a
 * value that the window field can hold.
 */
#ifndef BUFWISE_DRS_H
#define BUFWISE_DRS_H

#include "number.h"

/* Which rule sizes the receive window. */
enum bw_receive_rule {
	BW_RECEIVE_KERNEL,
	BW_RECEIVE_FIXED,
	BW_RECEIVE_DRS,
	BW_RECEIVE_SOBAS,
	BW_RECEIVE_FIT,
};

/* Largest shift of the window scale option, and largest value of the window field (RFC 7323). */
#define BW_LARGEST_SCALE 14
#define BW_LARGEST_FIELD 65535ULL
/* Largest factor by which slow start grows in a round trip (Fisk 2000, section 6.5). */
#define BW_DRS_DOUBLING 2
/* Smallest window, segments: a receiver that delays acknowledgements waits for two. */
#define BW_DRS_FLOOR_SEGMENTS 2

struct bw_drs {
	/* Shortest receiver-side round-trip time; 0: not known. */
	__u64 own_rtt;
	/* Largest measurement. */
	__u64 largest;
	/* Begin of the open interval, and bytes arrived by then. */
	__u64 began_at;
	__u64 began_bytes;
	/* Whether an interval is open. */
	__u32 began;
	/* Shortest round-trip time (us) in the present period of bw_take_rtt() (rules_receive.h); 0: not known. */
	__u32 period_rtt;
};

struct bw_receive_sample {
	__u64 now;
	/* Payload that has arrived so far, in order or not (arrivals.h). */
	__u64 received;
	/* Payload of a full segment; 0: BW_MSS. */
	__u64 mss;
	/* Round-trip times: the receiver's own estimate, and the sender-side one while it is fresh; 0: not known. */
	__u64 rcv_rtt;
	__u64 srtt;
	/* Of the last 100 slots of 10 ms, those with a loss event (for SOBAS; losses.h). */
	__u32 losses;
	/* Shift of the window scale option. */
	__u32 scale;
};

/* Returns the window for the largest measurement: a multiple of 2^scale within `initial` and `max`. */
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

/* Ends the interval once it has lasted rtt (not 0); bytes of a longer interval count in proportion. */
BW_FN void bw_drs_measure(struct bw_drs *s, const struct bw_receive_sample *x, __u64 rtt)
{
	__u64 elapsed = bw_less(x->now, s->began_at), arrived = bw_less(x->received, s->began_bytes);

	if (s->began) {
		if (elapsed < rtt)
			return;
		if (elapsed > rtt)
			arrived = bw_min(arrived, BW_MOST_BYTES) * bw_min(rtt, BW_LONGEST) / elapsed;
		s->largest = bw_max(s->largest, arrived);
	}
	s->began = 1;
	s->began_at = x->now;
	s->began_bytes = x->received;
}

/* Takes in a sample; returns the window to advertise. initial: the first window; max: the largest. */
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

_Static_assert(sizeof(struct bw_drs) == 40, "the Rust twin has 40 bytes");

#endif
