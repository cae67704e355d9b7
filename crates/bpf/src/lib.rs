//! The kernel's side of bufwise: programs on a cgroup that size the buffers of its connections.
//!
//! [`Engine`] loads, attaches and feeds them; [`Cgroup`] is a group of processes whose connections they see;
//! [`reach`] does for them what the kernel allows user space alone. No type of libbpf leaves this crate.
//!
//! The policies that run in the kernel are plain C (`bpf/policy.h`); the tests of this crate hold them against
//! those of `bufwise-policy`.

mod abi;
mod cgroup;
#[cfg(test)]
mod differential;
mod engine;
mod flow;
mod mount;
pub mod reach;

pub use cgroup::{Cgroup, CgroupError};
pub use engine::{Config, Engine, EngineError, Order, ReceiveRule, SendRule, Shares, Wish, now};
pub use flow::{FlowState, Owned, SobasState};
