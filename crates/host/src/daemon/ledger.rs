//! Shares and log lines for each part of the connections: one part per group, and a last one for the connections in no
//! group.

use std::collections::BTreeSet;
use std::time::Duration;

use bufwise_bpf::{FlowState, Shares};
use bufwise_units::{Bytes, Micros};

use super::news::{News, Seen};
use super::task::Task;
use crate::budget::{Measures, Terms, causes};
use crate::log::{Kind, Line};
use crate::tcp_memory::TcpMemory;
use crate::tuner;
use crate::tuner::asked::AskedBoth;
use crate::tuner::books::{Books, Bounds};
use crate::tuner::plan::Plan;

/// One part of the connections.
#[derive(Debug)]
struct Ledger {
    /// The group's name.
    name: Option<String>,
    plan: Plan,
    /// Its shares.
    books: Books,
    /// Its counted changes, and those of them that were logged.
    news: News,
}

/// The ledgers of all parts, in the order of [`Task::parts`].
#[derive(Debug)]
pub(super) struct Ledgers {
    all: Vec<Ledger>,
    /// Changes of send buffers and of receive windows that parts of earlier tasks have counted.
    ended: (u64, u64),
    /// The part whose news comes first; it rotates, so that no part keeps the lines of others out of the log.
    first: usize,
}

/// Result of a sample of all parts.
#[derive(Debug, Default)]
pub(super) struct Balance {
    /// Shares and orders for each part's engine.
    pub(super) bounds: Vec<Bounds>,
    /// News, with the group's name where it has one.
    pub(super) lines: Vec<Line>,
    /// Memory that all send queues hold.
    pub(super) held: Bytes,
}

impl Ledgers {
    pub(super) fn new(task: &Task) -> Self {
        let ledger = |(name, plan): (Option<&str>, &Plan)| Ledger {
            name: name.map(str::to_owned),
            plan: *plan,
            books: Books::new(plan),
            news: News::default(),
        };
        Self { all: task.parts().map(ledger).collect(), ended: (0, 0), first: 0 }
    }

    /// Begins anew for another task, and counts on. `inherit` has, for each of its parts, the former part whose records the
    /// engine has taken over: the changes that these count were logged already.
    pub(super) fn renew(&mut self, task: &Task, inherit: &[Option<usize>]) {
        let before = std::mem::replace(self, Self::new(task));
        let mut news: Vec<Option<News>> = before.all.into_iter().map(|ledger| Some(ledger.news)).collect();
        for (ledger, former) in self.all.iter_mut().zip(inherit) {
            let former = former.and_then(|number| news.get_mut(number)?.take());
            ledger.news = former.map(News::counting_on).unwrap_or_default();
        }
        self.ended = news.iter().flatten().map(News::changes).fold(before.ended, both);
    }

    /// Returns, for each part of the next task, the shares until its first sample. Where its engine takes over the records of
    /// a former part (`inherit`), no connection has more than before: the first shares are those of few newcomers.
    pub(super) fn shares_of(&self, task: &Task, inherit: &[Option<usize>]) -> Vec<Shares> {
        let mut all: Vec<Shares> = Self::new(task).all.iter().map(|ledger| ledger.books.shares()).collect();
        for (shares, former) in all.iter_mut().zip(inherit) {
            let Some(former) = former.and_then(|number| self.all.get(number)) else { continue };
            let before = former.books.shares();
            shares.level = lowered(shares.level, before.level);
            shares.newcomer = lowered(shares.newcomer, before.newcomer);
            // The connections that the former engine has seen sending are no newcomers.
            shares.newest_at = before.newest_at;
            shares.window = lowered(shares.window, before.window);
        }
        all
    }

    /// Returns the terms of each part; if memory is not shared out (`is_shared` is false), the demand counts as zero.
    pub(super) fn terms(&self, is_shared: bool) -> Vec<Terms> {
        let terms = |ledger: &Ledger| Terms {
            group: ledger.name.clone(),
            plan: ledger.plan,
            asked: if is_shared { ledger.books.asked() } else { AskedBoth::default() },
        };
        self.all.iter().map(terms).collect()
    }

    /// Returns the shortest time between two rounds of shares of any part.
    pub(super) fn interval(&self) -> Duration {
        self.all.iter().map(|ledger| ledger.books.interval()).min().unwrap_or_default()
    }

    /// Makes the next sample return the bound of the devices, and the next round all orders, even if they have not changed:
    /// devices and engines may have others.
    pub(super) fn tell_again(&mut self) {
        self.all.iter_mut().for_each(|ledger| ledger.books.tell_again());
    }

    /// Returns how often send buffers and receive windows were set, as seen by the samples.
    pub(super) fn changes(&self) -> (u64, u64) {
        let changes = self.all.iter().map(|ledger| ledger.news.changes());
        changes.fold(self.ended, both)
    }

    /// Takes in a sample of each part's connections. News is reported if a line of its kind may be logged now (`is_ready`),
    /// by one part at a time; the last part reports the kernel's memory for TCP, which is the whole host's.
    pub(super) fn observe(
        &mut self,
        flows: &[Vec<FlowState>],
        host: Option<TcpMemory>,
        now: Micros,
        is_ready: impl Fn(Kind) -> bool,
    ) -> Balance {
        let count = self.all.len();
        let mut balance = Balance { bounds: vec![Bounds::default(); count], ..Balance::default() };
        let mut told = BTreeSet::new();
        self.first = (self.first + 1) % count.max(1);
        for number in (self.first..count).chain(0..self.first) {
            let ledger = &mut self.all[number];
            let flows = flows.get(number).map_or(&[][..], Vec::as_slice);
            let held = tuner::held(flows);
            balance.held += held;
            let bounds = ledger.books.observe(flows, held, now);
            let may_speak = |kind| is_ready(kind) && !told.contains(&kind);
            let queues = [held, tuner::held_to_receive(flows)];
            let host = host.filter(|_| number + 1 == count);
            let pressure = causes(&Measures::new(&ledger.plan, &ledger.books.asked(), queues, host));
            let seen = Seen { flows, queues, shares: bounds.shares, pressure: &pressure };
            let news = ledger.news.observe(&ledger.plan, &seen, may_speak);
            told.extend(news.iter().map(|line| line.kind));
            balance.lines.extend(news.into_iter().map(|line| named(ledger.name.as_deref(), line)));
            balance.bounds[number] = bounds;
        }
        balance
    }
}

/// Returns the lower of two bounds; `None`: no bound.
fn lowered(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    one.into_iter().chain(other).min()
}

/// Adds two counts of both directions.
fn both(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

/// Puts the group's name before a line.
fn named(group: Option<&str>, line: Line) -> Line {
    match group {
        Some(name) => Line { text: format!("group {name}: {}", line.text), ..line },
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::configured;
    use super::*;
    use crate::tuner::tests::flow;

    /// Returns a task with a group that has half of a memory of 1 MiB, and the rest.
    fn halves(policy: &str) -> Task {
        let group = "[[group]]\nname = \"db\"\ncgroup = \"db\"\n";
        configured(&format!("policy = \"{policy}\"\nmemory = \"1MiB\"\nreceive-memory = \"1MiB\"\n{group}"))
    }

    #[test]
    fn each_part_has_shares_of_its_own_budget() {
        let mut ledgers = Ledgers::new(&halves("eq"));
        let flows = [vec![flow(1, 0)], vec![flow(2, 0), flow(3, 0)]];
        let bounds = ledgers.observe(&flows, None, Micros::from_secs(1), |_| true).bounds;
        let levels: Vec<Option<Bytes>> = bounds.iter().map(|bounds| bounds.shares.level).collect();
        // Four fifths of 512 KiB: one connection has all of it; two share it.
        assert_eq!(levels, [Some(Bytes(419_430)), Some(Bytes(209_715))]);
    }

    #[test]
    fn pressure_is_that_of_one_part_alone_and_named() {
        let mut ledgers = Ledgers::new(&halves("abt"));
        let mut busy = flow(1, 10_000);
        busy.sample.send_queued = Bytes(600 << 10);
        busy.last_buffer = Bytes::ZERO;
        let balance = ledgers.observe(&[vec![busy], vec![flow(2, 0)]], None, Micros::from_secs(1), |_| true);
        let pressed: Vec<bool> = balance.bounds.iter().map(|bounds| bounds.shares.pressure).collect();
        assert_eq!(pressed, [true, false]);
        let words = "group db: memory pressure begins: send queues hold 614.4 KB of 524.3 KB";
        assert!(balance.lines.iter().any(|line| line.text.starts_with(words)), "{:?}", balance.lines);
        assert_eq!(balance.held, Bytes(600 << 10));
    }

    #[test]
    fn the_hosts_own_pressure_is_told_once_and_not_as_a_groups() {
        let mut ledgers = Ledgers::new(&halves("abt"));
        let bytes = |mega: u64| Bytes(mega * 1_000_000);
        let host = TcpMemory { held: bytes(9), low: bytes(6), pressure: bytes(8) };
        let mut observe =
            |seconds| ledgers.observe(&[], Some(host), Micros::from_secs(seconds), |_| true).lines;
        let told: Vec<Line> =
            (1..=4).flat_map(&mut observe).filter(|line| line.kind == Kind::Pressure).collect();
        let [line] = &told[..] else { panic!("{told:?}") };
        assert!(line.text.starts_with("memory pressure begins: host: tcp_mem is above"), "{line:?}");
    }

    #[test]
    fn what_holds_is_told_of_each_part_and_nothing_is_shared_out_while_paused() {
        let mut ledgers = Ledgers::new(&halves("abt"));
        ledgers.observe(&[vec![flow(1, 10_000)], vec![]], None, Micros::from_secs(1), |_| true);
        let told =
            |is_shared| ledgers.terms(is_shared).into_iter().map(|one| (one.group, one.asked.send.shared));
        let (db, shared) = (Some("db".to_owned()), Bytes(419_430));
        assert_eq!(told(true).collect::<Vec<_>>(), [(db.clone(), shared), (None, shared)]);
        assert_eq!(told(false).collect::<Vec<_>>(), [(db, Bytes::ZERO), (None, Bytes::ZERO)]);
    }

    #[test]
    fn parts_take_turns_to_speak_and_no_change_is_lost() {
        let mut ledgers = Ledgers::new(&halves("abt"));
        let changed = |count| FlowState { send_changes: count, ..flow(1, 0) };
        let mut told = Vec::new();
        for count in 1..=4 {
            let flows = [vec![changed(count)], vec![changed(count)]];
            let lines = ledgers.observe(&flows, None, Micros::from_secs(count.into()), |_| true).lines;
            told.extend(lines.into_iter().filter(|line| line.kind == Kind::Send).map(|line| line.text));
        }
        assert_eq!(told.len(), 4, "one of a kind a sample: {told:?}");
        assert_eq!(told.iter().filter(|text| text.starts_with("group db: ")).count(), 2);
        assert!(told[2..].iter().all(|text| text.contains("send buffers: 2 changes")), "{told:?}");
        assert_eq!(ledgers.changes(), (8, 0));
    }

    #[test]
    fn a_reload_counts_on_and_tells_nothing_again() {
        let mut ledgers = Ledgers::new(&halves("abt"));
        let changed = |count| FlowState { send_changes: count, ..flow(1, 0) };
        let mut told = Vec::new();
        let mut observe = |ledgers: &mut Ledgers, counts: [u32; 2], seconds| {
            let flows = counts.map(|count| vec![changed(count)]);
            let lines = ledgers.observe(&flows, None, Micros::from_secs(seconds), |_| true).lines;
            told.extend(lines.into_iter().filter(|line| line.kind == Kind::Send).map(|line| line.text));
        };
        (1..=2).for_each(|seconds| observe(&mut ledgers, [5, 3], seconds));
        // The group's engine takes the records over; the others are given back, and begin anew.
        ledgers.renew(&halves("abt"), &[Some(0), None]);
        assert_eq!(ledgers.changes(), (8, 0));
        (3..=4).for_each(|seconds| observe(&mut ledgers, [6, 1], seconds));
        assert_eq!(ledgers.changes(), (10, 0));
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[2..].iter().all(|text| text.contains("send buffers: 1 change by")), "{told:?}");
    }

    #[test]
    fn until_the_first_sample_after_a_reload_no_connection_has_more_than_before() {
        let mut ledgers = Ledgers::new(&halves("eq,drs"));
        let begins = ledgers.shares_of(&halves("eq,drs"), &[None, None]);
        let ten =
            |first: u64| -> Vec<FlowState> { (first..first + 10).map(|cookie| flow(cookie, 0)).collect() };
        ledgers.observe(&[ten(1), ten(11)], None, Micros::from_secs(1), |_| true);
        let shares = ledgers.shares_of(&halves("eq,drs"), &[Some(0), None]);
        assert_eq!(shares[0].level, Some(Bytes(41_943)), "four fifths of 512 KiB among ten");
        assert!(shares[0].window < begins[0].window, "{shares:?}");
        let before = ledgers.all[0].books.shares();
        assert!(before.newcomer < begins[0].newcomer, "{before:?}");
        assert_eq!((shares[0].newcomer, shares[0].newest_at), (before.newcomer, before.newest_at));
        assert_eq!(shares[1], begins[1], "connections that are given back begin anew");

        let mut ledgers = Ledgers::new(&halves("sabt"));
        ledgers.observe(&[ten(1), ten(11)], None, Micros::from_secs(1), |_| true);
        let former = ledgers.all[0].books.shares().level;
        assert!(former.is_some(), "the level of connections without an order");
        assert_eq!(ledgers.shares_of(&halves("sabt"), &[Some(0), None])[0].level, former);
    }

    #[test]
    fn a_reload_leaves_no_window_unbounded_that_was_bounded() {
        let task = configured("policy = \"drs\"\nmemory = \"1MiB\"\nreceive-memory = \"1GiB\"\n");
        let mut ledgers = Ledgers::new(&task);
        let window =
            |ledgers: &Ledgers, inherit: Option<usize>| ledgers.shares_of(&task, &[inherit])[0].window;
        assert_eq!(window(&ledgers, None), None, "few receivers are bounded by their rule alone");
        let receiver = |cookie| FlowState { drs_largest: Bytes(1_000_000), ..flow(cookie, 0) };
        let many: Vec<FlowState> = (0..100).map(receiver).collect();
        ledgers.observe(&[many], None, Micros::from_secs(1), |_| true);
        let before = ledgers.all[0].books.shares().window;
        assert!(before.is_some());
        assert_eq!(window(&ledgers, Some(0)), before);
    }

    #[test]
    fn without_groups_there_is_one_part() {
        let task = configured("memory = \"1MiB\"");
        assert_eq!(Ledgers::new(&task).shares_of(&task, &[None]).len(), 1);
    }
}
