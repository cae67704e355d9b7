/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, second part: trials, which change the window to see whether R follows, for paths whose delay or rate
 * varies. fit_window.h has the problem, the terms and the rule.
 *
 * Problem: R * T is the window that a path needs without a queue only if T is right. Where segments or acknowledgements come in
 * bursts, a window of R * T is too small for R, so the next R is smaller, and so on. R itself shows this: it follows the window
 * down, and it would follow it up.
 *
 * Terms: a *trial* enlarges the window step by step as long as R follows, or tries a smaller window for some rounds. The *noise*
 * is the part of R (1024ths) by which R differs from round to round.
 */
#ifndef BUFWISE_FIT_TRIAL_H
#define BUFWISE_FIT_TRIAL_H

#include "fit_ramp.h"

/* The window has come far down if it has lost this part (1024ths). */
#define BW_FIT_TRIAL_FAR 256
/* A round counts for one part in this many of the means of the window and of R. */
#define BW_FIT_TRIAL_MEAN 4
/* R falls by itself if it loses one part in ALONE while the window loses at most one part in UNCHANGED. */
#define BW_FIT_TRIAL_ALONE 4
#define BW_FIT_TRIAL_UNCHANGED 16
/* A round counts for 1/AVERAGE of the noise, with at most three times the noise so far and OUTLIER (1024ths). */
#define BW_FIT_TRIAL_AVERAGE 8
#define BW_FIT_TRIAL_OUTLIER 32
/* From this noise on (1024ths), R is noisy, and a larger window is tried. */
#define BW_FIT_TRIAL_NOISE 20
/* From this noise on, the phase Open begins instead of a trial, unless C' is sure. */
#define BW_FIT_TRIAL_UNFIT 64
/* R is far below what the path has shown if more than one part in this many is missing. */
#define BW_FIT_TRIAL_BELOW 8
/* Steps (1024ths of the window): the first, the largest for a steady R, the one for an R far below, the largest of all. */
#define BW_FIT_TRIAL_FIRST 32
#define BW_FIT_TRIAL_CALM 64
#define BW_FIT_TRIAL_WIDE 128
#define BW_FIT_TRIAL_LARGEST 512
/* R has followed the window if it has grown by at least this many quarters of the window's growth; the second for a noisy R. */
#define BW_FIT_TRIAL_FOLLOWED 3
#define BW_FIT_TRIAL_FOLLOWED_NOISY 2
/* An R that is noisy, or far below what the path has shown, gets this many rounds at one window to follow it. */
#define BW_FIT_TRIAL_ROUNDS 3
/* Rounds from a failed trial to the next one. Failures in a row double them, at most RESTS times. */
#define BW_FIT_TRIAL_REST 4
#define BW_FIT_TRIAL_RESTS 3
/* From this noise on (1024ths), a failed trial does not prove a queue: T is lengthened by what the restored window holds. */
#define BW_FIT_TRIAL_STANDS 100

/*
 * A smaller window is tried after STILL rounds in a row in which the window was used and did not grow, and no queue counted. It is
 * smaller by LOWER (1024ths), which is less than the usual margin, and lasts for LOWER_ROUNDS rounds.
 */
#define BW_FIT_TRIAL_STILL 6
#define BW_FIT_TRIAL_LOWER 40
#define BW_FIT_TRIAL_LOWER_ROUNDS 3

/* Returns the part of `before` by which `now` is smaller, in 1024ths; 0 if it is not smaller. */
BW_FN __u64 bw_fit_missing(__u64 before, __u64 now)
{
	return bw_less(before, now) * 1024 / bw_max(before, 1);
}

/* Takes the window of a round, and its R (`rate`), into their means. */
BW_FN void bw_fit_window_take_mean(struct bw_fit_window *s, __u64 rate)
{
	/* If R is far lower twice in a row and the window is not, the path carries less. */
	s->alone = rate < s->mean_rate - s->mean_rate / BW_FIT_TRIAL_ALONE &&
			   (s->alone || s->window >= s->mean_window - s->mean_window / BW_FIT_TRIAL_UNCHANGED) ?
			   s->alone + 1 : 0;
	if (!s->anchor_rate || s->alone >= 2) {
		/* If R was near C', the path no longer carries C'. */
		if (s->alone && s->mean_rate >= s->capacity / 2)
			s->capacity = rate;
		s->anchor_rate = s->mean_rate = rate;
		s->anchor_window = s->mean_window = s->window;
		s->trial = s->alone ? 0 : s->trial;
		s->fastest = s->alone ? rate : s->fastest;
		s->alone = 0;
		return;
	}
	s->mean_rate = bw_less(s->mean_rate, s->mean_rate / BW_FIT_TRIAL_MEAN) + rate / BW_FIT_TRIAL_MEAN;
	s->mean_window = bw_less(s->mean_window, s->mean_window / BW_FIT_TRIAL_MEAN) + s->window / BW_FIT_TRIAL_MEAN;
}

/*
 * Whether the window came down in vain: since R was highest, the means of both have come far down, so the window held no queue. If
 * R has stayed, the comparison begins anew.
 */
BW_FN int bw_fit_window_is_futile(struct bw_fit_window *s, __u64 rate)
{
	__u64 lowered, fallen;

	bw_fit_window_take_mean(s, rate);
	lowered = bw_fit_missing(s->anchor_window, s->mean_window);
	fallen = bw_fit_missing(s->anchor_rate, s->mean_rate);
	if (lowered >= BW_FIT_TRIAL_FAR && fallen * 2 >= lowered)
		return 1;
	if (lowered >= BW_FIT_TRIAL_FAR || s->mean_rate >= s->anchor_rate) {
		s->anchor_window = s->mean_window;
		s->anchor_rate = s->mean_rate;
	}
	return 0;
}

/*
 * Takes a round into the noise: the difference of R from the last R, or from the R that would have followed the window,
 * whichever is less.
 */
BW_FN void bw_fit_window_note_noise(struct bw_fit_window *s, __u64 rate)
{
	__u64 along = s->last_rate / 1024 * bw_min(s->window * 1024 / bw_max(s->last_window, 1), 4096);
	__u64 apart = bw_min(bw_distance(rate, s->last_rate), bw_distance(rate, along)) * 1024 / bw_max(rate, 1);

	/* The first two rounds of the first trial give the noise at once. */
	if (s->trial && !s->trial_window && s->level_rounds == 1 && !s->noise)
		s->noise = bw_min(apart, BW_FIT_WINDOW_MOST_NOISE);
	else if (s->last_rate)
		s->noise = (s->noise * (BW_FIT_TRIAL_AVERAGE - 1) + bw_min(apart, 3 * s->noise + BW_FIT_TRIAL_OUTLIER)) /
			   BW_FIT_TRIAL_AVERAGE;
	s->last_rate = rate;
	s->last_window = s->window;
}

/* Returns the part of `before` by which `now` is larger, in 1024ths; 0 if it is not larger. */
BW_FN __u64 bw_fit_gained(__u64 before, __u64 now)
{
	return bw_min(bw_less(now, before), 1ULL << 40) * 1024 / bw_max(before, 1);
}

/* Whether R is far below what the path has shown. */
BW_FN int bw_fit_window_is_far_below(const struct bw_fit_window *s, __u64 rate)
{
	return rate < s->fastest - s->fastest / BW_FIT_TRIAL_BELOW;
}

/*
 * Returns the next step (1024ths): twice the last one, and more if R is noisier or far below what the path has shown. If R is far
 * above C', the ramp's C' is refuted, and larger steps are allowed.
 */
BW_FN __u32 bw_fit_window_trial_step(const struct bw_fit_window *s, __u64 rate)
{
	__u32 least = bw_max(BW_FIT_TRIAL_FIRST, 2 * s->noise), most = bw_max(BW_FIT_TRIAL_CALM, 4 * s->noise);

	if (s->below && bw_fit_window_is_far_below(s, rate))
		return BW_FIT_TRIAL_WIDE;
	if (!s->trial_window && bw_fit_window_is_sure(s))
		return BW_FIT_TRIAL_FIRST;
	if (bw_fit_window_is_refuted(s, rate))
		most = bw_max(most, rate > 2 * s->capacity ? 2 * BW_FIT_TRIAL_WIDE : BW_FIT_TRIAL_WIDE);
	return bw_min(bw_min(bw_max(2 * s->trial, least), most), BW_FIT_TRIAL_LARGEST);
}

/* Takes the next step of a trial from the present window, whose mean of R is `rate`. */
BW_FN void bw_fit_window_next_level(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	s->trial_window = s->window;
	s->trial_rate = rate;
	bw_fit_window_begin_level(s);
	if (s->lower) {
		bw_fit_window_set(s, s->window - s->window / 1024 * BW_FIT_TRIAL_LOWER, x);
		return;
	}
	s->trial = bw_fit_window_trial_step(s, rate);
	bw_fit_window_set(s, s->window + s->window / 1024 * s->trial, x);
}

/* Ends a trial whose last step R has not followed, and restores the window. Each failure in a row doubles the rest. */
BW_FN void bw_fit_window_fail_trial(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	__u64 held = bw_fit_window_held(x, s->trial_rate);
	__u64 longer = bw_fit_gained(held, s->trial_window);

	s->trial = 0;
	s->rest = BW_FIT_TRIAL_REST << bw_min(s->failed, BW_FIT_TRIAL_RESTS);
	s->failed++;
	if (s->noise >= BW_FIT_TRIAL_STANDS)
		s->extra = bw_max(s->extra, bw_min(longer, BW_FIT_WINDOW_MOST_LONGER));
	bw_fit_window_set(s, s->trial_window, x);
}

/* Enters the phase Open for the next hold time. */
BW_FN void bw_fit_window_open(struct bw_fit_window *s, const struct bw_fit_window_sample *x)
{
	s->hold = bw_fit_next_hold(s->hold);
	s->phase = BW_FIT_OPEN;
	s->open_until = x->now + s->hold;
	s->most_under_way = bw_max(s->window, s->descent_window);
	s->anchor_window = s->window;
	s->anchor_rate = s->mean_rate;
	s->window = 0;
	s->opened++;
}

/*
 * Judges a step by the mean of R at the present window. If R still follows although the window holds far more than R * T, then T
 * says nothing about this path, and the phase Open begins.
 */
BW_FN void bw_fit_window_judge_trial(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 held = bw_fit_window_held(x, rate), longer = bw_fit_gained(held, s->window);
	__u64 grown = bw_fit_gained(s->trial_window, s->window), risen = bw_fit_gained(s->trial_rate, rate);
	int noisy = s->noise >= BW_FIT_TRIAL_NOISE;
	__u64 quarters = noisy ? BW_FIT_TRIAL_FOLLOWED_NOISY : BW_FIT_TRIAL_FOLLOWED;
	int followed = risen * 4 >= grown * quarters;

	if (!s->trial_window) {
		if (s->level_rounds >= 2)
			bw_fit_window_next_level(s, x, rate);
	} else if (followed && longer > BW_FIT_WINDOW_MOST_LONGER) {
		bw_fit_window_open(s, x);
	} else if (followed) {
		s->known = held;
		s->extra = longer;
		s->failed = 0;
		if (s->below && bw_fit_window_is_delayed(x)) {
			s->trial = 0;
			s->rest = BW_FIT_TRIAL_REST;
		} else {
			bw_fit_window_next_level(s, x, rate);
		}
	} else if (!(noisy || s->below) || s->level_rounds >= BW_FIT_TRIAL_ROUNDS) {
		bw_fit_window_fail_trial(s, x);
	}
}

/*
 * Judges a trial with a smaller window, and restores the window before it. If R has followed, that window holds no queue: T is
 * lengthened by what it holds beyond R * T, and larger windows are tried. If R has stayed, the path is full, and the trial has cost
 * nothing. Returns 0 if R has fallen further than the window: the path carries less, and the trial ends without setting the window.
 */
BW_FN int bw_fit_window_judge_lower(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 held = bw_fit_window_held(x, s->trial_rate), longer = bw_fit_gained(held, s->trial_window);
	__u64 fallen = bw_fit_missing(s->trial_rate, rate);
	int is_far = fallen > 2 * BW_FIT_TRIAL_LOWER;

	if (s->level_rounds < BW_FIT_TRIAL_LOWER_ROUNDS && !is_far)
		return 1;
	s->still = 0;
	s->rest = BW_FIT_TRIAL_REST << BW_FIT_TRIAL_RESTS;
	s->trial = 0;
	if (is_far) {
		s->anchor_rate = 0;
		return 0;
	}
	bw_fit_window_set(s, s->trial_window, x);
	if (fallen * 4 >= BW_FIT_TRIAL_LOWER * BW_FIT_TRIAL_FOLLOWED && longer <= BW_FIT_WINDOW_MOST_LONGER) {
		s->known = held;
		s->extra = longer;
		bw_fit_window_begin_trial(s);
	}
	return 1;
}

/* Whether R is far below what the path has shown although the window is used and no queue shows. */
BW_FN int bw_fit_window_is_below(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return bw_fit_window_is_far_below(s, rate) && !bw_fit_window_is_delayed(x) &&
	       bw_fit_window_is_used(s, x, rate);
}

/* Whether a rest after losses may end: it has lasted as long as a usual rest, and nearly the whole window is under way. */
BW_FN int bw_fit_window_is_loss_over(const struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	return s->rest > BW_FIT_TRIAL_REST << BW_FIT_TRIAL_RESTS && s->rest <= BW_FIT_WINDOW_LONG_REST - BW_FIT_WINDOW_REST &&
	       bw_product(rate, bw_fit_window_round_trip(x)) * 8 >= s->window * BW_FIT_WINDOW_NEARLY;
}

/*
 * Continues a trial, or begins one: if R is noisy, because the R of a full path is C and steady; if R is far below what the path has
 * shown; or with a smaller window, if R is steady and the window stays the same. Returns 1 if the trial has set the window.
 */
BW_FN int bw_fit_window_is_trial(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	int rests, lower;

	if (!s->trial) {
		s->rest = bw_less(s->rest, 1);
		s->below = s->noise < BW_FIT_TRIAL_NOISE;
		rests = s->rest && !(s->below && bw_fit_window_is_loss_over(s, x, rate));
		lower = s->below && s->still >= BW_FIT_TRIAL_STILL && s->above == BW_FIT_WINDOW_ABOVE;
		if (rests || (s->below && !lower && !bw_fit_window_is_below(s, x, rate)))
			return 0;
		if (s->noise >= BW_FIT_TRIAL_UNFIT && !bw_fit_window_is_sure(s)) {
			bw_fit_window_open(s, x);
			return 1;
		}
		bw_fit_window_begin_trial(s);
		s->lower = lower;
		s->below &= !lower;
	}
	s->level_rate += rate;
	s->level_rounds++;
	if (s->lower && s->trial_window)
		return bw_fit_window_judge_lower(s, x, s->level_rate / s->level_rounds);
	bw_fit_window_judge_trial(s, x, s->level_rate / s->level_rounds);
	return 1;
}

/* Ends trials after a loss: R changes for other reasons then, and the queue has no room for a trial. */
BW_FN void bw_fit_window_end_trials(struct bw_fit_window *s)
{
	s->trial = 0;
	s->rest = BW_FIT_WINDOW_LONG_REST;
	s->anchor_rate = 0;
	s->noise = 0;
}

#endif
