//! The process's privileges: less than root's once the port is open, and more open files than a shell's child.

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

/// Open files that are wanted: a session with a transfer has about ten.
const OPEN_FILES: u64 = 16_384;

/// The user of this name.
pub(super) fn find(name: &str) -> Result<User> {
    let found = User::from_name(name).with_context(|| format!("cannot look up the user {name}"))?;
    match found {
        Some(user) if geteuid().is_root() || user.uid == getuid() => Ok(user),
        Some(_) => bail!("only root can become {name}: leave --run-as out"),
        None => bail!("there is no user {name}: see getent passwd"),
    }
}

/// Becomes `user`, for good and in all threads.
pub(super) fn become_user(user: &User) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let what = || format!("cannot become {}", user.name);
    let name = std::ffi::CString::new(user.name.as_str()).with_context(what)?;
    // In this order: without the user's identity no group can be changed.
    initgroups(&name, user.gid).with_context(what)?;
    setgid(user.gid).with_context(what)?;
    setuid(user.uid).with_context(what)?;
    if setuid(nix::unistd::Uid::from_raw(0)).is_ok() && !user.uid.is_root() {
        bail!("{}: root could be had back", what());
    }
    Ok(())
}

/// Allows as many open files as the system lets us, up to what many sessions need.
pub(super) fn allow_many_files() {
    if let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = OPEN_FILES.min(most).max(now);
        // Where it is refused, fewer sessions fit, and those that do not are told so.
        let _fewer = setrlimit(Resource::RLIMIT_NOFILE, wanted, most);
    }
}
