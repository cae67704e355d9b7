//! Typed access to the Linux sockets and devices that bufwise uses: TUN devices, socket diagnostics, `TCP_INFO`,
//! and the options that size a connection's buffers. Also what the process itself is set to: the allocator, ignored signals.
//!
//! This crate and the BPF loader are the only places with `unsafe`; each use is behind a safe function, in a module
//! that states the reason.

pub mod device;
pub mod diag;
pub mod heap;
pub mod info;
pub mod limit;
pub mod namespace;
mod netlink;
pub mod options;
pub mod schedule;
pub mod signals;
pub mod tun;
pub mod vnet;
