//! Writes results: text on standard output, JSON into a file.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bufwise_ftp::client::follow;
use bufwise_ftp::wire::terminal::escape_for_terminal;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::exit::Failure;

/// Usual mount point of cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Whether `path` names standard output. Opened by its name, a file to which it is redirected would be written from its beginning,
/// over what the program prints.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-" || path == Path::new("/dev/stdout")
}

/// Fails if the file for `--json` is a cgroup's path or another word by which a list is filtered (`is_filter`), as in `--json
/// send-buffer`: the flag takes the word behind it. To be called where the list has no filter. `--json=WORD` names a file.
pub(crate) fn check_no_filter(path: &Path, is_filter: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let Some(word) = path.to_str().filter(|word| is_filter(word) || is_cgroup(word)) else { return Ok(()) };
    let file = format!("--json={word}");
    if std::env::args_os().any(|argument| argument == *file) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--json would write a file named {word}: write the filter before --json, or {file} for the file"
    )))
}

/// Fails if the file for `--json` is `other`, a file that the same call reads or writes: the report would replace it. Devices and
/// pipes are never refused.
pub(crate) fn check_apart(json: &Path, other: &Path) -> Result<(), Failure> {
    let keeps_nothing = is_stdout(json) || fs::metadata(json).is_ok_and(|found| !found.is_file());
    if keeps_nothing || place(json).is_none_or(|json| place(other) != Some(json)) {
        return Ok(());
    }
    Err(Failure::usage(format!("--json would replace {}: name another file", other.display())))
}

/// Returns the path of a file, or of one that would be made, without links; `None` if it has no directory.
fn place(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok().or_else(|| {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        Some(fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
    })
}

/// Whether a word is the path of a cgroup, as in `/proc/PID/cgroup`.
fn is_cgroup(word: &str) -> bool {
    word.strip_prefix('/').is_some_and(|path| Path::new(CGROUPS).join(path).is_dir())
}

/// Fails early when the file for `--json` cannot be written, before minutes are spent on its content.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    // Opening a FIFO waits for its reader, which would take the end of this check for the end of the content.
    if is_stdout(path) || fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Ok(());
    }
    // A symbolic link stays, even if its target does not exist.
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    // An interrupted run must leave no empty file.
    opened
        .and_then(|_| if is_new { fs::remove_file(path) } else { Ok(()) })
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes `value` as JSON into the file, or to standard output for `-`. A new file that does not take all of it, as on a full disk, is
/// removed.
pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value).context("cannot turn the report into JSON")?;
    text.push('\n');
    if is_stdout(path) {
        return line(&text);
    }
    let new_file = NewFile::at(path);
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    new_file.keep();
    Ok(())
}

/// A file that this process is about to make. Dropping this removes it again; [`NewFile::keep`] keeps it. A file that was there
/// before is never removed.
#[derive(Default)]
pub(crate) struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Call this before the file is made.
    pub(crate) fn at(path: &Path) -> Self {
        // A symbolic link stays, even if its target does not exist.
        Self(fs::symlink_metadata(path).is_err().then(|| path.to_owned()))
    }

    /// Keeps the file.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _gone = fs::remove_file(path);
        }
    }
}

/// Writes a report: as JSON into the file for `--json`, if there is one, and as text, unless standard output gets the JSON. A file that
/// cannot be written does not hide the text.
pub(crate) fn both(
    file: Option<&Path>,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<()> {
    let written = file.map_or(Ok(()), |file| json(file, report));
    if !file.is_some_and(is_stdout) {
        line(&text())?;
    }
    written
}

/// Writes a file atomically: under a temporary name, then renamed. A device or a pipe is written directly. Fails if the path is
/// another user's symbolic link.
pub(crate) fn whole(path: &Path, text: &str) -> Result<()> {
    // Renaming would replace a symbolic link by a file.
    let place = follow(path).with_context(|| format!("cannot write {}", path.display()))?;
    let written = if fs::metadata(&place).is_ok_and(|kind| !kind.is_file()) {
        fs::write(&place, text)
    } else {
        let mut unfinished = place.clone().into_os_string();
        unfinished.push(format!(".{}.unfinished", std::process::id()));
        let opened = fs::OpenOptions::new().write(true).create_new(true).open(&unfinished);
        opened.and_then(|mut file| {
            let renamed = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&unfinished, &place));
            if renamed.is_err() {
                let _gone = fs::remove_file(&unfinished);
            }
            renamed
        })
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes text to standard error, with line feeds as its only control characters. A failure (for example a full disk) is
/// ignored: there is no place left to report it to.
pub(crate) fn note(text: &str) {
    let _unread = write_all(&mut io::stderr(), harmless(text).as_bytes());
}

/// Escapes what would control the terminal, except line feeds: texts contain names that anybody may have chosen.
fn harmless(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| escape_for_terminal(line.as_bytes())).collect();
    lines.join("\n")
}

/// Writes text to standard output; a closed reader (`| head`) is no error.
pub(crate) fn line(text: &str) -> Result<()> {
    match write_all(&mut io::stdout(), text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes all of it, also to a stream that another program has left non-blocking: `O_NONBLOCK` belongs to the open file, which
/// the command of `run` shares (fcntl(2)).
fn write_all(stream: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) => try_again(stream.as_fd(), error)?,
        }
    }
    while let Err(error) = stream.flush() {
        try_again(stream.as_fd(), error)?;
    }
    Ok(())
}

/// Returns when a stream may take more bytes, or returns the error if another attempt is of no use.
fn try_again(stream: BorrowedFd<'_>, error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            let mut ready = [PollFd::new(stream, PollFlags::POLLOUT)];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_stream_that_a_program_has_left_non_blocking_gets_the_whole_text() {
        let (mut stream, mut other) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let reader = std::thread::spawn(move || other.read_to_end(&mut Vec::new()));
        write_all(&mut stream, &vec![b'x'; 4 << 20]).unwrap();
        drop(stream);
        assert_eq!(reader.join().unwrap().unwrap(), 4 << 20);
    }

    #[test]
    fn the_path_of_a_cgroup_is_told_from_that_of_a_file() {
        if !Path::new(CGROUPS).is_dir() {
            return bufwise_trial::skip("no cgroups are mounted");
        }
        assert!(is_cgroup("/"));
        assert!(!is_cgroup("/no-such-cgroup/list.json") && !is_cgroup("./list.json") && !is_cgroup(""));
    }

    #[test]
    fn a_report_does_not_replace_another_file_of_the_call_by_whatever_name() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, new] = ["file", "link", "new"].map(|name| directory.path().join(name));
        fs::write(&file, "bytes").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let around = directory.path().join(".").join("new");
        for (json, other) in [(&file, &file), (&link, &file), (&file, &link), (&new, &new), (&around, &new)] {
            let refused = check_apart(json, other).unwrap_err().to_string();
            assert!(refused.contains(&other.display().to_string()), "{refused}");
        }
        let apart = |json: &Path, other: &Path| check_apart(json, other).is_ok();
        assert!(apart(&new, &file) && apart(Path::new("-"), Path::new("-")) && apart(Path::new(""), &file));
        for same in ["/dev/null", "/no/such/directory/a"].map(Path::new) {
            assert!(apart(same, same));
        }
    }

    #[test]
    fn root_a_file_is_not_written_through_a_link_that_another_user_has_planted() {
        if !bufwise_trial::root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [victim, link] = ["victim", "link"].map(|name| directory.path().join(name));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink("victim", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).unwrap();
        let error = format!("{:#}", whole(&link, "new").unwrap_err());
        assert!(error.contains("link of another user"), "{error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
        whole(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "new");
        assert!(link.is_symlink());
    }

    #[test]
    fn notes_have_lines_and_do_nothing_else_to_a_terminal() {
        assert_eq!(harmless("one\n caf\u{e9}\n"), "one\n caf\u{e9}\n");
        assert_eq!(harmless("a\u{1b}[2J\r\nb\u{202e}c"), "a\\u{1b}[2J\\r\nb\\u{202e}c");
    }
}
