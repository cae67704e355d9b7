//! The network namespaces whose connections are tuned: finds them, raises their bounds, and drops them once they are
//! gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use bufwise_bpf::Group;
use bufwise_socket::diag::{Connection, Diag, States};

use super::event::Found;
use super::recorder::Watched;
use crate::caps::{Caps, Change, Raised, Setting, Wanted};
use crate::error::{During, Error, Result, in_words};
use crate::leftovers::{self, Cleared};
use crate::netns::{self, Namespace};
use crate::processes::printable_path;

/// A known namespace.
struct Known {
    namespace: Namespace,
    raised: Option<Raised>,
    /// Why bounds could not be raised, as logged; each search tries again.
    refusal: Option<String>,
    /// Lists the namespace's sockets; opened at the first use.
    diag: Option<Diag>,
    /// The same diagnostics for the history's thread.
    recorded: Option<Arc<Mutex<Diag>>>,
}

/// The known namespaces, by inode.
pub(super) struct Namespaces {
    known: BTreeMap<u64, Known>,
    caps: Caps,
    /// Most namespaces that are known at a time.
    most: usize,
    /// The size in bytes to which the shares last bounded the devices.
    at_once: Option<u64>,
    /// Settings that the administrator has changed, by the inode of their namespace. They are not raised again when a reload
    /// has restored all others.
    administrators: BTreeMap<u64, BTreeSet<Setting>>,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self::with_room_for(usize::MAX)
    }
}

impl Namespaces {
    /// Starts without any namespace; at most `most` will be known at a time.
    pub(super) fn with_room_for(most: usize) -> Self {
        let (known, administrators) = (BTreeMap::new(), BTreeMap::new());
        Self { known, caps: Caps::of_host(), most, at_once: None, administrators }
    }

    /// Searches for namespaces: the daemon's own and those of the processes of `groups`; without groups, all that
    /// exist, as far as there is room. Applies `wanted` in new ones, and where that has failed before.
    pub(super) fn discover(&mut self, groups: &[&Group], wanted: &[Wanted]) -> Result<Found> {
        let mut found = Found::default();
        self.find(groups, &mut found)?;
        // If the shares have bounded devices to another size since, new namespaces start with that size.
        let wanted: Vec<Wanted> = wanted
            .iter()
            .map(|one| match *one {
                Wanted::Devices { size, also_in_the_first } => {
                    Wanted::Devices { size: self.at_once.unwrap_or(size), also_in_the_first }
                }
                maximum @ Wanted::Maximum(..) => maximum,
            })
            .collect();
        self.raise(&wanted, &mut found);
        Ok(found)
    }

    /// Applies `wanted` in the known namespaces, except where that is done already.
    fn raise(&mut self, wanted: &[Wanted], found: &mut Found) {
        for (inode, known) in &mut self.known {
            let administrators = self.administrators.get(inode).cloned().unwrap_or_default();
            let changes = known.raise(&self.caps, wanted, administrators, &mut found.failed);
            let label = known.namespace.label();
            if found.known.insert(*inode) {
                found.new.push((label, changes));
            } else if !changes.is_empty() {
                found.raised.push((label, changes));
            }
        }
    }

    /// Drops namespaces that are gone, and opens new ones; leaves the inodes of those that were known before in
    /// `found.known`.
    fn find(&mut self, groups: &[&Group], found: &mut Found) -> Result<()> {
        let theirs = (!groups.is_empty()).then(|| namespaces_of(groups)).transpose()?;
        let present = netns::search(|_| false)?;
        let is_ours =
            |inode: u64| inode == present.own || theirs.as_ref().is_none_or(|theirs| theirs.contains(&inode));
        if present.is_complete {
            let keeps = |inode: u64| present.met.contains(&inode) && is_ours(inode);
            found.gone = self.drop_others(keeps, &mut found.failed);
            self.administrators.retain(|inode, _| present.met.contains(inode));
        }
        found.known = self.known.keys().copied().collect();
        let others = present.met.iter().copied().filter(|inode| *inode != present.own);
        let unknown: Vec<u64> = std::iter::once(present.own)
            .chain(others)
            .filter(|inode| is_ours(*inode) && !self.known.contains_key(inode))
            .collect();
        // The older ones first, which mostly have the lower numbers.
        let room = self.most.saturating_sub(self.known.len());
        let new: BTreeSet<u64> = unknown.iter().copied().take(room).collect();
        found.left_alone = unknown.len() - new.len();
        if new.is_empty() {
            return Ok(());
        }
        let opened = netns::search(|inode| new.contains(&inode))?;
        found.unopened = opened.unopened.map(|error| error.to_string());
        for namespace in opened.opened.into_iter().filter(|one| new.contains(&one.inode)) {
            let known = Known { namespace, raised: None, refusal: None, diag: None, recorded: None };
            self.known.insert(known.namespace.inode, known);
        }
        Ok(())
    }

    /// Drops all namespaces but those to keep, and returns their names; adds to `failed` why bounds could not be restored.
    /// Mostly only this daemon still holds a namespace that is not found any more; dropping it ends the namespace. But the
    /// processes of the daemon's cgroups may just have left it.
    fn drop_others(&mut self, keeps: impl Fn(u64) -> bool, failed: &mut Vec<String>) -> Vec<String> {
        let dropped = self.known.extract_if(.., |inode, _| !keeps(*inode));
        let names = dropped.map(|(_, Known { namespace, raised, .. })| {
            let refused = raised.and_then(|raised| raised.release().err());
            failed.extend(refused.map(|error| told(&namespace, &error)));
            namespace.label()
        });
        names.collect()
    }

    /// Iterates over the namespaces: name or number, and a descriptor to enter.
    pub(super) fn each(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        self.known.values().map(|known| (known.namespace.label(), known.namespace.file.as_fd()))
    }

    /// Bounds the devices to `size` bytes at once in every namespace where they are bounded; returns the refusals.
    pub(super) fn bound_devices(&mut self, size: u64) -> Vec<String> {
        self.at_once = Some(size);
        let refused = self.known.values_mut().filter_map(|known| {
            let error = known.raised.as_mut()?.bound_devices(size).err()?;
            Some(told(&known.namespace, &error))
        });
        refused.collect()
    }

    /// Returns the administrator's changes, and errors of the journal, by namespace.
    pub(super) fn changes(&mut self) -> Vec<(String, Result<Vec<Change>>)> {
        let raised = self.known.values_mut().filter_map(|known| {
            let changes = known.raised.as_mut()?.notice_changes();
            let is_news = !matches!(&changes, Ok(changes) if changes.is_empty());
            is_news.then(|| (known.namespace.label(), changes))
        });
        raised.collect()
    }

    /// Restores the bounds, also in namespaces that have inherited them.
    pub(super) fn release(&mut self) -> Cleared {
        let (mut cleared, any_raised) = self.release_known();
        if any_raised {
            leftovers::clear_inherited(&mut cleared);
        }
        cleared
    }

    /// Restores the bounds of the known namespaces, and closes these; returns whether any bound was raised.
    fn release_known(&mut self) -> (Cleared, bool) {
        let mut cleared = Cleared::default();
        let mut any_raised = false;
        self.at_once = None;
        for (inode, Known { namespace, raised, .. }) in std::mem::take(&mut self.known) {
            let Some(mut raised) = raised else { continue };
            any_raised = true;
            // Mostly none since they were last checked; an error comes again below.
            let _changes = raised.administrators_changes();
            if !raised.left_alone().is_empty() {
                self.administrators.insert(inode, raised.left_alone().clone());
            }
            let label = namespace.label();
            match raised.release() {
                Ok(changes) => {
                    let lines = changes.iter().map(|change| leftovers::put_back(change, &label));
                    cleared.done.extend(lines);
                }
                Err(error) => cleared.failed.push(format!("network namespace {label}: {}", in_words(&error))),
            }
        }
        (cleared, any_raised)
    }

    /// Returns each namespace's diagnostics for the history's thread; namespaces that cannot be entered are skipped.
    pub(super) fn recorded(&mut self) -> Vec<Watched> {
        let watched = self.known.values_mut().filter_map(|known| {
            if known.recorded.is_none() {
                let diag = known.namespace.run(Diag::open).ok()?.ok()?;
                known.recorded = Some(Arc::new(Mutex::new(diag)));
            }
            Some((known.namespace.label(), known.recorded.clone()?))
        });
        watched.collect()
    }

    /// Returns all connected and listening sockets.
    pub(super) fn sockets(&mut self) -> Result<Vec<Connection>> {
        let mut all = Vec::new();
        for known in self.known.values_mut() {
            let diag = match &mut known.diag {
                Some(diag) => diag,
                none => none.insert(known.namespace.run(Diag::open)??),
            };
            all.append(&mut diag.tcp(States::CONNECTED.or(States::LISTENING))?);
        }
        Ok(all)
    }
}

impl Known {
    /// Applies `wanted`, except to the `administrators` settings, unless that is done already. Returns the changes; adds a
    /// refusal to `failed` unless it is the same as the last time.
    fn raise(
        &mut self,
        caps: &Caps,
        wanted: &[Wanted],
        administrators: BTreeSet<Setting>,
        failed: &mut Vec<String>,
    ) -> Vec<Change> {
        if self.raised.is_some() || wanted.is_empty() {
            return Vec::new();
        }
        let done = self.namespace.run(|| caps.raise_most(wanted, administrators)).flatten();
        let (raised, refused) = match done {
            Ok((raised, refused)) => (Some(raised), refused),
            Err(error) => (None, Some(error)),
        };
        let refusal = refused.map(|error| told(&self.namespace, &error));
        if refusal != self.refusal {
            failed.extend(refusal.clone());
            self.refusal = refusal;
        }
        self.raised = raised;
        self.raised.as_ref().map(|raised| raised.raised().to_vec()).unwrap_or_default()
    }
}

/// Formats an error of one namespace for the log.
fn told(namespace: &Namespace, error: &Error) -> String {
    format!("network namespace {}: {}", namespace.label(), in_words(error))
}

/// Returns the inodes of the namespaces of the groups' processes.
fn namespaces_of(groups: &[&Group]) -> Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for group in groups {
        let processes = group.processes();
        let processes = processes.during(|| {
            format!("cannot read which processes are in cgroup {}", printable_path(group.path()))
        })?;
        // A process that has ended meanwhile is skipped.
        let files = processes.iter().filter_map(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).ok());
        inodes.extend(files.map(|file| file.ino()));
    }
    Ok(inodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::tests::Stranger;

    #[test]
    fn root_namespaces_beyond_the_room_are_left_alone_and_counted() {
        if !bufwise_trial::root() {
            return;
        }
        let strangers: Vec<Stranger> = (0..3).map(|_| Stranger::start()).collect();
        let mut namespaces = Namespaces::with_room_for(1);
        let found = namespaces.discover(&[], &[]).unwrap();
        let own = netns::own().unwrap().inode;
        assert_eq!(found.known, BTreeSet::from([own]), "its own comes first");
        assert!(found.left_alone >= strangers.len(), "{found:?}");
        namespaces.most = usize::MAX;
        let found = namespaces.discover(&[], &[]).unwrap();
        assert_eq!((found.left_alone, found.unopened), (0, None));
        assert!(found.known.len() > strangers.len() && found.new.len() >= strangers.len());
    }

    /// Returns the daemon's own namespace under another name.
    fn blue() -> Known {
        let mut namespace = netns::own().unwrap();
        (namespace.inode, namespace.name) = (7, Some("blue".to_owned()));
        Known { namespace, raised: None, refusal: None, diag: None, recorded: None }
    }

    #[test]
    fn bounds_that_cannot_be_raised_are_told_once_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let journals = directory.path().join("journals");
        // In the way of the directory.
        fs::write(&journals, "").unwrap();
        let (caps, mut known, mut failed) = (Caps::with_journals(&journals), blue(), Vec::new());
        // No maximum is so small: nothing changes on this host.
        let wanted = [Wanted::Maximum(Setting::TcpRmem, 1)];
        for _ in 0..2 {
            known.raise(&caps, &wanted, BTreeSet::new(), &mut failed);
            assert!(known.raised.is_none());
        }
        let [told] = &failed[..] else { panic!("{failed:?}") };
        assert!(told.starts_with("network namespace blue: cannot keep a journal in "), "{told}");
        fs::remove_file(&journals).unwrap();
        known.raise(&caps, &wanted, BTreeSet::new(), &mut failed);
        assert!(known.raised.is_some() && failed.len() == 1, "{failed:?}");
    }

    #[test]
    fn a_setting_that_the_administrator_has_changed_is_not_raised_again_by_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let setting = directory.path().join("sys/net/ipv4/tcp_rmem");
        fs::create_dir_all(setting.parent().unwrap()).unwrap();
        let raise = |namespaces: &mut Namespaces| {
            namespaces.known.insert(7, blue());
            namespaces.raise(&[Wanted::Maximum(Setting::TcpRmem, 8_000)], &mut Found::default());
            fs::read_to_string(&setting).unwrap()
        };
        for is_noticed_before in [true, false] {
            fs::write(&setting, "1 2 4001\n").unwrap();
            let mut namespaces = Namespaces { caps: Caps::below(directory.path()), ..Namespaces::default() };
            for _ in 0..2 {
                assert_eq!(raise(&mut namespaces), "1 2 8000\n");
                namespaces.release_known();
            }
            assert_eq!(raise(&mut namespaces), "1 2 8000\n");
            fs::write(&setting, "1 2 5001\n").unwrap();
            if is_noticed_before {
                assert_eq!(namespaces.changes().len(), 1);
            }
            for _ in 0..2 {
                assert!(namespaces.release_known().0.failed.is_empty());
                assert_eq!(raise(&mut namespaces), "1 2 5001\n");
            }
        }
    }

    #[test]
    fn a_namespace_that_is_not_met_is_dropped() {
        let (mut namespaces, mut failed) = (Namespaces::default(), Vec::new());
        namespaces.known.insert(7, blue());
        assert_eq!(namespaces.drop_others(|_| true, &mut failed), [""; 0]);
        assert_eq!(namespaces.drop_others(|inode| inode != 7, &mut failed), ["blue"]);
        assert!(namespaces.known.is_empty() && failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn bounds_that_cannot_be_restored_in_a_namespace_that_is_dropped_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let journals = directory.path().join("journals");
        let (mut known, mut failed) = (blue(), Vec::new());
        // No maximum is so small: nothing changes on this host.
        let wanted = [Wanted::Maximum(Setting::TcpRmem, 1)];
        known.raise(&Caps::with_journals(&journals), &wanted, BTreeSet::new(), &mut failed);
        assert!(known.raised.is_some() && failed.is_empty(), "{failed:?}");
        fs::remove_dir_all(&journals).unwrap();
        // In the way of the directory.
        fs::write(&journals, "").unwrap();
        let mut namespaces = Namespaces::default();
        namespaces.known.insert(7, known);
        assert_eq!(namespaces.drop_others(|_| false, &mut failed), ["blue"]);
        let [told] = &failed[..] else { panic!("{failed:?}") };
        assert!(told.starts_with("network namespace blue: cannot keep a journal in "), "{told}");
    }
}
