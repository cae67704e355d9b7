//! The cgroups whose connections an engine adopts: those to which it is attached and those below them, except cgroups
//! of another bufwise.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

use nix::sys::stat::fstat;

use crate::cgroup::PREFIX;
use crate::group::{DEPTH, itself};
use crate::leftover::is_tuned;

/// Returns the numbers (inodes) of the cgroups at and below `roots`, except `others`, groups of a `bufwise run`, and
/// all below these.
pub(crate) fn below(roots: &[BorrowedFd<'_>], others: &[u64]) -> HashSet<u64> {
    let mut found = HashSet::new();
    for root in roots {
        found.extend(fstat(root).map(|directory| directory.st_ino));
        walk(&itself(root), others, DEPTH, &mut found);
    }
    found
}

fn walk(directory: &Path, others: &[u64], depth: usize, found: &mut HashSet<u64>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    // The directory was removed meanwhile.
    let Ok(entries) = fs::read_dir(directory) else { return };
    let groups = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for group in groups.filter(|group| !is_anothers(group, others)) {
        found.insert(group.ino());
        walk(&group.path(), others, depth, found);
    }
}

fn is_anothers(group: &DirEntry, others: &[u64]) -> bool {
    // A `bufwise run` may have started since.
    let is_of_run = || {
        group.file_name().to_string_lossy().starts_with(PREFIX)
            && match File::open(group.path()) {
                Ok(directory) => is_tuned(directory.as_fd()),
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            }
    };
    others.contains(&group.ino()) || is_of_run()
}
