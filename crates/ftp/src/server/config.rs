//! Configuration of a server: address, directory, users, limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use bufwise_mover::tls::ServerTls;
use bufwise_policy::PolicyKind;
use bufwise_units::{Bytes, Rate};

use super::budget::ReceiveCaps;
use super::limits::BufferCaps;
use super::users::{Rights, Users};

/// Configuration of a server. [`Config::new`] fills in the rest.
#[derive(Debug)]
pub struct Config {
    /// Where to listen; port 0: any that is free.
    pub listen: SocketAddr,
    /// The directory to serve.
    pub directory: PathBuf,
    /// The users to serve.
    pub users: Users,
    /// How data connections are made.
    pub data: DataConfig,
    /// Encryption; `None`: AUTH is refused.
    pub tls: Option<TlsConfig>,
    /// How buffers are sized.
    pub tuning: TuningConfig,
    /// Numbers that clients cannot exceed.
    pub limits: Limits,
    /// How long clients may take.
    pub times: Times,
}

impl Config {
    /// Serves `directory` at `listen`, to anonymous users, for reading, with the kernel's own buffers.
    #[must_use]
    pub fn new(listen: SocketAddr, directory: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            directory: directory.into(),
            users: Users::anonymous(Rights::Read),
            data: DataConfig::default(),
            tls: None,
            tuning: TuningConfig::default(),
            limits: Limits::default(),
            times: Times::default(),
        }
    }
}

/// How data connections are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataConfig {
    /// Ports to wait on, for firewalls; `None`: any that the system gives.
    pub ports: Option<RangeInclusive<u16>>,
    /// The address to name in replies to PASV, where address translation hides ours.
    pub announced: Option<Ipv4Addr>,
    /// Whether the server also connects to the client (PORT, EPRT): only ever to the address that the control
    /// connection comes from, and to ports from 1024.
    pub active: bool,
}

/// Encryption.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Certificate and key.
    pub server: ServerTls,
    /// Whether logins and transfers require TLS.
    pub required: bool,
    /// Whether a data connection must continue the control connection's TLS session: a peer with another session, even from
    /// the client's own address, is not the client.
    pub require_reuse: bool,
}

/// How buffers are sized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningConfig {
    /// The receiver's rule, for uploads: `kernel`, `fixed`, `drs`, `drs-ftp`, `sobas` or `sobas:published`.
    pub policy: PolicyKind,
    /// Whether clients may measure the path with UDP probes (PROB), and are probed.
    pub probes: bool,
    /// Most that clients may request with SBUF; the connection's is the largest window of a policy, too.
    pub buffers: BufferCaps,
    /// Most that the receive buffers of uploads may be together.
    pub receiving: ReceiveCaps,
    /// Largest rate of each transfer; `None`: as fast as it goes.
    pub rate: Option<Rate>,
}

impl Default for TuningConfig {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Kernel,
            probes: true,
            buffers: BufferCaps::default(),
            receiving: ReceiveCaps::default(),
            rate: None,
        }
    }
}

impl TuningConfig {
    /// Returns the largest buffer or window of one connection.
    #[must_use]
    pub fn largest(&self) -> Bytes {
        self.buffers.connection
    }
}

/// Numbers that clients cannot exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most sessions at once.
    pub sessions: usize,
    /// Most sessions at once from one IPv4 address or one IPv6 network of 64 bits.
    pub sessions_per_address: usize,
    /// Number of wrong passwords after which a session ends.
    pub passwords: u32,
    /// Number of bad commands before login after which a session ends: an HTTP client, or an attacker's experiments
    /// (ALPACA, CVE-2021-3618; vsftpd 3.0.4 has the same number).
    pub bad_commands: u32,
    /// Most HASH commands computed at once, each of which takes a processor; at most one for each user at each address.
    /// Others wait for their turn.
    pub hashes: usize,
    /// Memory for the names of directories that are being listed, of all listings together; a quarter of it for those
    /// of one user at one address. Each listing has 64 KiB in any case.
    pub listed_names: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 256,
            sessions_per_address: 32,
            passwords: 3,
            bad_commands: 10,
            hashes: 2,
            // A quarter lists a directory of some 300,000 names, more than most FTP clients can show.
            listed_names: Bytes(128 << 20),
        }
    }
}

/// How long clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Longest time from the connection to the end of the login.
    pub login: Duration,
    /// Longest time without a command and without a transfer (RFC 959 leaves it open; servers have five to fifteen minutes).
    pub idle: Duration,
    /// Longest time until a data connection is made.
    pub connect: Duration,
    /// Longest time without a byte in a transfer.
    pub stall: Duration,
    /// Longest time for a client to take a reply, and for a TLS handshake.
    pub answer: Duration,
    /// Delay after the first wrong password; it doubles up to sixteenfold.
    pub wrong_password: Duration,
    /// Time that transfers have to end when the server stops.
    pub grace: Duration,
    /// Wait after an upload in clear text whose length the client did not announce: if the control connection ends
    /// meanwhile, the client was killed, and the upload is incomplete. Each such upload is delayed by this time (or a
    /// round trip, if longer), less the time that the disk takes. Measured between the two ends of killed or
    /// interrupted programs: up to 5 ms, on a busy host more than 10 ms.
    pub hangup: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            login: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            connect: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            answer: Duration::from_secs(30),
            wrong_password: Duration::from_secs(1),
            grace: Duration::from_secs(10),
            hangup: Duration::from_millis(20),
        }
    }
}

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory cannot be opened.
    #[error("cannot serve {directory}: {source}", directory = directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The address is taken, not ours, or needs a privilege.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system has no descriptors or threads left.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// A policy that does not size receive buffers.
    #[error(
        "{0} is no rule for received files: write kernel, fixed:SIZE, drs, drs-ftp, sobas or sobas:published"
    )]
    Policy(PolicyKind),
}
