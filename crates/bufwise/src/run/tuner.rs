//! The loop beside a running command: look at its connections, share the memory out, carry out wishes.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_bpf::{Cgroup, Config, Engine, FlowState, ReceiveRule, Shares, Wish, now, reach};
use bufwise_policy::Bytes;
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_socket::options;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::choice::Choice;
use super::command::Running;
use super::history::Histories;
use super::report::Report;
use super::shares::ShareBook;

/// How often the connections are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Largest receive window that is ever offered.
const MAX_WINDOW: Bytes = Bytes(64 << 20);
/// Largest payload of a send buffer: what the kernel's `int` holds, with room.
const MAX_SEND: Bytes = Bytes(512 << 20);

/// What is to be done to the command's connections.
pub(super) struct Plan {
    pub(super) choice: Choice,
    pub(super) budget: Bytes,
    pub(super) max_window: Bytes,
    take_over: bool,
}

impl Plan {
    pub(super) fn new(choice: Choice, memory: Option<Bytes>, take_over: bool) -> Result<Self> {
        let budget = memory.map_or_else(half_of_tcps_memory, Ok)?;
        Ok(Self { choice, budget, max_window: MAX_WINDOW, take_over })
    }

    pub(super) fn engine_config(&self) -> Config {
        Config {
            send: self.choice.send_rule(),
            receive: self.choice.receive_rule(),
            fixed: self.choice.fixed(),
            max_send: Bytes(self.budget.0 / 2).min(MAX_SEND),
            max_window: self.max_window,
            send_cap: setting("core/wmem_max"),
            receive_cap: setting("core/rmem_max"),
            take_over: self.take_over,
            ..Config::default()
        }
    }

    /// The rule may ask for windows that the usual window scale cannot express.
    pub(super) fn raises_window_scale(&self) -> bool {
        matches!(self.choice.receive_rule(), ReceiveRule::Drs | ReceiveRule::Sobas)
    }
}

/// Half of what the kernel gives TCP before it speaks of pressure (004, section 2.2.2: half of all network memory).
fn half_of_tcps_memory() -> Result<Bytes> {
    let field = |path, place| {
        let text = fs::read_to_string(path).ok()?;
        text.split_whitespace().nth(place)?.parse().ok().map(Bytes)
    };
    if let Some(pages) = field("/proc/sys/net/ipv4/tcp_mem", 1) {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4_096);
        return Ok(pages.scaled(page.unsigned_abs(), 2));
    }
    // It shows in the first network namespace alone. By default it is a 16th of the memory (`tcp_init_mem()`).
    let kilobytes = field("/proc/meminfo", 1).context("cannot see how much memory there is: use --memory")?;
    Ok(kilobytes.scaled(1_024, 32))
}

/// A size among the network settings; the kernel's built-in default where it cannot be seen.
fn setting(name: &str) -> Bytes {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok();
    Bytes(text.and_then(|text| text.trim().parse().ok()).unwrap_or(212_992))
}

/// The loop and what it knows.
pub(super) struct Tuner {
    plan: Plan,
    engine: Engine,
    diag: Option<Diag>,
    connections: Vec<Connection>,
    shares: ShareBook,
    histories: Histories,
    places: HashMap<u64, reach::Place>,
    next_round: Instant,
    /// Connections at the last look: newcomers do not wait for the next round.
    known: usize,
    held_max: Bytes,
    notes: Vec<String>,
}

impl Tuner {
    pub(super) fn new(plan: Plan, engine: Engine) -> Result<Self> {
        let diag = Diag::open().map_err(|error| error.to_string());
        let shares = ShareBook::new(plan.choice.send, plan.budget);
        let mut tuner = Self {
            plan,
            engine,
            diag: None,
            connections: Vec::new(),
            shares,
            histories: Histories::default(),
            places: HashMap::new(),
            next_round: Instant::now(),
            known: 0,
            held_max: Bytes::ZERO,
            notes: Vec::new(),
        };
        match diag {
            Ok(diag) => tuner.diag = Some(diag),
            Err(error) => tuner.note(format!("what limits connections cannot be told: {error}")),
        }
        tuner.engine.beat(Shares::default())?;
        Ok(tuner)
    }

    /// Adds a line to the report, once.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Tunes until the command has ended; its exit status.
    pub(super) fn run(&mut self, cgroup: &Cgroup, running: &Running) -> Result<u8> {
        let mut next_look = Instant::now();
        loop {
            let wait = next_look.saturating_duration_since(Instant::now());
            let wishes = wait_for(self.engine.wishes_fd(), running.wake_fd(), wait)?;
            if wishes {
                self.carry_out(cgroup)?;
            }
            if let Some(status) = running.status() {
                self.look()?;
                return Ok(status);
            }
            if Instant::now() >= next_look {
                self.look()?;
                next_look = (next_look + LOOK).max(Instant::now());
            }
        }
    }

    /// One look at all connections, and a new round of shares when it is due.
    fn look(&mut self) -> Result<()> {
        let flows = self.engine.flows()?;
        if let Some(diag) = &mut self.diag {
            // A dump that fails once leaves a gap, no more.
            let _gap = diag.tcp_into(States::CONNECTED, &mut self.connections);
        }
        self.histories.look(&flows, &self.connections, now());
        let (held, beyond) = self.held(&flows);
        self.held_max = self.held_max.max(held);
        self.shares.look(&flows, beyond);
        let known = std::mem::replace(&mut self.known, flows.len());
        let shares = if Instant::now() >= self.next_round || known != flows.len() {
            self.next_round = Instant::now() + self.shares.interval();
            let round = self.shares.round(&flows, held);
            for (cookie, order) in round.orders {
                self.engine.order(cookie, order)?;
            }
            round.shares
        } else {
            self.engine.shares().unwrap_or(Shares::default())
        };
        for flow in flows.iter().filter(|flow| flow.closed) {
            self.engine.forget(flow.cookie);
            self.shares.forget(flow.cookie);
            self.places.remove(&flow.cookie);
        }
        Ok(self.engine.beat(shares)?)
    }

    /// Memory that the send queues hold now, and how much of it beyond the buffers' limits.
    fn held(&self, flows: &[FlowState]) -> (Bytes, Bytes) {
        let memory: HashMap<u64, (u32, u32)> =
            self.connections.iter().map(|one| (one.cookie, (one.mem.wmem_queued, one.mem.sndbuf))).collect();
        let now = |flow: &FlowState| {
            let seen = (flow.sample.send_queued, flow.sample.sndbuf);
            let of = |(queued, limit): &(u32, u32)| (Bytes((*queued).into()), Bytes((*limit).into()));
            memory.get(&flow.cookie).map_or(seen, of)
        };
        let open = flows.iter().filter(|flow| !flow.closed).map(now);
        open.fold((Bytes::ZERO, Bytes::ZERO), |(held, beyond), (queued, limit)| {
            (held + queued, beyond + (queued - limit))
        })
    }

    fn carry_out(&mut self, cgroup: &Cgroup) -> Result<()> {
        let wishes = self.engine.wishes()?;
        if wishes.is_empty() {
            return Ok(());
        }
        let processes = cgroup.processes();
        for wish in wishes {
            self.grant(&wish, &processes);
        }
        Ok(())
    }

    fn grant(&mut self, wish: &Wish, processes: &[i32]) {
        let hint = self.places.get(&wish.cookie).copied();
        // A connection may be over by now.
        let Some((place, socket)) = reach::socket(wish.cookie, processes, hint) else { return };
        self.places.insert(wish.cookie, place);
        // The kernel doubles what it is told.
        let half = |size: Bytes| Bytes(size.0 / 2);
        let set =
            wish.send_buffer.map_or(Ok(()), |size| options::force_send_buffer(socket.as_fd(), half(size)));
        let set = set.and_then(|()| {
            wish.receive_buffer
                .map_or(Ok(()), |size| options::force_receive_buffer(socket.as_fd(), half(size)))
        });
        if let Err(error) = set {
            self.note(format!("buffers stay at the host's maximum: {error}"));
        }
    }

    /// The report on a command that has ended.
    pub(super) fn finish(self, command: Vec<String>, status: u8, elapsed: Duration) -> Report {
        Report::new(&self.plan, command, status, elapsed, self.held_max, &self.histories, self.notes)
    }
}

/// Waits for wishes or for the end of the command, at most `wait`; true if there are wishes.
fn wait_for(wishes: BorrowedFd<'_>, end: BorrowedFd<'_>, wait: Duration) -> Result<bool> {
    // Rounded up, or the last millisecond would be spent asking.
    let millis = u16::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u16::MAX);
    let mut fds = [PollFd::new(wishes, PollFlags::POLLIN), PollFd::new(end, PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::from(millis)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("cannot wait for the command"),
    }
    Ok(fds[0].any().unwrap_or(false))
}
