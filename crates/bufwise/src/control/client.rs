//! Asking the daemon.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

use super::message::{Reply, Request};
use super::{MAX_REPLY, server};

/// Time to take the request; the reply may take as long as the daemon gives itself, and a little more.
const REQUEST_TIME: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_secs(2);

/// Asks the daemon that listens at `path`; `None` if there is none.
///
/// # Errors
/// There is one, but it may not be asked (only root may), it does not answer in time, or not in our words. That it
/// could not do what was asked is no error here: [`Reply::Error`].
pub(crate) fn ask(path: &Path, request: &Request) -> Result<Option<Reply>> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                io::ErrorKind::PermissionDenied => {
                    bail!("only root may ask the daemon at {}", path.display())
                }
                _ => Err(error).with_context(|| format!("cannot reach the daemon at {}", path.display())),
            };
        }
    };
    let daemon = getsockopt(&stream, sockopt::PeerCredentials).context("cannot tell whose daemon this is")?;
    if daemon.uid() != 0 && daemon.uid() != geteuid().as_raw() {
        bail!("what listens at {} belongs to user {}", path.display(), daemon.uid());
    }
    exchange(&stream, request)
        .with_context(|| format!("the daemon at {} did not answer", path.display()))
        .map(Some)
}

fn exchange(mut stream: &UnixStream, request: &Request) -> Result<Reply> {
    stream.set_write_timeout(Some(REQUEST_TIME))?;
    stream.set_read_timeout(Some(server::ANSWER_TIME + MARGIN))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    // A daemon that turns us away may close before it has read this; what it said is there to be read.
    let written = stream.write_all(&line);
    let mut reply = Vec::new();
    let read = stream.take(MAX_REPLY).read_to_end(&mut reply);
    if reply.is_empty() {
        written?;
        read?;
        bail!("it closed the connection");
    }
    serde_json::from_slice(&reply).context("its reply is not understood: is it of another version?")
}
