//! FTP: the wire format, a client and a server.
//!
//! [`wire`] parses and encodes, [`client`] and [`server`] are the two ends. The bytes of files are moved, measured and
//! tuned by `bufwise-mover`. Threads and poll, no asynchronous runtime; no privilege is needed.

pub mod client;
pub mod server;
pub mod wire;
