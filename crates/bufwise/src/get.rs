//! `bufwise get`: gets a file, or a directory with its contents, from any FTP server.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bufwise_ftp::client::{Folder, LocalError, Target, Tree, Url, follow};
use bufwise_mover::Writer;
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::exit::{Failure, Outcome};
use crate::output;
use crate::transfer::{Command, Options, Way, address};

/// Get a file or a directory by FTP; --policy tunes the buffers of its connections
///
/// The default policy, kernel, tunes nothing and only measures. The file gets its name when it is complete, its size has been
/// compared, and it is on the disk. Until then, and after a failure, it is .NAME.bufwise-part in the same directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise get ftp://ftp.example.org/pub/file.iso
  bufwise get --policy drs --resume -o disk.img ftp://jo@example.org:2121/images/disk.img
  bufwise get -r --jobs 8 -o data ftp://example.org/data/

The path is relative to the login directory; ftp://HOST//PATH is absolute.

Passwords come from BUFWISE_PASSWORD, from ~/.netrc (or --netrc), or from a prompt, never from the command line. BUFWISE_USER \
names the user if the address does not; without any the user is anonymous.

-r leaves out links, names that are not plain file names, and lines of a listing that are not understood, and reports them. If the \
server refuses to list a directory, the rest is fetched, and the exit status is 1.

Where the kernel has Landlock (Linux 5.13), get can write only below the directory of FILE and into the file of --json; it \
restricts itself before it connects.")]
pub(crate) struct GetArgs {
    /// ftp://[USER@]HOST[:PORT]/PATH, or ftps:// for TLS from the first byte (port 990)
    #[expect(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    url: String,
    /// Name of the file here; in a directory the file keeps its own name; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Get a directory with everything below it, into the directory FILE, or one of the same name
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    options: Options,
}

impl GetArgs {
    pub(crate) fn run(self) -> Outcome {
        let url = address(&self.url)?;
        if self.recursive {
            return self.tree(&url);
        }
        if let Some(path) = self.output.as_deref().filter(|path| !output::is_stdout(path)) {
            follow(path)?;
        }
        if let Some(path) = self.output.as_deref().filter(|path| is_no_file(path)) {
            return Self::pipe(&url, path, self.options);
        }
        let target = self.target(&url)?;
        self.options.keep_apart(&target.path())?;
        let mut command = Command::prepare(Way::Get, &url, self.options, Some(target.directory()))?;
        command.one(&url.path, &target.path(), |worker, watch| worker.get(&url.path, &target, watch));
        command.finish()
    }

    fn target(&self, url: &Url) -> Result<Target, Failure> {
        let name = url.file_name().filter(|_| !url.directory);
        let name = name.ok_or_else(|| Failure::usage(format!("{url} names a directory: add -r")))?;
        let path = match &self.output {
            Some(directory) if directory.is_dir() => directory.join(name),
            Some(path) if path.as_os_str().as_bytes().ends_with(b"/") => {
                return Err(Failure::usage(format!("{} is no directory: make it first", path.display())));
            }
            Some(path) => path.clone(),
            None => PathBuf::from(name),
        };
        Ok(Target::new(&path)?)
    }

    /// Gets a file into standard output, a pipe or a device.
    fn pipe(url: &Url, path: &Path, options: Options) -> Outcome {
        if options.resumes() {
            return Err(Failure::usage(
                "standard output, a pipe or a device keeps no part that can be continued: leave --resume out",
            ));
        }
        let to_stdout = output::is_stdout(path);
        if to_stdout && options.reports_to_stdout() {
            return Err(Failure::usage(
                "standard output cannot get both the file and the report: name a file with -o or --json",
            ));
        }
        // Standard output is open already: confinement does not concern it.
        let (path, target) = if to_stdout { (Path::new("/dev/stdout"), None) } else { (path, Some(path)) };
        let mut command = Command::prepare(Way::Get, url, options, target)?;
        command.keeps_no_part();
        let opened = if to_stdout {
            command.say_nothing_on_stdout();
            // Duplicated instead of opened again: that would begin at the start of a file, and fail for a socket.
            io::stdout().as_fd().try_clone_to_owned().map(File::from)
        } else {
            OpenOptions::new().write(true).open(path)
        };
        let file = opened.with_context(|| format!("cannot write to {}", path.display()))?;
        let mut sink = Writer(Patient(file));
        command.one(&url.path, path, |worker, watch| worker.get_into(&url.path, &mut sink, watch));
        command.finish()
    }

    fn tree(self, url: &Url) -> Outcome {
        if self.output.as_deref().is_some_and(output::is_stdout) {
            return Err(Failure::usage("standard output cannot get a directory: name one with -o"));
        }
        let named = self.output.or_else(|| url.file_name().map(PathBuf::from));
        let root = follow(&named.unwrap_or_else(|| PathBuf::from(".")))?;
        // The nearest existing ancestor, in which the directory will be made. The last ancestor of a relative path is
        // the empty path, the working directory.
        let there = root.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
        let mut command = Command::prepare(Way::Get, url, self.options, there)?;
        let mut worker = command.worker();
        let listed = Tree::list(&mut worker, &url.path, |tree| command.counted(tree));
        let (tree, folder) = match listed.and_then(|tree| Ok((tree, Folder::create(&root)?))) {
            Ok(listed) => listed,
            Err(error) => return command.give_up(&worker, &url.path, &root, error),
        };
        command.confine(&root);
        for (path, refused) in folder.make_directories(&tree.directories) {
            command.not_made(&url.path.join(&path), &root.join(&path), refused.into());
        }
        command.left_out(
            tree.skipped.iter().map(|one| format!("{}: {}", one.name, one.reason)),
            tree.skipped_count,
        );
        for one in tree.refused {
            command.not_made(&one.remote, &root.join(&one.path), one.error);
        }
        for item in &tree.clashing {
            let path = root.join(&item.path);
            command.not_made(&item.remote, &path, LocalError::Reserved { path: path.clone() }.into());
        }
        let total = tree.files.iter().try_fold(0_u64, |sum, item| Some(sum.saturating_add(item.size?)));
        command.many(worker, &tree.files, total, |worker, item, watch| {
            let local = root.join(&item.path);
            let got = folder.target(&item.path).map_err(Into::into);
            let got = got.and_then(|target| worker.get(&item.remote, &target, watch));
            (item.remote.clone(), local, got)
        });
        command.finish()
    }
}

/// Writes to a descriptor, and waits for room if it is non-blocking: another process that shares it may have set that mode.
struct Patient(File);

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut room = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
                    poll(&mut room, PollTimeout::NONE)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether `path` is standard output, a pipe, a socket or a device.
fn is_no_file(path: &Path) -> bool {
    let is_special = |metadata: std::fs::Metadata| {
        let kind = metadata.file_type();
        kind.is_char_device() || kind.is_fifo() || kind.is_socket() || kind.is_block_device()
    };
    output::is_stdout(path) || path.metadata().is_ok_and(is_special)
}
