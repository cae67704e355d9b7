//! A user's name with its password.

use crate::wire::Secret;

/// Password of `anonymous`: servers expect something like an address (RFC 1635).
pub(super) const ANONYMOUS_PASSWORD: &str = "bufwise@";

/// A user's name with its password.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// `None`: none was given; sent as an empty password if the server asks.
    pub password: Option<Secret>,
}

impl Login {
    /// Returns the public login, for public files.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { user: "anonymous".to_owned(), password: Some(Secret::new(ANONYMOUS_PASSWORD.to_owned())) }
    }

    /// Whether it is the public login, `anonymous` or `ftp`.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        ["anonymous", "ftp"].iter().any(|name| self.user.eq_ignore_ascii_case(name))
    }
}
