//! Against a server of our own: both ways, by trains and echoes.

use std::io;
use std::time::{Duration, Instant};

use bufwise_mover::probe::{Echoed, PathClient, Way};
use bufwise_units::{BitRate, Micros};

use super::report::{Direction, Loss, Method, Report, RoundTrip};

/// Time for all of it.
const WHOLE: Duration = Duration::from_secs(10);
/// Of that, for echoes while the path is as it is found, at the end.
const QUIET: Duration = Duration::from_secs(3);
/// A few echoes come first: how long to wait for anything depends on the round trip.
const FIRST: Duration = Duration::from_millis(300);
/// Echoes of a short measurement.
const SHORT: Duration = Duration::from_secs(1);
/// An echo each 20 ms, or so many that they take a hundredth of the capacity.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bits of an echo, with headers of IPv6.
const ECHO_BITS: u64 = 148 * 8;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything, in ten seconds.
    Full,
    /// Round trip and capacity.
    Short,
}

/// Measures the path to the server.
///
/// # Errors
/// The connection's, when the server no longer answers.
pub(super) fn measure(mut client: PathClient, depth: Depth) -> io::Result<Report> {
    let start = Instant::now();
    let first = client.echoes(Duration::from_millis(50), FIRST)?;
    if first.round_trips.is_empty() {
        let silent = "it answers by TCP, but not by UDP: a firewall between may drop UDP";
        return Err(io::Error::new(io::ErrorKind::TimedOut, silent));
    }
    let (mut here, mut there) = (Direction::default(), Direction::default());
    let deadline = start + WHOLE - QUIET;
    for (way, found) in [(Way::Here, &mut here), (Way::There, &mut there)] {
        found.capacity = client.capacity(way, deadline)?.map(Into::into);
    }
    if depth == Depth::Full {
        let half = start + (deadline - start) / 2;
        for (way, found, deadline) in [(Way::Here, &mut here, half), (Way::There, &mut there, deadline)] {
            let Some(capacity) = found.capacity else { continue };
            let left = client.available(way, BitRate(capacity.middle_bps), deadline)?;
            found.available = left.estimate.map(Into::into);
            found.carried_bps = left.carried.map(|rate| rate.0);
        }
    }
    let slower =
        [&here, &there].into_iter().filter_map(|found| found.capacity).map(|found| found.middle_bps).min();
    let interval = slower.map_or(INTERVAL, |rate| {
        INTERVAL.max(Duration::from_secs_f64(ECHO_BITS as f64 * 100.0 / rate.max(1) as f64))
    });
    let quiet = match depth {
        Depth::Full => (start + WHOLE).saturating_duration_since(Instant::now()).max(SHORT),
        Depth::Short => SHORT,
    };
    let echoed = client.echoes(interval, quiet)?;
    let (sent, received) = client.moved();
    Ok(Report {
        method: Method::Bufwise,
        round_trip: round_trip(&first, &echoed),
        loss: Some(Loss { probes: echoed.sent, lost_there: echoed.lost_there, lost_here: echoed.lost_here }),
        here,
        there,
        sent_bytes: Some(sent.0),
        received_bytes: Some(received.0),
        ..Report::default()
    })
}

/// The mean of the quiet echoes; the least of all.
fn round_trip(first: &Echoed, quiet: &Echoed) -> Option<RoundTrip> {
    let mut found = RoundTrip::of(match quiet.round_trips.is_empty() {
        true => &first.round_trips,
        false => &quiet.round_trips,
    })?;
    let least = first.round_trips.iter().min().map_or(found.least_s, |least: &Micros| least.as_secs_f64());
    found.least_s = found.least_s.min(least);
    Some(found)
}
