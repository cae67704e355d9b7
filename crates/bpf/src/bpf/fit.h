/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit, at the sender: a roof over the sending rate that keeps what is under way at what the path carries.
 *
 * Problem: a loss-based congestion control learns the capacity of a path by filling its queue until it drops. A sender that
 * knows the capacity in time needs neither the queue nor the drops. TCP itself shows it: the first flights leave in bursts,
 * arrive at the rate of the tightest link, and their acknowledgements come back so spaced.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate. A *train* is a run of
 * acknowledgements without a pause; its rate is C' if it left faster than C. The *roof* is the largest rate at which the
 * connection may send (SO_MAX_PACING_RATE); the kernel's congestion control goes on below it, so that a connection never
 * sends more than without bufwise. The *queue* is what the round trip takes longer than T.
 *
 * Rule, phase by phase:
 * 1. Start: slow start as the kernel has it, unpaced. Each train is measured; the longer one is the better evidence. A
 *    flight of N segments in slow start puts N/2 of them into the queue. So the phase ends when the congestion window has
 *    reached a sixteenth of C' T, or an eighth: the sooner, the longer the train. Where trains are short or broken there, the
 *    roof is set, and bursts that have left by then are heard for one more round trip. Jitter is no evidence: a train in
 *    bunches tells no rate, and while round trips are longer than the own queue makes them there is no roof.
 * 2. Ramp: the roof is 15/16 C'. Slow start goes on below it, spread over the round trip, and no burst meets the queue. It ends
 *    when the roof is reached or a queue appears: then C' was too high, and what arrives from now on is C.
 * 3. Follow: every two round trips, the roof rises a little where there is no queue, and is set a little below what was
 *    delivered where there is one. The steps up double as long as no queue appears, so that a path that has grown is found in
 *    some round trips. Steps up are parts of C', steps down parts of the own rate: connections that share a path approach
 *    equal rates.
 *    Where what was delivered falls and rises again, a path's rate varies, or a link pauses: a queue is then allowed, as long
 *    as the longest seen at such a fall, half of T at most, and T is thought longer by it.
 * 4. Open: no roof. If the roof descends three times and the queue does not become shorter as it would have to, then
 *    the queue is somebody else's, or the delay is none of a queue (radio links, jitter): the kernel's congestion control
 *    competes by itself. A short delay is let stand instead. After a while the rule tries again, and each time that this
 *    fails it waits longer.
 *
 * Properties kept: without evidence there is no roof. A roof never falls while the application or the congestion window
 * limits the sender. Paths shorter than BW_FIT_SHORTEST and senders that pace themselves (neither CUBIC nor Reno) are left
 * alone. Calls may come at any distance: per acknowledgement, per round trip, or as a timer has it.
 */
#ifndef BUFWISE_FIT_H
#define BUFWISE_FIT_H

#include "fit_start.h"

/* ---- Follow --------------------------------------------------------------------------------------------- */

/* How long to leave the connection alone the next time (us), after so long. */
BW_FN __u32 bw_fit_next_hold(__u32 hold)
{
	return hold ? bw_min(2ULL * hold, BW_FIT_LONGEST_HOLD) : BW_FIT_HOLD;
}

BW_FN void bw_fit_open(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->hold = bw_fit_next_hold(s->hold);
	s->phase = BW_FIT_OPEN;
	s->open_until = x->now + s->hold;
	s->roof = 0;
	s->opened++;
}

/* Acknowledgements come in bursts, so one round's rate errs by some percent: rates near each other are averaged. */
BW_FN __u64 bw_fit_smooth(__u64 before, __u64 rate)
{
	if (!before || bw_distance(before, rate) > before / 12)
		return rate;
	return before - before / 4 + rate / 4;
}

/*
 * Whether a round with a queue that carried so much, where it was more before, is taken for a pause: pauses of a host or of a
 * radio link leave a queue, too, and somewhat less arrives in that round. Then the path carries what it did, unless it comes so
 * again.
 */
BW_FN int bw_fit_is_pause_of_host(__u32 doubts, __u64 before, __u64 carried)
{
	return doubts < BW_FIT_DOUBTS && carried < before - before / BW_FIT_BEYOND && carried * 8 >= before * BW_FIT_PAUSED;
}

/* Lets a queue stand that is so long (us), and a step more: half of the shortest round trip at most. */
BW_FN void bw_fit_allow(struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue)
{
	__u64 rtt = bw_min(x->min_rtt, BW_LONGEST);

	s->allowed = bw_min(bw_max(s->allowed, queue) + rtt / BW_FIT_ALLOWED_STEP, rtt / BW_FIT_LARGEST_ALLOWED);
}

/* There is a queue (us, with what may stand), and perhaps less was carried than before. */
BW_FN void bw_fit_note_fall(struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue, __u64 before, __u64 delivered)
{
	if (delivered < before - before / BW_FIT_BEYOND) {
		s->fell_to = delivered;
		s->fell_rounds = 0;
	}
	s->fell_queue = bw_max(s->fell_queue, queue);
	if (!s->slid_from || delivered < before - before / BW_FIT_SLID) {
		s->slid_from = delivered;
	} else if (delivered < s->slid_from - s->slid_from / BW_FIT_SLID) {
		s->slid_from = delivered;
		bw_fit_allow(s, x, queue);
	}
}

/* Each round: if the path carries more again soon after it carried less, it varies. */
BW_FN void bw_fit_judge_fall(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	s->varies = bw_less(s->varies, 1);
	if (!s->varies)
		s->allowed -= s->allowed / BW_FIT_ALLOWED_LESS;
	if (!s->fell_to)
		return;
	if (++s->fell_rounds <= BW_FIT_FALL_ROUNDS) {
		if (delivered < s->fell_to + s->fell_to / BW_FIT_RISEN)
			return;
		s->varies = bw_min(s->varies + BW_FIT_VARIES, BW_FIT_MOST_VARIES);
		if (s->varies >= BW_FIT_VARIES_OFTEN)
			bw_fit_allow(s, x, s->fell_queue);
	}
	s->fell_to = 0;
	s->fell_queue = 0;
}

BW_FN void bw_fit_descend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	__u64 queue = bw_fit_queue(s, x), rtt = bw_max(x->min_rtt, 1), before = bw_max(s->known, s->carried);
	/* Half of the queue's share of the round trip: as long as the round lasts, it drains all. */
	__u64 share = bw_min(queue * 1024 / (2 * rtt) + 1024 / BW_FIT_DOWN, 1024 / BW_FIT_LARGEST_DOWN);

	s->in_vain = !s->expected || queue + s->expected / 2 <= s->queue ? 0 : s->in_vain + 1;
	s->confirmed |= queue > 2 * bw_fit_threshold(x);
	s->queue = queue;
	s->expected = bw_min(queue, share * bw_min(x->srtt, BW_LONGEST) / 1024);
	s->step = BW_FIT_STEP;
	s->doubts = bw_fit_is_pause_of_host(s->doubts, before, delivered) ? s->doubts + 1 : 0;
	bw_fit_note_fall(s, x, bw_max(queue, s->allowed), before, delivered);
	delivered = bw_fit_smooth(before, delivered);
	s->known = s->doubts ? before : delivered;
	s->carried = 0;
	s->drains = 1;
	s->descents++;
	if (s->in_vain >= (s->hold ? BW_FIT_IN_VAIN_AGAIN : BW_FIT_IN_VAIN)) {
		if (queue > 2 * bw_fit_threshold(x)) {
			bw_fit_open(s, x);
			return;
		}
		/* Jitter: T is longer. */
		bw_fit_allow(s, x, s->allowed + queue);
		s->in_vain = 0;
		s->expected = 0;
	}
	bw_fit_set(s, bw_min(s->roof, delivered - delivered * share / 1024), x);
}

/* The step upwards: of C', and the larger, the smaller the own part of C' is. */
BW_FN __u64 bw_fit_step(const struct bw_fit *s)
{
	__u64 capacity = bw_max(s->capacity, s->carried), step = capacity * s->step / 1024;
	/* Quarters. */
	__u64 part = bw_min(bw_max(capacity * 4 / bw_max(s->roof, 1), 4), 4 * BW_FIT_LARGEST_HELP);

	return step * part * part / 16;
}

/* A roof of more than twice C' without a queue: whatever C' was, it is none any more. */
BW_FN __u32 bw_fit_largest_step(const struct bw_fit *s)
{
	return s->roof > 2 * bw_max(s->known, s->capacity) ? 2 * BW_FIT_LARGEST_STEP : BW_FIT_LARGEST_STEP;
}

BW_FN void bw_fit_ascend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	s->in_vain = 0;
	s->expected = 0;
	s->drains = 0;
	if (delivered * 16 < s->roof * BW_FIT_USED)
		return;
	s->carried = bw_fit_smooth(s->carried, delivered);
	s->slid_from = bw_max(s->slid_from, delivered);
	if (s->roof < s->known - s->known / BW_FIT_DOWN) {
		bw_fit_set(s, s->known - s->known / BW_FIT_DOWN, x);
		return;
	}
	s->doubts = 0;
	bw_fit_set(s, s->roof + bw_fit_step(s), x);
	/* An estimate from a train is not as sure as what a full path has delivered, and the search from it is slower. */
	if (s->known ? s->roof > s->known + s->known / BW_FIT_BEYOND : s->roof > s->capacity + s->capacity / BW_FIT_ABOVE)
		s->step = bw_min(s->known ? 2 * s->step : s->step + s->step / 2, bw_fit_largest_step(s));
}

/* Segments were lost without a queue that could be seen: the roof is no higher than what the path has carried. */
BW_FN void bw_fit_retreat(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 carried = bw_max(s->known, s->carried);

	if (s->roof > carried - carried / BW_FIT_DOWN)
		bw_fit_set(s, carried - carried / BW_FIT_DOWN, x);
	s->step = BW_FIT_STEP;
}

/*
 * There is a queue. Of a sender that does not fill its roof, for the peer's window is smaller or its acknowledgements are
 * delayed, it is the own one only if it is long and lasts for a round trip.
 */
BW_FN int bw_fit_is_queued(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	int is_long = bw_fit_queue(s, x) > x->min_rtt / BW_FIT_LONG_QUEUE && x->now - s->queued_since >= x->srtt;

	return s->queued_since && (delivered * 4 >= s->roof * 3 || is_long);
}

/* Measures the last round trip's yield. 1: one has ended. */
BW_FN int bw_fit_take_round_trip(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->window_at;

	if (elapsed < x->srtt - x->srtt / 8)
		return 0;
	s->former_window_rate = s->window_rate;
	s->window_rate = bw_fit_rate(x, x->delivered - s->window_segments, elapsed);
	s->window_at = x->now;
	s->window_segments = x->delivered;
	return 1;
}

/* The yield of a round with a queue; its last round trip's if the path has changed, for a queue drains at the path's rate. */
BW_FN __u64 bw_fit_carried(const struct bw_fit *s, __u64 delivered)
{
	return bw_distance(delivered, s->window_rate) > delivered / BW_FIT_CHANGED ? s->window_rate : delivered;
}

/*
 * A round takes two round trips: the roof is felt in the second. A queue counts when it has lasted for one: after a pause of a
 * host, round trips are longer for what was held back alone, and the round goes on until the next one tells.
 */
BW_FN void bw_fit_follow(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at, queue = bw_fit_queue(s, x), delivered, allowed = s->allowed;
	int is_long = queue > 2 * bw_fit_threshold(x), lasts;

	s->limited |= x->app_limited;
	if (queue <= bw_fit_threshold(x))
		s->queued_since = 0;
	else if (!s->queued_since)
		s->queued_since = x->now;
	lasts = s->queued_since && (x->now - s->queued_since >= x->srtt - x->srtt / 4 || !s->known);
	if (!bw_fit_take_round_trip(s, x))
		return;
	if (s->queued_since && !lasts && !s->limited) {
		if (s->window_rate < s->former_window_rate - s->former_window_rate / BW_FIT_BEYOND) {
			s->fell_to = s->window_rate;
			s->fell_rounds = 0;
			s->fell_queue = bw_max(s->fell_queue, bw_max(queue, s->allowed));
		}
		return;
	}
	if (elapsed < (is_long && !s->drains ? x->srtt - x->srtt / 8 : 2 * x->srtt - x->srtt / 8))
		return;
	delivered = bw_fit_rate(x, x->delivered - s->round_segments, elapsed);
	bw_fit_judge_fall(s, x, delivered);
	if (x->retransmitted != s->round_retransmitted)
		s->allowed /= 2;
	if (!s->limited && bw_fit_is_queued(s, x, delivered))
		bw_fit_descend(s, x, bw_fit_carried(s, delivered));
	else if (x->retransmitted != s->round_retransmitted)
		bw_fit_retreat(s, x);
	else if (!s->limited)
		bw_fit_ascend(s, x, bw_min(bw_max(s->window_rate, s->former_window_rate), s->roof));
	/* Jitter, and no queue was seen but for it: the rates that were carried with it are no measure of the path. */
	if (s->allowed > allowed && !s->confirmed && s->phase == BW_FIT_FOLLOW) {
		s->known = 0;
		s->step = BW_FIT_LARGEST_STEP;
	}
	bw_fit_begin_round(s, x);
}

/* ---- All ------------------------------------------------------------------------------------------------ */

/* Try again from what is delivered now, once that does not grow. */
BW_FN void bw_fit_rest(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at, delivered;

	if (s->round_at && elapsed < 2 * x->srtt)
		return;
	delivered = s->round_at ? bw_fit_rate(x, x->delivered - s->round_segments, elapsed) : 0;
	if (delivered > s->carried + s->carried / BW_FIT_GROWN) {
		s->carried = delivered;
		s->open_until = bw_max(s->open_until, x->now + BW_FIT_HOLD);
	}
	if (x->now >= s->open_until && delivered) {
		s->capacity = bw_max(s->capacity, delivered);
		bw_fit_set(s, delivered, x);
		bw_fit_enter_follow(s, x);
	} else {
		bw_fit_begin_round(s, x);
	}
}

/*
 * Payload that the send buffer should hold at most: what the roof has under way in a round trip, a quarter more, and some for
 * the start. BW_NO_LIMIT: no roof.
 */
BW_FN __u64 bw_fit_buffer(const struct bw_fit *s, __u64 srtt)
{
	__u64 window = bw_product(s->roof, srtt);

	return s->roof ? window + window / 4 + BW_FIT_SLACK : BW_NO_LIMIT;
}

/* Whether the rule wants to see every acknowledgement. */
BW_FN int bw_fit_is_starting(const struct bw_fit *s)
{
	return s->phase <= BW_FIT_RAMP;
}

/* The roof, bytes per second; 0: none. */
BW_FN __u32 bw_fit_observe(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (!x->min_rtt || x->min_rtt < BW_FIT_SHORTEST || x->paces_itself) {
		s->roof = 0;
		return 0;
	}
	if (bw_fit_is_starting(s)) {
		/* No segment was delivered since the last call. */
		if (s->last_at && x->delivered == s->last_segments)
			return s->roof;
		bw_fit_start(s, x);
		s->last_at = x->now;
		s->last_segments = x->delivered;
	} else if (s->phase == BW_FIT_FOLLOW) {
		bw_fit_follow(s, x);
	} else {
		bw_fit_rest(s, x);
	}
	return s->roof;
}

#endif
