//! `~/.netrc`: logins by machine.
//!
//! Source: netrc(5) and ftp(1). White space separates words; `machine NAME` or `default` begins an entry;
//! `login`, `password` and `account` take a word; `macdef NAME` runs to an empty line.
//! Choices: a word may stand in double quotes with `\"`, `\\`, `\n`, `\r`, `\t`, as in curl; `#` at the beginning
//! of a word comments the line out where a keyword is expected; `default` counts after all `machine` entries, wherever
//! it stands; words with control characters are refused, because they could contain commands.
//! Properties kept: reading is bounded ([`MAX_FILE`]) and takes linear time; errors name the line and never show
//! a word of the file, which may be a password; a file with passwords that others may read is refused.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::login::Login;
use crate::wire::Secret;

/// Longest file read.
pub(super) const MAX_FILE: u64 = 1 << 20;
/// Permission bits of others: none may be set when there is a password.
const OF_OTHERS: u32 = 0o077;

/// The entries of one file.
#[derive(Debug, Default)]
pub struct Netrc {
    entries: Vec<Entry>,
    path: PathBuf,
    /// Permission bits of the file.
    mode: u32,
}

/// One entry; without a machine it is the default.
#[derive(Debug, Default)]
struct Entry {
    machine: Option<String>,
    login: Option<String>,
    password: Option<Secret>,
}

/// Why a netrc file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetrcError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Larger than `MAX_FILE`.
    #[error("{} is larger than {MAX_FILE} bytes: is it a netrc file?", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file has passwords, and others may read it.
    #[error("{} holds a password and other users may read it: chmod 600 it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// A line does not have the format.
    #[error("{} line {line}: {what}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The reason, for people.
        what: &'static str,
    },
}

impl Netrc {
    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// [`NetrcError`] when the file exists and cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Option<Self>, NetrcError> {
        let failed = |source| NetrcError::Read { path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mode = file.metadata().map_err(failed)?.mode();
        let mut text = String::new();
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE {
            return Err(NetrcError::TooLarge { path: path.to_owned() });
        }
        let entries =
            parse(&text).map_err(|(line, what)| NetrcError::Syntax { path: path.to_owned(), line, what })?;
        Ok(Some(Self { entries, path: path.to_owned(), mode }))
    }

    /// Returns the login for `host`, as `user` if that is given: the first entry for the machine that fits, else the
    /// default.
    ///
    /// # Errors
    /// [`NetrcError::Open`] when the entry has a password and others may read the file.
    pub fn find(&self, host: &str, user: Option<&str>) -> Result<Option<Login>, NetrcError> {
        let fits = |entry: &&Entry| user.is_none() || entry.login.is_none() || entry.login.as_deref() == user;
        let of_host =
            |entry: &&Entry| entry.machine.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(host));
        let found = self.entries.iter().filter(of_host).find(fits);
        let found = found.or_else(|| self.entries.iter().filter(|entry| entry.machine.is_none()).find(fits));
        let Some(entry) = found else { return Ok(None) };
        let Some(user) = entry.login.as_deref().or(user) else { return Ok(None) };
        if entry.password.is_some() && self.mode & OF_OTHERS != 0 {
            return Err(NetrcError::Open { path: self.path.clone() });
        }
        Ok(Some(Login { user: user.to_owned(), password: entry.password.clone() }))
    }
}

type Wrong = (usize, &'static str);

fn parse(text: &str) -> Result<Vec<Entry>, Wrong> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut words = Words { rest: text, line: 1 };
    while let Some(keyword) = words.next()? {
        let line = words.line;
        let mut value = || words.next()?.ok_or((line, "the word after the last keyword is missing"));
        if keyword.starts_with('#') {
            words.skip_line();
            continue;
        }
        match keyword.as_str() {
            "machine" => entries.push(Entry { machine: Some(value()?), ..Entry::default() }),
            "default" => entries.push(Entry::default()),
            "macdef" => words.skip_macro(),
            "login" | "user" | "password" | "passwd" | "account" => {
                let value = value()?;
                let entry = entries.last_mut().ok_or((line, "a login before the first `machine`"))?;
                match keyword.as_str() {
                    "login" | "user" => entry.login = Some(value),
                    // FTP servers hardly ever ask for one.
                    "account" => {}
                    _ => entry.password = Some(Secret::new(value)),
                }
            }
            _ => {
                return Err((line, "expected machine, default, login, password, account or macdef"));
            }
        }
    }
    Ok(entries)
}

/// The words of a text, with the line of the last one.
struct Words<'a> {
    rest: &'a str,
    line: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Result<Option<String>, Wrong> {
        let start = self.rest.trim_start();
        self.pass(self.rest.len() - start.len());
        if start.is_empty() {
            return Ok(None);
        }
        let word = if start.starts_with('"') {
            self.quoted()?
        } else {
            let len = start.find(char::is_whitespace).unwrap_or(start.len());
            self.pass(len);
            start[..len].to_owned()
        };
        if word.chars().any(char::is_control) {
            return Err((self.line, "a word with a control character"));
        }
        Ok(Some(word))
    }

    fn quoted(&mut self) -> Result<String, Wrong> {
        let open = (self.line, "a quotation mark is not closed on its line");
        let mut word = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.pass(at + 1);
                    return Ok(word);
                }
                '\n' => return Err(open),
                '\\' => word.push(match chars.next().ok_or(open)?.1 {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                }),
                other => word.push(other),
            }
        }
        Err(open)
    }

    fn skip_line(&mut self) {
        self.pass(self.rest.find('\n').unwrap_or(self.rest.len()));
    }

    /// Skips lines up to the empty one that ends a macro.
    fn skip_macro(&mut self) {
        let unix = self.rest.find("\n\n").map(|at| at + 2);
        let dos = self.rest.find("\r\n\r\n").map(|at| at + 4);
        let end = unix.into_iter().chain(dos).min();
        self.pass(end.unwrap_or(self.rest.len()));
    }

    fn pass(&mut self, len: usize) {
        let (passed, rest) = self.rest.split_at(len);
        self.line += passed.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Netrc {
        Netrc { entries: parse(text).unwrap(), path: PathBuf::from("netrc"), mode: 0o100_600 }
    }

    fn found(netrc: &Netrc, host: &str, user: Option<&str>) -> Option<(String, Option<String>)> {
        let login = netrc.find(host, user).unwrap()?;
        let shown = |secret: Secret| String::from_utf8_lossy(secret.expose()).into_owned();
        Some((login.user, login.password.map(shown)))
    }

    fn pair(user: &str, password: &str) -> Option<(String, Option<String>)> {
        Some((user.to_owned(), Some(password.to_owned())))
    }

    #[test]
    fn the_entry_of_the_machine_and_user_is_found() {
        let netrc = of("default login anonymous password me@\n\
                        machine A.example login jo password 'x # a word may begin like a comment later\n\
                        # machine hidden login no password no\n\
                        machine b.example\n  login one\n  password #1\n\
                        machine b.example login two password \"a \\\"b\\\\ c\" account x\n");
        assert_eq!(found(&netrc, "a.EXAMPLE", None), pair("jo", "'x"));
        assert_eq!(found(&netrc, "b.example", None), pair("one", "#1"));
        assert_eq!(found(&netrc, "b.example", Some("two")), pair("two", "a \"b\\ c"));
        assert_eq!(found(&netrc, "elsewhere", None), pair("anonymous", "me@"));
        assert_eq!(found(&netrc, "a.example", Some("stranger")), None);
        assert_eq!(found(&netrc, "hidden", None), pair("anonymous", "me@"));
    }

    #[test]
    fn macros_are_passed_over() {
        let netrc = of(
            "machine a login x password y\nmacdef init\nmachine b login no\n\nmachine c login z password w",
        );
        assert_eq!(found(&netrc, "c", None), pair("z", "w"));
        assert_eq!(found(&netrc, "b", None), None);
    }

    #[test]
    fn an_entry_without_a_login_is_for_the_user_that_was_named() {
        let netrc = of("machine a password y");
        assert_eq!(found(&netrc, "a", Some("jo")), pair("jo", "y"));
        assert_eq!(found(&netrc, "a", None), None);
    }

    #[test]
    fn errors_name_the_line_and_no_word_of_the_file() {
        for (text, line, words) in [
            ("machine a\nlogin x\npasswd", 3, "missing"),
            ("login x", 1, "before"),
            ("machine a\n\nsecret", 3, "expected"),
            ("machine a password \"secret\nx", 1, "not closed"),
            ("machine a password \"sec\\nret\"", 1, "control"),
        ] {
            let (at, what) = parse(text).unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(what.contains(words) && !what.contains("secret"), "{text}: {what}");
        }
    }

    #[test]
    fn a_password_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("netrc");
        fs::write(&file, "machine a login jo password y\nmachine b login jo\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let netrc = Netrc::read(&file).unwrap().unwrap();
        let message = netrc.find("a", None).unwrap_err().to_string();
        assert!(message.contains("chmod 600"), "{message}");
        assert_eq!(found(&netrc, "b", None), Some(("jo".to_owned(), None)));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(found(&Netrc::read(&file).unwrap().unwrap(), "a", None), pair("jo", "y"));
        fs::write(&file, vec![b' '; MAX_FILE as usize + 1]).unwrap();
        assert!(matches!(Netrc::read(&file), Err(NetrcError::TooLarge { .. })));
        fs::remove_file(&file).unwrap();
        assert!(Netrc::read(&file).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(machine|default|login|password|macdef|\"|\\\\|#|\n| |\\PC)*") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_is_found(
            entries in proptest::collection::vec(("[a-z]{1,8}", "[!-~]{1,8}", "[ -~]{0,12}"), 1..8),
        ) {
            let quote = |word: &str| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
            let text: String = entries
                .iter()
                .map(|(host, user, password)| {
                    format!("machine {host}\n\tlogin {} password {}\n", quote(user), quote(password))
                })
                .collect();
            let netrc = of(&text);
            for (host, user, _) in &entries {
                let first = entries.iter().find(|(other, name, _)| other == host && name == user).unwrap();
                prop_assert_eq!(found(&netrc, host, Some(user)), pair(user, &first.2));
            }
        }
    }
}
