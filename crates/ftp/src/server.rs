//! An FTP server: RFC 959's stream mode with what came after it (RFC 2228, 2389, 2428, 3659, 4217), and
//! bufwise's own dialect for peers that ask for it ([`crate::wire::dialect`]).
//!
//! ```text
//!   Server::bind ── run: one thread accepts ──┬── session: control connection ── data: one transfer
//!                        Slots: how many      ├── session ...
//!                                             └── session ...
//! ```
//! [`Config`] names the directory, the users and the limits, [`AdmissionHandle`] changes users and certificate while the
//! server runs; [`users`] are the accounts, an [`Event`] is a line for the log. Threads and poll: sessions are few, and
//! each mostly sleeps.
//!
//! Properties kept: no path leads outside the directory; a final name never stands for an incomplete file; the memory
//! and time spent on a client are bounded, whatever it sends or does not send.
//! Choice: files are transferred unchanged even after TYPE A, as vsftpd does by default. With converted line ends the bytes
//! would differ, and sizes and restart points would be wrong.

mod admission;
mod budget;
mod config;
mod control;
mod data;
mod error;
mod event;
mod limits;
mod listener;
mod listing;
mod passwords;
mod path;
mod presence;
mod running;
mod session;
mod shared;
mod store;
mod sum;
mod sync;
mod turns;
mod upload;
pub mod users;
mod work;

pub use admission::{Admission, AdmissionHandle};
pub use budget::ReceiveCaps;
pub use config::{Config, DataConfig, Limits, ServeError, Times, TlsConfig, TuningConfig};
pub use event::{Direction, Event, Observer, Transfer};
pub use limits::BufferCaps;
pub use listener::Server;
pub use passwords::TooManyLogins;
pub use shared::Stop;
pub use users::{Rights, User, Users};
