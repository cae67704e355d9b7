//! The loop beside a running command: tunes its connections, and samples them for the report.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_bpf::{Cgroup, FlowState, Owners, Released, now, processor_time};
use bufwise_host::caps::Raised;
use bufwise_host::in_words;
use bufwise_host::leftovers;
use bufwise_host::tcp_memory::TcpMemory;
use bufwise_host::tuner::plan::Plan;
use bufwise_host::tuner::{self, RunEngine, Tuner};
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_units::{Bytes, Micros, counted};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::command::Running;
use super::history::Histories;
use super::report::{Ended, Report};

/// Time between two samples of the connections. It is longer where a sample takes long ([`after`]), but no longer than the time
/// between two rounds of shares.
const SAMPLE: Duration = Duration::from_millis(100);
/// Time between a sample that failed and the next.
const RETRY: Duration = Duration::from_secs(1);
/// Samples, and grants of requests, may each take one part in this many of a processor.
const PART_OF_WORK: u32 = 10;
/// Longest time for which requests are collected: the programs repeat a request after a second (`bpf/upkeep.h`).
const COLLECT: Duration = Duration::from_millis(500);
/// Time between two sweeps; the first comes as long after the start.
const SWEEP: Duration = Duration::from_secs(2);
/// Listing all sockets may take one part in this many of a processor, and sweeping them as much again. Both walk the kernel's
/// whole table of connections, in which a busy server also has tens of thousands that are closing. A server on the same
/// processor waits meanwhile, so the part is small enough not to raise its 99th percentile of response times.
const PART_OF_A_PROCESSOR: u32 = 250;
/// Time that listing may take in addition, so that a short command is sampled as well; and the number of lists that are taken whatever
/// they cost, because a machine with much memory has a large table, and takes longer than that for two.
const AT_FIRST: Micros = Micros::from_millis(20);
const LISTS_AT_FIRST: u32 = 4;

/// The loop and its state.
pub(super) struct Watch {
    plan: Plan,
    tuner: Tuner,
    diag: Option<Diag>,
    /// Processor time that the kernel has taken to list all sockets since `began`.
    asked_for: Micros,
    /// Number of these lists.
    lists: u32,
    began: Instant,
    next_sweep: Instant,
    next_grant: Instant,
    connections: Vec<Connection>,
    histories: Histories,
    /// The command's sockets, when one with a request was last searched for.
    owners: Owners,
    /// Bounds of network devices, in force until this is dropped.
    devices: Option<Raised>,
    notes: Vec<String>,
    /// Whether the report already says that the memory is too small.
    is_short: bool,
}

impl Watch {
    pub(super) fn new(
        plan: Plan,
        engine: RunEngine,
        devices: Option<Raised>,
        notes: Vec<String>,
    ) -> Result<Self> {
        let tuner = Tuner::new(&plan, engine)?;
        let mut watch = Self {
            plan,
            tuner,
            diag: None,
            asked_for: Micros::ZERO,
            lists: 0,
            began: Instant::now(),
            next_sweep: Instant::now() + SWEEP,
            next_grant: Instant::now(),
            connections: Vec::new(),
            histories: Histories::default(),
            owners: Owners::default(),
            devices,
            notes,
            is_short: false,
        };
        if watch.tuner.connections().is_some() {
            return Ok(watch);
        }
        match Diag::open() {
            Ok(diag) => watch.diag = Some(diag),
            Err(error) => watch.note(format!("cannot find what limits connections: {error}")),
        }
        Ok(watch)
    }

    /// Adds a line to the report, unless it is already there.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Tunes until the command has ended; returns its exit status.
    ///
    /// # Errors
    /// The connections cannot be tuned any more; the command goes on.
    pub(super) fn run(&mut self, cgroup: Option<&Cgroup>, running: &Running) -> Result<u8> {
        let mut next_sample = Instant::now();
        self.tuner.watch(running.pid());
        loop {
            let until_sample = next_sample.saturating_duration_since(Instant::now());
            let until_work = self.tuner.next_at().map(|at| Duration::from(at.since(now())));
            let until_grant = self.next_grant.saturating_duration_since(Instant::now());
            let requests = self.tuner.requests_fd().filter(|_| until_grant.is_zero());
            let collects = Some(until_grant).filter(|pause| !pause.is_zero());
            let wait = until_work.into_iter().chain(collects).fold(until_sample, Duration::min);
            if wait_for(requests, running.wake_fd(), wait)? {
                self.carry_out(cgroup)?;
            }
            self.tuner.poll();
            self.sweep();
            if let Some(status) = running.status() {
                self.sample()?;
                return Ok(status);
            }
            let begin = Instant::now();
            if begin >= next_sample {
                next_sample = match self.sample() {
                    Ok(()) => (next_sample + SAMPLE).max(after(begin, self.tuner.interval())),
                    // Memory may be short for a moment. Until a sample succeeds, the programs in the kernel go on without shares.
                    Err(error) => {
                        self.note(format!("a sample failed: {}", in_words(error.as_ref())));
                        begin + RETRY
                    }
                };
            }
        }
    }

    /// Starts a sweep, if it is due: the engine in the kernel treats connections that are silent and cause no callbacks.
    fn sweep(&mut self) {
        if Instant::now() < self.next_sweep {
            return;
        }
        let before = processor_time();
        if let Err(error) = self.tuner.sweep() {
            self.note(format!("cannot sweep silent connections: {error}"));
        }
        let used = Duration::from(processor_time().since(before));
        self.next_sweep = Instant::now() + SWEEP.max(used * PART_OF_A_PROCESSOR);
    }

    /// Grants the requests of the programs in the kernel. One search of the command's descriptors serves all requests.
    fn carry_out(&mut self, cgroup: Option<&Cgroup>) -> Result<()> {
        let begin = Instant::now();
        let (owners, mut is_fresh) = (&mut self.owners, false);
        let refused = self.tuner.grant(|cookie, inode| {
            let find = |owners: &Owners| match inode {
                Some(inode) => owners.socket(inode, cookie),
                None => owners.search(cookie),
            };
            find(owners).or_else(|| {
                if !std::mem::replace(&mut is_fresh, true) {
                    *owners = Owners::of(cgroup.map(Cgroup::processes).unwrap_or_default());
                }
                find(owners)
            })
        })?;
        self.next_grant = after(begin, COLLECT);
        for error in refused {
            self.note(format!("buffers stay within the host's maxima: {error}"));
        }
        Ok(())
    }

    /// Samples all connections and computes their shares.
    fn sample(&mut self) -> Result<()> {
        let mut flows = self.tuner.flows()?;
        let listed_at = if let Some(seen) = self.tuner.connections() {
            self.connections = seen;
            None
        } else {
            self.dump(flows.is_empty());
            let listed_at = now();
            self.refresh_queues(&mut flows);
            if let Some(note) = no_room(flows.len(), self.plan.max_connections) {
                self.note(note);
            }
            Some(listed_at)
        };
        if TcpMemory::now().is_some_and(|memory| memory.is_short()) {
            self.note(
                "the kernel was short of memory for TCP (net.ipv4.tcp_mem) and shrank buffers".to_owned(),
            );
        }
        self.tell_shortage(&flows);
        self.histories.observe(&flows, &self.connections, listed_at);
        let at_once = self.tuner.observe(&flows, tuner::held(&flows))?;
        if let Some((devices, size)) = self.devices.as_mut().zip(at_once) {
            let bounded = devices.bound_devices(size);
            if let Err(error) = bounded {
                self.note(format!("cannot change what a sender fills at once: {error}"));
            }
        }
        Ok(())
    }

    /// Lists all sockets, unless there is nothing to sample (`is_needless`) or the lists have taken too much time so far.
    fn dump(&mut self, is_needless: bool) {
        self.connections.clear();
        let earned = self.began.elapsed() / PART_OF_A_PROCESSOR;
        let allowed = AT_FIRST + Micros::from(earned);
        let is_allowed = self.lists < LISTS_AT_FIRST || self.asked_for <= allowed;
        let Some(diag) = self.diag.as_mut().filter(|_| !is_needless && is_allowed) else { return };
        let before = processor_time();
        // A failed dump only leaves a gap in the histories.
        let _gap = diag.tcp_into(States::CONNECTED, &mut self.connections);
        self.asked_for += processor_time().since(before);
        self.lists += 1;
    }

    /// Notes once that the memory budget cannot be kept with this many writing connections.
    fn tell_shortage(&mut self, flows: &[FlowState]) {
        if self.is_short {
            return;
        }
        let has_data = |flow: &&FlowState| !flow.closed && flow.sample.send_queued > Bytes::ZERO;
        if let Some(shortage) = tuner::shortage(flows.iter().filter(has_data), &self.plan) {
            self.is_short = true;
            self.note(shortage);
        }
    }

    /// Replaces the figures of the engine in the kernel of what the queues hold by those of the sampled sockets. The engine's
    /// figures are from the last callback, and no callback comes while a queue empties for the last time.
    fn refresh_queues(&self, flows: &mut [FlowState]) {
        let memory: HashMap<u64, _> = self.connections.iter().map(|one| (one.cookie, one.mem)).collect();
        for flow in flows {
            if let Some(now) = memory.get(&flow.cookie) {
                flow.sample.send_queued = Bytes(now.wmem_queued.into());
                flow.sample.receive_queued = Bytes(now.rmem_alloc.into());
            }
        }
    }

    /// Resets the devices, and the connections that outlive the command in processes that it left running.
    pub(super) fn give_back(&mut self) {
        self.devices = None;
        match self.tuner.release_all() {
            // Connections that no process holds any more end by themselves.
            Ok(Released { released: 0, refused: 0, .. }) => {}
            Ok(released) => self.note(leftovers::given_back(released)),
            Err(error) => self.note(format!("connections that stay open keep their buffers: {error}")),
        }
        self.tuner.limits().into_iter().for_each(|limit| self.note(limit));
    }

    /// Returns how many connections moved too little to need a size; 0 if it cannot be read.
    pub(super) fn of_little(&self) -> u64 {
        self.tuner.of_little().unwrap_or_default()
    }

    /// Returns the report, once the command has ended.
    pub(super) fn finish(self, ended: Ended) -> Report {
        let held_max = self.tuner.held_max();
        Report::new(&self.plan, ended, held_max, &self.histories, self.notes)
    }
}

/// Returns a note, with the remedy, if the engine in the kernel has no room for more records; `None` while it has.
fn no_room(records: usize, most: u32) -> Option<String> {
    (records >= most as usize).then(|| {
        let (tuned, were) = (counted(most, "connection"), if most == 1 { "was" } else { "were" });
        format!(
            "{tuned} {were} tuned at a time, the most allowed: the kernel sized the others; raise --max-connections"
        )
    })
}

/// Returns when work that began at `begin`, and ends now, may be done again; at most `longest` after its begin.
fn after(begin: Instant, longest: Duration) -> Instant {
    begin + (begin.elapsed() * PART_OF_WORK).min(longest)
}

/// Waits for requests or for the end of the command, at most `wait`; returns whether there are requests.
fn wait_for(requests: Option<BorrowedFd<'_>>, end: BorrowedFd<'_>, wait: Duration) -> Result<bool> {
    // poll() counts in milliseconds, which is too coarse for the packet trains that the engine in user space times.
    let wait = TimeSpec::from(wait);
    let waited_for = [Some(end), requests].into_iter().flatten();
    let mut fds: Vec<PollFd<'_>> = waited_for.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match ppoll(&mut fds, Some(wait), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("cannot wait for the command"),
    }
    Ok(fds.get(1).and_then(PollFd::any).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_long_is_done_more_rarely_up_to_a_bound() {
        let ago = |millis| Instant::now().checked_sub(Duration::from_millis(millis)).unwrap();
        let short = ago(20);
        let next = after(short, COLLECT).duration_since(short);
        assert!(next >= Duration::from_millis(200) && next <= COLLECT, "{next:?}");
        let long = ago(2_000);
        assert_eq!(after(long, COLLECT), long + COLLECT);
    }

    #[test]
    fn a_report_says_that_there_was_no_room_for_more_connections() {
        assert_eq!(no_room(19, 20), None);
        let note = no_room(20, 20).unwrap();
        assert!(note.starts_with("20 connections") && note.ends_with("raise --max-connections"), "{note}");
        assert!(no_room(1, 1).is_some_and(|note| note.starts_with("1 connection was tuned")));
    }
}
