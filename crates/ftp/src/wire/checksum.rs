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
//! A path is quoted where servers would take its words for a range.

use std::path::PathBuf;

use bufwise_mover::hash::HashKind;

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
