//! The programs in the running kernel.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod adoption;
mod giving_back;
mod groups;
mod kernel_sockets;
mod late;
mod leftovers;
mod nearer;
mod releasing;
mod support;
mod tuning;
mod unread;
mod verifier;
