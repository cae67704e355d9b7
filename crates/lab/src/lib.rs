//! The laboratory: two hosts of the real kernel, joined by an emulated path.
//!
//! `bufwise lab` and `bufwise demo` use it. A [`spec`] describes a path, a [`testbed`] joins hosts by it, and a
//! [`pump`] carries their packets. [`experiments`] repeats the papers' experiments and runs those of the engine;
//! [`report`], [`csv`] and [`page`] write results.

pub mod check;
pub mod clock;
pub mod commands;
pub mod congestion;
pub mod csv;
pub mod demo;
pub mod document;
pub mod experiments;
pub mod host;
mod last_words;
pub mod link_time;
pub mod page;
pub mod path;
pub mod pump;
pub mod report;
pub mod sampler;
pub mod segment;
pub mod spec;
pub mod testbed;
