//! `bufwise put`: puts a file, or a directory with its contents, to any FTP server that accepts uploads.

use std::fs::{self, File, OpenOptions, ReadDir};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bufwise_ftp::client::{ClientError, LocalError, Url};
use bufwise_ftp::wire::terminal::escape_for_terminal;
use clap::Args;
use nix::fcntl::OFlag;

use crate::exit::{Failure, Outcome};
use crate::transfer::{Command, Options, Way, address};

/// Put a file or a directory by FTP; --policy tunes the buffers of its connections
///
/// The default policy, kernel, tunes nothing and only measures. The file goes to .NAME.bufwise-part on the server, and gets its name
/// when its size has been compared. Anonymous uploads go to their name at once, because servers let no anonymous user rename them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise put file.iso ftp://jo@example.org/incoming/
  bufwise put --resume --policy sobas disk.img ftp://jo@example.org:2121/images/disk.img
  bufwise put -r results/ ftp://jo@example.org/results

An address that ends in / is a directory, in which the file keeps its name.

Passwords come from BUFWISE_PASSWORD, from ~/.netrc (or --netrc), or from a prompt, never from the command line. BUFWISE_USER \
names the user if the address does not.

-r leaves out links and reports them. Sockets, pipes, devices, and what cannot be read, cannot be put: everything else is put, and \
the status is 1.

Where the kernel has Landlock (Linux 5.13), put can write no file except that of --json; it restricts itself before it connects.")]
pub(crate) struct PutArgs {
    /// The file to put, or with -r the directory
    file: PathBuf,
    /// ftp://[USER@]HOST[:PORT]/PATH, or ftps:// for TLS from the first byte (port 990)
    #[expect(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    url: String,
    /// Upload under the final name at once, for servers that do not let users rename files
    #[arg(long)]
    in_place: bool,
    /// Put a directory with everything below it; the address names the new directory
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    options: Options,
}

impl PutArgs {
    pub(crate) fn run(self) -> Outcome {
        let url = address(&self.url)?;
        if self.recursive {
            return self.tree(&url);
        }
        let file = open(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let metadata = file.metadata().with_context(|| format!("cannot read {}", self.file.display()))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a directory: add -r" } else { "not a regular file" };
            return Err(Failure::usage(format!("{} is {what}", self.file.display())));
        }
        let remote = self.remote(&url)?;
        self.options.keep_apart(&self.file)?;
        let mut command = Command::prepare(Way::Put, &url, self.options, None)?;
        command.settings.in_place = self.in_place;
        command.one(&remote, &self.file, |worker, watch| worker.put(&file, &remote, watch));
        command.finish()
    }

    fn tree(self, url: &Url) -> Outcome {
        let mut found = Found::below(&self.file)?;
        let mut command = Command::prepare(Way::Put, url, self.options, None)?;
        command.settings.in_place = self.in_place;
        let remote = |path: &Path| url.path.join(path);
        let mut worker = command.worker();
        let root = (!url.path.as_os_str().is_empty()).then(|| url.path.clone());
        let directories: Vec<PathBuf> =
            root.into_iter().chain(found.directories.iter().map(|path| remote(path))).collect();
        let made = worker.make_directories(&directories);
        let made = made.and_then(|refused| Ok((refused, worker.clashing(&found.files)?)));
        let (refused, clashing) = match made {
            Ok(made) => made,
            Err(error) => return command.give_up(&worker, &url.path, &self.file, error),
        };
        for (remote, refused) in refused {
            let below = remote.strip_prefix(&url.path).unwrap_or(&remote);
            command.not_made(&remote, &self.file.join(below), refused);
        }
        let links = found.links.iter().map(|path| escape_for_terminal(path.as_os_str().as_bytes()));
        command.left_out(links.map(|name| format!("{name}: it is a link")), found.links.len());
        for path in &found.special {
            let (local, source) =
                (self.file.join(path), io::Error::other("it is neither a file nor a directory"));
            let refused = ClientError::Read { path: local.clone(), source };
            command.not_made(&remote(path), &local, refused);
        }
        for (path, source) in found.unlisted {
            let local = self.file.join(&path);
            command.not_made(&remote(&path), &local, ClientError::Read { path: local.clone(), source });
        }
        found.files.retain(|path| !clashing.contains(path));
        for path in &clashing {
            let refused = LocalError::Reserved { path: remote(path) };
            command.not_made(&remote(path), &self.file.join(path), refused.into());
        }
        command.many(worker, &found.files, Some(found.bytes), |worker, path, watch| {
            let local = self.file.join(path);
            let opened = open(&local).map_err(|source| ClientError::Read { path: local.clone(), source });
            let put = opened.and_then(|file| worker.put(&file, &remote(path), watch));
            (remote(path), local, put)
        });
        command.finish()
    }

    fn remote(&self, url: &Url) -> Result<PathBuf, Failure> {
        if !url.directory {
            return Ok(url.path.clone());
        }
        let name = self.file.file_name();
        let name = name.ok_or_else(|| Failure::usage(format!("{} has no name", self.file.display())))?;
        Ok(url.path.join(name))
    }
}

/// Opens a file to be read. It does not wait for a pipe that has no writer.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// The files and directories below a local directory.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    links: Vec<PathBuf>,
    /// Sockets, pipes and devices.
    special: Vec<PathBuf>,
    /// Directories of which not all can be listed, and entries of no known kind.
    unlisted: Vec<(PathBuf, io::Error)>,
    bytes: u64,
}

impl Found {
    fn below(root: &Path) -> anyhow::Result<Self> {
        let mut found = Self::default();
        let entries = fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?;
        found.list(Path::new(""), entries);
        let mut listed = 0;
        while let Some(directory) = found.directories.get(listed).cloned() {
            listed += 1;
            match fs::read_dir(root.join(&directory)) {
                Ok(entries) => found.list(&directory, entries),
                Err(error) => found.unlisted.push((directory, error)),
            }
        }
        // Sorted, each directory comes before its contents.
        found.directories.sort();
        found.files.sort();
        Ok(found)
    }

    fn list(&mut self, directory: &Path, entries: ReadDir) {
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.unlisted.push((directory.to_owned(), error)),
            };
            let path = directory.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.directories.push(path),
                Ok(kind) if kind.is_file() => {
                    self.bytes += entry.metadata().map_or(0, |metadata| metadata.len());
                    self.files.push(path);
                }
                Ok(kind) if kind.is_symlink() => self.links.push(path),
                Ok(_) => self.special.push(path),
                Err(error) => self.unlisted.push((path, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::fcntl::openat;
    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_listed_keeps_nothing_else_back() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "bytes").unwrap();
        // Directories may lie deeper than a path of 4,096 bytes reaches.
        let name = "d".repeat(250);
        let mut deep = File::open(root.path()).unwrap();
        for _ in 0..18 {
            mkdirat(&deep, name.as_str(), Mode::S_IRWXU).unwrap();
            deep = openat(&deep, name.as_str(), OFlag::O_DIRECTORY, Mode::empty()).unwrap().into();
        }
        let found = Found::below(root.path()).unwrap();
        assert_eq!((found.files, found.bytes), (vec![PathBuf::from("file")], 5));
        let [(unlisted, error)] = &found.unlisted[..] else { panic!("{:?}", found.unlisted) };
        assert_eq!(error.raw_os_error(), Some(Errno::ENAMETOOLONG as i32));
        assert_eq!(found.directories.last(), Some(unlisted), "it is made all the same");
        assert!(Found::below(&root.path().join("none")).is_err(), "there is nothing to put");
    }
}
