//! Reports the daemon's state to the service manager: sd_notify(3), one datagram to the socket in `NOTIFY_SOCKET`.
//!
//! The crate sd-notify is not used: it blocks if the manager does not read, and does not support abstract sockets.

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use bufwise_bpf::now;
use bufwise_units::Micros;

use crate::error::{During, Result};

/// The socket of the service manager; does nothing if there is no manager.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// Reads the socket and the watchdog's interval from the environment.
    pub fn from_environment() -> Result<Self> {
        let socket = env::var_os("NOTIFY_SOCKET").map(|name| open(&name)).transpose()?;
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog =
            number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0).map(Duration::from_micros);
        Ok(Self { socket, watchdog })
    }

    /// Returns the interval in which the manager requires a sign of life; `None`: it requires none.
    #[must_use]
    pub fn watchdog(&self) -> Option<Micros> {
        Some(Micros(u64::try_from(self.watchdog?.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Reports that the daemon is ready, with a status line.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that a reload begins; [`Notify::ready`] ends it.
    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now().0));
    }

    /// Reports a new status line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Sends the sign of life that the watchdog waits for.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Reports that the daemon is about to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A lost message is made good by the next.
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
