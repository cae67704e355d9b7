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
use crate::caps::{Caps, Change, Raised, Wanted};
use crate::error::{Error, Result, in_words};
use crate::leftovers::{self, Cleared};
use crate::netns::{self, Namespace};

/// A known namespace.
struct Known {
    namespace: Namespace,
    raised: Option<Raised>,
    /// Lists the namespace's sockets; opened at the first use.
    diag: Option<Diag>,
    /// The same diagnostics for the history's thread.
    recorded: Option<Arc<Mutex<Diag>>>,
}

/// The known namespaces, by inode.
#[derive(Default)]
pub(super) struct Namespaces {
    known: BTreeMap<u64, Known>,
    /// The size in bytes to which the shares last bounded the devices.
    at_once: Option<u64>,
}

impl Namespaces {
    /// Searches for namespaces: the daemon's own and those of the processes of `groups`; without groups, all that
    /// exist. Applies `wanted` in new ones.
    pub(super) fn discover(&mut self, groups: &[Group], wanted: &[Wanted]) -> Result<Found> {
        let mut present = netns::all()?;
        if !groups.is_empty() {
            let own = present.first().map(|own| own.inode);
            let theirs = namespaces_of(groups);
            present.retain(|one| own == Some(one.inode) || theirs.contains(&one.inode));
        }
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
        let mut found = Found::default();
        let inodes: BTreeSet<u64> = present.iter().map(|one| one.inode).collect();
        // Only this daemon still holds a namespace that is not found any more; dropping it ends the namespace.
        self.known.retain(|inode, known| {
            let stays = inodes.contains(inode);
            if !stays {
                found.gone.push(known.namespace.label());
            }
            stays
        });
        for namespace in present {
            if self.known.contains_key(&namespace.inode) {
                continue;
            }
            let raised = match raise(&namespace, &wanted) {
                Ok(raised) => raised,
                Err(error) => {
                    found.failed.push(told(&namespace, &error));
                    None
                }
            };
            let changes = raised.as_ref().map(|raised| raised.raised().to_vec()).unwrap_or_default();
            found.new.push((namespace.label(), changes));
            self.known.insert(namespace.inode, Known { namespace, raised, diag: None, recorded: None });
        }
        found.known = self.known.keys().copied().collect();
        Ok(found)
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
        let mut cleared = Cleared::default();
        let mut any_raised = false;
        self.at_once = None;
        for Known { namespace, raised, .. } in std::mem::take(&mut self.known).into_values() {
            let Some(raised) = raised else { continue };
            any_raised = true;
            let label = namespace.label();
            match raised.release() {
                Ok(changes) => {
                    let lines = changes.iter().map(|change| leftovers::put_back(change, &label));
                    cleared.done.extend(lines);
                }
                Err(error) => cleared.failed.push(format!("network namespace {label}: {}", in_words(&error))),
            }
        }
        if any_raised {
            leftovers::clear_inherited(&mut cleared);
        }
        cleared
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

/// Formats an error of one namespace for the log.
fn told(namespace: &Namespace, error: &Error) -> String {
    format!("network namespace {}: {}", namespace.label(), in_words(error))
}

fn raise(namespace: &Namespace, wanted: &[Wanted]) -> Result<Option<Raised>> {
    if wanted.is_empty() {
        return Ok(None);
    }
    namespace.run(|| Caps::of_host().raise(wanted))?.map(Some)
}

/// Returns the inodes of the namespaces of the groups' processes.
fn namespaces_of(groups: &[Group]) -> BTreeSet<u64> {
    let processes = groups.iter().flat_map(Group::processes);
    processes.filter_map(|pid| Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())).collect()
}
