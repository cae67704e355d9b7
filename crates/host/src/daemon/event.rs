//! Events that the daemon's state machine takes in, and actions that it requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use bufwise_bpf::{FlowState, Released, Shares};
use bufwise_units::Micros;

use super::task::Task;
use crate::budget::Terms;
use crate::caps::Change;
use crate::control::{Reply, Request};
use crate::error::{Error, Result};
use crate::leftovers::Cleared;
use crate::log::Line;
use crate::metrics::Counts;
use crate::tcp_memory::TcpMemory;
use crate::tuner::books::Bounds;
use crate::tuner::plan::Plan;

/// An event. Results of actions are events as well.
#[derive(Debug)]
pub(super) enum Event {
    /// The daemon starts.
    Begin,
    /// Time has passed.
    Tick,
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Hangup,
    /// A request of a client of the control socket.
    Asked(Request),
    /// The programs in the kernel request sizes that only user space can grant.
    SizesRequested,
    /// An action failed, and tuning cannot go on.
    Failed(Error),
    /// Work on the engines failed, and is tried again.
    Troubled(Work, Error),
    /// Result of [`Action::ClearLeftovers`].
    Cleared(Cleared),
    /// Result of [`Action::ReadConfiguration`].
    Configured(Result<Box<Task>>),
    /// Result of [`Action::Discover`].
    Discovered(Result<Found>),
    /// Result of [`Action::LowerMaxima`]: settings that could not be restored, and why.
    Lowered(Vec<String>),
    /// Result of [`Action::Load`]. After an error the former engines, if any, are attached as before.
    Loaded(Result<Regrouped>),
    /// Result of [`Action::Regroup`].
    Regrouped(Regrouped),
    /// Result of [`Action::Sample`]: the connections of each part, the kernel's memory for TCP, and the processor time that it
    /// took.
    Sampled(Vec<Vec<FlowState>>, Option<TcpMemory>, Micros),
    /// Result of [`Action::Share`]: devices that could not be bounded, and why; and the processor time that it took.
    Shared(Vec<String>, Micros),
    /// Result of [`Action::Beat`]: how many connections have come or gone since the last sample, and the kernel's memory
    /// for TCP.
    Beaten(u64, Option<TcpMemory>),
    /// Result of [`Action::Sweep`], and the processor time that it took.
    Swept(Sweep, Micros),
    /// Result of [`Action::WatchMaxima`], by namespace.
    MaximaSeen(Vec<(String, Result<Vec<Change>>)>),
    /// Result of [`Action::Grant`]: the kernel's refusals, and the processor time that it took.
    Granted(Vec<String>, Micros),
    /// Result of [`Action::GiveBack`].
    GivenBack(GivenBack),
}

/// An action to carry out.
#[derive(Debug)]
pub(super) enum Action {
    /// Clear what a killed bufwise left behind.
    ClearLeftovers,
    /// Read flags and file again.
    ReadConfiguration,
    /// Search for the task's network namespaces, and raise maxima in new ones.
    Discover(Arc<Task>),
    /// Put back the maxima of all namespaces, and forget the namespaces.
    LowerMaxima,
    /// Load an engine for each part, in place of the engines that run.
    Load(Load),
    /// Find the groups' cgroups that have appeared or gone.
    Regroup {
        /// Pass connections on even if no cgroup has changed: some may be in a network namespace that was unknown
        /// before.
        settle: bool,
        /// Also find the programs of sockets, if a group asks for programs: a search through all processes.
        programs: bool,
    },
    /// Sample the connections.
    Sample,
    /// Tell each part's engine the bounds of its connections.
    Share(Vec<Bounds>),
    /// Renew the heartbeat of each part's engine.
    Beat,
    /// Sweep the sockets of every namespace.
    Sweep,
    /// Check whether the administrator has changed raised settings.
    WatchMaxima,
    /// Grant the sizes that the programs in the kernel request.
    Grant,
    /// Put everything back, and end the engine.
    GiveBack,
    /// Let the history's thread take a sample, with the connections of each part of this task.
    Record(Vec<Vec<FlowState>>, Arc<Task>),
    /// Answer the client from the sockets and these facts.
    Describe(Request, Facts),
    /// Answer the client.
    Answer(Reply),
    /// Write a line of the log.
    Log(Line),
    /// Tell the service manager.
    Notify(Notice),
    /// End, successfully or not.
    Quit(Result<()>),
}

/// Work on the engines that the daemon tries again if it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// [`Action::Sample`].
    Sample,
    /// [`Action::Share`].
    Share,
    /// [`Action::Beat`].
    Beat,
    /// [`Action::Grant`].
    Grant,
}

/// A message to the service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Ready, with a status line.
    Ready(String),
    /// A new status line.
    Status(String),
    /// A new configuration is being read; [`Notice::Ready`] ends it.
    Reloading,
    /// The sign that the watchdog waits for.
    Alive,
    /// The daemon ends.
    Stopping,
}

/// Engines to load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) task: Arc<Task>,
    /// For each part, the former part whose settings its engine takes over. A former engine that is not taken over
    /// gives everything back first.
    pub(super) inherit: Vec<Option<usize>>,
    /// For each part, the shares of connections that come before the first sample.
    pub(super) shares: Vec<Shares>,
}

/// Changes of the groups' cgroups; one line each.
#[derive(Debug, Default)]
pub(super) struct Regrouped {
    pub(super) found: Vec<String>,
    pub(super) gone: Vec<String>,
    /// Cgroups to which no engine could be attached, and why.
    pub(super) refused: Vec<String>,
    /// Groups without any cgroup.
    pub(super) missing: Vec<String>,
    /// Connections that the rest has passed on to groups.
    pub(super) passed_on: u64,
    /// Connections were to be passed on even if no cgroup has changed.
    pub(super) settled: bool,
    /// Processor time of the search for the programs of sockets, whether it succeeded or not; `None`: there was none.
    pub(super) searched: Option<Micros>,
    /// Why the search was not carried through; the next one does what is left.
    pub(super) failed: Option<String>,
}

/// Result of a search for namespaces.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Names or numbers of the new namespaces, and the settings raised there.
    pub(super) new: Vec<(String, Vec<Change>)>,
    /// Known namespaces in which settings were raised only now, and these settings.
    pub(super) raised: Vec<(String, Vec<Change>)>,
    pub(super) gone: Vec<String>,
    /// Bounds that could not be raised or restored, and why; each is in one result only, until its cause changes.
    pub(super) failed: Vec<String>,
    /// Inodes of all namespaces known now.
    pub(super) known: BTreeSet<u64>,
    /// Number of namespaces for which there is no room.
    pub(super) left_alone: usize,
    /// Why a new namespace could not be opened.
    pub(super) unopened: Option<String>,
    /// The daemon's cgroups that were removed and made again, and to which the engines were attached.
    pub(super) remade: Vec<String>,
    /// Those to which they could not be attached, and why.
    pub(super) refused: Vec<String>,
    /// Processor time that the search took.
    pub(super) took: Micros,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Connections adopted, by namespace.
    pub(super) adopted: Vec<(String, u64)>,
    /// Namespaces that could not be swept, and why.
    pub(super) refused: Vec<String>,
    /// Connections whose buffers were given back.
    pub(super) given_back: u64,
    /// How existing connections are adopted, if it is not the usual way.
    pub(super) adoption_limit: Option<String>,
    /// Why the sweep was not carried through; the next one does what is left.
    pub(super) failed: Option<String>,
}

/// Settings and connections that were given back.
#[derive(Debug)]
pub(super) struct GivenBack {
    /// Settings with their restored values; one line each.
    pub(super) settings: Vec<String>,
    /// Settings that were not restored, and why.
    pub(super) failed: Vec<String>,
    /// Connections that were given back.
    pub(super) released: Result<Released>,
}

/// Facts of the machine that an answer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Plan of the connections in no group.
    pub(super) plan: Plan,
    /// Terms of each part, in the order of [`Task::parts`].
    pub(super) parts: Vec<Terms>,
    /// `restore` has stopped the tuning.
    pub(super) paused: bool,
    /// Time since the start.
    pub(super) uptime: Micros,
    /// Events since the daemon's start.
    pub(super) counts: Counts,
}
