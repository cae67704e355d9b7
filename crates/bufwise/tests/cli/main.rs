//! The program as its users meet it: commands, messages, exit statuses, and a clean host afterwards.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod demo;
mod lab_path;
mod lab_run;
mod run;
mod run_command;
mod usage;
