//! Every policy over the paths of the papers, in virtual time.
//!
//! A small TCP (Reno, CUBIC) runs over `bufwise_link`; the policies get the same samples as of a real connection. Each
//! scenario asserts its claims, and keeps a table of coarse whole numbers as a golden (`tests/goldens`;
//! `INSTA_UPDATE=always` rewrites them). With `BUFWISE_SVG=DIR` set, each also draws its series.

mod beside;
mod congestion;
mod drawn;
mod fit;
mod fit_window;
mod hystart;
mod jittery;
mod outcome;
mod paced;
mod paths;
mod pauses;
mod probes;
mod receiver;
mod scenario;
mod sender;
mod stalls;
mod subject;
mod svg;
mod together;
mod varying;
mod world;
