/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit, at the receiver: a window that keeps what is under way at what the path carries, whatever the sender is.
 *
 * Problem: a loss-based sender learns the capacity of a path by filling its queue until it drops, and the receiver has to
 * bear the delay. A receiver that knows the capacity can offer a window of that size. The first flights tell it: they leave in
 * bursts, and arrive at the rate of the tightest link.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate, BDP their product. A
 * *train* is a run of segments without a pause; its rate is C' if it left faster than C. The *window* is what the sender may
 * have under way (payload). R is the rate at which segments arrive. A window that is used holds R times the present
 * round-trip time (Little's law), so that what it holds beyond R * T is *queue*.
 *
 * Rule, phase by phase:
 * 1. Start: DRS's window, but no more than slow start needs. Each train is measured. The phase ends when two trains in a row
 *    have the same rate (a sender that paces its slow start doubles the rate with each), did not come in bunches, and the
 *    window has reached a sixteenth of C' T, unless jitter shows; or when R stays while round trips become longer than ever
 *    before, for then R is C. A sender that paces from the start is known by its second flight, which is spread over half a
 *    round trip: then the first flight tells C', of which each segment is seen.
 * 2. Ramp: slow start sends two segments for each one that arrives, and a flight that is longer by a step puts this step
 *    into the queue, however it is spread: the queue's size is not known, so the step is a small part of C' T. The window
 *    grows with the segments that arrive by one step per round trip, until it is a little more than C' T. If trains do not
 *    confirm C' soon, as on a jittery path, the window is left open. So it is if the queue is twice as long as the window: then
 *    most of it is somebody else's, and trains tell the rate that the path has for all.
 * 3. Follow: every two round trips R is measured. The window is set a little above R * T, which keeps a short queue; if
 *    segments are lost there, the queue has no room for it, and it is less above. Where the window holds no more than
 *    R * T, the path has grown: the window rises, by steps that double. Where the sender leaves the window unused and there
 *    is a queue, the window comes down to what is under way. Where R differs from round to round, the window has a margin
 *    of twice that. A trial (fit_trial.h) begins this phase, and begins again where R is noisy: larger windows, as long as the
 *    mean of R follows. Where a window in use stays as it is, a smaller one shows now and then whether it holds a queue.
 * 4. Open: if the window descends and R descends with it, then the delay is none of the connection's own. A
 *    short one belongs to the path and its hosts, and the rule goes on with a T that is longer by it. Otherwise
 *    the queue is somebody else's, or there is none (radio links, jitter, another path): the window is a quarter above the
 *    most that is under way, and grows with it. After a while the rule tries again from there, and each time that this
 *    fails it waits longer.
 *
 * Properties kept: without evidence the window is no smaller than slow start needs. It is never below BW_FIT_WINDOW_LEAST
 * segments, nor above the largest. It does not fall while the sender leaves it unused and no queue shows. Paths shorter than
 * BW_FIT_SHORTEST are left to DRS. Calls may come at any distance.
 */
#ifndef BUFWISE_FIT_WINDOW_H
#define BUFWISE_FIT_WINDOW_H

#include "fit_trial.h"

/* Less than this part of it under way, and the window has nothing to do with the sender. */
#define BW_FIT_WINDOW_FAR 4
/* Largest descent in a round; and after how much a descent is judged, and when it ends. */
#define BW_FIT_WINDOW_DOWN 8
#define BW_FIT_WINDOW_JUDGED 12
#define BW_FIT_WINDOW_JUDGED_LAST 32
/* A descent ends when the window is so near to its target. */
#define BW_FIT_WINDOW_NEAR 64
/* Below its target the window rises by this part of it, or by that one where R differs by so much (1024ths). */
#define BW_FIT_WINDOW_NEAR_NOISY 16
#define BW_FIT_WINDOW_NOISY 40
/* After so many times the last hold, the next one is short again. */
#define BW_FIT_WINDOW_TRUST 4ULL
/* A delay of this part of the round trip is long. */
#define BW_FIT_WINDOW_LONG 12
/* An open window is thought larger than at first by at most this (1024ths), as what arrives is more than at first. */
#define BW_FIT_WINDOW_MOST_GROWN (64 << 10)
/* The window is larger by what waits behind a hole, at most by so many times itself. */
#define BW_FIT_WINDOW_MOST_BEHIND 2
/* Judgements in a row that a descent is in vain. */
#define BW_FIT_WINDOW_IN_VAIN 2

/* ---- Follow --------------------------------------------------------------------------------------------- */

/*
 * Whether the rate fell with the window since the descent began: judged a part at a time, and twice where it ends. R would
 * be the same if the window had held a queue.
 */
BW_FN int bw_fit_window_is_in_vain(struct bw_fit_window *s, __u64 now, __u64 rate, int ends)
{
	__u64 before = s->descent_window, lowered = bw_less(before, s->window);
	__u64 least = before / (ends ? BW_FIT_WINDOW_JUDGED_LAST : BW_FIT_WINDOW_JUDGED);
	/* Half of the window's part, in 1024ths. */
	__u64 part = lowered * 512 / bw_max(before, 1);
	int falls = rate < s->descent_rate - s->descent_rate / 1024 * part;

	if (before && lowered < least)
		return 0;
	s->in_vain = before && falls ? s->in_vain + 1 : 0;
	if (before && !falls) {
		s->extra /= 2;
		if (now > s->open_until + BW_FIT_WINDOW_TRUST * s->hold)
			s->hold = 0;
	}
	if (!falls || !ends) {
		s->descent_window = s->window;
		s->descent_rate = rate;
	}
	return s->in_vain >= BW_FIT_WINDOW_IN_VAIN;
}

/*
 * A descent was in vain. A long delay is a queue of somebody else's, or jitter: open. A short one belongs to the path and its
 * hosts, and T is longer by it.
 */
BW_FN void bw_fit_window_give_up(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 held)
{
	__u64 need = bw_fit_window_need(s, x, held), beyond = bw_less(s->window, need);

	if (beyond > need / BW_FIT_WINDOW_LONG || s->extra >= 1024 / BW_FIT_WINDOW_LONG) {
		bw_fit_window_open(s, x);
		return;
	}
	s->extra = bw_min(s->extra + beyond * 1024 / bw_max(held, 1) + 1, 1024 / BW_FIT_WINDOW_LONG);
	s->in_vain = 0;
	s->descent_window = 0;
}

/* There is a queue: the window falls towards what keeps a short one. */
BW_FN void bw_fit_window_descend(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 held = bw_fit_window_held(x, rate), target = bw_fit_window_target(s, x, held), near;

	s->doubts = bw_fit_is_pause_of_host(s->doubts, s->known, held) ? s->doubts + 1 : 0;
	if (s->doubts)
		return;
	s->known = held;
	s->step = BW_FIT_STEP;
	if (bw_fit_window_is_in_vain(s, x->now, rate, s->window <= target + target / BW_FIT_WINDOW_NEAR)) {
		bw_fit_window_give_up(s, x, held);
	} else if (s->window > target) {
		s->descents++;
		bw_fit_window_set(s, bw_max(target, s->window - s->window / BW_FIT_WINDOW_DOWN), x);
	} else {
		/* A shorter delay than the target's is perhaps no queue: if it is one, R stays, and so does the target. */
		near = s->noise > BW_FIT_WINDOW_NOISY ? BW_FIT_WINDOW_NEAR_NOISY : BW_FIT_WINDOW_NEAR;
		bw_fit_window_set(s, bw_min(target, s->window + s->window / near), x);
	}
}

BW_FN void bw_fit_window_ascend(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 target = bw_fit_window_target(s, x, s->known);

	s->in_vain = 0;
	s->doubts = 0;
	s->descent_window = 0;
	if (s->window < target) {
		bw_fit_window_set(s, target, x);
		return;
	}
	bw_fit_window_set(s, s->window + bw_max(s->window * s->step / 1024, bw_segment(x->mss)), x);
	if (s->window > target + s->known / BW_FIT_BEYOND)
		s->step = bw_min(2 * s->step, BW_FIT_LARGEST_STEP);
}

/*
 * Segments were lost: no more than what the path has carried. If the window was full before, the queue has no room for
 * what it is above that: half of it.
 */
BW_FN void bw_fit_window_retreat(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->was_full)
		s->above /= 2;
	/* The mean was carried, too, where R has grown since the path was last full. */
	s->known = bw_max(s->known, bw_fit_window_held(x, s->mean_rate));
	bw_fit_window_end_trials(s);
	s->was_full = 0;
	s->step = BW_FIT_STEP;
	bw_fit_window_set(s, bw_min(s->window, bw_fit_window_target(s, x, s->known)), x);
}

/*
 * The sender leaves the window unused. If there is a queue nevertheless, its congestion window fills the path: the window
 * comes down to what is under way, where it binds.
 */
BW_FN void bw_fit_window_approach(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate,
				  __u64 under_way)
{
	if (!bw_fit_window_is_delayed(x) || under_way * BW_FIT_WINDOW_FAR < s->window)
		return;
	s->known = bw_fit_window_held(x, rate);
	bw_fit_window_set(s, bw_max(under_way, s->window - s->window / BW_FIT_WINDOW_DOWN), x);
}

/*
 * The round trip shows half of the queue at least that the window would hold if it were used. Where it shows none, it is not
 * the window that limits the sender, and what arrives is the sender's own choice.
 */
BW_FN int bw_fit_window_is_queued(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 need,
				  __u64 under_way)
{
	return 2 * under_way >= s->window + need && x->rcv_rtt > x->rtt + x->rtt / 32 + bw_min(x->rtt / 16, 1000);
}

/* ---- Open ----------------------------------------------------------------------------------------------- */

/* Try again from what arrives now; one descent in vain is then enough. */
BW_FN void bw_fit_window_rest(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = bw_fit_window_measure(s, x), under_way, grown;

	if (!rate)
		return;
	/* The receiver's estimate may be of the shortest round trips alone. */
	grown = bw_min(rate * 1024 / bw_max(s->anchor_rate, 1), BW_FIT_WINDOW_MOST_GROWN);
	under_way = bw_max(bw_product(rate, bw_fit_window_round_trip(x)), s->anchor_window / 1024 * grown);
	s->most_under_way = bw_max(s->most_under_way, under_way);
	if (x->now >= s->open_until) {
		bw_fit_window_enter_follow(s, x, rate);
		/* A window that fell to the target at once would cost most of a share of others' queue. */
		bw_fit_window_set(s, bw_max(s->window, under_way - under_way / BW_FIT_WINDOW_DOWN), x);
		s->trial = 0;
		s->descent_window = bw_max(s->window, under_way);
		s->descent_rate = rate;
		s->in_vain = BW_FIT_WINDOW_IN_VAIN - 1;
	}
	bw_fit_window_begin_round(s, x);
}

/*
 * In the ramp: the queue is somebody else's, or trains are faster than C', or do not confirm it while round trips are
 * longer, as jitter makes them. A sender whose flights have spread has no trains, and one that writes in pieces has slower
 * ones: these are no such evidence, nor are losses, which break trains.
 */
BW_FN int bw_fit_window_is_doubtful(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->phase != BW_FIT_RAMP)
		return 0;
	if (s->crowded >= BW_FIT_WINDOW_CROWDED)
		return 1;
	if (x->out_of_order || bw_fit_window_is_sure(s))
		return 0;
	return s->faster >= BW_FIT_WINDOW_CONTRADICTED || (x->now > s->sure_by && bw_fit_window_is_delayed(x));
}

/* Leaves the window open, from what arrives now. */
BW_FN void bw_fit_window_abandon_ramp(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->mean_rate = bw_rate(s->arrived, x->rtt);
	s->ramp_rounds = 0;
	if (s->crowded >= BW_FIT_WINDOW_CROWDED)
		s->hold = BW_FIT_WINDOW_CROWDED_HOLD;
	bw_fit_window_open(s, x);
	bw_fit_window_begin_round(s, x);
}

/* ---- Follow and open, a round each ---------------------------------------------------------------------- */

/*
 * Measures R if the round ends; goes on with the open phase, and ends a ramp whose C' is doubtful. 0: the round goes on;
 * 1: last_rate is news; 2: the window has come down in vain, too.
 */
BW_FN int bw_fit_window_end_round(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = s->phase == BW_FIT_FOLLOW ? bw_fit_window_measure(s, x) : 0;
	int is_futile;

	if (s->phase == BW_FIT_OPEN)
		bw_fit_window_rest(s, x);
	else if (bw_fit_window_is_doubtful(s, x))
		bw_fit_window_abandon_ramp(s, x);
	if (!rate)
		return 0;
	is_futile = bw_fit_window_is_futile(s, rate);
	s->crowded = (s->crowded + 1) * bw_fit_window_is_others_queue(s, x, BW_FIT_WINDOW_FEW * rate);
	is_futile |= s->crowded >= BW_FIT_WINDOW_CROWDED;
	bw_fit_window_note_noise(s, rate);
	return 1 + is_futile;
}

/* Answers losses, a descent in vain, and what a trial has shown. 1: none of these; bw_fit_window_follow() has to answer R. */
BW_FN int bw_fit_window_judge(struct bw_fit_window *s, const struct bw_fit_window_sample *x, int is_futile)
{
	if (is_futile) {
		bw_fit_window_open(s, x);
	} else if (x->out_of_order != s->out_of_order) {
		if (bw_fit_window_is_used(s, x, s->last_rate))
			bw_fit_window_retreat(s, x);
		else
			bw_fit_window_end_trials(s);
	} else if (bw_fit_window_is_trial(s, x, s->last_rate)) {
		s->was_full = 0;
	} else {
		return 1;
	}
	bw_fit_window_begin_round(s, x);
	return 0;
}

/* Sets the window by R, which bw_fit_window_end_round() has measured. */
BW_FN void bw_fit_window_follow(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = s->last_rate, need = bw_fit_window_need(s, x, bw_fit_window_held(x, rate));
	__u64 under_way = bw_fit_window_need(s, x, bw_product(rate, bw_fit_window_round_trip(x)));
	int stays = 0;

	if (s->window <= need + need / 2048 * bw_fit_window_margin(s)) {
		s->was_full = 0;
		bw_fit_window_ascend(s, x);
	} else if (under_way * 8 >= s->window * BW_FIT_WINDOW_NEARLY) {
		s->was_full = 1;
		stays = !bw_fit_window_is_queued(s, x, need, under_way);
		if (!stays)
			bw_fit_window_descend(s, x, rate);
	} else {
		s->was_full = 0;
		bw_fit_window_approach(s, x, rate, under_way);
	}
	s->still = stays ? bw_min(s->still + 1, BW_FIT_TRIAL_STILL) : 0;
	bw_fit_window_begin_round(s, x);
}

/* ---- All ------------------------------------------------------------------------------------------------ */

/* Rounded up to what the window field can hold, for less would be below the need. */
BW_FN __u64 bw_fit_window_rounded(__u64 window, const struct bw_fit_window_sample *x)
{
	__u32 shift = x->scale < BW_LARGEST_SCALE ? x->scale : BW_LARGEST_SCALE;

	return bw_min((window + (1ULL << shift) - 1) >> shift << shift, x->max);
}

/*
 * A sample goes through parts that the kernel's verifier proves one by one. First, the train, while the connection starts. 0: no
 * segment has arrived.
 */
BW_FN int bw_fit_window_watch(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	/* No segment has arrived since the last call. */
	if (x->rtt < BW_FIT_SHORTEST || !x->received || (s->last_at && x->received == s->last_bytes))
		return 0;
	if (s->phase == BW_FIT_START || s->phase == BW_FIT_RAMP)
		bw_fit_window_watch_train(s, x);
	return 1;
}

/* Second, bw_fit_window_judge_pacing(); third, the start and the ramp. Fourth to sixth: bw_fit_window_end_round(), _judge() and _follow(). */
BW_FN void bw_fit_window_go_on(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->phase == BW_FIT_START)
		bw_fit_window_start(s, x);
	else if (s->phase == BW_FIT_RAMP)
		bw_fit_window_ramp(s, x);
	s->last_at = x->now;
	s->last_bytes = x->received;
}

/*
 * Seventh, the window to advertise (payload). What waits behind a hole is not under way any more, so the window is larger by that;
 * by twice its size at most, so that a peer that never fills the hole does not fill the memory.
 */
BW_FN __u64 bw_fit_window_offer(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 window = s->window ? s->window : bw_fit_window_unbound(s, x);

	if (x->rtt < BW_FIT_SHORTEST)
		return x->drs;
	return bw_fit_window_rounded(window + bw_min(x->behind, BW_FIT_WINDOW_MOST_BEHIND * window), x);
}

#endif
