//! What the log says of the flows: counted from look to look, told with the reason.

use bufwise_bpf::{FlowState, Shares};
use bufwise_units::Bytes;

use crate::log::{Kind, Log};
use crate::tuner::{self, plan::Plan};

/// Counts up to the last look.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Changes made to connections that are over.
    of_closed: Changes,
    told: Changes,
    pressure: bool,
    /// More connections write than the budget can hold.
    short: bool,
    bounded: bool,
    would: usize,
}

/// How often buffers and windows were set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    send: u64,
    windows: u64,
}

impl Changes {
    fn and(self, flow: &FlowState) -> Self {
        Self {
            send: self.send + u64::from(flow.send_changes),
            windows: self.windows + u64::from(flow.window_changes),
        }
    }
}

impl Events {
    /// One look; those that are over show in it for the last time.
    pub(super) fn look(
        &mut self,
        log: &mut Log,
        plan: &Plan,
        flows: &[FlowState],
        held: Bytes,
        shares: Shares,
    ) {
        if plan.observe_only {
            self.dry(log, plan, flows);
        } else {
            self.sizes(log, plan, flows);
        }
        self.pressure(log, plan, flows, held, shares);
    }

    fn sizes(&mut self, log: &mut Log, plan: &Plan, flows: &[FlowState]) {
        let closed = flows.iter().filter(|flow| flow.closed);
        self.of_closed = closed.fold(self.of_closed, Changes::and);
        let open = flows.iter().filter(|flow| !flow.closed);
        let now = open.fold(self.of_closed, Changes::and);
        // An engine that was loaded again counts from nought.
        let sends = now.send.saturating_sub(self.told.send);
        let windows = now.windows.saturating_sub(self.told.windows);
        if sends > 0 {
            let policy = plan.choice.send;
            log.info(Kind::Send, format_args!("send buffers: {sends} changes by policy {policy}"));
        }
        if windows > 0 {
            let policy = plan.choice.receive;
            log.info(Kind::Receive, format_args!("receive windows: {windows} changes by policy {policy}"));
        }
        self.told = now;
    }

    /// A dry run tells how many connections it would have touched.
    fn dry(&mut self, log: &mut Log, plan: &Plan, flows: &[FlowState]) {
        let decided = |flow: &&FlowState| !flow.closed && flow.decided_send.or(flow.decided_window).is_some();
        let would = flows.iter().filter(decided);
        let largest = would.clone().filter_map(|flow| flow.decided_send.max(flow.decided_window)).max();
        let would = would.count();
        if would > 0 && would != self.would {
            let largest = largest.unwrap_or_default().readable();
            let policy = plan.choice;
            log.info(
                Kind::Send,
                format_args!("dry run: {would} connections would be sized, up to {largest}: policy {policy}"),
            );
        }
        self.would = would;
    }

    fn pressure(&mut self, log: &mut Log, plan: &Plan, flows: &[FlowState], held: Bytes, shares: Shares) {
        let has_data = |flow: &&FlowState| !flow.closed && flow.sample.send_queued > Bytes::ZERO;
        let shortage = tuner::shortage(flows.iter().filter(has_data), plan.budget);
        if !std::mem::replace(&mut self.short, shortage.is_some())
            && let Some(shortage) = shortage
        {
            log.warn(Kind::Shortage, shortage);
        }
        let (now, budget) = (held.readable(), plan.budget.readable());
        match (std::mem::replace(&mut self.pressure, shares.pressure), shares.pressure) {
            (false, true) => log.warn(
                Kind::Pressure,
                format_args!("memory pressure begins: send queues hold {now} of {budget}; buffers shrink"),
            ),
            (true, false) => log.info(
                Kind::Pressure,
                format_args!("memory pressure ends: send queues hold {now} of {budget}"),
            ),
            _ => {}
        }
        let bounded = shares.level.is_some() || shares.window.is_some();
        if !std::mem::replace(&mut self.bounded, bounded) && bounded {
            let bound = |level: Option<Bytes>| level.map_or("unbounded".to_owned(), Bytes::readable);
            log.info(
                Kind::Bounded,
                format_args!(
                    "the budget bounds connections: send buffers {}, receive windows {}",
                    bound(shares.level),
                    bound(shares.window)
                ),
            );
        }
    }
}
