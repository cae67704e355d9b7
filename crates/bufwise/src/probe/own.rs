//! Measures against a server of bufwise: both directions, by trains and echoes.

use std::io;
use std::time::{Duration, Instant};

use bufwise_mover::probe::{Echoed, PathClient, PathDirection};
use bufwise_units::{BitRate, Micros};

use super::report::{Direction, Loss, Method, Report, RoundTrip};

/// Duration of the whole measurement.
const WHOLE: Duration = Duration::from_secs(10);
/// Part of that at the end, for echoes on the path without our own load.
const QUIET: Duration = Duration::from_secs(3);
/// Duration of the first echoes: timeouts depend on the round trip.
const FIRST: Duration = Duration::from_millis(300);
/// Duration of the echoes in a repeated measurement.
const SHORT: Duration = Duration::from_secs(1);
/// Shortest interval between echoes; it is longer if they would take more than a hundredth of the capacity.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bits of an echo, with IPv6 headers.
const ECHO_BITS: u64 = 148 * 8;

/// Extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything, in ten seconds.
    Full,
    /// Everything, with a second of echoes.
    Repeated,
    /// Round trip and capacity, with a second of echoes.
    Short,
}

/// Measures the path to the server.
///
/// # Errors
/// The connection fails, or the server no longer answers.
pub(super) fn measure(mut client: PathClient, depth: Depth) -> io::Result<Report> {
    let start = Instant::now();
    let first = client.echoes(Duration::from_millis(50), FIRST)?;
    if first.round_trips.is_empty() {
        let silent = "it answers by TCP, but not by UDP: a firewall between may drop UDP";
        return Err(io::Error::new(io::ErrorKind::TimedOut, silent));
    }
    let (mut here, mut there) = (Direction::default(), Direction::default());
    let deadline = start + WHOLE - QUIET;
    // On a long or slow path the capacity takes seconds; each direction gets half of the time, and of the rest.
    let half = || {
        let now = Instant::now();
        now + deadline.saturating_duration_since(now) / 2
    };
    for (direction, found, deadline) in
        [(PathDirection::FromServer, &mut here, half()), (PathDirection::ToServer, &mut there, deadline)]
    {
        found.capacity = client.capacity(direction, deadline)?.map(Into::into);
    }
    if depth != Depth::Short {
        for (direction, found, deadline) in
            [(PathDirection::FromServer, &mut here, half()), (PathDirection::ToServer, &mut there, deadline)]
        {
            let Some(capacity) = found.capacity else { continue };
            let left = client.available(direction, BitRate(capacity.middle_bps), deadline)?;
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
        Depth::Repeated | Depth::Short => SHORT,
    };
    let echoed = client.echoes(interval, quiet)?;
    let (sent, received) = client.moved();
    Ok(Report {
        method: Method::Bufwise,
        round_trip: round_trip(&first, &echoed),
        loss: Some(loss(&echoed)),
        here,
        there,
        sent_bytes: Some(sent.0),
        received_bytes: Some(received.0),
        ..Report::default()
    })
}

fn loss(echoed: &Echoed) -> Loss {
    let Echoed { sent, lost_to_server, lost_from_server, lost_unknown, .. } = *echoed;
    Loss { probes: sent, lost_there: lost_to_server, lost_here: lost_from_server, lost_unknown }
}

/// Returns the mean of the quiet echoes, with the minimum over all echoes.
fn round_trip(first: &Echoed, quiet: &Echoed) -> Option<RoundTrip> {
    let mut found = RoundTrip::of(match quiet.round_trips.is_empty() {
        true => &first.round_trips,
        false => &quiet.round_trips,
    })?;
    let least = first.round_trips.iter().min().map_or(found.least_s, |least: &Micros| least.as_secs_f64());
    found.least_s = found.least_s.min(least);
    Some(found)
}
