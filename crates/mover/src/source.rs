//! Sources of the bytes to send.

use std::fs::File;
use std::io::Read;

/// A source of bytes to send.
pub enum Source<'a> {
    /// A part of a file: other parts may be read at the same time.
    File {
        /// The file.
        file: &'a File,
        /// Offset of the first byte to send.
        offset: u64,
        /// Number of bytes to send; `None`: up to the file's end at that time.
        length: Option<u64>,
    },
    /// Anything that can be read: a pipe, a listing. It should not block for long.
    Reader(&'a mut (dyn Read + Send)),
}

impl<'a> Source<'a> {
    /// Makes a source of all of `file`.
    #[must_use]
    pub fn whole(file: &'a File) -> Self {
        Self::File { file, offset: 0, length: None }
    }

    /// Makes a source of `file` from the byte at `offset` on.
    #[must_use]
    pub fn from(file: &'a File, offset: u64) -> Self {
        Self::File { file, offset, length: None }
    }
}
