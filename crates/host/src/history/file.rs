//! The history on disk: a line of JSON for each moment, after a first line that identifies the file.
//!
//! Problem: the history is needed most after the daemon was restarted or the host went down.
//!
//! Properties kept, each a test:
//! - moments are appended; at the start, and when the file holds twice the moments of the ring, it is written anew
//!   beside its place and renamed: it is complete at any time except for its last line, and no longer than
//!   [`MAX_BYTES`] and one moment. While the disk has no room for a second file, it goes on as it is, and none of that room is
//!   taken;
//! - a line that is torn, malformed or longer than any moment's is skipped; the others are read, line by line;
//! - a file that is not ours (by its first line, owner or kind) is neither read nor written;
//! - a file that was removed, moved away or cut is written anew at the next moment; another one in its place stays;
//! - the file's mode is 0600.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bufwise_socket::file::is_at;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;
use thiserror::Error;

use super::{LENGTH, Moment, Ring};

/// Size in bytes from which on the file is written anew.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Longest line that is read, bytes. A moment's is shorter: it has few connections and groups, and a cgroup's path is at most 64
/// names of 255 bytes.
const LONGEST_LINE: u64 = 8 << 20;
/// First line of the file.
const HEADER: &str = "{\"bufwise_history\":1}";
/// Suffix of the path at which the file is written anew.
const NEW: &str = ".new";

/// Why the history is not on disk; one line.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// Another file has that name.
    #[error("{} is no history of this bufwise and is left as it is: remove it, or name another file", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system's refusal.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// `read` or `write`.
        operation: &'static str,
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The file to which moments are written.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    /// `None` at first, and where it could not be written anew: the next call tries that again.
    file: Option<File>,
    /// The file at the path was read or written here; another one that appears there is not replaced.
    is_known: bool,
    lines: usize,
    bytes: u64,
    /// The file lacks moments for which the disk had no room.
    has_gap: bool,
}

impl Disk {
    /// Reads the file into the ring; also returns the number of malformed lines. The first [`Disk::add`] writes the file
    /// anew.
    ///
    /// # Errors
    /// [`FileError`]; a file that is not ours stays as it is.
    pub(crate) fn open(path: &Path, ring: &mut Ring) -> Result<(Self, usize), FileError> {
        let failed = |source| FileError::Io { operation: "read", path: path.into(), source };
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let (is_known, wrong) = match File::options().read(true).custom_flags(flags).open(path) {
            Ok(file) => {
                let metadata = file.metadata().map_err(failed)?;
                let is_ours = metadata.is_file() && metadata.uid() == geteuid().as_raw();
                let read = if is_ours { read(file, ring).map_err(failed)? } else { None };
                (true, read.ok_or_else(|| FileError::Foreign { path: path.into() })?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (false, 0),
            Err(error) => return Err(failed(error)),
        };
        let disk = Self { path: path.into(), file: None, is_known, lines: 0, bytes: 0, has_gap: false };
        Ok((disk, wrong))
    }

    /// Writes the ring's last moment; at first, or if the file is full, has a gap, was changed or is no longer at its place,
    /// the whole ring.
    ///
    /// # Errors
    /// [`FileError::Io`]; the next call tries again.
    pub(crate) fn add(&mut self, ring: &Ring) -> Result<(), FileError> {
        let file = self.file.take();
        self.is_known &= file.as_ref().is_none_or(|file| is_at(file, &self.path));
        // A file that somebody has cut, as `truncate` and logrotate's `copytruncate` do, lacks its first line.
        let is_whole = |file: &File| file.metadata().is_ok_and(|metadata| metadata.len() == self.bytes);
        let file = file.filter(|file| self.is_known && is_whole(file));
        let (Some(file), Some(last)) = (file, ring.texts().next_back()) else {
            return self.rewrite(ring);
        };
        if self.lines >= 2 * LENGTH || self.bytes >= MAX_BYTES {
            match self.rewrite(ring) {
                // An attempt each time would take what is left of the disk from others. The next one comes in an hour.
                Err(_) if self.bytes < MAX_BYTES => self.lines = LENGTH,
                done => return done,
            }
        }
        self.append(file, &line(last))
    }

    fn append(&mut self, mut file: File, line: &[u8]) -> Result<(), FileError> {
        if let Err(source) = file.write_all(line) {
            // The beginning of the line is taken back. If that fails, the next call writes the file anew.
            self.has_gap = file.set_len(self.bytes).is_ok();
            self.file = Some(file).filter(|_| self.has_gap);
            return Err(self.not_written(source));
        }
        self.bytes += line.len() as u64;
        // Written anew by the next call, the file has no gap.
        self.lines = if std::mem::take(&mut self.has_gap) { 2 * LENGTH } else { self.lines + 1 };
        self.file = Some(file);
        Ok(())
    }

    fn rewrite(&mut self, ring: &Ring) -> Result<(), FileError> {
        let mut new = self.path.clone().into_os_string();
        new.push(NEW);
        let (file, lines) = self.write_new(Path::new(&new), ring).map_err(|source| {
            // Half a file is useless, and may take the space that the disk lacks.
            let _never_made = fs::remove_file(&new);
            self.not_written(source)
        })?;
        self.bytes = file.metadata().map_or(0, |metadata| metadata.len());
        (self.lines, self.file, self.is_known, self.has_gap) = (lines, Some(file), true, false);
        Ok(())
    }

    fn write_new(&self, new: &Path, ring: &Ring) -> io::Result<(File, usize)> {
        if !self.is_known && fs::symlink_metadata(&self.path).is_ok() {
            return Err(Errno::EEXIST.into());
        }
        match fs::remove_file(new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().append(true).create_new(true).mode(0o600).open(new)?;
        // Half a file would take, for a moment, what is left of the disk from others.
        if free(&file).is_some_and(|free| free < ring.text as u64) {
            return Err(Errno::ENOSPC.into());
        }
        let mut writer = BufWriter::new(&file);
        let lines = write(&mut writer, ring)?;
        writer.flush()?;
        drop(writer);
        // Synchronised before it replaces the old file.
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        Ok((file, lines))
    }

    fn not_written(&self, source: io::Error) -> FileError {
        FileError::Io { operation: "write", path: self.path.clone(), source }
    }
}

/// Returns the bytes that may still be written to the file's file system; `None` where that does not say.
fn free(file: &File) -> Option<u64> {
    let system = fstatvfs(file).ok()?;
    // File systems without a bound, and those that do not answer, have no blocks at all.
    if system.blocks() == 0 { None } else { system.blocks_free().checked_mul(system.fragment_size()) }
}

fn line(mut text: Vec<u8>) -> Vec<u8> {
    text.push(b'\n');
    text
}

/// Writes a whole file; returns the number of moments.
fn write(file: &mut impl Write, ring: &Ring) -> io::Result<usize> {
    writeln!(file, "{HEADER}")?;
    let mut lines = 0;
    for text in ring.texts() {
        file.write_all(&line(text))?;
        lines += 1;
    }
    Ok(lines)
}

/// Returns a file as a start writes it anew after it has read `content`, and the number of malformed lines in that; `None` if it
/// is not ours.
pub(super) fn rewritten(content: &[u8]) -> io::Result<Option<(Vec<u8>, usize)>> {
    let (mut ring, mut file) = (Ring::default(), Vec::new());
    let Some(wrong) = read(content, &mut ring)? else { return Ok(None) };
    write(&mut file, &ring)?;
    Ok(Some((file, wrong)))
}

/// Reads the moments; returns the number of malformed lines, or `None` if the file is not ours. An empty file counts
/// as ours.
fn read(file: impl Read, ring: &mut Ring) -> io::Result<Option<usize>> {
    let mut lines = BufReader::new(file.take(2 * MAX_BYTES));
    let mut line = Vec::new();
    // A file that is not ours may have no lines, and any length.
    if lines.by_ref().take(2 * HEADER.len() as u64).read_until(b'\n', &mut line)? == 0 {
        return Ok(Some(0));
    }
    if line.trim_ascii_end() != HEADER.as_bytes() {
        return Ok(None);
    }
    let mut wrong = 0;
    while next_line(&mut lines, &mut line)? {
        match serde_json::from_slice::<Moment>(&line) {
            Ok(moment) => ring.push(&moment),
            Err(_) => wrong += 1,
        }
    }
    Ok(Some(wrong))
}

/// Reads the next line, or the beginning of one that is longer than [`LONGEST_LINE`]; returns whether there is one.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let length = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', line)?;
    if length as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
        lines.skip_until(b'\n')?;
    }
    Ok(length > 0)
}

#[cfg(test)]
mod tests {
    use super::super::Query;
    use super::super::tests::{asked, moment};
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn times(ring: &Ring) -> Vec<u64> {
        asked(ring, Query::default()).moments.iter().map(|moment| moment.time_s).collect()
    }

    /// Reads the file and writes it anew, as the daemon does at its start.
    fn begun(path: &Path, ring: &mut Ring) -> (Disk, usize) {
        let (mut disk, wrong) = Disk::open(path, ring).unwrap();
        disk.add(ring).unwrap();
        (disk, wrong)
    }

    /// Returns the times of the moments in the file, and the number of malformed lines.
    fn opened(path: &Path) -> (Vec<u64>, usize) {
        let mut ring = Ring::default();
        let (_disk, wrong) = begun(path, &mut ring);
        (times(&ring), wrong)
    }

    /// Makes a file with three moments.
    fn written(path: &Path) {
        let mut ring = Ring::default();
        let (mut disk, wrong) = begun(path, &mut ring);
        assert_eq!(wrong, 0);
        for time in 1..=3 {
            ring.push(&moment(time, 2, 9));
            disk.add(&ring).unwrap();
        }
    }

    #[test]
    fn what_was_written_is_read_again_and_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        written(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut ring = Ring::default();
        let (mut disk, wrong) = begun(&path, &mut ring);
        assert_eq!((times(&ring), wrong), (vec![1, 2, 3], 0));
        assert_eq!(asked(&ring, Query::default()).moments.first(), Some(&moment(1, 2, 9)), "nothing is lost");
        ring.push(&moment(4, 0, 0));
        disk.add(&ring).unwrap();
        assert_eq!(opened(&path), (vec![1, 2, 3, 4], 0));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_torn_line_costs_itself_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        written(&path);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 20]).unwrap();
        assert_eq!(opened(&path), (vec![1, 2], 1));
        assert_eq!(opened(&path), (vec![1, 2], 0), "the file was healed");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("\"time_s\":1,", "\"time_s\":,", 1)).unwrap();
        assert_eq!(opened(&path), (vec![2], 1));
    }

    #[test]
    fn a_line_longer_than_any_moments_is_skipped_in_bounded_memory() {
        // As a file that a power failure has left full of zeros.
        let zeros = vec![0_u8; 3 * LONGEST_LINE as usize];
        let file = [&zeros[..], b"\nnext\n"].concat();
        let (mut lines, mut line) = (BufReader::new(&file[..]), Vec::new());
        assert!(next_line(&mut lines, &mut line).unwrap());
        assert!(line.capacity() as u64 <= 2 * LONGEST_LINE, "{}", line.capacity());
        assert!(next_line(&mut lines, &mut line).unwrap());
        assert_eq!(line, b"next\n");
        assert!(!next_line(&mut lines, &mut line).unwrap());
    }

    #[test]
    fn what_is_not_ours_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let refused = |path: &Path| Disk::open(path, &mut Ring::default()).unwrap_err().to_string();
        fs::write(&path, "precious\n").unwrap();
        assert!(refused(&path).contains("is no history of this bufwise"), "{}", refused(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious\n");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refused(&link).starts_with("cannot read "), "{}", refused(&link));
        assert!(refused(directory.path()).contains("is no history"), "{}", refused(directory.path()));
    }

    #[test]
    fn a_file_that_appears_after_the_start_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = Disk::open(&path, &mut ring).unwrap();
        fs::write(&path, "precious\n").unwrap();
        let error = disk.add(&ring).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("File exists"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious\n");
        fs::remove_file(&path).unwrap();
        disk.add(&ring).unwrap();
        assert_eq!(opened(&path), (vec![], 0));
    }

    #[test]
    fn a_file_that_is_removed_or_moved_is_written_anew_and_one_in_its_place_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("history"), directory.path().join("history.1"));
        let mut ring = Ring::default();
        let (mut disk, _) = begun(&path, &mut ring);
        let mut add = |time| {
            ring.push(&moment(time, 1, 1));
            disk.add(&ring)
        };
        add(1).unwrap();
        fs::remove_file(&path).unwrap();
        add(2).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "precious\n").unwrap();
        for time in [3, 4] {
            assert!(add(time).unwrap_err().to_string().contains("File exists"));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious\n");
        fs::remove_file(&path).unwrap();
        add(5).unwrap();
        assert_eq!(opened(&path), (vec![1, 2, 3, 4, 5], 0));
        assert_eq!(opened(&moved), (vec![1, 2], 0));
    }

    #[test]
    fn a_file_that_is_cut_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = begun(&path, &mut ring);
        for time in 1..=3 {
            File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            ring.push(&moment(time, 1, 1));
            disk.add(&ring).unwrap();
        }
        assert_eq!(opened(&path), (vec![1, 2, 3], 0));
    }

    #[test]
    fn a_file_that_cannot_be_written_anew_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = begun(&path, &mut ring);
        let in_the_way = directory.path().join("history.new");
        fs::create_dir(&in_the_way).unwrap();
        disk.lines = 2 * LENGTH;
        ring.push(&moment(1, 1, 1));
        disk.add(&ring).unwrap();
        assert_eq!(disk.lines, LENGTH + 1, "the next attempt is an hour away");
        fs::remove_dir(&in_the_way).unwrap();
        assert_eq!(opened(&path), (vec![1], 0));
    }

    #[test]
    fn a_disk_that_has_no_room_for_the_file_is_not_filled() {
        let directory = tempfile::tempdir().unwrap();
        if free(&File::open(directory.path()).unwrap()).is_none() {
            return bufwise_trial::skip("the file system has no bound");
        }
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = Disk::open(&path, &mut ring).unwrap();
        ring.text = usize::MAX;
        let error = disk.add(&ring).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        ring.text = 0;
        disk.add(&ring).unwrap();
        assert_eq!(opened(&path), (vec![], 0));
    }

    #[test]
    fn the_file_is_written_anew_before_it_is_twice_the_ring() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = begun(&path, &mut ring);
        let small = Moment { prefixes: Vec::new(), cgroups: Vec::new(), ..moment(0, 0, 0) };
        let mut most = 0;
        for time in 0..3 * LENGTH as u64 {
            ring.push(&Moment { time_s: time, ..small.clone() });
            disk.add(&ring).unwrap();
            most = most.max(disk.lines);
        }
        assert_eq!(most, 2 * LENGTH);
        let (times, wrong) = opened(&path);
        assert_eq!((times.len(), times.last(), wrong), (LENGTH, Some(&(3 * LENGTH as u64 - 1)), 0));
    }

    #[test]
    fn after_a_failure_the_next_moment_brings_the_file_back() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let path = inside.join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = begun(&path, &mut ring);
        ring.push(&moment(1, 1, 1));
        disk.file = None;
        fs::remove_dir_all(&inside).unwrap();
        assert!(disk.add(&ring).unwrap_err().to_string().starts_with("cannot write "));
        fs::create_dir(&inside).unwrap();
        ring.push(&moment(2, 1, 1));
        disk.add(&ring).unwrap();
        assert_eq!(opened(&path), (vec![1, 2], 0));
    }
}
