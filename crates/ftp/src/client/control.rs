//! The control connection: sends commands, and assigns each reply to its command.
//!
//! Problem: a server may send unexpected replies (1yz at any time), answer late, in pieces, or not at all; a client
//! that assigns one reply to the wrong command is out of step for the rest of the session.
//! Source: RFC 959, sections 4.2 and 5.4: each command has one final reply (2yz to 5yz), after any number of
//! 1yz.
//! Rule: commands without their final reply are counted. A 1yz is an event and never ends a wait for a final reply.
//! A final reply that no command waits for ends the session, because later replies could not be assigned.
//! Properties kept: one owner writes and reads; every wait is bounded by a time and ends at a cancellation, whatever comes
//! meanwhile; memory is bounded by the reader's limits, the number of 1yz by the time since the last command.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_mover::Cancel;
use bufwise_mover::stream::Stream;
use bufwise_mover::tls::ClientTls;
use bufwise_mover::wake::{self, Bell};
use nix::poll::PollFlags;

use super::error::{Answer, ClientError};
use crate::wire::{Command, MAX_REPLY, Reply, ReplyReader, WireError};

/// Longest sleep: within it a cancellation is noticed.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a farewell may take.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes read at once.
const CHUNK: usize = 4_096;
/// Bytes that may come before a reply is whole: the longest one, each of its bytes doubled by telnet.
const MAX_UNREADABLE: usize = 2 * MAX_REPLY;
/// Most preliminary replies to one command, besides [`MAX_EVENTS_PER_SECOND`].
const MAX_EVENTS: u64 = 1_000;
/// Further preliminary replies that are allowed for each second since the command. Those of the dialect come at most once per
/// 10 ms, those of other servers some seconds apart.
const MAX_EVENTS_PER_SECOND: u64 = 200;
/// "Service not available, closing control connection": may come at any time.
pub(super) const CLOSING: u16 = 421;
/// Code of the reply to PWD. No other command that this client sends has a reply with this code.
const FENCE: u16 = 257;

/// The client's end of a control connection.
#[derive(Debug)]
pub(super) struct Control {
    stream: Stream,
    replies: ReplyReader,
    /// Commands whose final reply has not come.
    outstanding: usize,
    /// When the last command was sent.
    asked: Instant,
    /// Number of 1yz replies since then.
    events: u64,
    /// The server has closed its side.
    ended: bool,
    timeout: Duration,
    cancel: Cancel,
    /// The session cleans up after a cancellation, which therefore ends no wait any more.
    cleaning: bool,
}

impl Control {
    /// Takes over a new connection, before its greeting, which counts as the reply to the connection itself.
    pub(super) fn new(stream: Stream, timeout: Duration, cancel: Cancel) -> Result<Self, ClientError> {
        stream.set_nonblocking(true).map_err(|source| broken("the greeting", source))?;
        let replies = ReplyReader::new();
        Ok(Self {
            stream,
            replies,
            outstanding: 1,
            asked: Instant::now(),
            events: 0,
            ended: false,
            timeout,
            cancel,
            cleaning: false,
        })
    }

    /// Returns the peer's address, the only one to which data connections go. A link-local one names its interface.
    pub(super) fn peer(&self) -> Result<SocketAddr, ClientError> {
        self.stream.tcp().peer_addr().map_err(|source| broken("its address", source))
    }

    /// Returns our own address on this connection, where the peer can reach us, with any port.
    pub(super) fn local(&self) -> Result<SocketAddr, ClientError> {
        let mut address = self.stream.tcp().local_addr().map_err(|source| broken("our address", source))?;
        address.set_port(0);
        Ok(address)
    }

    /// Whether the command was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Returns how long an answer may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long an answer may take; returns what it was.
    pub(super) fn be_patient(&mut self, timeout: Duration) -> Duration {
        std::mem::replace(&mut self.timeout, timeout)
    }

    /// Begins the clean-up: from now on only [`QUIT_TIMEOUT`] ends a wait.
    pub(super) fn clean_up(&mut self) {
        self.cleaning = true;
        self.timeout = QUIT_TIMEOUT;
    }

    /// Switches to TLS. Bytes that came in clear text before are dropped: an attacker may have sent them.
    pub(super) fn begin_tls(self, tls: &ClientTls, host: &str) -> Result<Self, ClientError> {
        let Self { stream, outstanding, timeout, cancel, .. } = self;
        let no_tls = || ClientError::NoTls { host: host.to_owned() };
        let tcp = stream.into_plain().ok_or_else(no_tls)?;
        let stream = tls.connect(tcp, host, timeout, &cancel)?;
        Ok(Self { outstanding, ..Self::new(stream.into(), timeout, cancel)? })
    }

    /// Sends a command; its final reply is outstanding from then on.
    pub(super) fn send(&mut self, command: &Command) -> Result<(), ClientError> {
        self.write(command)?;
        self.outstanding += 1;
        (self.asked, self.events) = (Instant::now(), 0);
        Ok(())
    }

    /// Sends a command and waits for its final reply.
    pub(super) fn ask(&mut self, command: &Command) -> Result<Reply, ClientError> {
        self.settle(&command.shown())?;
        self.send(command)?;
        self.answer(&command.shown())
    }

    /// Waits for the final reply to the command sent last.
    pub(super) fn answer(&mut self, during: &str) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.next(during, deadline, None)? {
                Some(reply) if !reply.is_preliminary() => return Ok(reply),
                // Endless preliminary replies do not count as an answer.
                _ if Instant::now() < deadline => {}
                _ => return Err(self.silent(during)),
            }
        }
    }

    /// Notes that a 1yz was the whole answer to a command, so that one final reply less is outstanding.
    pub(super) fn forgive(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Gets back into step when the number of outstanding replies is unknown: sends PWD, and skips replies up to 257, which
    /// answers only PWD.
    pub(super) fn fence(&mut self) -> Result<(), ClientError> {
        self.send(&Command::Pwd)?;
        while self.answer("PWD")?.code != FENCE {}
        self.outstanding = 0;
        Ok(())
    }

    /// Returns the next reply, whatever it is; `None` at `deadline` or when `bell` rings.
    pub(super) fn next(
        &mut self,
        during: &str,
        deadline: Instant,
        bell: Option<&Bell>,
    ) -> Result<Option<Reply>, ClientError> {
        let mut unreadable = 0;
        loop {
            if let Some(reply) = self.replies.next_reply()? {
                return self.counted(reply, during).map(Some);
            }
            if self.ended {
                return Err(ClientError::Closed { during: during.to_owned() });
            }
            self.check_cancelled()?;
            match self.read(during)? {
                None => {}
                Some(_) if unreadable > MAX_UNREADABLE => return Err(WireError::ReplyTooLong.into()),
                Some(len) => {
                    unreadable += len;
                    continue;
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            let until = deadline.min(now + CANCEL_POLL_INTERVAL);
            let control = (self.stream.as_fd(), self.stream.events(PollFlags::POLLIN));
            let rung = match bell {
                Some(bell) => {
                    wake::until([control, (bell.as_fd(), PollFlags::POLLIN)], until).map(|[_, rung]| rung)
                }
                None => wake::until([control], until).map(|_| false),
            };
            if rung.map_err(|source| broken(during, source))? {
                return Ok(None);
            }
        }
    }

    /// Returns the error that `during` took too long.
    pub(super) fn silent(&self, during: &str) -> ClientError {
        ClientError::Silent { during: during.to_owned(), seconds: self.timeout.as_secs_f64() }
    }

    /// Takes in unexpected replies; a final one among them means that the session is out of step.
    fn settle(&mut self, before: &str) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.timeout;
        while self.next(before, Instant::now(), None)?.is_some() {
            if Instant::now() >= deadline {
                return Err(self.silent(before));
            }
        }
        Ok(())
    }

    fn counted(&mut self, reply: Reply, during: &str) -> Result<Reply, ClientError> {
        if reply.is_preliminary() {
            self.events += 1;
            if self.events > MAX_EVENTS + MAX_EVENTS_PER_SECOND * self.asked.elapsed().as_secs() {
                return Err(ClientError::Endless { during: during.to_owned(), count: self.events });
            }
            return Ok(reply);
        }
        if reply.code == CLOSING {
            return Err(ClientError::Refused { command: during.to_owned(), reply: Answer::from(&reply) });
        }
        match self.outstanding.checked_sub(1) {
            Some(left) => self.outstanding = left,
            None => return Err(ClientError::OutOfStep { reply: Answer::from(&reply) }),
        }
        Ok(reply)
    }

    /// Reads once; how many bytes came, 0 at the end.
    fn read(&mut self, during: &str) -> Result<Option<usize>, ClientError> {
        let mut bytes = [0; CHUNK];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                self.ended = true;
                Ok(Some(0))
            }
            Ok(len) => {
                self.replies.feed(&bytes[..len]);
                Ok(Some(len))
            }
            Err(error) if is_later(&error) => Ok(None),
            // Many servers end a TLS connection without close_notify: on the control connection that is an end, too.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended = true;
                Ok(Some(0))
            }
            Err(source) => Err(broken(during, source)),
        }
    }

    fn write(&mut self, command: &Command) -> Result<(), ClientError> {
        let bytes = command.encode()?;
        let deadline = Instant::now() + self.timeout;
        let mut rest = &bytes[..];
        loop {
            let step =
                if rest.is_empty() { self.stream.flush().map(|()| 0) } else { self.stream.write(rest) };
            match step {
                Ok(_) if rest.is_empty() => return Ok(()),
                Ok(len) => rest = &rest[len..],
                Err(error) if is_later(&error) => self.await_room(command, deadline)?,
                Err(source) => return Err(broken(&command.shown(), source)),
            }
        }
    }

    fn check_cancelled(&self) -> Result<(), ClientError> {
        if self.cancel.is_cancelled() && !self.cleaning { Err(ClientError::Interrupted) } else { Ok(()) }
    }

    fn await_room(&self, command: &Command, deadline: Instant) -> Result<(), ClientError> {
        self.check_cancelled()?;
        let until = deadline.min(Instant::now() + CANCEL_POLL_INTERVAL);
        let watched = [(self.stream.as_fd(), PollFlags::POLLOUT)];
        wake::until(watched, until).map_err(|source| broken(&command.shown(), source))?;
        if Instant::now() >= deadline {
            return Err(self.silent(&command.shown()));
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn broken(during: &str, source: io::Error) -> ClientError {
    ClientError::Broken { during: during.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_interruption_ends_the_wait_for_a_server_that_reads_no_commands() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cancel = Cancel::new().unwrap();
        cancel.cancel();
        let mut control = Control::new(tcp.into(), Duration::from_secs(30), cancel).unwrap();
        let long = Command::Cwd("x".repeat(4_000).into());
        let error = loop {
            if let Err(error) = control.send(&long) {
                break error;
            }
        };
        assert!(matches!(error, ClientError::Interrupted), "{error}");
    }
}
