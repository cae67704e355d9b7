//! Destination and login of a session, and the abilities of its server.

use std::net::SocketAddr;
use std::time::Duration;

use bufwise_mover::Cancel;
use bufwise_mover::tls::ClientTls;

use super::login::Login;
use super::url::{Scheme, Url};
use crate::wire::{ALPN, Features};

/// Whether the session is encrypted.
#[derive(Clone, Debug)]
pub enum Security {
    /// The session is not encrypted.
    Plain,
    /// It is encrypted if the server offers that. An attacker on the path can hide the offer.
    Offered(ClientTls),
    /// It is encrypted, or fails before anything is sent.
    Required(ClientTls),
}

impl Security {
    /// Returns this choice for one session, which shares no TLS session with others.
    pub(super) fn for_session(&self) -> Self {
        match self {
            Self::Plain => Self::Plain,
            Self::Offered(tls) => Self::Offered(tls.for_session(ALPN)),
            Self::Required(tls) => Self::Required(tls.for_session(ALPN)),
        }
    }

    /// Returns this choice with TLS sessions that can be resumed any number of times.
    pub(super) fn with_lasting_sessions(&self) -> Self {
        match self {
            Self::Plain => Self::Plain,
            Self::Offered(tls) => Self::Offered(tls.with_lasting_sessions()),
            Self::Required(tls) => Self::Required(tls.with_lasting_sessions()),
        }
    }

    pub(super) fn tls(&self) -> Option<&ClientTls> {
        match self {
            Self::Plain => None,
            Self::Offered(tls) | Self::Required(tls) => Some(tls),
        }
    }
}

/// Destination and login, shared by all sessions of a command.
#[derive(Clone, Debug)]
pub struct Access {
    /// Plain or TLS from the first byte.
    pub scheme: Scheme,
    /// Host name or address.
    pub host: String,
    /// Port of the control connection.
    pub port: u16,
    /// User name and password.
    pub login: Login,
    /// Whether sessions are encrypted.
    pub security: Security,
    /// How long a connection or an answer may take.
    pub timeout: Duration,
    /// Handle by which another thread ends every wait.
    pub cancel: Cancel,
}

impl Access {
    /// Takes the server from `url`.
    #[must_use]
    pub fn to(url: &Url, login: Login, security: Security, timeout: Duration, cancel: Cancel) -> Self {
        Self { scheme: url.scheme, host: url.host.clone(), port: url.port, login, security, timeout, cancel }
    }
}

/// Abilities that a server has announced.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// The extensions that it lists in its reply to FEAT (RFC 2389).
    pub features: Features,
    /// The first line of its greeting.
    pub greeting: String,
    /// Whether the control connection, and so each data connection, is encrypted.
    pub tls: bool,
    /// Whether it speaks bufwise's dialect ([`crate::wire::dialect`]) and has accepted `OPTS DRS`: SBUF and 126 during transfers.
    pub dialect: bool,
    /// Its address, if it is known.
    pub address: Option<SocketAddr>,
}
