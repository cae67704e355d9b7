//! The program as its users meet it: commands, messages, exit statuses, and a clean host afterwards.

mod lab_path;
mod run;
mod usage;
