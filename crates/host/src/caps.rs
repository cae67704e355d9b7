//! The host's own bounds on buffers, raised while bufwise bounds each socket instead.
//!
//! Problem: the window scale is settled at the SYN, from the maximum of `tcp_rmem` at that moment: with the usual 6 MB
//! no window beyond 8 MiB is possible later. And a program in the kernel sets no buffer beyond `wmem_max` and
//! `rmem_max`. So these maxima are raised as far as the budget allows, before connections start. And a writer fills as much
//! as its device takes at once, whatever its buffer: where that is asked for, the devices take less.
//!
//! Terms: the *original* is the administrator's value; an *owner* is a process that relies on changed values; a value
//! is *ours* if the journal says that we wrote it.
//!
//! Keeps, whatever the order of owners, crashes and the administrator's changes:
//! - a maximum is never lowered below the original, and a device's bound never raised above it;
//! - the last owner puts back the original, and what a killed owner left is put back by whoever starts next; those who rely
//!   on maxima and those who rely on devices' bounds are owners apart;
//! - what a namespace has inherited from the first one while that was changed is ours as well;
//! - a value that is not ours is never overwritten by putting back, and counts as the original from then on;
//! - an owner that sees such a value does not change that setting again.

#[cfg(test)]
mod existing;
mod journal;
mod setting;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use bufwise_socket::options::namespace_cookie;

use crate::error::{During, Result};
use journal::{Directory, Entries, Entry, INHERITED, Membership, Part};
use setting::Settings;
pub use setting::{Setting, Value};

/// Where journals and settings are.
#[derive(Clone, Debug)]
pub struct Caps {
    journals: PathBuf,
    settings: PathBuf,
}

/// A bound that is wanted, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A maximum of at least this.
    Maximum(Setting, u64),
    /// Every device but the loopback takes at most `size` at once; those that come later are not looked at.
    Devices {
        /// Bytes.
        size: u64,
        /// Also in the host's first namespace, whose devices carry everybody's connections.
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
            Self::Devices { .. } => matches!(setting, Setting::Device(_)),
        }
    }

    /// The value that a setting should hold that it concerns and that holds `current`.
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
    /// Which setting.
    pub setting: Setting,
    /// The value that it holds now.
    pub value: Value,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.setting, self.value)
    }
}

/// A network namespace's raised maxima. Dropping it puts them back, if nobody else relies on them.
#[derive(Debug)]
pub struct Raised {
    caps: Caps,
    namespace: u64,
    settings: Settings,
    /// Empty once it has left.
    memberships: Vec<(Part, Membership)>,
    /// Values that this owner has written, for a look without the journal.
    raised: Vec<Change>,
    /// Settings that the administrator has changed meanwhile.
    left_alone: BTreeSet<Setting>,
}

impl Caps {
    /// The number that stands for namespaces that have inherited what was raised in the first one.
    pub const INHERITED: u64 = INHERITED;

    /// The journals and settings of this host.
    pub fn of_host() -> Self {
        Self { journals: "/run/bufwise".into(), settings: "/proc/sys".into() }
    }

    /// Journals and settings below other directories.
    #[cfg(test)]
    fn below(directory: &std::path::Path) -> Self {
        Self { journals: directory.join("run"), settings: directory.join("sys") }
    }

    /// This host's settings, with journals in another directory.
    #[cfg(test)]
    pub(crate) fn with_journals(directory: &std::path::Path) -> Self {
        Self { journals: directory.into(), ..Self::of_host() }
    }

    /// Whether the calling thread's network namespace is the host's first, whose devices carry everybody's connections.
    pub fn is_in_the_first(&self) -> bool {
        setting::are_of_the_first(&self.settings)
    }

    /// Raises maxima that are lower than wanted in the calling thread's network namespace, and lowers its devices' bounds;
    /// what dead owners left there is put back first. A setting that cannot be written from there is left.
    pub fn raise(&self, wanted: &[Wanted]) -> Result<Raised> {
        self.raise_in(here()?, wanted)
    }

    fn raise_in(&self, namespace: u64, wanted: &[Wanted]) -> Result<Raised> {
        let settings = Settings::open(&self.settings)?;
        let mut wanted = wanted.to_vec();
        wanted.retain(|one| one.applies(settings.are_the_first));
        let directory = Directory::lock(&self.journals)?;
        put_back_unowned(&directory, namespace, &settings, directory.read(namespace)?)?;
        let memberships = join(&directory, namespace, &settings, &wanted)?;
        let mut raised = Raised {
            caps: self.clone(),
            namespace,
            settings,
            memberships,
            raised: Vec::new(),
            left_alone: BTreeSet::new(),
        };
        let done = raised.raise(&directory, &wanted);
        // A failure puts back what it has raised, and locks the journals for that itself.
        drop(directory);
        done.map(|()| raised)
    }

    /// The maximum that a setting of the calling thread's network namespace has, or would have without bufwise; `None` if
    /// it cannot be seen.
    pub fn original_maximum(&self, setting: Setting) -> Option<u64> {
        let settings = Settings::open(&self.settings).ok()?;
        let noted = self.journals.exists().then(|| {
            let directory = Directory::lock(&self.journals).ok()?;
            known(&directory, here().ok()?, &settings).ok()?.remove(&setting).map(|entry| entry.original)
        });
        let value = match noted.flatten() {
            Some(original) => original,
            None => settings.find(setting)?.read().ok()?,
        };
        value.maximum()
    }

    /// Namespaces in which dead owners may have left something; [`Caps::INHERITED`] stands for those without a journal.
    pub fn ownerless(&self) -> Result<Vec<u64>> {
        if !self.journals.exists() {
            return Ok(Vec::new());
        }
        let directory = Directory::lock(&self.journals)?;
        let known = directory.namespaces().into_iter();
        Ok(known.filter(|namespace| directory.has_leftovers(*namespace)).collect())
    }

    /// Puts back what dead owners left in the calling thread's network namespace, whose cookie is `namespace`.
    pub fn put_back(&self, namespace: u64) -> Result<Vec<Change>> {
        let (directory, settings) = (Directory::lock(&self.journals)?, Settings::open(&self.settings)?);
        put_back_unowned(&directory, namespace, &settings, known(&directory, namespace, &settings)?)
    }

    /// Forgets a namespace that is gone, and its settings with it.
    pub fn forget(&self, namespace: u64) -> Result<()> {
        let directory = Directory::lock(&self.journals)?;
        if directory.has_any_owner(namespace) {
            return Ok(());
        }
        match namespace {
            // It never goes; a later version may have noted in it what namespaces have still.
            INHERITED => directory.write(INHERITED, &Entries::new())?,
            gone => directory.remove(gone)?,
        }
        directory.forget_owners(namespace);
        Ok(())
    }
}

/// The number of the calling thread's network namespace: its cookie. Before Linux 5.14 there is none, and the inode serves,
/// which another namespace may get once this one is gone; only values that the journal names as ours are put back there.
pub fn here() -> Result<u64> {
    let what = || "cannot tell network namespaces apart".to_owned();
    let any_socket = UnixDatagram::unbound().during(what)?;
    if let Ok(cookie) = namespace_cookie(&any_socket) {
        return Ok(cookie);
    }
    Ok(fs::metadata("/proc/thread-self/ns/net").during(what)?.ino())
}

impl Raised {
    /// Settings that were raised, with their values.
    pub fn raised(&self) -> &[Change] {
        &self.raised
    }

    /// Whether devices take less at once, or would as soon as [`Raised::bound_devices`] says so.
    pub fn bounds_devices(&self) -> bool {
        self.memberships.iter().any(|(part, _)| *part == Part::Devices)
    }

    /// Compares the settings with what was written: those that the administrator has changed since the last look.
    /// They are his from now on.
    pub fn look(&mut self) -> Result<Vec<Change>> {
        let moved: Vec<Change> = self.raised.iter().filter_map(|ours| self.moved(ours)).collect();
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

    /// Has the devices take `size` bytes at once, or as much as they took originally if that is less, if this owner bounds
    /// them; not more than now while others rely on it. Existing connections take it when they send next.
    ///
    /// # Errors
    /// The journal cannot be kept, or a device refuses.
    pub fn bound_devices(&mut self, size: u64) -> Result<()> {
        let of_devices = self.memberships.iter().find(|(part, _)| *part == Part::Devices);
        let Some((_, membership)) = of_devices else { return Ok(()) };
        let directory = Directory::lock(&self.caps.journals)?;
        let mut entries = directory.read(self.namespace)?;
        let alone = membership.is_the_only_one();
        let mut changes = Vec::new();
        for open in self.settings.devices()? {
            if self.left_alone.contains(&open.setting) {
                continue;
            }
            let current = open.read().during(|| format!("cannot read {}", open.setting))?;
            let noted = entries.get(&open.setting).filter(|entry| entry.ours.contains(&current));
            let most = noted.filter(|_| alone).map_or(&current, |entry| &entry.original);
            let value = most.bounded(size);
            if value != current {
                note(&mut entries, open.setting, &current, &value);
                changes.push((open, value));
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        directory.write(self.namespace, &entries)?;
        for (open, value) in changes {
            open.write(&value).during(|| format!("cannot set {} to {value}", open.setting))?;
            self.note(Change { setting: open.setting, value });
        }
        self.settings.forget_routes();
        Ok(())
    }

    /// Puts back what nobody else relies on, and says what.
    pub fn release(mut self) -> Result<Vec<Change>> {
        self.leave()
    }

    fn moved(&self, ours: &Change) -> Option<Change> {
        // A setting that cannot be read any more has gone with its namespace.
        let open = self.settings.find(ours.setting)?;
        let value = open.read().ok()?;
        (value != ours.value).then_some(Change { setting: ours.setting, value })
    }

    fn note(&mut self, change: Change) {
        self.raised.retain(|ours| ours.setting != change.setting);
        self.raised.push(change);
    }

    fn raise(&mut self, directory: &Directory, wanted: &[Wanted]) -> Result<()> {
        let mut entries = known(directory, self.namespace, &self.settings)?;
        let mut changes = Vec::new();
        let devices = wanted.iter().any(|one| matches!(one, Wanted::Devices { .. }));
        for open in self.settings.all(devices)? {
            let Some(wanted) = wanted.iter().find(|wanted| wanted.concerns(open.setting)) else { continue };
            if self.left_alone.contains(&open.setting) {
                continue;
            }
            let current = open.read().during(|| format!("cannot read {}", open.setting))?;
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
        let (mut raised, mut any_device) = (Vec::new(), false);
        for (open, current, value) in changes {
            if value != current {
                open.write(&value).during(|| format!("cannot set {} to {value}", open.setting))?;
                any_device |= matches!(open.setting, Setting::Device(_));
            }
            raised.push(Change { setting: open.setting, value });
        }
        if any_device {
            self.settings.forget_routes();
        }
        self.raised = raised;
        Ok(())
    }

    fn leave(&mut self) -> Result<Vec<Change>> {
        let memberships = std::mem::take(&mut self.memberships);
        if memberships.is_empty() {
            return Ok(Vec::new());
        }
        let directory = Directory::lock(&self.caps.journals)?;
        drop(memberships);
        let entries = known(&directory, self.namespace, &self.settings)?;
        put_back_unowned(&directory, self.namespace, &self.settings, entries)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // An owner that wants to know the reason calls `release`; the journal stays for the next start.
        let _failed = self.leave();
    }
}

/// Notes that a setting is about to go from `current` to `value`.
fn note(entries: &mut Entries, setting: Setting, current: &Value, value: &Value) {
    match entries.get_mut(&setting) {
        Some(entry) if entry.ours.contains(current) => {
            entry.ours.retain(|ours| ours != value);
            entry.ours.push(value.clone());
        }
        // The first change, or the administrator has been here since.
        _ if current == value => {
            entries.remove(&setting);
        }
        _ => {
            let entry = Entry { original: current.clone(), ours: vec![value.clone()] };
            entries.insert(setting, entry);
        }
    }
}

/// Becomes an owner of what is wanted; in the first namespace also of what others inherit from it.
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

/// The journal of a namespace, and what it has inherited.
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

/// Notes what namespaces inherit that are made from now on.
fn hand_down(directory: &Directory, entries: &Entries) -> Result<()> {
    let mut inherited = directory.read(INHERITED)?;
    for setting in Setting::INHERITED {
        let Some(entry) = entries.get(&setting) else { continue };
        // Namespaces may hold what was written to the first one before.
        let before = inherited.insert(setting, entry.clone()).map_or_else(Vec::new, |before| before.ours);
        if let Some(now) = inherited.get_mut(&setting) {
            now.ours.extend(before.into_iter().filter(|value| !entry.ours.contains(value)));
        }
    }
    directory.write(INHERITED, &inherited)
}

/// Whether a setting that cannot be read is there no more, or holds what bufwise never writes.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

/// Puts back the originals that nobody relies on any more, of these that are known of the namespace, and forgets them.
fn put_back_unowned(
    directory: &Directory,
    namespace: u64,
    settings: &Settings,
    entries: Entries,
) -> Result<Vec<Change>> {
    let (mut changes, mut kept) = (Vec::new(), Entries::new());
    for (setting, entry) in entries {
        let open = settings.find(setting).filter(|_| !directory.has_owner(namespace, setting.into()));
        let Some(open) = open else {
            kept.insert(setting, entry);
            continue;
        };
        match open.read() {
            Ok(value) if entry.ours.contains(&value) => {
                let value = entry.original;
                open.write(&value).during(|| format!("cannot put {setting} back to {value}"))?;
                changes.push(Change { setting, value });
            }
            // It may be ours still: the next one who can read it puts it back.
            Err(error) if !is_gone(&error) => {
                kept.insert(setting, entry);
            }
            // Gone with its namespace, a device by itself, or no longer ours.
            _ => {}
        }
    }
    if changes.iter().any(|change| matches!(change.setting, Setting::Device(_))) {
        settings.forget_routes();
    }
    directory.write(namespace, &kept)?;
    directory.forget_owners(namespace);
    Ok(changes)
}
