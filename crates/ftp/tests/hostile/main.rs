//! Our client with broken or hostile servers, our server with commands in any order: no claim is trusted, every wait is
//! bounded, no incomplete file has the final name, and each error is reported in one line.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod cuts;
mod encryption;
mod names;
mod replies;
mod sequences;
#[path = "../server/support.rs"]
#[expect(dead_code, reason = "few tests here have our server; the server's own tests need more")]
mod served;
mod support;
