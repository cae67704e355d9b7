//! Sources of a login; the password never comes from the command line.
//!
//! Rule, in this order: the environment (`BUFWISE_USER`, `BUFWISE_PASSWORD`), the netrc file, the prompt if a user was
//! named and there is a terminal, else `anonymous`.
//! Properties kept: a password for one user is never sent for another; a password from the environment goes
//! to the host of the address only; nothing here is ever printed.

use super::login::Login;
use super::netrc::{Netrc, NetrcError};
use crate::wire::Secret;

/// Where a login may come from.
#[derive(Debug, Default)]
pub struct Sources {
    /// The user that the address names.
    pub user: Option<String>,
    /// `BUFWISE_USER`.
    pub environment_user: Option<String>,
    /// `BUFWISE_PASSWORD`.
    pub environment_password: Option<Secret>,
    /// The netrc file, if there is one.
    pub netrc: Option<Netrc>,
}

impl Sources {
    /// Returns the login for `host`; `ask` is the prompt, which gives `None` without a terminal.
    ///
    /// # Errors
    /// [`NetrcError`] when the netrc entry's password can be read by others.
    pub fn login(self, host: &str, ask: impl FnOnce(&str) -> Option<Secret>) -> Result<Login, NetrcError> {
        let user = self.user.or(self.environment_user);
        if let (Some(user), Some(password)) = (&user, self.environment_password) {
            return Ok(Login { user: user.clone(), password: Some(password) });
        }
        if let Some(netrc) = &self.netrc
            && let Some(login) = netrc.find(host, user.as_deref())?
        {
            let password = login.password.or_else(|| ask(&login.user));
            return Ok(Login { password, ..login });
        }
        let Some(user) = user else { return Ok(Login::anonymous()) };
        let named = Login { user, ..Login::anonymous() };
        if named.is_anonymous() {
            return Ok(named);
        }
        Ok(Login { password: ask(&named.user), ..named })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::login::ANONYMOUS_PASSWORD;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::new(text.to_owned()))
    }

    fn login(sources: Sources, asked: Option<&str>) -> (String, Option<String>) {
        let login = sources.login("h", |_| asked.and_then(secret)).unwrap();
        (login.user, login.password.map(|password| String::from_utf8_lossy(password.expose()).into_owned()))
    }

    #[test]
    fn without_any_word_it_is_anonymous() {
        let (user, password) = login(Sources::default(), None);
        assert_eq!((user.as_str(), password.as_deref()), ("anonymous", Some(ANONYMOUS_PASSWORD)));
        let named = Sources { user: Some("FTP".to_owned()), ..Sources::default() };
        assert_eq!(login(named, Some("asked")).1.as_deref(), Some(ANONYMOUS_PASSWORD));
    }

    #[test]
    fn a_user_is_asked_for_what_is_missing() {
        let named = || Sources { user: Some("jo".to_owned()), ..Sources::default() };
        assert_eq!(login(named(), Some("asked")), ("jo".to_owned(), Some("asked".to_owned())));
        assert_eq!(login(named(), None), ("jo".to_owned(), None));
        let environment = Sources { environment_password: secret("env"), ..named() };
        assert_eq!(login(environment, Some("asked")), ("jo".to_owned(), Some("env".to_owned())));
    }

    #[test]
    fn a_password_without_a_user_is_not_given_to_anonymous() {
        let lone = Sources { environment_password: secret("env"), ..Sources::default() };
        assert_eq!(login(lone, None).1.as_deref(), Some(ANONYMOUS_PASSWORD));
        let both = Sources {
            environment_user: Some("jo".to_owned()),
            environment_password: secret("env"),
            ..Sources::default()
        };
        assert_eq!(login(both, None), ("jo".to_owned(), Some("env".to_owned())));
    }
}
