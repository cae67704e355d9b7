//! The file that the demo moves: made on the spot, of bytes that do not compress.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A file without a name: it is gone with this value, or with the process.
#[derive(Debug)]
pub struct DemoFile {
    file: File,
}

impl DemoFile {
    /// Makes a file of `bytes` bytes.
    ///
    /// # Errors
    /// The file system's answer, such as a full disk.
    pub fn make(bytes: u64) -> io::Result<Self> {
        let mut writer = BufWriter::with_capacity(1 << 20, tempfile::tempfile()?);
        // xorshift64 (Marsaglia 2003): the bytes only have to differ from one another.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut left = bytes;
        while left > 0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = state.to_ne_bytes();
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(word.len());
            writer.write_all(&word[..length])?;
            left -= length as u64;
        }
        Ok(Self { file: writer.into_inner().map_err(io::IntoInnerError::into_error)? })
    }

    /// Reads the first `bytes` bytes, or as many as are asked for within `time` of the first read; several
    /// readers do not disturb each other.
    #[must_use]
    pub fn read(&self, bytes: u64, time: Duration) -> impl Read + '_ {
        FileReader { file: &self.file, at: 0, end: bytes, time, began: None }
    }
}

struct FileReader<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    time: Duration,
    began: Option<Instant>,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.began.get_or_insert_with(Instant::now).elapsed() >= self.time {
            return Ok(0);
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let length = self.file.read_at(&mut buffer[..room], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_same_bytes_and_no_more_than_asked() {
        let file = DemoFile::make(10_001).unwrap();
        let read = |bytes| {
            let mut all = Vec::new();
            file.read(bytes, Duration::MAX).read_to_end(&mut all).unwrap();
            all
        };
        assert_eq!(read(20_000).len(), 10_001);
        assert_eq!(read(5_000), read(10_001)[..5_000]);
        assert_eq!(file.read(64, Duration::ZERO).read(&mut [0; 64]).unwrap(), 0);
        assert!(read(64).iter().any(|byte| *byte != read(64)[0]));
    }
}
