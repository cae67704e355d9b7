//! Keeps two calls from writing the same files.

use std::fs::{self, File, TryLockError};
use std::io;
use std::thread;
use std::time::Duration;

use super::{Kept, KeptError};

/// Attempts at the lock, and the time between two of them: a child of the last holder has its files, and so the lock, until it executes
/// its own program.
const ATTEMPTS: usize = 50;
const AGAIN: Duration = Duration::from_millis(10);

impl Kept {
    /// Locks the directory until the returned file is dropped, so that no other call writes the same files meanwhile. Parts of an
    /// experiment have files of their own, and share the lock. `None`: the file system has no such locks.
    ///
    /// # Errors
    /// [`KeptError`] when another call has it, or the directory cannot be made.
    pub(in super::super) fn lock(&self, is_part: bool) -> Result<Option<File>, KeptError> {
        let failed = |source| KeptError { operation: "use", path: self.directory.clone(), source };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let directory = File::open(&self.directory).map_err(failed)?;
        for _ in 0..ATTEMPTS {
            let locked = if is_part { directory.try_lock_shared() } else { directory.try_lock() };
            match locked {
                Ok(()) => return Ok(Some(directory)),
                Err(TryLockError::WouldBlock) => thread::sleep(AGAIN),
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
        let other = "another `lab run` of this experiment writes there now";
        Err(failed(io::Error::new(io::ErrorKind::WouldBlock, other)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::shard::tests::experiment;
    use super::*;

    #[test]
    fn only_parts_write_into_one_directory_at_once() {
        let out = tempfile::tempdir().unwrap();
        let kept = Kept::in_directory(out.path(), &experiment(), false);
        let whole = kept.lock(false).unwrap();
        assert!(whole.is_some(), "the file system has locks");
        let error = kept.lock(true).unwrap_err().to_string();
        assert!(error.starts_with("cannot use ") && error.contains("another `lab run`"), "{error}");
        drop(whole);
        let parts = [kept.lock(true).unwrap(), kept.lock(true).unwrap()];
        assert!(kept.lock(false).is_err());
        drop(parts);
        assert!(kept.lock(false).is_ok());
    }
}
