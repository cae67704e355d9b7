//! Destinations of received bytes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// A destination of received bytes.
pub trait Sink {
    /// Takes the next bytes, all of them.
    ///
    /// # Errors
    /// The system's error, such as a full disk.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns the file and the offset of the next byte, if the sink is a file: the kernel can then write it directly.
    fn place(&self) -> Option<(&File, u64)> {
        None
    }

    /// Notes that the kernel has written `len` bytes at [`Sink::place`].
    fn advance(&mut self, len: usize) {
        let _ = len;
    }
}

/// A part of a file, from an offset on: other parts may be written at the same time.
#[derive(Debug)]
pub struct FilePart<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> FilePart<'a> {
    /// Makes a sink of the part of `file` that begins at `offset`, in bytes.
    #[must_use]
    pub fn new(file: &'a File, offset: u64) -> Self {
        Self { file, at: offset }
    }
}

impl Sink for FilePart<'_> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.advance(bytes.len());
        Ok(())
    }

    fn place(&self) -> Option<(&File, u64)> {
        Some((self.file, self.at))
    }

    fn advance(&mut self, len: usize) {
        self.at += len as u64;
    }
}

/// Anything that can be written to, one piece after the other: a pipe, a buffer.
#[derive(Debug)]
pub struct Writer<W>(pub W);

impl<W: Write> Sink for Writer<W> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}
