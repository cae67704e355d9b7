//! The state of a daemon's memory: how much of the budgets its connections hold, how much they are allowed, and how
//! much is reserved, by process and by cgroup; and the causes if memory is short (`pressure`).
//!
//! Terms; all count memory, the kernel's overhead included:
//! - *held*: the content of the queues now;
//! - *allowed*: the sum of the buffers' limits. It may exceed the budget, because not all buffers are full at once;
//! - *reserved*: promised and not held. For newcomers it is the part of the budget that is not shared out; for idle
//!   connections (nothing moved for [`Config::IDLE`]) it is the room that their limits allow beyond what they hold;
//! - *outside*: the content of queues whose buffers programs have set. These buffers are outside the budget, as for
//!   shares and log, and no other figure includes them.
//!
//! Only this module computes these figures, from the sockets that the daemon sizes, so that all views agree. Groups
//! have budgets of their own: each part of the connections is judged by itself, and the totals are sums of the parts.

mod pressure;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::AddAssign;

use bufwise_bpf::{Config, Owned};
use bufwise_socket::diag::Connection;
use bufwise_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::processes::Process;
use crate::tcp_memory::TcpMemory;
use crate::tuner::asked::{Asked, AskedBoth};
use crate::tuner::plan::Plan;
pub(crate) use pressure::{Measures, causes};
pub use pressure::{PRESSURE_CAUSES, Pressure, PressureCause};

/// Number of processes, and of cgroups, that are listed by name; the sums of all others follow as [`OTHERS`].
const NAMED: usize = 8;
/// Name of the sum of all parts that are not among the largest.
pub const OTHERS: &str = "others";
/// Name of an unknown process or cgroup.
const UNKNOWN: &str = "-";

/// Memory of the connections that a daemon sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Connections that the daemon sizes.
    pub connections: u64,
    /// Connections beyond `max-connections`, which the kernel sizes; no other figure here includes them.
    pub untuned_connections: u64,
    /// Memory of the send queues.
    pub send: Side,
    /// Memory of the receive queues.
    pub receive: Side,
    /// Why memory is short; empty: memory suffices.
    pub pressure: Vec<Pressure>,
    /// The daemon's groups in their order, then the connections in no group; omitted if there are no groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupMemory>,
    /// Processes that hold the sockets, the largest first; empty if they were not looked up.
    #[serde(default)]
    pub processes: Vec<Part>,
    /// Cgroups in which the sockets were made, the largest first; empty if they were not looked up.
    #[serde(default)]
    pub cgroups: Vec<Part>,
}

/// Memory of one direction, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Bound of the memory that the queues may hold together.
    pub budget_bytes: u64,
    /// Content of the queues.
    pub held_bytes: u64,
    /// Sum of the buffers' limits.
    pub allowed_bytes: u64,
    /// Memory kept for connections that arrive before the next round of shares, and for changes until then.
    pub reserved_newcomers_bytes: u64,
    /// Room in the buffers of idle connections.
    pub reserved_idle_bytes: u64,
    /// Number of idle connections.
    pub idle_connections: u64,
    /// Content of the queues whose buffers programs have set; no other figure includes these buffers.
    #[serde(default)]
    pub outside_bytes: u64,
}

/// Memory of one group's connections, which has a budget of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMemory {
    /// Name of the group; `null`: the connections in no group.
    pub name: Option<String>,
    /// Connections that the daemon sizes.
    pub connections: u64,
    /// Memory of the send queues.
    pub send: Side,
    /// Memory of the receive queues.
    pub receive: Side,
}

/// The part of a process or cgroup, bytes; without buffers that programs have set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `rsync/7`, the cgroup's path, `-` if unknown, or [`OTHERS`].
    pub name: String,
    /// Number of connections.
    pub connections: u64,
    /// Content of their send queues.
    pub send_held_bytes: u64,
    /// Sum of their send buffers' limits.
    pub send_allowed_bytes: u64,
    /// Room in the send buffers of the idle connections.
    #[serde(default)]
    pub send_reserved_bytes: u64,
    /// Content of their receive queues.
    pub receive_held_bytes: u64,
    /// Sum of their receive buffers' limits.
    pub receive_allowed_bytes: u64,
    /// Room in the receive buffers of the idle connections.
    #[serde(default)]
    pub receive_reserved_bytes: u64,
}

impl Budget {
    /// Returns whether memory is short.
    #[must_use]
    pub fn is_short(&self) -> bool {
        !self.pressure.is_empty()
    }
}

/// Returns whether nothing has moved for [`Config::IDLE`] in either direction.
fn is_idle(connection: &Connection) -> bool {
    let idle = |since: u32| u64::from(since) * 1_000 > Config::IDLE.0;
    idle(connection.info.last_data_sent) && idle(connection.info.last_data_recv)
}

impl Side {
    /// Returns the bytes that are promised and not held.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_newcomers_bytes.saturating_add(self.reserved_idle_bytes)
    }

    /// Returns the memory of a side without connections: the part of the budget that is not shared out is kept for
    /// newcomers.
    fn of(budget: Bytes, asked: &Asked) -> Self {
        let is_shared = asked.shared > Bytes::ZERO;
        let reserved_newcomers_bytes = if is_shared { (budget - asked.shared).0 } else { 0 };
        Self { budget_bytes: budget.0, reserved_newcomers_bytes, ..Self::default() }
    }

    /// Adds a queue; `is_owned`: a program has set its buffer.
    fn add(&mut self, held: u32, allowed: u32, is_idle: bool, is_owned: bool) {
        if is_owned {
            self.outside_bytes += u64::from(held);
            return;
        }
        self.held_bytes += u64::from(held);
        self.allowed_bytes += u64::from(allowed);
        if is_idle {
            self.idle_connections += 1;
            self.reserved_idle_bytes += u64::from(allowed.saturating_sub(held));
        }
    }
}

impl AddAssign for Side {
    fn add_assign(&mut self, other: Self) {
        self.budget_bytes += other.budget_bytes;
        self.held_bytes += other.held_bytes;
        self.allowed_bytes += other.allowed_bytes;
        self.reserved_newcomers_bytes += other.reserved_newcomers_bytes;
        self.reserved_idle_bytes += other.reserved_idle_bytes;
        self.idle_connections += other.idle_connections;
        self.outside_bytes += other.outside_bytes;
    }
}

impl Part {
    fn of(connection: &Connection, owned: Owned) -> Self {
        let mut sides = Sides::default();
        sides.add(connection, owned);
        let Sides { connections, send, receive } = sides;
        Self {
            name: String::new(),
            connections,
            send_held_bytes: send.held_bytes,
            send_allowed_bytes: send.allowed_bytes,
            send_reserved_bytes: send.reserved_idle_bytes,
            receive_held_bytes: receive.held_bytes,
            receive_allowed_bytes: receive.allowed_bytes,
            receive_reserved_bytes: receive.reserved_idle_bytes,
        }
    }

    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.send_held_bytes += other.send_held_bytes;
        self.send_allowed_bytes += other.send_allowed_bytes;
        self.send_reserved_bytes += other.send_reserved_bytes;
        self.receive_held_bytes += other.receive_held_bytes;
        self.receive_allowed_bytes += other.receive_allowed_bytes;
        self.receive_reserved_bytes += other.receive_reserved_bytes;
    }

    /// Returns the bytes that both queues hold.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.send_held_bytes + self.receive_held_bytes
    }

    /// Returns the bytes that both limits allow.
    #[must_use]
    pub fn allowed_bytes(&self) -> u64 {
        self.send_allowed_bytes + self.receive_allowed_bytes
    }
}

/// The terms of one part of the connections: those of a group, or those in no group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The group's name.
    pub(crate) group: Option<String>,
    pub(crate) plan: Plan,
    /// Demand of the part's connections at the last round of shares.
    pub(crate) asked: AskedBoth,
}

/// Memory of one part of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) connections: u64,
    pub(crate) send: Side,
    pub(crate) receive: Side,
}

impl Sides {
    fn add(&mut self, connection: &Connection, owned: Owned) {
        let (mem, is_idle) = (&connection.mem, is_idle(connection));
        self.connections += 1;
        self.send.add(mem.wmem_queued, mem.sndbuf, is_idle, owned.send);
        self.receive.add(mem.rmem_alloc, mem.rcvbuf, is_idle, owned.receive);
    }

    fn pressure(&self, terms: &Terms, host: Option<TcpMemory>) -> impl Iterator<Item = Pressure> {
        let held = [Bytes(self.send.held_bytes), Bytes(self.receive.held_bytes)];
        let causes = causes(&Measures::new(&terms.plan, &terms.asked, held, host));
        causes.into_iter().map(|one| one.of(terms.group.as_deref()))
    }
}

/// The sums while connections are added to them.
#[derive(Debug)]
pub(crate) struct Census<'a> {
    terms: &'a [Terms],
    parts: Vec<Sides>,
    untuned_connections: u64,
    processes: HashMap<Option<(i32, String)>, Part>,
    cgroups: HashMap<Option<String>, Part>,
}

impl<'a> Census<'a> {
    /// Returns empty sums of all parts; the last part is in no group.
    pub(crate) fn new(terms: &'a [Terms]) -> Self {
        let parts = terms.iter().map(|terms| Sides {
            send: Side::of(terms.plan.budget, &terms.asked.send),
            receive: Side::of(terms.plan.receive_budget, &terms.asked.receive),
            ..Sides::default()
        });
        let (processes, cgroups) = (HashMap::new(), HashMap::new());
        Self { terms, parts: parts.collect(), untuned_connections: 0, processes, cgroups }
    }

    /// Adds a connection that the daemon sizes to the part with that number; `owned`: the buffers that its program has
    /// set.
    pub(crate) fn add(&mut self, connection: &Connection, owned: Owned, part: usize) {
        if let Some(part) = self.parts.get_mut(part) {
            part.add(connection, owned);
        }
    }

    /// Returns the memory of each part.
    pub(crate) fn parts(&self) -> &[Sides] {
        &self.parts
    }

    /// Adds a connection to the sums of its process and of its cgroup.
    pub(crate) fn attribute(
        &mut self,
        connection: &Connection,
        owned: Owned,
        process: Option<&Process>,
        cgroup: Option<&str>,
    ) {
        let part = Part::of(connection, owned);
        let process = process.map(|process| (process.pid, process.name.clone()));
        self.processes.entry(process).or_default().add(&part);
        self.cgroups.entry(cgroup.map(str::to_owned)).or_default().add(&part);
    }

    /// Counts a connection beyond `max-connections`.
    pub(crate) fn add_untuned(&mut self) {
        self.untuned_connections += 1;
    }

    /// Returns the whole result; `host` is the kernel's memory for TCP, of the whole host.
    pub(crate) fn finish(self, host: Option<TcpMemory>) -> Budget {
        let Self { terms, parts, untuned_connections, processes, cgroups } = self;
        let terms_count = terms.len();
        let mut budget = Budget { untuned_connections, ..Budget::default() };
        for (number, (sides, terms)) in parts.iter().zip(terms).enumerate() {
            budget.connections += sides.connections;
            budget.send += sides.send;
            budget.receive += sides.receive;
            budget.groups.extend((terms_count > 1).then(|| GroupMemory {
                name: terms.group.clone(),
                connections: sides.connections,
                send: sides.send,
                receive: sides.receive,
            }));
            budget.pressure.extend(sides.pressure(terms, host.filter(|_| number + 1 == parts.len())));
        }
        let process = |process: Option<(i32, String)>| {
            process.map_or_else(|| UNKNOWN.to_owned(), |(pid, name)| format!("{name}/{pid}"))
        };
        let cgroup = |cgroup: Option<String>| cgroup.unwrap_or_else(|| UNKNOWN.to_owned());
        budget.processes =
            largest(processes.into_iter().map(|(key, part)| Part { name: process(key), ..part }));
        budget.cgroups = largest(cgroups.into_iter().map(|(key, part)| Part { name: cgroup(key), ..part }));
        budget
    }
}

/// Returns the largest parts, by held bytes and then by allowed bytes; all others are summed as one.
fn largest(parts: impl Iterator<Item = Part>) -> Vec<Part> {
    let mut parts: Vec<Part> = parts.collect();
    parts.sort_by(|a, b| {
        let size = |one: &Part| Reverse((one.held_bytes(), one.allowed_bytes()));
        size(a).cmp(&size(b)).then_with(|| a.name.cmp(&b.name))
    });
    if parts.len() > NAMED {
        let mut others = Part { name: OTHERS.to_owned(), ..Part::default() };
        parts.drain(NAMED..).for_each(|part| others.add(&part));
        parts.push(others);
    }
    parts
}

#[cfg(test)]
pub(crate) mod tests;
