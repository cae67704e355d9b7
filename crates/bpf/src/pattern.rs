//! Patterns of cgroup paths, in which `*` stands for any characters of a name: services come and go, and some have a
//! number in their name.
//!
//! Paths are as in `/proc/PID/cgroup`, below the root of the hierarchy; the first `/` may be omitted.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Component, Path};
use std::str::FromStr;

use crate::cgroup::CgroupError;
use crate::group::Group;
use crate::watched;

/// Matches any characters, or none.
const ANY: u8 = b'*';
/// Longest name of a directory, in bytes (`NAME_MAX`).
const LONGEST_NAME: usize = 255;
/// Most names in a path: systemd and containers nest some ten deep.
const DEEPEST: usize = 64;

/// A pattern of paths below the root of the hierarchy, as `/system.slice/postgresql*.service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPattern(Vec<String>);

impl FromStr for GroupPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<String> = text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let example = "name one below the root, as system.slice/postgresql.service";
        if names.is_empty() {
            return Err(format!("`{text}` is the root of all cgroups: {example}"));
        }
        let is_none = |name: &String| {
            name == "." || name == ".." || name.len() > LONGEST_NAME || name.contains(char::is_control)
        };
        if names.len() > DEEPEST || names.iter().any(is_none) {
            let text = text.escape_debug();
            return Err(format!("`{text}` is not a path as in /proc/PID/cgroup: {example}"));
        }
        Ok(Self(names))
    }
}

impl fmt::Display for GroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

impl GroupPattern {
    /// Returns whether every cgroup in the other's subtree is certainly in this one's; may miss some cases.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let has = |(own, others): (&String, &String)| {
            own == others || !others.as_bytes().contains(&ANY) && meet(own.as_bytes(), others.as_bytes())
        };
        self.0.len() <= other.0.len() && self.0.iter().zip(&other.0).all(has)
    }

    /// Returns the numbers of the cgroups that match now and of those below them, as sockets report them.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::List`] for lack of descriptors or of memory.
    pub fn numbers(&self) -> Result<HashSet<u64>, CgroupError> {
        let groups = self.groups()?;
        let roots: Vec<_> = groups.iter().map(AsFd::as_fd).collect();
        watched::below(&roots, &[]).map_err(CgroupError::List)
    }

    /// Returns whether the cgroup at `path` (as in `/proc/PID/cgroup`), or one above it, matches.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        self.0.iter().all(|own| names.next().is_some_and(|name| meet(own.as_bytes(), name.as_bytes())))
    }

    /// Returns whether every cgroup that matches is strictly below the one at `path`.
    #[must_use]
    pub fn is_below(&self, path: &Path) -> bool {
        let above: Vec<Component<'_>> =
            path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let is_same = |(part, name): (&Component<'_>, &String)| part.as_os_str() == name.as_str();
        self.0.len() > above.len() && above.iter().zip(&self.0).all(is_same)
    }

    /// Returns the cgroups that match now.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::List`] for lack of descriptors or of memory.
    pub fn groups(&self) -> Result<Vec<Group>, CgroupError> {
        let mut found = vec![Group::root()?];
        for name in &self.0 {
            let fits = |other: &str| meet(name.as_bytes(), other.as_bytes());
            let is_any = name.as_bytes().contains(&ANY);
            let mut below = Vec::new();
            for group in &found {
                if is_any {
                    below.extend(group.children_named(fits).map_err(CgroupError::List)?);
                } else {
                    below.extend(group.child(name).map_err(CgroupError::List)?);
                }
            }
            found = below;
        }
        Ok(found)
    }
}

/// Returns whether some name matches both patterns; compares from the end.
fn meet(a: &[u8], b: &[u8]) -> bool {
    let mut meets = vec![vec![false; b.len() + 1]; a.len() + 1];
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            meets[i][j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                (Some(&ANY), _) if meets[i + 1][j] => true,
                (_, Some(&ANY)) if meets[i][j + 1] => true,
                (Some(&ANY), Some(_)) => meets[i][j + 1],
                (Some(_), Some(&ANY)) => meets[i + 1][j],
                (Some(x), Some(y)) => x == y && meets[i + 1][j + 1],
                (None, Some(_)) | (Some(_), None) => false,
            };
        }
    }
    meets[0][0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> GroupPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_is_below_the_root_and_says_so_itself() {
        assert_eq!(pattern("system.slice/a.service").to_string(), "/system.slice/a.service");
        assert_eq!(pattern("/system.slice//a.service/"), pattern("system.slice/a.service"));
        let (long, deep) = ("a".repeat(256), "a/".repeat(65));
        for text in ["", "/", "//", "a/../b", "./a", "a\nb", &long, &deep] {
            let error = text.parse::<GroupPattern>().unwrap_err();
            assert!(error.contains("system.slice/postgresql.service") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_subtree_has_the_cgroups_that_fit_and_those_below() {
        let has = |path| pattern("a/db*.service").has(path);
        assert!(["/a/db.service", "/a/db@15.service/x/y"].map(has) == [true; 2]);
        assert!(["/", "/a", "/a/x/db.service", "/a/db", "/b/db.service"].map(has) == [false; 5]);
    }

    #[test]
    fn a_subtree_covers_what_is_in_it() {
        for (one, other) in [
            ("a", "a"),
            ("a", "a/b"),
            ("a/postgresql*.service", "a/postgresql@15.service"),
            ("a/*", "a/b/c"),
            ("a/x*", "a/x*"),
        ] {
            assert!(pattern(one).covers(&pattern(other)), "{one} and {other}");
        }
        for (one, other) in
            [("a/b", "a"), ("a/b", "a/c"), ("a/x*", "a/*"), ("a/b*c/d", "a/bd/d"), ("a/b", "a/*")]
        {
            assert!(!pattern(one).covers(&pattern(other)), "{one} and {other}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters_of_one_name() {
        for (pattern, name, fits) in [
            ("postgresql*.service", "postgresql.service", true),
            ("postgresql*.service", "postgresql@15-main.service", true),
            ("postgresql*.service", "postgresql.slice", false),
            ("*", "anything", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab", "abc", false),
        ] {
            assert_eq!(meet(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} and {name}");
        }
    }

    #[test]
    fn below_is_strictly_below() {
        let group = pattern("a/b*/c");
        assert!(group.is_below(Path::new("/")) && group.is_below(Path::new("/a")));
        assert!(!group.is_below(Path::new("/a/b")) && !group.is_below(Path::new("/c")));
        assert!(!pattern("a").is_below(Path::new("/a")), "that one itself");
    }

    #[test]
    fn what_fits_now_is_found() {
        if crate::mount::hierarchy().is_err() {
            return bufwise_trial::skip("no cgroup v2");
        }
        assert!(pattern("bufwise-no-such-group/*").groups().unwrap().is_empty());
        let all = pattern("*").groups().unwrap();
        for group in &all {
            let same = pattern(&group.path().display().to_string()).groups().unwrap();
            // The cgroup may have gone meanwhile.
            if Group::open(group.path()).is_ok() {
                assert_eq!(same.iter().map(Group::path).collect::<Vec<_>>(), [group.path()]);
            }
        }
    }
}
