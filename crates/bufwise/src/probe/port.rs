//! Measures against any TCP port: round trips by connecting, and the capacity as far as the first answer shows it.
//!
//! Servers of other programs send no packet trains. But the first bytes that they send, unasked or in answer to a request
//! that anybody may make (for a page over clear text, or for the certificates), leave them back to back, unless they pace.
//! The tight link then spaces the segments, and their spacing shows its capacity.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_mover::probe::{FirstFlight, first_flight};
use bufwise_mover::tls::{ClientTls, Trust};
use bufwise_socket::options;
use bufwise_units::Micros;

use super::own::Depth;
use super::report::{Direction, Figure, Method, Report, RoundTrip};
use super::target::Target;

/// Number of connections for round trips, the time between two, and their timeout.
const CONNECTS: usize = 10;
const SPACING: Duration = Duration::from_millis(250);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections whose first answer is read.
const ANSWERS: usize = 3;
/// Time that the server has to produce an answer, besides the round trip.
const THINKING: Duration = Duration::from_millis(700);
/// Port of HTTP, and ports at which clear-text HTTP is usual.
const HTTP: u16 = 80;
const CLEAR: [u16; 5] = [HTTP, 8_000, 8_008, 8_080, 8_888];

/// How the first answer was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Page,
    Certificates,
}

/// Measures the path to the port to which `control` is connected.
///
/// # Errors
/// The port accepts no more connections.
pub(super) fn measure(target: &Target, control: TcpStream, depth: Depth) -> Result<Report> {
    let address = control.peer_addr().context("the connection ended")?;
    let (connects, answers) = if depth == Depth::Full { (CONNECTS, ANSWERS) } else { (ANSWERS, 1) };
    let mut found = Found::default();
    found.look_at(&control);
    drop(control);
    let open = || {
        TcpStream::connect_timeout(&address, TIMEOUT)
            .with_context(|| format!("cannot connect to {address} again"))
    };
    let mut asked = Asked::Nothing;
    let mut flights = Vec::new();
    for round in 0..connects {
        let next = Instant::now() + SPACING;
        let tcp = open()?;
        found.look_at(&tcp);
        if round < answers {
            let heard = hear(&tcp, &target.host, found.least(), &mut asked)?;
            flights.push((heard, found.segment));
        }
        drop(tcp);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let rates = flights.iter().filter_map(|(flight, segment)| flight.rate(*segment)).map(|rate| rate.0);
    let capacity = Figure::spanning(rates.collect());
    Ok(Report {
        method: Method::Port,
        round_trip: RoundTrip::of(&found.round_trips),
        repeated_connects: Some(found.repeated),
        here: Direction { capacity, ..Direction::default() },
        remarks: vec![remark(&flights, asked, capacity)],
        ..Report::default()
    })
}

/// The kernel's values of the connections.
#[derive(Debug, Default)]
struct Found {
    round_trips: Vec<Micros>,
    /// Connections whose first packet was retransmitted: their time is not a round trip.
    repeated: u64,
    /// Payload of a segment towards this host, in bytes.
    segment: u32,
}

impl Found {
    fn look_at(&mut self, tcp: &TcpStream) {
        let Ok(info) = options::tcp_info(tcp) else { return };
        self.segment = info.advmss.max(info.rcv_mss).max(536);
        match (info.total_retrans, info.srtt()) {
            (0, Some(taken)) => self.round_trips.push(taken),
            (0, None) => {}
            _ => self.repeated += 1,
        }
    }

    fn least(&self) -> Micros {
        self.round_trips.iter().min().copied().unwrap_or(Micros::from_millis(100))
    }
}

/// Returns the first bytes of the other end: those that it sends unasked, else those of its answer.
fn hear(tcp: &TcpStream, host: &str, least: Micros, asked: &mut Asked) -> Result<FirstFlight> {
    let round_trip = Duration::from_micros(least.0);
    let port = tcp.peer_addr().map_or(0, |peer| peer.port());
    if *asked == Asked::Nothing {
        let flight = first_flight(tcp, round_trip + THINKING, least)?;
        if flight.arrivals() > 0 {
            return Ok(flight);
        }
        *asked = if CLEAR.contains(&port) { Asked::Page } else { Asked::Certificates };
    }
    // Neither HTTP nor TLS knows the scope of a link-local address (fe80::1%eth0).
    let host = host.split('%').next().unwrap_or(host);
    let question = match asked {
        Asked::Page => page(host, port).into_bytes(),
        _ => ClientTls::new(&Trust::Anyone)?.hello(host)?,
    };
    let mut tcp = tcp;
    // If the peer has closed the connection there is no answer, and the measurement shows that.
    let _hung_up = tcp.write_all(&question);
    Ok(first_flight(tcp, round_trip * 2 + THINKING, least)?)
}

/// Returns a request for a host's page; `Host` is written as in a URL: IPv6 in brackets (RFC 3986, section 3.2.2), and the port
/// unless it is that of HTTP.
fn page(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let port = if port == HTTP { String::new() } else { format!(":{port}") };
    format!("GET / HTTP/1.0\r\nHost: {host}{port}\r\nUser-Agent: bufwise-probe\r\n\r\n")
}

/// Returns one sentence on what the first answers show.
fn remark(flights: &[(FirstFlight, u32)], asked: Asked, capacity: Option<Figure>) -> String {
    let longest = flights.iter().map(|(flight, _)| flight).max_by_key(|flight| flight.arrivals());
    let (bytes, arrivals) = longest.map_or((0, 0), |flight| (flight.bytes().0, flight.arrivals()));
    let what = match asked {
        Asked::Nothing => "the server's greeting",
        Asked::Page => "its answer to GET /",
        Asked::Certificates => "its answer to a TLS ClientHello",
    };
    match (capacity, arrivals) {
        (Some(_), _) => format!(
            "The capacity is an estimate from the spacing of {what} ({bytes} B in {arrivals} arrivals): a server that paces shows \
             its own pace, and traffic of others makes it lower."
        ),
        (None, 0) => format!("The capacity is not known: {what} did not come."),
        (None, _) => format!(
            "The capacity is not known: {what} came as {bytes} B in {arrivals} arrivals, and four are needed to tell."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_requested_of_the_host_as_a_url_names_it() {
        for (host, port, field) in [
            ("example.org", 80, "example.org"),
            ("192.0.2.1", 8_080, "192.0.2.1:8080"),
            ("2001:db8::1", 80, "[2001:db8::1]"),
            ("2001:db8::1", 8_000, "[2001:db8::1]:8000"),
        ] {
            let request = page(host, port);
            assert!(request.contains(&format!("\r\nHost: {field}\r\n")), "{request}");
        }
    }
}
