//! Data connections, accepted from or made to the client alone.
//!
//! Source: RFC 2577 (bounce, port stealing), RFC 1579 (passive by default).
//! Properties kept: a data connection's peer has the same address as the control connection's; a listening port is
//! picked by the system, or from a random one on in the allowed range, whose ports are all tried; it is bound to the
//! address that the client already talks to, and is closed as soon as one connection has come; the server connects only
//! to the control connection's peer, and to no port below 1024.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::time::Duration;

use bufwise_mover::{Cancel, MoveError, Sockets, accept_unless};

use super::control::with_port;

/// Ports below are for services of the system: no data connection goes there.
const FIRST_FREE_PORT: u16 = 1_024;

/// How the next data connection is made.
#[derive(Debug)]
pub(super) enum Way {
    /// The client connects to this.
    Passive(TcpListener),
    /// We connect to the client.
    Active(SocketAddr),
}

/// Why there is no data connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DataError {
    #[error("no data connection was made within {seconds} s")]
    Nobody { seconds: u64 },
    #[error("the transfer was cancelled")]
    Cancelled,
    #[error(transparent)]
    Socket(#[from] MoveError),
}

/// Returns where to connect for a client at `peer` that names `target`; `None`: the server must not. The address is
/// that of `peer`: of a link-local one, only the control connection knows the interface.
pub(super) fn own_port(target: SocketAddr, peer: SocketAddr) -> Option<SocketAddr> {
    let is_own = target.ip().to_canonical() == peer.ip().to_canonical();
    (is_own && target.port() >= FIRST_FREE_PORT).then(|| with_port(peer, target.port()))
}

/// Waits at the address of `local`, on one of `ports` or any.
pub(super) fn listen(
    sockets: &Sockets,
    local: SocketAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> Result<TcpListener, MoveError> {
    let Some(ports) = ports else {
        return sockets.listen(with_port(local, 0));
    };
    let first = random_of(ports);
    let mut listened = sockets.listen(with_port(local, first));
    for port in (first..=*ports.end()).skip(1).chain(*ports.start()..first) {
        if !is_taken(&listened) {
            break;
        }
        listened = sockets.listen(with_port(local, port));
    }
    listened
}

/// Whether there is no listener because all ports are taken.
pub(super) fn is_taken(listened: &Result<TcpListener, MoveError>) -> bool {
    matches!(listened, Err(MoveError::Connect { source, .. }) if source.kind() == io::ErrorKind::AddrInUse)
}

/// Returns an unpredictable port.
fn random_of(ports: &RangeInclusive<u16>) -> u16 {
    let count = u64::from(ports.end() - ports.start()) + 1;
    // Without random numbers the port is predictable; an attacker still needs the client's address.
    let random = getrandom::u64().unwrap_or(0);
    ports.start() + u16::try_from(random % count).unwrap_or(0)
}

impl Way {
    /// Makes the connection, with `peer` at its other end, within `timeout`.
    pub(super) fn open(
        self,
        sockets: &Sockets,
        peer: IpAddr,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<TcpStream, DataError> {
        let opened = match self {
            Self::Active(target) => sockets.connect_unless(target, timeout, cancel),
            Self::Passive(listener) => accept_unless(&listener, peer, timeout, cancel),
        };
        opened.map_err(|error| match error {
            MoveError::Cancelled { .. } => DataError::Cancelled,
            MoveError::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                DataError::Nobody { seconds: timeout.as_secs() }
            }
            other => other.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddrV6};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_server_connects_to_the_client_only_and_to_no_service() {
        let fit = |target: &str| own_port(target.parse().unwrap(), SocketAddr::new(HERE, 5_000)).is_some();
        assert!(fit("127.0.0.1:1024") && fit("[::ffff:127.0.0.1]:40000"));
        assert!(!fit("127.0.0.2:40000") && !fit("127.0.0.1:1023") && !fit("127.0.0.1:25"));
    }

    #[test]
    fn the_interface_of_a_link_local_client_is_kept() {
        let client = |port| SocketAddr::from(SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, 3));
        assert_eq!(own_port("[fe80::1]:40000".parse().unwrap(), client(5_000)), Some(client(40_000)));
    }

    #[test]
    fn a_stranger_is_hung_up_on_and_the_client_let_in() {
        let listener = listen(&Sockets::default(), SocketAddr::new(HERE, 0), None).unwrap();
        let address = listener.local_addr().unwrap();
        let stranger = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        stranger.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        stranger.connect(&address.into()).unwrap();
        let client = TcpStream::connect(address).unwrap();
        let cancel = Cancel::new().unwrap();
        let accepted =
            Way::Passive(listener).open(&Sockets::default(), HERE, Duration::from_secs(10), &cancel).unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), client.local_addr().unwrap());
        let mut stranger = TcpStream::from(stranger);
        assert_eq!(io::Read::read(&mut stranger, &mut [0]).unwrap_or(0), 0);
        assert!(TcpStream::connect(address).is_err(), "one connection, and the port is closed");
    }

    #[test]
    fn waiting_ends_in_time_and_when_cancelled() {
        let cancel = Cancel::new().unwrap();
        let open = |timeout| {
            let listener = listen(&Sockets::default(), SocketAddr::new(HERE, 0), None).unwrap();
            Way::Passive(listener).open(&Sockets::default(), HERE, timeout, &cancel)
        };
        assert!(matches!(open(Duration::from_millis(20)), Err(DataError::Nobody { .. })));
        cancel.cancel();
        assert!(matches!(open(Duration::from_secs(60)), Err(DataError::Cancelled)));
    }

    #[test]
    fn a_client_that_does_not_take_the_connection_delays_no_end() {
        // A listener with a full queue: the system does not answer further connections.
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        full.bind(&SocketAddr::new(HERE, 0).into()).unwrap();
        full.listen(0).unwrap();
        let target = full.local_addr().unwrap().as_socket().unwrap();
        let _first = TcpStream::connect(target).unwrap();
        let cancel = Cancel::new().unwrap();
        let open = |timeout| Way::Active(target).open(&Sockets::default(), HERE, timeout, &cancel);
        assert!(matches!(open(Duration::from_millis(20)), Err(DataError::Nobody { .. })));
        cancel.cancel();
        assert!(matches!(open(Duration::from_secs(60)), Err(DataError::Cancelled)));
        // Bound and not listening: no other test gets the port.
        let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::new(HERE, 0).into()).unwrap();
        let nobody = silent.local_addr().unwrap().as_socket().unwrap();
        let refused =
            Way::Active(nobody).open(&Sockets::default(), HERE, Duration::from_secs(60), &Cancel::default());
        assert!(matches!(refused, Err(DataError::Socket(MoveError::Connect { .. }))), "{refused:?}");
    }

    #[test]
    fn ports_come_from_the_range_until_it_is_used_up() {
        // Below the ports that the system gives to connections, one of which could take it meanwhile.
        let first = 32_000 + (std::process::id() % 400) as u16;
        let range = first..=first + 299;
        let next = || listen(&Sockets::default(), SocketAddr::new(HERE, 0), Some(&range)).ok();
        let listeners: Vec<TcpListener> = std::iter::from_fn(next).collect();
        assert!(!listeners.is_empty());
        for listener in &listeners {
            assert!(range.contains(&listener.local_addr().unwrap().port()));
        }
        let left = range.clone().filter(|port| TcpListener::bind((HERE, *port)).is_ok()).count();
        assert_eq!(left, 0, "each is tried");
    }
}
