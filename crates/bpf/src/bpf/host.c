/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* policy.h for the host: what the differential tests call. */
#include "flow.h"

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

__u64 bufwise_drs(struct bw_drs *state, const struct bw_receive_sample *sample, __u64 initial, __u64 max)
{
	return bw_drs_observe(state, sample, initial, max);
}

void bufwise_sobas_init(struct bw_sobas *state, __u64 max)
{
	bw_sobas_init(state, max);
}

__u64 bufwise_sobas(struct bw_sobas *state, const struct bw_receive_sample *sample, __u64 max)
{
	return bw_sobas_observe(state, sample, max);
}

__u32 bufwise_slots(struct bw_slots *state, __u64 now, __u32 out_of_order)
{
	return bw_slots_observe(state, now, out_of_order);
}
