//! A client's request for the sum of a file: HASH (draft-bryan-ftpext-hash).
//!
//! `OPTS HASH SHA-256` selects a sum, `HASH path` asks for it, `213 SHA-256 0-49 DIGITS path` is the answer. The client
//! takes the strongest sum ([`HashKind::ALL`]) that the server lists in FEAT.
//! Properties kept: an answer is parsed to a sum of the requested kind, or to `None`.

use std::path::Path;

use bufwise_mover::hash::{Digest, HashKind};

use super::command::{Command, Opts};
use super::feat::Features;
use super::reply::Reply;

#[cfg(test)]
mod tests;

/// A request for the sum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The sum asked for.
    pub kind: HashKind,
    /// Another sum is in use: OPTS HASH must precede.
    select: bool,
}

impl Question {
    /// Returns the request for the strongest sum of a server with these features; `None`: it has no known sum.
    #[must_use]
    pub fn best(features: &Features) -> Option<Self> {
        let listed = features.hashes();
        let known = |kind: &HashKind| listed.iter().any(|name| name.eq_ignore_ascii_case(kind.name()));
        let kind = HashKind::ALL.into_iter().find(known)?;
        let select = features.hash_selected().is_none_or(|name| name.parse() != Ok(kind));
        Some(Self { kind, select })
    }

    /// Returns the command that must precede, if any.
    #[must_use]
    pub fn preparation(self) -> Option<Command> {
        self.select.then(|| Command::Opts(Opts::Hash(Some(self.kind.name().to_owned()))))
    }

    /// Returns the command that asks for the sum of a whole file.
    #[must_use]
    pub fn command(self, path: &Path) -> Command {
        Command::Hash(path.to_owned())
    }

    /// Returns the sum in the answer; `None` if it has none.
    #[must_use]
    pub fn answer(self, reply: &Reply) -> Option<Digest> {
        let text = reply.text();
        let mut words = text.split_ascii_whitespace();
        words.next().filter(|name| reply.is_completion() && name.eq_ignore_ascii_case(self.kind.name()))?;
        let _range = words.next()?;
        Digest::parse(self.kind, words.next()?)
    }
}
