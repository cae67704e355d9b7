//! The client's side of FTP: sessions, and files that arrive whole or not at all.
//!
//! ```text
//!   Url, Login, Security --> Access --> ClientSession        connected, encrypted, logged in, binary
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
mod directory;
mod download;
mod error;
mod event;
mod local;
mod login;
mod netrc;
mod outcome;
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
pub use credentials::Sources;
pub use error::{Answer, ClientError};
pub use event::Event;
pub use local::{Folder, LocalError, Partial, Target, follow};
pub use login::Login;
pub use netrc::{Netrc, NetrcError};
pub use outcome::Outcome;
pub use pool::in_parallel;
pub use session::ClientSession;
pub use settings::Settings;
pub use tree::{Item, Refusal, Skipped, Tree};
pub use url::{Scheme, Url, UrlError};
pub use worker::Worker;
