//! The kernel's side of bufwise: programs on a cgroup that size the buffers of its connections.
//!
//! - [`Engine`] loads the programs, attaches them to cgroups, and exchanges data with them.
//! - [`Cgroup`] is a new cgroup for the processes of one command, [`Group`] an existing one.
//! - [`reach`] fetches sockets of other processes, to set sizes that only user space may set.
//! - [`release`] and [`Engine::release_all`] give sockets back to the kernel's autotuning.
//! - [`leftovers`] finds the programs of a killed bufwise, and the settings that they made.
//! - [`UserEngine`] sizes the connections of processes that its own process has started, without programs in the kernel
//!   and without privilege.
//!
//! Terms: the *record* of a connection (`struct bw_flow`) holds what the programs know of it. A *sweep* visits all sockets
//! of a network namespace: it *adopts* connections that are older than the programs, and *gives back* the buffers of
//! silent ones. User space bounds connections by a *share* of the memory for all, or by an *order* for a single one. A
//! program *requests* a size that it may not set itself, and user space *grants* it.
//!
//! No type of libbpf leaves this crate.
//!
//! The rules that run in the kernel are plain C (`bpf/rules.h` and what it includes), compiled for BPF and for the
//! host. The tests of this crate compare them with those of `bufwise-policy`; with the feature `model` each
//! connection's rules are a policy (`Model`) that other tests can run.

mod abi;
mod cgroup;
mod clock;
mod config;
#[cfg(test)]
mod differential;
mod engine;
mod entries;
mod error;
mod fit;
mod flow;
mod group;
#[cfg(test)]
mod judged;
#[cfg(test)]
mod judged_budget;
#[cfg(test)]
mod judged_late;
#[cfg(test)]
mod judged_receive;
#[cfg(test)]
mod judged_roof;
#[cfg(test)]
mod judged_send;
#[cfg(test)]
mod judged_sobas;
#[cfg(test)]
mod judged_start;
#[cfg(test)]
mod judged_upkeep;
#[cfg(test)]
mod judged_window;
mod leftover;
mod load;
mod matching;
mod means;
#[cfg(feature = "model")]
mod model;
mod mount;
mod orders;
mod owners;
mod pattern;
mod program;
pub mod reach;
mod record;
mod refusal;
mod release;
mod rules;
mod sweep;
mod swept;
mod user;
mod user_space;
mod version;
mod watched;

pub use cgroup::{Cgroup, CgroupError, PREFIX as RUN_PREFIX, memory_limit};
pub use clock::{now, processor_time};
pub use config::{Config, ReceiveRule, SendRule};
pub use engine::{Engine, Order, Request, Shares};
pub use entries::Entries;
pub use error::EngineError;
pub use fit::{FitPhase, FitReason, FitState};
pub use flow::{FlowState, Origin, Owned, SobasState};
pub use group::Group;
pub use leftover::{Leftover, LeftoverError, await_owners, leftovers};
pub use matching::{Conditions, MOST_GROUPS, Matching, Network, Ports, ProgramPattern};
#[cfg(feature = "model")]
pub use model::Model;
pub use mount::hierarchy;
pub use owners::Owners;
pub use pattern::GroupPattern;
pub use program::ProgramInfo;
pub use release::{Released, release};
pub use swept::Swept;
pub use user::{UserEngine, left_running};
pub use version::{kernel_version, sweeps_switch_callbacks_on};
