/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Single rules, compiled for tests on the host (src/differential.rs, src/judged.rs); releases do not contain them. */
#include "fast.h"
#include "rules.h"
#include "upkeep.h"

__u64 bufwise_send_target(__u32 rule, __u64 fixed, struct bw_abt *state, const struct bw_send_sample *sample,
			  const struct bw_send_bounds *bounds)
{
	return bw_send_target(rule, fixed, state, sample, bounds);
}

__u64 bufwise_limit_of_share(__u64 share, __u64 last_buffer)
{
	return bw_limit_of_share(share, last_buffer);
}

__u32 bufwise_pace(__u64 payload, __u64 last_buffer, __u64 srtt, __u64 mss)
{
	return bw_pace(payload, last_buffer, srtt, mss);
}

__u64 bufwise_bound(struct bw_bound *state, const struct bw_bound_sample *sample)
{
	return bw_bound_observe(state, sample);
}

__u32 bufwise_fit(struct bw_fit *state, const struct bw_fit_sample *sample)
{
	bw_fit_watch(state, sample);
	return bw_fit_observe(state, sample);
}

__u64 bufwise_drs(struct bw_drs *state, const struct bw_receive_sample *sample, __u64 initial, __u64 max)
{
	return bw_drs_observe(state, sample, initial, max);
}

__u64 bufwise_fit_window(struct bw_fit_window *state, const struct bw_fit_window_sample *sample)
{
	int seen;

	if (bw_fit_window_watch(state, sample)) {
		if (bw_fit_window_is_starting(state))
			bw_fit_window_judge_pacing(state, sample);
		bw_fit_window_go_on(state, sample);
		seen = bw_fit_window_end_round(state, sample);
		if (seen && bw_fit_window_judge(state, sample, seen > 1))
			bw_fit_window_follow(state, sample);
	}
	return bw_fit_window_offer(state, sample);
}

void bufwise_sobas_init(struct bw_sobas *state, __u64 max)
{
	bw_sobas_init(state, max);
}

__u64 bufwise_sobas(struct bw_sobas *state, const struct bw_receive_sample *sample, __u64 max)
{
	return bw_sobas_observe(state, sample, max);
}

__u64 bufwise_arrivals(struct bw_arrivals *state, __u64 now, __u64 rtt, __u64 in_order, __u32 segments,
		       __u32 out_of_order)
{
	return bw_arrivals_observe(state, now, rtt, in_order, segments, out_of_order);
}

__u32 bufwise_losses(struct bw_losses *state, __u64 now, __u64 rtt, __u64 in_order, __u32 out_of_order)
{
	return bw_losses_observe(state, now, rtt, in_order, out_of_order);
}

__u32 bufwise_loss_events(struct bw_loss_events *state, __u64 now, __u64 srtt, __u32 retransmitted)
{
	return bw_loss_events_observe(state, now, srtt, retransmitted);
}

__u32 bufwise_is_stale(const struct bw_config *config, const struct bw_control *all, __u64 now)
{
	return bw_is_stale(config, all, now);
}

void bufwise_step_receive(struct bw_step *step, const struct bw_config *config, struct bw_flow *flow, __u64 memory,
			  __u32 stale)
{
	bw_step_receive(step, config, flow, memory, stale);
}

__u32 bufwise_is_record_due(const struct bw_config *config, const struct bw_control *all,
			    const struct bw_unrecorded *one)
{
	return bw_is_record_due(config, all, one);
}

__u32 bufwise_is_round_due(const struct bw_config *config, const struct bw_fast *fast,
			   const struct bw_fast_view *view)
{
	return bw_is_round_due(config, fast, view);
}

void bufwise_rest_rounds(const struct bw_config *config, const struct bw_control *all, struct bw_fast *fast,
			 const struct bw_flow *flow)
{
	bw_rest_rounds(config, all, fast, flow);
}

__u32 bufwise_is_window_due(const struct bw_fast *fast, __u64 now, __u32 window_clamp)
{
	return bw_is_window_due(fast, now, window_clamp);
}

__u32 bufwise_is_burst(const struct bw_fast *fast, __u32 received, __u32 advmss)
{
	return bw_is_burst(fast, received, advmss);
}

__u32 bufwise_count_round(struct bw_fast *fast, __u32 received, __u32 advmss)
{
	return bw_count_round(fast, received, advmss);
}

__u64 bufwise_next_window(const struct bw_config *config, const struct bw_flow *flow, __u64 now)
{
	return bw_next_window(config, flow, now);
}
