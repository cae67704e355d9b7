//! Sums that a server makes on request: how to ask, and what it answers.
//!
//! Problem: there is no standard; three ways are in use, and a server has none of them, one, or several.
//!
//! | way | asked | answered |
//! |---|---|---|
//! | HASH (draft-bryan-ftpext-hash) | `OPTS HASH SHA-256`, `HASH path` | `213 SHA-256 0-49 DIGITS path` |
//! | `X` commands (Serv-U, proftpd's mod_digest ..) | `XSHA256 "path"` | `250 DIGITS` |
//! | CKSM (GridFTP) | `CKSM SHA256 0 -1 path` | `213 DIGITS` |
//!
//! A client takes the strongest sum ([`HashKind::ALL`]) that the server lists in FEAT, and of several ways to it the first
//! above. XCRC is left out: no server was seen that has it and nothing better.
//! Keeps: what is read is a sum of the kind that was asked for, or nothing; a path is quoted where servers would take its
//! words for a range.

use std::path::{Path, PathBuf};

use bufwise_mover::hash::{Digest, HashKind};

use super::{Command, Features, Opts, Reply};

#[cfg(test)]
mod tests;

/// A sum that has an `X` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the sums under their own names")]
pub enum XSum {
    Sha256,
    Sha512,
    Sha1,
    Md5,
}

impl XSum {
    /// All of them, in the order of [`HashKind::ALL`].
    pub const ALL: [Self; 4] = [Self::Sha256, Self::Sha512, Self::Sha1, Self::Md5];

    /// The command, which is its feature's name as well.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Sha256 => "XSHA256",
            Self::Sha512 => "XSHA512",
            Self::Sha1 => "XSHA1",
            Self::Md5 => "XMD5",
        }
    }

    /// Which sum it is.
    #[must_use]
    pub const fn kind(self) -> HashKind {
        match self {
            Self::Sha256 => HashKind::Sha256,
            Self::Sha512 => HashKind::Sha512,
            Self::Sha1 => HashKind::Sha1,
            Self::Md5 => HashKind::Md5,
        }
    }
}

/// How a server is asked for a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// By HASH.
    Hash {
        /// Which sum.
        kind: HashKind,
        /// It is not the one in use: OPTS HASH must precede.
        select: bool,
    },
    /// By an `X` command.
    X(XSum),
    /// By CKSM.
    Cksm {
        /// Which sum.
        kind: HashKind,
        /// The server's name for it.
        name: String,
    },
}

impl Question {
    /// The best question to a server with these features; `None`: it has no sum that is known here.
    #[must_use]
    pub fn best(features: &Features) -> Option<Self> {
        HashKind::ALL.into_iter().find_map(|kind| Self::about(kind, features))
    }

    fn about(kind: HashKind, features: &Features) -> Option<Self> {
        let named = |name: &&str| name.parse() == Ok(kind);
        if features.hashes().iter().any(|name| name.eq_ignore_ascii_case(kind.name())) {
            let selected = features.hash_selected();
            return Some(Self::Hash { kind, select: selected.is_none_or(|name| name.parse() != Ok(kind)) });
        }
        let x = XSum::ALL.into_iter().find(|x| x.kind() == kind && features.has(x.verb()));
        x.map(Self::X).or_else(|| {
            let name = features.cksm().into_iter().find(named)?.to_owned();
            Some(Self::Cksm { kind, name })
        })
    }

    /// Which sum is asked for.
    #[must_use]
    pub const fn kind(&self) -> HashKind {
        match self {
            Self::Hash { kind, .. } | Self::Cksm { kind, .. } => *kind,
            Self::X(x) => x.kind(),
        }
    }

    /// What must be said before.
    #[must_use]
    pub fn preparation(&self) -> Option<Command> {
        match self {
            Self::Hash { kind, select: true } => {
                Some(Command::Opts(Opts::Hash(Some(kind.name().to_owned()))))
            }
            _ => None,
        }
    }

    /// The question itself, about a whole file.
    #[must_use]
    pub fn command(&self, path: &Path) -> Command {
        let path = path.to_owned();
        match self {
            Self::Hash { .. } => Command::Hash(path),
            Self::X(x) => Command::Xsum(*x, path),
            Self::Cksm { name, .. } => {
                Command::Cksm(Asked { algorithm: name.clone(), offset: 0, length: None, path })
            }
        }
    }

    /// The sum in the answer; `None` if it has none, or not one alone that could be meant.
    #[must_use]
    pub fn answer(&self, reply: &Reply) -> Option<Digest> {
        let text = reply.text();
        let mut words = text.split_ascii_whitespace();
        match self {
            _ if !reply.is_completion() => None,
            Self::Hash { kind, .. } => {
                words.next().filter(|name| name.eq_ignore_ascii_case(kind.name()))?;
                let _range = words.next()?;
                Digest::parse(*kind, words.next()?)
            }
            Self::X(_) | Self::Cksm { .. } => {
                // Some repeat the file's name, which may look like a sum itself.
                let mut sums = words.filter_map(|word| Digest::parse(self.kind(), word));
                let sum = sums.next()?;
                sums.all(|other| other == sum).then_some(sum)
            }
        }
    }
}

/// What CKSM asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The sum's name: upper case, printable, at most 16 bytes.
    pub algorithm: String,
    /// The first byte.
    pub offset: u64,
    /// How many; `None` (-1): to the end.
    pub length: Option<u64>,
    /// The file.
    pub path: PathBuf,
}

/// The path of an `X` command as it is sent: in quotation marks, those in it doubled, where it has spaces or such marks.
pub(super) fn quote(path: &[u8]) -> Vec<u8> {
    if !path.iter().any(|byte| byte.is_ascii_whitespace() || *byte == b'"') {
        return path.to_vec();
    }
    let mut quoted = vec![b'"'];
    for byte in path {
        quoted.push(*byte);
        if *byte == b'"' {
            quoted.push(b'"');
        }
    }
    quoted.push(b'"');
    quoted
}

/// The path of an `X` command as it was sent; `None` if something follows the quotation marks (a range).
pub(super) fn unquote(argument: &[u8]) -> Option<Vec<u8>> {
    let Some(inside) = argument.strip_prefix(b"\"") else { return Some(argument.to_vec()) };
    let mut path = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b'"' && bytes.next_if_eq(&b'"').is_none() {
            return bytes.next().is_none().then_some(path);
        }
        path.push(byte);
    }
    None
}
