//! Network namespaces: finds those that are in use or have a name, and runs code inside a namespace.
//!
//! Problem: sockets can be listed, and existing ones adopted, only in one namespace at a time.
//! Source: network_namespaces(7); names are those of iproute2, in `/run/netns`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bufwise_socket::namespace;
use nix::errno::Errno;

use crate::error::{During, Result};

/// The calling thread's namespace.
const OWN: &str = "/proc/thread-self/ns/net";
/// Directory of iproute2's names.
const NAMES: &str = "/run/netns";

/// A network namespace, held open.
#[derive(Debug)]
pub struct Namespace {
    /// Number that no other namespace has while this one is held open.
    pub inode: u64,
    /// The name that `ip netns` gave it, if any.
    pub name: Option<String>,
    /// Keeps the namespace alive, and is used to enter it.
    pub file: File,
    /// It is the caller's own: it need not be entered, and no privilege is needed.
    own: bool,
}

/// Opens the caller's own namespace, without a search for its name.
pub(crate) fn open_own() -> Result<File> {
    File::open(OWN).during(|| format!("cannot open the network namespace {OWN}"))
}

/// Returns the caller's own namespace.
pub fn own() -> Result<Namespace> {
    let file = open_own()?;
    let inode = file.metadata().during(|| format!("cannot read {OWN}"))?.ino();
    let name = names().remove(&inode).map(|(name, _)| name);
    Ok(Namespace { inode, name, file, own: true })
}

/// Returns every namespace that can be found, the caller's own first, the others by number. Namespaces of processes
/// that the caller may not see are skipped: only root sees all.
pub fn all() -> Result<Vec<Namespace>> {
    Ok(search()?.0)
}

/// As [`all`]; also returns whether the list is complete: none was skipped for lack of descriptors or memory.
pub(crate) fn search() -> Result<(Vec<Namespace>, bool)> {
    let mut complete = true;
    let own = own()?;
    let mut names = names();
    names.remove(&own.inode);
    let mut others: HashMap<u64, Namespace> = HashMap::new();
    for (inode, (name, file)) in names {
        others.insert(inode, Namespace { inode, name: Some(name), file, own: false });
    }
    for process in fs::read_dir("/proc").during(|| "cannot read /proc".to_owned())? {
        let Ok(process) = process else {
            complete = false;
            continue;
        };
        if !process.file_name().as_encoded_bytes()[0].is_ascii_digit() {
            continue;
        }
        let path = process.path().join("ns/net");
        // The number is usually known already; only unknown namespaces are opened.
        let known = |inode| inode == own.inode || others.contains_key(&inode);
        let opened = match fs::metadata(&path) {
            Ok(metadata) if known(metadata.ino()) => continue,
            Ok(_) => open(&path),
            Err(error) => Err(error),
        };
        complete &= opened.as_ref().err().is_none_or(is_gone);
        if let Ok((inode, file)) = opened {
            others.insert(inode, Namespace { inode, name: None, file, own: inode == own.inode });
        }
    }
    let mut all: Vec<Namespace> = others.into_values().collect();
    all.sort_by_key(|namespace| namespace.inode);
    all.insert(0, own);
    Ok((all, complete))
}

fn open(path: &Path) -> io::Result<(u64, File)> {
    let file = File::open(path)?;
    Ok((file.metadata()?.ino(), file))
}

/// Returns whether the process has ended, or may not be seen.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::ENOENT, Errno::ESRCH, Errno::EACCES, Errno::EPERM];
    error.raw_os_error().is_some_and(|errno| gone.contains(&Errno::from_raw(errno)))
}

/// Returns the named namespaces by number.
fn names() -> HashMap<u64, (String, File)> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let namespace = |entry: fs::DirEntry| {
        let (inode, file) = open(&entry.path()).ok()?;
        // A name whose namespace is gone is an empty file.
        nix::sys::statfs::fstatfs(&file)
            .is_ok_and(|filesystem| filesystem.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
            .then(|| (inode, (entry.file_name().to_string_lossy().into_owned(), file)))
    };
    entries.filter_map(namespace).collect()
}

impl Namespace {
    /// Returns the name, or else the number.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.inode.to_string())
    }

    /// Runs `work` inside the namespace, on a thread of its own, and waits for it. Sockets that `work` opens keep
    /// belonging to this namespace. In the caller's own namespace, `work` runs on the caller's thread.
    ///
    /// # Errors
    /// The kernel's refusal to enter, mostly for lack of CAP_SYS_ADMIN, or to start a thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        if self.own {
            return Ok(work());
        }
        namespace::inside(self.file.as_fd(), work)
            .during(|| format!("cannot enter network namespace {}", self.label()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::process::{Child, Command, Stdio};
    use std::thread;

    /// A process in a network namespace of its own; dropping this value ends it.
    struct Stranger(Child);

    impl Stranger {
        fn start() -> Self {
            let mut command = Command::new("unshare");
            command.args(["-n", "sh", "-c", "echo up; exec cat"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).expect("it is there");
            Self(child)
        }

        fn inode(&self) -> u64 {
            fs::metadata(format!("/proc/{}/ns/net", self.0.id())).unwrap().ino()
        }
    }

    impl Drop for Stranger {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn ones_own_comes_first_and_needs_no_privilege() {
        let all = all().unwrap();
        assert_eq!(all[0].inode, fs::metadata("/proc/self/ns/net").unwrap().ino());
        assert_eq!(all.iter().filter(|one| one.inode == all[0].inode).count(), 1);
        let here = thread::current().id();
        assert_eq!(all[0].run(|| thread::current().id()).unwrap(), here);
    }

    #[test]
    fn root_a_strangers_namespace_is_found_and_entered() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "under CI the tests that need root must run");
            eprintln!("skipped: needs root");
            return;
        }
        let stranger = Stranger::start();
        let inode = stranger.inode();
        let all = all().unwrap();
        let found = all.iter().find(|one| one.inode == inode).expect("it is found");
        assert_eq!(found.label(), inode.to_string());
        let inside = found.run(|| fs::metadata(OWN).unwrap().ino()).unwrap();
        assert_eq!(inside, inode);
        assert_eq!(fs::metadata(OWN).unwrap().ino(), all[0].inode, "the caller stays where it is");
    }
}
