//! The client's side of FTP: sessions, and files that arrive whole or not at all.
//!
//! ```text
//!   Url, Login, Security --> Access --> Session        connected, encrypted, logged in, binary
//!   Worker::get / put                                  sessions as needed, tries again, resumes
//!     download / upload                                sizes, verified tails, checksums, temporary names
//!       conduct: data on one thread, the control connection's replies on the other
//! ```
//!
//! Properties kept: replies stay in step with commands, whatever the server says meanwhile; to a stock server this is
//! a plain FTP client; every wait is bounded; nothing half-written ever has the final name.

mod access;
mod conduct;
mod control;
mod credentials;
mod data;
mod download;
mod error;
mod local;
mod netrc;
mod pool;
mod session;
mod settings;
mod tree;
mod upload;
mod url;
mod verify;
mod worker;

pub use access::{Access, Security, Server};
pub use conduct::Notes;
pub use credentials::{Login, Sources};
pub use error::{Answer, ClientError};
pub use local::{Folder, LocalError, Partial, Target};
pub use netrc::{Netrc, NetrcError};
pub use pool::in_parallel;
pub use session::Session;
pub use settings::Settings;
pub use tree::{Item, Skipped, Tree};
pub use url::{Scheme, Url, UrlError};
pub use verify::Checked;
pub use worker::{Event, Worker};

use bufwise_mover::Report;
use bufwise_mover::probe::Measured;

/// A file that was moved, or was there already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Bytes of the whole file.
    pub size: u64,
    /// How many of them were there before.
    pub resumed_from: u64,
    /// The last attempt's transfer; `None` when nothing had to be moved.
    pub report: Option<Report>,
    /// What was said about buffers.
    pub notes: Notes,
    /// The checksum, if it was compared.
    pub checksum: Option<Checked>,
    /// What probes measured.
    pub measured: Option<Measured>,
}

impl Outcome {
    fn already(size: u64) -> Self {
        Self { size, resumed_from: size, ..Self::default() }
    }
}
