/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* rules.h for the host: what user space calls for connections for which the kernel makes no callbacks. */
#include "rules.h"

void bufwise_decide_send(struct bw_send_decision *decision, const struct bw_config *config,
			 const struct bw_control *all, const struct bw_order *order, struct bw_flow *flow,
			 __u32 app_limited)
{
	bw_decide_send(decision, config, all, order, flow, app_limited, 0, bw_bound_of(config, flow, app_limited));
}

__u32 bufwise_decide_pace(const struct bw_flow *flow, __u64 share)
{
	return bw_decide_pace(flow, share);
}

__u64 bufwise_decide_window(const struct bw_config *config, const struct bw_control *all, struct bw_flow *flow,
			    __u64 now)
{
	return bw_shared_window(all, flow, bw_decide_window(config, flow, now), 0);
}

__u64 bufwise_decide_rcvbuf(const struct bw_config *config, const struct bw_flow *flow, __u64 window, __u64 in_use)
{
	return bw_decide_rcvbuf(config, flow, window, in_use);
}

void bufwise_rules_begin(const struct bw_config *config, struct bw_flow *flow)
{
	bw_rules_begin(config, flow);
}
