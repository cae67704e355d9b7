//! The host that is probed, and the connection to it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::PORT;

/// Port of HTTPS, which most hosts serve.
const HTTPS: u16 = 443;
/// Longest time of a connection, and of one to a port that was only guessed: TCP sends a lost SYN again after a second.
const TIMEOUT: Duration = Duration::from_secs(5);
const TRIAL: Duration = Duration::from_secs(2);

/// A host, with the port if one was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: String,
    port: Option<u16>,
}

/// A connection to the target.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) control: TcpStream,
    /// Host and port in words.
    pub(super) name: String,
    /// Time that connecting took.
    pub(super) took: Duration,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write HOST, HOST:PORT, 192.0.2.1:443 or [2001:db8::1]:443".to_owned();
        let number = |port: &str| port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong);
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(number(rest.strip_prefix(':').ok_or_else(wrong)?)?)),
            None if is_ipv6(text) => (text, None),
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(number(port)?)),
                None => (text, None),
            },
        };
        let is_name =
            !host.is_empty() && !host.chars().any(|c| c.is_control() || c.is_whitespace() || c == '/');
        if is_name { Ok(Self { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

impl Target {
    /// Connects to the given port, else to that of bufwise's server, else to HTTPS.
    ///
    /// # Errors
    /// The name cannot be resolved, or no server listens there.
    pub(super) fn connect(&self) -> Result<Reached> {
        match self.port {
            Some(port) => self.at(port, TIMEOUT),
            None => self.at(PORT, TRIAL).or_else(|first| {
                let reached = self.at(HTTPS, TIMEOUT);
                // The same error, as of a name without an address, is not of one port.
                reached.map_err(|error| match error.to_string() == first.to_string() {
                    true => error,
                    false => error.context(format!("no bufwise server answers at port {PORT}")),
                })
            }),
        }
    }

    fn at(&self, port: u16, timeout: Duration) -> Result<Reached> {
        let addresses = (self.host.as_str(), port).to_socket_addrs();
        let addresses = addresses.with_context(|| format!("cannot find {}", self.host))?;
        let mut refused = None;
        for address in addresses {
            let began = Instant::now();
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(control) => {
                    let name = match self.host.parse::<IpAddr>() {
                        Ok(_) => address.to_string(),
                        Err(_) if is_ipv6(&self.host) => format!("[{}]:{port}", self.host),
                        Err(_) => format!("{}:{port} ({})", self.host, address.ip()),
                    };
                    return Ok(Reached { control, name, took: began.elapsed() });
                }
                Err(error) => refused = Some((address, error)),
            }
        }
        let (address, error) = refused.with_context(|| format!("{} has no address", self.host))?;
        Err(error).with_context(|| format!("cannot connect to {address}"))
    }
}

/// Whether a host is an address of IPv6, with or without its scope (`fe80::1%eth0`).
fn is_ipv6(host: &str) -> bool {
    let (ip, scope) = host.split_once('%').unwrap_or((host, ""));
    ip.parse::<Ipv6Addr>().is_ok() && !scope.contains(':')
}

/// Parses the address to listen at.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match inside.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, PORT)),
        Err(_) => {
            text.parse().map_err(|_| "write 192.0.2.1, 192.0.2.1:2122 or [2001:db8::1]:2122".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_with_or_without_a_port() {
        for (text, host, port) in [
            ("example.org", "example.org", None),
            ("example.org:80", "example.org", Some(80)),
            ("192.0.2.1:443", "192.0.2.1", Some(443)),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("[2001:db8::1]:443", "2001:db8::1", Some(443)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("[fe80::1%eth0]:443", "fe80::1%eth0", Some(443)),
        ] {
            assert_eq!(text.parse(), Ok(Target { host: host.to_owned(), port }), "{text}");
        }
        let wrong = ["", ":80", "host:", "host:0", "host:99999", "[::1", "[::1]80", "http://host/", "a b"];
        for text in wrong.into_iter().chain(["fe80::1%eth0:443"]) {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_server_listens_where_it_is_told() {
        assert_eq!(listen("192.0.2.1"), Ok("192.0.2.1:2122".parse().unwrap()));
        assert_eq!(listen("::1"), Ok("[::1]:2122".parse().unwrap()));
        assert_eq!(listen("192.0.2.1:0"), Ok("192.0.2.1:0".parse().unwrap()));
        assert!(listen("localhost").is_err() && listen("").is_err());
    }
}
