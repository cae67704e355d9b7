//! Users that may log in, from the file and from the command line with its passwords, and their right to write.

use std::env::{self, VarError};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bufwise_ftp::server::{Rights, Users, users};
use clap::Args;

use crate::exit::Failure;
use crate::signals::ask_password;

/// Environment variable for a password if there is no terminal to ask at.
const VARIABLE: &str = "BUFWISE_PASSWORD";
/// Internal value of `--writable` without names.
const EVERYBODY: &str = "*";
/// User name of anonymous logins.
const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Args)]
#[command(next_help_heading = "Users")]
pub(super) struct People {
    /// File of the users that may log in; anonymous logins are refused
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// A user that may log in; can be repeated
    ///
    /// With --users, only the named ones of the file may log in. The password of a user who is not in the file comes from
    /// BUFWISE_PASSWORD or a prompt. The name anonymous allows anonymous logins.
    #[arg(long = "user", value_name = "NAME")]
    names: Vec<String>,
    /// Let every user write, or only the named ones; rw in the users' file does the same
    #[arg(long, value_name = "NAME,..", num_args = 0..=1, require_equals = true, value_delimiter = ',', default_missing_value = EVERYBODY)]
    writable: Option<Vec<String>>,
    /// Users that are in no file, whose passwords were given at the start.
    #[arg(skip = Users::nobody())]
    given: Users,
}

impl People {
    /// Returns the users that may log in; asks for the passwords of those that are in no file.
    pub(super) fn users(&mut self) -> Result<Users, Failure> {
        let listed = self.listed()?;
        let mut unknown: Vec<&String> =
            self.names.iter().filter(|name| *name != ANONYMOUS && !listed.contains(name)).collect();
        unknown.sort();
        unknown.dedup();
        for name in &unknown {
            users::check_name(name).map_err(|reason| Failure::usage(format!("--user {name}: {reason}")))?;
        }
        if unknown.len() > 1 && env::var_os(VARIABLE).is_some() {
            return Err(Failure::usage(format!(
                "{VARIABLE} holds one password: with several users write a --users file"
            )));
        }
        let mut given = Users::nobody();
        for name in unknown {
            let hash = users::hash_password(password_of(name)?.as_bytes())?;
            // The name has been checked, and the hash was computed here.
            given.add(name, &hash, Rights::Read).map_err(Failure::usage)?;
        }
        self.given = given;
        let users = self.complete(listed)?;
        for name in self.writable.iter().flatten().filter(|name| *name != EVERYBODY) {
            let may_log_in =
                if name == ANONYMOUS { users.anonymous_rights().is_some() } else { users.contains(name) };
            if !may_log_in {
                return Err(Failure::usage(format!("--writable={name}: no user of that name may log in")));
            }
        }
        Ok(users)
    }

    /// Returns the users with the file read again. Passwords given at the start stay valid; a name that was removed
    /// from the file is refused.
    pub(super) fn users_again(&self) -> Result<Users, Failure> {
        self.complete(self.listed()?)
    }

    /// Returns the users' file, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        self.users.as_deref()
    }

    /// Whether any user may write, now or after a reload.
    pub(super) fn may_let_write(&self) -> bool {
        self.users.is_some() || self.writable.is_some()
    }

    /// Returns the users in the file that may log in: all of them, if no names were given.
    fn listed(&self) -> Result<Users, Failure> {
        let mut users = match &self.users {
            Some(file) => Users::from_file(file)?,
            None if self.names.is_empty() => Users::anonymous(Rights::Read),
            None => Users::nobody(),
        };
        if !self.names.is_empty() {
            users.retain(|name| self.names.iter().any(|wanted| wanted == name));
        }
        if self.names.iter().any(|name| name == ANONYMOUS) {
            users.set_anonymous(Some(Rights::Read));
        }
        Ok(users)
    }

    /// Adds the users that are in no file, and the rights to write.
    fn complete(&self, mut users: Users) -> Result<Users, Failure> {
        users.add_missing(&self.given);
        if users.names().next().is_none() && users.anonymous_rights().is_none() {
            return Err(Failure::usage("no user could log in: the users' file is empty"));
        }
        if let Some(writers) = &self.writable {
            let everybody = writers.iter().any(|name| name == EVERYBODY);
            let may = |name: &str| everybody || writers.iter().any(|writer| writer == name);
            users.let_write(may);
            if users.anonymous_rights().is_some() && may(ANONYMOUS) {
                users.set_anonymous(Some(Rights::Write));
            }
        }
        Ok(users)
    }
}

/// Returns the password for a user named on the command line.
fn password_of(name: &str) -> Result<String, Failure> {
    let password = match env::var(VARIABLE) {
        Ok(password) => password,
        // The error's own text has the value, a password.
        Err(VarError::NotUnicode(_)) => return Err(Failure::usage(format!("{VARIABLE} is not UTF-8"))),
        Err(VarError::NotPresent) if io::stdin().is_terminal() => {
            ask_password(&format!("Password for {name}: ")).context("cannot read the password")?
        }
        Err(VarError::NotPresent) => {
            return Err(Failure::usage(format!(
                "no password for {name}: set {VARIABLE}, start it at a terminal, or write a --users file"
            )));
        }
    };
    not_empty(password)
}

/// Returns a line for the users' file.
pub(super) fn hash_line(name: &str) -> Result<String, Failure> {
    users::check_name(name).map_err(Failure::usage)?;
    let password = if io::stdin().is_terminal() {
        let first = ask_password("Password: ").context("cannot read the password")?;
        let again = ask_password("Again: ").context("cannot read the password")?;
        if first != again {
            return Err(Failure::new(crate::exit::FAILED, "the two passwords differ: try again"));
        }
        first
    } else {
        let mut line = String::new();
        io::stdin().read_line(&mut line).context("cannot read the password from standard input")?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    let hash = users::hash_password(not_empty(password)?.as_bytes())?;
    Ok(format!("{name}:{hash}:ro"))
}

fn not_empty(password: String) -> Result<String, Failure> {
    if password.is_empty() { Err(Failure::usage("the password is empty")) } else { Ok(password) }
}
