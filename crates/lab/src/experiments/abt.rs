//! ABT's experiments (Semke 1998): many connections and little send memory.

use bufwise_link::{QueueLimit, QueueSize};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// The threshold of Semke's memory pool, bytes.
const MEMORY: u64 = 2 << 20;
/// The whole pool of Semke's hosts, bytes.
const POOL: u64 = 4 << 20;
/// The link's queue, bytes (Semke 1998, figure 2).
const QUEUE_BYTES: u64 = 340_000;

/// Name of the method in which a writer fills 64 KB at once, as its device allows; 2 MiB hold few of these.
const LARGE_BUFFERS: &str = "abt, 64 KB at once";

pub(super) fn experiments() -> Vec<Experiment> {
    vec![throughput_and_memory(), exhausted(), two_paths(), many(), count()]
}

fn wan() -> PathSpec {
    PathSpec { queue: Some(QueueSize::Limit(QueueLimit::Bytes(QUEUE_BYTES))), ..path(40, 68) }
}

fn connections(connections: u16, amount: Amount, quick: bool) -> Case {
    // iperf3 opens at most 128 connections at once.
    let halves = if connections > 128 { 2 } else { 1 };
    let flow = Flow { connections: connections / halves, amount, ..Flow::default() };
    let plural = if connections == 1 { "" } else { "s" };
    Case {
        name: format!("{connections} connection{plural}"),
        paths: vec![wan()],
        flows: vec![flow; usize::from(halves)],
        memory: Some(MEMORY),
        quick,
        setup: Setup::default(),
    }
}

/// Returns the paper's three methods (static send buffers of 16 KB and 400 KB, in memory twice that, and ABT) and the
/// kernel.
fn methods() -> Vec<Method> {
    let fixed = |name, size| Method { name, sender: vec![("net.ipv4.tcp_wmem", size)], ..Method::default() };
    vec![
        fixed("16 KB", "4096 32768 32768"),
        fixed("by hand, 400 KB", "4096 819200 819200"),
        Method::default(),
        Method { name: "abt", client: Some("abt"), ..Method::default() },
    ]
}

fn cases() -> Vec<Case> {
    // 16 KB fill the paper's link from 22 connections on.
    [(1, true), (5, false), (12, true), (22, false), (30, false)]
        .map(|(number, quick)| connections(number, Amount::Seconds(12, 5), quick))
        .to_vec()
}

fn throughput_and_memory() -> Experiment {
    Experiment {
        id: "abt-fig3-4",
        source: "Semke 1998, figures 3 and 4",
        question: "40 Mbit/s x 68 ms, 1 to 30 connections, 2 MiB of send memory: does ABT fill the link within it?",
        scale: "12 s instead of 100 MB per connection, MTU 1500 instead of 4352; the static buffers are tcp_wmem of the sender.",
        way: Way::Upload,
        cases: cases(),
        methods: methods(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::CarriedWithin,
            Quantity::JainIndex,
            Quantity::Drops,
            Quantity::Served,
        ],
        targets: vec![
            Target::new("abt", Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "by hand, 400 KB")),
            Target::new("abt", Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new("by hand, 400 KB", Quantity::HeldPeakBytes, Bound::AtLeast(MEMORY as f64)).only_in([
                "5 connections",
                "12 connections",
                "30 connections",
            ]),
            Target::new("abt", Quantity::Served, Bound::AtLeast(1.0)),
        ],
        ..Experiment::default()
    }
}

/// Returns ABT as we have it and as published.
fn both() -> [Method; 2] {
    ["abt", "abt:published"].map(|policy| Method { name: policy, client: Some(policy), ..Method::default() })
}

fn by_hand(name: &'static str, size: &'static str) -> Method {
    Method { name, sender: vec![("net.ipv4.tcp_wmem", size)], ..Method::default() }
}

/// The paper's transfers stall when the whole pool of 4 MB is taken, which cannot be reproduced here: `tcp_mem`,
/// Linux's pool, is shared by all network namespaces; `memory.max` of a cgroup counts the programs' own memory with the
/// sockets', and cgroups of version 1 have a limit of their own. So nothing stalls, and the experiment shows how much
/// of that pool each method takes.
fn exhausted() -> Experiment {
    Experiment {
        id: "abt-fig5-6",
        source: "Semke 1998, figures 5 and 6",
        question: "How much of a pool of 4 MB do 12 connections take: with 400 KB each set by hand, and with ABT within 2 MiB?",
        scale: "20 s instead of 100 MB each; nothing stalls, as Linux's pool (tcp_mem) is one for all network namespaces.",
        way: Way::Upload,
        cases: vec![connections(12, Amount::Seconds(20, 10), true)],
        methods: std::iter::once(by_hand("by hand, 400 KB", "4096 819200 819200")).chain(both()).collect(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::JainIndex,
            Quantity::Served,
            Quantity::Drops,
        ],
        targets: vec![
            Target::new("by hand, 400 KB", Quantity::HeldPeakBytes, Bound::AtLeast(POOL as f64)),
            Target::new("abt", Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new("abt", Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "by hand, 400 KB")),
            Target::new("abt:published", Quantity::HeldPeakBytes, Bound::AtMost(POOL as f64)),
            Target::new("abt", Quantity::Served, Bound::AtLeast(1.0)),
        ],
        ..Experiment::default()
    }
}

/// How many connections each method carries at full rate within the memory: the largest case in which the quantity is
/// not 0.
fn count() -> Experiment {
    let case = |(number, quick)| connections(number, Amount::Seconds(8, 7), quick);
    let by_hand = [by_hand("64 KB", "4096 131072 131072"), by_hand("by hand, 400 KB", "4096 819200 819200")];
    Experiment {
        id: "abt-count",
        source: "Semke 1998, section 4.1",
        question: "With each method: how many connections get the link's full rate within 2 MiB of send memory?",
        scale: "8 s; a method's count is that of the last row in which it is not 0; the kernel and static sizes know no budget.",
        way: Way::Upload,
        cases: [(5, false), (12, true), (30, false), (50, false)].map(case).to_vec(),
        methods: by_hand.into_iter().chain([Method::default()]).chain(both()).collect(),
        quantities: vec![
            Quantity::CarriedWithin,
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::JainIndex,
            Quantity::Served,
        ],
        targets: vec![
            Target::new("abt", Quantity::CarriedWithin, Bound::AtLeast(12.0)).only_in(["12 connections"]),
            Target::new("abt", Quantity::CarriedWithin, Bound::AtLeast(50.0)).only_in(["50 connections"]),
            Target::new("by hand, 400 KB", Quantity::CarriedWithin, Bound::AtMost(0.0)).only_in([
                "5 connections",
                "12 connections",
                "30 connections",
                "50 connections",
            ]),
            Target::new("abt", Quantity::Served, Bound::AtLeast(1.0)),
        ],
        ..Experiment::default()
    }
}

fn two_paths() -> Experiment {
    let case = |number: u16, quick| {
        let flow = Flow { connections: number, amount: Amount::Seconds(12, 5), ..Flow::default() };
        Case {
            name: format!("{number} to each"),
            paths: vec![wan(), path(10, 1)],
            flows: vec![flow.clone(), Flow { path: 1, ..flow }],
            memory: Some(MEMORY),
            quick,
            setup: Setup::default(),
        }
    };
    Experiment {
        id: "abt-fig7-8",
        source: "Semke 1998, figures 7 and 8",
        question: "A sender serves a far and a near receiver from the same 2 MiB: do both get the rate of their paths?",
        scale: "12 s instead of 100 and 25 MB per connection; path 1 is 40 Mbit/s x 68 ms, path 2 is 10 Mbit/s x 1 ms.",
        way: Way::Upload,
        cases: vec![case(1, false), case(4, true), case(10, false)],
        methods: methods(),
        quantities: vec![
            Quantity::GoodputPath1Bps,
            Quantity::GoodputPath2Bps,
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::Served,
        ],
        targets: vec![
            Target::new("abt", Quantity::GoodputPath1Bps, Bound::AtLeastTimes(0.97, "by hand, 400 KB")),
            Target::new("abt", Quantity::GoodputPath2Bps, Bound::AtLeastTimes(0.97, "by hand, 400 KB")),
            Target::new("abt", Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new("abt", Quantity::Served, Bound::AtLeast(1.0)),
        ],
        ..Experiment::default()
    }
}

fn many() -> Experiment {
    let case = |(number, seconds, quick)| connections(number, Amount::Seconds(seconds, 7), quick);
    let mut cases = [(12, 15, true), (50, 9, true), (200, 35, false)].map(case).to_vec();
    // The cost of large buffers shows with 50 connections; the other cases use their time for the kernel's other
    // congestion controls.
    for few in cases.iter_mut().filter(|case| case.name != "50 connections") {
        few.setup.methods = vec!["kernel", "abt"];
    }
    Experiment {
        id: "abt-many",
        source: "Semke 1998, section 4.2",
        question: "Do 12 to 200 connections share the full rate fairly, within 2 MiB of send memory?",
        scale: "15 s, 9 s with 50 and 35 s with 200 connections; 2 MiB of send memory instead of 1 MB; the kernel is unconfined, as \
            tcp_mem cannot be set for a network namespace.",
        way: Way::Upload,
        cases,
        methods: vec![
            Method::default(),
            Method { name: "abt", client: Some("abt"), ..Method::default() },
            Method { name: LARGE_BUFFERS, client: Some("abt"), at_once: Some("device"), ..Method::default() },
        ],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::JainIndex,
            Quantity::Served,
            Quantity::Retransmits,
        ],
        targets: vec![
            Target::new("abt", Quantity::GoodputBps, Bound::AtLeast(37e6))
                .only_in(["12 connections", "50 connections"]),
            Target::new("abt", Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new("abt", Quantity::Served, Bound::AtLeast(1.0)),
            Target::new("abt", Quantity::JainIndex, Bound::AtLeast(0.9)).only_in(["200 connections"]),
        ],
        ..Experiment::default()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_number_of_connections_has_the_kernels_congestion_controls_beside_it() {
        let catalogue = super::super::catalogue();
        let many = catalogue.iter().find(|experiment| experiment.id == "abt-many").unwrap();
        for case in &many.cases {
            let names: Vec<_> = many.methods(case, false).map(|method| method.name).collect();
            for name in ["kernel", "abt", "kernel, reno", "kernel, bbr"] {
                assert!(names.contains(&name), "{}: no {name}", case.name);
            }
        }
    }
}
