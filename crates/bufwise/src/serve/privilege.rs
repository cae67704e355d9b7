//! The process's privileges: less than root's and no files but those it serves once the port is open, and more open files
//! than a shell's child.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

use crate::confine::{Confinement, Right};

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

/// What the server needs once it listens, by the names that the files have now: to be called before [`become_user`], who may
/// not reach them by name.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) directory: PathBuf,
    /// Whether anybody may write now or after a reload.
    pub(super) writes: bool,
    /// Whether it connects to clients.
    pub(super) connects: bool,
    /// Ports to listen on for data; none: those that the kernel chooses.
    pub(super) ports: Option<RangeInclusive<u16>>,
    /// Files that a reload reads.
    pub(super) files: Vec<PathBuf>,
}

impl Needs {
    /// The rules that leave this alone.
    pub(super) fn rules(&self) -> Result<Confinement> {
        let mut rules = Confinement::complete(self.connects)?;
        rules.allow(&self.directory, if self.writes { Right::Move } else { Right::Read })?;
        // A renewed file stands in the place of the old one, or in that of the file which the old name is a link to.
        let resolved = self.files.iter().filter_map(|file| file.canonicalize().ok());
        for file in self.files.iter().cloned().chain(resolved) {
            let place = file.parent().filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
            rules.allow(place, Right::Read)?;
        }
        // The maxima of buffers; where /proc is not mounted they have not been read before either.
        let _not_mounted = rules.allow(Path::new("/proc/sys/net"), Right::Read);
        self.ports.clone().unwrap_or(0..=0).try_for_each(|port| rules.allow_port(port))?;
        Ok(rules)
    }
}

/// Allows as many open files as the system lets us, up to what many sessions need.
pub(super) fn allow_many_files() {
    if let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = OPEN_FILES.min(most).max(now);
        // Where it is refused, fewer sessions fit, and those that do not are told so.
        let _fewer = setrlimit(Resource::RLIMIT_NOFILE, wanted, most);
    }
}
