//! The rules of `bpf/rules.h` and `bpf/upkeep.h`, called from user space: the same C that the programs run, compiled
//! for the host.

#![expect(unsafe_code, reason = "calls C")]

use crate::abi::{bw_config, bw_control, bw_flow, bw_order, bw_room};

/// "Leave the setting as it is", or "no bound".
pub(crate) const NONE: u64 = u64::MAX;

/// `struct bw_send_decision`: payloads; [`NONE`]: leave the buffer, no bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendDecision {
    pub(crate) payload: u64,
    pub(crate) share: u64,
}

/// `struct bw_step`: the change of one buffer; 0: none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Value of `SO_SNDBUF` or `SO_RCVBUF`.
    pub(crate) value: u32,
    /// Memory to request from user space.
    pub(crate) request: u32,
}

unsafe extern "C" {
    fn bufwise_rules_begin(config: *const bw_config, flow: *mut bw_flow);
    fn bufwise_settle(config: *const bw_config, flow: *mut bw_flow, locks: u32);
    fn bufwise_settle_clamp(config: *const bw_config, flow: *mut bw_flow, clamp: u32, ratio: u32);
    fn bufwise_decide_send(
        decision: *mut SendDecision,
        config: *const bw_config,
        all: *const bw_control,
        order: *const bw_order,
        flow: *mut bw_flow,
        stale: u32,
    );
    fn bufwise_share_binds(
        config: *const bw_config,
        all: *const bw_control,
        flow: *const bw_flow,
        share: u64,
    ) -> u32;
    fn bufwise_step_send(
        step: *mut Step,
        config: *const bw_config,
        flow: *mut bw_flow,
        payload: u64,
        stale: u32,
    );
    fn bufwise_observe_fit(config: *const bw_config, flow: *mut bw_flow, at: u64);
    fn bufwise_is_fit_timing(config: *const bw_config, flow: *const bw_flow) -> u32;
    fn bufwise_decide_pace(flow: *const bw_flow, share: u64) -> u32;
    fn bufwise_step_pace(flow: *const bw_flow, present: u64, rate: u32) -> u32;
    fn bufwise_decide_unsent(config: *const bw_config, flow: *const bw_flow) -> u32;
    fn bufwise_step_unsent(config: *const bw_config, flow: *const bw_flow, present: u32) -> u32;
    fn bufwise_decide_window(
        config: *const bw_config,
        all: *const bw_control,
        flow: *mut bw_flow,
        now: u64,
        stale: u32,
    ) -> u64;
    #[cfg(feature = "model")]
    fn bufwise_next_window(config: *const bw_config, flow: *const bw_flow, now: u64) -> u64;
    fn bufwise_note_rtt(flow: *mut bw_flow, now: u64);
    fn bufwise_room_doublings(room: *const bw_room, now: u64) -> u32;
    fn bufwise_room_news(flow: *const bw_flow) -> u32;
    fn bufwise_room_learn(room: *mut bw_room, flow: *mut bw_flow, news: u32, now: u64);
    fn bufwise_cap(cap: u32, cut: u32) -> u32;
    fn bufwise_may_size_rcvbuf(flow: *const bw_flow) -> u32;
    fn bufwise_memory_of_window(offered: u64, ratio: u32) -> u64;
    fn bufwise_decide_rcvbuf(
        config: *const bw_config,
        flow: *const bw_flow,
        share: u64,
        window: u64,
        in_use: u64,
        awaited: u64,
    ) -> u64;
    fn bufwise_is_idle(
        config: *const bw_config,
        flow: *mut bw_flow,
        moved: u64,
        active_at: u64,
        now: u64,
    ) -> u32;
    fn bufwise_give_back_send(config: *const bw_config, flow: *const bw_flow) -> u32;
    fn bufwise_give_back_receive(
        config: *const bw_config,
        flow: *const bw_flow,
        in_use: u64,
        unread: u32,
    ) -> u32;
}

/// Prepares a record that was just filled.
pub(crate) fn begin(config: &bw_config, flow: &mut bw_flow) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_rules_begin(config, flow) }
}

/// Recognises grants, and buffers that the application has set; `locks` as in `sk_userlocks`.
pub(crate) fn settle(config: &bw_config, flow: &mut bw_flow, locks: u32) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_settle(config, flow, locks) }
}

/// Recognises a window that the application or the route bounds; `clamp` is the socket's (bytes), `ratio` as in `scaling_ratio`,
/// 0: unknown.
pub(crate) fn settle_clamp(config: &bw_config, flow: &mut bw_flow, clamp: u32, ratio: u32) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_settle_clamp(config, flow, clamp, ratio) }
}

/// Decides the payload that the send buffer should hold, and the share; `stale`: user space has stopped its
/// heartbeat.
pub(crate) fn decide_send(
    config: &bw_config,
    all: &bw_control,
    order: Option<&bw_order>,
    flow: &mut bw_flow,
    stale: bool,
) -> SendDecision {
    let mut decision = SendDecision::default();
    let order = order.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer, and takes NULL for no order.
    unsafe { bufwise_decide_send(&raw mut decision, config, all, order, flow, stale.into()) }
    decision
}

/// Returns whether the share (payload) limits the connection.
pub(crate) fn share_binds(config: &bw_config, all: &bw_control, flow: &bw_flow, share: u64) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_share_binds(config, all, flow, share) != 0 }
}

/// Returns the change that makes the send buffer hold that payload; `stale`: without a request beyond the cap.
pub(crate) fn step_send(config: &bw_config, flow: &mut bw_flow, payload: u64, stale: bool) -> Step {
    // The rule fills both fields.
    let mut step = Step { value: u32::MAX, request: u32::MAX };
    // SAFETY: the structures are those of flow.h and upkeep.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_step_send(&raw mut step, config, flow, payload, stale.into()) }
    step
}

/// Passes the data delivered by `at` (microseconds) to fit at the sender.
pub(crate) fn observe_fit(config: &bw_config, flow: &mut bw_flow, at: u64) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_observe_fit(config, flow, at) }
}

/// Returns whether fit is still timing trains, sent or received: samples should then be close together.
pub(crate) fn is_fit_timing(config: &bw_config, flow: &bw_flow) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_is_fit_timing(config, flow) != 0 }
}

/// Returns the pacing rate that keeps a connection to its share (payload), bytes per second; 0: none.
pub(crate) fn decide_pace(flow: &bw_flow, share: u64) -> u32 {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_decide_pace(flow, share) }
}

/// Returns whether to set that pacing rate, given the socket's `present` one; 0 and [`NONE`]: no bound.
pub(crate) fn step_pace(flow: &bw_flow, present: u64, rate: u32) -> bool {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_step_pace(flow, present, rate) != 0 }
}

/// Returns the bound of bytes written and not sent; 0: no bound.
pub(crate) fn decide_unsent(config: &bw_config, flow: &bw_flow) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_decide_unsent(config, flow) }
}

/// Returns the value to which this bound is to be set, given the socket's `present` one.
pub(crate) fn step_unsent(config: &bw_config, flow: &bw_flow, present: u32) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_step_unsent(config, flow, present) }
}

/// Returns the window (payload) of the rule, within the share unless `stale`; `now` in microseconds.
pub(crate) fn decide_window(
    config: &bw_config,
    all: &bw_control,
    flow: &mut bw_flow,
    now: u64,
    stale: bool,
) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_decide_window(config, all, flow, now, stale.into()) }
}

/// Returns the time at which the receive rule has something to measure, microseconds.
#[cfg(feature = "model")]
pub(crate) fn next_window(config: &bw_config, flow: &bw_flow, now: u64) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C only reads them.
    unsafe { bufwise_next_window(config, flow, now) }
}

/// Notes that a round-trip time of a sender was measured at `now` (microseconds). After a rest it begins anew.
pub(crate) fn note_rtt(flow: &mut bw_flow, now: u64) {
    // SAFETY: the structure is that of flow.h and outlives the call; C keeps no pointer.
    unsafe { bufwise_note_rtt(flow, now) }
}

/// Returns how often the steps of a new connection's ramp are doubled; `now` in microseconds.
pub(crate) fn room_doublings(room: &bw_room, now: u64) -> u32 {
    // SAFETY: the structure is that of peers.h and outlives the call.
    unsafe { bufwise_room_doublings(room, now) }
}

/// Remembers what the connection has shown of its peer's path since the last call. `remembered` is called only if there is
/// news.
pub(crate) fn learn_room<'a>(flow: &mut bw_flow, now: u64, remembered: impl FnOnce() -> &'a mut bw_room) {
    // SAFETY: the structure is that of flow.h and outlives the call.
    let news = unsafe { bufwise_room_news(flow) };
    if news != 0 {
        // SAFETY: the structures are those of flow.h and peers.h and outlive the call; C keeps no pointer.
        unsafe { bufwise_room_learn(remembered(), flow, news, now) }
    }
}

/// Returns the largest size that can be set (payload): the cap at the start, or the size to which the kernel has cut a larger one since
/// (`cut`, memory; 0: none was cut).
pub(crate) fn cap(cap: u32, cut: u32) -> u32 {
    // SAFETY: numbers only.
    unsafe { bufwise_cap(cap, cut) }
}

/// Returns whether bufwise may size the receive buffer.
pub(crate) fn may_size_receive_buffer(flow: &bw_flow) -> bool {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_may_size_rcvbuf(flow) != 0 }
}

/// Returns the memory for a window that the peer may fill; `ratio` as in `scaling_ratio`, 0: unknown.
pub(crate) fn memory_of_window(offered: u64, ratio: u32) -> u64 {
    // SAFETY: numbers only.
    unsafe { bufwise_memory_of_window(offered, ratio) }
}

/// Returns the memory that the receive buffer should have for a window (payload); 0: leave the buffer unchanged. `share`: the
/// largest window of any connection (payload). `in_use`: memory for unread data and the offered window. `awaited`: memory of the
/// unread data at which the reader still sleeps (`SO_RCVLOWAT`).
pub(crate) fn decide_receive_buffer(
    config: &bw_config,
    flow: &bw_flow,
    share: u64,
    window: u64,
    in_use: u64,
    awaited: u64,
) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_decide_rcvbuf(config, flow, share, window, in_use, awaited) }
}

/// Returns whether nothing has moved for so long that the buffers are given back; `moved`: bytes so far.
pub(crate) fn is_idle(config: &bw_config, flow: &mut bw_flow, moved: u64, now: u64) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_is_idle(config, flow, moved, now, now) != 0 }
}

/// Returns the payload to which a silent connection's send buffer is reduced; 0: leave it.
pub(crate) fn give_back_send(config: &bw_config, flow: &bw_flow) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_give_back_send(config, flow) }
}

/// Returns the `SO_RCVBUF` to which a silent connection is reduced, with `in_use` as memory of the offered window; 0:
/// leave it.
pub(crate) fn give_back_receive(config: &bw_config, flow: &bw_flow, in_use: u64, unread: bool) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_give_back_receive(config, flow, in_use, unread.into()) }
}
