/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Decides buffers, window and pacing rate of one connection: feeds the rules from its record (struct bw_flow) and keeps
 * their results within the connection's share of the memory.
 *
 * Problem: the same rules run in two places. Programs in the kernel run them at each callback; user space runs them
 * several times a second for connections for which the kernel makes no callbacks (src/user_space.rs). So every decision
 * is a function, in rules_send.h, rules_receive.h, upkeep.h or fast.h, of the record, the configuration and user space's
 * figures (struct bw_control, bw_order). These files neither read nor set a socket, and tests run them on the host.
 *
 * Properties kept: without user space no share counts. A share never takes the window below DRS's floor. Before anything
 * is acknowledged, a sender with a share holds at most the memory of its initial window.
 */
#ifndef BUFWISE_RULES_H
#define BUFWISE_RULES_H

#include "rules_receive.h"
#include "rules_send.h"

/* Starts the rules from a record that was just filled: earlier counts are the baseline, not news. */
BW_FN void bw_rules_begin(const volatile struct bw_config *c, struct bw_flow *f)
{
	f->abt.acked = f->bytes_acked;
	bw_sobas_init(&f->sobas, c->max_window);
	f->arrivals.total = f->bytes_received;
	f->arrivals.in_order = f->bytes_received;
	f->arrivals.segments = f->segs_in;
	f->losses.in_order = f->bytes_received;
	f->fit_window.found_out_of_order += f->out_of_order;
	f->out_of_order = 0;
	f->loss_events.retransmitted = f->retrans;
	if (f->bytes_acked > BW_FIT_BEGUN)
		f->fit.phase = BW_FIT_OPEN;
}

/* Whether user space has been silent for longer than config.stale_ns, so that its shares are out of date; now: us. */
BW_FN int bw_is_stale(const volatile struct bw_config *c, const volatile struct bw_control *all, __u64 now)
{
	/* The heartbeat may be later than `now`, which was read before: bw_less() gives 0 then. */
	return bw_less(now, all->heartbeat_ns / 1000) > c->stale_ns / 1000;
}

#endif
