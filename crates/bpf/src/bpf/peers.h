/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: remembers by peer how large the steps are for which a path's queue has room.
 *
 * Problem: a receiver that knows nothing of the queue opens its window by small steps (fit_ramp.h), and a document of one or
 * two products waits for them. The steps of a connection show that the queue takes them, and so serve those that follow: browsers
 * and package managers open many to the same server.
 *
 * Rule: a ramp of some round trips without a segment out of order shows room for its steps. For BW_ROOM_FORGOTTEN the ramps of
 * connections to that peer have steps twice as long. After BW_ROOM_RAMPS of these have shown room, steps are four times as long
 * as without knowledge, which is what slow start needs. A segment out of order in a ramp halves its steps, and they do not grow
 * for BW_ROOM_CAREFUL.
 *
 * Properties kept: the sender's slow start bounds what the steps allow. A peer changes the entry of its own address alone.
 */
#ifndef BUFWISE_PEERS_H
#define BUFWISE_PEERS_H

#include "fit_window.h"

/* Round trips of a ramp that show whether the queue takes its steps. */
#define BW_ROOM_ROUNDS 3
/* Room is forgotten after ten minutes (us), for routes and other traffic change; a loss after an hour. */
#define BW_ROOM_FORGOTTEN 600000000ULL
#define BW_ROOM_CAREFUL 3600000000ULL
/* Steps are doubled so often at most. */
#define BW_ROOM_MOST 2
/*
 * Ramps of long steps that show room before steps are doubled again. Before a queue of a quarter of the product, the first ramp
 * of still longer steps costs its connection up to a sixth of its rate for some seconds: one of many is to pay for all.
 */
#define BW_ROOM_RAMPS 8

/* Room on a peer's path. */
struct bw_room {
	/* When a ramp last showed it, and when a ramp last lost segments (us); 0: never. */
	__u64 taken_at;
	__u64 lost_at;
	/* How often the steps of new connections are doubled. */
	__u32 doublings;
	/* Ramps of such steps that have shown room since. */
	__u32 ramps;
};

/* A peer: its address as in bw_flow.remote_ip, and the network namespace of this end. */
struct bw_peer {
	__u32 ip[4];
	__u32 netns;
};

/* How often the steps of a new connection's ramp are doubled. */
BW_FN __u32 bw_room_doublings(const struct bw_room *r, __u64 now)
{
	return r->taken_at && bw_less(now, r->taken_at) <= BW_ROOM_FORGOTTEN ? r->doublings : 0;
}

/*
 * Whether a connection has shown room, or a loss, that bw_room_learn() has not taken yet; BW_ROOM_UNKNOWN (0): neither. A ramp
 * that ends early is judged by the first rate that is measured after it, by when its last flight has arrived: until then a loss
 * counts, whatever was shown before.
 */
BW_FN enum bw_room_shown bw_room_news(const struct bw_fit_window *s, __u32 out_of_order)
{
	int ramps = s->phase == BW_FIT_RAMP, follows = s->phase == BW_FIT_FOLLOW, ends = follows && !s->last_rate;

	if (!s->ramp_rounds || s->shown == BW_ROOM_LOST || (!ramps && !ends && (s->shown || !follows)))
		return BW_ROOM_UNKNOWN;
	if (out_of_order)
		return BW_ROOM_LOST;
	if (s->shown || (ramps && s->ramp_rounds < BW_ROOM_ROUNDS) || ends)
		return BW_ROOM_UNKNOWN;
	return BW_ROOM_TAKEN;
}

/* Remembers what a connection has shown. */
BW_FN void bw_room_learn(struct bw_room *r, struct bw_fit_window *s, enum bw_room_shown news, __u64 now)
{
	int is_careful = r->lost_at && bw_less(now, r->lost_at) <= BW_ROOM_CAREFUL;

	s->shown = news;
	if (news == BW_ROOM_LOST) {
		r->lost_at = now;
		r->doublings = bw_min(r->doublings, bw_less(s->doublings, 1));
		r->ramps = 0;
		return;
	}
	if (!bw_room_doublings(r, now))
		r->doublings = r->ramps = 0;
	r->taken_at = now;
	if (is_careful || s->doublings < r->doublings || r->doublings >= BW_ROOM_MOST)
		return;
	r->ramps++;
	if (!r->doublings || r->ramps >= BW_ROOM_RAMPS) {
		r->doublings++;
		r->ramps = 0;
	}
}

_Static_assert(sizeof(struct bw_room) == 24, "the Rust twin has 24 bytes");
_Static_assert(sizeof(struct bw_peer) == 20, "the key has no padding");

#endif
