//! Telling the service manager how we fare: sd_notify(3), which is one datagram to the socket in `NOTIFY_SOCKET`.
//!
//! Not by the crate sd-notify: it waits for a manager that does not read, and knows no abstract sockets.

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use bufwise_bpf::now;
use bufwise_units::Micros;

use crate::error::{During, Result};

/// The way to the service manager; silent where there is none.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub fn from_environment() -> Result<Self> {
        let socket = env::var_os("NOTIFY_SOCKET").map(|name| open(&name)).transpose()?;
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog =
            number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0).map(Duration::from_micros);
        Ok(Self { socket, watchdog })
    }

    /// How often the manager wants a sign of life; `None`: it does not wait for any.
    #[must_use]
    pub fn watchdog(&self) -> Option<Micros> {
        Some(Micros(u64::try_from(self.watchdog?.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Ready, and what the status line shows.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// About to take in a new configuration; [`Notify::ready`] ends it.
    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now().0));
    }

    /// A new status line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The sign that the watchdog waits for.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// About to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A manager that does not listen is told again by the next message.
            let _unheard = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

fn open(name: &OsString) -> Result<(UnixDatagram, SocketAddr)> {
    let what = || format!("cannot tell the service manager (NOTIFY_SOCKET={}) anything", name.display());
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        _ => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().during(what)?;
    // A manager that is busy must not stall the tuning.
    socket.set_nonblocking(true).during(what)?;
    Ok((socket, address.during(what)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_sockets_in_the_file_system_and_abstract_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let abstract_name = format!("bufwise-test-{}", std::process::id());
        let in_files = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let nowhere = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, name) in
            [(in_files, path.into_os_string()), (nowhere, format!("@{abstract_name}").into())]
        {
            let notify = Notify { socket: Some(open(&name).unwrap()), watchdog: None };
            notify.ready("tuning");
            let mut buffer = [0; 100];
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"READY=1\nSTATUS=tuning");
        }
    }

    #[test]
    fn a_manager_that_is_gone_is_no_error() {
        let notify = Notify { socket: Some(open(&"/nonexistent/notify".into()).unwrap()), watchdog: None };
        notify.alive();
        Notify::default().alive();
    }
}
