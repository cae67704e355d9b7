//! Commands of a client.
//!
//! Problem: a server must understand the forms that programs send (verbs in any case, the `X` forms of RFC 775, `LIST
//! -la`, telnet bytes before ABOR) and nothing else; a client must never send an argument that becomes a second
//! command.
//! Properties kept: parsing undoes encoding; every parsed command can be encoded; an error's text never repeats bytes
//! of the peer (a text like `227 ...` in it could open a firewall); a password is never displayed.

mod encode;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::SystemTime;

use bufwise_units::Bytes;

use super::dialect::ProbeOffer;
use super::listing::Facts;

/// A password: never in a log, never in an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes the bytes of a password.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes, to be compared or sent.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Argument of AUTH (RFC 4217 section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthKind {
    /// `TLS` or `TLS-C`: TLS on the control connection, data connections clear until PROT says otherwise.
    Tls,
    /// Anything else, `SSL` for instance: answer 504. Upper case, printable, at most 16 bytes.
    Other(String),
}

/// How data connections are protected (RFC 2228 PROT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// `C`: not at all.
    Clear,
    /// `S`: integrity only; TLS has no such level (answer 536).
    Safe,
    /// `E`: confidentiality only; TLS has no such level (answer 536).
    Confidential,
    /// `P`: TLS.
    Private,
}

/// Argument of TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferType {
    /// `A`, `A N`: lines end in CR LF on the wire.
    Ascii,
    /// `I`, `L 8`: bytes as they are.
    Image,
}

/// Argument of STRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// `F`: the only one in use.
    File,
    /// `R` or `P`: answer 504.
    Other(char),
}

/// Argument of EPSV (RFC 2428 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpsvArgument {
    /// No argument: the control connection's protocol.
    Any,
    /// `1`: IPv4.
    V4,
    /// `2`: IPv6.
    V6,
    /// `ALL`: no other command for data connections will follow.
    All,
}

/// Option that OPTS sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opts {
    /// `UTF8 ON` or `OFF`.
    Utf8(bool),
    /// `MLST type;size;`: the facts of later listings.
    Mlst(Facts),
    /// `HASH SHA-256`: the algorithm of later HASH; without one, asks which is selected.
    Hash(Option<String>),
    /// `DRS NOTIFY=1;`: the client understands 126 replies and SBUF during transfers ([`super::dialect`]).
    Drs {
        /// Whether 126 may be sent.
        notify: bool,
    },
    /// Anything else: answer 501. The option's name only, upper case, printable, at most 16 bytes.
    Other(String),
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the verbs of RFC 959, 2228, 2389, 2428 and 3659 under their own names")]
pub enum Command {
    User(String),
    Pass(Secret),
    Acct,
    Rein,
    Quit,
    Auth(AuthKind),
    Pbsz(u32),
    Prot(Protection),
    Ccc,
    Feat,
    Opts(Opts),
    Syst,
    Help(Option<String>),
    Noop,
    Stat(Option<PathBuf>),
    Abor,
    Type(TransferType),
    /// `MODE` with its letter in upper case; `S` is stream, the only mode served.
    Mode(char),
    Stru(Structure),
    Allo(u64),
    Pasv,
    Epsv(EpsvArgument),
    Port(SocketAddrV4),
    Eprt(SocketAddr),
    Rest(u64),
    Size(PathBuf),
    Mdtm(PathBuf),
    /// Sets a file's time of modification (draft-somers-ftp-mfxx).
    Mfmt {
        modified: SystemTime,
        path: PathBuf,
    },
    Mlst(Option<PathBuf>),
    Mlsd(Option<PathBuf>),
    /// `LIST`; its options are ignored.
    List(Option<PathBuf>),
    /// `LIST -a`: the current directory, with names that begin with a dot; other options are ignored.
    ListAll,
    Nlst(Option<PathBuf>),
    Retr(PathBuf),
    Stor(PathBuf),
    Appe(PathBuf),
    Dele(PathBuf),
    Rmd(PathBuf),
    Mkd(PathBuf),
    Rnfr(PathBuf),
    Rnto(PathBuf),
    Cwd(PathBuf),
    Cdup,
    Pwd,
    Site(String),
    /// Asks for a file's checksum (draft-bryan-ftp-hash).
    Hash(PathBuf),
    /// GridFTP's buffer size, and drsFTP's request during a transfer ([`super::dialect`]). Never zero.
    Sbuf(Bytes),
    /// Asks for a probe port (without an offer) or offers one ([`super::dialect`]).
    Prob(Option<ProbeOffer>),
    /// A verb that is not one of the above, upper case, letters and digits, at most 16 bytes: answer 500.
    Unknown(String),
}

impl Command {
    /// Returns the verb as it is sent, upper case.
    #[must_use]
    pub fn verb(&self) -> &str {
        match self {
            Self::Unknown(verb) => verb,
            _ => self.known_verb(),
        }
    }

    fn known_verb(&self) -> &'static str {
        match self {
            Self::User(_) => "USER",
            Self::Pass(_) => "PASS",
            Self::Acct => "ACCT",
            Self::Rein => "REIN",
            Self::Quit => "QUIT",
            Self::Auth(_) => "AUTH",
            Self::Pbsz(_) => "PBSZ",
            Self::Prot(_) => "PROT",
            Self::Ccc => "CCC",
            Self::Feat => "FEAT",
            Self::Opts(_) => "OPTS",
            Self::Syst => "SYST",
            Self::Help(_) => "HELP",
            Self::Noop => "NOOP",
            Self::Stat(_) => "STAT",
            Self::Abor => "ABOR",
            Self::Type(_) => "TYPE",
            Self::Mode(_) => "MODE",
            Self::Stru(_) => "STRU",
            Self::Allo(_) => "ALLO",
            Self::Pasv => "PASV",
            Self::Epsv(_) => "EPSV",
            Self::Port(_) => "PORT",
            Self::Eprt(_) => "EPRT",
            Self::Rest(_) => "REST",
            Self::Size(_) => "SIZE",
            Self::Mdtm(_) => "MDTM",
            Self::Mfmt { .. } => "MFMT",
            Self::Mlst(_) => "MLST",
            Self::Mlsd(_) => "MLSD",
            Self::List(_) | Self::ListAll => "LIST",
            Self::Nlst(_) => "NLST",
            Self::Retr(_) => "RETR",
            Self::Stor(_) => "STOR",
            Self::Appe(_) => "APPE",
            Self::Dele(_) => "DELE",
            Self::Rmd(_) => "RMD",
            Self::Mkd(_) => "MKD",
            Self::Rnfr(_) => "RNFR",
            Self::Rnto(_) => "RNTO",
            Self::Cwd(_) => "CWD",
            Self::Cdup => "CDUP",
            Self::Pwd => "PWD",
            Self::Site(_) => "SITE",
            Self::Hash(_) => "HASH",
            Self::Sbuf(_) => "SBUF",
            Self::Prob(_) => "PROB",
            Self::Unknown(_) => "an unknown command",
        }
    }
}
