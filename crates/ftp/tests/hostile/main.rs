//! Our client with servers that are broken or hostile, our server with commands in any order: nothing is believed, nothing waits for ever, nothing
//! half-written has the final name, and what went wrong is said in one line.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod cuts;
mod encryption;
mod names;
mod replies;
mod sequences;
mod support;
