//! Finds why memory is short: each cause in one sentence, from few figures. A pure function.
//!
//! Rule:
//! - *send-demand*, *receive-demand*: connections demand more than the part of the budget that is shared out;
//! - *unread*: receive demand is too large, and unread data of stalled readers makes up at least half of it;
//! - *send-held*, *receive-held*: the queues hold more than the budget;
//! - *host*: the kernel's TCP holds more than the pressure mark of `tcp_mem`, and shrinks buffers by itself.

use std::fmt;

use bufwise_units::{Bytes, counted};
use serde::{Deserialize, Serialize};

use crate::tcp_memory::TcpMemory;
use crate::tuner::asked::{Asked, AskedBoth};
use crate::tuner::plan::Plan;
use crate::tuner::shares::shrinks;

/// A cause of pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PressureCause {
    /// Send queues hold more than their budget.
    SendHeld,
    /// Senders demand more than the shared part of their budget.
    SendDemand,
    /// Receive queues hold more than their budget.
    ReceiveHeld,
    /// Programs leave so much unread that too little is left for other receivers.
    Unread,
    /// Receivers demand more than the shared part of their budget.
    ReceiveDemand,
    /// The kernel is short of memory for TCP, over all connections of the host.
    Host,
}

/// Each cause with its name in JSON and metrics.
pub const PRESSURE_CAUSES: [(PressureCause, &str); 6] = [
    (PressureCause::SendHeld, "send-held"),
    (PressureCause::SendDemand, "send-demand"),
    (PressureCause::ReceiveHeld, "receive-held"),
    (PressureCause::Unread, "unread"),
    (PressureCause::ReceiveDemand, "receive-demand"),
    (PressureCause::Host, "host"),
];

/// A cause, and a sentence that explains it with figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// The kind of cause.
    pub cause: PressureCause,
    /// Sentence for people; without a full stop.
    pub sentence: String,
}

impl Pressure {
    /// Puts the group's name before the sentence.
    pub(super) fn of(self, group: Option<&str>) -> Self {
        match group {
            Some(name) => Self { sentence: format!("group {name}: {}", self.sentence), ..self },
            None => self,
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// The figures by which pressure is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measures {
    send: Measure,
    receive: Measure,
    /// Whether send buffers shrink while the send queues hold more than their budget.
    shrinks: bool,
    host: Option<TcpMemory>,
}

/// The figures of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    budget: Bytes,
    held: Bytes,
    asked: Asked,
}

impl Measures {
    /// Takes the budgets of a plan, the demand of the connections, and the content of send and receive queues.
    pub(crate) fn new(
        plan: &Plan,
        asked: &AskedBoth,
        [send, receive]: [Bytes; 2],
        host: Option<TcpMemory>,
    ) -> Self {
        Self {
            send: Measure { budget: plan.budget, held: send, asked: asked.send },
            receive: Measure { budget: plan.receive_budget, held: receive, asked: asked.receive },
            shrinks: shrinks(plan.choice.send) && !plan.observe_only,
            host,
        }
    }
}

/// Returns every cause that applies; empty: memory suffices.
pub(crate) fn causes(measures: &Measures) -> Vec<Pressure> {
    let Measures { send, receive, shrinks, host } = measures;
    let effect = if *shrinks { "; buffers shrink" } else { "" };
    let held = |cause, name: &str, side: &Measure, effect: &str| {
        let (held, budget) = (side.held.readable(), side.budget.readable());
        let sentence = || format!("{name} queues hold {held} of {budget}{effect}");
        (side.held > side.budget).then(|| Pressure { cause, sentence: sentence() })
    };
    let causes = [
        held(PressureCause::SendHeld, "send", send, effect),
        demand(PressureCause::SendDemand, "", send),
        held(PressureCause::ReceiveHeld, "receive", receive, ""),
        unread(receive).or_else(|| demand(PressureCause::ReceiveDemand, " to receive", receive)),
        host.filter(TcpMemory::is_short).map(|host| Pressure {
            cause: PressureCause::Host,
            sentence: format!(
                "host: tcp_mem is above its pressure mark: TCP holds {} of {}",
                host.held.readable(),
                host.pressure.readable()
            ),
        }),
    ];
    causes.into_iter().flatten().collect()
}

impl Measure {
    /// Returns whether the demand exceeds the memory that is shared out.
    fn is_short(&self) -> bool {
        self.asked.shared > Bytes::ZERO && self.asked.demand > self.asked.shared
    }
}

fn demand(cause: PressureCause, purpose: &str, side: &Measure) -> Option<Pressure> {
    let Asked { connections, demand, level, .. } = side.asked;
    let each = match level {
        Some(level) => format!("each has {} at most", level.readable()),
        None => "each has a part by what it asks for".to_owned(),
    };
    let (demand, budget) = (demand.readable(), side.budget.readable());
    let ask = if connections == 1 { "asks" } else { "ask" };
    let connections = counted(connections, "connection");
    let sentence = format!("{connections} {ask} for {demand}{purpose}, the budget is {budget}; {each}");
    side.is_short().then_some(Pressure { cause, sentence })
}

/// Returns the cause if stalled readers account for at least half of a demand that is too large.
fn unread(side: &Measure) -> Option<Pressure> {
    let Asked { standing, unread, demand, .. } = side.asked;
    let is_theirs = standing > 0 && unread.times(2) >= demand;
    let (unread, budget) = (unread.readable(), side.budget.readable());
    let hold = if standing == 1 { "holds" } else { "hold" };
    let sentence = format!(
        "receivers do not read: {} {hold} {unread} unread, the budget is {budget}",
        counted(standing, "connection")
    );
    (is_theirs && side.is_short()).then_some(Pressure { cause: PressureCause::Unread, sentence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::plan;

    const MB: u64 = 1_000_000;

    fn side(budget: u64, held: u64, asked: Asked) -> Measure {
        Measure { budget: Bytes(budget * MB), held: Bytes(held * MB), asked }
    }

    fn asked(connections: u64, demand: u64, shared: u64) -> Asked {
        Asked { connections, demand: Bytes(demand * MB), shared: Bytes(shared * MB), ..Asked::default() }
    }

    fn told(send: Measure, receive: Measure, host: Option<TcpMemory>) -> Vec<String> {
        let causes = causes(&Measures { send, receive, shrinks: true, host });
        causes.into_iter().map(|one| one.sentence).collect()
    }

    #[test]
    fn a_budget_that_suffices_is_no_pressure() {
        let enough = side(16, 16, asked(3, 12, 12));
        assert!(told(enough, enough, None).is_empty());
        let unshared = side(16, 16, asked(3, 99, 0));
        assert!(told(unshared, unshared, None).is_empty(), "a policy without shares asks for nothing");
    }

    #[test]
    fn demand_beyond_the_budget_is_told_with_each_ones_part() {
        let level = Some(Bytes(32_000));
        let short = side(16, 9, Asked { level, ..asked(512, 41, 13) });
        assert_eq!(
            told(short, Measure::default(), None),
            ["512 connections ask for 41.00 MB, the budget is 16.00 MB; each has 32.0 KB at most"]
        );
        let by_demand = side(16, 9, asked(1, 41, 13));
        assert_eq!(
            told(Measure::default(), by_demand, None),
            [
                "1 connection asks for 41.00 MB to receive, the budget is 16.00 MB; each has a part by what it asks for"
            ]
        );
    }

    #[test]
    fn queues_beyond_the_budget_are_a_cause_of_their_own() {
        let full = side(16, 17, asked(1, 1, 13));
        assert_eq!(
            told(full, full, None),
            [
                "send queues hold 17.00 MB of 16.00 MB; buffers shrink",
                "receive queues hold 17.00 MB of 16.00 MB"
            ]
        );
    }

    #[test]
    fn buffers_shrink_by_rules_with_shares_alone_and_in_no_dry_run() {
        let sentence = |policy: &str, observe_only| {
            let memory = Some(Bytes(16 * MB));
            let asked = plan::Asked { memory, receive_memory: memory, ..plan::Asked::default() };
            let plan = Plan { observe_only, ..Plan::new(policy.parse().unwrap(), asked).unwrap() };
            let held = [Bytes(17 * MB), Bytes::ZERO];
            causes(&Measures::new(&plan, &AskedBoth::default(), held, None)).remove(0).sentence
        };
        for policy in ["abt", "eq", "sabt", "fit", "abt:published"] {
            assert_eq!(sentence(policy, false), "send queues hold 17.00 MB of 16.00 MB; buffers shrink");
            assert_eq!(sentence(policy, true), "send queues hold 17.00 MB of 16.00 MB");
        }
        for policy in ["drs", "kernel", "fixed:64KiB", "sabt:published"] {
            assert_eq!(sentence(policy, false), "send queues hold 17.00 MB of 16.00 MB", "{policy}");
        }
    }

    #[test]
    fn readers_that_stand_are_the_cause_where_they_hold_the_larger_part() {
        let stand = |unread| Asked { standing: 12, unread: Bytes(unread * MB), ..asked(40, 18, 15) };
        assert_eq!(
            told(Measure::default(), side(16, 9, stand(9)), None),
            ["receivers do not read: 12 connections hold 9.00 MB unread, the budget is 16.00 MB"]
        );
        let cause = |asked| causes(&Measures { receive: side(16, 9, asked), ..Measures::default() })[0].cause;
        assert_eq!(cause(stand(8)), PressureCause::ReceiveDemand);
        assert_eq!(cause(Asked { standing: 1, ..stand(9) }), PressureCause::Unread);
    }

    #[test]
    fn the_hosts_own_pressure_is_told_whatever_the_budgets_are() {
        let host = TcpMemory { held: Bytes(40 * MB), low: Bytes(20 * MB), pressure: Bytes(30 * MB) };
        let told = |host| told(Measure::default(), Measure::default(), Some(host));
        assert_eq!(told(host), ["host: tcp_mem is above its pressure mark: TCP holds 40.00 MB of 30.00 MB"]);
        assert!(told(TcpMemory { held: Bytes(30 * MB), ..host }).is_empty());
    }

    #[test]
    fn causes_have_their_names_in_json() {
        for (cause, name) in PRESSURE_CAUSES {
            assert_eq!(serde_json::to_value(cause).unwrap(), name);
        }
    }
}
