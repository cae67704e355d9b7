//! `bufwise lab bpftune`: bpftune's rule on a laboratory host, from user space, for comparison.
//!
//! It samples the sockets of its network namespace and sets the maxima of `tcp_wmem` and `tcp_rmem` there while a
//! command runs.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_bpf::processor_time;
use bufwise_policy::bpftune::{Bpftune, Pool, Socket};
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_units::{Bytes, Micros};
use clap::Args;
use nix::poll::{PollFd, PollFlags, poll};

use crate::exit::{Failure, Outcome};
use crate::run::command::{self, Running, StartError};

/// Interval of samples: bpftune handles one event of a kind per 25 ms.
const INTERVAL: Duration = Duration::from_millis(25);
/// Sampling takes at most one part in this many of a processor.
const LARGEST_SHARE: u32 = 8;

/// Changes `tcp_wmem` and `tcp_rmem` of this network namespace by bpftune's rule while a command runs, then puts them back.
#[derive(Debug, Args)]
pub(crate) struct BpftuneArgs {
    /// The last number of `tcp_mem`, as 64MiB, by which the rule judges what this namespace's connections hold; without it memory is
    /// never short
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl BpftuneArgs {
    pub(crate) fn run(self) -> Outcome {
        let failed = |error: StartError| Failure::new(crate::exit::FAILED, error);
        let signals = command::catch_signals().map_err(failed)?;
        let mut host = Host::open(self.memory)?;
        let running = Running::start(None, &self.command, signals).map_err(failed)?;
        let start = Instant::now();
        loop {
            let before = processor_time();
            host.sample(start.elapsed().into())?;
            if let Some(status) = running.status() {
                return Ok(status);
            }
            let used = Duration::from(processor_time().since(before));
            let wait = INTERVAL.max(used * LARGEST_SHARE).as_millis();
            let wait = u16::try_from(wait).unwrap_or(u16::MAX);
            // A signal ends the wait early, which does no harm.
            let _interrupted = poll(&mut [PollFd::new(running.wake_fd(), PollFlags::POLLIN)], wait);
        }
    }
}

/// The network namespace: its sockets, and the rule for either maximum.
struct Host {
    diag: Diag,
    memory: Option<Bytes>,
    wmem: Tuned,
    rmem: Tuned,
    connections: Vec<Connection>,
    /// Bytes acknowledged and received by each connection, by its cookie.
    moved: HashMap<u64, (u64, u64)>,
}

impl Host {
    fn open(memory: Option<Bytes>) -> Result<Self> {
        Ok(Self {
            diag: Diag::open()?,
            memory,
            wmem: Tuned::open("/proc/sys/net/ipv4/tcp_wmem")?,
            rmem: Tuned::open("/proc/sys/net/ipv4/tcp_rmem")?,
            connections: Vec::new(),
            moved: HashMap::new(),
        })
    }

    fn sample(&mut self, now: Micros) -> Result<()> {
        // A dump that fails once (the kernel was short of memory) means one sample less.
        if self.diag.tcp_into(States::CONNECTED, &mut self.connections).is_err() {
            return Ok(());
        }
        let (mut senders, mut receivers, mut held) = (Vec::new(), Vec::new(), 0);
        let mut moved = HashMap::with_capacity(self.connections.len());
        for Connection { cookie, info, mem, .. } in &self.connections {
            let (acked, received) = self.moved.get(cookie).copied().unwrap_or_default();
            moved.insert(*cookie, (info.bytes_acked, info.bytes_received));
            held += u64::from(mem.wmem_queued) + u64::from(mem.rmem_alloc);
            let srtt = Micros(info.rtt.into());
            // The kernel expands a send buffer when the congestion window has room, a receive buffer when data was
            // read.
            let under_way = (info.unacked + info.retrans).saturating_sub(info.sacked + info.lost);
            if info.bytes_acked > acked && under_way < info.snd_cwnd {
                senders.push(Socket { buffer: Bytes(mem.sndbuf.into()), srtt });
            }
            if info.bytes_received > received {
                receivers.push(Socket { buffer: Bytes(mem.rcvbuf.into()), srtt });
            }
        }
        self.moved = moved;
        let pool = self.memory.map_or(Pool::Ample, |limit| Pool::of(Bytes(held), limit));
        self.wmem.sampled(now, senders, pool)?;
        self.rmem.sampled(now, receivers, pool)
    }
}

/// `tcp_wmem` or `tcp_rmem`; dropping it restores the former value.
struct Tuned {
    path: &'static str,
    found: String,
    rule: Bpftune,
}

impl Tuned {
    fn open(path: &'static str) -> Result<Self> {
        let found = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let numbers: Vec<u64> = found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [_, default, maximum] = numbers[..] else {
            anyhow::bail!("{path} has {:?}: three numbers were expected", found.trim())
        };
        Ok(Self { path, rule: Bpftune::new(Bytes(default), Bytes(maximum)), found })
    }

    fn sampled(&mut self, now: Micros, sockets: Vec<Socket>, pool: Pool) -> Result<()> {
        let Some(Bytes(maximum)) = self.rule.sampled(now, sockets, pool) else { return Ok(()) };
        let mut words: Vec<&str> = self.found.split_whitespace().collect();
        let maximum = maximum.to_string();
        words[2] = &maximum;
        fs::write(self.path, words.join(" ")).with_context(|| format!("cannot write {}", self.path))
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        // The host, and its settings with it, may be about to end.
        let _about_to_end = fs::write(self.path, &self.found);
    }
}
