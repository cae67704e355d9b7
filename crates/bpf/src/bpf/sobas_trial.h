/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * SOBAS: whose queue is it? What a flow does before it believes that a long queue is its own.
 *
 * The Rust one (crates/policy/src/sobas/trial.rs) says what it is for and what each rule means. T is the path's round
 * trip without a queue, Q the present one; the queue is long when Q > 9/8 * T. Included by sobas.h.
 *
 * 7 trial: S = R * Q / 2, at least R * T; if Q falls by three quarters of what is expected of a queue of our own, to 5,
 * else to 6.
 */
#ifndef BUFWISE_SOBAS_TRIAL_H
#define BUFWISE_SOBAS_TRIAL_H

/* Time from a failed trial to the next; doubled with each further one, at most so often. */
#define BW_TRIAL_RETRY 10000000ULL
#define BW_TRIAL_DOUBLINGS 3
/* A trial is over after this many of the round trips that it began with. */
#define BW_TRIAL_LASTS 3
/* A queue is long for this many of the path's round trips before our own limit is blamed for a rate below 0.95. */
#define BW_TRIAL_STANDS 4
/* The rate of a flow that gives way to others is the mean of at least so many readings. */
#define BW_STARVED_READINGS 2
/* An offer has room for this many times what is under way, and for so many segments besides. */
#define BW_OFFERED 4
#define BW_OFFERED_SEGMENTS 16

/* Takes the path's round trip and the present one; 0 where that is not known apart. */
BW_FN void bw_trial_see(struct bw_sobas *s, __u64 path, __u64 present, __u64 now)
{
	__u32 is_long = bw_times(present, 8) > bw_times(path, 9);

	s->present = present;
	if (is_long != s->is_long) {
		s->is_long = is_long;
		s->long_since = now;
	}
}

/* No long queue for long enough to believe it. */
BW_FN int bw_trial_others_gone(const struct bw_sobas *s, __u64 now)
{
	return !s->is_long && bw_less(now, s->long_since) >= BW_SOBAS_PATIENCE;
}

/* A full path has a queue, where that can be seen. */
BW_FN int bw_trial_may_be_full(const struct bw_sobas *s)
{
	return !s->present || s->is_long;
}

/* State 7, or where the queue is short at once 5. */
BW_FN void bw_trial_begin(struct bw_sobas *s, const struct bw_sobas_view *v, __u64 rate)
{
	__u64 half = bw_max(s->present / 2, v->rtt);

	if (!s->is_long) {
		bw_sobas_conclude(s, v, rate, v->reading.at);
		return;
	}
	s->trial_rate = rate;
	s->began_with = s->present;
	s->ours_by = half + bw_less(s->present, half) / 4;
	s->until = 0;
	s->state = BW_SOBAS_TRIAL;
	s->window = bw_sobas_clamped(bw_sobas_held(rate, half), v->mss, v->max);
	s->count = 0;
}

/* The same with the mean of the last readings, once there are so many. */
BW_FN void bw_trial_begin_mean(struct bw_sobas *s, const struct bw_sobas_view *v, __u32 least)
{
	__u64 sum = 0;
	__u32 i;

	if (s->count < least || !s->count)
		return;
	for (i = 0; i < BW_SOBAS_HISTORY; i++)
		if (i < s->count)
			sum += s->readings[i].rate;
	bw_trial_begin(s, v, sum / s->count);
}

/* To 6: others fill the path. */
BW_FN void bw_trial_fail(struct bw_sobas *s, __u64 max, __u64 now)
{
	s->not_before = now + (BW_TRIAL_RETRY << bw_min(s->failures, BW_TRIAL_DOUBLINGS));
	s->failures = bw_min(s->failures + 1ULL, BW_TRIAL_DOUBLINGS);
	s->state = BW_SOBAS_CONGESTED;
	s->window = max;
}

/* State 7: to 5 or to 6, if it is decided. Its end is set once no more than S is on offer. */
BW_FN void bw_trial_follow(struct bw_sobas *s, const struct bw_sobas_view *v, __u64 offered, __u64 now)
{
	if (s->state != BW_SOBAS_TRIAL)
		return;
	if (s->present <= s->ours_by) {
		bw_sobas_conclude(s, v, s->trial_rate, now);
	} else if (!s->until) {
		if (offered * 8 <= bw_times(s->window, 9))
			s->until = now + s->began_with * BW_TRIAL_LASTS;
	} else if (now >= s->until) {
		bw_trial_fail(s, v->max, now);
	}
}

/* States 4 and 5: whether a reading is one of a flow that gives way to others. */
BW_FN int bw_trial_starved(const struct bw_sobas *s, const struct bw_sobas_view *v)
{
	return s->is_long && bw_less(v->reading.at, s->long_since) >= v->rtt * BW_TRIAL_STANDS &&
	       v->reading.rate * 20 < s->decided_rate * 19;
}

/* State 6 while the queue is long: is it ours alone by now? */
BW_FN void bw_trial_again(struct bw_sobas *s, const struct bw_sobas_view *v)
{
	__u64 at = v->reading.at;

	if (!s->lossy && bw_less(at, s->congestion_since) >= BW_SOBAS_PATIENCE && s->is_long && at >= s->not_before)
		bw_trial_begin_mean(s, v, BW_SOBAS_HISTORY);
}

/* What is offered where S is the maximum: no more than a sender can use, so that a limit takes effect soon. */
BW_FN __u64 bw_trial_offer(const struct bw_sobas *s, __u64 mss)
{
	__u64 used;

	if (s->state <= BW_SOBAS_SLOW_START || !s->is_long)
		return s->window;
	used = bw_sobas_held(s->largest, s->present);
	return bw_min(s->window, used * BW_OFFERED + mss * BW_OFFERED_SEGMENTS);
}

#endif
