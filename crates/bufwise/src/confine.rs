//! Confines a process to what its work needs, by Landlock (landlock(7)) and, for a server, seccomp(2).
//!
//! Problem: a mistake in the handling of a peer's input must not reach files that the peer has no business with.
//! Solution: rules are made while every file may still be opened. From [`Confinement::begin`] on they apply to the calling
//! thread and the threads that it starts, which can gain no privilege either (`PR_SET_NO_NEW_PRIVS`).
//! Properties: on a kernel without Landlock only `PR_SET_NO_NEW_PRIVS` changes; open descriptors stay usable; the
//! status of files can be read everywhere, because Landlock has no right for it.

mod calls;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

pub(crate) use calls::filter_calls;

/// Newest set of rights that is used; later rights came after Linux 6.10.
const KNOWN: ABI = ABI::V5;

/// Rights to everything below a directory, or to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Reads files and lists directories.
    Read,
    /// Also writes, makes and removes files and directories, and renames them within their directory.
    Write,
    /// Like `Write`, and also renames to other directories.
    Move,
}

impl Right {
    fn flags(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        // No device can be made or controlled. For Landlock, renaming a link, socket or FIFO makes it.
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
        match self {
            Self::Read => read,
            Self::Write => (read | AccessFs::from_write(KNOWN)) & !(devices | AccessFs::Refer),
            Self::Move => (read | AccessFs::from_write(KNOWN)) & !devices,
        }
    }
}

/// Rules that are not in force yet.
#[derive(Debug)]
pub(crate) struct Confinement {
    rules: RulesetCreated,
    handled: BitFlags<AccessFs>,
    /// Open descriptors of the allowed paths: procfs replaces an inode that nothing has open, and no rule covers the
    /// new one.
    opened: Vec<PathFd>,
}

/// Rules that are in force.
#[derive(Debug)]
pub(crate) struct Confined {
    _opened: Vec<PathFd>,
}

impl Confinement {
    /// Starts rules that refuse to read or write files, to bind TCP ports and, unless it `connects`, to connect by TCP.
    /// [`Self::allow`] and [`Self::allow_port`] add exceptions.
    ///
    /// # Errors
    /// Landlock refuses the rules.
    pub(crate) fn complete(connects: bool) -> Result<Self> {
        // Without this right the kernel (before 5.19) refuses to rename between directories: then no rules are set at
        // all.
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::SoftRequirement)
            .handle_access(AccessFs::Refer)?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessNet::BindTcp)?;
        let rules = if connects { rules } else { rules.handle_access(AccessNet::ConnectTcp)? };
        Self::of(rules, AccessFs::from_all(KNOWN))
    }

    /// Starts rules that refuse to write files, except for what is allowed; reading is not restricted.
    ///
    /// # Errors
    /// Landlock refuses the rules.
    pub(crate) fn of_writing() -> Result<Self> {
        let writing = AccessFs::from_write(KNOWN) & !(AccessFs::Refer | AccessFs::IoctlDev);
        Self::of(Ruleset::default(), writing | AccessFs::Execute)
    }

    fn of(rules: Ruleset, handled: BitFlags<AccessFs>) -> Result<Self> {
        let rules = rules.handle_access(handled)?.scope(Scope::Signal)?.create()?;
        Ok(Self { rules, handled, opened: Vec::new() })
    }

    /// Allows `right` below `path`, or to the file `path`.
    ///
    /// # Errors
    /// `path` does not exist, or Landlock refuses the rule.
    pub(crate) fn allow(&mut self, path: &Path, right: Right) -> Result<()> {
        let failed = || format!("cannot allow {}", path.display());
        let opened = PathFd::new(path).with_context(failed)?;
        let kind = path.metadata().with_context(failed)?.file_type();
        let of_kind = if kind.is_dir() { self.handled } else { AccessFs::from_file(KNOWN) };
        let allowed = right.flags() & self.handled & of_kind;
        let added = (&mut self.rules).add_rule(PathBeneath::new(&opened, allowed));
        // An unnamed pipe can have no rule, and needs none: it is never refused.
        if !kind.is_fifo() {
            added.with_context(failed)?;
        }
        self.opened.push(opened);
        Ok(())
    }

    /// Allows to listen on a TCP port; 0 stands for ports that the kernel chooses.
    ///
    /// # Errors
    /// Landlock refuses the rule.
    pub(crate) fn allow_port(&mut self, port: u16) -> Result<()> {
        (&mut self.rules).add_rule(NetPort::new(port, AccessNet::BindTcp))?;
        Ok(())
    }

    /// Puts the rules in force, permanently.
    ///
    /// # Errors
    /// The kernel has no Landlock, or refuses it. Even then no privilege can be gained afterwards.
    pub(crate) fn begin(self) -> Result<Confined> {
        let status = self.rules.restrict_self()?;
        if status.ruleset == RulesetStatus::NotEnforced {
            bail!("this kernel has no Landlock, or not what is needed of it (Linux 5.19)");
        }
        Ok(Confined { _opened: self.opened })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::symlink;
    use std::thread;

    /// Rules apply to a thread, so each case has its own. `None`: the kernel has no Landlock, and the test is skipped.
    fn confined<T: Send + 'static>(
        confinement: Confinement,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let confined = thread::spawn(|| {
            let _confined = confinement.begin().ok()?;
            // A thread that is started later is confined as well.
            Some(thread::spawn(work).join().unwrap())
        });
        let outcome = confined.join().unwrap();
        if outcome.is_none() {
            bufwise_trial::skip("needs Landlock (Linux 5.19)");
        }
        outcome
    }

    /// Makes a working directory with a file and a link that leads out of it, and a directory outside with a file.
    fn places() -> (tempfile::TempDir, tempfile::TempDir) {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for place in [&inside, &outside] {
            fs::write(place.path().join("file"), "bytes").unwrap();
            fs::create_dir(place.path().join("directory")).unwrap();
        }
        symlink(outside.path(), inside.path().join("out")).unwrap();
        (inside, outside)
    }

    fn refused<T>(outcome: std::io::Result<T>) -> bool {
        outcome.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    #[test]
    fn nothing_outside_is_reached_by_any_name() {
        let (inside, outside) = places();
        let mut confinement = Confinement::complete(false).unwrap();
        confinement.allow(inside.path(), Right::Move).unwrap();
        let (here, there) = (inside.path().to_owned(), outside.path().to_owned());
        let done = confined(confinement, move || {
            assert_eq!(fs::read(here.join("file")).unwrap(), b"bytes");
            fs::rename(here.join("file"), here.join("directory/file")).unwrap();
            fs::write(here.join("new"), "more").unwrap();
            for path in [here.join("out/file"), there.join("file"), "/etc/passwd".into()] {
                assert!(refused(File::open(&path)), "{}", path.display());
                assert!(refused(File::options().append(true).open(&path)), "{}", path.display());
            }
            assert!(refused(fs::read_dir(&there)) && refused(fs::remove_file(there.join("file"))));
            assert!(
                refused(File::create(here.join("out/new"))) && refused(fs::create_dir(there.join("new")))
            );
        });
        if done.is_some() {
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn what_is_only_read_cannot_be_written() {
        let (inside, _outside) = places();
        let mut confinement = Confinement::complete(false).unwrap();
        confinement.allow(inside.path(), Right::Read).unwrap();
        let here = inside.path().to_owned();
        confined(confinement, move || {
            assert_eq!(fs::read(here.join("file")).unwrap(), b"bytes");
            assert!(fs::read_dir(&here).unwrap().count() == 3);
            assert!(refused(File::options().append(true).open(here.join("file"))));
            assert!(refused(fs::remove_file(here.join("file"))) && refused(fs::create_dir(here.join("new"))));
        });
    }

    #[test]
    fn what_is_open_stays_open() {
        let (_inside, outside) = places();
        let mut file = File::create(outside.path().join("log")).unwrap();
        confined(Confinement::complete(false).unwrap(), move || file.write_all(b"a line\n").unwrap());
    }

    #[test]
    fn a_writer_reads_everywhere_and_writes_where_it_may() {
        let (inside, outside) = places();
        let mut confinement = Confinement::of_writing().unwrap();
        confinement.allow(inside.path(), Right::Write).unwrap();
        confinement.allow(&outside.path().join("file"), Right::Write).unwrap();
        let (here, there) = (inside.path().to_owned(), outside.path().to_owned());
        confined(confinement, move || {
            fs::write(here.join("directory/new"), "bytes").unwrap();
            fs::rename(here.join("directory/new"), here.join("directory/file")).unwrap();
            fs::write(there.join("file"), "in place").unwrap();
            assert!(File::open("/etc/passwd").is_ok());
            assert!(
                refused(File::create(here.join("out/new"))) && refused(fs::remove_file(there.join("file")))
            );
            assert!(refused(std::process::Command::new("/bin/true").status()), "nothing can be run");
        });
    }

    #[test]
    fn a_server_that_waits_for_connections_makes_none_and_takes_no_other_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for connects in [false, true] {
            let mut confinement = Confinement::complete(connects).unwrap();
            confinement.allow_port(0).unwrap();
            let work = move || {
                (TcpStream::connect(address), TcpListener::bind("127.0.0.1:1"), TcpListener::bind("[::1]:0"))
            };
            let Some((connected, bound, chosen)) = confined(confinement, work) else { return };
            if !landlock_has(ABI::V4) {
                return bufwise_trial::skip("needs Landlock's rules for TCP (Linux 6.7)");
            }
            assert_eq!(refused(connected), !connects);
            assert!(refused(bound) && !refused(chosen));
        }
    }

    fn landlock_has(abi: ABI) -> bool {
        let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        rules
            .handle_access(AccessFs::from_all(abi))
            .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
            .is_ok()
    }

    #[test]
    fn a_path_that_is_not_there_is_an_error() {
        let mut confinement = Confinement::of_writing().unwrap();
        let error = confinement.allow(Path::new("/none/such"), Right::Write).unwrap_err();
        assert!(format!("{error:#}").contains("/none/such"), "{error:#}");
    }
}
