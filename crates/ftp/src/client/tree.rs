//! Lists all files below a directory on the server.
//!
//! Problem: names come from the server and become local paths. A server may list `..`, `a/b`, line breaks and circular
//! links.
//! Rules: MLSD where the server has it, else CWD and LIST without a path (which many servers take for a
//! pattern). Only names of one plain component without control characters are taken; links and devices are not followed;
//! skipped entries, and lines that are not understood, are reported. A file whose name is the temporary name of another
//! file would be overwritten, so it is skipped, too. A directory that the server refuses to list keeps nothing else from
//! being listed.
//! Properties kept: every path in the result stays below its root; depth, entries and the size of a listing are
//! bounded; no path appears twice.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bufwise_mover::{Bounds, Job, Sockets};

use super::conduct::{Buffers, Desk, conduct};
use super::data;
use super::directory::{has_mlst, working_directory};
use super::error::ClientError;
use super::local::temporary_name;
use super::session::ClientSession;
use super::worker::Worker;
use crate::wire::listing::{parse_list_line, parse_mlsx_line};
use crate::wire::terminal::escape_for_terminal;
use crate::wire::{Command, Entry, Kind, WireError};

/// Deepest directory: deeper than trees in use, less deep than a Linux path can be.
const MAX_DEPTH: usize = 64;
/// Most entries of a tree.
const MAX_ENTRIES: usize = 1_000_000;
/// Most bytes of all paths of a tree. Each entry of a listing becomes two paths with all directories above it, so a
/// short listing could fill the memory.
const MAX_PATHS: usize = 512 << 20;
/// Longest listing of one directory, in bytes.
const MAX_LISTING: usize = 64 << 20;
/// Skipped entries that are named; further ones are only counted.
const MAX_SKIPPED_NAMED: usize = 100;
/// Directories that the server may refuse to list before the whole tree fails.
const MAX_REFUSED: usize = 1_000;
/// Bytes of a skipped entry's name that are shown: `PATH_MAX`.
const MAX_SHOWN: usize = 4_096;

/// A file below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its path on the server.
    pub remote: PathBuf,
    /// Its path below the root: plain components only.
    pub path: PathBuf,
    /// Its size in bytes, if the listing gives one.
    pub size: Option<u64>,
}

/// A skipped entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name with its directory, safe for a terminal.
    pub name: String,
    /// Why.
    pub reason: &'static str,
}

/// A directory that the server refuses to list.
#[derive(Debug)]
pub struct Refusal {
    /// Its path on the server.
    pub remote: PathBuf,
    /// Its path below the root.
    pub path: PathBuf,
    /// Why.
    pub error: ClientError,
}

/// Files and directories below a directory.
#[derive(Debug, Default)]
pub struct Tree {
    /// All files.
    pub files: Vec<Item>,
    /// Files that are not among `files`, because each has the temporary name of another file.
    pub clashing: Vec<Item>,
    /// All directories but the root, each before what is in it.
    pub directories: Vec<PathBuf>,
    /// Those of `directories` that could not be listed: 1,000 at most.
    pub refused: Vec<Refusal>,
    /// The first skipped entries.
    pub skipped: Vec<Skipped>,
    /// Number of skipped entries.
    pub skipped_count: usize,
    entries: usize,
    /// Bytes of the paths of files and directories.
    paths: usize,
}

/// A directory to be listed.
#[derive(Debug)]
struct Pending {
    remote: PathBuf,
    path: PathBuf,
    depth: usize,
}

impl Tree {
    /// Lists `root` and everything below it; calls `watch` after each directory.
    ///
    /// # Errors
    /// When the root cannot be listed, a connection fails for good, the server refuses to list more than 1,000 directories, or the
    /// tree exceeds the bounds.
    pub fn list(worker: &mut Worker, root: &Path, mut watch: impl FnMut(&Self)) -> Result<Self, ClientError> {
        let root = worker.with_session(|session| start(session, root))?;
        let mut tree = Self::default();
        let mut pending = VecDeque::from([Pending { remote: root, path: PathBuf::new(), depth: 0 }]);
        let mut dots = true;
        while let Some(directory) = pending.pop_front() {
            match entries(worker, &directory.remote, &mut dots) {
                Ok(listing) => {
                    tree.skip_unread(&directory, &listing);
                    pending.extend(tree.add(&directory, listing.entries)?);
                }
                Err(error) => tree.refuse(directory, error)?,
            }
            watch(&tree);
        }
        Ok(tree)
    }

    /// Takes the entries of one directory; returns its directories.
    fn add(&mut self, directory: &Pending, entries: Vec<Entry>) -> Result<Vec<Pending>, ClientError> {
        let first = self.files.len();
        let mut names = HashSet::new();
        let mut below = Vec::new();
        for entry in entries {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(self.exceeds(directory, &format!("{MAX_ENTRIES} entries")));
            }
            let Some(name) = plain_name(&entry) else {
                if !is_itself(&entry) {
                    self.skip(directory, &entry, "its name is no plain file name");
                }
                continue;
            };
            let (remote, path) = (directory.remote.join(name), directory.path.join(name));
            self.paths += remote.as_os_str().len() + path.as_os_str().len();
            if self.paths > MAX_PATHS {
                return Err(self.exceeds(directory, "512 MiB of paths"));
            }
            match entry.kind {
                _ if !names.insert(name.to_owned()) => self.skip(directory, &entry, "it is listed twice"),
                Kind::File => self.files.push(Item { remote, path, size: entry.size }),
                Kind::Dir if directory.depth >= MAX_DEPTH => {
                    self.skip(directory, &entry, "it is too deep: a circle of links?");
                }
                Kind::Dir => {
                    self.directories.push(path.clone());
                    below.push(Pending { remote, path, depth: directory.depth + 1 });
                }
                Kind::Link => self.skip(directory, &entry, "it is a link"),
                _ => self.skip(directory, &entry, "it is neither a file nor a directory"),
            }
        }
        self.set_clashing_apart(first);
        Ok(below)
    }

    /// Notes a directory that cannot be listed; returns the error if it concerns more than this directory.
    fn refuse(&mut self, directory: Pending, error: ClientError) -> Result<(), ClientError> {
        let is_its_own = match &error {
            ClientError::Refused { reply, .. } => reply.code / 100 == 5,
            ClientError::Wire(WireError::ArgumentTooLong { .. }) => true,
            _ => false,
        };
        if directory.depth == 0 || !is_its_own || self.refused.len() == MAX_REFUSED {
            return Err(error);
        }
        self.refused.push(Refusal { remote: directory.remote, path: directory.path, error });
        Ok(())
    }

    /// Returns the error that with `directory` the tree has more than `bound`.
    fn exceeds(&self, directory: &Pending, bound: &str) -> ClientError {
        let (files, directories) = (self.files.len(), self.directories.len());
        let what = format!(
            "and what was listed before have more than {bound}: {files} files, {directories} directories and {} \
             left out were counted",
            self.skipped_count
        );
        ClientError::Tree { path: directory.remote.clone(), what }
    }

    /// Moves clashing names out of the files from `first` on, which are those of one directory.
    fn set_clashing_apart(&mut self, first: usize) {
        let names = self.files[first..].iter().filter_map(|item| item.path.file_name());
        let taken: HashSet<_> = names.map(temporary_name).collect();
        let clashes = |item: &mut Item| item.path.file_name().is_some_and(|name| taken.contains(name));
        self.clashing.extend(self.files.extract_if(first.., clashes));
    }

    /// Skips the lines of a listing that are not understood: each may be a file.
    fn skip_unread(&mut self, directory: &Pending, listing: &Listing) {
        for line in &listing.unread {
            let entry = Entry::new(line, Kind::Other);
            self.skip(directory, &entry, "this line of the listing is not understood");
        }
        self.skipped_count += listing.unread_count - listing.unread.len();
    }

    fn skip(&mut self, directory: &Pending, entry: &Entry, reason: &'static str) {
        self.skipped_count += 1;
        if self.skipped.len() < MAX_SKIPPED_NAMED {
            let name = directory.path.join(&entry.name);
            let name = name.as_os_str().as_bytes();
            let name = escape_for_terminal(&name[..name.len().min(MAX_SHOWN)]);
            self.skipped.push(Skipped { name, reason });
        }
    }
}

/// A server's list of one directory.
#[derive(Debug, Default)]
struct Listing {
    entries: Vec<Entry>,
    /// The first lines that are not understood.
    unread: Vec<PathBuf>,
    /// Number of all such lines.
    unread_count: usize,
}

/// Whether an entry is the listed directory itself or its parent.
fn is_itself(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::Current | Kind::Parent)
        || (entry.kind == Kind::Dir && [".", ".."].map(Path::new).contains(&entry.name.as_path()))
}

/// Whether a name is one plain component that a command can carry and a terminal can show.
fn plain_name(entry: &Entry) -> Option<&OsStr> {
    if matches!(entry.kind, Kind::Current | Kind::Parent) {
        return None;
    }
    entry.file_name().filter(|name| !name.as_bytes().iter().any(u8::is_ascii_control))
}

/// Returns the root's path: unchanged with MLSD, absolute where listing needs CWD.
fn start(session: &mut ClientSession, root: &Path) -> Result<PathBuf, ClientError> {
    if has_mlsd(session) || root.is_absolute() {
        return Ok(root.to_owned());
    }
    Ok(working_directory(session)?.join(root))
}

fn has_mlsd(session: &ClientSession) -> bool {
    has_mlst(session) || session.server().features.has("MLSD")
}

/// Returns what the server lists of a directory; `dots`: whether to try `LIST -a`.
fn entries(worker: &mut Worker, directory: &Path, dots: &mut bool) -> Result<Listing, ClientError> {
    let bounds = worker.settings().bounds();
    if *dots && let Some(listing) = worker.with_session(|session| all(session, directory, bounds))? {
        return Ok(listing);
    }
    let listing = worker.with_session(|session| {
        session.order(&Command::Cwd(directory.to_owned()))?;
        list(session, &Command::List(None), directory, bounds)
    })?;
    *dots &= listing.entries.is_empty();
    Ok(listing)
}

/// Returns what a server lists of a directory, including names that begin with a dot, which some hide (vsftpd). `None`
/// if the server takes `-a` for a name: it refuses, lists nothing, or lists a file of that name.
fn all(
    session: &mut ClientSession,
    directory: &Path,
    bounds: Bounds,
) -> Result<Option<Listing>, ClientError> {
    if has_mlsd(session) {
        let path = (!directory.as_os_str().is_empty()).then(|| directory.to_owned());
        let text = fetch(session, &Command::Mlsd(path), directory, bounds)?;
        return Ok(Some(parsed(&text, parse_mlsx_line)));
    }
    session.order(&Command::Cwd(directory.to_owned()))?;
    match list(session, &Command::ListAll, directory, bounds) {
        Ok(listing) => {
            let understood = listing.entries.iter().any(|entry| entry.name != Path::new("-a"));
            Ok(understood.then_some(listing))
        }
        Err(ClientError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn list(
    session: &mut ClientSession,
    order: &Command,
    directory: &Path,
    bounds: Bounds,
) -> Result<Listing, ClientError> {
    let (text, now) = (fetch(session, order, directory, bounds)?, SystemTime::now());
    Ok(parsed(&text, |line| parse_list_line(line, now)))
}

/// Reads a listing, up to one entry more than a tree may have.
fn parsed(text: &[u8], mut parse: impl FnMut(&[u8]) -> Option<Entry>) -> Listing {
    let mut listing = Listing::default();
    for line in lines(text) {
        match parse(line) {
            Some(_) if listing.entries.len() > MAX_ENTRIES => break,
            Some(entry) => listing.entries.push(entry),
            None if is_total(line) => {}
            None => {
                listing.unread_count += 1;
                if listing.unread.len() < MAX_SKIPPED_NAMED {
                    listing.unread.push(OsStr::from_bytes(&line[..line.len().min(MAX_SHOWN)]).into());
                }
            }
        }
    }
    listing
}

/// Whether a line has nothing, or the sum that `ls` writes first, in the server's language: `total 12`.
fn is_total(line: &[u8]) -> bool {
    let words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    match words.take(3).collect::<Vec<_>>()[..] {
        [] => true,
        [_, sum] => sum.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty())
}

fn fetch(
    session: &mut ClientSession,
    order: &Command,
    directory: &Path,
    bounds: Bounds,
) -> Result<Vec<u8>, ClientError> {
    let desk = Desk::new()?;
    let tcp = session.data(&Sockets::default())?;
    let early = session.begin(order)?;
    let mut stream = session.protect(tcp)?;
    let job = Job { bounds, cancel: desk.cancel.clone(), ..Job::default() };
    let read = move || data::all(&mut stream, MAX_LISTING, &job);
    let conducted = conduct(session, order, early, &desk, Buffers::Silent, read, |_| {})?;
    let what = || "is listed with more than 64 MiB".to_owned();
    conducted.moved.ok_or_else(|| ClientError::Tree { path: directory.to_owned(), what: what() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::error::Answer;
    use super::*;

    fn add(entries: Vec<Entry>) -> Tree {
        let mut tree = Tree::default();
        let root = Pending { remote: PathBuf::from("pub"), path: PathBuf::new(), depth: 0 };
        tree.add(&root, entries).unwrap();
        tree
    }

    #[test]
    fn what_is_no_plain_name_is_left_out_and_told() {
        let hostile = ["..", "../x", "/etc/passwd", "a/b", "a\nDELE b", "a\u{1b}[2J", ""];
        let tree = add(hostile.map(|name| Entry::new(name, Kind::File)).to_vec());
        let counts = (tree.files.len(), tree.skipped_count, tree.skipped.len());
        assert_eq!(counts, (0, hostile.len(), hostile.len()));
        assert!(tree.skipped.iter().all(|skipped| !skipped.name.contains(char::is_control)));
    }

    #[test]
    fn links_are_not_followed_and_the_directory_itself_is_not_told() {
        let tree = add(vec![
            Entry::new("file", Kind::File),
            Entry::new("file", Kind::Dir),
            Entry::new("link", Kind::Link),
            Entry::new(".", Kind::Dir),
            Entry::new("..", Kind::Dir),
            Entry::new("/pub", Kind::Current),
            Entry::new("dir", Kind::Dir),
        ]);
        assert_eq!(tree.files.len(), 1);
        assert_eq!(tree.files[0].remote, Path::new("pub/file"));
        assert_eq!(tree.directories, [PathBuf::from("dir")]);
        let reasons: Vec<_> = tree.skipped.iter().map(|skipped| skipped.reason).collect();
        assert_eq!(reasons, ["it is listed twice", "it is a link"]);
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let mut tree = Tree::default();
        let deep = Pending { remote: PathBuf::new(), path: PathBuf::new(), depth: MAX_DEPTH };
        assert!(tree.add(&deep, vec![Entry::new("d", Kind::Dir)]).unwrap().is_empty());
        assert!(tree.skipped[0].reason.contains("circle"));
        tree.entries = MAX_ENTRIES;
        let error = tree.add(&deep, vec![Entry::new("f", Kind::File)]).unwrap_err().to_string();
        let counted = "more than 1000000 entries: 0 files, 0 directories and 1 left out were counted";
        assert!(error.contains(counted), "{error}");
        let mut tree = Tree { paths: MAX_PATHS, ..Tree::default() };
        let error = tree.add(&deep, vec![Entry::new("f", Kind::File)]).unwrap_err().to_string();
        assert!(error.contains("more than 512 MiB of paths: 0 files"), "{error}");
        let long = Entry::new("x/".repeat(MAX_SHOWN), Kind::File);
        assert_eq!(add(vec![long]).skipped[0].name.len(), MAX_SHOWN);
    }

    #[test]
    fn only_refusals_of_one_directory_below_the_root_are_passed_over_and_their_number_is_bounded() {
        let mut tree = Tree::default();
        let below = |depth| Pending { remote: "pub/d".into(), path: "d".into(), depth };
        let refused = |code| {
            let reply = Answer { code, text: "no".to_owned() };
            ClientError::Refused { command: "CWD pub/d".to_owned(), reply }
        };
        tree.refuse(below(0), refused(550)).unwrap_err();
        tree.refuse(below(1), refused(450)).unwrap_err();
        tree.refuse(below(1), ClientError::Interrupted).unwrap_err();
        tree.refuse(below(1), WireError::ArgumentTooLong { what: "CWD" }.into()).unwrap();
        for _ in 1..MAX_REFUSED {
            tree.refuse(below(1), refused(550)).unwrap();
        }
        tree.refuse(below(1), refused(550)).unwrap_err();
        assert_eq!(tree.refused.len(), MAX_REFUSED);
    }

    #[test]
    fn no_more_entries_are_kept_than_say_that_they_are_too_many() {
        let text = b"type=dir; a\n".repeat(MAX_ENTRIES + 1_000);
        assert_eq!(parsed(&text, parse_mlsx_line).entries.len(), MAX_ENTRIES + 1);
    }

    #[test]
    fn lines_that_are_not_understood_are_told_and_the_sum_of_ls_is_not() {
        let text = b"insgesamt 12\r\n \r\n-rw-r--r-- 1 u g 9 Nov 22 02:00 x\r\n\
                     X.TXT;1 2/4 22-NOV-2026 02:00\r\n";
        let listing = parsed(text, |line| parse_list_line(line, SystemTime::now()));
        let mut tree = Tree::default();
        let root = Pending { remote: PathBuf::from("pub"), path: PathBuf::new(), depth: 0 };
        tree.skip_unread(&root, &listing);
        assert_eq!((listing.entries.len(), tree.skipped_count), (1, 1));
        assert_eq!(tree.skipped[0].name, "X.TXT;1 2/4 22-NOV-2026 02:00");
        let many = parsed(&b"?\r\n?\r\n".repeat(MAX_SKIPPED_NAMED), parse_mlsx_line);
        assert_eq!((many.unread.len(), many.unread_count), (MAX_SKIPPED_NAMED, 2 * MAX_SKIPPED_NAMED));
    }

    #[test]
    fn a_file_with_the_name_that_another_has_until_it_is_whole_is_set_apart() {
        let names = ["ok", ".ok.bufwise-part", ".other.bufwise-part"];
        let tree = add(names.map(|name| Entry::new(name, Kind::File)).to_vec());
        let paths = |items: &[Item]| items.iter().map(|item| item.path.clone()).collect::<Vec<_>>();
        assert_eq!(paths(&tree.clashing), [PathBuf::from(".ok.bufwise-part")]);
        assert_eq!(paths(&tree.files), ["ok", ".other.bufwise-part"].map(PathBuf::from));
    }

    proptest! {
        #[test]
        fn paths_stay_below_the_root(names in proptest::collection::vec("[./a\\\\\u{0}-\u{7f}]{0,6}", 0..20)) {
            let kinds = [Kind::File, Kind::Dir];
            let entries = names.iter().enumerate().map(|(at, name)| Entry::new(name, kinds[at % 2]));
            let tree = add(entries.collect());
            let paths = tree.files.iter().map(|item| &item.path).chain(&tree.directories);
            for path in paths {
                let mut components = path.components();
                prop_assert!(matches!(components.next(), Some(std::path::Component::Normal(_))));
                prop_assert_eq!(components.next(), None);
            }
        }
    }
}
