//! Samples all connections repeatedly; `ls` takes two such samples.
//!
//! To find namespaces and the processes that hold sockets, every process has to be read; a daemon writes all its connections
//! as text. If either is expensive, it is done less often than once per sample.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use bufwise_bpf::processor_time;
use bufwise_host::processes::Holders;
use bufwise_host::survey::Survey;
use bufwise_host::view::{Known, Listing, Summary};
use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;

use crate::ls::AskedDaemon;

/// Time between two searches for network namespaces.
const NAMESPACES: Duration = Duration::from_secs(10);
/// Searches for the processes that hold new sockets take at most this part of a processor: one in 200.
const HOLDERS: u64 = 200;
/// The same for asking the daemon, whose own cost is about as large.
const ASKING: u64 = 300;

/// State that is kept between samples.
pub(crate) struct Source {
    asked: AskedDaemon,
    survey: Survey,
    opened: Instant,
    before: HashMap<u64, SocketSample>,
    holders: Holders,
    /// Sockets (by inode) for which the last search found no process that holds them.
    unnamed: HashSet<u32>,
    /// When the next search for holders may begin.
    next_search: Instant,
    /// The daemon's last answer, if there is a daemon.
    known: Option<Known>,
    /// When the daemon may be asked again.
    next_question: Instant,
}

impl Source {
    /// Takes the first sample.
    pub(crate) fn open(asked: AskedDaemon) -> Result<Self> {
        let mut survey = Survey::open()?;
        survey.sample()?;
        let now = Instant::now();
        Ok(Self {
            asked,
            before: survey.samples(),
            survey,
            opened: now,
            holders: Holders::default(),
            unnamed: HashSet::new(),
            next_search: now,
            known: None,
            next_question: now,
        })
    }

    /// Returns the present connections, with rates since the last sample.
    pub(crate) fn sample(&mut self) -> Result<Listing> {
        if self.opened.elapsed() >= NAMESPACES {
            self.survey.reopen()?;
            self.opened = Instant::now();
        }
        self.survey.sample()?;
        self.find_holders();
        let connections = self.survey.views(&self.before, &self.holders);
        self.before = self.survey.samples();
        let notes = self.survey.notes.clone();
        let summary = Summary::of(&connections);
        self.with_daemon(Listing { summary, connections, notes, ..Listing::default() })
    }

    /// Adds the daemon's knowledge, or its last answer.
    fn with_daemon(&mut self, mut listing: Listing) -> Result<Listing> {
        let start = Instant::now();
        if start >= self.next_question {
            let before = processor_time();
            self.known = self.asked.known(&mut listing)?;
            self.next_question = start + rest(processor_time().since(before), ASKING);
        }
        Ok(match &mut self.known {
            Some(known) => known.add_to(listing),
            None => listing,
        })
    }

    /// Searches for holders if there is a socket that the last search did not cover.
    fn find_holders(&mut self) {
        let inodes = || self.survey.found().map(|found| found.connection.inode).filter(|inode| *inode != 0);
        let is_known = |inode: &u32| self.holders.of(*inode).is_some() || self.unnamed.contains(inode);
        let start = Instant::now();
        if start < self.next_search || inodes().all(|inode| is_known(&inode)) {
            return;
        }
        let before = processor_time();
        let holders = Holders::scan();
        // A search that has not read all processes may have missed some: the next one may find them.
        let is_unnamed = |inode: &u32| holders.is_complete() && holders.of(*inode).is_none();
        self.unnamed = inodes().filter(is_unnamed).collect();
        self.holders = holders;
        self.next_search = start + rest(processor_time().since(before), HOLDERS);
    }
}

/// Returns the time until an action that took `spent` may be repeated.
fn rest(spent: Micros, times: u64) -> Duration {
    Duration::from_micros(spent.times(times).0)
}
