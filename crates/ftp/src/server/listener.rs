//! The listening thread: accepts connections, turns away those beyond the limits, ends all sessions in time.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_mover::is_passing;
use bufwise_mover::wake::{self, Bell};
use bufwise_policy::{PolicyKind, Side};
use bufwise_socket::heap;
use bufwise_units::Bytes;
use nix::poll::PollFlags;
use socket2::{Domain, Protocol, Socket, Type};

use super::admission::{Admission, AdmissionHandle};
use super::budget::Budget;
use super::config::{Config, ServeError};
use super::control::{Control, canonical};
use super::event::{Event, Observer};
use super::limits::{Attempts, BufferCaps, Ledger, NoSlot, Slot, Slots};
use super::session::ServerSession;
use super::shared::{Rules, Shared, Stop};
use super::store::Store;
use super::turns::Turns;
use crate::wire::Reply;

/// Connections that may wait to be accepted.
const ACCEPT_BACKLOG: i32 = 128;
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Least time from a connection to the moment when freed memory is given back to the system, and between two such moments.
const TRIM_INTERVAL: Duration = Duration::from_secs(5);
/// How often to check whether all sessions have ended.
const END_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long sessions that transfer nothing may take to end: for a farewell, not for a handshake that hangs.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// Opens the directory and listens; `observer` is called with each event.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(config: Config, observer: Box<Observer>) -> Result<Self, ServeError> {
        check_policy(config.tuning.policy)?;
        let store = Store::open(&config.directory)
            .map_err(|source| ServeError::Directory { directory: config.directory.clone(), source })?;
        let failed = |source| ServeError::Listen { address: config.listen, source };
        let listener = listen(config.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let Config { users, tls, data, tuning, limits, times, .. } = config;
        let shared = Shared {
            attempts: Attempts::new(times.wrong_password),
            ledger: Ledger::new(tuning.buffers),
            names: Ledger::new(names_caps(limits.listed_names)),
            receiving: Budget::new(tuning.receiving.user, tuning.receiving.host),
            sending: Budget::new(tuning.buffers.user, tuning.buffers.host),
            turns: Turns::new(limits.hashes),
            busy: AtomicUsize::new(0),
            stop: Stop(Arc::new(Bell::new()?)),
            slots: Slots::new(limits.sessions, limits.sessions_per_address),
            config: Rules { data, tuning, limits, times },
            admission: AdmissionHandle::new(Admission { users, tls }),
            store,
            observer,
        };
        Ok(Self { listener, address, shared: Arc::new(shared) })
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends [`Server::run`].
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Returns the handle that changes users and encryption while [`Server::run`] runs.
    #[must_use]
    pub fn admission(&self) -> AdmissionHandle {
        self.shared.admission.clone()
    }

    /// Serves until [`Stop::stop`] is called, then waits until all sessions have ended or their time is over.
    ///
    /// # Errors
    /// The system's error, when waiting for connections is not possible any more.
    pub fn run(self) -> io::Result<()> {
        let mut trim_at: Option<Instant> = None;
        loop {
            let until = trim_at.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
            let stop = self.shared.stop.bell();
            let watched = [(self.listener.as_fd(), PollFlags::POLLIN), (stop.as_fd(), PollFlags::POLLIN)];
            let [ready, stopped] = wake::until(watched, until)?;
            if stopped {
                break;
            }
            if ready {
                self.accept();
                trim_at.get_or_insert_with(|| Instant::now() + TRIM_INTERVAL);
            }
            if trim_at.is_some_and(|at| Instant::now() >= at) {
                trim_at = self.trim();
            }
        }
        let Self { listener, shared, .. } = self;
        drop(listener);
        let mut last_busy = Instant::now();
        let deadline = last_busy + shared.config.times.grace + FAREWELL_TIME;
        while shared.slots.taken() > 0 {
            let now = Instant::now();
            if shared.busy.load(Ordering::Acquire) > 0 {
                last_busy = now;
            }
            if now >= deadline || now >= last_busy + FAREWELL_TIME {
                break;
            }
            thread::sleep(END_POLL_INTERVAL);
        }
        Ok(())
    }

    /// Gives the memory that sessions have freed back to the system once the last of them has ended. Returns when to try
    /// again, if one has not.
    fn trim(&self) -> Option<Instant> {
        if self.shared.slots.taken() > 0 {
            return Some(Instant::now() + TRIM_INTERVAL);
        }
        heap::trim();
        None
    }

    fn accept(&self) {
        match self.listener.accept() {
            Ok((stream, peer)) => self.admit(stream, canonical(peer)),
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                self.shared.tell(&Event::Trouble { what: format!("cannot accept connections: {error}") });
                thread::sleep(ACCEPT_RETRY_DELAY);
            }
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let other = stream.try_clone();
        let hang_up = move || {
            // Without a descriptor for the bell, the session ends when its time is over.
            let _ended = other.and_then(|stream| stream.shutdown(Shutdown::Both));
        };
        match self.shared.slots.take(peer, hang_up) {
            Ok((slot, displaced)) => {
                if let Some(peer) = displaced {
                    let reason = "all sessions are taken, and it had no password and no transfer".to_owned();
                    self.shared.tell(&Event::Ended { peer, is_known: false, reason });
                }
                self.begin(stream, peer, slot);
            }
            Err(no_slot) => self.turn_away(&stream, peer, no_slot),
        }
    }

    fn begin(&self, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        let shared = Arc::clone(&self.shared);
        let session = Control::new(stream, shared.config.times.answer)
            .and_then(|control| ServerSession::new(shared, control, slot));
        let started = session.and_then(|session| {
            thread::Builder::new().name("bufwise-ftp".to_owned()).spawn(move || session.run())
        });
        if let Err(error) = started {
            let reason = format!("it could not begin: {error}");
            self.shared.tell(&Event::Ended { peer, is_known: false, reason });
        }
    }

    fn turn_away(&self, mut stream: &TcpStream, peer: SocketAddr, no_slot: NoSlot) {
        let (reason, text) = match no_slot {
            NoSlot::Full => ("all sessions are taken", "Too many sessions, try again later."),
            NoSlot::Origin => ("it has too many sessions", "Too many sessions from your address."),
        };
        self.shared.tell(&Event::Refused { peer, reason });
        // A new connection has room for a line; if not, the client sees only the end.
        let _unheard =
            stream.set_nonblocking(true).and_then(|()| stream.write(&Reply::single(421, text).encode()));
    }
}

/// Returns the parts of this memory for one listing, and for the listings of one party.
fn names_caps(host: Bytes) -> BufferCaps {
    let quarter = host.scaled(1, 4);
    BufferCaps { connection: quarter, user: quarter, host }
}

/// Accepts only policies for the receiver's side.
fn check_policy(policy: PolicyKind) -> Result<(), ServeError> {
    if policy.side() == Side::Send { Err(ServeError::Policy(policy)) } else { Ok(()) }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier server that linger in TIME_WAIT must not prevent the start.
    socket.set_reuse_address(true)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(ACCEPT_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
