//! Sums of a file's bytes, made while the bytes pass.
//!
//! Problem: FTP's stream mode notices a broken connection at best; a changed byte it does not notice.
//! Source: draft-bryan-ftpext-hash (the names); SHA-256 (FIPS 180-4) against anybody, XXH3-128 against
//! accidents only, at memory speed.
//! Properties kept: the sum does not depend on how the bytes were cut; names and sums read back as written.

use std::fmt;
use std::str::FromStr;

use ring::digest;
use twox_hash::XxHash3_128;

/// Which sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashKind {
    /// SHA-256: nobody can make another file with the same sum.
    Sha256,
    /// XXH3-128: finds every accident; it does not resist an attacker.
    Xxh3,
}

impl HashKind {
    /// Both, the stronger first.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Xxh3];

    /// The name in FTP's `HASH` feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Xxh3 => "XXH3-128",
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
#[error("unknown hash `{0}`: the hashes are SHA-256 and XXH3-128")]
pub struct HashNameError(String);

impl FromStr for HashKind {
    type Err = HashNameError;

    /// The name in any case, with or without its hyphens.
    fn from_str(text: &str) -> Result<Self, HashNameError> {
        let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|kind| plain(kind.name()) == plain(text))
            .ok_or_else(|| HashNameError(text.escape_default().take(64).collect()))
    }
}

/// A finished sum; shown as lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// Of SHA-256.
    Sha256([u8; 32]),
    /// Of XXH3-128.
    Xxh3(u128),
}

impl Digest {
    /// Which sum it is.
    #[must_use]
    pub const fn kind(self) -> HashKind {
        match self {
            Self::Sha256(_) => HashKind::Sha256,
            Self::Xxh3(_) => HashKind::Xxh3,
        }
    }

    /// Whether a peer's digits, in either case, say the same.
    #[must_use]
    pub fn is(self, digits: &str) -> bool {
        self.to_string().eq_ignore_ascii_case(digits.trim())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Xxh3(sum) => write!(f, "{sum:032x}"),
        }
    }
}

/// A sum in the making.
#[expect(clippy::large_enum_variant, reason = "one for a whole file; it moves once or twice")]
pub enum Hasher {
    /// SHA-256.
    Sha256(digest::Context),
    /// XXH3-128.
    Xxh3(Box<XxHash3_128>),
}

impl Hasher {
    /// The sum of no bytes yet.
    #[must_use]
    pub fn new(kind: HashKind) -> Self {
        match kind {
            HashKind::Sha256 => Self::Sha256(digest::Context::new(&digest::SHA256)),
            HashKind::Xxh3 => Self::Xxh3(Box::new(XxHash3_128::new())),
        }
    }

    /// Takes the next bytes of the file in.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(context) => context.update(bytes),
            Self::Xxh3(sum) => sum.write(bytes),
        }
    }

    /// The sum of all bytes so far.
    #[must_use]
    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(context) => {
                let mut bytes = [0; 32];
                bytes.copy_from_slice(context.finish().as_ref());
                Digest::Sha256(bytes)
            }
            Self::Xxh3(sum) => Digest::Xxh3(sum.finish_128()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256(_) => "Hasher(SHA-256)",
            Self::Xxh3(_) => "Hasher(XXH3-128)",
        })
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
        // FIPS 180-4's example; the empty sum is that of XXH3's reference implementation.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sum(HashKind::Sha256, &[b"a", b"", b"bc"]).to_string(), abc);
        assert_eq!(sum(HashKind::Xxh3, &[]).to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(sum(HashKind::Xxh3, &[b"ab", b"c"]), sum(HashKind::Xxh3, &[b"abc"]));
        assert!(sum(HashKind::Sha256, &[b"abc"]).is(&format!(" {} ", abc.to_uppercase())));
        assert!(!sum(HashKind::Sha256, &[b"abd"]).is(abc));
    }

    #[test]
    fn names_read_back_and_others_are_refused_in_one_line() {
        for kind in HashKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.name().replace('-', "").to_lowercase().parse(), Ok(kind));
        }
        let error = "MD5\n".parse::<HashKind>().unwrap_err().to_string();
        assert_eq!(error, r"unknown hash `MD5\n`: the hashes are SHA-256 and XXH3-128");
    }
}
