//! TLS for the control and data connections of a file transfer.
//!
//! Problem: servers require that a data connection resumes the control connection's TLS session (otherwise another
//! client could take the data, with or without a certificate); a client must not mistake a server of another protocol
//! with the same certificate for the FTP server (ALPACA, CVE-2021-3618).
//! Properties kept: all connections of one [`ClientTls`] share their sessions; a server that wants its data
//! connections bound to one control connection makes a [`ServerTls::for_session`] of its own for it; ALPN, where
//! the peer uses it, must name the session's protocol; every server is verified unless the caller chooses otherwise.

mod error;
mod stream;
#[cfg(test)]
mod tests;
mod trust;

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::ServerSessionMemoryCache;
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

pub use error::TlsError;
pub use stream::TlsStream;
pub use trust::{Fingerprint, FingerprintError, Trust};

use crate::cancel::Cancel;

/// Sessions that each side remembers for one control connection: those of its data connections in flight, with
/// the two tickets that each gets.
const TLS_SESSIONS: usize = 256;

/// How a client speaks TLS; clones share their sessions.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// The same configuration, but only for TLS 1.2.
    older: Arc<ClientConfig>,
}

impl ClientTls {
    /// Makes a client that trusts as `trust` says.
    ///
    /// # Errors
    /// [`TlsError`] when the certificates to trust cannot be read.
    pub fn new(trust: &Trust) -> Result<Self, TlsError> {
        let provider = provider();
        let verifier = trust.verifier(&provider)?;
        let with = |versions: &[&'static SupportedProtocolVersion]| -> Result<_, TlsError> {
            let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::clone(&verifier))
                .with_no_client_auth();
            Ok(Arc::new(config))
        };
        Ok(Self { config: with(rustls::DEFAULT_VERSIONS)?, older: with(&[&rustls::version::TLS12])? })
    }

    /// Returns the same client with its own sessions, which speaks `protocol` (an ALPN identifier of IANA's registry).
    /// Use one for each control connection: servers want its data connections to resume its session and not that of
    /// another.
    #[must_use]
    pub fn for_session(&self, protocol: &[u8]) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::in_memory_sessions(TLS_SESSIONS);
        Self { config: Arc::new(config), older: Arc::clone(&self.older) }
    }

    /// Returns the same client with TLS 1.2, whose sessions can be resumed any number of times. Tickets of TLS 1.3 are
    /// good for one connection each, and some servers give too few of them for the data connections that must resume
    /// one.
    #[must_use]
    pub fn with_lasting_sessions(&self) -> Self {
        Self { config: Arc::clone(&self.older), older: Arc::clone(&self.older) }
    }

    /// Begins TLS as the client on `tcp`, with the server called `host`; the socket does not block from then on.
    ///
    /// # Errors
    /// [`TlsError::Name`] or [`TlsError::Handshake`], the latter also after `timeout`; [`TlsError::Cancelled`].
    pub fn connect(
        &self,
        tcp: TcpStream,
        host: &str,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<TlsStream, TlsError> {
        begin(tcp, Connection::Client(self.client(host)?), timeout, cancel)
    }

    /// Returns the first message to the server of that name (`ClientHello`), for callers that only time the answer.
    ///
    /// # Errors
    /// [`TlsError::Name`].
    pub fn hello(&self, host: &str) -> Result<Vec<u8>, TlsError> {
        let mut hello = Vec::new();
        // Writing to memory cannot fail.
        let _written = self.client(host)?.write_tls(&mut hello);
        Ok(hello)
    }

    fn client(&self, host: &str) -> Result<ClientConnection, TlsError> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| TlsError::Name(host.escape_default().to_string()))?;
        Ok(ClientConnection::new(Arc::clone(&self.config), name)?)
    }
}

/// How a server speaks TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    fingerprint: Fingerprint,
}

impl ServerTls {
    /// Makes a server with the certificate chain and the private key in these PEM files.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or the two do not belong together.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let certificates = trust::certificates(chain)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::Pem {
            what: "a private key",
            path: key.to_owned(),
            reason: error.to_string(),
        })?;
        Self::with(certificates, key)
    }

    /// Makes a server with a self-signed certificate for these host names and addresses. It protects against
    /// eavesdroppers, and against active attackers once the client knows its [`ServerTls::fingerprint`].
    ///
    /// # Errors
    /// [`TlsError::SelfSigned`], such as for a name with other than ASCII characters.
    pub fn self_signed(names: &[String]) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        Self::with(vec![made.cert.der().clone()], key)
    }

    fn with(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, TlsError> {
        let fingerprint = Fingerprint::of(chain.first().map_or(&[], |leaf| leaf.as_ref()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.session_storage = ServerSessionMemoryCache::new(TLS_SESSIONS);
        Ok(Self { config: Arc::new(config), fingerprint })
    }

    /// Returns the same server with its own sessions, which speaks only `protocol` (ALPN): only connections made with
    /// the returned value resume each other. Use one for each control connection; then a data connection that
    /// [`TlsStream::resumed`] belongs to that client.
    ///
    /// A ticket can be used more than once: a client that gets tickets on its control connection alone can still
    /// continue that session on any number of data connections.
    #[must_use]
    pub fn for_session(&self, protocol: &[u8]) -> Self {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        config.session_storage = ServerSessionMemoryCache::new(TLS_SESSIONS);
        // Without random numbers the handshake fails, too; the sessions stay in memory then.
        if let Ok(ticketer) = rustls::crypto::ring::Ticketer::new() {
            config.ticketer = ticketer;
        }
        Self { config: Arc::new(config), ..*self }
    }

    /// Returns the same server and sessions, without new tickets: for a connection on which the client only writes.
    ///
    /// TLS 1.3 sends tickets after the handshake. A client that closes its socket without having read them makes the
    /// kernel reset the connection, and what it sent last may be lost with it.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        let mut config = ServerConfig::clone(&self.config);
        config.send_tls13_tickets = 0;
        Self { config: Arc::new(config), ..*self }
    }

    /// Returns the SHA-256 of the certificate, for a client to compare.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Begins TLS as the server on `tcp`; the socket does not block from then on.
    ///
    /// # Errors
    /// [`TlsError::Handshake`], also after `timeout`; [`TlsError::Cancelled`].
    pub fn accept(&self, tcp: TcpStream, timeout: Duration, cancel: &Cancel) -> Result<TlsStream, TlsError> {
        let tls = ServerConnection::new(Arc::clone(&self.config))?;
        begin(tcp, Connection::Server(tls), timeout, cancel)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn begin(tcp: TcpStream, tls: Connection, timeout: Duration, cancel: &Cancel) -> Result<TlsStream, TlsError> {
    let peer = tcp.peer_addr().map_or_else(|_| "the peer".to_owned(), |peer| peer.to_string());
    let deadline = Instant::now() + timeout;
    TlsStream::begin(tcp, tls, deadline, cancel).map_err(|source| match cancel.is_cancelled() {
        true => TlsError::Cancelled { peer },
        false => TlsError::Handshake { peer, source },
    })
}
