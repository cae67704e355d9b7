//! The daemon's end of the control socket.
//!
//! Problem: the daemon's loop has shares to compute and must not wait for a client, nor may a slow client hold up the
//! next. So the loop sees whole requests only:
//! - A thread accepts clients. Each client gets a thread of its own, which checks its user, reads its request within
//!   2 s and, once the loop has answered, writes the reply. The client must take part of it every 2 s, and all of it
//!   within 30 s.
//! - The loop polls [`Server::as_fd`], readable while requests wait, and answers one at a time; the answer is a value
//!   that the client's thread turns into text.
//! - Beyond 8 clients at a time, further ones are told that the daemon is busy.
//!
//! The socket is made for its owner alone (mode 0600; [`socket_file`]).

use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

use super::message::{Reply, Request, parse_request};
use super::socket_file::{self, SocketFile};
use super::{MAX_REQUEST, TAKEN};
use crate::error::{During, Result};

/// Time that a client has to send its request, and to take each part of the reply.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// Time that the daemon's loop has to answer; `restore` may touch many sockets.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Size of one write of a reply, in bytes.
const AT_ONCE: usize = 64 << 10;
/// Most clients that are served at a time.
const MAX_CLIENTS: usize = 8;

/// The listening socket. Dropping it removes the socket's file; clients that are being served get their reply.
#[derive(Debug)]
pub struct Server {
    _file: SocketFile,
    requests: Receiver<Pending>,
    asker: Asker,
    /// Holds one byte for each waiting request.
    waiting: UnixStream,
    /// Dropping this end stops the accepting thread.
    _stop: UnixStream,
}

/// A request, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct Pending {
    request: Request,
    reply: SyncSender<Reply>,
    /// Time at which the client is told that the daemon is busy; the request is not carried out after it.
    deadline: Instant,
}

impl Pending {
    /// Returns the client's request.
    pub(crate) fn request(&self) -> Request {
        self.request
    }

    /// Returns a request for a test, and the end at which its reply arrives.
    #[cfg(test)]
    pub(crate) fn of_test(request: Request) -> (Self, Receiver<Reply>) {
        let (reply, answered) = sync_channel(1);
        (Self { request, reply, deadline: Instant::now() + ANSWER_TIME }, answered)
    }

    /// Replies to the client.
    pub(crate) fn answer(self, reply: Reply) {
        // A client whose time is over no longer listens.
        let _gone = self.reply.send(reply);
    }
}

impl Server {
    /// Listens at `path`, and makes its directory if needed.
    ///
    /// # Errors
    /// A daemon is running already, the directory is not safe, or the kernel's answer.
    pub fn bind(path: &Path) -> Result<Self> {
        let (listener, file) = socket_file::listen(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Self::start(listener, file).during(|| "cannot serve the control socket".to_owned())
    }

    fn start(listener: UnixListener, file: SocketFile) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (waiting, wake) = UnixStream::pair()?;
        waiting.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (sender, requests) = channel();
        let asker = Asker { sender, wake: Arc::new(wake) };
        let desk = Desk { asker: asker.clone(), seats: Seats::default() };
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&listener, &stopped, &desk))?;
        Ok(Self { _file: file, requests, asker, waiting, _stop: stop })
    }

    /// Returns a handle by which another thread of this process reaches the daemon's loop.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Returns a waiting request, if there is one; does not block. Requests whose client has been told that the daemon is
    /// busy are dropped.
    pub(crate) fn next(&self) -> Option<Pending> {
        // The byte is written after its request is sent. A request that is taken before its byte arrives leaves the
        // byte behind: the byte wakes the loop once more, without a request, and is read then.
        let _on_its_way = (&self.waiting).read(&mut [0]);
        let now = Instant::now();
        self.requests.try_iter().find(|pending| now < pending.deadline)
    }
}

/// The descriptor is readable while requests wait.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }
}

/// State that the clients' threads share.
#[derive(Clone, Debug)]
struct Desk {
    asker: Asker,
    seats: Seats,
}

/// The number of clients that are served; clones share it.
#[derive(Clone, Debug, Default)]
struct Seats(Arc<AtomicUsize>);

/// A client's seat; freed when dropped, also by a thread that panics or could not start.
#[derive(Debug)]
struct Seat(Seats);

impl Seats {
    /// Takes a seat; `None` if all are taken.
    fn take(&self) -> Option<Seat> {
        let more = |taken| (taken < MAX_CLIENTS).then_some(taken + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Seat(self.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts clients until the server is dropped.
fn accept(listener: &UnixListener, stopped: &UnixStream, desk: &Desk) {
    loop {
        let mut fds = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
        if fds[1].any().unwrap_or(true) {
            return;
        }
        match listener.accept() {
            Ok((client, _)) => desk.receive(client),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Most likely no descriptor is free; retrying at once would only burn the processor.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

impl Desk {
    /// Serves a client on a thread of its own, or tells it that the daemon is busy.
    fn receive(&self, client: UnixStream) {
        let Some(seat) = self.seats.take() else {
            // An empty socket buffer takes this line at once; a client beyond the bound gets nothing more.
            let _unread = client.set_nonblocking(true).and_then(|()| send(&client, &busy()));
            return;
        };
        let desk = self.clone();
        let serve = move || {
            let _seat = seat;
            let _over = desk.serve(&client);
        };
        // If no thread starts, the client and its seat are dropped here.
        let _started = thread::Builder::new().name("client".to_owned()).spawn(serve);
    }

    fn serve(&self, mut client: &UnixStream) -> io::Result<()> {
        client.set_nonblocking(false)?;
        let reply = match self.request(client)? {
            Ok(request) => {
                // If the client has gone, this write fails, and the request is dropped.
                client.write_all(&[TAKEN])?;
                self.asker.ask(request, ANSWER_TIME)
            }
            Err(error) => Reply::Error(error),
        };
        send(client, &reply)
    }

    /// Reads the request of a client that is allowed to ask; the inner error is the client's fault.
    fn request(&self, client: &UnixStream) -> io::Result<Result<Request, String>> {
        let peer = getsockopt(client, sockopt::PeerCredentials)?.uid();
        if !is_allowed(peer) {
            return Ok(Err(format!("user {peer} may not ask the daemon: run as root")));
        }
        Ok(read_line(client)?.and_then(|line| parse_request(&line)))
    }
}

/// A handle to the daemon's loop.
#[derive(Clone, Debug)]
pub struct Asker {
    sender: Sender<Pending>,
    wake: Arc<UnixStream>,
}

impl Asker {
    /// Passes the request to the daemon's loop and waits at most `patience` for its answer.
    #[must_use]
    pub fn ask(&self, request: Request, patience: Duration) -> Reply {
        let (reply, answered) = sync_channel(1);
        let over = || Reply::Error("the daemon is ending".to_owned());
        let deadline = Instant::now() + patience;
        if self.sender.send(Pending { request, reply, deadline }).is_err() {
            return over();
        }
        // If the write fails because the socket is full, the socket is readable as well.
        let _full = (&*self.wake).write(&[1]);
        match answered.recv_timeout(patience) {
            Ok(reply) => reply,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => over(),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => busy(),
        }
    }
}

/// Returns whether the user is root or the daemon's own user.
fn is_allowed(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn busy() -> Reply {
    Reply::Error("the daemon is busy: try again".to_owned())
}

/// Reads until the line feed or the end of the stream; the inner error tells the client that it took too long or sent
/// too much.
fn read_line(mut client: &UnixStream) -> io::Result<Result<Vec<u8>, String>> {
    let deadline = Instant::now() + CLIENT_TIME;
    let mut line = Vec::new();
    let mut buffer = [0; MAX_REQUEST];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(format!("no request came within {} s", CLIENT_TIME.as_secs())));
        }
        client.set_read_timeout(Some(left))?;
        let room = MAX_REQUEST - line.len();
        match client.read(&mut buffer[..room]) {
            Ok(0) => return Ok(Ok(line)),
            Ok(count) => line.extend_from_slice(&buffer[..count]),
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(Ok(line));
        }
        if line.len() == MAX_REQUEST {
            return Ok(Err(format!("the request is longer than {MAX_REQUEST} bytes")));
        }
    }
}

/// Writes the reply's line while it is being serialised, so that the text of a long list is never in memory as a
/// whole.
fn send(client: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut text =
        BufWriter::with_capacity(AT_ONCE, Paced { client, deadline: Instant::now() + ANSWER_TIME });
    serde_json::to_writer(&mut text, reply)?;
    text.write_all(b"\n")?;
    text.flush()
}

/// A client that must take some bytes within [`CLIENT_TIME`], and all of them by a deadline.
struct Paced<'a> {
    client: &'a UnixStream,
    deadline: Instant,
}

impl Write for Paced<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(CLIENT_TIME);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.client.set_write_timeout(Some(left))?;
        self.client.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.client.flush()
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests;
