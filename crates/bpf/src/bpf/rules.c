/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* The rules, compiled for the host: user space calls them where the kernel makes no callbacks (src/rules.rs). */
#include "fast.h"
#include "match.h"
#include "rules.h"
#include "upkeep.h"

void bufwise_rules_begin(const struct bw_config *config, struct bw_flow *flow)
{
	bw_rules_begin(config, flow);
}

void bufwise_settle(const struct bw_config *config, struct bw_flow *flow, __u32 locks)
{
	bw_settle(config, flow, locks);
}

void bufwise_settle_clamp(const struct bw_config *config, struct bw_flow *flow, __u32 clamp, __u32 ratio)
{
	bw_settle_clamp(config, flow, clamp, ratio);
}

void bufwise_decide_send(struct bw_send_decision *decision, const struct bw_config *config,
			 const struct bw_control *all, const struct bw_order *order, struct bw_flow *flow, __u32 stale)
{
	bw_decide_send(decision, config, all, order, flow, stale, bw_bound_of(config, flow));
}

__u32 bufwise_share_binds(const struct bw_config *config, const struct bw_control *all, const struct bw_flow *flow,
			  __u64 share)
{
	return bw_share_binds(config, all, flow, share);
}

void bufwise_step_send(struct bw_step *step, const struct bw_config *config, struct bw_flow *flow, __u64 payload,
		       __u32 stale)
{
	bw_step_send(step, config, flow, payload, stale);
}

void bufwise_observe_fit(const struct bw_config *config, struct bw_flow *flow, __u64 at)
{
	bw_observe_fit(config, flow, at);
}

__u32 bufwise_is_fit_timing(const struct bw_config *config, const struct bw_flow *flow)
{
	return bw_is_fit_timing(config, flow);
}

__u32 bufwise_decide_pace(const struct bw_flow *flow, __u64 share)
{
	return bw_decide_pace(flow, share);
}

__u32 bufwise_step_pace(const struct bw_flow *flow, __u64 present, __u32 rate)
{
	return bw_step_pace(flow, present, rate);
}

__u32 bufwise_decide_unsent(const struct bw_config *config, const struct bw_flow *flow)
{
	return bw_decide_unsent(config, flow);
}

__u32 bufwise_step_unsent(const struct bw_config *config, const struct bw_flow *flow, __u32 present)
{
	return bw_step_unsent(config, flow, present);
}

__u64 bufwise_decide_window(const struct bw_config *config, const struct bw_control *all, struct bw_flow *flow,
			    __u64 now, __u32 stale)
{
	return bw_shared_window(all, flow, bw_decide_window(config, flow, now), stale);
}

void bufwise_note_rtt(struct bw_flow *flow, __u64 now)
{
	bw_note_rtt(flow, now);
}

__u32 bufwise_room_doublings(const struct bw_room *room, __u64 now)
{
	return bw_room_doublings(room, now);
}

__u32 bufwise_room_news(const struct bw_flow *flow)
{
	return bw_room_news_of(flow);
}

void bufwise_room_learn(struct bw_room *room, struct bw_flow *flow, __u32 news, __u64 now)
{
	bw_room_learn(room, &flow->fit_window, news, now);
}

__u32 bufwise_cap(__u32 cap, __u32 cut)
{
	return bw_cap(cap, cut);
}

__u32 bufwise_may_size_rcvbuf(const struct bw_flow *flow)
{
	return bw_may_size_rcvbuf(flow);
}

__u64 bufwise_memory_of_window(__u64 offered, __u32 ratio)
{
	return bw_memory_of_window(offered, ratio);
}

__u64 bufwise_decide_rcvbuf(const struct bw_config *config, const struct bw_flow *flow, __u64 share, __u64 window,
			    __u64 in_use, __u64 awaited)
{
	return bw_decide_rcvbuf(config, flow, share, window, in_use, awaited);
}

__u32 bufwise_is_idle(const struct bw_config *config, struct bw_flow *flow, __u64 moved, __u64 active_at, __u64 now)
{
	return bw_is_idle(config, flow, moved, active_at, now);
}

__u32 bufwise_give_back_send(const struct bw_config *config, const struct bw_flow *flow)
{
	return bw_give_back_send(config, flow);
}

__u32 bufwise_give_back_receive(const struct bw_config *config, const struct bw_flow *flow, __u64 in_use,
				__u32 unread)
{
	return bw_give_back_receive(config, flow, in_use, unread, BW_LARGEST_OPTION);
}

__u32 bufwise_groups_of_name(const struct bw_match *match, const char *name)
{
	return bw_groups_of_name(match, name);
}

__u32 bufwise_group_of(const struct bw_match *match, __u32 cgroups, __u32 names, const __u32 *peer, __u32 local_port,
		       __u32 peer_port)
{
	return bw_group_of(match, cgroups, names, bw_groups_of_peer(match, peer),
			   bw_groups_of_ports(match, local_port, peer_port));
}
