//! Existing cgroups: one given by its path, or all of them.
//!
//! Paths are as in `/proc/PID/cgroup`: `/` is the root of the hierarchy, wherever it is mounted. A path below the
//! mount itself (`/sys/fs/cgroup/...`) is accepted as well, because users see such paths.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::cgroup::{self, CgroupError, PREFIX, is_group};
use crate::error::is_scarce;
use crate::mount;

/// Deepest nesting that is searched (`BW_CGROUP_DEPTH`); systemd and containers nest some ten deep. A walk holds two
/// descriptors for each level, and users may nest their own cgroups without a bound.
pub(crate) const DEPTH: usize = 64;

/// An existing cgroup.
#[derive(Debug)]
pub struct Group {
    directory: File,
    path: PathBuf,
}

impl Group {
    /// Opens a cgroup by its path.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::Open`] if there is no such group.
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let failed = |source| CgroupError::Open { group: path.display().to_string(), source };
        let is_below_mount = statfs(path).is_ok_and(|kind| kind.filesystem_type() == CGROUP2_SUPER_MAGIC);
        let directory = if is_below_mount {
            File::open(path)
        } else {
            let root = mount::hierarchy().map_err(CgroupError::Hierarchy)?;
            File::open(inside(&root, path.strip_prefix("/").unwrap_or(path)))
        };
        let directory = directory.map_err(failed)?;
        // A file inside a cgroup's directory is not a cgroup.
        if !directory.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { directory, path: path.to_owned() })
    }

    /// Returns a path as in `/proc/PID/cgroup`, also of a group that is named by its path below the mount.
    #[must_use]
    pub fn path_in_hierarchy(path: &Path) -> PathBuf {
        mount::place().map_or_else(|| path.to_owned(), |mount| below_root(path, Path::new(&mount)))
    }

    /// Returns the groups that are not inside another one. Programs see the connections of the groups below theirs as
    /// well; a program that is called twice for a new connection takes it for another bufwise's, and leaves it alone.
    #[must_use]
    pub fn outermost(groups: Vec<Self>) -> Vec<Self> {
        let mut kept: Vec<Self> = Vec::new();
        for group in groups {
            if !kept.iter().any(|other| other.holds(&group)) {
                kept.retain(|other| !group.holds(other));
                kept.push(group);
            }
        }
        kept
    }

    /// Returns whether the other group is this one or inside it.
    fn holds(&self, other: &Self) -> bool {
        let place = |group: &Self| fs::read_link(itself(&group.directory)).ok();
        place(self).zip(place(other)).is_some_and(|(own, other)| other.starts_with(own))
    }

    /// Visits every group, each after the groups below it, except those nested more than 64 deep. Few are open at a
    /// time, however many there are.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::List`] for lack of descriptors or of memory, so that groups would
    /// be missed.
    pub fn walk(visit: &mut impl FnMut(Self)) -> Result<(), CgroupError> {
        Self::root()?.walk_below(DEPTH, visit).map_err(CgroupError::List)
    }

    /// Opens the root of the hierarchy.
    pub(crate) fn root() -> Result<Self, CgroupError> {
        let root = mount::hierarchy().map_err(CgroupError::Hierarchy)?;
        Ok(Self { directory: File::from(root), path: PathBuf::from("/") })
    }

    fn walk_below(self, depth: usize, visit: &mut impl FnMut(Self)) -> io::Result<()> {
        if let Some(depth) = depth.checked_sub(1) {
            self.below(|_| true)?.try_for_each(|group| group?.walk_below(depth, visit))?;
        }
        visit(self);
        Ok(())
    }

    /// Returns the path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kernel's number of the group: the inode of its directory.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.directory.metadata()?.ino())
    }

    /// Returns the processes in it and below, as numbered in this process namespace. Groups that go meanwhile, and
    /// those nested more than 64 deep, are skipped.
    ///
    /// # Errors
    /// A lack of descriptors or of memory, so that processes would be missed.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        add_processes(&itself(&self.directory), DEPTH, &mut all)?;
        Ok(all)
    }

    /// Returns whether the group still exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        inside(&self.directory, Path::new("cgroup.procs")).exists()
    }

    /// Returns whether bufwise made the group for a command.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    }

    /// Removes a group that bufwise made, and those below it, if its owner is gone and no process runs in them;
    /// returns whether it did.
    #[must_use]
    pub fn remove_if_abandoned(self) -> bool {
        let is_ours = self.is_ours();
        let (true, Ok(place)) = (is_ours, fs::read_link(itself(&self.directory))) else { return false };
        Flock::lock(self.directory, FlockArg::LockExclusiveNonblock).is_ok_and(|_unowned| {
            // This fails if a process is still in it, or if its path is not visible from here.
            cgroup::remove_empty(&place)
        })
    }

    /// Returns the groups directly below whose names fit.
    ///
    /// # Errors
    /// A lack of descriptors or of memory, so that groups would be missed.
    pub(crate) fn children_named(&self, fits: impl Fn(&str) -> bool) -> io::Result<Vec<Self>> {
        self.below(fits)?.collect()
    }

    /// Returns the group of that name directly below, if there is one.
    ///
    /// # Errors
    /// A lack of descriptors or of memory.
    pub(crate) fn child(&self, name: &str) -> io::Result<Option<Self>> {
        let opened = present(File::open(inside(&self.directory, Path::new(name))))?;
        // A file inside a cgroup's directory is not a cgroup.
        let directory = opened.filter(|opened| opened.metadata().is_ok_and(|kind| kind.is_dir()));
        Ok(directory.map(|directory| Self { directory, path: self.path.join(name) }))
    }

    /// As [`Group::children_named`], one after the other. Groups that were removed meanwhile are skipped.
    fn below(&self, fits: impl Fn(&str) -> bool) -> io::Result<impl Iterator<Item = io::Result<Self>>> {
        let entries = present(fs::read_dir(itself(&self.directory)))?.into_iter().flatten().flatten();
        let named = entries.filter(is_group).filter(move |group| fits(&group.file_name().to_string_lossy()));
        Ok(named.filter_map(move |group| {
            let path = self.path.join(group.file_name());
            let opened = present(File::open(group.path())).transpose()?;
            Some(opened.map(|directory| Self { directory, path }))
        }))
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the path below the root of the hierarchy; paths outside the mount are such paths already.
fn below_root(path: &Path, mount: &Path) -> PathBuf {
    path.strip_prefix(mount).map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest))
}

fn add_processes(group: &Path, depth: usize, all: &mut Vec<i32>) -> io::Result<()> {
    let listed = present(fs::read_to_string(group.join("cgroup.procs")))?.unwrap_or_default();
    // Processes of other process namespaces are listed as 0.
    all.extend(listed.lines().filter_map(|line| line.parse().ok()).filter(|pid: &i32| *pid > 0));
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    let Some(entries) = present(fs::read_dir(group))? else { return Ok(()) };
    entries.flatten().filter(is_group).try_for_each(|child| add_processes(&child.path(), depth, all))
}

/// Returns what was read; `None` if the group or process has gone, or the kernel refuses to show it (as the processes of a threaded
/// cgroup). A lack of descriptors or of memory is an error.
pub(crate) fn present<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_scarce(&error) => Err(error),
        read => Ok(read.ok()),
    }
}

/// Returns the path of an open directory.
pub(crate) fn itself(directory: &impl AsRawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string())
}

/// Returns a path inside an open directory.
fn inside(directory: &impl AsRawFd, path: &Path) -> PathBuf {
    itself(directory).join(path)
}

#[cfg(test)]
mod tests {
    use std::env;

    use nix::errno::Errno;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;

    /// A directory that is removed with all below it when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("bufwise-{name}-{}", std::process::id()));
            // A test that was killed may have had the same number.
            let _left = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_walk_ends_where_groups_are_nested_too_deep() {
        let scratch = Scratch::new("deep");
        fs::create_dir_all(scratch.0.join("a/".repeat(DEPTH + 9))).unwrap();
        fs::create_dir(scratch.0.join("b")).unwrap();
        let mut visited = Vec::new();
        let top = Group { directory: File::open(&scratch.0).unwrap(), path: PathBuf::from("/") };
        top.walk_below(DEPTH, &mut |group| visited.push(group.path().to_owned())).unwrap();
        let deepest = visited.iter().map(|path| path.components().count() - 1).max();
        assert_eq!((deepest, visited.len()), (Some(DEPTH), DEPTH + 2));
        assert_eq!(visited.last().map(PathBuf::as_path), Some(Path::new("/")), "each after those below");
    }

    #[test]
    fn a_group_is_not_taken_for_gone_for_lack_of_descriptors() {
        // The limit of descriptors holds for the whole process.
        if !bufwise_trial::alone("group::tests::a_group_is_not_taken_for_gone_for_lack_of_descriptors") {
            return;
        }
        let scratch = Scratch::new("scarce");
        fs::create_dir(scratch.0.join("a")).unwrap();
        let top = || Group { directory: File::open(&scratch.0).unwrap(), path: PathBuf::from("/") };
        let (walked, named, one) = (top(), top(), top());
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // A limit at the next descriptor lets no directory be read; one more lets none be opened beside it.
        let next = u64::try_from(File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
        let limited = |more: u64| setrlimit(Resource::RLIMIT_NOFILE, next + more, hard).unwrap();
        limited(0);
        let (child, unread) = (one.child("a").is_err(), named.children_named(|_| true).is_err());
        limited(1);
        let unopened = named.children_named(|_| true).is_err();
        let walk = walked.walk_below(DEPTH, &mut |_| {});
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert_eq!((child, unread, unopened, walk.is_err()), (true, true, true, true));
        assert!(one.child("a").unwrap().is_some());
    }

    #[test]
    fn processes_are_those_of_all_below_and_none_is_missed_for_lack_of_descriptors() {
        let scratch = Scratch::new("processes");
        fs::create_dir_all(scratch.0.join("a/b")).unwrap();
        fs::write(scratch.0.join("cgroup.procs"), "7\n0\n").unwrap();
        fs::write(scratch.0.join("a/b/cgroup.procs"), "8\n").unwrap();
        let group = Group { directory: File::open(&scratch.0).unwrap(), path: PathBuf::from("/") };
        assert_eq!(group.processes().unwrap(), [7, 8]);
        let failed = |errno: Errno| present::<()>(Err(errno.into()));
        assert!([Errno::ENOENT, Errno::ENODEV, Errno::EOPNOTSUPP].map(failed).iter().all(Result::is_ok));
        assert!([Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].map(failed).iter().all(Result::is_err));
    }

    #[test]
    fn groups_inside_another_are_left_to_that_one() {
        let scratch = Scratch::new("outermost");
        fs::create_dir_all(scratch.0.join("a/b")).unwrap();
        fs::create_dir(scratch.0.join("ab")).unwrap();
        let outermost = |names: &[&str]| {
            let group = |name: &&str| Group {
                directory: File::open(scratch.0.join(name)).unwrap(),
                path: PathBuf::from(name),
            };
            let kept = Group::outermost(names.iter().map(group).collect());
            kept.iter().map(|group| group.path().to_owned()).collect::<Vec<_>>()
        };
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(outermost(&["a/b", "ab", "a", "a/b"]), paths(&["ab", "a"]));
        assert_eq!(outermost(&["a", "a/b", "a"]), paths(&["a"]), "each once");
        assert_eq!(outermost(&["a/b", "ab"]), paths(&["a/b", "ab"]));
    }

    #[test]
    fn a_path_below_the_mount_is_one_below_the_root() {
        let below = |path: &str| below_root(Path::new(path), Path::new("/sys/fs/cgroup"));
        assert_eq!(below("/sys/fs/cgroup/system.slice/a.service"), Path::new("/system.slice/a.service"));
        assert_eq!(below("/sys/fs/cgroup"), Path::new("/"));
        assert_eq!(below("/sys/fs/cgroup2"), Path::new("/sys/fs/cgroup2"));
        assert_eq!(below("system.slice"), Path::new("system.slice"));
    }

    #[test]
    fn what_is_no_group_is_named() {
        if mount::hierarchy().is_err() {
            return bufwise_trial::skip("no cgroup v2");
        }
        for path in ["/bufwise-no-such-group", "/cgroup.procs"] {
            let error = Group::open(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
        assert!(Group::open(Path::new("/")).is_ok());
    }
}
