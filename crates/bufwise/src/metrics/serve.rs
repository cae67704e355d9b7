//! Serves the metrics, on a thread of its own: a slow client delays neither tuning nor other clients.

use std::convert::Infallible;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_host::control::Request as Asked;
use bufwise_host::control::server::Asker;
use bufwise_host::control::socket_file::{self, SocketFile};
use bufwise_host::log;
use bufwise_host::metrics::Address;
use nix::sys::stat::Mode;

use super::text::{self, Format};
use super::{settled, snapshot};
use crate::http::message::{self, Request, Status};
use crate::http::server::{Answer, Door, Server};

const MAX_CLIENTS: usize = 8;
/// Time that the daemon's loop has for a snapshot: while it loads programs it does not answer.
const DAEMON_TIME: Duration = Duration::from_secs(2);

/// The socket at which metrics are served; dropping it closes it.
#[derive(Debug)]
pub(crate) struct Listener {
    _file: Option<SocketFile>,
    /// Closing this end stops the thread.
    _stop: UnixStream,
}

impl Listener {
    /// Listens at the address, and serves the daemon's snapshots.
    ///
    /// # Errors
    /// The address is in use, its directory is not safe, or the kernel refuses.
    pub(crate) fn start(address: &Address, asker: Asker) -> Result<Self> {
        let (door, file) = open(address)?;
        let (stop, stopped) = UnixStream::pair().context("cannot serve metrics")?;
        let serve = move || serve(Server::new(door, MAX_CLIENTS, 0), &stopped, &asker);
        thread::Builder::new().name("metrics".to_owned()).spawn(serve).context("cannot serve metrics")?;
        Ok(Self { _file: file, _stop: stop })
    }
}

fn open(address: &Address) -> Result<(Door, Option<SocketFile>)> {
    match address {
        Address::Unix(path) => {
            let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IWGRP;
            let (listener, file) = socket_file::listen(path, mode)?;
            Ok((Door::unix(listener)?, Some(file)))
        }
        Address::Tcp(address) => {
            let door = TcpListener::bind(address).and_then(Door::tcp);
            let door = door.with_context(|| format!("cannot serve metrics at {address}"))?;
            if !address.ip().is_loopback() {
                log::warn(format_args!("metrics are served at {address} to whoever reaches it, unencrypted"));
            }
            Ok((door, None))
        }
    }
}

/// Serves until the listener is dropped.
fn serve(mut server: Server<Infallible>, stopped: &UnixStream, asker: &Asker) {
    while let Ok(false) = server.turn(&[stopped.as_fd()], |request| Answer::Whole(answer(asker, request))) {}
}

fn answer(asker: &Asker, request: Result<Request, Status>) -> Vec<u8> {
    match request.and_then(|request| wanted(&request)) {
        Ok(format) => match settled(|| snapshot(asker.ask(Asked::Metrics, DAEMON_TIME))) {
            Ok(snapshot) => {
                message::response("200 OK", format.content_type(), "", &text::render(&snapshot, format))
            }
            Err(error) => message::refusal(Status::Unavailable, "", &error.to_string()),
        },
        Err(status) => message::refusal(status, "", "this server has only GET /metrics"),
    }
}

/// Returns the format that the request asks for.
fn wanted(request: &Request) -> Result<Format, Status> {
    let is_open = |accepted: &str| accepted.contains("application/openmetrics-text");
    match (request.path(), request.is_get()) {
        ("/metrics", true) if request.values("accept").any(is_open) => Ok(Format::Openmetrics),
        ("/metrics", true) => Ok(Format::Prometheus),
        ("/metrics", false) => Err(Status::MethodNotAllowed),
        _ => Err(Status::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::message::tests::sound;

    #[test]
    fn the_metrics_are_served_in_the_format_that_is_accepted() {
        let plain = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(wanted(&sound(plain)), Ok(Format::Prometheus));
        for line in [
            "accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1",
            "ACCEPT:application/openmetrics-text",
        ] {
            let request = format!("GET /metrics?a=b HTTP/1.0\n{line}\n\n");
            assert_eq!(wanted(&sound(&request)), Ok(Format::Openmetrics), "{request}");
        }
    }

    #[test]
    fn all_else_is_refused() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", Status::NotFound),
            ("GET /metrics/x HTTP/1.1\r\n\r\n", Status::NotFound),
            ("DELETE /etc/passwd HTTP/1.1\r\n\r\n", Status::NotFound),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
        ] {
            assert_eq!(wanted(&sound(request)), Err(status), "{request:?}");
        }
    }
}
