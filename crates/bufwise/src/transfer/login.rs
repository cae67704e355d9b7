//! Finds user name and password of a login: from the environment, a netrc file, or a prompt.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bufwise_ftp::client::{Login, Netrc, Sources, Url};
use bufwise_ftp::wire::Secret;

use crate::signals::ask_password;

/// Finds the login for the server of `url`; `netrc` is the file named by `--netrc`.
pub(super) fn find(url: &Url, netrc: Option<&Path>) -> Result<Login> {
    let variable = |name: &str| match std::env::var(name) {
        Ok(value) if value.chars().any(char::is_control) => bail!("{name} has a control character in it"),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        // The error's own text has the value, which may be a password.
        Err(std::env::VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    };
    let sources = Sources {
        user: url.user.clone(),
        environment_user: variable("BUFWISE_USER")?,
        environment_password: variable("BUFWISE_PASSWORD")?.map(Secret::new),
        netrc: read(netrc)?,
    };
    let login = sources.login(&url.host, |user| ask(user, &url.host))?;
    Ok(login)
}

fn read(named: Option<&Path>) -> Result<Option<Netrc>> {
    if let Some(path) = named {
        let netrc = Netrc::read(path)?;
        return netrc.map(Some).with_context(|| format!("{} does not exist", path.display()));
    }
    let file = std::env::var_os("NETRC").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".netrc"));
    file.or_else(home).map_or(Ok(None), |path| read_unnamed(&path))
}

/// Reads a file that the command line does not name; `None` if there is none, or a directory on the way to it is closed to this
/// user or is none (`HOME=/dev/null`, the homes under systemd's `ProtectHome=`).
fn read_unnamed(path: &Path) -> Result<Option<Netrc>> {
    if path.exists() { Ok(Netrc::read(path)?) } else { Ok(None) }
}

/// Prompts for a password; `None` if standard input is not a terminal, or the prompt fails.
fn ask(user: &str, host: &str) -> Option<Secret> {
    if !std::io::stdin().is_terminal() {
        return None;
    }
    ask_password(&format!("Password of {user} at {host}: ")).ok().map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_home_has_no_netrc_file() {
        assert!(read_unnamed(Path::new("/dev/null/.netrc")).unwrap().is_none());
    }
}
