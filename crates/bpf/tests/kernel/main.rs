//! The programs in the running kernel.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod adoption;
mod support;
mod tuning;
