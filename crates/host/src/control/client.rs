//! The client's end of the control socket.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, socket, sockopt};
use nix::unistd::geteuid;

use super::error::{ControlError, ExchangeError};
use super::message::{Reply, Request};
use super::{MAX_REPLY, server};
use crate::error::{During, Result};

/// Time to connect, to send the request, and to receive the byte that says that it was taken. The reply may take as
/// long as the daemon allows itself ([`server::ANSWER_TIME`]), plus [`MARGIN`].
const REQUEST_TIME: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_secs(2);

/// Sends a request to the daemon that listens at `path`; `None` if no daemon listens there.
///
/// # Errors
/// The daemon may not be asked (only root may), does not answer in time, or sends a reply that is not understood. A
/// request that the daemon could not fulfil is no error here: [`Reply::Error`].
pub fn ask(path: &Path, request: &Request) -> Result<Option<Reply>> {
    let no_answer = |source| ControlError::NoAnswer { path: path.into(), source }.into();
    let stream = match connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                io::ErrorKind::WouldBlock => Err(no_answer(ExchangeError::Silent(REQUEST_TIME))),
                io::ErrorKind::PermissionDenied => Err(ControlError::NotAllowed { path: path.into() }.into()),
                _ => Err(error).during(|| format!("cannot reach the daemon at {}", path.display())),
            };
        }
    };
    let daemon = getsockopt(&stream, sockopt::PeerCredentials)
        .during(|| "cannot tell whose daemon this is".to_owned())?;
    if daemon.uid() != 0 && daemon.uid() != geteuid().as_raw() {
        return Err(ControlError::Stranger { path: path.into(), owner: daemon.uid() }.into());
    }
    exchange(&stream, request).map(Some).map_err(no_answer)
}

/// Connects; [`io::ErrorKind::WouldBlock`] if the queue of waiting clients stays full for [`REQUEST_TIME`].
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(stream);
    stream.set_write_timeout(Some(REQUEST_TIME))?;
    socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

fn exchange(mut stream: &UnixStream, request: &Request) -> Result<Reply, ExchangeError> {
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    // A daemon that refuses us may close before it has read this; its reply can still be read.
    let written = stream.write_all(&line);
    let mut reply = Vec::new();
    let read = receive(stream, &mut reply);
    if reply.trim_ascii().is_empty() {
        read?;
        written?;
        return Err(ExchangeError::Closed);
    }
    match serde_json::from_slice(&reply) {
        // The daemon has ended meanwhile, or was not heard in time.
        Err(error) if error.is_eof() => read.and(Err(ExchangeError::Closed)),
        parsed => Ok(parsed?),
    }
}

/// Reads the byte that says that the request was taken, and then the reply.
fn receive(stream: &UnixStream, reply: &mut Vec<u8>) -> Result<(), ExchangeError> {
    for (time, most) in [(REQUEST_TIME, 1), (server::ANSWER_TIME + MARGIN, MAX_REPLY)] {
        stream.set_read_timeout(Some(time))?;
        stream.take(most).read_to_end(reply).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ExchangeError::Silent(time),
            _ => error.into(),
        })?;
    }
    Ok(())
}
