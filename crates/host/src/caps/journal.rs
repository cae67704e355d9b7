//! The settings' former values, on disk, for the next start after a crash.
//!
//! Each network namespace has one file, named by the namespace's cookie, which is never reused while the system
//! runs. It has a line per setting: its name, the original, and every value that bufwise has written. Lines of settings that
//! only a later version knows stay until that version restores them, or until their namespace is gone.
//! - New namespaces start with values of the first one. Its entries for these settings are also kept as the journal
//!   [`INHERITED`], for namespaces that have no journal of their own.
//! - An owner (a process that relies on changed values) holds a file with a shared lock: one file for maxima and one
//!   for devices. A file that can be locked exclusively has no living owner.
//! - All changes happen under one lock for all files. New content replaces the old in one step (rename), and is on
//!   the disk before a setting is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

use super::setting::{Setting, Value};
use crate::error::{During, Result};

const PREFIX: &str = "caps-";
/// Name of a journal until it is on the disk.
const FRESH: &str = "new";
/// Number of the journal of inherited values; unused otherwise, because the kernel counts cookies, and inodes, from
/// 1.
pub(super) const INHERITED: u64 = 0;

/// Settings that share their owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Maxima,
    Devices,
}

impl Part {
    const ALL: [Self; 2] = [Self::Maxima, Self::Devices];

    /// Returns the suffix of the owners' file.
    fn suffix(self) -> &'static str {
        match self {
            Self::Maxima => ".owners",
            Self::Devices => ".device-owners",
        }
    }
}

impl From<Setting> for Part {
    fn from(setting: Setting) -> Self {
        if matches!(setting, Setting::Device(_)) { Self::Devices } else { Self::Maxima }
    }
}

/// The record of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The administrator's value.
    pub(super) original: Value,
    /// Values that bufwise wrote, the latest last.
    pub(super) ours: Vec<Value>,
}

/// The records of a namespace's settings.
pub(super) type Entries = BTreeMap<Setting, Entry>;

/// The directory of all journals, locked: no other process changes a journal or a setting meanwhile.
pub(super) struct Directory {
    path: PathBuf,
    _alone: Flock<File>,
}

/// Membership in the owners of a part of a namespace's changed values; ends when dropped or when its process dies.
#[derive(Debug)]
pub(super) struct Membership(Flock<File>);

impl Membership {
    /// Returns whether no other living owner relies on the same part. The caller holds the lock of the directory, so
    /// that no owner joins meanwhile.
    pub(super) fn is_the_only_one(&self) -> bool {
        let alone = self.0.relock(FlockArg::LockExclusiveNonblock).is_ok();
        // The other members' locks are shared, so this lock is always granted again.
        let shared = self.0.relock(FlockArg::LockSharedNonblock).is_ok();
        alone && shared
    }
}

impl Directory {
    /// Makes the directory if needed, and waits until no other process has it locked.
    ///
    /// # Errors
    /// Others than the owner can write to the directory, and so choose the values that are restored; or the system's answer.
    pub(super) fn lock(path: &Path) -> Result<Self> {
        let what = || format!("cannot keep a journal in {}", path.display());
        DirBuilder::new().recursive(true).mode(0o755).create(path).during(what)?;
        if fs::metadata(path).during(what)?.mode() & 0o022 != 0 {
            let why = "others than its owner can write to it; its mode has to be 755";
            return Err(io::Error::other(why)).during(what);
        }
        let file = private_file(&path.join("lock")).during(what)?;
        let alone = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).during(what)?;
        // Left if its writer was killed or failed.
        let _mostly_none = fs::remove_file(path.join(FRESH));
        Ok(Self { path: path.to_owned(), _alone: alone })
    }

    /// Returns the namespaces that have a journal or an owners' file.
    pub(super) fn namespaces(&self) -> BTreeSet<u64> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let cookie = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_str()?.strip_prefix(PREFIX)?;
            Part::ALL
                .into_iter()
                .find_map(|part| name.strip_suffix(part.suffix()))
                .unwrap_or(name)
                .parse()
                .ok()
        };
        entries.filter_map(cookie).collect()
    }

    fn journal(&self, namespace: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{namespace}"))
    }

    fn owners(&self, namespace: u64, part: Part) -> PathBuf {
        self.path.join(format!("{PREFIX}{namespace}{}", part.suffix()))
    }

    /// Returns whether a living owner relies on this part of the namespace's changed values.
    pub(super) fn has_owner(&self, namespace: u64, part: Part) -> bool {
        match File::open(self.owners(namespace, part)) {
            Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err(),
            // An owners' file that cannot be opened counts as held.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns whether a living owner relies on any part.
    pub(super) fn has_any_owner(&self, namespace: u64) -> bool {
        Part::ALL.into_iter().any(|part| self.has_owner(namespace, part))
    }

    /// Returns whether dead owners may have left values in a namespace that has a file here.
    pub(super) fn has_leftovers(&self, namespace: u64) -> bool {
        // A journal that cannot be read may list any setting.
        let Ok(entries) = self.read(namespace) else { return true };
        let noted: BTreeSet<Part> = entries.into_keys().map(Part::from).collect();
        let is_left = |part: &Part| noted.contains(part) || self.owners(namespace, *part).exists();
        !self.has_any_owner(namespace)
            || Part::ALL.iter().any(|part| is_left(part) && !self.has_owner(namespace, *part))
    }

    /// Becomes an owner of this part of the namespace's changed values.
    pub(super) fn join(&self, namespace: u64, part: Part) -> Result<Membership> {
        let path = self.owners(namespace, part);
        let what = || format!("cannot lock {}", path.display());
        let file = private_file(&path).during(what)?;
        let held = Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno);
        Ok(Membership(held.during(what)?))
    }

    /// Reads the journal; empty if there is none. A malformed line is skipped.
    pub(super) fn read(&self, namespace: u64) -> Result<Entries> {
        Ok(entries_in(&self.text(namespace)?))
    }

    fn text(&self, namespace: u64) -> Result<String> {
        let journal = self.journal(namespace);
        match fs::read(&journal) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            // An error, because an empty journal would be removed.
            Err(error) => Err(error).during(|| format!("cannot read {}", journal.display())),
        }
    }

    /// Removes the journal.
    pub(super) fn remove(&self, namespace: u64) -> Result<()> {
        let journal = self.journal(namespace);
        match fs::remove_file(&journal) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).during(|| format!("cannot remove {}", journal.display()))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the journal except for lines of later versions, or removes it if there is nothing to note. The
    /// content is on the disk when this returns.
    pub(super) fn write(&self, namespace: u64, entries: &Entries) -> Result<()> {
        let text = text_of(entries, &self.text(namespace)?);
        if text.is_empty() {
            return self.remove(namespace);
        }
        let journal = self.journal(namespace);
        let what = || format!("cannot write {}", journal.display());
        let fresh = self.path.join(FRESH);
        let mut file = private_file(&fresh).during(what)?;
        file.set_len(0).during(what)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).during(what)?;
        fs::rename(&fresh, &journal).during(what)?;
        File::open(&self.path).and_then(|directory| directory.sync_all()).during(what)
    }

    /// Removes the owners' files that no living owner holds.
    pub(super) fn forget_owners(&self, namespace: u64) {
        for part in Part::ALL.into_iter().filter(|part| !self.has_owner(namespace, *part)) {
            // A missing file need not be removed.
            let _gone = fs::remove_file(self.owners(namespace, part));
        }
    }
}

/// Inode and time of a journal, by which new content is told from old.
pub(super) type Version = (u64, SystemTime);

/// Returns the version of a namespace's journal in `directory`; `None`: there is no journal.
pub(super) fn version(directory: &Path, namespace: u64) -> Option<Version> {
    let journal = fs::metadata(directory.join(format!("{PREFIX}{namespace}"))).ok()?;
    Some((journal.ino(), journal.modified().ok()?))
}

fn private_file(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // A process that can open the file could lock it and make bufwise wait.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Returns the entries of a journal's content; malformed lines are skipped.
pub(super) fn entries_in(text: &str) -> Entries {
    text.split_terminator('\n').filter_map(entry).collect()
}

/// Returns the content of a journal with these entries, and with the lines of later versions that were in it `before`.
pub(super) fn text_of(entries: &Entries, before: &str) -> String {
    let later = before.split_terminator('\n').filter(|line| is_of_a_later_version(line));
    entries.iter().map(line_of).chain(later.map(|line| format!("{line}\n"))).collect()
}

fn line_of((setting, entry): (&Setting, &Entry)) -> String {
    let ours: Vec<String> = entry.ours.iter().map(ToString::to_string).collect();
    format!("{setting}\t{}\t{}\n", entry.original, ours.join("\t"))
}

/// Returns whether the line has the form of an entry (a name, an original and at least one value of ours) with an
/// unknown name.
fn is_of_a_later_version(line: &str) -> bool {
    let mut fields = line.split('\t');
    let is_known = fields.next().is_none_or(|name| name.is_empty() || Setting::named(name).is_some());
    !is_known && fields.clone().count() >= 2 && fields.all(|value| !value.is_empty())
}

fn entry(line: &str) -> Option<(Setting, Entry)> {
    let mut fields = line.split('\t');
    let setting = Setting::named(fields.next()?)?;
    let original = Value::parse(setting, fields.next()?)?;
    let ours = fields.map(|field| Value::parse(setting, field)).collect::<Option<Vec<_>>>()?;
    (!ours.is_empty()).then_some((setting, Entry { original, ours }))
}
