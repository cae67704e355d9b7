/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * One connection, one bufwise: the nearest.
 *
 * Problem: a daemon watches the whole host, and `bufwise run` a cgroup inside it. The programs of both see the
 * connections of that group, and each would take the other's setting for the application's. The one whose cgroup is
 * nearer to the connection was asked for more narrowly: it wins, and the others act as if they had not seen it.
 * - The kernel runs the programs of a socket's own cgroup first, then those of the cgroups above, up to the root
 *   (BPF_F_ALLOW_MULTI, linux/bpf.h), all with the same context. So the program that takes a new connection says so in
 *   the context's reply, which ESTABLISHED does not use otherwise; programs that run after it read it there. At other
 *   callbacks the reply shares its memory with arguments that programs above may need: there nothing is said.
 * - A program that has read it marks the connection in storage of its own. Its sweeps leave marked connections alone.
 * - Connections from before a program was attached bear no mark. User space names the cgroups of other programs, once
 *   its own are attached and before they sweep (Engine::yield_to_others): no connection falls in between. On the way
 *   up from the socket the first cgroup that is known decides (is_watched() in sweep.h).
 *
 * Properties kept: of programs on different cgroups at most one takes a connection. It stays with that one: what a
 * killed owner leaves is cleared by the next start, not taken over by a daemon that runs. One that only observes, or
 * that has no room for the connection, claims nothing.
 */
#ifndef BUFWISE_NEARER_H
#define BUFWISE_NEARER_H

#include "maps.h"

/* "Taken", in the reply; an arbitrary number that nobody else means. */
#define BW_TAKEN 0xb0f5715e

/* Whether a program nearer to a new connection has taken it; if so, it is marked. */
static bool is_taken(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct bw_fast *fast;

	if (ctx->reply != BW_TAKEN)
		return false;
	fast = sk ? fast_of(sk) : NULL;
	if (fast)
		fast->next_window = BW_NEVER;
	return true;
}

/* Tells the programs that run after this one. */
static void take(struct bpf_sock_ops *ctx)
{
	if (!config.observe_only)
		ctx->reply = BW_TAKEN;
}

/* Whether is_taken() has found so when the connection was new. */
static bool was_taken(struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);

	return fast && fast->next_window == BW_NEVER;
}

/* An adopted connection is looked at again at its next callback. */
static void wake(struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);

	if (fast)
		fast->next_window = 0;
}

#endif
