//! Typed access to the Linux sockets and devices that bufwise uses: TUN devices, socket diagnostics, `TCP_INFO`,
//! and the options that size a connection's buffers. It also has the settings of the process itself: the allocator's limits, the
//! scheduling of a thread, the signals that are ignored, the children that have ended, and whether an open file is still at its
//! path. [`memory`] reads how much memory the host has.
//!
//! This crate and the BPF loader are the only places with `unsafe`; each use is behind a safe function, in a module
//! that states the reason.

pub mod broken_pipe;
pub mod child;
pub mod device;
pub mod diag;
pub mod file;
pub mod heap;
pub mod info;
pub mod limit;
pub mod memory;
pub mod namespace;
mod netlink;
pub mod options;
pub mod schedule;
pub mod signals;
pub mod tun;
pub mod vnet;
