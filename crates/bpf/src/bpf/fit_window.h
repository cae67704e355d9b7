/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: a window that keeps the bytes under way near the BDP of the path, whatever sender is at the other end.
 *
 * Problem: a loss-based sender learns the capacity of a path by filling its queue until packets are dropped, and the receiver
 * has to bear the delay. A receiver that knows the capacity can offer a window of that size. The first flights tell the
 * capacity: they leave in bursts, and arrive at the rate of the tightest link.
 *
 * Terms: T is the shortest round-trip time, C the capacity of the path (payload), C' its estimate, BDP their product. A
 * *train* is a run of segments without a pause; its rate is C' if it left faster than C. The *window* is what the sender may
 * have under way (payload). R is the rate at which segments arrive; R is *noisy* if it differs from round to round. A window
 * that is used holds R times the present round-trip time (Little's law), and what it holds beyond R * T is the *queue*. To
 * *lengthen* T is to compute with a longer T from then on.
 *
 * Rule, phase by phase:
 * 1. Start: the window is DRS's, but no larger than slow start needs. Each train is measured. The phase ends once the window
 *    has reached C' T / 16, if two trains in a row have the rate C' (a sender that paces its slow start doubles the rate with
 *    each train), did not come in bunches, and no jitter shows. It also ends if R stays while round trips become longer than
 *    ever before, because R is then C. A sender that paces from the start shows this by its second flight, which is spread
 *    over half a round trip. Then C' is the rate of the first flight, each segment of which is sampled.
 * 2. Ramp: slow start sends two segments for each one that arrives. A flight that is longer by a step puts this step into the
 *    queue, however the flight is spread. The size of the queue is not known, so the step is a small part of C' T. The window
 *    grows with the arriving segments by one step per round trip, to a little more than C' T. The phase Open follows if trains
 *    do not confirm C' soon, as on a jittery path, or if the queue holds more than two windows: most of such a queue belongs
 *    to other flows, and trains have the rate that the path has for all of them.
 * 3. Follow: R is measured every two round trips. The window is set a little above R * T, which keeps a short queue. If
 *    segments are lost, the queue has no room for this margin, which is halved. If the window holds no more than R * T, the
 *    path has grown, and the window rises by steps that double. If the sender leaves the window unused although there is a
 *    queue, the window comes down to what is under way. If R is noisy, the margin is twice the noise. A trial (fit_trial.h)
 *    begins this phase, and begins again if R is noisy: the window grows as long as the mean of R follows. If a window in use
 *    stays the same for some rounds, a trial with a smaller one shows whether it holds a queue.
 * 4. Open: if the window descends and R descends with it, the delay is no queue of this connection. A short delay belongs to
 *    the path and its hosts: T is lengthened by it, and the phase Follow goes on. A longer delay is a queue of other flows, or
 *    no queue (radio links, jitter, another path). Then the window is 5/4 of the most that was under way, and grows with it.
 *    After a hold time the rule tries again; each failure doubles the hold time.
 *
 * Properties kept: without evidence the window is no smaller than slow start needs. It is never below BW_FIT_WINDOW_LEAST
 * segments, nor above the largest. It does not fall while the sender leaves it unused and no queue shows. Paths shorter than
 * BW_FIT_SHORTEST are left to DRS. Calls may come at any pace.
 */
#ifndef BUFWISE_FIT_WINDOW_H
#define BUFWISE_FIT_WINDOW_H

#include "fit_trial.h"

/* The window does not limit the sender, and is not lowered, if less than one part in this many of it is under way. */
#define BW_FIT_WINDOW_FAR 4
/*
 * One part in this many of the window: the largest descent of a round; the descent after which its effect is judged; the same
 * for the last part of a descent.
 */
#define BW_FIT_WINDOW_DOWN 8
#define BW_FIT_WINDOW_JUDGED 12
#define BW_FIT_WINDOW_JUDGED_LAST 32
/* A descent ends when the window exceeds its target by at most one part in this many. */
#define BW_FIT_WINDOW_NEAR 64
/* Below its target the window rises by one part in NEAR, or by one part in NEAR_NOISY if the noise exceeds NOISY (1024ths). */
#define BW_FIT_WINDOW_NEAR_NOISY 16
#define BW_FIT_WINDOW_NOISY 40
/* A successful descent later than this many hold times after the last one makes the next hold time short again. */
#define BW_FIT_WINDOW_TRUST 4ULL
/* A delay is long if it exceeds one part in this many of the round trip. */
#define BW_FIT_WINDOW_LONG 12
/* In the phase Open, R counts as at most this many 1024ths of what it was when the phase began. */
#define BW_FIT_WINDOW_MOST_GROWN (64 << 10)
/* The offered window has room for the data behind a hole, up to this many times the window. */
#define BW_FIT_WINDOW_MOST_BEHIND 2
/* A descent is given up after this many judgements in a row that it is in vain. */
#define BW_FIT_WINDOW_IN_VAIN 2

/* ---- Follow --------------------------------------------------------------------------------------------- */

/*
 * Whether a descent is in vain: R fell with the window, but it would have stayed if the window had held a queue. A descent is
 * judged part by part, and its last part again in the next round, because one judgement does not suffice. `ends`: this is the
 * last part.
 */
BW_FN int bw_fit_window_is_in_vain(struct bw_fit_window *s, __u64 now, __u64 rate, int ends)
{
	__u64 before = s->descent_window, lowered = bw_less(before, s->window);
	__u64 least = before / (ends ? BW_FIT_WINDOW_JUDGED_LAST : BW_FIT_WINDOW_JUDGED);
	/* Half of the part by which the window was lowered, in 1024ths. */
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
 * Ends a descent that was in vain. If the delay is long, it is a queue of other flows, or jitter: the phase Open begins. A short
 * one belongs to the path and its hosts: T is lengthened by it.
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

/* Because there is a queue, lowers the window towards the size that keeps a short one. */
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
		/* A delay shorter than the target's may be no queue. If it is one, R stays the same, and so does the target. */
		near = s->noise > BW_FIT_WINDOW_NOISY ? BW_FIT_WINDOW_NEAR_NOISY : BW_FIT_WINDOW_NEAR;
		bw_fit_window_set(s, bw_min(target, s->window + s->window / near), x);
	}
}

/* Because there is no queue, raises the window to its target, and from there by steps that double. */
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
 * After a loss, lowers the window to what the path has carried. If the window was full before, the queue has no room for the
 * margin, which is halved.
 */
BW_FN void bw_fit_window_retreat(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (s->was_full)
		s->above /= 2;
	/* If R has grown since the path was last full, the path has carried its mean, too. */
	s->known = bw_max(s->known, bw_fit_window_held(x, s->mean_rate));
	bw_fit_window_end_trials(s);
	s->was_full = 0;
	s->step = BW_FIT_STEP;
	bw_fit_window_set(s, bw_min(s->window, bw_fit_window_target(s, x, s->known)), x);
}

/*
 * Lowers a window that the sender leaves unused although there is a queue, because the sender's congestion window fills the
 * path. The window comes down to what is under way, where it begins to limit the sender.
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
 * Whether there is a queue: the round trip shows at least half of the queue that a window in use would hold. If it shows none,
 * the window does not limit the sender, and R is the sender's own choice.
 */
BW_FN int bw_fit_window_is_queued(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 need,
				  __u64 under_way)
{
	return 2 * under_way >= s->window + need && x->rcv_rtt > x->rtt + x->rtt / 32 + bw_min(x->rtt / 16, 1000);
}

/* ---- Open ----------------------------------------------------------------------------------------------- */

/*
 * In the phase Open: measures what is under way. After the hold time, tries the phase Follow again, in which one descent in vain
 * then suffices to come back.
 */
BW_FN void bw_fit_window_rest(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 rate = bw_fit_window_measure(s, x), offered = bw_fit_window_beside(s), under_way, grown;

	if (!rate)
		return;
	/* The receiver's estimate may come from the shortest round trips alone. */
	grown = bw_min(rate * 1024 / bw_max(s->anchor_rate, 1), BW_FIT_WINDOW_MOST_GROWN);
	under_way = bw_max(bw_product(rate, bw_fit_window_round_trip(x)), s->anchor_window / 1024 * grown);
	/*
	 * All of a window that limits the sender is under way, also where R and the round trip come out too small. Of a large window,
	 * half of the difference counts: it may be nearly full without limiting the sender.
	 */
	if (under_way * 16 >= offered * BW_FIT_WINDOW_FILLED)
		under_way = bw_max(under_way, offered <= BW_FIT_WINDOW_SMALL ? offered : (offered + under_way) / 2);
	s->most_under_way = bw_max(s->most_under_way, under_way);
	if (x->now >= s->open_until) {
		bw_fit_window_enter_follow(s, x, rate);
		/* If other flows keep the queue, a window that fell to the target at once would lose most of its share of the path. */
		bw_fit_window_set(s, bw_max(s->window, under_way - under_way / BW_FIT_WINDOW_DOWN), x);
		s->trial = 0;
		s->descent_window = bw_max(s->window, under_way);
		s->descent_rate = rate;
		s->in_vain = BW_FIT_WINDOW_IN_VAIN - 1;
	}
	bw_fit_window_begin_round(s, x);
}

/*
 * Whether C' is doubtful in the ramp: the queue belongs to other flows, trains are faster than C', or no train confirms C' while
 * round trips are longer than T, as with jitter. A sender whose flights are spread sends no trains, and one that writes in
 * pieces sends slower ones; neither is evidence against C', and nor are losses, which break trains.
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

/* Ends the ramp with the phase Open, at the present rate. */
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
 * In the phase Follow, measures R at the end of a round. Also continues the phase Open, and ends a ramp whose C' is doubtful.
 * Returns 0 if there is no new R; 1 if last_rate is a new R; 2 if, moreover, the phase Open is due, because the window came down
 * in vain or the queue belongs to other flows.
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

/*
 * Reacts to losses, to `is_futile` (bw_fit_window_end_round() returned 2), and to what a trial has shown. Returns 1 if there was
 * none of these, so that bw_fit_window_follow() has to set the window.
 */
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

/* Sets the window from the R that bw_fit_window_end_round() has measured. */
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

/* Returns the window rounded up to a value of the window field (a smaller one would cost rate), at most the largest window. */
BW_FN __u64 bw_fit_window_rounded(__u64 window, const struct bw_fit_window_sample *x)
{
	__u32 shift = x->scale < BW_LARGEST_SCALE ? x->scale : BW_LARGEST_SCALE;

	return bw_min((window + (1ULL << shift) - 1) >> shift << shift, x->max);
}

/* Whether the connection is in Start or Ramp, for which alone the second part is needed. */
BW_FN int bw_fit_window_is_starting(const struct bw_fit_window *s)
{
	return s->phase <= BW_FIT_RAMP;
}

/*
 * A sample goes through seven parts, which the kernel's verifier checks one by one. This first part measures the trains of Start
 * and Ramp. Returns 0 if the other parts have nothing to do: T is too short, or no segment has arrived since the last sample.
 */
BW_FN int bw_fit_window_watch(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	if (x->rtt < BW_FIT_SHORTEST || !x->received || (s->last_at && x->received == s->last_bytes))
		return 0;
	if (bw_fit_window_is_starting(s))
		bw_fit_window_watch_train(s, x);
	return 1;
}

/*
 * The second part is bw_fit_window_judge_pacing(). This third part runs Start and Ramp. Parts four to six are
 * bw_fit_window_end_round(), bw_fit_window_judge() and bw_fit_window_follow().
 */
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
 * The seventh part returns the window to advertise (payload). Data behind a hole are no longer under way, so the window is
 * larger by them: by twice its size at most, or a peer that never fills the hole could fill the memory.
 */
BW_FN __u64 bw_fit_window_offer(const struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 window = s->window ? s->window : bw_fit_window_unbound(s, x);

	if (x->rtt < BW_FIT_SHORTEST)
		return x->drs;
	return bw_fit_window_rounded(window + bw_min(x->behind, BW_FIT_WINDOW_MOST_BEHIND * window), x);
}

#endif
