//! The work that `run` and `daemon` share: sampling connections, sharing out the memory, granting requests.

pub(crate) mod asked;
mod at_once;
pub(crate) mod books;
mod by_cookie;
pub mod choice;
mod orders;
pub mod plan;
pub(crate) mod shares;
pub mod sizes;
mod windows;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bufwise_bpf::reach::SocketCopy;
use bufwise_bpf::{
    Engine, EngineError, FlowState, Order, Released, Request, SendRule, Shares, UserEngine, now,
    sweeps_switch_callbacks_on,
};
use bufwise_socket::diag::Connection;
use bufwise_socket::options::{self, OptionError};
use bufwise_units::{Bytes, Micros, counted};

use crate::error::Result;
use crate::netns;
use books::{Books, Bounds};
use plan::Plan;

/// Returns the memory that the send queues hold together, by the engine's last samples. Buffers that programs have set are
/// outside the budget, and do not count.
pub fn held(flows: &[FlowState]) -> Bytes {
    let counts = |flow: &&FlowState| !flow.closed && !flow.owned.send;
    flows.iter().filter(counts).map(|flow| flow.sample.send_queued).sum()
}

/// As [`held`], for the receive queues.
pub(crate) fn held_to_receive(flows: &[FlowState]) -> Bytes {
    let counts = |flow: &&FlowState| !flow.closed && !flow.owned.receive;
    flows.iter().filter(counts).map(|flow| flow.sample.receive_queued).sum()
}

/// Memory of a sender's initial window, bytes: ten segments of 1,448 bytes, two in each buffer of 4 KiB. A connection
/// holds this much before a share can limit it, in addition to the buffer that its writer fills. Measured: 23.9 KB in all
/// for each of 500 connections with buffers of 4 KiB.
const INITIAL_WINDOW: Bytes = Bytes(20 << 10);

/// Returns why the plan's budget cannot be kept with these writers, and the remedy; `None` if it can be kept, or if the kernel
/// sizes the send buffers. A connection holds its initial window, and a writer fills the buffer that it has begun, whatever its
/// limit is (`tcp_sendmsg()`). Writers whose programs have set the buffer are outside the budget, and nothing is written to a
/// closing connection.
pub fn shortage<'a>(writers: impl Iterator<Item = &'a FlowState>, plan: &Plan) -> Option<String> {
    if plan.choice.send_rule() == SendRule::Kernel {
        return None;
    }
    let writers = writers.filter(|flow| flow.may_send && !flow.owned.send);
    let (count, least, largest) =
        writers.fold((0_u64, Bytes::ZERO, Bytes::ZERO), |(count, sum, largest), flow| {
            (count + 1, sum + INITIAL_WINDOW + flow.last_buffer, largest.max(flow.last_buffer))
        });
    let is_small = largest <= Bytes(at_once::LEAST);
    let remedy = if is_small { "" } else { ", or let them fill less at once with --gso-max-size 4KiB" };
    (least > plan.budget).then(|| {
        let (are, each) = if count == 1 { ("is", "") } else { ("are", "each ") };
        let connections = counted(count, "connection");
        format!(
            "{connections} {are} sending, and {each}may hold an initial window and the buffer that its writer fills, \
             whatever its limit: {} in all, more than the memory of {}; raise --memory to at least {}KiB{remedy}",
            least.readable(),
            plan.budget.readable(),
            least.0.div_ceil(1 << 10),
        )
    })
}

/// Returns for how many busy connections a small budget can be kept, and what to do for more. These are few if the devices
/// are not bounded (`bounds_devices` is false, because other programs use them as well): no socket option bounds what a
/// writer fills at once. `None` if the user has not set the memory, if the user has set what writers fill, or if the budget
/// is large enough for many writers (`plan::WRITERS`).
#[must_use]
pub fn kept_for(plan: &Plan, bounds_devices: bool) -> Option<String> {
    let each = if bounds_devices {
        INITIAL_WINDOW + Bytes(at_once::LEAST)
    } else {
        Bytes(at_once::KEPT_ABOVE * at_once::NEEDLESS)
    };
    let (budget, kept) = (plan.budget.readable(), plan.budget.0 / each.0);
    plan.at_once.filter(|size| *size < at_once::NEEDLESS || kept < plan::WRITERS)?;
    let (each, kept) = (each.0 >> 10, counted(kept, "busy connection"));
    Some(if bounds_devices {
        format!(
            "the memory of {budget} is kept for up to {kept}, {each}KiB for each, the least that one may hold"
        )
    } else {
        format!(
            "more than {kept} may exceed the memory of {budget}, because each fills up to {}KiB at once, and \
             bufwise does not bound network devices that other programs use, too: give --memory {each}KiB for each \
             connection, or bound the devices for all programs with --gso-max-size 4KiB",
            at_once::NEEDLESS >> 10,
        )
    })
}

/// The engine of a `run`.
#[derive(Debug)]
pub enum RunEngine {
    /// Programs in the kernel do the sizing.
    Kernel(Box<Engine>),
    /// This process does the sizing, without any privilege.
    User(Box<UserEngine>),
}

impl RunEngine {
    /// Returns every connection; closed ones for the last time.
    fn flows(&self) -> Result<Vec<FlowState>, EngineError> {
        match self {
            Self::Kernel(engine) => engine.flows(),
            Self::User(engine) => Ok(engine.flows()),
        }
    }
}

/// An engine that takes shares and orders, as [`Books`] computes them.
pub(crate) trait TakesBounds {
    fn order(&mut self, orders: &[(u64, Order)]) -> Result<(), EngineError>;
    fn forget(&mut self, cookie: u64);
    fn heartbeat(&mut self, shares: Shares) -> Result<(), EngineError>;
}

impl TakesBounds for Engine {
    fn order(&mut self, orders: &[(u64, Order)]) -> Result<(), EngineError> {
        Self::order(self, orders)
    }

    fn forget(&mut self, cookie: u64) {
        Self::forget(self, cookie);
    }

    fn heartbeat(&mut self, shares: Shares) -> Result<(), EngineError> {
        Self::heartbeat(self, shares)
    }
}

impl TakesBounds for RunEngine {
    fn order(&mut self, orders: &[(u64, Order)]) -> Result<(), EngineError> {
        match self {
            Self::Kernel(engine) => engine.order(orders),
            Self::User(engine) => {
                orders.iter().for_each(|(cookie, order)| engine.order(*cookie, *order));
                Ok(())
            }
        }
    }

    fn forget(&mut self, cookie: u64) {
        match self {
            Self::Kernel(engine) => engine.forget(cookie),
            Self::User(engine) => engine.forget(cookie),
        }
    }

    fn heartbeat(&mut self, shares: Shares) -> Result<(), EngineError> {
        match self {
            Self::Kernel(engine) => engine.heartbeat(shares),
            Self::User(engine) => {
                engine.set_shares(shares);
                Ok(())
            }
        }
    }
}

/// The engine of a `run`, and the shares of its connections.
pub struct Tuner {
    engine: RunEngine,
    books: Books,
}

impl Tuner {
    /// Takes an engine made by this plan, and gives it the first shares.
    ///
    /// # Errors
    /// The shares cannot be written to the engine.
    pub fn new(plan: &Plan, mut engine: RunEngine) -> Result<Self> {
        let books = Books::new(plan);
        // The first connections may come before the first sample.
        engine.heartbeat(books.shares())?;
        Ok(Self { engine, books })
    }

    /// Sets the process of the command, a child of this process.
    pub fn watch(&mut self, command: u32) {
        if let RunEngine::User(engine) = &mut self.engine {
            engine.watch(command);
        }
    }

    /// Returns every connection; closed ones for the last time.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub fn flows(&self) -> Result<Vec<FlowState>> {
        Ok(self.engine.flows()?)
    }

    /// Returns the number of connections that have moved so little that they have no record; none with the engine in
    /// user space.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub fn of_little(&self) -> Result<u64> {
        match &self.engine {
            RunEngine::Kernel(engine) => Ok(engine.unrecorded()?),
            RunEngine::User(_) => Ok(0),
        }
    }

    /// Returns the connections that the engine has sampled since the last call; `None`: the caller must use socket diagnostics.
    #[must_use]
    pub fn connections(&mut self) -> Option<Vec<Connection>> {
        match &mut self.engine {
            RunEngine::Kernel(_) => None,
            RunEngine::User(engine) => Some(engine.connections().copied().collect()),
        }
    }

    /// Returns the largest memory that the send queues were seen to hold together, bytes.
    #[must_use]
    pub fn held_max(&self) -> Bytes {
        self.books.held_max()
    }

    /// Takes in a sample of the connections: computes shares if they are due, and renews the heartbeat. Returns the
    /// new bound of the devices in bytes, if it changes ([`Raised::bound_devices`]).
    ///
    /// # Errors
    /// The orders cannot be written to the engine.
    ///
    /// [`Raised::bound_devices`]: crate::caps::Raised::bound_devices
    pub fn observe(&mut self, flows: &[FlowState], held: Bytes) -> Result<Option<u64>> {
        let bounds = self.books.observe(flows, held, now());
        let at_once = bounds.at_once;
        // The next sample returns the bound of the devices again, which was lost with this one; the next round repeats the
        // orders.
        tell(&mut self.engine, bounds).inspect_err(|_| self.books.tell_again())?;
        Ok(at_once)
    }

    /// Does the due work of an engine in user space.
    pub fn poll(&mut self) {
        if let RunEngine::User(engine) = &mut self.engine {
            engine.poll();
        }
    }

    /// Returns the time at which [`Tuner::poll`] is due next; `None`: never.
    #[must_use]
    pub fn next_at(&self) -> Option<Micros> {
        match &self.engine {
            RunEngine::Kernel(_) => None,
            RunEngine::User(engine) => Some(engine.next_at()),
        }
    }

    /// Sweeps the connections of this process's network namespace: silent ones give back memory that they do not need,
    /// and receivers that receive little may rest (`bpf/resting.h`). Does nothing with the engine in user space, or on
    /// kernels on which a sweep cannot switch callbacks on.
    ///
    /// # Errors
    /// The engine's answer.
    pub fn sweep(&mut self) -> Result<()> {
        if let RunEngine::Kernel(engine) = &mut self.engine
            && sweeps_switch_callbacks_on()
        {
            engine.sweep(netns::open_own()?.as_fd())?;
        }
        Ok(())
    }

    /// Returns a descriptor that is readable when the programs in the kernel request sizes; `None` without such programs.
    #[must_use]
    pub fn requests_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.engine {
            RunEngine::Kernel(engine) => Some(engine.requests_fd()),
            RunEngine::User(_) => None,
        }
    }

    /// Grants requests that only user space can grant, on the sockets that `find` returns for their cookies and, where
    /// these are known, their inodes; returns the kernel's refusals.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub fn grant(
        &mut self,
        mut find: impl FnMut(u64, Option<u64>) -> Option<SocketCopy>,
    ) -> Result<Vec<OptionError>> {
        match &mut self.engine {
            RunEngine::Kernel(engine) => {
                Ok(grant_all(engine, |engine, cookie| find(cookie, engine.inode(cookie)))?)
            }
            RunEngine::User(_) => Ok(Vec::new()),
        }
    }

    /// Returns the time between two rounds of shares.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.books.interval()
    }

    /// Returns which connections the engine cannot size, and why; one line each.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        match &self.engine {
            RunEngine::Kernel(_) => Vec::new(),
            RunEngine::User(engine) => engine.limits().map(str::to_owned).collect(),
        }
    }

    /// Gives back the sockets that outlive the command.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub fn release_all(&mut self) -> Result<Released> {
        match &mut self.engine {
            RunEngine::Kernel(engine) => Ok(engine.release_all()?),
            RunEngine::User(engine) => Ok(engine.release_all()),
        }
    }
}

/// Passes the bounds of the connections to the engine, and renews the heartbeat.
pub(crate) fn tell(
    engine: &mut impl TakesBounds,
    Bounds { shares, orders, forget, at_once: _ }: Bounds,
) -> Result<(), EngineError> {
    // Even if an order cannot be written, closed connections are forgotten, because they would be counted again, and the
    // heartbeat is renewed. The next round repeats the order.
    let ordered = engine.order(&orders);
    forget.iter().for_each(|cookie| engine.forget(*cookie));
    engine.heartbeat(shares).and(ordered)
}

/// Grants the requests of the programs in the kernel, on the sockets that `find` returns for their cookies; returns the
/// kernel's refusals.
pub(crate) fn grant_all(
    engine: &mut Engine,
    mut find: impl FnMut(&Engine, u64) -> Option<SocketCopy>,
) -> Result<Vec<OptionError>, EngineError> {
    let requests = engine.requests()?;
    let granted = requests.iter().map(|request| {
        // The connection may have closed meanwhile.
        find(engine, request.cookie).map_or(Ok(()), |socket| grant(request, socket.as_fd()))
    });
    Ok(granted.filter_map(Result::err).collect())
}

fn grant(request: &Request, socket: BorrowedFd<'_>) -> Result<(), OptionError> {
    // The kernel doubles the value it is given.
    let half = |size: Bytes| Bytes(size.0 / 2);
    if let Some(size) = request.send_buffer {
        options::force_send_buffer(socket, half(size))?;
    }
    if let Some(size) = request.receive_buffer {
        options::force_receive_buffer(socket, half(size))?;
    }
    if let Some(window) = request.window {
        options::set_window_clamp(socket, window)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    pub(crate) use shares::tests::flow;

    fn shared(policy: &str, memory: &str) -> Plan {
        let asked = plan::Asked { memory: Some(memory.parse().unwrap()), ..plan::Asked::default() };
        Plan::new(policy.parse().unwrap(), asked).unwrap()
    }

    #[test]
    fn a_small_memory_is_told_with_how_many_it_holds_and_beside_devices_of_others_with_the_remedy() {
        let told = |policy: &str, memory: Option<&str>, at_once: &str, bounds_devices: bool| {
            let asked = plan::Asked {
                memory: memory.map(|size| size.parse().unwrap()),
                at_once: at_once.parse().unwrap(),
                ..plan::Asked::default()
            };
            kept_for(&Plan::new(policy.parse().unwrap(), asked).unwrap(), bounds_devices)
        };
        let text = told("abt", Some("2MiB"), "auto", true).unwrap();
        assert!(text.contains("2.10 MB is kept for up to 85 busy connections, 24KiB for each"), "{text}");
        let text = told("abt", Some("2MiB"), "auto", false).unwrap();
        assert!(text.starts_with("more than 10 busy connections may exceed the memory of 2.10 MB"), "{text}");
        assert!(text.contains("--memory 192KiB for each") && text.ends_with("--gso-max-size 4KiB"), "{text}");
        // Room for the first buffers of 256 writers, which takes a third of what keeps them.
        let text = told("abt", Some("16MiB"), "auto", false).unwrap();
        assert!(text.starts_with("more than 85 busy connections may exceed the memory of 16.78"), "{text}");
        assert_eq!(told("abt", Some("16MiB"), "auto", true), None);
        let unsaid = [
            ("abt", Some("48MiB"), "auto"),
            ("abt", None, "auto"),
            ("abt", Some("2MiB"), "device"),
            ("drs", Some("2MiB"), "auto"),
        ];
        for (policy, memory, at_once) in unsaid {
            for bounds_devices in [false, true] {
                assert_eq!(
                    told(policy, memory, at_once, bounds_devices),
                    None,
                    "{policy} {memory:?} {at_once}"
                );
            }
        }
    }

    #[test]
    fn buffers_that_programs_have_set_are_outside_the_budget() {
        let mut flows = [flow(1, 0), flow(2, 0), flow(3, 0)];
        for one in &mut flows {
            (one.sample.send_queued, one.sample.receive_queued) = (Bytes(100_000), Bytes(10_000));
        }
        (flows[1].owned.send, flows[2].owned.receive) = (true, true);
        assert_eq!((held(&flows), held_to_receive(&flows)), (Bytes(200_000), Bytes(20_000)));
        let plan = shared("abt", "64KiB");
        assert_eq!(shortage(flows[1..2].iter(), &plan), None);
        assert!(shortage(flows.iter(), &plan).is_some_and(|text| text.starts_with("2 connections")));
        flows[0].may_send = false;
        assert_eq!(shortage(flows[..2].iter(), &plan), None, "nothing is written to one that closes");
    }

    #[test]
    fn a_budget_below_what_writers_hold_anyway_is_named_with_the_least_that_will_do() {
        let short = |count: usize, last_buffer: u64, budget: &str| {
            let writers = vec![FlowState { last_buffer: Bytes(last_buffer), ..flow(1, 0) }; count];
            shortage(writers.iter(), &shared("abt", budget))
        };
        // An initial window of 20 KiB and a buffer of 64 for each.
        assert_eq!(short(12, 65_536, "1MiB"), None);
        let text = short(13, 65_536, "1MiB").unwrap();
        assert!(text.starts_with("13 connections are sending, and each may hold"), "{text}");
        assert!(text.contains("to at least 1092KiB, or let"), "{text}");
        assert_eq!(short(13, 65_536, "1092KiB"), None);
        let text = short(1, 65_536, "64KiB").unwrap();
        assert!(text.starts_with("1 connection is sending, and may hold an initial window"), "{text}");
        assert_eq!(short(42, 4_096, "1MiB"), None);
        let text = short(43, 4_096, "1MiB").unwrap();
        assert!(text.ends_with("to at least 1032KiB"), "nothing smaller can be filled at once: {text}");
        let writers = [FlowState { last_buffer: Bytes(65_536), ..flow(1, 0) }];
        assert_eq!(
            shortage(writers.iter(), &shared("drs", "64KiB")),
            None,
            "the kernel sizes the send buffers"
        );
    }
}
