//! A client's question for the sum of a file, in the best way that the server has.
//!
//! The client takes the strongest sum ([`HashKind::ALL`]) that the server lists in FEAT, and of several ways to it the
//! first in the table of [`super::checksum`].
//! Keeps: what is read is a sum of the kind that was asked for, or nothing.

use std::path::Path;

use bufwise_mover::hash::{Digest, HashKind};

use super::checksum::{Asked, XSum};
use super::command::{Command, Opts};
use super::feat::Features;
use super::reply::Reply;

#[cfg(test)]
mod tests;

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
