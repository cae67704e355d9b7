//! Sums of a file's bytes, computed while the bytes pass.
//!
//! Problem: a stream reveals a broken connection at best, never a changed byte.
//! Sources: draft-bryan-ftpext-hash (the names); SHA-256 and SHA-1 (FIPS 180-4), MD5 (RFC 1321), XXH3-128.
//! Properties kept: the sum does not depend on how the bytes were cut; parsing a written name or sum gives it back.

use std::fmt;
use std::str::FromStr;

use md5::{Digest as _, Md5};
use ring::digest::{Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use twox_hash::XxHash3_128;

/// Bytes of the longest sum.
const LONGEST: usize = 32;

/// An algorithm that sums a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashKind {
    /// SHA-256: no attacker can make another file with the same sum.
    Sha256,
    /// SHA-1: an attacker who makes both files can give them the same sum.
    Sha1,
    /// MD5: the same, within seconds.
    Md5,
    /// XXH3-128: finds accidental changes, at memory speed; it does not resist an attacker.
    Xxh3,
}

impl HashKind {
    /// All of them in order of preference: by resistance to attackers, then by speed.
    pub const ALL: [Self; 4] = [Self::Sha256, Self::Sha1, Self::Md5, Self::Xxh3];

    /// Returns the name, as draft-bryan-ftpext-hash has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Sha1 => "SHA-1",
            Self::Md5 => "MD5",
            Self::Xxh3 => "XXH3-128",
        }
    }

    /// Returns the length of the sum, in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => LONGEST,
            Self::Sha1 => 20,
            Self::Md5 | Self::Xxh3 => 16,
        }
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no sum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown hash `{name}`: the hashes are {}", HashKind::ALL.map(HashKind::name).join(", "))]
pub struct HashNameError {
    name: String,
}

impl FromStr for HashKind {
    type Err = HashNameError;

    /// Parses the name in any case, with or without its hyphens.
    fn from_str(text: &str) -> Result<Self, HashNameError> {
        let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|kind| plain(kind.name()) == plain(text))
            .ok_or_else(|| HashNameError { name: text.escape_default().take(64).collect() })
    }
}

/// A finished sum; shown as lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    kind: HashKind,
    /// The bytes of the sum, then zeros.
    bytes: [u8; LONGEST],
}

impl Digest {
    /// Makes a finished sum from its bytes; their number is the kind's length.
    fn new(kind: HashKind, sum: &[u8]) -> Self {
        let mut bytes = [0; LONGEST];
        bytes[..kind.size()].copy_from_slice(sum);
        Self { kind, bytes }
    }

    /// Reads hexadecimal digits in either case; `None` if they are not those of such a sum.
    #[must_use]
    pub fn parse(kind: HashKind, digits: &str) -> Option<Self> {
        let digits = digits.as_bytes();
        if digits.len() != 2 * kind.size() {
            return None;
        }
        let mut bytes = [0; LONGEST];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            for digit in pair {
                let value = char::from(*digit).to_digit(16)?;
                *byte = (*byte << 4) | u8::try_from(value).ok()?;
            }
        }
        Some(Self { kind, bytes })
    }

    /// Returns the kind of the sum.
    #[must_use]
    pub const fn kind(self) -> HashKind {
        self.kind
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes[..self.kind.size()].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.kind)
    }
}

/// Computes a sum while the bytes pass.
pub struct Hasher {
    kind: HashKind,
    state: State,
}

enum State {
    Sha(Context),
    Md5(Md5),
    Xxh3(Box<XxHash3_128>),
}

impl Hasher {
    /// Starts with no bytes.
    #[must_use]
    pub fn new(kind: HashKind) -> Self {
        let sha = |algorithm: &'static Algorithm| State::Sha(Context::new(algorithm));
        let state = match kind {
            HashKind::Sha256 => sha(&SHA256),
            HashKind::Sha1 => sha(&SHA1_FOR_LEGACY_USE_ONLY),
            HashKind::Md5 => State::Md5(Md5::new()),
            HashKind::Xxh3 => State::Xxh3(Box::new(XxHash3_128::new())),
        };
        Self { kind, state }
    }

    /// Takes in the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha(context) => context.update(bytes),
            State::Md5(sum) => sum.update(bytes),
            State::Xxh3(sum) => sum.write(bytes),
        }
    }

    /// Returns the sum of all bytes so far.
    #[must_use]
    pub fn finish(self) -> Digest {
        match self.state {
            State::Sha(context) => Digest::new(self.kind, context.finish().as_ref()),
            State::Md5(sum) => Digest::new(self.kind, &sum.finalize()),
            State::Xxh3(sum) => Digest::new(self.kind, &sum.finish_128().to_be_bytes()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(kind: HashKind, pieces: &[&[u8]]) -> Digest {
        let mut hasher = Hasher::new(kind);
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    #[test]
    fn known_sums_come_out_however_the_bytes_are_cut() {
        // The examples of FIPS 180-4 and RFC 1321; of XXH3's reference implementation, which gives none, the same.
        for (kind, abc) in [
            (HashKind::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (HashKind::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (HashKind::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            (HashKind::Xxh3, "06b05ab6733a618578af5f94892f3950"),
        ] {
            assert_eq!(sum(kind, &[b"a", b"", b"bc"]).to_string(), abc);
            assert_eq!(sum(kind, &[b"abc"]), Digest::parse(kind, &abc.to_uppercase()).unwrap());
            assert_ne!(sum(kind, &[b"abd"]).to_string(), abc);
        }
        assert_eq!(sum(HashKind::Xxh3, &[]).to_string(), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn what_is_no_sum_of_the_kind_is_none() {
        for digits in ["", "90015098", " 00150983cd24fb0d6963f7d28e17f72", "g00150983cd24fb0d6963f7d28e17f72"]
        {
            assert_eq!(Digest::parse(HashKind::Md5, digits), None, "{digits}");
        }
        assert_eq!(Digest::parse(HashKind::Md5, &"\u{e4}".repeat(16)), None);
        let (one, other) = (HashKind::Md5, HashKind::Xxh3);
        assert_ne!(Digest::parse(one, &"0".repeat(32)), Digest::parse(other, &"0".repeat(32)));
    }

    #[test]
    fn names_read_back_and_others_are_refused_in_one_line() {
        for kind in HashKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.name().replace('-', "").to_lowercase().parse(), Ok(kind));
            assert_eq!(sum(kind, &[]).to_string().len(), 2 * kind.size());
        }
        let error = "CRC32\n".parse::<HashKind>().unwrap_err().to_string();
        assert_eq!(error, r"unknown hash `CRC32\n`: the hashes are SHA-256, SHA-1, MD5, XXH3-128");
    }
}
