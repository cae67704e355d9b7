//! `--policy fit` of `get` and `put`: `run`'s engine in user space, on the connections of this process.
//!
//! Problem: the rules of fit belong to the engine (`bufwise_bpf`); the mover, which sends and receives the bytes, has
//! none of them.
//! Solution: the mover leaves its connections to the kernel, and a thread beside it sizes them as `run` does from
//! outside.
//! Properties kept: no privilege is needed; the engine's allowance bounds its processor time; if the engine cannot
//! work, files are moved without it, and a line says why.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_bpf::{FlowState, UserEngine, now};
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::plan::{Asked, Plan};
use bufwise_host::tuner::{self, RunEngine, Tuner};
use bufwise_host::view::{PolicyNames, Tuned};

use crate::run::Treated;

/// Time between two computations of the shares.
const SAMPLE: Duration = Duration::from_millis(100);
/// Connections kept for the report: more than there can be concurrent transfers.
const REMEMBERED: usize = 1_024;

/// The running engine.
pub(super) struct OwnEngine {
    shared: Arc<Mutex<Shared>>,
    /// The thread runs until this is dropped.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// State shared by the thread and the report.
struct Shared {
    tuner: Tuner,
    policy: PolicyNames,
    /// The last figures of each connection, by its cookie.
    seen: BTreeMap<u64, FlowState>,
}

impl OwnEngine {
    /// Starts sizing this process's connections, present and future, by these policies.
    ///
    /// # Errors
    /// The memory of this machine is not known, or no thread can be started.
    pub(super) fn start(choice: Choice) -> Result<Self> {
        let plan = Plan::new(choice, Asked::default())?;
        let engine = RunEngine::User(Box::new(UserEngine::of_itself(&plan.engine_config())));
        let tuner = Tuner::new(&plan, engine)?;
        let shared = Shared { tuner, policy: choice.into(), seen: BTreeMap::new() };
        let shared = Arc::new(Mutex::new(shared));
        let (stop, stopped) = channel();
        let works = Arc::clone(&shared);
        let thread = thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || work(&works, &stopped)).context("cannot start a thread")?;
        Ok(Self { shared, stop, thread })
    }

    /// Returns the settings of a connection that has ended; `None` if it was too short to be sampled.
    pub(super) fn treated(&self, cookie: u64) -> Option<Treated> {
        let mut shared = lock(&self.shared);
        shared.sample();
        let flow = shared.seen.remove(&cookie)?;
        Some(Treated {
            tuned: Tuned::of(&flow, &shared.policy),
            application_set_send_buffer: flow.owned.send,
            application_set_receive_buffer: flow.owned.receive,
        })
    }

    /// Gives the open connections back to the kernel; returns the limits of the engine here, one line each.
    pub(super) fn end(self) -> Vec<String> {
        drop(self.stop);
        let _ended = self.thread.join();
        let mut shared = lock(&self.shared);
        // Unreachable connections end with this process.
        let _given_back = shared.tuner.release_all();
        shared.tuner.limits()
    }
}

impl Shared {
    fn sample(&mut self) {
        let Ok(flows) = self.tuner.flows() else { return };
        // Bounds for devices are ignored: they are not ours to set. If the shares cannot be computed, the last ones
        // stay.
        let _shares = self.tuner.observe(&flows, tuner::held(&flows));
        self.seen.extend(flows.into_iter().map(|flow| (flow.cookie, flow)));
        while self.seen.len() > REMEMBERED {
            self.seen.pop_first();
        }
    }

    fn until_work(&self) -> Duration {
        let next_at = self.tuner.next_at().map(|at| Duration::from(at.since(now())));
        next_at.unwrap_or(SAMPLE)
    }
}

fn work(shared: &Mutex<Shared>, stopped: &Receiver<()>) {
    let mut next_sample = Instant::now();
    loop {
        let until_sample = next_sample.saturating_duration_since(Instant::now());
        let wait = lock(shared).until_work().min(until_sample);
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let mut shared = lock(shared);
        shared.tuner.poll();
        if Instant::now() >= next_sample {
            shared.sample();
            next_sample = Instant::now() + SAMPLE;
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use bufwise_policy::PolicyKind;
    use bufwise_socket::diag::Connection;

    use super::*;

    #[test]
    fn a_connection_is_seen_while_it_lasts_and_told_of_after_its_end() {
        // Tests run concurrently in one process, so these policies must not set anything.
        let choice = Choice { send: PolicyKind::Kernel, receive: PolicyKind::Kernel };
        let engine = OwnEngine::start(choice).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = Connection::of(client.as_fd(), 0).unwrap().cookie;
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_seen = || lock(&engine.shared).seen.contains_key(&cookie);
        while !is_seen() {
            assert!(Instant::now() < deadline, "not within 30 s");
            // The engine's thread needs the lock, too.
            thread::sleep(Duration::from_millis(1));
        }
        let flow = lock(&engine.shared).seen[&cookie];
        drop(client);
        let treated = engine.treated(cookie).unwrap();
        assert!(!treated.application_set_send_buffer && treated.tuned == Tuned::default());
        assert!(engine.treated(u64::MAX).is_none());
        lock(&engine.shared).seen.extend((0..2_000).map(|cookie| (cookie, flow)));
        assert!(
            engine.treated(0).is_none() && lock(&engine.shared).seen.len() <= REMEMBERED,
            "the oldest go"
        );
        engine.end();
    }
}
