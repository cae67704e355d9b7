//! Users: names, passwords, rights.
//!
//! The file has one user per line, `NAME:HASH:ro` or `NAME:HASH:rw`, where HASH is the output of `bufwise serve
//! --hash-password`: argon2id (RFC 9106) with its parameters and salt. Empty lines and lines that begin with `#` are
//! ignored.
//!
//! Properties kept: a name that does not exist costs as much time as a wrong password; few hashes are
//! computed at once (`passwords.rs`); a file that others can read is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher};

use super::passwords::{Checker, TooManyLogins};

/// Longest name of a user.
const MAX_USER_NAME: usize = 64;
/// Largest file of users; some 10,000 users.
const MAX_USERS_FILE: u64 = 2 << 20;
/// The names of the public login.
const ANONYMOUS: [&str; 2] = ["anonymous", "ftp"];

/// Why users cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("cannot read the users in {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read or change the file.
    #[error("{file} can be read by everyone or written by others (mode {mode:03o}): chmod 600 {file}")]
    Open {
        /// The file.
        file: String,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A line is wrong.
    #[error("{file}, line {line}: {reason}")]
    Line {
        /// The file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// The reason, for people.
        reason: String,
    },
    /// A password cannot be hashed.
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
}

/// Rights of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The user may list and fetch.
    Read,
    /// The user may also store, rename and remove.
    Write,
}

/// A user who has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name; `anonymous` for the public login.
    pub name: String,
    /// The user's rights.
    pub rights: Rights,
}

impl User {
    /// Whether this is the public login, which needs no password. No user of the file has its name ([`check_name`]).
    #[must_use]
    pub fn is_guest(&self) -> bool {
        self.name == ANONYMOUS[0]
    }
}

/// The users who may log in.
pub struct Users {
    named: BTreeMap<String, Entry>,
    anonymous: Option<Rights>,
    /// The hash against which passwords of unknown names are checked.
    decoy: String,
}

#[derive(Clone)]
struct Entry {
    hash: String,
    rights: Rights,
}

impl fmt::Debug for Users {
    /// Shows the users without the hashes of their passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.named.keys().collect();
        f.debug_struct("Users").field("named", &names).field("anonymous", &self.anonymous).finish()
    }
}

impl Users {
    /// Admits the public login alone: `anonymous` or `ftp`, with any password, and these rights.
    #[must_use]
    pub fn anonymous(rights: Rights) -> Self {
        Self { anonymous: Some(rights), ..Self::nobody() }
    }

    /// Admits nobody; users can be added.
    #[must_use]
    pub fn nobody() -> Self {
        Self { named: BTreeMap::new(), anonymous: None, decoy: DECOY.to_owned() }
    }

    /// Reads the users in `file`.
    ///
    /// # Errors
    /// [`UsersError`], also when other users can read or change the file.
    pub fn from_file(file: &Path) -> Result<Self, UsersError> {
        let shown = file.display().to_string();
        let failed = |source| UsersError::Read { file: shown.clone(), source };
        let opened = File::open(file).map_err(failed)?;
        let mode = opened.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o027 != 0 {
            return Err(UsersError::Open { file: shown, mode });
        }
        let mut text = String::new();
        opened.take(MAX_USERS_FILE + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_USERS_FILE {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        Self::parse(&text).map_err(|(line, reason)| UsersError::Line { file: shown, line, reason })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut users = Self::nobody();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason: String| (index + 1, reason);
            let fields: Vec<&str> = line.split(':').collect();
            let [name, hash, rights] = fields[..] else {
                return Err(wrong("write NAME:HASH:ro or NAME:HASH:rw".to_owned()));
            };
            let rights = match rights {
                "ro" => Rights::Read,
                "rw" => Rights::Write,
                _ => return Err(wrong("the last field must be ro or rw".to_owned())),
            };
            users.add(name, hash, rights).map_err(wrong)?;
        }
        Ok(users)
    }

    /// Adds a user with the hash of a password.
    ///
    /// # Errors
    /// The reason, for people: a wrong name or hash, or a name that is there already.
    pub fn add(&mut self, name: &str, hash: &str, rights: Rights) -> Result<(), String> {
        check_name(name)?;
        let parsed = PasswordHash::new(hash).map_err(|_| "the second field is no argon2 hash".to_owned())?;
        if !parsed.algorithm.as_str().starts_with("argon2") {
            return Err("the second field is no argon2 hash".to_owned());
        }
        if self.named.contains_key(name) {
            return Err(format!("{name} is there twice"));
        }
        // The decoy must cost as much time as a real hash.
        if self.named.is_empty() {
            self.decoy = hash.to_owned();
        }
        self.named.insert(name.to_owned(), Entry { hash: hash.to_owned(), rights });
        Ok(())
    }

    /// Adds those users of `others` whose names are new.
    pub fn add_missing(&mut self, others: &Self) {
        for (name, entry) in &others.named {
            self.named.entry(name.clone()).or_insert_with(|| entry.clone());
        }
    }

    /// Whether there is a user of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Keeps only the users for whose names `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.named.retain(|name, _| keep(name));
    }

    /// Lets users write for whose names `may` is true; takes no rights away.
    pub fn let_write(&mut self, may: impl Fn(&str) -> bool) {
        for (name, entry) in &mut self.named {
            if may(name) {
                entry.rights = Rights::Write;
            }
        }
    }

    /// Allows or forbids the public login from now on.
    pub fn set_anonymous(&mut self, rights: Option<Rights>) {
        self.anonymous = rights;
    }

    /// Returns the rights of the public login; `None`: there is none.
    #[must_use]
    pub fn anonymous_rights(&self) -> Option<Rights> {
        self.anonymous
    }

    /// Returns the names and their rights.
    pub fn names(&self) -> impl Iterator<Item = (&str, Rights)> {
        self.named.iter().map(|(name, entry)| (name.as_str(), entry.rights))
    }

    /// Whether this name needs no password.
    #[must_use]
    pub fn is_anonymous(&self, name: &str) -> bool {
        self.anonymous.is_some() && ANONYMOUS.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns the user if the password is right, else `None`. It takes about 0.1 s in either case, and waits for its turn
    /// until `latest`.
    ///
    /// # Errors
    /// [`TooManyLogins`] when too many others wait for their turn.
    pub fn check(&self, name: &str, password: &[u8], latest: Instant) -> Result<Option<User>, TooManyLogins> {
        if let Some(rights) = self.anonymous.filter(|_| self.is_anonymous(name)) {
            return Ok(Some(User { name: ANONYMOUS[0].to_owned(), rights }));
        }
        let entry = self.named.get(name);
        let hash = entry.map_or(&self.decoy, |entry| &entry.hash);
        let right = CHECKER.verify(password, hash, latest)?;
        Ok(entry.filter(|_| right).map(|entry| User { name: name.to_owned(), rights: entry.rights }))
    }
}

/// Hashes a password for the users file: argon2id, 19 MiB, two passes (OWASP's first choice, and the library's default), a
/// random salt. Returns the hash with these parameters, as text.
///
/// # Errors
/// [`UsersError::Hash`]: longer than argon2 takes, or the system gives no random numbers.
pub fn hash_password(password: &[u8]) -> Result<String, UsersError> {
    let hash: PasswordHash =
        Argon2::default().hash_password(password).map_err(|error| UsersError::Hash(error.to_string()))?;
    Ok(hash.to_string())
}

/// Checks the form of a user's name.
///
/// # Errors
/// The reason, for people: the name is empty, too long, has other characters, or is that of the public login.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    if name.is_empty() || name.len() > MAX_USER_NAME || !name.chars().all(fits) {
        Err(format!("a name has 1 to {MAX_USER_NAME} letters, digits, or . _ - @ +"))
    } else if ANONYMOUS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        Err(format!("{name} is the public login, without a password"))
    } else {
        Ok(())
    }
}

/// A hash of the default cost of an unknown password: a salt and a sum of zeros.
const DECOY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// One instance per process, because it bounds the process's memory, even when users are read again.
static CHECKER: Checker = Checker::new();

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn check(users: &Users, name: &str, password: &[u8]) -> Option<User> {
        users.check(name, password, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    fn cheap(password: &[u8]) -> String {
        let params = argon2::Params::new(8, 1, 1, None).unwrap();
        let hash: PasswordHash =
            Argon2::from(params).hash_password_with_salt(password, b"some salt").unwrap();
        hash.to_string()
    }

    #[test]
    fn the_right_password_and_no_other_opens() {
        let text = format!("# who\n\nalice:{}:rw\nbob:{}:ro\n", cheap(b"secret"), cheap(b"other"));
        let users = Users::parse(&text).unwrap();
        let alice = User { name: "alice".to_owned(), rights: Rights::Write };
        assert_eq!(check(&users, "alice", b"secret"), Some(alice));
        assert_eq!(check(&users, "bob", b"other").unwrap().rights, Rights::Read);
        for (name, password) in
            [("alice", "other"), ("bob", "secret"), ("carol", "secret"), ("", ""), ("ftp", "")]
        {
            assert_eq!(check(&users, name, password.as_bytes()), None, "{name}");
        }
        assert!(!format!("{users:?}").contains("argon2"));
    }

    #[test]
    fn anonymous_comes_by_either_name_and_any_password_when_allowed() {
        let mut users = Users::anonymous(Rights::Read);
        for name in ["anonymous", "ftp", "Anonymous"] {
            let guest = check(&users, name, b"me@here").unwrap();
            assert!(guest.name == "anonymous" && guest.is_guest());
        }
        users.set_anonymous(None);
        assert_eq!(check(&users, "anonymous", b"me@here"), None);
    }

    #[test]
    fn what_hash_password_prints_is_what_the_file_takes() {
        let hash = hash_password(b"pass word").unwrap();
        let users = Users::parse(&format!("alice:{hash}:ro")).unwrap();
        assert!(check(&users, "alice", b"pass word").is_some());
        assert!(check(&users, "nobody", b"pass word").is_none());
        assert_eq!(PasswordHash::new(DECOY).unwrap().algorithm.as_str(), "argon2id");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let hash = cheap(b"secret");
        for (text, line, reason) in [
            ("alice".to_owned(), 1, "NAME:HASH"),
            (format!("\nalice:{hash}:w"), 2, "ro or rw"),
            ("alice:secret:ro".to_owned(), 1, "no argon2 hash"),
            (format!("a b:{hash}:ro"), 1, "letters"),
            (format!("FTP:{hash}:ro"), 1, "without a password"),
            (format!("a:{hash}:ro\na:{hash}:rw"), 2, "twice"),
        ] {
            let (at, why) = Users::parse(&text).unwrap_err();
            assert!(at == line && why.contains(reason), "{text}: {at} {why}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("users");
        fs::write(&file, format!("alice:{}:ro\n", cheap(b"secret"))).unwrap();
        for (mode, fine) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false), (0o602, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            match Users::from_file(&file) {
                Ok(users) => assert!(fine && users.contains("alice"), "{mode:o}"),
                Err(error) => assert!(!fine && error.to_string().contains("chmod 600"), "{mode:o} {error}"),
            }
        }
        assert!(Users::from_file(&directory.path().join("none")).is_err());
    }
}
