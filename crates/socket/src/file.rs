//! Tells whether an open file is still the one at its path.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether `file` is still the one at `path`. It is not if it was removed, or another file was put in its place. A symbolic
/// link at the path is another file.
#[must_use]
pub fn is_at(file: &File, path: &Path) -> bool {
    let (there, open) = (fs::symlink_metadata(path), file.metadata());
    there.is_ok_and(|there| open.is_ok_and(|open| (there.dev(), there.ino()) == (open.dev(), open.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_removed_moved_or_replaced_is_no_longer_at_its_path() {
        let name = format!("bufwise-file-{}", std::process::id());
        let [path, moved] = ["here", "moved"].map(|end| std::env::temp_dir().join(format!("{name}-{end}")));
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path) && !is_at(&file, &moved));
        fs::rename(&path, &moved).unwrap();
        assert!(!is_at(&file, &path) && is_at(&file, &moved));
        let other = File::create(&path).unwrap();
        assert!(!is_at(&file, &path) && is_at(&other, &path));
        fs::remove_file(&path).unwrap();
        fs::remove_file(&moved).unwrap();
        assert!(!is_at(&file, &moved) && !is_at(&other, &path));
    }
}
