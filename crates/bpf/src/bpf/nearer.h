/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Gives each connection to one bufwise: the one on the nearest cgroup.
 *
 * Problem: a daemon watches the whole host, and `bufwise run` a cgroup inside it. The programs of both see the
 * connections of that cgroup, and each would take the other's setting for the application's. The program whose cgroup
 * is nearer to the connection takes precedence, because its request is the more specific; the others ignore the
 * connection.
 * - The kernel runs the programs of a socket's own cgroup first, then those of the cgroups above, up to the root
 *   (BPF_F_ALLOW_MULTI, linux/bpf.h), all with the same context. So the program that takes a new connection writes
 *   BW_TAKEN to the context's reply, which ESTABLISHED does not use otherwise, and the programs after it read the mark
 *   there. In other callbacks the reply shares its memory with arguments that programs above may need, so it is not
 *   written.
 * - A program that reads the mark also marks the connection in its own storage. Its sweeps skip marked connections.
 * - Connections older than a program have no mark. User space lists the cgroups of other programs after its own are
 *   attached and before their first sweep (Engine::exclude_other_engines), so that no connection is missed. On the way
 *   up from the socket, the first listed cgroup decides (is_watched() in record.h).
 *
 * Properties kept: of programs on different cgroups at most one takes a connection, and keeps it: the next start clears
 * what a killed owner has left; a running daemon does not take it over. A program that only observes does not take it,
 * and neither does one that has no room for the record when the connection is established. Where records are made late
 * (late.h), a connection is taken before it is known whether there will be room.
 */
#ifndef BUFWISE_NEARER_H
#define BUFWISE_NEARER_H

#include "maps.h"

/* The mark in the reply; an arbitrary number. */
#define BW_TAKEN 0xb0f5715e

/*
 * Whether a nearer program has taken a new connection; if so, marks it in this program's storage. Otherwise, an earlier mark
 * is removed: a socket may be connected again (connect() to AF_UNSPEC), and callbacks that another program has asked for come
 * for its SYN, before there is a record.
 */
static bool is_taken(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	bool taken = ctx->reply == BW_TAKEN;
	struct bw_fast *fast = NULL;

	if (sk)
		fast = bpf_sk_storage_get(&fast_path, sk, NULL, taken ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (!fast)
		return taken;
	/* The notes of a closed connection are for the record of the next one (go_on_after_close()). */
	if (taken || fast->next_window != BW_CLOSED)
		fast->next_window = taken ? BW_NEVER : 0;
	/* A clamp that differs from an earlier one would make a sample due, whatever the mark says. */
	fast->clamp = 0;
	return taken;
}

/* Takes a new connection: marks it for the programs that run after this one. */
static void take(struct bpf_sock_ops *ctx)
{
	if (!config.observe_only)
		ctx->reply = BW_TAKEN;
}

/* Whether is_taken() has marked the connection when it was new. */
static bool was_taken(struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);

	return fast && fast->next_window == BW_NEVER;
}

/* Makes the next callback of an adopted connection take a sample. */
static void wake(struct tcp_sock *tp)
{
	struct bw_fast *fast = bpf_sk_storage_get(&fast_path, tp, NULL, 0);

	if (fast)
		fast->next_window = 0;
}

#endif
