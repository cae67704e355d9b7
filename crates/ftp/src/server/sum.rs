//! Sums of files (HASH), computed on the data thread.
//!
//! Holes of a sparse file are zeros for every reader; their zeros are summed without reading.
//! Property kept: a sum covers the length that the file had when the sum was asked for, or it fails.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bufwise_mover::hash::{Digest, HashKind, Hasher};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use super::path::VirtualPath;
use super::running::{Link, Outcome};
use super::turns::{Party, Turns};
use crate::wire::Reply;

/// Bytes summed at once.
const CHUNK: usize = 64 << 10;
/// The content of a hole.
static ZEROS: [u8; CHUNK] = [0; CHUNK];
/// Bytes summed in one turn: some tenths of a second.
const TURN: u64 = 64 << 20;

/// A file to be summed.
pub(super) struct Sum {
    pub(super) kind: HashKind,
    /// Bytes of the file.
    pub(super) size: u64,
    pub(super) path: VirtualPath,
    /// The party that asks.
    pub(super) party: Party,
}

/// Why there is no sum.
#[derive(Debug, thiserror::Error)]
enum NoSum {
    #[error("The file became shorter while it was read.")]
    Cut,
    #[error("The file could not be read.")]
    Unreadable(#[from] io::Error),
}

impl Sum {
    /// Sums the file, turn by turn.
    pub(super) fn make(&self, link: &Link, turns: &Turns, file: &File) -> Outcome {
        let reply = match self.digest(link, turns, file) {
            Ok(Some(digest)) => self.reply(digest),
            Ok(None) => Reply::single(426, "The checksum was aborted."),
            Err(no_sum) => Reply::single(451, no_sum.to_string()),
        };
        Outcome { reply, event: None }
    }

    fn reply(&self, digest: Digest) -> Reply {
        let mut line = format!("{} 0-{} {digest} ", self.kind, self.size).into_bytes();
        line.extend_from_slice(&self.path.to_bytes());
        Reply::single(213, line)
    }

    /// Returns the sum; `None` if it was aborted.
    fn digest(&self, link: &Link, turns: &Turns, file: &File) -> Result<Option<Digest>, NoSum> {
        let mut summing = Summing::new(file, self.size, self.kind);
        while summing.at < summing.size {
            let Some(_turn) = turns.take(&self.party, &link.cancel)? else { return Ok(None) };
            let end = summing.size.min(summing.at + TURN);
            while summing.at < end {
                // A client that has disconnected gets no reply, even if it has sent QUIT before.
                if link.cancel.is_cancelled() || link.has_parted() {
                    return Ok(None);
                }
                summing.step(end)?;
            }
        }
        Ok(Some(summing.hasher.finish()))
    }
}

struct Summing<'a> {
    file: &'a File,
    size: u64,
    /// Bytes summed so far.
    at: u64,
    /// The next range of data, or the one that contains `at`; before it is a hole.
    data: Range<u64>,
    hasher: Hasher,
    buffer: Vec<u8>,
}

impl<'a> Summing<'a> {
    fn new(file: &'a File, size: u64, kind: HashKind) -> Self {
        Self { file, size, at: 0, data: 0..0, hasher: Hasher::new(kind), buffer: vec![0; CHUNK] }
    }

    /// Sums some bytes, to `end` at most.
    fn step(&mut self, end: u64) -> Result<(), NoSum> {
        if self.at >= self.data.end {
            self.data = self.next_data()?;
        }
        let len = if self.at < self.data.start {
            let len = within(self.data.start.min(end) - self.at);
            self.hasher.update(&ZEROS[..len]);
            len
        } else {
            let room = within(self.data.end.min(end) - self.at);
            let len = match self.file.read_at(&mut self.buffer[..room], self.at) {
                Ok(0) => return Err(NoSum::Cut),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error.into()),
            };
            self.hasher.update(&self.buffer[..len]);
            len
        };
        self.at += len as u64;
        Ok(())
    }

    /// Returns the next range of data from `at` on; the whole rest where the file system does not report holes.
    fn next_data(&self) -> Result<Range<u64>, NoSum> {
        let seek = |from: u64, whence| {
            let found = i64::try_from(from)
                .map_err(|_| Errno::EINVAL)
                .and_then(|from| lseek(self.file, from, whence));
            found.map(|at| u64::try_from(at).unwrap_or(from).min(self.size))
        };
        match seek(self.at, Whence::SeekData) {
            Ok(start) => Ok(start..seek(start, Whence::SeekHole).unwrap_or(self.size)),
            // No data beyond, because it is a hole or because the file has been cut.
            Err(Errno::ENXIO) if self.file.metadata()?.len() < self.size => Err(NoSum::Cut),
            Err(Errno::ENXIO) => Ok(self.size..self.size),
            Err(_) => Ok(self.at..self.size),
        }
    }
}

fn within(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(CHUNK).min(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_hole_is_not_read_and_a_cut_is_seen() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * MIB).unwrap();
        file.write_all_at(b"data", 32 * MIB).unwrap();
        let mut summing = Summing::new(&file, 64 * MIB, HashKind::Sha256);
        let data = summing.next_data().unwrap();
        assert!((31 * MIB..=32 * MIB).contains(&data.start) && data.end <= 33 * MIB, "{data:?}");
        summing.at = data.end;
        assert_eq!(summing.next_data().unwrap(), 64 * MIB..64 * MIB);
        file.set_len(40 * MIB).unwrap();
        assert!(matches!(summing.next_data(), Err(NoSum::Cut)));
    }
}
