//! The server over loopback, with a client that says whatever a test wants it to say.

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
