//! The rules of `bpf/rules.h` as user space calls them: the same C that the programs run, compiled for the host.

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

unsafe extern "C" {
    fn bufwise_decide_send(
        decision: *mut SendDecision,
        config: *const bw_config,
        all: *const bw_control,
        order: *const bw_order,
        flow: *mut bw_flow,
        app_limited: u32,
    );
    fn bufwise_decide_pace(flow: *const bw_flow, share: u64) -> u32;
    fn bufwise_decide_window(
        config: *const bw_config,
        all: *const bw_control,
        flow: *mut bw_flow,
        now: u64,
    ) -> u64;
    fn bufwise_decide_rcvbuf(config: *const bw_config, flow: *const bw_flow, window: u64, in_use: u64)
    -> u64;
    fn bufwise_rules_begin(config: *const bw_config, flow: *mut bw_flow);
}

/// Prepares a record that was just filled.
pub(crate) fn begin(config: &bw_config, flow: &mut bw_flow) {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_rules_begin(config, flow) }
}

/// What the send buffer should hold, and the share.
pub(crate) fn decide_send(
    config: &bw_config,
    all: &bw_control,
    order: Option<&bw_order>,
    flow: &mut bw_flow,
    app_limited: bool,
) -> SendDecision {
    let mut decision = SendDecision::default();
    let order = order.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer, and takes NULL for no order.
    unsafe { bufwise_decide_send(&raw mut decision, config, all, order, flow, app_limited.into()) }
    decision
}

/// The pacing rate that keeps a connection to its share (payload), bytes per second; 0: none.
pub(crate) fn decide_pace(flow: &bw_flow, share: u64) -> u32 {
    // SAFETY: the structure is that of flow.h and outlives the call.
    unsafe { bufwise_decide_pace(flow, share) }
}

/// The window (payload) that the rule wants, within the share; `now` in microseconds.
pub(crate) fn decide_window(config: &bw_config, all: &bw_control, flow: &mut bw_flow, now: u64) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_decide_window(config, all, flow, now) }
}

/// Memory of the receive buffer for a window, where `in_use` is taken already; 0: leave it.
pub(crate) fn decide_receive_buffer(config: &bw_config, flow: &bw_flow, window: u64, in_use: u64) -> u64 {
    // SAFETY: the structures are those of flow.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_decide_rcvbuf(config, flow, window, in_use) }
}
