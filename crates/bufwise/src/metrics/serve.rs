//! Serving the metrics, on a thread of its own: a slow client keeps neither tuning nor other clients waiting.
//!
//! Bounds: 8 clients at a time, of which a newcomer takes the place of the oldest one; 3 s for a request and 3 s for
//! reading the response; one request a connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_host::control::Request;
use bufwise_host::control::server::Asker;
use bufwise_host::control::socket_file::{self, SocketFile};
use bufwise_host::log;
use bufwise_host::metrics::Address;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;

use super::http::{self, MAX_HEADER, Parsed, Status};
use super::{settled, snapshot, text};

const MAX_CLIENTS: usize = 8;
/// Time that a client has for its request, and again for the response.
const CLIENT_TIME: Duration = Duration::from_secs(3);
/// Time that the daemon's loop has for a snapshot: as long as it loads programs it answers nobody.
const DAEMON_TIME: Duration = Duration::from_secs(2);
/// Pause where no client can be accepted: out of descriptors, most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket that metrics are served at, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    _file: Option<SocketFile>,
    /// Its other end ends the thread.
    _stop: UnixStream,
}

impl Listener {
    /// Listens at the address, and serves what the daemon's loop answers.
    ///
    /// # Errors
    /// The address is taken, its directory not safe, or the kernel's answer.
    pub(crate) fn start(address: &Address, asker: Asker) -> Result<Self> {
        let (door, file) = open(address)?;
        let (stop, stopped) = UnixStream::pair().context("cannot serve metrics")?;
        let desk = Desk { asker, clients: Vec::new() };
        let serve = move || desk.serve(&door, &stopped);
        thread::Builder::new().name("metrics".to_owned()).spawn(serve).context("cannot serve metrics")?;
        Ok(Self { _file: file, _stop: stop })
    }
}

fn open(address: &Address) -> Result<(Door, Option<SocketFile>)> {
    match address {
        Address::Unix(path) => {
            let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IWGRP;
            let (listener, file) = socket_file::listen(path, mode)?;
            listener.set_nonblocking(true)?;
            Ok((Door::Unix(listener), Some(file)))
        }
        Address::Tcp(address) => {
            let listener = tcp(*address).with_context(|| format!("cannot serve metrics at {address}"))?;
            if !address.ip().is_loopback() {
                log::warn(format_args!("metrics are served at {address} to whoever reaches it, unencrypted"));
            }
            Ok((Door::Tcp(listener), None))
        }
    }
}

fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Where clients come in.
#[derive(Debug)]
enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Door {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A client's connection, which never waits.
trait Stream: Read + Write + AsFd + Send {}

impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// One client.
struct Client {
    stream: Box<dyn Stream>,
    deadline: Instant,
    request: Vec<u8>,
    /// Response that is still to be written; `None`: the request has not come yet.
    response: Option<Vec<u8>>,
}

impl Client {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, deadline: Instant::now() + CLIENT_TIME, request: Vec::new(), response: None }
    }

    fn waits_for(&self) -> PollFlags {
        if self.response.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Reads or writes as much as goes; whether there is more to do.
    fn go_on(&mut self, answer: impl FnOnce(Parsed) -> Vec<u8>) -> bool {
        if self.response.is_none() {
            match self.read() {
                Ok(Parsed::Partial) => return true,
                Ok(parsed) => {
                    self.response = Some(answer(parsed));
                    self.deadline = Instant::now() + CLIENT_TIME;
                }
                Err(error) => return is_later(&error),
            }
        }
        self.write().is_err_and(|error| is_later(&error))
    }

    fn read(&mut self) -> io::Result<Parsed> {
        let mut buffer = [0; MAX_HEADER];
        let room = MAX_HEADER - self.request.len();
        match self.stream.read(&mut buffer[..room])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.request.extend_from_slice(&buffer[..count]);
                Ok(http::parse(&self.request))
            }
        }
    }

    /// Writes the rest of the response.
    fn write(&mut self) -> io::Result<()> {
        let rest = self.response.get_or_insert_default();
        while !rest.is_empty() {
            let count = self.stream.write(rest)?;
            rest.drain(..count);
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The thread's work.
struct Desk {
    asker: Asker,
    /// The oldest first.
    clients: Vec<Client>,
}

impl Desk {
    /// Serves until the listener is dropped.
    fn serve(mut self, door: &Door, stopped: &UnixStream) {
        loop {
            let mut fds = vec![
                PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                PollFd::new(door.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(self.clients.iter().map(|one| PollFd::new(one.stream.as_fd(), one.waits_for())));
            match poll(&mut fds, self.patience()) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            let [is_over, has_come, ref ready @ ..] = ready[..] else { return };
            if is_over {
                return;
            }
            self.go_on(ready);
            if has_come {
                self.accept(door);
            }
        }
    }

    /// Until the first client's time is over.
    fn patience(&self) -> PollTimeout {
        let deadline = self.clients.iter().map(|client| client.deadline).min();
        deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, or the last millisecond would be spent asking.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }

    fn go_on(&mut self, ready: &[bool]) {
        let asker = &self.asker;
        let mut ready = ready.iter();
        self.clients.retain_mut(|client| {
            let is_ready = ready.next().is_some_and(|ready| *ready);
            let is_open = !is_ready || client.go_on(|parsed| answer(asker, parsed));
            is_open && Instant::now() < client.deadline
        });
    }

    fn accept(&mut self, door: &Door) {
        match door.accept() {
            Ok(stream) => {
                if self.clients.len() == MAX_CLIENTS {
                    self.clients.remove(0);
                }
                self.clients.push(Client::new(stream));
            }
            Err(error) if is_later(&error) || error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn answer(asker: &Asker, parsed: Parsed) -> Vec<u8> {
    match parsed {
        Parsed::Metrics(format) => match settled(|| snapshot(asker.ask(Request::Metrics, DAEMON_TIME))) {
            Ok(snapshot) => http::metrics(format, &text::render(&snapshot, format)),
            Err(error) => http::refusal(Status::Unavailable, &error.to_string()),
        },
        Parsed::Refused(status) => http::refusal(status, ""),
        Parsed::Partial => Vec::new(),
    }
}
