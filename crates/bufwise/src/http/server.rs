//! Serves the clients of one thread, none of which blocks another: requests, responses, and streams of events.
//!
//! Bounds: the number of clients (a new client replaces the oldest one that is not a stream); [`MAX_HEADER`] bytes and
//! 3 s for a request, 3 s for reading a response, one request per connection. A stream that has not taken its last
//! event misses the next ones, and is closed after 10 s. So at most one response or one event is kept per client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::{self, MAX_HEADER, Parsed, Request, Status};

/// Time that a client has for its request, and again to read the response.
const CLIENT_TIME: Duration = Duration::from_secs(3);
/// Time that a stream has to read an event.
const EVENT_TIME: Duration = Duration::from_secs(10);
/// Pause when no client can be accepted, probably because descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// The listener at which clients arrive.
#[derive(Debug)]
pub(crate) enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Door {
    /// Uses an existing listener.
    pub(crate) fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Uses an existing listener.
    pub(crate) fn unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener))
    }

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

/// A client's connection, which never blocks.
trait Stream: Read + Write + AsFd + Send {}

impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// The answer to a request.
pub(crate) enum Answer<S> {
    /// A response, after which the connection is closed.
    Whole(Vec<u8>),
    /// The beginning of a response to which events are added; `S` identifies the stream.
    Stream(Vec<u8>, S),
}

/// Progress of a client.
enum Phase<S> {
    /// The client sends its request; the bytes received so far.
    Asking(Vec<u8>),
    /// The response is being written; the connection is closed after it.
    Ending,
    Streaming(S),
}

/// One client.
struct Client<S> {
    stream: Box<dyn Stream>,
    phase: Phase<S>,
    /// When the connection is closed if there is no progress; `None`: the server waits for nothing.
    deadline: Option<Instant>,
    /// Bytes still to be written.
    output: Vec<u8>,
}

impl<S> Client<S> {
    fn new(stream: Box<dyn Stream>) -> Self {
        let deadline = Some(Instant::now() + CLIENT_TIME);
        Self { stream, phase: Phase::Asking(Vec::new()), deadline, output: Vec::new() }
    }

    fn waits_for(&self) -> PollFlags {
        match (&self.phase, self.output.is_empty()) {
            (Phase::Asking(_), _) | (Phase::Streaming(_), true) => PollFlags::POLLIN,
            (Phase::Streaming(_), false) => PollFlags::POLLIN | PollFlags::POLLOUT,
            (Phase::Ending, _) => PollFlags::POLLOUT,
        }
    }

    fn wants(&self) -> Option<&S> {
        match &self.phase {
            Phase::Streaming(wanted) => Some(wanted),
            Phase::Asking(_) | Phase::Ending => None,
        }
    }

    /// Reads or writes as much as possible without blocking; returns false when the client must be dropped.
    fn go_on(&mut self, answer: impl FnOnce(Result<Request, Status>) -> Answer<S>) -> bool {
        match self.phase {
            Phase::Asking(_) => match self.read() {
                Ok(Parsed::Partial) => return true,
                Ok(Parsed::Request(request)) => self.begin(answer(Ok(request))),
                Ok(Parsed::Refused(status)) => self.begin(answer(Err(status))),
                Err(error) => return is_later(&error),
            },
            // The client of a stream must not send anything: bytes as well as an end of file close it.
            Phase::Streaming(_) if !self.stream.read(&mut [0]).is_err_and(|error| is_later(&error)) => {
                return false;
            }
            Phase::Streaming(_) | Phase::Ending => {}
        }
        self.write()
    }

    fn begin(&mut self, answer: Answer<S>) {
        (self.output, self.phase) = match answer {
            Answer::Whole(response) => (response, Phase::Ending),
            Answer::Stream(head, wanted) => (head, Phase::Streaming(wanted)),
        };
        self.deadline = Some(Instant::now() + CLIENT_TIME);
    }

    fn read(&mut self) -> io::Result<Parsed> {
        let Phase::Asking(request) = &mut self.phase else { return Ok(Parsed::Partial) };
        let mut buffer = [0; MAX_HEADER];
        let room = MAX_HEADER - request.len();
        match self.stream.read(&mut buffer[..room])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                let known = request.len();
                request.extend_from_slice(&buffer[..count]);
                Ok(if message::is_due(request, known) { message::parse(request) } else { Parsed::Partial })
            }
        }
    }

    /// Sends an event, unless the previous one is still being written; returns false when the client must be dropped.
    fn send(&mut self, event: impl FnOnce(&S) -> Vec<u8>) -> bool {
        let Phase::Streaming(wanted) = &self.phase else { return true };
        if !self.output.is_empty() {
            return true;
        }
        self.output = event(wanted);
        self.deadline = Some(Instant::now() + EVENT_TIME);
        self.write()
    }

    /// Writes as much as possible without blocking; returns false when the client must be dropped.
    fn write(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => self.output.drain(..count),
                Err(error) => return is_later(&error),
            };
        }
        self.deadline = None;
        matches!(self.phase, Phase::Streaming(_))
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A listener and its clients.
pub(crate) struct Server<S> {
    door: Door,
    most_clients: usize,
    most_streams: usize,
    /// Oldest first.
    clients: Vec<Client<S>>,
}

impl<S> Server<S> {
    /// Serves the clients of `door`: at most `most_clients` at a time, of which at most `most_streams`, a smaller
    /// number, are streams.
    pub(crate) fn new(door: Door, most_clients: usize, most_streams: usize) -> Self {
        Self { door, most_clients, most_streams, clients: Vec::new() }
    }

    /// Returns what each stream was opened for.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &S> {
        self.clients.iter().filter_map(Client::wants)
    }

    /// Waits for clients or for one of `others`, and does what can be done without blocking; returns whether one of
    /// `others` is readable. A stream beyond the limit is refused.
    ///
    /// # Errors
    /// Waiting failed.
    pub(crate) fn turn(
        &mut self,
        others: &[BorrowedFd<'_>],
        mut answer: impl FnMut(Result<Request, Status>) -> Answer<S>,
    ) -> Result<bool, Errno> {
        let mut fds: Vec<PollFd<'_>> =
            others.iter().map(|other| PollFd::new(*other, PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.door.as_fd(), PollFlags::POLLIN));
        fds.extend(self.clients.iter().map(|one| PollFd::new(one.stream.as_fd(), one.waits_for())));
        match poll(&mut fds, self.patience()) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let (others, clients) = ready.split_at(others.len());
        self.go_on(&clients[1..], Instant::now(), &mut answer);
        if clients[0] {
            self.accept();
        }
        Ok(others.contains(&true))
    }

    /// Sends an event to each stream; a stream that has not read the previous one misses it.
    pub(crate) fn publish(&mut self, event: impl Fn(&S) -> Vec<u8>) {
        self.clients.retain_mut(|client| client.send(&event));
    }

    /// Returns the time until the first client's deadline.
    fn patience(&self) -> PollTimeout {
        let deadline = self.clients.iter().filter_map(|client| client.deadline).min();
        deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, or the last millisecond would be a busy wait.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }

    /// Goes on with the clients that are `ready`, and drops those whose time was over at `now`, before any answer: while one
    /// was made, the request of another may have come.
    fn go_on(
        &mut self,
        ready: &[bool],
        now: Instant,
        answer: &mut impl FnMut(Result<Request, Status>) -> Answer<S>,
    ) {
        let mut ready = ready.iter();
        let (mut streams, most) = (self.streams().count(), self.most_streams);
        let mut admit = |request| match answer(request) {
            Answer::Stream(..) if streams >= most => {
                Answer::Whole(message::refusal(Status::Unavailable, "", "too many pages are open"))
            }
            Answer::Stream(head, wanted) => {
                streams += 1;
                Answer::Stream(head, wanted)
            }
            whole @ Answer::Whole(_) => whole,
        };
        self.clients.retain_mut(|client| {
            let is_ready = ready.next().is_some_and(|ready| *ready);
            let is_open = !is_ready || client.go_on(&mut admit);
            is_open && client.deadline.is_none_or(|deadline| now < deadline)
        });
    }

    fn accept(&mut self) {
        match self.door.accept() {
            Ok(stream) => {
                if self.clients.len() >= self.most_clients {
                    let oldest = self.clients.iter().position(|client| client.wants().is_none());
                    let Some(oldest) = oldest else { return };
                    self.clients.remove(oldest);
                }
                self.clients.push(Client::new(stream));
            }
            Err(error) if is_later(&error) || error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a server of streams, and a function that connects a client.
    fn server(directory: &tempfile::TempDir, most_streams: usize) -> (Server<()>, impl Fn() -> UnixStream) {
        let path = directory.path().join("door");
        let door = Door::unix(UnixListener::bind(&path).unwrap()).unwrap();
        let connect = move || {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            client
        };
        (Server::new(door, 4, most_streams), connect)
    }

    /// Accepts one client, and begins its stream.
    fn let_in(server: &mut Server<()>) {
        for _ in 0..2 {
            server.turn(&[], |_| Answer::Stream(b"head\n".to_vec(), ())).unwrap();
        }
    }

    fn event(letter: u8) -> Vec<u8> {
        vec![letter; 4 << 20]
    }

    #[test]
    fn a_stream_that_does_not_read_misses_events_and_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, connect) = server(&directory, 1);
        let mut client = connect();
        let_in(&mut server);
        for letter in *b"abc" {
            server.publish(|()| event(letter));
            assert!(server.clients[0].output.len() < event(0).len(), "one event is kept, and no more");
        }
        let deadline = server.clients[0].deadline.expect("it has to read");
        assert!(deadline <= Instant::now() + EVENT_TIME);
        server.clients[0].deadline = Some(Instant::now());
        server.turn(&[], |_| Answer::Whole(Vec::new())).unwrap();
        assert_eq!(server.streams().count(), 0);
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).unwrap();
        assert!(seen.len() < event(0).len() && !seen.contains(&b'b'), "what did not fit was not sent");
    }

    #[test]
    fn a_stream_that_reads_gets_each_event_and_may_be_silent_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, connect) = server(&directory, 1);
        let mut client = connect();
        let_in(&mut server);
        for letter in *b"ab" {
            server.publish(|()| vec![letter]);
            assert_eq!(server.clients[0].deadline, None);
        }
        let mut seen = [0; 7];
        client.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"head\nab");
        drop(client);
        server.turn(&[], |_| Answer::Whole(Vec::new())).unwrap();
        assert!(server.clients.is_empty(), "it is gone");
    }

    #[test]
    fn a_client_whose_time_ends_while_another_is_answered_stays_for_its_request() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, connect) = server(&directory, 1);
        let (_first, _second) = (connect(), connect());
        (0..2).for_each(|_| server.accept());
        let (now, end) = (Instant::now(), Instant::now() + Duration::from_millis(5));
        server.clients[1].deadline = Some(end);
        let mut slow = |_: Result<Request, Status>| {
            thread::sleep(end.saturating_duration_since(Instant::now()));
            Answer::Whole(b"first".to_vec())
        };
        server.go_on(&[true, false], now, &mut slow);
        assert_eq!(server.clients.len(), 1, "the first has its answer");
        assert_eq!(server.clients[0].deadline, Some(end));
        server.go_on(&[true], end, &mut |_| Answer::Whole(b"second".to_vec()));
        assert!(server.clients.is_empty());
    }

    #[test]
    fn a_stream_too_many_is_refused_and_newcomers_take_the_place_of_none() {
        let directory = tempfile::tempdir().unwrap();
        let (mut server, connect) = server(&directory, 1);
        let _stream = connect();
        let_in(&mut server);
        let mut refused = connect();
        let_in(&mut server);
        let mut answer = String::new();
        refused.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let path = directory.path().join("door");
        let silent: Vec<UnixStream> =
            std::iter::repeat_with(|| UnixStream::connect(&path).unwrap()).take(6).collect();
        silent.iter().for_each(|_| assert!(!server.turn(&[], |_| Answer::Whole(Vec::new())).unwrap()));
        assert_eq!((server.clients.len(), server.streams().count()), (4, 1));
    }
}
