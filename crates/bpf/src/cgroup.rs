//! A cgroup for the processes of one command.
//!
//! Problem: the programs must see the connections of one command and no others, whatever it starts, and nothing may
//! be left when bufwise ends, however it ends.
//! - The group is made below bufwise's own group, so that the limits of that group still apply.
//! - Its directory is locked (flock) while its owner lives. A process number would not identify the owner: other
//!   process namespaces have numbers of their own. The next bufwise removes groups without an owner, if they are
//!   empty. Other users may pass through the directory, so that the command can read its own limits, but may not open
//!   it: a user who can open it could lock it, and keep it from being made or removed.
//! - bufwise moves into the group while it starts the command, so that the command starts there.

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use bufwise_units::Bytes;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, mkdirat};

use crate::mount;

/// Prefix of the name of every group of a `run`.
pub const PREFIX: &str = "bufwise-run-";
/// Mode of the group's directory: only the owner may open it.
const MODE: Mode = Mode::from_bits_truncate(0o711);
/// Most attempts to find a free name.
const ATTEMPTS: u32 = 64;

/// Serialises moves: all threads of a process move together, so while one moves into a group to start a command
/// there, no other may start a command or ask for its own group.
static STEPS: Mutex<()> = Mutex::new(());

/// Why a cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no cgroup v2.
    #[error("cgroup v2 is neither mounted nor can it be: {0}; run as root on a kernel with cgroup v2")]
    Hierarchy(io::Error),
    /// There is no cgroup of that name.
    #[error("there is no cgroup {group}: {source}; paths are as in /proc/PID/cgroup")]
    Open {
        /// The group that was named.
        group: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The cgroups could not be listed, for lack of descriptors or of memory.
    #[error("cannot list cgroups: {0}")]
    List(io::Error),
    /// The cgroup could not be made.
    #[error("cannot make a cgroup: {0}; run as root")]
    Make(io::Error),
    /// bufwise could not move into the cgroup or out of it.
    #[error("cannot move to cgroup {group}: {source}")]
    Move {
        /// Target of the move.
        group: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The command could not be started.
    #[error("{0}")]
    Start(io::Error),
}

/// A cgroup. Dropping it moves the remaining processes in it and below it to its parent, and removes it with all
/// groups below.
#[derive(Debug)]
pub struct Cgroup {
    directory: Flock<File>,
    parent: OwnedFd,
    name: String,
}

impl Cgroup {
    /// Makes an empty group below bufwise's own, and removes groups that earlier runs left behind.
    ///
    /// # Errors
    /// [`CgroupError`]: no cgroup v2, or the group could not be made, or it is already clear that this process may not move
    /// into it.
    pub fn create() -> Result<Self, CgroupError> {
        let _alone = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, is_own) = own_group(mount::hierarchy().map_err(CgroupError::Hierarchy)?);
        remove_leftovers(&parent);
        let mut last = Errno::EEXIST;
        for attempt in 0..ATTEMPTS {
            let name = format!("{PREFIX}{}-{attempt}", std::process::id());
            match mkdirat(parent.as_fd(), name.as_str(), MODE) {
                Ok(()) => {}
                Err(errno) => {
                    last = errno;
                    if errno == Errno::EEXIST { continue } else { break }
                }
            }
            // Until the group is locked, another bufwise may remove it as a leftover; then the next name is tried.
            let Ok(directory) = lock(&parent, &name) else { continue };
            match fs::read_to_string(inside(&*directory, "cgroup.type")) {
                Ok(kind) if kind.trim() == "domain" => {
                    let group = Self { directory, parent, name };
                    // Under the mount option `nsdelegate` a process may not leave a group that its cgroup namespace does not
                    // show, as after `nsenter` into a container (cgroups(7)).
                    if !is_own {
                        group.step(&*group.directory, &group.name)?;
                        let _stays_in_it = group.step(&group.parent, "above");
                    }
                    return Ok(group);
                }
                // Below a group whose threads are divided no group can have processes.
                Ok(_) => {
                    let _gone = fs::remove_dir(inside(&parent, &name));
                    return Err(CgroupError::Make(Errno::EOPNOTSUPP.into()));
                }
                Err(_) => {}
            }
        }
        Err(CgroupError::Make(last.into()))
    }

    /// Starts a command in the group.
    ///
    /// # Errors
    /// [`CgroupError::Start`] if the command does not start, [`CgroupError::Move`] if the kernel refuses to move this
    /// process into the group.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, CgroupError> {
        let _alone = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        self.step(&*self.directory, &self.name)?;
        let child = command.spawn().map_err(CgroupError::Start);
        // If the way back is barred, this process leaves the group when that is dropped.
        let _stays_in_it = self.step(&self.parent, "above");
        child
    }

    fn step(&self, directory: &impl AsRawFd, group: &str) -> Result<(), CgroupError> {
        fs::write(inside(directory, "cgroup.procs"), "0")
            .map_err(|source| CgroupError::Move { group: group.to_owned(), source })
    }

    /// Returns the processes in the group and below it, as numbered in this process namespace.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        processes(&inside(&*self.directory, ""))
    }

    /// Returns the name of its directory.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // New processes may start while others are moved; a few rounds suffice for everything but a fork bomb.
        for _ in 0..8 {
            if remove_empty(&inside(&self.parent, &self.name)) {
                return;
            }
            for pid in self.processes() {
                let _ended_meanwhile = fs::write(inside(&self.parent, "cgroup.procs"), pid.to_string());
            }
        }
    }
}

/// Returns the path of a file in an open directory.
fn inside(directory: &impl AsRawFd, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{file}", directory.as_raw_fd()))
}

/// Returns the path of the group that this process is in, below the root of its cgroup namespace: empty for the root, and with `..`
/// at its begin if it leads out of the namespace. `None` without cgroup v2.
fn own_path() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned)
}

/// Opens the group that this process is in, or the root if that group is not visible; returns whether it is the own one.
fn own_group(root: OwnedFd) -> (OwnedFd, bool) {
    let path = own_path().unwrap_or_default();
    if path.is_empty() {
        // A new cgroup namespace without a mount of its own shows the root of another one.
        let is_own = holds_this_process(&root);
        return (root, is_own);
    }
    if path.starts_with("..") {
        return (root, false);
    }
    match File::open(inside(&root, &path)) {
        Ok(own) => (own.into(), true),
        Err(_) => (root, false),
    }
}

/// Returns whether this process is in the group itself.
fn holds_this_process(group: &impl AsRawFd) -> bool {
    let own = std::process::id().to_string();
    fs::read_to_string(inside(group, "cgroup.procs")).is_ok_and(|listed| listed.lines().any(|pid| pid == own))
}

/// Returns the memory that the group of this process may use, with those above it as far as they are visible: the least of
/// their `memory.max` and `memory.high`. `None` if nothing bounds it, or if cgroup v2 is not visible. TCP's buffers count there.
#[must_use]
pub fn memory_limit() -> Option<Bytes> {
    let (root, path) = (mount::hierarchy().ok()?, own_path()?);
    // Of a group outside the cgroup namespace only the root of the namespace is visible, and that bounds others.
    if path.starts_with("..") {
        return None;
    }
    least_limit(Path::new(&path), |file| fs::read_to_string(inside(&root, "").join(file)).ok())
}

/// Returns the least limit of the group at `path` and of those above it, whose files `read` reads.
fn least_limit(path: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<Bytes> {
    let files = path.ancestors().flat_map(|group| ["memory.max", "memory.high"].map(|file| group.join(file)));
    // The file of a group without a limit says `max`; the first group of the host has none of the files.
    files.filter_map(|file| read(&file)?.trim().parse().ok()).map(Bytes).min()
}

fn lock(parent: &OwnedFd, name: &str) -> io::Result<Flock<File>> {
    let directory = File::open(inside(parent, name))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes groups whose owner is dead and in which no process runs.
fn remove_leftovers(parent: &OwnedFd) {
    let Ok(entries) = fs::read_dir(inside(parent, "")) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(PREFIX)
            && let Ok(_unowned) = lock(parent, &name)
        {
            let _someone_is_in_it = remove_empty(&inside(parent, &name));
        }
    }
}

/// Removes a group and the groups below it, unless a process runs in one of them; returns whether it did.
pub(crate) fn remove_empty(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 0") && remove(group).is_ok()
}

fn remove(group: &Path) -> io::Result<()> {
    children(group).try_for_each(|child| remove(&child))?;
    fs::remove_dir(group)
}

/// Returns the processes in a group and below it, as numbered in this process namespace.
pub(crate) fn processes(group: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0);
    own.chain(children(group).flat_map(|child| processes(&child))).collect()
}

/// Returns the groups directly below `group`.
fn children(group: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(is_group).map(|entry| entry.path())
}

/// Returns whether an entry of a cgroup's directory is a cgroup, not one of its files.
pub(crate) fn is_group(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_a_group_without_this_process_is_not_taken_for_its_own() {
        if !bufwise_trial::root() {
            return;
        }
        let group = Cgroup::create().unwrap();
        let _alone = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, is_own) = own_group(mount::hierarchy().unwrap());
        assert_eq!((holds_this_process(&*group.directory), holds_this_process(&own)), (false, is_own));
    }

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        let least = |path: &str, limits: &[(&str, &str)]| {
            let read = |file: &Path| {
                limits.iter().find(|(name, _)| Path::new(name) == file).map(|(_, text)| format!("{text}\n"))
            };
            least_limit(Path::new(path), read)
        };
        let limits = [
            ("memory.max", "900"),
            ("a/memory.max", "500"),
            ("a/memory.high", "400"),
            ("a/b/memory.max", "max"),
            ("c/memory.max", "1"),
        ];
        assert_eq!(least("a/b", &limits), Some(Bytes(400)));
        assert_eq!(
            least("d", &limits),
            Some(Bytes(900)),
            "a container shows its limit at the root of its namespace"
        );
        assert_eq!(least("", &limits), Some(Bytes(900)));
        assert_eq!(least("a/b", &limits[3..4]), None, "max is no limit");
        assert_eq!(least("a", &[]), None);
    }
}
