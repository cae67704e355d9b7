//! Paths as a session sees them: below the served directory, which is `/`.
//!
//! Properties kept: a path never has a `.` or `..` component, so its text alone keeps it below the top
//! ([`super::store`] handles links: it resolves every path below a directory descriptor); clients cannot name the files
//! of unfinished uploads.
//!
//! Choice: `..` removes a component of the path's text, even after a link to a directory, as in shells.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::error::StoreError;

/// Longest path in bytes: `PATH_MAX`.
const PATH_MAX: usize = 4_096;
/// Longest name in bytes that Linux's file systems take: `NAME_MAX`.
const NAME_MAX: usize = 255;
/// Suffix of an unfinished upload's name, which begins with a dot.
const PARTIAL_SUFFIX: &str = ".bufwise-upload";
/// The only character beyond ASCII that Unicode's case folding turns into a letter of that suffix.
const LONG_S: char = '\u{17f}';

/// An absolute path below the served directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VirtualPath(Vec<OsString>);

impl VirtualPath {
    /// Returns the served directory itself.
    #[must_use]
    pub(super) fn top() -> Self {
        Self::default()
    }

    /// Resolves `path` from here. An absolute path begins at the top, and `..` does not go above it.
    ///
    /// # Errors
    /// [`StoreError::Name`] for a path that is too long, [`StoreError::Reserved`] for the name of an
    /// unfinished upload.
    pub(super) fn join(&self, path: &Path) -> Result<Self, StoreError> {
        let mut components = self.0.clone();
        for component in path.components() {
            match component {
                Component::RootDir => components.clear(),
                Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => {
                    components.pop();
                }
                Component::Normal(name) if is_partial(name) => return Err(StoreError::Reserved),
                Component::Normal(name) => components.push(name.to_owned()),
            }
        }
        let length: usize = components.iter().map(|name| name.len() + 1).sum();
        if length >= PATH_MAX || components.iter().any(|name| name.len() > NAME_MAX) {
            return Err(StoreError::Name);
        }
        Ok(Self(components))
    }

    /// Returns the parent directory; the top is its own parent.
    #[must_use]
    pub(super) fn parent(&self) -> Self {
        Self(self.0.split_last().map(|(_, above)| above.to_vec()).unwrap_or_default())
    }

    /// Returns the last component; `None` at the top.
    #[must_use]
    pub(super) fn name(&self) -> Option<&OsStr> {
        self.0.last().map(OsString::as_os_str)
    }

    /// Returns the path relative to the served directory: never empty, never absolute.
    #[must_use]
    pub(super) fn relative(&self) -> PathBuf {
        if self.0.is_empty() { PathBuf::from(".") } else { self.0.iter().collect() }
    }

    /// Returns the path as bytes, with `/` in front: for replies and, escaped, for the log.
    #[must_use]
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return b"/".to_vec();
        }
        self.0.iter().flat_map(|name| [b"/", name.as_bytes()].concat()).collect()
    }
}

impl fmt::Display for VirtualPath {
    /// Escapes control characters and bytes that are not UTF-8.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::wire::terminal::escape_for_terminal(&self.to_bytes()))
    }
}

/// Returns the name of an unfinished upload of `name`, in the same directory.
pub(super) fn partial_name(name: &OsStr) -> OsString {
    let room = NAME_MAX - PARTIAL_SUFFIX.len() - 1;
    let mut partial = b".".to_vec();
    if name.len() <= room {
        partial.extend_from_slice(name.as_bytes());
    } else {
        // Two long names must not share one partial file.
        let sum = format!("{:032x}", twox_hash::XxHash3_128::oneshot(name.as_bytes()));
        partial.extend_from_slice(&name.as_bytes()[..room - sum.len()]);
        partial.extend_from_slice(sum.as_bytes());
    }
    partial.extend_from_slice(PARTIAL_SUFFIX.as_bytes());
    OsString::from_vec(partial)
}

/// Whether this is the name of an unfinished upload, also where the file system ignores case, dots at the end (vfat) or
/// invisible characters (ext4 and f2fs with casefold, which also take the long s for an s).
pub(super) fn is_partial(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let seen = name.chars().filter(|c| !is_ignorable(*c));
    let name: String = seen.map(|c| if c == LONG_S { 's' } else { c }).collect();
    let name = name.trim_end_matches('.').as_bytes();
    let suffix = &name[name.len().saturating_sub(PARTIAL_SUFFIX.len())..];
    name.starts_with(b".") && suffix.eq_ignore_ascii_case(PARTIAL_SUFFIX.as_bytes())
}

/// Whether Linux ignores this character in names with casefold: Unicode's `Default_Ignorable_Code_Point`.
const fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(from: &str, path: &str) -> String {
        VirtualPath::top().join(Path::new(from)).unwrap().join(Path::new(path)).unwrap().to_string()
    }

    #[test]
    fn paths_stay_below_the_top() {
        for (from, path, there) in [
            ("/", "a", "/a"),
            ("/a/b", "../c", "/a/c"),
            ("/a/b", "/c", "/c"),
            ("/a", "../../../../etc/passwd", "/etc/passwd"),
            ("/", "..", "/"),
            ("/a", "./b//c/.", "/a/b/c"),
            ("/a", "", "/a"),
        ] {
            assert_eq!(joined(from, path), there, "{from} + {path}");
        }
        assert_eq!(VirtualPath::top().relative(), Path::new("."));
        assert_eq!(VirtualPath::top().parent(), VirtualPath::top());
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let name = "n".repeat(256);
        assert!(matches!(VirtualPath::top().join(Path::new(&name)), Err(StoreError::Name)));
        let deep = "d/".repeat(2_100);
        assert!(matches!(VirtualPath::top().join(Path::new(&deep)), Err(StoreError::Name)));
    }

    #[test]
    fn the_names_of_unfinished_uploads_cannot_be_named() {
        for name in ["x", &"n".repeat(255), &"n".repeat(240), &"n".repeat(239)] {
            let partial = partial_name(OsStr::new(name));
            assert!(partial.len() <= NAME_MAX && is_partial(&partial), "{name}");
            assert!(matches!(VirtualPath::top().join(Path::new(&partial)), Err(StoreError::Reserved)));
        }
        for (name, free) in [
            (".x.BUFWISE-UPLOAD", false),
            (".X.Bufwise-Upload", false),
            (".x.bufwise-upload..", false),
            (".x.bufwi\u{17f}e-upload", false),
            (".x.buf\u{ad}wise-upload\u{200d}", false),
            ("\u{feff}.x.bufwise-upload", false),
            (".\u{e4}.bufwise-upload", false),
            ("\u{e4}.bufwise-upload", true),
            ("x.bufwise-upload", true),
            (".x.bufwise-uploads", true),
            (".bufwise", true),
            ("...", true),
        ] {
            assert_eq!(VirtualPath::top().join(Path::new(name)).is_ok(), free, "{name}");
        }
        let (one, other) = ("n".repeat(254) + "1", "n".repeat(254) + "2");
        assert_ne!(partial_name(OsStr::new(&one)), partial_name(OsStr::new(&other)));
    }

    proptest! {
        #[test]
        fn no_component_leads_up(from in "[a./]{0,40}", path in "[a./]{0,40}") {
            let start = VirtualPath::top().join(Path::new(&from)).unwrap();
            let there = start.join(Path::new(&path)).unwrap();
            let only_names = there.relative().components().all(|component| {
                matches!(component, Component::Normal(_) | Component::CurDir)
            });
            prop_assert!(only_names, "{there}");
        }
    }
}
