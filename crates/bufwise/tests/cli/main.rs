//! The program from a user's view: commands, messages, exit statuses, and a clean host afterwards.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod agree;
mod browser;
mod budget;
mod check;
mod confined;
mod connections;
mod daemon;
mod demo;
mod explain;
mod fit;
mod generate;
mod groups;
mod history;
mod json_page;
mod kubernetes;
mod lab_compare;
mod lab_parts;
mod lab_path;
mod lab_report;
mod lab_run;
mod ls;
mod many;
mod metrics;
mod otlp;
mod pictures;
mod place;
mod policies;
mod probe;
mod prometheus;
mod restore;
mod run;
mod run_command;
mod run_traces;
mod run_tuned;
mod run_user;
mod serve;
mod serve_limits;
mod serve_options;
mod terminal;
mod top;
mod transfer;
mod transfer_fit;
mod usage;
mod web;
