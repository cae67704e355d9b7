//! The client against servers that lie, stall, cut, flood and fall silent: no received byte is lost, no incomplete file
//! has the final name, each error is one clear line.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod buffers;
mod cuts;
mod lies;
mod noise;
mod scripted;
mod security;
mod trees;
