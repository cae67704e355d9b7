//! The laboratory: two hosts of the real kernel, joined by an emulated path.

pub mod check;
pub mod clock;
pub mod commands;
pub mod congestion;
pub mod csv;
pub mod demo;
pub mod document;
pub mod experiments;
pub mod host;
pub mod link_time;
pub mod page;
pub mod path;
pub mod pump;
pub mod report;
pub mod sampler;
pub mod segment;
pub mod spec;
pub mod testbed;
