/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Counts losses at both ends: events, not segments.
 *
 * Problem: after one lost segment every later segment comes out of order, for a round trip; an overflow loses hundreds
 * at once; and on many paths segments overtake each other without any loss. The rules read losses as signs of
 * congestion, so a burst must count once, and reordering not at all.
 * Source: RFC 5348, section 5.2 (a loss event lasts a round trip). SOBAS sends a probe every 10 ms and counts those
 * lost of the last 100 (Prasad 2004, section IV-B); without probes, a slot of 10 ms with a loss event counts as a lost
 * probe.
 * Rule at the receiver: a hole opens when a segment comes out of order. The hole is a loss if no byte in order has come
 * for 3/4 of the path's round-trip time since: a retransmission takes a whole round trip, an overtaken segment less.
 * Rule at the sender: retransmissions within a smoothed round trip of the first are the same event.
 * Properties kept at the receiver: at most one event in 3/4 of a round trip; no event without a segment out of order.
 */
#ifndef BUFWISE_LOSSES_H
#define BUFWISE_LOSSES_H

#include "number.h"

/* Length of a slot (us), and slots that are remembered. */
#define BW_SLOT 10000
#define BW_SLOTS 100

struct bw_losses {
	/* Slots with a loss event, as one number of 100 bits: bit n stands for n slots ago. */
	__u64 low;
	__u64 high;
	/* Number of the present slot: time / BW_SLOT. */
	__u64 slot;
	/* Bytes in order at the last sample; when the present hole opened (us), 0: no hole. */
	__u64 in_order;
	__u64 hole_at;
	/* Segments out of order at the last sample, modulo 2^32. */
	__u32 out_of_order;
	/* The hole has been counted. */
	__u32 counted;
};

/* Shifts the slots by the number of slots that have passed. */
BW_FN void bw_losses_pass(struct bw_losses *s, __u64 passed)
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

/* Bits that are set. */
BW_FN __u32 bw_bits(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

/* Whether the present hole is now recognized as a loss; true once for each hole. */
BW_FN int bw_losses_recognize(struct bw_losses *s, __u64 now, __u64 rtt, __u64 in_order, __u32 out_of_order)
{
	if (in_order != s->in_order) {
		s->hole_at = 0;
		s->counted = 0;
	}
	if (out_of_order != s->out_of_order && !s->hole_at)
		s->hole_at = now;
	s->in_order = in_order;
	s->out_of_order = out_of_order;
	if (!s->hole_at || s->counted || bw_less(now, s->hole_at) < rtt - rtt / 4)
		return 0;
	s->counted = 1;
	return 1;
}

/* Takes in a sample; returns the slots with loss events among the last 100. rtt: without a queue (us), 0: not known. */
BW_FN __u32 bw_losses_observe(struct bw_losses *s, __u64 now, __u64 rtt, __u64 in_order, __u32 out_of_order)
{
	__u64 slot = now / BW_SLOT;

	bw_losses_pass(s, bw_less(slot, s->slot));
	s->slot = bw_max(slot, s->slot);
	if (bw_losses_recognize(s, now, rtt, in_order, out_of_order))
		s->low |= 1;
	return bw_bits(s->low) + bw_bits(s->high);
}

struct bw_loss_events {
	/* When the last event began (us). */
	__u64 began_at;
	/* Retransmissions at the last sample, modulo 2^32; loss events so far. */
	__u32 retransmitted;
	__u32 count;
};

/* Takes in a sample of a sender; returns its loss events so far. srtt: us. */
BW_FN __u32 bw_loss_events_observe(struct bw_loss_events *s, __u64 now, __u64 srtt, __u32 retransmitted)
{
	if (retransmitted != s->retransmitted && (!s->count || bw_less(now, s->began_at) > srtt)) {
		s->began_at = now;
		s->count++;
	}
	s->retransmitted = retransmitted;
	return s->count;
}

_Static_assert(sizeof(struct bw_losses) == 48, "the Rust twin has 48 bytes");
_Static_assert(sizeof(struct bw_loss_events) == 16, "the Rust twin has 16 bytes");

#endif
