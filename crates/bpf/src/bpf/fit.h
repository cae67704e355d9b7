/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the sender: bounds the sending rate (the roof), so that the bytes in flight stay near the BDP of the path.
 *
 * Problem: a loss-based congestion control learns the capacity of a path by filling its queue until packets are
 * dropped. A sender that knows the capacity early needs neither the queue nor the drops. TCP itself reveals the
 * capacity: the first flights leave in bursts and arrive at the rate of the tightest link, and their acknowledgements
 * return with that spacing.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate. A *train* is a run
 * of acknowledgements without a pause; if its segments left faster than C, its rate is C'. The *roof* is the largest
 * rate at which the connection may send (SO_MAX_PACING_RATE). The kernel's congestion control works below it: a
 * connection never sends more than it would without bufwise. The *queue* is measured as time: the round trip minus T,
 * minus the allowed queue (below) and the time of two segments at C'.
 *
 * Rule, phase by phase:
 * 1. Start: the kernel's slow start, without a roof. Each train is measured; a train of more segments is better
 *    evidence. In slow start, a flight of N segments puts N/2 of them into the queue. The phase therefore ends early:
 *    once the congestion window reaches C' T / 16 with a long train, or C' T / 8 with a shorter one. If no train
 *    suffices by C' T / 8, a first roof is set, and trains are measured for one more round trip, in which the bursts
 *    already sent return. Jitter gives no evidence: a train that arrives in bunches is ignored. There is no roof while
 *    round trips are longer than the connection's own queue explains, or if the handshake took longer than a later round
 *    trip. If TCP paces from the start, the first flight is the only burst, and its train is the only evidence.
 * 2. Ramp: the roof is 15/16 C'. Slow start continues below it, spread over the round trip, so no burst reaches the
 *    queue. The phase ends when the roof is reached. It also ends when a queue appears: C' was too high, and the rate
 *    of delivery is now C. If far more than the roof is delivered, C' was too low, and the start begins again.
 * 3. Follow: every two round trips, the roof rises by a small step if there is no queue; if there is one, the roof is
 *    set slightly below the delivered rate. The steps up double beyond what the path is known to carry, until a queue
 *    appears, so that a path that has grown is found within some round trips. Steps up are parts of C', steps down are
 *    parts of the connection's own rate: connections that share a path approach equal rates. A roof that the pauses of a
 *    busy host leave unused rises a little above what the path carries. After a paced start the roof is lower, because
 *    clocks err: the first steps are eighths of the roof, up to 15/16 of the train's rate.
 *    If the delivered rate falls and soon rises again, the rate of the path varies or a link pauses. Such a path needs
 *    a queue: one as long as the longest seen during these falls is allowed, at most T / 2, as if T were longer by it.
 * 4. Open: no roof. If three descents in a row (two after an earlier failure) do not shorten the queue as expected, the
 *    queue belongs to other flows, or the delay is no queue (radio links, jitter), and the kernel's congestion control
 *    competes alone. A short delay is allowed as in phase 3 instead. After a hold time, the rule tries again; each
 *    failure doubles the hold time. There is no need for descents in vain if a rate is sure, because trains agreed on it, and the
 *    queue holds far more at that rate than this connection has under way.
 *
 * Properties kept: without evidence there is no roof. A roof does not fall while the application limits the sender,
 * unless segments are lost. Round trips below BW_FIT_SHORTEST and senders that pace themselves (neither CUBIC nor Reno)
 * get no roof. Calls may come at any pace: per acknowledgement, per round trip, or by a timer.
 */
#ifndef BUFWISE_FIT_H
#define BUFWISE_FIT_H

#include "fit_start.h"

/* ---- Follow --------------------------------------------------------------------------------------------- */

/* Returns the next hold time (us): twice the last one, at most BW_FIT_LONGEST_HOLD. 0 stands for no hold so far. */
BW_FN __u32 bw_fit_next_hold(__u32 hold)
{
	return hold ? bw_min(2ULL * hold, BW_FIT_LONGEST_HOLD) : BW_FIT_HOLD;
}

/* Enters the phase Open: lifts the roof for the next hold time. */
BW_FN void bw_fit_open(struct bw_fit *s, const struct bw_fit_sample *x)
{
	s->hold = bw_fit_next_hold(s->hold);
	s->phase = BW_FIT_OPEN;
	/* A try takes some round trips, in which the rate falls: over a long one it has to come more rarely. */
	s->open_until = x->now + bw_max(s->hold, BW_FIT_HOLD_TRIPS * bw_min(x->srtt, BW_LONGEST));
	s->roof = 0;
	/* The path may have changed by the next roof, so large steps no longer aim at the rate of the start's train. */
	s->evidence = 0;
	s->opened++;
}

/*
 * Returns the moving average of two rates within a twelfth of each other, otherwise the new rate. Acknowledgements come
 * in bursts, so the rate of one round errs by some percent. `before` 0: no earlier rate.
 */
BW_FN __u64 bw_fit_smooth(__u64 before, __u64 rate)
{
	if (!before || bw_distance(before, rate) > before / 12)
		return rate;
	return before - before / 4 + rate / 4;
}

/*
 * Whether a round with a queue looks like a pause of a host or of a radio link, rather than a slower path: its rate
 * `carried` is below `before`, but not below 6/8 of it. A pause leaves a queue, too, but the capacity stays. Only
 * BW_FIT_DOUBTS rounds in a row (`doubts` counts them) are taken for pauses.
 */
BW_FN int bw_fit_is_pause_of_host(__u32 doubts, __u64 before, __u64 carried)
{
	return doubts < BW_FIT_DOUBTS && carried < before - before / BW_FIT_BEYOND && carried * 8 >= before * BW_FIT_PAUSED;
}

/*
 * Records a round with a queue: `queue` (us) is at least the allowed one, `before` and `delivered` are rates. A fall by
 * more than 1/32 is kept for bw_fit_judge_fall(). If falls of less than an eighth each add up to an eighth, the delay
 * is no queue of the connection's own, and the allowed queue is raised at once.
 */
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

/*
 * Checks once a round whether the last fall was temporary: if the rate rises again within BW_FIT_FALL_ROUNDS, the rate
 * of the path varies. If that happens often, a queue is allowed.
 */
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

/*
 * Whether the last descent was in vain: it did not shorten the queue, or the rate followed the roof down although there is
 * a queue. `before`: the rate before the descent.
 */
BW_FN int bw_fit_is_in_vain(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue, __u64 before,
			    __u64 delivered)
{
	int follows = delivered < before - before / BW_FIT_FALLEN &&
		      bw_distance(delivered, s->roof) <= s->roof / BW_FIT_ALONG;

	return s->expected && (queue + s->expected / 2 > s->queue || (follows && queue > 2 * bw_fit_threshold(x)));
}

/*
 * Whether most of a `queue` (us) is others': at the sure rate it holds several times what this connection has under way. Trains have
 * the rate that all connections have together, and the rate `delivered` is this one's share of it.
 */
BW_FN int bw_fit_is_crowded(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue, __u64 delivered)
{
	return bw_product(s->sure, queue) > BW_FIT_CROWDED * bw_product(delivered, x->srtt);
}

/*
 * Counts rounds in which most of the queue is others'. After enough of them in a row, opens for longer, because the others will
 * stay, and returns 1. (After a pause of a host the rate is low and round trips are long, too, but only in one round.)
 */
BW_FN int bw_fit_judge_crowd(struct bw_fit *s, const struct bw_fit_sample *x, __u64 queue, __u64 delivered)
{
	s->crowded = bw_fit_is_crowded(s, x, queue, delivered) ? s->crowded + 1 : 0;
	if (s->crowded < BW_FIT_CROWDED_ROUNDS)
		return 0;
	s->hold = bw_max(s->hold, BW_FIT_CROWDED_HOLD / 2);
	bw_fit_open(s, x);
	return 1;
}

/*
 * Lowers the roof below the rate `delivered`, to drain the queue. Opens, or allows a short delay, if earlier descents
 * did not shorten the queue.
 */
BW_FN void bw_fit_descend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	__u64 queue = bw_fit_queue(s, x), rtt = bw_max(x->min_rtt, 1), before = bw_max(s->known, s->carried);
	/* Half of the queue's share of T: a round takes two round trips, so the whole queue drains in one round. */
	__u64 share = bw_min(queue * 1024 / (2 * rtt) + 1024 / BW_FIT_DOWN, 1024 / BW_FIT_LARGEST_DOWN);

	/* A path that delivers nothing is interrupted. It shows no rate, and 0 would stand for a rate that is not known. */
	if (!delivered)
		return;
	if (bw_fit_judge_crowd(s, x, queue, delivered))
		return;
	s->in_vain = bw_fit_is_in_vain(s, x, queue, before, delivered) ? s->in_vain + 1 : 0;
	s->confirmed |= queue > bw_fit_jitter(x->min_rtt);
	s->queue = queue;
	s->expected = bw_min(queue, share * bw_min(x->srtt, BW_LONGEST) / 1024);
	s->step = BW_FIT_STEP;
	s->doubts = bw_fit_is_pause_of_host(s->doubts, before, delivered) ? s->doubts + 1 : 0;
	bw_fit_note_fall(s, x, bw_max(queue, s->allowed), before, delivered);
	delivered = bw_fit_smooth(before, delivered);
	s->known = s->doubts ? before : delivered;
	/*
	 * Steps are parts of C'. On a path that now carries far less, steps of the former size would overflow the queue, so C'
	 * is lowered. It falls by half at most, because this round's rate may be low only because the link paused.
	 */
	if (!s->doubts)
		s->capacity = bw_max(bw_min(s->capacity, BW_FIT_LARGEST_EXCESS * delivered), s->capacity / 2);
	s->carried = 0;
	s->drains = 1;
	s->descents++;
	if (s->in_vain >= (s->hold ? BW_FIT_IN_VAIN_AGAIN : BW_FIT_IN_VAIN)) {
		if (queue > 2 * bw_fit_threshold(x)) {
			bw_fit_open(s, x);
			return;
		}
		/* The delay is jitter: allow it, as if T were longer. */
		bw_fit_allow(s, x, s->allowed + queue);
		s->in_vain = 0;
		s->expected = 0;
	}
	bw_fit_set(s, bw_min(s->roof, delivered - delivered * share / 1024), x);
}

/*
 * Whether the roof may rise to `roof` at once: C' was lowered after a paced start, because clocks err, no queue was seen
 * yet, and `roof` is at most 15/16 of the rate that the train has shown.
 */
BW_FN int bw_fit_is_told(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 roof)
{
	__u64 rate = bw_fit_rate(x, s->evidence, s->train_time) / BW_FIT_RAMP_DENOMINATOR * BW_FIT_RAMP_NUMERATOR;

	return !s->known && s->capacity < rate && roof <= rate;
}

/*
 * Returns the step upwards (bytes per second): a part of C', times the square of C' / roof. The quotient counts as at
 * least 1 and at most BW_FIT_LARGEST_HELP.
 */
BW_FN __u64 bw_fit_step(const struct bw_fit *s)
{
	__u64 capacity = bw_max(s->capacity, s->carried), step = capacity * s->step / 1024;
	/* C' / roof, in quarters. */
	__u64 part = bw_min(bw_max(capacity * 4 / bw_max(s->roof, 1), 4), 4 * BW_FIT_LARGEST_HELP);

	return step * part * part / 16;
}

/*
 * Returns the largest step upwards (1024ths). A roof of more than twice C' without a queue refutes C': the limit is
 * doubled.
 */
BW_FN __u32 bw_fit_largest_step(const struct bw_fit *s)
{
	return s->roof > 2 * bw_max(s->known, s->capacity) ? 2 * BW_FIT_LARGEST_STEP : BW_FIT_LARGEST_STEP;
}

/* Whether the sender uses three quarters of its roof. */
BW_FN int bw_fit_uses_most(const struct bw_fit *s, __u64 delivered)
{
	return delivered * 4 >= s->roof * 3;
}

/*
 * Raises a roof that the sender leaves partly unused although its congestion window allows more. A busy host stops again
 * and again for some tenths of a millisecond, and without a queue the path stands idle during such a pause. The sender has
 * to make up for it between the pauses. The roof stays within 9/8 of `best`, the rate that the path is known to carry, and
 * the queue that builds up between two pauses is shorter than a pause.
 */
BW_FN void bw_fit_make_up(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	__u64 best = bw_max(s->known ? s->known : s->capacity, s->carried);

	if (!bw_fit_uses_most(s, delivered) || delivered >= best - best / BW_FIT_MISSING ||
	    s->roof >= best + best / BW_FIT_MAKE_UP || bw_fit_cwnd(x) * BW_FIT_USED < bw_product(s->roof, x->srtt) * 16)
		s->spare = 0;
	else if (++s->spare >= BW_FIT_SPARE)
		bw_fit_set(s, s->roof + best * BW_FIT_MAKE_UP_STEP / 1024, x);
}

/* Raises the roof after a round without a queue, if the sender has used it. `delivered`: the rate, at most the roof. */
BW_FN void bw_fit_ascend(struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	__u64 told = s->roof + s->roof / BW_FIT_TOLD_STEP;

	s->crowded = 0;
	s->in_vain = 0;
	s->expected = 0;
	s->drains = 0;
	if (delivered * 16 < s->roof * BW_FIT_USED) {
		bw_fit_make_up(s, x, delivered);
		return;
	}
	s->spare = 0;
	s->carried = bw_fit_smooth(s->carried, delivered);
	s->slid_from = bw_max(s->slid_from, delivered);
	if (s->roof < s->known - s->known / BW_FIT_DOWN) {
		bw_fit_set(s, s->known - s->known / BW_FIT_DOWN, x);
		return;
	}
	s->doubts = 0;
	if (bw_fit_is_told(s, x, told)) {
		bw_fit_set(s, told, x);
		return;
	}
	bw_fit_set(s, s->roof + bw_fit_step(s), x);
	/* C' from a train is less certain than the rate of a full path: steps grow by a half instead of doubling. */
	if (s->known ? s->roof > s->known + s->known / BW_FIT_BEYOND : s->roof > s->capacity + s->capacity / BW_FIT_ABOVE)
		s->step = bw_min(s->known ? 2 * s->step : s->step + s->step / 2, bw_fit_largest_step(s));
}

/*
 * Lowers the roof to just below the rate that the path has carried, because segments were lost although no queue was
 * visible. As long as that rate is unknown, the present roof stands in for it.
 */
BW_FN void bw_fit_retreat(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 carried = bw_max(s->known, s->carried);

	if (!carried)
		carried = s->roof;
	if (s->roof > carried - carried / BW_FIT_DOWN)
		bw_fit_set(s, carried - carried / BW_FIT_DOWN, x);
	s->step = BW_FIT_STEP;
}

/*
 * Whether the connection has a queue of its own. If the sender uses less than 3/4 of its roof (the peer's window is
 * smaller, or acknowledgements are delayed), only a queue longer than T / 4 that lasts for a round trip counts.
 */
BW_FN int bw_fit_is_queued(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	int is_long = bw_fit_queue(s, x) > x->min_rtt / BW_FIT_LONG_QUEUE && x->now - s->queued_since >= x->srtt;

	return s->queued_since && (bw_fit_uses_most(s, delivered) || is_long);
}

/*
 * Checks once a round whether some delay has stayed all the time although the roof has come down: a queue of the
 * connection's own would have drained. Such a delay is allowed if it is no longer than jitter. (A delay close to the
 * threshold counts as a queue in some rounds only. Without this check no descent would be in vain, and the roof would
 * never rise.)
 */
BW_FN void bw_fit_judge_floor(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (++s->floor_rounds < BW_FIT_FLOOR_ROUNDS)
		return;
	if (s->descents != s->floor_descents && s->floor > bw_fit_threshold(x) / 2 &&
	    s->floor + s->allowed <= bw_fit_jitter(x->min_rtt))
		bw_fit_allow(s, x, s->allowed + s->floor);
	else if (s->floor_rounds < 2 * BW_FIT_FLOOR_ROUNDS)
		return;
	bw_fit_begin_floor(s);
}

/* Measures the delivered rate of the last round trip into window_rate. Returns 1 if a round trip has ended. */
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

/*
 * Returns the rate of the path from a round with a queue, because a queue drains at this rate: the mean `delivered`, or
 * the rate of the last round trip if the two differ so much that the path has changed.
 */
BW_FN __u64 bw_fit_carried(const struct bw_fit *s, __u64 delivered)
{
	return bw_distance(delivered, s->window_rate) > delivered / BW_FIT_CHANGED ? s->window_rate : delivered;
}

/*
 * Judges the roof once a round. A round takes two round trips, because a new roof shows its effect in the second; a long
 * queue is answered after one. A queue counts once it has lasted for about a round trip: after a pause of a host, round
 * trips are longer only until the held segments have passed. To tell a queue from a pause, the round is extended by a
 * round trip.
 */
BW_FN void bw_fit_follow(struct bw_fit *s, const struct bw_fit_sample *x)
{
	__u64 elapsed = x->now - s->round_at, queue = bw_fit_queue(s, x), delivered, allowed = s->allowed;
	int is_long = queue > 2 * bw_fit_threshold(x), lasts;

	s->limited |= x->app_limited;
	s->floor = bw_min(s->floor, queue);
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
	if (delivered * BW_FIT_OWN >= s->sure)
		s->sure = 0;
	bw_fit_judge_fall(s, x, delivered);
	if (x->retransmitted != s->round_retransmitted)
		s->allowed /= 2;
	if (!s->limited && bw_fit_is_queued(s, x, delivered))
		bw_fit_descend(s, x, bw_fit_carried(s, delivered));
	else if (x->retransmitted != s->round_retransmitted)
		bw_fit_retreat(s, x);
	else if (!s->limited)
		bw_fit_ascend(s, x, bw_min(bw_max(s->window_rate, s->former_window_rate), s->roof));
	bw_fit_judge_floor(s, x);
	/*
	 * This round has allowed more delay as jitter, and no queue too long for jitter was ever seen. So the earlier rates
	 * do not tell what the path carries.
	 */
	if (s->allowed > allowed && !s->confirmed && s->phase == BW_FIT_FOLLOW) {
		s->known = 0;
		s->step = BW_FIT_LARGEST_STEP;
	}
	bw_fit_begin_round(s, x);
}

/* ---- All ------------------------------------------------------------------------------------------------ */

/* Whether, in the phase Open, the round's rate tells what the path carries, and not what an idle application sends. */
BW_FN int bw_fit_fills_window(const struct bw_fit *s, const struct bw_fit_sample *x, __u64 delivered)
{
	return !(s->limited | x->app_limited) && bw_product(delivered, x->srtt) * BW_FIT_OPEN_USED >= bw_fit_cwnd(x);
}

/*
 * Tries a roof again in the phase Open, at the delivered rate, once the hold time is over, that rate has stopped
 * growing, and the connection uses its congestion window.
 */
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
	if (x->now >= s->open_until && delivered && bw_fit_fills_window(s, x, delivered)) {
		s->capacity = bw_max(s->capacity, delivered);
		bw_fit_set(s, delivered, x);
		bw_fit_enter_follow(s, x);
	} else {
		bw_fit_begin_round(s, x);
	}
}

/*
 * Returns the payload (bytes) that the send buffer should hold at most: 5/4 of the roof times the round-trip time, and
 * BW_FIT_SLACK. BW_NO_LIMIT: no roof bounds the rate.
 */
BW_FN __u64 bw_fit_buffer(const struct bw_fit *s, __u64 srtt)
{
	__u64 window = bw_product(s->roof, srtt);

	return bw_fit_bounds(s) ? window + window / 4 + BW_FIT_SLACK : BW_NO_LIMIT;
}

/* Whether the rule needs a sample per acknowledgement: in the phases Start and Ramp. */
BW_FN int bw_fit_is_starting(const struct bw_fit *s)
{
	return s->phase <= BW_FIT_RAMP;
}

/* Whether the rule leaves a connection to the kernel, whatever it does. */
BW_FN int bw_fit_leaves(const struct bw_fit_sample *x)
{
	return !x->min_rtt || x->min_rtt < BW_FIT_SHORTEST || x->paces_itself;
}

/* Whether segments were delivered since the last sample of the start. */
BW_FN int bw_fit_is_news(const struct bw_fit *s, const struct bw_fit_sample *x)
{
	return !s->last_at || x->delivered != s->last_segments;
}

/* Takes in a sample, in two parts that the kernel's verifier checks one by one. The first measures trains, in the phase Start. */
BW_FN void bw_fit_watch(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (s->phase == BW_FIT_START && !bw_fit_leaves(x) && bw_fit_is_news(s, x))
		bw_fit_watch_train(s, x);
}

/* The second part: everything else. Returns the roof (bytes per second); 0: none. */
BW_FN __u32 bw_fit_observe(struct bw_fit *s, const struct bw_fit_sample *x)
{
	if (bw_fit_leaves(x)) {
		/* If the rule applies again, as after a change to BBR and back, the phase Open measures the rate first. */
		if (s->phase == BW_FIT_FOLLOW) {
			s->phase = BW_FIT_OPEN;
			s->round_at = 0;
		}
		s->roof = 0;
		return 0;
	}
	if (bw_fit_is_starting(s)) {
		if (!bw_fit_is_news(s, x))
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
