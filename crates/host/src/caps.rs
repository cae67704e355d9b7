//! The host's own bounds on buffers, raised while bufwise bounds each socket instead.
//!
//! Problem: the window scale is fixed at the SYN, from the maximum of `tcp_rmem` at that moment: with the usual 6 MB
//! no window beyond 8 MiB is possible later. A program in the kernel cannot set a buffer beyond `wmem_max` and
//! `rmem_max`. So these maxima are raised as far as the budget allows, before connections start. Also, a writer fills
//! a packet of the device's `gso_max_size` whatever its send buffer; on request the devices' bounds are lowered.
//!
//! Terms: the *original* is the administrator's value; an *owner* is a process that relies on changed values; a value
//! is *ours* if the journal says that bufwise wrote it.
//!
//! Properties kept, for any order of owners, crashes and the administrator's changes:
//! - a maximum is never lowered below the original, and a device's bound never raised above it;
//! - the last owner restores the original; if an owner was killed, the next start restores it. Owners of maxima and
//!   owners of devices' bounds are counted separately;
//! - values that a namespace inherited from the first one while they were changed are ours as well;
//! - a value that is not ours is never overwritten by a restore, and counts as the original from then on;
//! - an owner that sees such a value does not change that setting again.

#[cfg(test)]
mod existing;
mod journal;
#[cfg(test)]
mod permission;
mod setting;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use bufwise_socket::options::namespace_cookie;

use crate::error::{During, Error, Result};
use journal::{Directory, Entries, Entry, INHERITED, Membership, Part, Version};
use setting::{Open, Settings, is_gone, set_all};
pub use setting::{Setting, Value};

/// The directories of journals and settings.
#[derive(Clone, Debug)]
pub struct Caps {
    journals: PathBuf,
    settings: PathBuf,
}

/// A bound that an owner requests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A maximum of at least this many bytes.
    Maximum(Setting, u64),
    /// Every device but the loopback takes at most `size` at once; devices that appear later are not changed.
    Devices {
        /// Bound in bytes.
        size: u64,
        /// Whether to bound devices in the host's first namespace as well, whose devices carry all programs'
        /// connections.
        also_in_the_first: bool,
    },
}

impl Wanted {
    fn part(self) -> Part {
        match self {
            Self::Maximum(..) => Part::Maxima,
            Self::Devices { .. } => Part::Devices,
        }
    }

    fn applies(self, in_the_first: bool) -> bool {
        !in_the_first || !matches!(self, Self::Devices { also_in_the_first: false, .. })
    }

    fn concerns(self, setting: Setting) -> bool {
        match self {
            Self::Maximum(wanted, _) => wanted == setting,
            Self::Devices { .. } => setting.is_device(),
        }
    }

    /// Returns the value that a setting should have, given its `current` value.
    fn value(self, current: &Value) -> Value {
        match self {
            Self::Maximum(_, size) => current.with_maximum(size),
            Self::Devices { size, .. } => current.bounded(size),
        }
    }
}

/// A setting and the value that it has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The setting.
    pub setting: Setting,
    /// The value that it holds now.
    pub value: Value,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.setting, self.value)
    }
}

/// A network namespace's raised maxima. Dropping it restores the originals unless another owner relies on the values.
#[derive(Debug)]
pub struct Raised {
    caps: Caps,
    namespace: u64,
    settings: Settings,
    /// Empty once this owner has left.
    memberships: Vec<(Part, Membership)>,
    /// Values that this owner has written, to check them without the journal.
    raised: Vec<Change>,
    /// Settings that the administrator has changed since; never changed again.
    left_alone: BTreeSet<Setting>,
    /// Size in bytes to which this owner wants its devices bounded; `None`: it bounds none.
    size: Option<u64>,
    /// Whether another owner relied on the devices' bounds when this one set them last.
    beside_another: bool,
    /// The journal after this owner last checked for bounds that other owners had set.
    journal: Option<Version>,
}

impl Caps {
    /// The number that stands for namespaces that inherited raised values from the first one.
    pub const INHERITED: u64 = INHERITED;

    /// Returns the journals and settings of this host.
    pub fn of_host() -> Self {
        Self { journals: "/run/bufwise".into(), settings: "/proc/sys".into() }
    }

    /// Returns journals and settings below another directory.
    #[cfg(test)]
    pub(crate) fn below(directory: &std::path::Path) -> Self {
        Self { journals: directory.join("run"), settings: directory.join("sys") }
    }

    /// Returns this host's settings, with journals in another directory.
    #[cfg(test)]
    pub(crate) fn with_journals(directory: &std::path::Path) -> Self {
        Self { journals: directory.into(), ..Self::of_host() }
    }

    /// Returns whether the calling thread's network namespace is the host's first, whose devices carry all programs'
    /// connections.
    pub fn is_in_the_first(&self) -> bool {
        setting::are_of_the_first(&self.settings)
    }

    /// Raises maxima that are lower than requested in the calling thread's network namespace, and lowers its devices'
    /// bounds. Values that dead owners left there are restored first; one that the kernel refuses stays in the journal. A
    /// setting that cannot be written from there is skipped, and so is a device that goes meanwhile.
    ///
    /// # Errors
    /// The journal cannot be kept, or a setting cannot be read or written; nothing is changed then.
    pub fn raise(&self, wanted: &[Wanted]) -> Result<Raised> {
        self.raise_in(here()?, wanted)
    }

    /// As [`Caps::raise`], but a device that refuses does not undo the other changes; returns its refusal as well. Settings
    /// in `left_alone` are not changed.
    pub(crate) fn raise_most(
        &self,
        wanted: &[Wanted],
        left_alone: BTreeSet<Setting>,
    ) -> Result<(Raised, Option<Error>)> {
        self.raise_most_in(here()?, wanted, left_alone)
    }

    fn raise_in(&self, namespace: u64, wanted: &[Wanted]) -> Result<Raised> {
        let (raised, refused) = self.raise_most_in(namespace, wanted, BTreeSet::new())?;
        // Dropping what was raised restores it.
        refused.map_or(Ok(raised), Err)
    }

    fn raise_most_in(
        &self,
        namespace: u64,
        wanted: &[Wanted],
        left_alone: BTreeSet<Setting>,
    ) -> Result<(Raised, Option<Error>)> {
        let mut settings = Settings::open(&self.settings)?;
        settings.retain_writable();
        let mut wanted = wanted.to_vec();
        wanted.retain(|one| one.applies(settings.are_the_first));
        let directory = Directory::lock(&self.journals)?;
        // A refusal keeps no other setting from being raised. It is reported when leftovers are cleared.
        let (_, _told) = put_back_unowned(&directory, namespace, &settings, directory.read(namespace)?)?;
        let memberships = join(&directory, namespace, &settings, &wanted)?;
        let size = wanted.iter().find_map(|one| match *one {
            Wanted::Devices { size, .. } => Some(size),
            Wanted::Maximum(..) => None,
        });
        let mut raised = Raised {
            caps: self.clone(),
            namespace,
            settings,
            memberships,
            raised: Vec::new(),
            left_alone,
            size,
            beside_another: false,
            journal: None,
        };
        let present = raised.settings.all(size.is_some()).map_err(Error::from);
        let done = present.and_then(|present| raised.raise(&directory, &wanted, present));
        // A failure restores what was raised, and locks the journals for that itself.
        drop(directory);
        done.map(|refused| (raised, refused))
    }

    /// Returns the maximum that a setting of the calling thread's network namespace has, or would have without
    /// bufwise; `None` if it cannot be read.
    pub fn original_maximum(&self, setting: Setting) -> Option<u64> {
        let noted = self.journals.exists().then(|| {
            let directory = Directory::lock(&self.journals).ok()?;
            let settings = Settings::open(&self.settings).ok()?;
            known(&directory, here().ok()?, &settings).ok()?.remove(&setting).map(|entry| entry.original)
        });
        let value = match noted.flatten() {
            Some(original) => original,
            None => setting::present(&self.settings, setting)?,
        };
        value.maximum()
    }

    /// Returns the namespaces in which dead owners may have left values; [`Caps::INHERITED`] stands for namespaces
    /// without a journal.
    pub fn ownerless(&self) -> Result<Vec<u64>> {
        if !self.journals.exists() {
            return Ok(Vec::new());
        }
        let directory = Directory::lock(&self.journals)?;
        let known = directory.namespaces().into_iter();
        Ok(known.filter(|namespace| directory.has_leftovers(*namespace)).collect())
    }

    /// Restores the values that dead owners left in the calling thread's network namespace, whose number is
    /// `namespace`.
    ///
    /// # Errors
    /// The journal cannot be kept, or the kernel refuses a value; all others are restored.
    pub fn put_back(&self, namespace: u64) -> Result<Vec<Change>> {
        let (directory, settings) = (Directory::lock(&self.journals)?, Settings::open(&self.settings)?);
        let entries = known(&directory, namespace, &settings)?;
        let (changes, refused) = put_back_unowned(&directory, namespace, &settings, entries)?;
        refused.map_or(Ok(changes), Err)
    }

    /// Removes the journal of a namespace that is gone, unless it has a living owner.
    pub fn forget(&self, namespace: u64) -> Result<()> {
        let directory = Directory::lock(&self.journals)?;
        if directory.has_any_owner(namespace) {
            return Ok(());
        }
        match namespace {
            // This journal always remains; a later version may have noted settings in it that namespaces still have.
            INHERITED => directory.write(INHERITED, &Entries::new())?,
            gone => directory.remove(gone)?,
        }
        directory.forget_owners(namespace);
        Ok(())
    }
}

/// Returns the content of a journal as it is after it was read and written: a line for each known setting, then the lines of later
/// versions as they were. Malformed lines are gone.
#[must_use]
pub fn rewritten_journal(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content);
    journal::text_of(&journal::entries_in(&text), &text)
}

/// Returns the number of the calling thread's network namespace: its cookie. Before Linux 5.14 there is no cookie,
/// and the inode is used, which another namespace may get once this one is gone; only values that the journal lists
/// as ours are restored there.
pub fn here() -> Result<u64> {
    let what = || "cannot tell network namespaces apart".to_owned();
    let any_socket = UnixDatagram::unbound().during(what)?;
    if let Ok(cookie) = namespace_cookie(&any_socket) {
        return Ok(cookie);
    }
    Ok(fs::metadata("/proc/thread-self/ns/net").during(what)?.ino())
}

impl Raised {
    /// Returns the settings that were raised, with their values.
    pub fn raised(&self) -> &[Change] {
        &self.raised
    }

    /// Returns the settings whose changes by the administrator were reported.
    pub(crate) fn left_alone(&self) -> &BTreeSet<Setting> {
        &self.left_alone
    }

    /// Returns whether this owner bounds devices, at once or at [`Raised::bound_devices`].
    pub fn bounds_devices(&self) -> bool {
        self.memberships.iter().any(|(part, _)| *part == Part::Devices)
    }

    /// Compares the settings with the values written. Returns those that the administrator has changed since the last
    /// call; bufwise leaves these settings alone from now on. Devices that another owner had bounded to less, and that has
    /// left, get this owner's bound again.
    pub fn notice_changes(&mut self) -> Result<Vec<Change>> {
        let changes = self.administrators_changes()?;
        // After a change the devices wait for the next call: their refusal would keep the change from the caller.
        let Some(size) = self.size.filter(|_| changes.is_empty()) else { return Ok(changes) };
        // Each owner that changes a device, and each that leaves, writes the journal; one that was killed does not.
        if self.beside_another || self.version() != self.journal {
            self.bound_devices(size)?;
            self.journal = self.version();
        }
        Ok(changes)
    }

    fn version(&self) -> Option<Version> {
        journal::version(&self.caps.journals, self.namespace)
    }

    /// As [`Raised::notice_changes`], without a change to any device.
    pub(crate) fn administrators_changes(&mut self) -> Result<Vec<Change>> {
        let moved = self.moved();
        if moved.is_empty() {
            return Ok(moved);
        }
        let directory = Directory::lock(&self.caps.journals)?;
        let mut entries = directory.read(self.namespace)?;
        let mut changes = Vec::new();
        for change in moved {
            let entry = entries.get(&change.setting);
            // Another owner may have raised it further.
            if entry.is_some_and(|entry| entry.ours.contains(&change.value)) {
                self.note(change);
                continue;
            }
            entries.remove(&change.setting);
            self.raised.retain(|ours| ours.setting != change.setting);
            self.left_alone.insert(change.setting);
            changes.push(change);
        }
        directory.write(self.namespace, &entries)?;
        Ok(changes)
    }

    /// Bounds the devices to `size` bytes at once, or to their original bound if that is less; does nothing if this
    /// owner does not bound devices. The bound is not raised while other owners rely on it; once they have left,
    /// [`Self::notice_changes`] raises it. Existing connections adopt it at their next send. A device that goes meanwhile is
    /// skipped, and so is one that the administrator has changed.
    ///
    /// # Errors
    /// The journal cannot be kept, or a device refuses; all others are bounded.
    pub fn bound_devices(&mut self, size: u64) -> Result<()> {
        let of_devices = self.memberships.iter().find(|(part, _)| *part == Part::Devices);
        let Some((_, membership)) = of_devices else { return Ok(()) };
        self.size = Some(size);
        let directory = Directory::lock(&self.caps.journals)?;
        let alone = membership.is_the_only_one();
        let devices = self.settings.devices()?;
        self.beside_another = !alone;
        self.bound(&directory, size, alone, devices)
    }

    /// Bounds these devices; `alone`: no other owner relies on their bounds.
    fn bound(&mut self, directory: &Directory, size: u64, alone: bool, devices: Vec<Open>) -> Result<()> {
        let mut entries = directory.read(self.namespace)?;
        let mut changes = Vec::new();
        for open in devices {
            if self.left_alone.contains(&open.setting) {
                continue;
            }
            let Some(current) = open.current()? else { continue };
            let noted = entries.get(&open.setting).filter(|entry| entry.ours.contains(&current));
            let is_other = |ours: &Change| ours.setting == open.setting && ours.value != current;
            if noted.is_none() && self.raised.iter().any(is_other) {
                continue;
            }
            let most = noted.filter(|_| alone).map_or(&current, |entry| &entry.original);
            let value = most.bounded(size);
            if value != current {
                note(&mut entries, open.setting, &current, &value);
                changes.push((open, current, value));
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        directory.write(self.namespace, &entries)?;
        let (done, refused) = set_all(changes)?;
        done.into_iter().for_each(|change| self.note(change));
        self.settings.forget_routes();
        refused.map_or(Ok(()), Err)
    }

    /// Restores the settings on which no other owner relies, and returns them.
    pub fn release(mut self) -> Result<Vec<Change>> {
        self.leave()
    }

    /// Returns the settings that have another value than this owner has written. Devices that have gone are checked no more;
    /// the journal keeps them, because a device may come back from another namespace.
    fn moved(&mut self) -> Vec<Change> {
        let (mut moved, settings) = (Vec::new(), &self.settings);
        self.raised.retain(|Change { setting, value: ours }| {
            match settings.find(*setting).map(|open| open.read()) {
                Some(Ok(value)) if value != *ours => moved.push(Change { setting: *setting, value }),
                Some(Err(error)) if setting.is_device() => return !is_gone(&error),
                // A file that cannot be read any more has gone with its namespace.
                _ => {}
            }
            true
        });
        moved
    }

    fn note(&mut self, change: Change) {
        self.raised.retain(|ours| ours.setting != change.setting);
        self.raised.push(change);
    }

    /// Raises the maxima and lowers the bounds that are `wanted` among these settings; returns why a device refused.
    fn raise(
        &mut self,
        directory: &Directory,
        wanted: &[Wanted],
        present: Vec<Open>,
    ) -> Result<Option<Error>> {
        let mut entries = known(directory, self.namespace, &self.settings)?;
        let mut changes = Vec::new();
        for open in present {
            let Some(wanted) = wanted.iter().find(|wanted| wanted.concerns(open.setting)) else { continue };
            if self.left_alone.contains(&open.setting) {
                continue;
            }
            let Some(current) = open.current()? else { continue };
            let value = wanted.value(&current);
            note(&mut entries, open.setting, &current, &value);
            if entries.contains_key(&open.setting) {
                changes.push((open, current, value));
            }
        }
        if self.settings.are_the_first {
            hand_down(directory, &entries)?;
        }
        directory.write(self.namespace, &entries)?;
        let is_new_of_device =
            |(open, current, value): &(Open, Value, Value)| open.setting.is_device() && value != current;
        let any_device = changes.iter().any(is_new_of_device);
        let (raised, refused) = set_all(changes)?;
        if any_device {
            self.settings.forget_routes();
        }
        self.raised = raised;
        Ok(refused)
    }

    fn leave(&mut self) -> Result<Vec<Change>> {
        let memberships = std::mem::take(&mut self.memberships);
        if memberships.is_empty() {
            return Ok(Vec::new());
        }
        let directory = Directory::lock(&self.caps.journals)?;
        drop(memberships);
        let entries = known(&directory, self.namespace, &self.settings)?;
        let (changes, refused) = put_back_unowned(&directory, self.namespace, &self.settings, entries)?;
        refused.map_or(Ok(changes), Err)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Callers that need the reason call `release`; the journal stays for the next start.
        let _failed = self.leave();
    }
}

/// Notes that a setting is about to change from `current` to `value`.
fn note(entries: &mut Entries, setting: Setting, current: &Value, value: &Value) {
    match entries.get_mut(&setting) {
        Some(entry) if entry.ours.contains(current) => {
            entry.ours.retain(|ours| ours != value);
            entry.ours.push(value.clone());
        }
        // The first change, or the administrator has changed the value since.
        _ if current == value => {
            entries.remove(&setting);
        }
        _ => {
            let entry = Entry { original: current.clone(), ours: vec![value.clone()] };
            entries.insert(setting, entry);
        }
    }
}

/// Becomes an owner of the requested parts; in the first namespace also of the values that others inherit from it.
fn join(
    directory: &Directory,
    namespace: u64,
    settings: &Settings,
    wanted: &[Wanted],
) -> Result<Vec<(Part, Membership)>> {
    let parts: BTreeSet<Part> = wanted.iter().map(|wanted| wanted.part()).collect();
    let inherited = settings.are_the_first && parts.contains(&Part::Maxima);
    let own = parts.into_iter().map(|part| (namespace, part));
    let all = own.chain(inherited.then_some((INHERITED, Part::Maxima)));
    all.map(|(namespace, part)| Ok((part, directory.join(namespace, part)?))).collect()
}

/// Returns the journal of a namespace, with the entries for values it inherited.
fn known(directory: &Directory, namespace: u64, settings: &Settings) -> Result<Entries> {
    let mut entries = directory.read(namespace)?;
    if settings.are_the_first {
        return Ok(entries);
    }
    for (setting, entry) in directory.read(INHERITED)? {
        let value = settings.find(setting).and_then(|open| open.read().ok());
        if value.is_some_and(|value| entry.ours.contains(&value)) {
            entries.entry(setting).or_insert(entry);
        }
    }
    Ok(entries)
}

/// Notes the values that namespaces made from now on inherit.
fn hand_down(directory: &Directory, entries: &Entries) -> Result<()> {
    let mut inherited = directory.read(INHERITED)?;
    for setting in Setting::INHERITED {
        let Some(entry) = entries.get(&setting) else { continue };
        // Namespaces may hold values that were written to the first one earlier.
        let before = inherited.insert(setting, entry.clone()).map_or_else(Vec::new, |before| before.ours);
        if let Some(now) = inherited.get_mut(&setting) {
            now.ours.extend(before.into_iter().filter(|value| !entry.ours.contains(value)));
        }
    }
    directory.write(INHERITED, &inherited)
}

/// Restores the originals, among these entries, on which no owner relies any more, and removes them from the journal.
/// Returns them, and the kernel's first refusal of an original; a refused one stays in the journal.
fn put_back_unowned(
    directory: &Directory,
    namespace: u64,
    settings: &Settings,
    entries: Entries,
) -> Result<(Vec<Change>, Option<Error>)> {
    let (mut changes, mut kept, mut refused) = (Vec::new(), Entries::new(), None);
    for (setting, entry) in entries {
        let open = settings.find(setting).filter(|_| !directory.has_owner(namespace, setting.into()));
        let Some(open) = open else {
            kept.insert(setting, entry);
            continue;
        };
        match open.read() {
            Ok(value) if entry.ours.contains(&value) => {
                let value = entry.original.clone();
                match open.write(&value).during(|| format!("cannot put {setting} back to {value}")) {
                    Ok(()) => changes.push(Change { setting, value }),
                    // It has gone since it was read.
                    Err(_) if setting.is_device() && matches!(open.current(), Ok(None)) => {}
                    // The others are put back all the same, and the next start tries this one again.
                    Err(error) => {
                        refused = refused.or(Some(error));
                        kept.insert(setting, entry);
                    }
                }
            }
            // The value may still be ours: the next process that can read it restores it.
            Err(error) if !is_gone(&error) => {
                kept.insert(setting, entry);
            }
            // The namespace is gone, the device is gone, or the value is no longer ours.
            _ => {}
        }
    }
    if changes.iter().any(|change| change.setting.is_device()) {
        settings.forget_routes();
    }
    directory.write(namespace, &kept)?;
    directory.forget_owners(namespace);
    Ok((changes, refused))
}
