/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Sizes the buffers of the connections of one cgroup, from inside the kernel's TCP.
 *
 * One sock_ops program handles these callbacks; most calls end in the fast path (fast.h):
 * - ESTABLISHED makes the connection's record (struct bw_flow in flow.h), notes who owns the buffers, and switches the
 *   callbacks below on. Where most connections are short, one of these callbacks makes the record later (late.h).
 * - RTT, once per round trip of a sender: the send rule, applied as SO_SNDBUF (sender.h).
 * - HDR_OPT_LEN, whenever a segment is built (no option is reserved): the receive rule, several times per round trip,
 *   applied as TCP_WINDOW_CLAMP (receiver.h).
 * - PARSE_HDR_OPT, for each segment that arrives outside TCP's fast path. The policy fit uses it at a receiver while
 *   segments wait behind a hole (receiver.h), and together with HDR_OPT_LEN at a sender while it is starting (sender.h).
 * - STATE, when the TCP state changes: takes the last sample.
 * An iterator handles connections that are older than the program, or silent (sweep.h). User space reads the records,
 * and writes the shares of the memory (struct bw_control, bw_order).
 *
 * Programs on a cgroup that is nearer to a connection take precedence (nearer.h). With groups, each program of a daemon
 * has the connections of its group (group_of.h).
 *
 * Each callback samples the socket into the connection's record (socket.h), calls a rule (rules.h, upkeep.h, fast.h, which
 * are plain C and run on the host as well), and sets the socket. Sizes beyond wmem_max and rmem_max are requested of user
 * space through a ring buffer. Once user space has been silent for config.stale_ns, the shares no longer count, and the
 * program deletes the records of closed connections.
 */
#include "late.h"
#include "receiver.h"
#include "sender.h"
#include "sweep.h"

static void on_established(struct bpf_sock_ops *ctx, bool initiator)
{
	struct tcp_sock *tp = tcp_of(ctx);
	struct bw_flow *f;
	__u64 cookie, now;

	if (!tp || is_new_of_kernel(tp, initiator) || !is_own(tp) || is_taken(ctx))
		return;
	if (is_late() && !is_record_due(tp)) {
		take(ctx);
		count_unrecorded(1);
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | callbacks_before_record());
		return;
	}
	cookie = bpf_get_socket_cookie(ctx);
	now = bpf_ktime_get_ns() / 1000;
	f = remember(cookie, tp, now);
	if (!f)
		return;
	take(ctx);
	f->initiator = initiator;
	f->state = BPF_TCP_ESTABLISHED;
	ask(ctx, f, callbacks_at_start());
	if (config.small_document)
		welcome_document(ctx, f);
	/* The kernel's initial buffer, 87 KB by default, may exceed the share. */
	if (config.send_rule == BW_SEND_FIXED || config.send_rule == BW_SEND_EQ || control.send_level != BW_NO_LIMIT)
		tune_send(ctx, f, tp, cookie, now);
}

/* Switches off the callbacks for each segment that fit no longer needs, unless another program has asked for them. */
static void stop_watching(struct bpf_sock_ops *ctx, struct bw_flow *f)
{
	__u32 flags = ctx->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG;

	if (!f->fit.asked)
		return;
	f->fit.asked = 0;
	/* Another program that reads TCP options may also write them, and needs this callback. */
	if (config.receive_rule == BW_RECEIVE_KERNEL && !(flags & BW_READS_OPTIONS))
		flags &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	bpf_sock_ops_cb_flags_set(ctx, flags);
}

/*
 * Called for each segment that arrives, before TCP processes it, while fit asks for this callback: at a sender in its start,
 * at a receiver while segments wait behind a hole.
 */
static void on_arrival(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = tcp_of(ctx);
	struct bw_flow *f;
	__u64 cookie;
	bool more = false;

	if (!tp)
		return;
	cookie = cookie_of(tp);
	f = bpf_map_lookup_elem(&flows, &cookie);
	/* Without a record, another program has asked for this callback, and will switch it off itself. */
	if (!f)
		return;
	if (config.send_rule == BW_SEND_FIT)
		more = sample_delivery(ctx, f, tp, cookie);
	if (config.receive_rule == BW_RECEIVE_FIT)
		more |= on_segment_behind(ctx, f, tp);
	if (!more)
		stop_watching(ctx, f);
}

/*
 * Called for each segment that is built while fit is starting at the sender. TCP's fast path (header prediction) makes no
 * callback for an acknowledgement that leaves the peer's window unchanged. Such an acknowledgement allows new segments,
 * which are sent at once, and the callback of the first one takes the sample.
 */
static void on_departure(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = tcp_of(ctx);
	struct bw_flow *f;
	__u64 cookie;

	if (!tp || !(ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG))
		return;
	cookie = cookie_of(tp);
	f = bpf_map_lookup_elem(&flows, &cookie);
	if (f && !sample_delivery(ctx, f, tp, cookie) && !f->arrivals.behind)
		stop_watching(ctx, f);
}

/* Puts a socket whose connection closes back as it was, but for the locks of its buffers, which no program can remove. */
static void leave_closed(struct bpf_sock_ops *ctx, struct bw_flow *f, struct tcp_sock *tp)
{
	if (config.send_rule == BW_SEND_KERNEL && config.receive_rule == BW_RECEIVE_KERNEL)
		return;
	note_locks(f, tp);
	if (config.send_rule != BW_SEND_KERNEL)
		lift_bounds(ctx, f, tp);
	if (config.send_rule == BW_SEND_FIT || config.receive_rule == BW_RECEIVE_FIT)
		stop_watching(ctx, f);
}

static void on_state(struct bpf_sock_ops *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx), now = bpf_ktime_get_ns() / 1000;
	struct bw_flow *f = bpf_map_lookup_elem(&flows, &cookie);
	struct tcp_sock *tp = tcp_of(ctx);
	__u32 state = ctx->args[1];

	if (is_over(f))
		return;
	if (tp)
		sample(f, tp, now);
	if (tp && state == BPF_TCP_CLOSE)
		leave_closed(ctx, f, tp);
	/* Written last: once the record is closed, user space reads it and forgets it. */
	barrier();
	f->state = state;
	if (state != BPF_TCP_CLOSE)
		return;
	count_turnover();
	if (is_stale(now)) {
		bpf_map_delete_elem(&flows, &cookie);
		bpf_map_delete_elem(&orders, &cookie);
	}
}

SEC("sockops")
int bufwise_flow(struct bpf_sock_ops *ctx)
{
	if (control.suspended)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		note_program(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		on_established(ctx, true);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_established(ctx, false);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		if (!config.only_called)
			on_rtt(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		/* With this argument no segment is built: tcp_current_mss() asks how much space the options would take. */
		if (config.only_called || ctx->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS)
			break;
		if (config.send_rule == BW_SEND_FIT)
			on_departure(ctx);
		if (config.receive_rule != BW_RECEIVE_KERNEL)
			on_segment(ctx);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		on_arrival(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		on_state(ctx);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
