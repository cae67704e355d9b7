//! Log lines on the connections: changes are counted from sample to sample and reported with the reason.

use bufwise_bpf::{FlowState, Shares};
use bufwise_units::{Bytes, counted};

use crate::budget::{Pressure, PressureCause};
use crate::log::{Kind, Line};
use crate::tuner::{self, plan::Plan};

/// Counts up to the last sample.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Changes made to connections that have closed, or that are not there any more.
    of_closed: Changes,
    /// Changes made to all connections.
    counted: Changes,
    /// Those of them that were logged.
    told: Changes,
    /// Causes of pressure that were reported.
    pressure: Vec<PressureCause>,
    /// Whether more connections write than the budget can hold.
    short: bool,
    /// Whether there is no room for another connection's record.
    full: bool,
    /// Whether the budget bounds connections, as logged.
    bounded: bool,
    /// Number of connections that a dry run would have sized.
    would: usize,
}

/// The findings of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// The connections.
    pub(super) flows: &'a [FlowState],
    /// Bytes that the send queues, and the receive queues, hold together.
    pub(super) queues: [Bytes; 2],
    /// The shares as they were decided.
    pub(super) shares: Shares,
    /// Why memory is short.
    pub(super) pressure: &'a [Pressure],
}

/// Formats the memory held and allowed in each direction, and how to see it by process.
fn memory(seen: &Seen<'_>) -> String {
    let allowed = |limit: fn(&FlowState) -> Bytes| {
        let open = seen.flows.iter().filter(|flow| !flow.closed);
        open.map(limit).sum::<Bytes>().readable()
    };
    let [send, receive] = seen.queues.map(Bytes::readable);
    format!(
        "to send {send} held, {} allowed; to receive {receive} held, {} allowed; bufwise ls --budget has that by \
         process and cgroup, with what is reserved",
        allowed(|flow| flow.sample.sndbuf),
        allowed(|flow| flow.sample.rcvbuf)
    )
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

    fn plus(self, other: Self) -> Self {
        Self { send: self.send + other.send, windows: self.windows + other.windows }
    }

    /// Returns the difference; zero where the other is larger.
    fn minus(self, other: Self) -> Self {
        Self {
            send: self.send.saturating_sub(other.send),
            windows: self.windows.saturating_sub(other.windows),
        }
    }
}

impl News {
    /// Returns the counts alone, for the engine that takes the connections over.
    pub(super) fn counting_on(self) -> Self {
        Self { of_closed: self.of_closed, counted: self.counted, told: self.told, ..Self::default() }
    }

    /// Takes in one sample, in which closed connections appear for the last time. News is reported if a line of its kind
    /// may be logged now (`is_ready`); until then changes add up, and other states are reported later if they last.
    pub(super) fn observe(
        &mut self,
        plan: &Plan,
        seen: &Seen<'_>,
        is_ready: impl Fn(Kind) -> bool,
    ) -> Vec<Line> {
        let (mut lines, flows) = (Vec::new(), seen.flows);
        if plan.observe_only {
            lines.extend(self.dry(plan, flows, &is_ready));
        } else {
            lines.extend(self.sizes(plan, flows, &is_ready));
        }
        lines.extend(self.room(plan, flows.len(), &is_ready));
        lines.extend(self.shortage(plan, flows, &is_ready));
        lines.extend(is_ready(Kind::Pressure).then(|| self.pressure(plan, seen)).flatten());
        lines.extend(self.bounds(seen.shares, &is_ready));
        lines
    }

    /// Returns how often send buffers and receive windows were set, as seen by the samples.
    pub(super) fn changes(&self) -> (u64, u64) {
        (self.counted.send, self.counted.windows)
    }

    fn sizes(&mut self, plan: &Plan, flows: &[FlowState], is_ready: &impl Fn(Kind) -> bool) -> Vec<Line> {
        let closed = flows.iter().filter(|flow| flow.closed);
        self.of_closed = closed.fold(self.of_closed, Changes::and);
        let open = flows.iter().filter(|flow| !flow.closed);
        let now = open.clone().fold(self.of_closed, Changes::and);
        // Connections that were passed on or forgotten leave without a record of their end; what they had counts on.
        self.of_closed = self.of_closed.plus(self.counted.minus(now));
        let now = open.fold(self.of_closed, Changes::and);
        self.counted = now;
        let sends = now.send.saturating_sub(self.told.send);
        let windows = now.windows.saturating_sub(self.told.windows);
        let mut lines = Vec::new();
        if sends == 0 || is_ready(Kind::Send) {
            self.told.send = now.send;
            let of = largest(flows, |flow| flow.set_send_buffer);
            let changes = counted(sends, "change");
            let told = format!("send buffers: {changes} by policy {}{of}", plan.choice.send);
            lines.extend((sends > 0).then(|| Line::info(Kind::Send, told)));
        }
        if windows == 0 || is_ready(Kind::Receive) {
            self.told.windows = now.windows;
            let of = largest(flows, |flow| flow.set_window);
            let changes = counted(windows, "change");
            let told = format!("receive windows: {changes} by policy {}{of}", plan.choice.receive);
            lines.extend((windows > 0).then(|| Line::info(Kind::Receive, told)));
        }
        lines
    }

    /// Reports how many connections a dry run would have sized.
    fn dry(&mut self, plan: &Plan, flows: &[FlowState], is_ready: &impl Fn(Kind) -> bool) -> Option<Line> {
        let decided = |flow: &&FlowState| !flow.closed && flow.decided_send.or(flow.decided_window).is_some();
        let would = flows.iter().filter(decided);
        let largest = would.clone().filter_map(|flow| flow.decided_send.max(flow.decided_window)).max();
        let would = would.count();
        let is_news = would > 0 && would != self.would;
        if is_news && !is_ready(Kind::Send) {
            return None;
        }
        self.would = would;
        is_news.then(|| {
            let largest = largest.unwrap_or_default().readable();
            let (would, policy) = (counted(would, "connection"), plan.choice);
            Line::info(
                Kind::Send,
                format_args!("dry run: {would} would be sized, up to {largest}: policy {policy}"),
            )
        })
    }

    /// Reports once that the room for records is used up; resets when a tenth of it is free.
    fn room(&mut self, plan: &Plan, connections: usize, is_ready: &impl Fn(Kind) -> bool) -> Option<Line> {
        let most = plan.max_connections as usize;
        let is_full = connections >= if self.full { most - most / 10 } else { most };
        is_news(&mut self.full, is_full, || is_ready(Kind::Full)).then(|| {
            let (most, are) = (counted(most, "connection"), if most == 1 { "is" } else { "are" });
            let told = format_args!(
                "{most} {are} tuned, the most allowed: the kernel sizes all others; raise max-connections"
            );
            Line::warning(Kind::Full, told)
        })
    }

    fn shortage(
        &mut self,
        plan: &Plan,
        flows: &[FlowState],
        is_ready: &impl Fn(Kind) -> bool,
    ) -> Option<Line> {
        let has_data = |flow: &&FlowState| !flow.closed && flow.sample.send_queued > Bytes::ZERO;
        let shortage = tuner::shortage(flows.iter().filter(has_data), plan);
        let is_news = is_news(&mut self.short, shortage.is_some(), || is_ready(Kind::Shortage));
        shortage.filter(|_| is_news).map(|shortage| Line::warning(Kind::Shortage, shortage))
    }

    /// Reports when pressure begins, when its causes change, and when it ends.
    fn pressure(&mut self, plan: &Plan, seen: &Seen<'_>) -> Option<Line> {
        let causes: Vec<PressureCause> = seen.pressure.iter().map(|pressure| pressure.cause).collect();
        if causes == self.pressure {
            return None;
        }
        let before = std::mem::replace(&mut self.pressure, causes);
        if seen.pressure.is_empty() {
            let [send, receive] = seen.queues.map(Bytes::readable);
            let (budget, receive_budget) = (plan.budget.readable(), plan.receive_budget.readable());
            let text = format_args!(
                "memory pressure ends: send queues hold {send} of {budget}, receive queues {receive} of {receive_budget}"
            );
            return Some(Line::info(Kind::Pressure, text));
        }
        let verb = if before.is_empty() { "begins" } else { "goes on" };
        let sentences: Vec<String> = seen.pressure.iter().map(ToString::to_string).collect();
        let text = format_args!("memory pressure {verb}: {}; {}", sentences.join("; "), memory(seen));
        Some(Line::warning(Kind::Pressure, text))
    }

    fn bounds(&mut self, shares: Shares, is_ready: &impl Fn(Kind) -> bool) -> Option<Line> {
        let bounded = shares.level.is_some() || shares.window.is_some();
        let bound = |level: Option<Bytes>| level.map_or("unbounded".to_owned(), Bytes::readable);
        is_news(&mut self.bounded, bounded, || is_ready(Kind::Bounded)).then(|| {
            Line::info(
                Kind::Bounded,
                format_args!(
                    "the budget bounds connections: send buffers {}, receive windows {}",
                    bound(shares.level),
                    bound(shares.window)
                ),
            )
        })
    }
}

/// Returns whether a state that lasts is to be reported: it holds, was not reported (`told`) since it began, and may be now.
fn is_news(told: &mut bool, holds: bool, may_be: impl FnOnce() -> bool) -> bool {
    let is_news = holds && !*told && may_be();
    *told = holds && (*told || is_news);
    is_news
}

/// Formats the largest size set now, with its connection; empty if none is set.
fn largest(flows: &[FlowState], size: impl Fn(&FlowState) -> Option<Bytes>) -> String {
    let open = flows.iter().filter(|flow| !flow.closed);
    let largest = open.filter_map(|flow| Some((size(flow)?, flow))).max_by_key(|(size, _)| *size);
    largest.map_or_else(String::new, |(size, flow)| {
        format!("; the largest is {}, of {} and {}", size.readable(), flow.local, flow.peer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::plan::Asked;
    use crate::tuner::tests::flow;

    fn plan(observe_only: bool) -> Plan {
        let asked =
            Asked { memory: Some(Bytes(1 << 20)), receive_memory: Some(Bytes(1 << 20)), ..Asked::default() };
        let plan = Plan::new("abt,sobas".parse().unwrap(), asked).unwrap();
        Plan { observe_only, ..plan }
    }

    fn seen(flows: &[FlowState]) -> Seen<'_> {
        Seen { flows, queues: [Bytes::ZERO; 2], shares: Shares::default(), pressure: &[] }
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn changes_are_told_once_and_those_of_closed_connections_are_not_lost() {
        let (mut news, plan) = (News::default(), plan(false));
        let mut observe = |flows: &[FlowState]| {
            let lines = news.observe(&plan, &seen(flows), |_| true);
            lines.into_iter().map(|line| line.text).collect::<Vec<_>>()
        };
        let busy = FlowState { send_changes: 3, window_changes: 1, ..flow(1, 0) };
        assert_eq!(
            observe(&[busy]),
            ["send buffers: 3 changes by policy abt", "receive windows: 1 change by policy sobas"]
        );
        assert!(observe(&[busy]).is_empty());
        let over = FlowState { closed: true, send_changes: 5, ..busy };
        assert_eq!(observe(&[over]), ["send buffers: 2 changes by policy abt"]);
        let other = FlowState { send_changes: 1, ..flow(2, 0) };
        assert_eq!(observe(&[other]), ["send buffers: 1 change by policy abt"]);
    }

    #[test]
    fn what_was_counted_of_connections_that_leave_without_a_record_of_their_end_stays() {
        let (mut news, plan) = (News::default(), plan(false));
        let one = |cookie, changes| FlowState { send_changes: changes, window_changes: 1, ..flow(cookie, 0) };
        let mut counted = |flows: &[FlowState]| {
            news.observe(&plan, &seen(flows), |_| true);
            news.changes()
        };
        assert_eq!(counted(&[one(1, 3), one(2, 5)]), (8, 2));
        assert_eq!(counted(&[one(1, 3)]), (8, 2), "the second was passed on");
        assert_eq!(counted(&[one(1, 4)]), (9, 2));
        assert_eq!(counted(&[FlowState { closed: true, ..one(1, 4) }]), (9, 2));
        assert_eq!(counted(&[one(3, 2)]), (11, 3));
        assert_eq!(counted(&[]), (11, 3));
    }

    #[test]
    fn changes_add_up_until_they_may_be_told_and_name_the_largest() {
        let (mut news, plan) = (News::default(), plan(false));
        let small = FlowState { send_changes: 3, set_send_buffer: Some(Bytes(64_000)), ..flow(1, 0) };
        let large = FlowState { send_changes: 4, set_send_buffer: Some(Bytes(300_000)), ..flow(2, 0) };
        let quiet = news.observe(&plan, &seen(&[small]), |_| false);
        assert!(quiet.is_empty());
        let lines = news.observe(&plan, &seen(&[small, large]), |_| true);
        let ends = format!("; the largest is 300.0 KB, of {} and {}", large.local, large.peer);
        assert_eq!(texts(&lines), [format!("send buffers: 7 changes by policy abt{ends}")]);
    }

    #[test]
    fn that_there_is_no_more_room_is_told_once() {
        let (mut news, mut plan) = (News::default(), plan(false));
        plan.max_connections = 20;
        let flows: Vec<FlowState> = (0..20).map(|cookie| flow(cookie, 0)).collect();
        let mut observe = |count: usize| news.observe(&plan, &seen(&flows[..count]), |_| true);
        assert!(observe(19).is_empty());
        assert!(texts(&observe(20))[0].starts_with("20 connections are tuned, the most allowed"));
        assert!(observe(19).is_empty() && observe(20).is_empty(), "not again for each that comes and goes");
        assert!(observe(17).is_empty());
        assert_eq!(observe(20).len(), 1);
    }

    #[test]
    fn a_dry_run_tells_a_new_number_of_connections_with_the_largest_size() {
        let (mut news, plan) = (News::default(), plan(true));
        let one = FlowState { decided_send: Some(Bytes(200_000)), send_changes: 9, ..flow(1, 0) };
        let lines = news.observe(&plan, &seen(&[one]), |_| true);
        assert_eq!(
            texts(&lines),
            ["dry run: 1 connection would be sized, up to 200.0 KB: policy abt (send), sobas (receive)"]
        );
        assert!(news.observe(&plan, &seen(&[one]), |_| true).is_empty());
    }

    #[test]
    fn what_lasts_and_may_not_be_told_is_told_later() {
        let mut plan = plan(true);
        plan.max_connections = 1;
        let flows = [FlowState { decided_send: Some(Bytes(200_000)), ..flow(1, 0) }];
        let shares = Shares { level: Some(Bytes(64_000)), ..Shares::default() };
        let mut news = News::default();
        let mut observe = |is_ready: bool| {
            let lines = news.observe(&plan, &Seen { shares, ..seen(&flows) }, |_| is_ready);
            lines.iter().map(|line| line.kind).collect::<Vec<_>>()
        };
        let all = vec![Kind::Send, Kind::Full, Kind::Bounded];
        assert_eq!([false, true, true].map(&mut observe), [Vec::new(), all, Vec::new()]);
    }

    #[test]
    fn bounds_are_told_once() {
        let (mut news, plan) = (News::default(), plan(false));
        let shares = Shares { level: Some(Bytes(64_000)), ..Shares::default() };
        let mut observe = || news.observe(&plan, &Seen { shares, ..seen(&[]) }, |_| true);
        assert_eq!(
            texts(&observe()),
            ["the budget bounds connections: send buffers 64.0 KB, receive windows unbounded"]
        );
        assert!(observe().is_empty());
    }

    #[test]
    fn pressure_is_told_with_its_cause_when_it_begins_changes_and_ends_and_waits_for_its_turn() {
        let (mut news, plan) = (News::default(), plan(false));
        let cause = |cause, sentence: &str| Pressure { cause, sentence: sentence.to_owned() };
        let held = cause(PressureCause::SendHeld, "send queues hold 2.00 MB of 1.05 MB");
        let host = cause(PressureCause::Host, "host: it is");
        let mut flows = [flow(1, 0), FlowState { closed: true, ..flow(2, 0) }];
        for one in &mut flows {
            (one.sample.sndbuf, one.sample.rcvbuf) = (Bytes(64_000), Bytes(128_000));
        }
        let mut observe = |pressure: &[Pressure], is_ready: bool| -> Vec<String> {
            let seen = Seen { queues: [Bytes(9_000), Bytes(1_000)], pressure, ..seen(&flows) };
            news.observe(&plan, &seen, |_| is_ready).into_iter().map(|line| line.text).collect()
        };
        let both = [held.clone(), host];
        assert!(observe(&both, false).is_empty(), "a line of the kind was written a moment ago");
        let memory = "to send 9000 B held, 64.0 KB allowed; to receive 1000 B held, 128.0 KB allowed; \
                      bufwise ls --budget has that by process and cgroup, with what is reserved";
        let begins = "memory pressure begins: send queues hold 2.00 MB of 1.05 MB; host: it is";
        assert_eq!(observe(&both, true), [format!("{begins}; {memory}")]);
        let other_figures = cause(PressureCause::SendHeld, "send queues hold 3.00 MB of 1.05 MB");
        assert!(observe(&[other_figures, both[1].clone()], true).is_empty(), "the same causes");
        let goes_on = "memory pressure goes on: send queues hold 2.00 MB of 1.05 MB";
        assert_eq!(observe(&[held], true), [format!("{goes_on}; {memory}")]);
        let ends =
            "memory pressure ends: send queues hold 9000 B of 1.05 MB, receive queues 1000 B of 1.05 MB";
        assert_eq!((observe(&[], true), observe(&[], true).len()), (vec![ends.to_owned()], 0));
    }
}
