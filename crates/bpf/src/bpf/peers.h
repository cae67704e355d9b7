/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * fit at the receiver: remembers by peer how large the steps are for which a path's queue has room.
 *
 * Problem: a receiver that knows nothing of the path's queue opens its window by small steps (fit_ramp.h), which delays a
 * document of one or two BDPs. A connection whose steps the queue has taken shows that later connections may use larger ones:
 * browsers and package managers open many connections to the same server.
 *
 * Rule: a ramp of some round trips without a segment out of order shows room for its steps. For BW_ROOM_FORGOTTEN after it, the
 * ramps of connections to that peer have steps twice as large. Once BW_ROOM_RAMPS of these have shown room, steps are four times
 * as large as without knowledge, which is what slow start needs. A segment out of order in a ramp halves the steps of later
 * ramps, and they do not grow for BW_ROOM_CAREFUL.
 *
 * Properties kept: the sender's slow start bounds what the steps allow. A peer changes the entry of its own address alone. A ramp
 * whose window a share has made smaller shows nothing, because the queue has not met its steps.
 */
#ifndef BUFWISE_PEERS_H
#define BUFWISE_PEERS_H

#include "fit_window.h"

/* Round trips of a ramp that show whether the queue takes its steps. */
#define BW_ROOM_ROUNDS 3
/* Room is forgotten after ten minutes (us), because routes and other traffic change; a loss after an hour. */
#define BW_ROOM_FORGOTTEN 600000000ULL
#define BW_ROOM_CAREFUL 3600000000ULL
/* Steps are doubled at most this many times. */
#define BW_ROOM_MOST 2
/*
 * Ramps with doubled steps that have to show room before steps are doubled again. If the queue holds a quarter of the BDP, the
 * first ramp with still larger steps costs its connection up to a sixth of its rate for some seconds. So few connections try.
 */
#define BW_ROOM_RAMPS 8

/* Room on a peer's path. */
struct bw_room {
	/* When a ramp last showed room, and when a ramp last lost segments (us); 0: never. */
	__u64 taken_at;
	__u64 lost_at;
	/* How often the steps of new connections are doubled. */
	__u32 doublings;
	/* Number of ramps with such steps that have shown room since. */
	__u32 ramps;
};

/* A peer: its address as in bw_flow.remote_ip, and the network namespace of this end. */
struct bw_peer {
	__u32 ip[4];
	__u32 netns;
};

/* Returns how often the steps of a new connection's ramp are doubled. */
BW_FN __u32 bw_room_doublings(const struct bw_room *r, __u64 now)
{
	return r->taken_at && bw_less(now, r->taken_at) <= BW_ROOM_FORGOTTEN ? r->doublings : 0;
}

/*
 * Returns what a connection has newly shown, room or a loss, for bw_room_learn(); BW_ROOM_UNKNOWN (0): nothing new. A ramp that
 * ends early is judged when the first rate after it is measured, because its last flight has arrived by then. Until then a loss
 * counts even if the ramp has shown room before.
 */
BW_FN enum bw_room_shown bw_room_news(const struct bw_fit_window *s, __u32 out_of_order)
{
	int ramps = s->phase == BW_FIT_RAMP, follows = s->phase == BW_FIT_FOLLOW, ends = follows && !s->last_rate;

	if (!s->ramp_rounds || s->cut || s->shown == BW_ROOM_LOST || (!ramps && !ends && (s->shown || !follows)))
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
