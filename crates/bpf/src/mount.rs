//! The cgroup v2 hierarchy, wherever it is mounted, or a private mount of it.
//!
//! Problem: cgroup v2 may be mounted beside v1, at any path, or not at all, as with a fresh /sys (`ip netns exec`,
//! some containers). A mount made with fsopen(2) and fsmount(2) appears in no namespace: it is a descriptor, and ends
//! with it.

#![expect(unsafe_code, reason = "fsopen and fsmount are wrapped by no library")]

use std::ffi::{CStr, c_int, c_uint};
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

const FSCONFIG_CMD_CREATE: c_uint = 6;
/// `FSOPEN_CLOEXEC` and `FSMOUNT_CLOEXEC`: a command that is started later must not inherit the whole hierarchy.
const CLOEXEC: c_uint = 1;

/// Opens the root directory of the hierarchy: the group of all processes, for [`crate::Engine::attach`].
///
/// # Errors
/// The kernel's error if cgroup v2 is not mounted and cannot be mounted.
pub fn hierarchy() -> io::Result<OwnedFd> {
    match place().map(fs::File::open) {
        // Another mount may cover it.
        Some(Ok(directory)) if is_cgroup2(&directory) => Ok(directory.into()),
        _ => mount_privately(c"cgroup2"),
    }
}

/// Returns where the hierarchy is mounted; `None` if it is not.
pub(crate) fn place() -> Option<String> {
    // Users may mount their own file systems (FUSE) at paths that are no text.
    let mounts = fs::read("/proc/self/mounts").unwrap_or_default();
    String::from_utf8_lossy(&mounts).lines().find_map(place_of_cgroup2)
}

fn is_cgroup2(directory: &fs::File) -> bool {
    fstatfs(directory).is_ok_and(|kind| kind.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Returns the second field of a line whose third is `cgroup2`; proc(5) writes spaces as `\040`.
fn place_of_cgroup2(line: &str) -> Option<String> {
    let mut fields = line.split(' ').skip(1);
    let place = fields.next()?.replace("\\040", " ");
    (fields.next()? == "cgroup2").then_some(place)
}

fn mount_privately(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the string ends with 0 and outlives the call; the kernel returns a new descriptor or -1.
    let context = unsafe { descriptor(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC))? };
    let raw = std::os::fd::AsRawFd::as_raw_fd(&context);
    let nothing = std::ptr::null::<u8>();
    // SAFETY: this command takes neither key nor value.
    let made = unsafe { libc::syscall(libc::SYS_fsconfig, raw, FSCONFIG_CMD_CREATE, nothing, nothing, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes no pointers; the kernel returns a new descriptor or -1.
    unsafe { descriptor(libc::syscall(libc::SYS_fsmount, raw, CLOEXEC, 0)) }
}

/// Takes ownership of the descriptor that a system call has returned.
///
/// # Safety
/// `result` must be the call's result: -1, or a descriptor that nothing else owns.
unsafe fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match c_int::try_from(result) {
        // SAFETY: as the caller promises.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    #[test]
    fn the_place_is_found_among_other_mounts_and_unescaped() {
        assert_eq!(place_of_cgroup2("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0"), None);
        assert_eq!(
            place_of_cgroup2("cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0").as_deref(),
            Some("/sys/fs/cgroup/unified")
        );
        assert_eq!(place_of_cgroup2("none /a\\040b cgroup2 rw 0 0").as_deref(), Some("/a b"));
        assert_eq!(place_of_cgroup2("garbage"), None);
    }

    #[test]
    fn root_a_private_mount_shows_the_hierarchy_and_no_namespace_shows_the_mount() {
        if !bufwise_trial::root() {
            return;
        }
        let before = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mount_privately(c"cgroup2").unwrap();
        let raw = std::os::fd::AsRawFd::as_raw_fd(&root);
        let own = std::process::id().to_string();
        let mine = fs::read_to_string("/proc/self/cgroup").unwrap();
        let mine = mine.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
        let there = fs::read_to_string(format!("/proc/self/fd/{raw}{mine}/cgroup.procs")).unwrap();
        assert!(there.lines().any(|pid| pid == own), "{mine}");
        assert_eq!(fs::read_to_string("/proc/self/mounts").unwrap(), before);
        let flags = fcntl(&root, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, FdFlag::FD_CLOEXEC.bits(), "no command inherits it");
    }
}
