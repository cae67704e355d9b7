//! HTTP/1.1 for one thread and few clients: metrics, and the live page.
//!
//! - [`message`]: requests and responses.
//! - [`server`]: clients, bounded in number, bytes and time; streams of events.

pub(crate) mod message;
pub(crate) mod server;
