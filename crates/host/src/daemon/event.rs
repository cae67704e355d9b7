//! Events that the daemon's state machine takes in, and actions that it asks for.

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

/// An event. The results of actions are events, too.
#[derive(Debug)]
pub(super) enum Event {
    /// The daemon begins.
    Begin,
    /// Time has passed.
    Tick,
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Hangup,
    /// A client of the control socket waits for an answer.
    Asked(Request),
    /// The engine's side requests sizes that only user space may grant.
    SizesRequested,
    /// An action failed after which tuning cannot go on.
    Failed(Error),
    /// Of [`Action::ClearLeftovers`].
    Cleared(Cleared),
    /// Of [`Action::ReadConfiguration`].
    Configured(Result<Box<Task>>),
    /// Of [`Action::Discover`].
    Discovered(Result<Found>),
    /// Of [`Action::LowerMaxima`]: what could not be put back, and why.
    Lowered(Vec<String>),
    /// Of [`Action::Load`]. After an error the former engines, if there were any, are attached as they were.
    Loaded(Result<Regrouped>),
    /// Of [`Action::Regroup`].
    Regrouped(Regrouped),
    /// Of [`Action::Look`]: the connections of each part, and the kernel's memory for TCP.
    Looked(Vec<Vec<FlowState>>, Option<TcpMemory>),
    /// Of [`Action::Share`]: devices that could not be bounded, and why.
    Shared(Vec<String>),
    /// Of [`Action::Sweep`].
    Swept(Sweep),
    /// Of [`Action::WatchMaxima`].
    MaximaSeen(Vec<(String, Result<Vec<Change>>)>),
    /// Of [`Action::Grant`]: what the kernel refused.
    Granted(Vec<String>),
    /// Of [`Action::GiveBack`].
    GivenBack(GivenBack),
}

/// An action to carry out.
#[derive(Debug)]
pub(super) enum Action {
    /// Clear what a killed bufwise has left.
    ClearLeftovers,
    /// Read flags and file again.
    ReadConfiguration,
    /// Look for the task's network namespaces, and raise what it wants in those that are new.
    Discover(Arc<Task>),
    /// Put back the maxima of all namespaces, and forget the namespaces.
    LowerMaxima,
    /// Load an engine for each part and put them in the place of those that run.
    Load(Load),
    /// Look which cgroups of the groups have come and gone.
    Regroup {
        /// Pass connections on even if none has: some may be in a network namespace that was not known before.
        settle: bool,
    },
    /// Read the connections.
    Look,
    /// Tell each part's engine what connections may hold.
    Share(Vec<Bounds>),
    /// Pass over the sockets of every namespace.
    Sweep,
    /// See whether the administrator has changed what was raised.
    WatchMaxima,
    /// Grant the sizes that the engine's side requests.
    Grant,
    /// Put everything back, and end the engine.
    GiveBack,
    /// Have the history's thread take a look, with the connections of each part of this task.
    Record(Vec<Vec<FlowState>>, Arc<Task>),
    /// Answer the client with what the sockets show, and these facts.
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
    /// For each part, the former part whose settings its engine takes over; an engine that nobody inherits from gives
    /// everything back first.
    pub(super) inherit: Vec<Option<usize>>,
    /// Shares of connections that come before the first look, for each part.
    pub(super) shares: Vec<Shares>,
}

/// Cgroups of the groups that have come and gone; one line each.
#[derive(Debug, Default)]
pub(super) struct Regrouped {
    pub(super) found: Vec<String>,
    pub(super) gone: Vec<String>,
    /// No engine could be attached, and why.
    pub(super) refused: Vec<String>,
    /// Groups without any cgroup.
    pub(super) missing: Vec<String>,
    /// Connections that the rest has passed on to groups.
    pub(super) passed_on: u64,
    /// The pattern as configured, whether any cgroup has come or not.
    pub(super) settled: bool,
}

/// Result of a look for namespaces.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Names or numbers of those that are new, and what was raised there.
    pub(super) new: Vec<(String, Vec<Change>)>,
    pub(super) gone: Vec<String>,
    /// Bounds that could not be raised, and why.
    pub(super) failed: Vec<String>,
    /// Inodes of all that are known now.
    pub(super) known: BTreeSet<u64>,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Connections taken in, by namespace.
    pub(super) adopted: Vec<(String, u64)>,
    /// Namespaces that could not be swept, and why.
    pub(super) refused: Vec<String>,
    /// Connections whose buffers were given back.
    pub(super) given_back: u64,
    /// Fate of connections that existed, where it is not the usual.
    pub(super) adoption_limit: Option<String>,
    /// The connections after it.
    pub(super) flows: Vec<FlowState>,
}

/// Settings and connections that were given back.
#[derive(Debug)]
pub(super) struct GivenBack {
    /// Settings with the values that they have again; one line each.
    pub(super) settings: Vec<String>,
    /// Settings that were not put back, and why.
    pub(super) failed: Vec<String>,
    /// Connections.
    pub(super) released: Result<Released>,
}

/// Facts that an answer needs and the machine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Of the connections that are in no group.
    pub(super) plan: Plan,
    /// Of each part, in the order of [`Task::parts`].
    pub(super) parts: Vec<Terms>,
    /// `restore` has stopped the tuning.
    pub(super) paused: bool,
    /// Since the start.
    pub(super) uptime: Micros,
    pub(super) counts: Counts,
}
