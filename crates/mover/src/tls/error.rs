//! Errors of TLS: of its configuration, and of handshakes.

use std::io;
use std::path::PathBuf;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key could not be read.
    #[error("reading {what} from {path} failed: {reason}", path = path.display())]
    Pem {
        /// Certificates or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason, for people.
        reason: String,
    },
    /// The system's trusted certificates could not be read.
    #[error("no trusted certificate authority found on this system: {0}")]
    Roots(String),
    /// Certificate and key do not make a TLS configuration.
    #[error("the certificate or its key cannot be used: {0}")]
    Config(#[from] rustls::Error),
    /// A certificate could not be made.
    #[error("making a self-signed certificate failed: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// No certificate can have this name.
    #[error("`{0}` is neither a host name nor an address: TLS cannot verify it")]
    Name(String),
    /// The handshake failed.
    #[error("the TLS handshake with {peer} failed: {source}")]
    Handshake {
        /// The peer.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// Ended on request.
    #[error("the TLS handshake with {peer} was cancelled")]
    Cancelled {
        /// The peer.
        peer: String,
    },
}
