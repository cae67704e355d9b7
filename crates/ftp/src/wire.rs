//! Codecs of the FTP control connection and of listings; no sockets.
//!
//! Problem: both ends of a control connection read text from a peer that they do not trust. These codecs turn bytes
//! into valid values, within bounded memory, or into an error.
//! Sources: RFC 959 (commands, replies), RFC 854 (telnet), RFC 2389 (FEAT, OPTS), RFC 2428 (EPSV, EPRT),
//! RFC 3659 (MLST, MDTM, SIZE, REST), RFC 4217 (TLS), and what programs in the field do.
//! Properties kept: no bytes make a parser panic; an encoded value decodes to the same value; a line break inside an
//! argument is never sent; results do not depend on where the bytes of a stream are cut.
//!
//! [`lines`] splits a stream, [`command`] and [`reply`] are the two directions, [`feat`] is a server's features,
//! [`address`] the addresses of data connections, [`listing`] directories, [`question`] sums of files, [`dialect`] the
//! extensions that only two ends of bufwise use.

pub mod address;
pub mod command;
pub mod dialect;
mod error;
pub mod feat;
pub mod lines;
pub mod listing;
pub mod question;
pub mod reply;
pub mod terminal;
pub mod timestamp;

pub use command::{AuthKind, Command, EpsvArgument, Opts, Protection, Secret, Structure, TransferType};
pub use error::{ALPN, CommandError, MAX_LINE, MAX_REPLY, WireError};
pub use feat::Features;
pub use lines::Lines;
pub use listing::{Entry, Facts, Kind};
pub use reply::{Reply, ReplyReader};
