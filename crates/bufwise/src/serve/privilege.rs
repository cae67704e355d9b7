//! The server's privileges. Once its port is open, the server gives up root's, and restricts itself to the files that it
//! serves. It also raises the limit of open files above that of a shell's child.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

use crate::confine::{Confinement, Right};

/// Wanted limit of open files: a session with a transfer has about ten.
const OPEN_FILES: u64 = 16_384;

/// Looks up the user of this name.
pub(super) fn find(name: &str) -> Result<User> {
    let found = User::from_name(name).with_context(|| format!("cannot look up the user {name}"))?;
    match found {
        Some(user) if geteuid().is_root() || user.uid == getuid() => Ok(user),
        Some(_) => bail!("only root can become {name}: leave --run-as out"),
        None => bail!("there is no user {name}: see getent passwd"),
    }
}

/// Becomes `user`, permanently and in all threads.
pub(super) fn become_user(user: &User) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let what = || format!("cannot become {}", user.name);
    let name = std::ffi::CString::new(user.name.as_str()).with_context(what)?;
    // In this order: without root's identity no group can be changed.
    initgroups(&name, user.gid).with_context(what)?;
    setgid(user.gid).with_context(what)?;
    setuid(user.uid).with_context(what)?;
    if setuid(nix::unistd::Uid::from_raw(0)).is_ok() && !user.uid.is_root() {
        bail!("{}: the process could become root again", what());
    }
    Ok(())
}

/// Access that the server needs once it listens, with the present names of the files. The rules are made before [`become_user`],
/// because the user may not be able to reach the files by name.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) directory: PathBuf,
    /// Whether any user may write, now or after a reload.
    pub(super) writes: bool,
    /// Whether the server connects to clients.
    pub(super) connects: bool,
    /// Ports to listen on for data; `None`: ports that the kernel chooses.
    pub(super) ports: Option<RangeInclusive<u16>>,
    /// Files that a reload reads.
    pub(super) files: Vec<PathBuf>,
}

impl Needs {
    /// Returns the rules that allow only this.
    pub(super) fn rules(&self) -> Result<Confinement> {
        let mut rules = Confinement::complete(self.connects)?;
        rules.allow(&self.directory, if self.writes { Right::Move } else { Right::Read })?;
        // A renewed file has the name of the old one, or that of the file to which the old name is a link.
        let resolved = self.files.iter().filter_map(|file| file.canonicalize().ok());
        for file in self.files.iter().cloned().chain(resolved) {
            let place = file.parent().filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
            rules.allow(place, Right::Read)?;
        }
        // The maxima of buffers are read from here. Without a mounted /proc they cannot be read in any case.
        let _not_mounted = rules.allow(Path::new("/proc/sys/net"), Right::Read);
        self.ports.clone().unwrap_or(0..=0).try_for_each(|port| rules.allow_port(port))?;
        if self.connects {
            // A connection to a client begins at the address that the client has called, at any port.
            rules.allow_port(0)?;
        }
        Ok(rules)
    }
}

/// Raises the limit of open files as far as the system allows, up to what many sessions need.
pub(super) fn allow_many_files() {
    if let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = OPEN_FILES.min(most).max(now);
        // If the limit stays, fewer sessions fit, and clients beyond it are told so.
        let _fewer = setrlimit(Resource::RLIMIT_NOFILE, wanted, most);
    }
}
