/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver, second part: what R does when the window changes, on paths whose delay or rate varies. fit_window.h has
 * the problem, the terms and the rule.
 *
 * Problem: R * T tells what is under way without a queue only if T does. Where segments or acknowledgements come in bursts, a
 * window of R * T is too small for R, the next R is smaller, and so on. R itself shows it: it follows the window down, and it
 * would follow it up.
 */
#ifndef BUFWISE_FIT_TRIAL_H
#define BUFWISE_FIT_TRIAL_H

#include "fit_ramp.h"

/* 1024ths. The window has come far down; R stays; R falls by itself, by so much more than the window. */
#define BW_FIT_TRIAL_FAR 256
#define BW_FIT_TRIAL_STAYS 64
#define BW_FIT_TRIAL_BY_ITSELF 128
/* The window has been lowered in a round (1024ths), and R was no less but for a part. */
#define BW_FIT_TRIAL_LOWERED 32
#define BW_FIT_TRIAL_SAME 64
/* A round counts for an eighth; no more than three times the noise so far, and this (1024ths). */
#define BW_FIT_TRIAL_AVERAGE 8
#define BW_FIT_TRIAL_OUTLIER 32
/* With so much noise (1024ths) a larger window is tried: by so much at first, and at most. */
#define BW_FIT_TRIAL_NOISE 20
#define BW_FIT_TRIAL_FIRST 128
#define BW_FIT_TRIAL_LARGEST 512
/* Rounds until the next trial: after one that has failed, after losses. */
#define BW_FIT_TRIAL_REST 8
#define BW_FIT_TRIAL_LONG_REST 256

/* The part of `before` by which `now` is smaller, in 1024ths. */
BW_FN __u64 bw_fit_missing(__u64 before, __u64 now)
{
	return bw_less(before, now) * 1024 / bw_max(before, 1);
}

/*
 * Whether the window has come down far and R with it: no queue was in it. Where R falls by itself, or stays, the comparison
 * begins anew.
 */
BW_FN int bw_fit_window_is_futile(struct bw_fit_window *s, __u64 rate)
{
	__u64 lowered = bw_fit_missing(s->anchor_window, s->window), fallen = bw_fit_missing(s->anchor_rate, rate);
	int stays = bw_fit_missing(s->last_window, s->window) >= BW_FIT_TRIAL_LOWERED &&
		    rate + rate / BW_FIT_TRIAL_SAME >= s->last_rate;

	if (!s->anchor_rate || stays || fallen < BW_FIT_TRIAL_STAYS || fallen > lowered + BW_FIT_TRIAL_BY_ITSELF) {
		s->anchor_window = s->window;
		s->anchor_rate = rate;
		return 0;
	}
	return lowered >= BW_FIT_TRIAL_FAR && fallen * 2 >= lowered;
}

/* By how much R differs from the last one, and from what it would be had it followed the window: the lesser. */
BW_FN void bw_fit_window_note_noise(struct bw_fit_window *s, __u64 rate)
{
	__u64 along = s->last_rate / 1024 * bw_min(s->window * 1024 / bw_max(s->last_window, 1), 4096);
	__u64 apart = bw_min(bw_distance(rate, s->last_rate), bw_distance(rate, along)) * 1024 / bw_max(rate, 1);

	if (s->last_rate)
		s->noise = (s->noise * (BW_FIT_TRIAL_AVERAGE - 1) + bw_min(apart, 3 * s->noise + BW_FIT_TRIAL_OUTLIER)) /
			   BW_FIT_TRIAL_AVERAGE;
	s->last_rate = rate;
	s->last_window = s->window;
}

/* A trial begins in this round, or was under way: if R has followed, a larger one. 1: it has set the window. */
BW_FN int bw_fit_window_is_trial(struct bw_fit_window *s, const struct bw_fit_window_sample *x, __u64 rate)
{
	__u64 held = bw_fit_window_held(x, rate), window = s->trial_window;
	__u32 trial = 0;

	if (!s->trial) {
		s->rest = bw_less(s->rest, 1);
		if (s->noise < BW_FIT_TRIAL_NOISE || s->rest)
			return 0;
		trial = BW_FIT_TRIAL_FIRST;
	} else if (rate >= s->trial_rate + s->trial_rate / 2048 * s->trial) {
		s->known = held;
		s->extra = bw_min(bw_less(s->window, held) * 1024 / bw_max(held, 1), BW_FIT_WINDOW_LONGER);
		trial = bw_min(2 * s->trial, BW_FIT_TRIAL_LARGEST);
	}
	if (trial) {
		s->trial_rate = rate;
		s->trial_window = s->window;
		window = s->window + s->window / 1024 * trial;
	} else {
		s->rest = BW_FIT_TRIAL_REST;
	}
	s->trial = trial;
	bw_fit_window_set(s, window, x);
	return 1;
}

/* Segments were lost: what R does has other reasons, and the queue has no room for a trial. */
BW_FN void bw_fit_window_end_trials(struct bw_fit_window *s)
{
	s->trial = 0;
	s->rest = BW_FIT_TRIAL_LONG_REST;
	s->anchor_rate = 0;
	s->noise = 0;
}

#endif
