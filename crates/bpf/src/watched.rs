//! The cgroups whose connections an engine adopts: those to which it is attached and those below them, except cgroups
//! of another bufwise.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File, ReadDir};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

use nix::sys::stat::fstat;

use crate::cgroup::{PREFIX, is_group};
use crate::group::{DEPTH, itself, present};
use crate::leftover::is_tuned;

/// Returns the numbers (inodes) of the cgroups at and below `roots`, except `others`, groups of a `bufwise run`, and
/// all below these. Cgroups that go meanwhile are skipped.
///
/// # Errors
/// A lack of descriptors or of memory, so that cgroups would be missed.
pub(crate) fn below(roots: &[BorrowedFd<'_>], others: &[u64]) -> io::Result<HashSet<u64>> {
    let mut found = HashSet::new();
    for root in roots {
        found.extend(fstat(root).map(|directory| directory.st_ino));
        walk(&itself(root), others, DEPTH, &mut found, read)?;
    }
    Ok(found)
}

fn read(directory: &Path) -> io::Result<ReadDir> {
    fs::read_dir(directory)
}

fn walk(
    directory: &Path,
    others: &[u64],
    depth: usize,
    found: &mut HashSet<u64>,
    read: fn(&Path) -> io::Result<ReadDir>,
) -> io::Result<()> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    let Some(entries) = present(read(directory))? else { return Ok(()) };
    for group in entries.flatten().filter(|entry| is_group(entry) && !is_anothers(entry, others)) {
        found.insert(group.ino());
        walk(&group.path(), others, depth, found, read)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_cgroup_that_is_gone_is_skipped_and_a_lack_of_descriptors_is_an_error() {
        fn with(error: Errno, directory: &Path) -> io::Result<ReadDir> {
            if directory.ends_with("a") { Err(error.into()) } else { fs::read_dir(directory) }
        }
        let top = std::env::temp_dir().join(format!("bufwise-watched-{}", std::process::id()));
        // A test that was killed may have had the same number.
        let _left = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("a/below")).unwrap();
        let found = |read: fn(&Path) -> io::Result<ReadDir>| {
            let mut found = HashSet::new();
            walk(&top, &[], DEPTH, &mut found, read).map(|()| found.len())
        };
        assert_eq!(found(read).unwrap(), 2);
        assert_eq!(found(|directory| with(Errno::ENOENT, directory)).unwrap(), 1);
        assert!(found(|directory| with(Errno::EMFILE, directory)).is_err());
        fs::remove_dir_all(top).unwrap();
    }
}
