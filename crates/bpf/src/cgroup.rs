//! A cgroup of our own for the processes of one command.
//!
//! Problem: programs must see one command's connections and no others, whatever it starts, and nothing may be
//! left when bufwise ends, however it ends.
//! - It is made below the group that bufwise itself is in, so that limits on that group go on holding.
//! - Its directory is locked (flock) while its owner lives. Process numbers would not do: another process
//!   namespace has its own. The next bufwise removes groups without an owner, if they are empty. Other users may
//!   pass through the directory, so that the command can read its own limits, but not open it: a user that can open it
//!   could lock it, and keep it from being made or removed.
//! - bufwise steps into it for the moment in which it starts the command, which is thus born there.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, mkdirat};

use crate::mount;

/// Every group of a `run` begins so.
pub const PREFIX: &str = "bufwise-run-";
/// Of its directory: nobody but the owner may open it.
const MODE: Mode = Mode::from_bits_truncate(0o711);
/// Attempts to find a free name.
const ATTEMPTS: u32 = 64;

/// All threads of a process move together: while one steps into a group to start a command there, another must
/// neither start its own nor ask where it is.
static STEPS: Mutex<()> = Mutex::new(());

/// Why there is no cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup v2.
    #[error("cgroup v2 is neither mounted nor can it be: {0}; run as root on a kernel with cgroup v2")]
    Hierarchy(io::Error),
    /// There is none of that name.
    #[error("there is no cgroup {group}: {source}; paths are as in /proc/PID/cgroup")]
    Open {
        /// The group that was named.
        group: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It could not be made.
    #[error("cannot make a cgroup: {0}; run as root")]
    Make(io::Error),
    /// bufwise could not step into it or out of it.
    #[error("cannot move to cgroup {group}: {source}")]
    Move {
        /// Where to.
        group: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The command could not be started.
    #[error("{0}")]
    Start(io::Error),
}

/// A cgroup. Dropping it moves what is left in it, and below it, to the group above and removes it with those below it.
#[derive(Debug)]
pub struct Cgroup {
    directory: Flock<File>,
    parent: OwnedFd,
    name: String,
}

impl Cgroup {
    /// Makes an empty group below bufwise's own, and removes those that earlier runs had to leave.
    ///
    /// # Errors
    /// [`CgroupError`] says what is missing.
    pub fn create() -> Result<Self, CgroupError> {
        let _alone = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let parent = own_group(mount::hierarchy().map_err(CgroupError::Hierarchy)?);
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
            // Until it is locked someone else's cleaning may take it away; then the next name is tried.
            if let Ok(directory) = lock(&parent, &name)
                && fs::read(inside(&*directory, "cgroup.procs")).is_ok()
            {
                return Ok(Self { directory, parent, name });
            }
        }
        Err(CgroupError::Make(last.into()))
    }

    /// Starts a command in the group.
    ///
    /// # Errors
    /// [`CgroupError::Start`] as the command fails, [`CgroupError::Move`] when the kernel refuses the group.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, CgroupError> {
        let _alone = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        self.step(&*self.directory, &self.name)?;
        let child = command.spawn().map_err(CgroupError::Start);
        self.step(&self.parent, "above")?;
        child
    }

    fn step(&self, directory: &impl AsRawFd, group: &str) -> Result<(), CgroupError> {
        fs::write(inside(directory, "cgroup.procs"), "0")
            .map_err(|source| CgroupError::Move { group: group.to_owned(), source })
    }

    /// The processes in the group and below it, as numbered in this process namespace.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        processes(&inside(&*self.directory, ""))
    }

    /// The name of its directory.
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
        // Processes may be born while they are moved: a few rounds are enough for all but a fork bomb.
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

/// A file in a directory that is open.
fn inside(directory: &impl AsRawFd, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{file}", directory.as_raw_fd()))
}

/// The group that this process is in, or the root where it cannot be seen.
fn own_group(root: OwnedFd) -> OwnedFd {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    if path.is_empty() || path.starts_with("..") {
        return root;
    }
    File::open(inside(&root, path)).map_or(root, OwnedFd::from)
}

fn lock(parent: &OwnedFd, name: &str) -> io::Result<Flock<File>> {
    let directory = File::open(inside(parent, name))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes the groups whose owner is dead and in which nothing runs any more.
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

/// Removes a group and those that its processes have made below it, unless a process runs in one of them; whether it did.
pub(crate) fn remove_empty(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 0") && remove(group).is_ok()
}

fn remove(group: &Path) -> io::Result<()> {
    children(group).try_for_each(|child| remove(&child))?;
    fs::remove_dir(group)
}

/// The processes in a group and below it, as numbered in this process namespace.
pub(crate) fn processes(group: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0);
    own.chain(children(group).flat_map(|child| processes(&child))).collect()
}

/// The groups right below one.
pub(crate) fn children(group: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}
