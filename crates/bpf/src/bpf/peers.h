/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: remembers by peer whether a path's queue has room for larger steps.
 *
 * Problem: a receiver that knows nothing of the queue opens its window by small steps (fit_ramp.h), and a document of one or
 * two products waits for them. The steps of a connection show that the queue takes them, and so serve those that follow: browsers
 * and package managers open many to the same server.
 *
 * Rule: a ramp of some round trips without a segment out of order shows room. For BW_ROOM_FORGOTTEN the ramps of
 * connections to that peer have steps twice as long. A segment out of order in a ramp forbids that for BW_ROOM_CAREFUL.
 *
 * Properties kept: steps are never longer than slow start's. A peer changes the entry of its own address alone.
 */
#ifndef BUFWISE_PEERS_H
#define BUFWISE_PEERS_H

#include "fit_window.h"

/* Round trips of a ramp that show whether the queue takes its steps. */
#define BW_ROOM_ROUNDS 3
/* Room is forgotten after ten minutes (us), for routes and other traffic change; a loss after an hour. */
#define BW_ROOM_FORGOTTEN 600000000ULL
#define BW_ROOM_CAREFUL 3600000000ULL

/* Room on a peer's path: when a ramp last showed it, and when a ramp last lost segments (us); 0: never. */
struct bw_room {
	__u64 taken_at;
	__u64 lost_at;
};

/* A peer: its address as in bw_flow.remote_ip, and the network namespace of this end. */
struct bw_peer {
	__u32 ip[4];
	__u32 netns;
};

/* Whether the ramp of a new connection may have longer steps. */
BW_FN __u32 bw_has_room(const struct bw_room *r, __u64 now)
{
	return r->taken_at && bw_less(now, r->taken_at) <= BW_ROOM_FORGOTTEN &&
	       (!r->lost_at || bw_less(now, r->lost_at) > BW_ROOM_CAREFUL);
}

/*
 * Whether a connection has shown room, or a loss, that bw_room_learn() has not taken yet; BW_ROOM_UNKNOWN (0): neither. A ramp
 * that ends early is judged by the first rate that is measured after it.
 */
BW_FN enum bw_room_shown bw_room_news(const struct bw_fit_window *s, __u32 out_of_order)
{
	int ramps = s->phase == BW_FIT_RAMP, follows = s->phase == BW_FIT_FOLLOW;

	if (!s->ramp_rounds || s->shown == BW_ROOM_LOST || (!ramps && (s->shown || !follows)))
		return BW_ROOM_UNKNOWN;
	if (out_of_order)
		return BW_ROOM_LOST;
	if (s->shown || (ramps && s->ramp_rounds < BW_ROOM_ROUNDS) || (follows && !s->last_rate))
		return BW_ROOM_UNKNOWN;
	return BW_ROOM_TAKEN;
}

/* Remembers what a connection has shown. */
BW_FN void bw_room_learn(struct bw_room *r, struct bw_fit_window *s, enum bw_room_shown news, __u64 now)
{
	s->shown = news;
	if (news == BW_ROOM_LOST)
		r->lost_at = now;
	else
		r->taken_at = now;
}

_Static_assert(sizeof(struct bw_room) == 16, "the Rust twin has 16 bytes");
_Static_assert(sizeof(struct bw_peer) == 20, "the key has no padding");

#endif
