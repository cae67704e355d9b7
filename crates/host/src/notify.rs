//! Reports the daemon's state to the service manager: sd_notify(3), one datagram to the socket in `NOTIFY_SOCKET`.
//!
//! The crate sd-notify is not used: it blocks if the manager does not read, and does not support abstract sockets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use bufwise_bpf::now;
use bufwise_units::Micros;

use crate::error::{During, Result};

/// Largest number of changes of state that are kept for a manager that does not read: those of two reloads.
const MOST_OWED: usize = 4;

/// The socket of the service manager; does nothing if there is no manager.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Changes of state that the manager has not taken yet, because its queue was full; oldest first.
    owed: RefCell<VecDeque<String>>,
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
        Ok(Self { socket, owed: RefCell::default(), watchdog })
    }

    /// Returns the interval in which the manager requires a sign of life; `None`: it requires none.
    #[must_use]
    pub fn watchdog(&self) -> Option<Micros> {
        Some(Micros(u64::try_from(self.watchdog?.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Reports that the daemon is ready, with a status line.
    pub fn ready(&self, status: &str) {
        self.change(format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that a reload begins; [`Notify::ready`] ends it.
    pub fn reloading(&self) {
        self.change(format!("RELOADING=1\nMONOTONIC_USEC={}", now().0));
    }

    /// Reports a new status line.
    pub fn status(&self, status: &str) {
        self.sign(&format!("STATUS={status}"));
    }

    /// Sends the sign of life that the watchdog waits for.
    pub fn alive(&self) {
        self.sign("WATCHDOG=1");
    }

    /// Reports that the daemon is about to end.
    pub fn stopping(&self) {
        self.change("STOPPING=1".to_owned());
    }

    /// Reports a change of state, which the manager waits for: sends it now, or before the next sign.
    fn change(&self, text: String) {
        self.owed.borrow_mut().push_back(text);
        if !self.settle() && self.owed.borrow().len() > MOST_OWED {
            self.owed.borrow_mut().pop_front();
        }
    }

    /// Sends a sign of life or a status, which the next one replaces, once no change of state has to go first.
    fn sign(&self, text: &str) {
        let _lost = self.settle() && self.send(text);
    }

    /// Sends the changes that are owed; returns whether none is left.
    fn settle(&self) -> bool {
        let mut owed = self.owed.borrow_mut();
        while owed.front().is_some_and(|change| self.send(change)) {
            owed.pop_front();
        }
        owed.is_empty()
    }

    /// Returns whether the manager has taken the message, or never will; false: its queue is full.
    fn send(&self, text: &str) -> bool {
        let Some((socket, address)) = &self.socket else { return true };
        let sent = socket.send_to_addr(text.as_bytes(), address);
        !sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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
            let notify = Notify { socket: Some(open(&name).unwrap()), ..Notify::default() };
            notify.ready("tuning");
            let mut buffer = [0; 100];
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"READY=1\nSTATUS=tuning");
        }
    }

    #[test]
    fn a_manager_that_is_gone_is_no_error() {
        let notify =
            Notify { socket: Some(open(&"/nonexistent/notify".into()).unwrap()), ..Notify::default() };
        notify.alive();
        Notify::default().alive();
    }

    #[test]
    fn a_change_of_state_waits_for_a_manager_whose_queue_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notify = Notify { socket: Some(open(&path.into_os_string()).unwrap()), ..Notify::default() };
        let hear = || {
            let mut buffer = [0; 100];
            let len = manager.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
        };
        // A queue holds eleven by default (net.unix.max_dgram_qlen), and this manager reads none of them.
        for _ in 0..10_000 {
            notify.alive();
        }
        notify.reloading();
        notify.ready("tuning");
        while let Some(message) = hear() {
            assert_eq!(message, "WATCHDOG=1");
        }
        notify.alive();
        assert!(hear().unwrap().starts_with("RELOADING=1\n"));
        assert_eq!(hear().as_deref(), Some("READY=1\nSTATUS=tuning"));
        assert_eq!(hear().as_deref(), Some("WATCHDOG=1"));
        assert_eq!(hear(), None);
    }
}
