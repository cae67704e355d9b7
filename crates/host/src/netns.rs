//! Network namespaces: finds those that are in use or have a name, and runs code inside a namespace.
//!
//! Problem: sockets can be listed, and existing ones adopted, only in one namespace at a time.
//! Source: network_namespaces(7); names are those of iproute2, in `/run/netns`.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bufwise_socket::namespace;
use nix::errno::Errno;
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::error::{During, Result};

/// The calling thread's namespace.
const OWN: &str = "/proc/thread-self/ns/net";
/// Directory of iproute2's names.
const NAMES: &str = "/run/netns";
/// Namespaces that [`visit`] has open at a time: a quarter of the usual limit of descriptors (1,024).
const AT_ONCE: usize = 256;

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
    let name = names().unwrap_or_default().remove(&inode).map(|(name, _)| name);
    Ok(Namespace { inode, name, file, own: true })
}

/// Returns every namespace that can be found, the caller's own first, the others by number, and how many further ones could
/// not be opened, mostly for lack of descriptors. Namespaces of processes that the caller may not see are skipped: only root
/// sees all.
pub fn all() -> Result<(Vec<Namespace>, usize)> {
    let Search { met, opened, .. } = search(|_| true)?;
    let unopened = met.len() - opened.len();
    Ok((opened, unopened))
}

/// Result of a search.
#[derive(Debug)]
pub(crate) struct Search {
    /// Number of the caller's own namespace.
    pub(crate) own: u64,
    /// Numbers of all namespaces that exist, opened or not.
    pub(crate) met: BTreeSet<u64>,
    /// The caller's own namespace, and the wanted ones by number.
    pub(crate) opened: Vec<Namespace>,
    /// Whether no namespace was missed, as for lack of memory.
    pub(crate) is_complete: bool,
    /// Why a wanted namespace could not be opened, mostly for lack of descriptors.
    pub(crate) unopened: Option<io::Error>,
}

/// As [`all`], but opens only the caller's own namespace and those with a number that `is_wanted`: each takes a
/// descriptor, and nothing bounds how many there are.
pub(crate) fn search(mut is_wanted: impl FnMut(u64) -> bool) -> Result<Search> {
    let own = own()?;
    let mut found = Search {
        own: own.inode,
        met: BTreeSet::from([own.inode]),
        opened: vec![own],
        is_complete: true,
        unopened: None,
    };
    match names() {
        Ok(names) => {
            names.into_values().for_each(|(name, path)| found.meet(&path, Some(name), &mut is_wanted));
        }
        Err(error) => found.is_complete &= is_gone(&error),
    }
    for process in fs::read_dir("/proc").during(|| "cannot read /proc".to_owned())? {
        let Ok(process) = process else {
            found.is_complete = false;
            continue;
        };
        if process.file_name().as_encoded_bytes()[0].is_ascii_digit() {
            found.meet(&process.path().join("ns/net"), None, &mut is_wanted);
        }
    }
    // The caller's own stays the first.
    found.opened[1..].sort_by_key(|namespace| namespace.inode);
    Ok(found)
}

/// Shows every namespace once, the caller's own first; few are open at a time. Returns whether none was missed. After a search
/// whose namespaces have all been shown, only those of the next search follow: users who make namespaces without end would
/// keep the caller here.
pub(crate) fn visit(mut show: impl FnMut(&Namespace)) -> Result<bool> {
    let (mut shown, mut is_complete) = (BTreeSet::new(), true);
    let mut had_room = false;
    let mut last: Option<BTreeSet<u64>> = None;
    loop {
        let mut room = AT_ONCE;
        let found = search(|inode| {
            let may_follow = last.as_ref().is_none_or(|last| last.contains(&inode));
            let is_next = room > 0 && may_follow && !shown.contains(&inode);
            room -= usize::from(is_next);
            is_next
        })?;
        is_complete &= found.is_complete && found.unopened.is_none();
        let before = shown.len();
        for namespace in found.opened.iter().filter(|namespace| shown.insert(namespace.inode)) {
            show(namespace);
        }
        if shown.len() == before {
            return Ok(is_complete);
        }
        if had_room && last.is_none() {
            last = Some(found.met);
        }
        had_room |= room > 0;
    }
}

impl Search {
    /// Takes in the namespace of a file.
    fn meet(&mut self, path: &Path, name: Option<String>, is_wanted: &mut impl FnMut(u64) -> bool) {
        let inode = match fs::metadata(path) {
            Ok(metadata) => metadata.ino(),
            Err(error) => {
                self.is_complete &= is_gone(&error);
                return;
            }
        };
        if !self.met.insert(inode) || !is_wanted(inode) {
            return;
        }
        match open(path) {
            Ok((same, file)) if same == inode => {
                self.opened.push(Namespace { inode, name, file, own: false });
            }
            // The process has ended or has entered another namespace; other processes may be in this one.
            Ok(_) => {
                self.is_complete = false;
                self.met.remove(&inode);
            }
            Err(error) if is_gone(&error) => {
                self.met.remove(&inode);
            }
            Err(error) => self.unopened = Some(error),
        }
    }
}

fn open(path: &Path) -> io::Result<(u64, File)> {
    let file = File::open(path)?;
    Ok((file.metadata()?.ino(), file))
}

/// Returns whether the process has ended, or may not be seen; or whether there are no names.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::ENOENT, Errno::ESRCH, Errno::EACCES, Errno::EPERM];
    error.raw_os_error().is_some_and(|errno| gone.contains(&Errno::from_raw(errno)))
}

/// Returns the named namespaces by number: the name, and its file.
fn names() -> io::Result<HashMap<u64, (String, PathBuf)>> {
    let mut names = HashMap::new();
    for entry in fs::read_dir(NAMES)? {
        let entry = entry?;
        let path = entry.path();
        // A name whose namespace is gone is an empty file.
        let is_one = statfs(&path).is_ok_and(|filesystem| filesystem.filesystem_type() == NSFS_MAGIC);
        if let Some(file) = fs::metadata(&path).ok().filter(|_| is_one) {
            names.insert(file.ino(), (entry.file_name().to_string_lossy().into_owned(), path));
        }
    }
    Ok(names)
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
pub(crate) mod tests {
    use super::*;
    use std::io;
    use std::process::{Child, Command, Stdio};
    use std::thread;

    /// A process in a network namespace of its own; dropping this value ends it.
    pub(crate) struct Stranger(Child);

    impl Stranger {
        pub(crate) fn start() -> Self {
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
        let (all, _unopened) = all().unwrap();
        assert_eq!(all[0].inode, fs::metadata("/proc/self/ns/net").unwrap().ino());
        assert_eq!(all.iter().filter(|one| one.inode == all[0].inode).count(), 1);
        let here = thread::current().id();
        assert_eq!(all[0].run(|| thread::current().id()).unwrap(), here);
    }

    #[test]
    fn root_a_namespace_that_is_not_wanted_is_met_and_takes_no_descriptor() {
        if !bufwise_trial::root() {
            return;
        }
        let strangers = [Stranger::start(), Stranger::start()];
        let [one, other] = strangers.each_ref().map(Stranger::inode);
        let found = search(|inode| inode == one).unwrap();
        let opened: Vec<u64> = found.opened.iter().map(|namespace| namespace.inode).collect();
        assert_eq!(opened, [found.own, one]);
        assert!([found.own, one, other].iter().all(|inode| found.met.contains(inode)), "{found:?}");
    }

    #[test]
    fn root_a_visit_ends_while_namespaces_are_made_without_end() {
        if !bufwise_trial::root() {
            return;
        }
        let mut strangers = vec![Stranger::start()];
        // Another one whenever the last one is shown.
        let follow = |shown: &Namespace| {
            let is_last = strangers.last().is_some_and(|last| last.inode() == shown.inode);
            if is_last && strangers.len() < 9 {
                strangers.push(Stranger::start());
            }
        };
        visit(follow).unwrap();
        assert_eq!(strangers.len(), 3, "the second search finds the one that was made since the first");
    }

    #[test]
    fn root_a_strangers_namespace_is_found_and_entered() {
        if !bufwise_trial::root() {
            return;
        }
        let stranger = Stranger::start();
        let inode = stranger.inode();
        let (all, _unopened) = all().unwrap();
        let found = all.iter().find(|one| one.inode == inode).expect("it is found");
        assert_eq!(found.label(), inode.to_string());
        let inside = found.run(|| fs::metadata(OWN).unwrap().ino()).unwrap();
        assert_eq!(inside, inode);
        assert_eq!(fs::metadata(OWN).unwrap().ino(), all[0].inode, "the caller stays where it is");
    }
}
