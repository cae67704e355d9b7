//! The client against servers that lie, stall, cut, flood and fall silent: nothing lost, nothing half-written under
//! the final name, one clear line each.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod buffers;
mod cuts;
mod lies;
mod noise;
mod scripted;
mod security;
mod trees;
