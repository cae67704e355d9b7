//! Giving root up once the port is open.

use anyhow::{Context, Result, bail};
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

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
