//! A window scale that large windows can be expressed with.
//!
//! Problem: the scale is settled at the SYN, from the maximum of `tcp_rmem` at that moment; with the usual 6 MB no
//! window beyond 8 MiB is possible later. So the maximum is raised while the command runs, in its network namespace,
//! and each of its sockets is bounded by its policy instead.
//! - What was there before stands in a journal, which is locked while its owner lives: the next start puts back what a
//!   killed process left.
//! - Several runs at a time: the first notes the original, the last puts it back.
//! - A value that somebody else has written meanwhile is left alone.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bufwise_policy::Bytes;
use nix::fcntl::{Flock, FlockArg};

const JOURNALS: &str = "/run/bufwise";
const SETTING: &str = "/proc/sys/net/ipv4/tcp_rmem";

/// The raised maximum. Dropping it puts the old one back.
#[derive(Debug)]
pub(super) struct WindowScale {
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    _held: Flock<File>,
    namespace: u64,
    before: String,
    ours: String,
}

impl WindowScale {
    /// Raises the maximum so that `window` can be expressed, if it is lower.
    pub(super) fn raise(window: Bytes) -> Result<Self> {
        fs::create_dir_all(JOURNALS).with_context(|| format!("cannot make {JOURNALS}"))?;
        let _one_at_a_time = lock_all()?;
        let namespace = fs::metadata("/proc/self/ns/net").context("cannot see the network namespace")?.ino();
        let live = restore_dead(namespace)?;
        let current = read(SETTING)?;
        let ours = with_maximum(&current, window.0).context("tcp_rmem is not three numbers")?;
        if ours == current && live.is_none() {
            return Ok(Self { journal: None });
        }
        let before = live.unwrap_or_else(|| current.clone());
        let path = PathBuf::from(format!("{JOURNALS}/tcp_rmem-{namespace}-{}", std::process::id()));
        let held = write_journal(&path, &before, &ours)?;
        let journal = Journal { path, _held: held, namespace, before, ours };
        if journal.ours != current {
            fs::write(SETTING, &journal.ours).with_context(|| format!("cannot raise {SETTING}"))?;
        }
        Ok(Self { journal: Some(journal) })
    }
}

impl Drop for WindowScale {
    fn drop(&mut self) {
        let Some(journal) = self.journal.take() else { return };
        let Ok(_one_at_a_time) = lock_all() else { return };
        let _gone = fs::remove_file(&journal.path);
        let others = journals(journal.namespace).iter().any(|path| is_held(path));
        if !others && read(SETTING).is_ok_and(|current| current == journal.ours) {
            // Writable when it was raised; nothing is left to do if it no longer is.
            let _refused = fs::write(SETTING, &journal.before);
        }
    }
}

fn lock_all() -> Result<Flock<File>> {
    let file = File::create(format!("{JOURNALS}/lock")).context("cannot lock the journal")?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).context("cannot lock the journal")
}

fn read(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The three numbers with a maximum of at least `size`.
fn with_maximum(setting: &str, size: u64) -> Option<String> {
    let mut numbers = setting.split(' ').map(|number| number.parse::<u64>().ok());
    let (smallest, usual, largest) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(format!("{smallest} {usual} {}", largest.max(size)))
}

fn write_journal(path: &Path, before: &str, ours: &str) -> Result<Flock<File>> {
    let what = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(what)?;
    let mut held =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).with_context(what)?;
    held.write_all(format!("{before}\n{ours}\n").as_bytes()).with_context(what)?;
    Ok(held)
}

fn journals(namespace: u64) -> Vec<PathBuf> {
    let prefix = format!("tcp_rmem-{namespace}-");
    let entries = fs::read_dir(JOURNALS).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    ours.map(|entry| entry.path()).collect()
}

fn is_held(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
}

fn content(path: &Path) -> io::Result<(String, String)> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    let mut lines = text.lines().map(str::to_owned);
    match (lines.next(), lines.next()) {
        (Some(before), Some(ours)) => Ok((before, ours)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Puts back what dead processes left, unless others still rely on it; returns the original that those noted.
fn restore_dead(namespace: u64) -> Result<Option<String>> {
    let (live, dead): (Vec<_>, Vec<_>) = journals(namespace).into_iter().partition(|path| is_held(path));
    let original = live.iter().find_map(|path| content(path).ok()).map(|(before, _)| before);
    for path in dead {
        if let Ok((before, ours)) = content(&path)
            && original.is_none()
            && read(SETTING)? == ours
        {
            fs::write(SETTING, before).with_context(|| format!("cannot put {SETTING} back"))?;
        }
        let _gone = fs::remove_file(path);
    }
    Ok(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_maximum_is_raised_and_never_lowered() {
        assert_eq!(with_maximum("4096 131072 6291456", 1 << 26).unwrap(), "4096 131072 67108864");
        assert_eq!(with_maximum("4096 131072 6291456", 1_000).unwrap(), "4096 131072 6291456");
        assert_eq!(with_maximum("4096 131072", 1), None);
        assert_eq!(with_maximum("a b c", 1), None);
    }
}
