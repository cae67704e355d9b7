//! The server over loopback, with a client that sends whatever a test needs.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod confinement;
mod dialect;
mod encryption;
mod endurance;
mod files;
mod limits;
mod receiving;
mod sending;
mod strangers;
mod support;
mod transfers;
mod uploads;
