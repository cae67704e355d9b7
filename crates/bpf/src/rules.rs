//! The rules of `bpf/rules.h` and `bpf/upkeep.h` as user space calls them: the same C that the programs run, compiled for
//! the host.

#![expect(unsafe_code, reason = "calls C")]

use crate::abi::{bw_config, bw_control, bw_flow, bw_order};

/// "Leave the setting as it is", "no bound".
pub(crate) const NONE: u64 = u64::MAX;

/// `struct bw_send_decision`: payloads; [`NONE`]: leave the buffer, no bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendDecision {
    pub(crate) payload: u64,
    pub(crate) share: u64,
}

/// `struct bw_step`: what to do about one buffer; 0: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Value of `SO_SNDBUF` or `SO_RCVBUF`.
    pub(crate) value: u32,
    /// Memory to request of user space.
    pub(crate) request: u32,
}

unsafe extern "C" {
    fn bufwise_rules_begin(config: *const bw_config, flow: *mut bw_flow);
    fn bufwise_settle(config: *const bw_config, flow: *mut bw_flow, locks: u32);
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
    fn bufwise_memory_of_window(offered: u64, ratio: u32) -> u64;
    fn bufwise_decide_rcvbuf(
        config: *const bw_config,
        flow: *const bw_flow,
        share: u64,
        window: u64,
        in_use: u64,
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

/// Recognizes grants and buffers that the application has set; `locks` as of `sk_userlocks`.
pub(crate) fn settle(config: &bw_config, flow: &mut bw_flow, locks: u32) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_settle(config, flow, locks) }
}

/// Decides the payload that the send buffer should hold, and the share; `stale`: user space is gone.
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

/// Whether the share (payload) binds.
pub(crate) fn share_binds(config: &bw_config, all: &bw_control, flow: &bw_flow, share: u64) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_share_binds(config, all, flow, share) != 0 }
}

/// How the send buffer gets to hold that payload; `stale`: without requests, whatever the cap.
pub(crate) fn step_send(config: &bw_config, flow: &mut bw_flow, payload: u64, stale: bool) -> Step {
    // The rule fills both fields.
    let mut step = Step { value: u32::MAX, request: u32::MAX };
    // SAFETY: the structures are those of flow.h and upkeep.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_step_send(&raw mut step, config, flow, payload, stale.into()) }
    step
}

/// Shows fit at the sender what was delivered by `at` (microseconds).
pub(crate) fn observe_fit(config: &bw_config, flow: &mut bw_flow, at: u64) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_observe_fit(config, flow, at) }
}

/// Whether fit still times trains, of those that are sent or that arrive: samples should be close then.
pub(crate) fn is_fit_timing(config: &bw_config, flow: &bw_flow) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_is_fit_timing(config, flow) != 0 }
}

/// The pacing rate that keeps a connection to its share (payload), bytes per second; 0: none.
pub(crate) fn decide_pace(flow: &bw_flow, share: u64) -> u32 {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_decide_pace(flow, share) }
}

/// Whether to set that pacing rate, where the socket's is `present`; 0 and [`NONE`]: no bound.
pub(crate) fn step_pace(flow: &bw_flow, present: u64, rate: u32) -> bool {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_step_pace(flow, present, rate) != 0 }
}

/// How much may be written and not sent, bytes; 0: no bound.
pub(crate) fn decide_unsent(config: &bw_config, flow: &bw_flow) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_decide_unsent(config, flow) }
}

/// The value that this bound is to be set to, where the socket's is `present`.
pub(crate) fn step_unsent(config: &bw_config, flow: &bw_flow, present: u32) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_step_unsent(config, flow, present) }
}

/// The window (payload) that the rule wants, within the share unless `stale`; `now` in microseconds.
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

/// When the receive rule has something to measure (us).
#[cfg(feature = "model")]
pub(crate) fn next_window(config: &bw_config, flow: &bw_flow, now: u64) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C only reads them.
    unsafe { bufwise_next_window(config, flow, now) }
}

/// Memory for a window that the peer may fill; `ratio` as of `scaling_ratio`, 0: not known.
pub(crate) fn memory_of_window(offered: u64, ratio: u32) -> u64 {
    // SAFETY: numbers only.
    unsafe { bufwise_memory_of_window(offered, ratio) }
}

/// Memory of the receive buffer for a window, where no window may exceed `share` and `in_use` is taken already; 0: leave it.
pub(crate) fn decide_receive_buffer(
    config: &bw_config,
    flow: &bw_flow,
    share: u64,
    window: u64,
    in_use: u64,
) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_decide_rcvbuf(config, flow, share, window, in_use) }
}

/// Whether nothing has moved for so long that the buffers are given back; `moved`: bytes so far.
pub(crate) fn is_idle(config: &bw_config, flow: &mut bw_flow, moved: u64, now: u64) -> bool {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_is_idle(config, flow, moved, now, now) != 0 }
}

/// The payload that a silent connection's send buffer is left with; 0: leave it.
pub(crate) fn give_back_send(config: &bw_config, flow: &bw_flow) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_give_back_send(config, flow) }
}

/// The `SO_RCVBUF` that a silent connection is left with, where `in_use` is memory for the window on offer; 0: leave it.
pub(crate) fn give_back_receive(config: &bw_config, flow: &bw_flow, in_use: u64, unread: bool) -> u32 {
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_give_back_receive(config, flow, in_use, unread.into()) }
}
