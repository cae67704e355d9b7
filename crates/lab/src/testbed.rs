//! Two hosts joined by an emulated path, ready for programs.
//!
//! Host A is 198.18.0.1 and fd00:b::1, host B is 198.18.0.2 and fd00:b::2 (198.18.0.0/15 is reserved for such
//! benchmarks, RFC 2544). If there are several paths, from one host A or from several hosts, path n has 198.18.n.0/24
//! and fd00:b:0:n::/64. Dropping the value, or the death of the process, removes everything.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bufwise_link::Counters;
use bufwise_socket::tun::{Tun, TunError};
use bufwise_units::{BitRate, Nanos};
use thiserror::Error;

use crate::clock::Clock;
use crate::congestion::{self, CongestionError};
use crate::host::{Host, HostError};
use crate::link_time::StallAt;
use crate::pump::{Link, LinkLog, Pump, PumpError, PumpReport, Route};
use crate::spec::{PathSpec, SpecError, shared_links};

/// Prefix of the interface, on either host, that leads to path n; the number follows.
const INTERFACE: &str = "bw";
/// Packets that a host's interface holds before it drops: more than any window in the lab.
const TX_QUEUE_PACKETS: u32 = 8_192;
/// Share of the time for which the pump may be stalled in a valid run.
const MAX_STALLED_SHARE: f64 = 0.02;
/// Longest single stall in a valid run, whatever the queue.
const MAX_STALL: Nanos = Nanos(10_000_000);
/// Stalls up to this are tolerated on any path: they are normal on a shared machine.
const MIN_TOLERANCE: Nanos = Nanos(2_000_000);

/// Why the two hosts could not be set up.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// The description of the path is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A host failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A TUN device failed.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The congestion control could not be set.
    #[error(transparent)]
    Congestion(#[from] CongestionError),
    /// The emulator failed.
    #[error(transparent)]
    Pump(#[from] PumpError),
}

/// Two hosts joined by a path.
#[derive(Debug)]
pub struct Hosts {
    /// Host A: 198.18.0.1, fd00:b::1. Several paths may begin at the same host.
    pub a: Arc<Host>,
    /// Host B: 198.18.0.2, fd00:b::2.
    pub b: Host,
    /// The clock of all measurements here.
    pub clock: Clock,
}

/// Paths, each between two hosts of its own, with one clock and one emulator.
#[derive(Debug)]
pub struct Testbed {
    /// The hosts of each path, in the order of the descriptions.
    pub hosts: Vec<Hosts>,
    pump: Pump,
    tolerances: Vec<Nanos>,
    /// The longest round trip of a path.
    round_trip: Nanos,
}

impl Testbed {
    /// Makes two hosts for each description and joins them by its path.
    ///
    /// # Errors
    /// [`TestbedError`] with what is wrong and what to do; nothing is left behind.
    pub fn start(specs: &[PathSpec]) -> Result<Self, TestbedError> {
        let hosts: Result<Vec<_>, TestbedError> =
            specs.iter().map(|spec| Ok((spec, Arc::new(Host::new("a")?), 0))).collect();
        Self::join(&hosts?)
    }

    /// Makes one host A (one more for each other [`PathSpec::from`]) and, for each description, a host B at the end of
    /// its path.
    ///
    /// # Errors
    /// As [`Testbed::start`].
    pub fn start_star(specs: &[PathSpec]) -> Result<Self, TestbedError> {
        let mut begins: BTreeMap<Option<&str>, Arc<Host>> = BTreeMap::new();
        let mut paths = Vec::with_capacity(specs.len());
        for (spec, path) in specs.iter().zip(0..) {
            let a = match begins.entry(spec.from.as_deref()) {
                Entry::Occupied(host) => Arc::clone(host.get()),
                Entry::Vacant(place) => Arc::clone(place.insert(Arc::new(Host::new("a")?))),
            };
            paths.push((spec, a, path));
        }
        Self::join(&paths)
    }

    /// Joins each host A to a new host B, by the path's own link and then its shared links; the last number
    /// distinguishes the paths of one host A.
    fn join(paths: &[(&PathSpec, Arc<Host>, u8)]) -> Result<Self, TestbedError> {
        let clock = Clock::start();
        let shared = shared_links(paths.iter().map(|(spec, ..)| *spec));
        let own = paths.iter().map(|(spec, ..)| *spec);
        let all: Vec<&PathSpec> = own.chain(shared.iter().map(|link| &link.spec)).collect();
        let tolerances = all.iter().map(|spec| stall_tolerance(spec)).collect();
        let round_trip = all.iter().map(|spec| spec.whole_rtt()).max().unwrap_or(Nanos(0));
        let link = |spec: &&PathSpec| -> Result<Link, TestbedError> {
            let (a_to_b, b_to_a) = spec.directions()?;
            Ok(Link { a_to_b, b_to_a })
        };
        let links: Vec<Link> = all.iter().map(link).collect::<Result<_, _>>()?;
        let number = |name: &str| shared.iter().position(|link| link.name == name);
        let mut hosts = Vec::with_capacity(paths.len());
        let mut routes = Vec::with_capacity(paths.len());
        for (index, (spec, host_a, path)) in paths.iter().enumerate() {
            let host_b = Host::new("b")?;
            let (a, b) = (connect(host_a, 1, *path, spec)?, connect(&host_b, 2, *path, spec)?);
            let further = spec.links.iter().filter_map(|link| Some(paths.len() + number(&link.name)?));
            routes.push(Route { a, b, links: [index].into_iter().chain(further).collect() });
            hosts.push(Hosts { a: Arc::clone(host_a), b: host_b, clock });
        }
        let pump = Pump::start(routes, links, clock)?;
        Ok(Self { hosts, pump, tolerances, round_trip })
    }

    /// Whether the paths still carry packets.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.pump.is_running()
    }

    /// Takes everything down and reports on the links: each path's own, then the shared ones, in the order in which the
    /// descriptions name them.
    ///
    /// # Errors
    /// The error that ended the emulator, if it ended earlier.
    pub fn finish(self) -> Result<Vec<PathReport>, PumpError> {
        let Self { hosts, pump, tolerances, round_trip } = self;
        let seconds = hosts.first().map_or(0.0, |hosts| hosts.clock.seconds());
        drop(hosts);
        let PumpReport { links, stalls, paused } = pump.stop()?;
        let data_at = links.iter().filter_map(|link| link.data_at).min();
        let (harmful, paused_meanwhile) = harmful(&stalls, paused, data_at, round_trip);
        let reports = links.into_iter().zip(tolerances).map(|(link, tolerance)| {
            let invalid = why_invalid(&link, &harmful, paused_meanwhile, seconds, tolerance);
            PathReport { link, stalls: stalls.clone(), paused, invalid }
        });
        Ok(reports.collect())
    }
}

/// Report on one link, and whether the run can be trusted.
#[derive(Debug)]
pub struct PathReport {
    /// The link's counters and timeline.
    pub link: LinkLog,
    /// Times in which the emulator did not get the processor.
    pub stalls: Vec<StallAt>,
    /// Total time for which the path stood still because of that.
    pub paused: Nanos,
    /// Why the run must not be trusted; `None`: it can be trusted.
    pub invalid: Option<String>,
}

fn connect(host: &Host, number: u8, path: u8, spec: &PathSpec) -> Result<Tun, TestbedError> {
    let interface = format!("{INTERFACE}{path}");
    let tun = host.run(|| Tun::open(&interface))??;
    // Otherwise neighbour discovery adds packets of its own to the counters.
    let ipv6 = host.sysctl(&format!("net.ipv6.conf.{interface}.router_solicitations"), "0").is_ok();
    let mut commands = format!(
        "link set dev {interface} mtu {} txqueuelen {TX_QUEUE_PACKETS}\n\
         addr add 198.18.{path}.{number}/24 dev {interface}\n",
        spec.mtu
    );
    if ipv6 {
        commands += &format!(
            "link set dev {interface} addrgenmode none\naddr add fd00:b:0:{path}::{number}/64 dev {interface} nodad\n"
        );
    }
    commands += &format!("link set dev {interface} up\n");
    host.ip(&commands)?;
    // A second connection must not inherit the metrics of the first one.
    host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    for (key, maximum) in [("net.ipv4.tcp_rmem", spec.rmem), ("net.ipv4.tcp_wmem", spec.wmem)] {
        if let Some(maximum) = maximum {
            raise_or_lower(host, key, maximum)?;
        }
    }
    if let Some(name) = &spec.congestion_control {
        congestion::set_default(host, name)?;
    }
    Ok(tun)
}

/// Sets the last of the three values of `tcp_rmem` or `tcp_wmem`, and lowers the others to it if needed.
fn raise_or_lower(host: &Host, key: &str, maximum: u64) -> Result<(), HostError> {
    let found = host.read_sysctl(key)?;
    let mut values: Vec<u64> = found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if let Some(last) = values.last_mut() {
        *last = maximum;
    }
    let values: Vec<String> = values.into_iter().map(|value| value.min(maximum).to_string()).collect();
    host.sysctl(key, &values.join(" "))
}

/// Returns the longest stall that hardly causes a drop: the packets of a paced sender in that time fit into the queue.
fn stall_tolerance(spec: &PathSpec) -> Nanos {
    let drain = spec.queue_drain_time().map_or(MAX_STALL.0, |drain| drain.0);
    Nanos(drain.clamp(MIN_TOLERANCE.0, MAX_STALL.0))
}

/// Returns the stalls that the first connection may have felt, and the time of the others left out of `paused`. Its handshake takes
/// less than two round trips; whatever stopped the emulator before, such as the load of programs into the kernel, met no packet of it.
/// `data_at`: when the first data came; `None`: none came.
fn harmful(
    stalls: &[StallAt],
    paused: Nanos,
    data_at: Option<Nanos>,
    round_trip: Nanos,
) -> (Vec<StallAt>, Nanos) {
    let from = data_at.map_or(0, |at| at.0.saturating_sub(2 * round_trip.0));
    let (harmful, earlier): (Vec<StallAt>, Vec<StallAt>) =
        stalls.iter().partition(|stall| stall.at.0 >= from);
    let harmless: u64 = earlier.iter().map(|stall| stall.lasted.0).sum();
    (harmful, Nanos(paused.0.saturating_sub(harmless)))
}

fn why_invalid(
    link: &LinkLog,
    stalls: &[StallAt],
    paused: Nanos,
    seconds: f64,
    tolerance: Nanos,
) -> Option<String> {
    let millis = |time: Nanos| time.0 as f64 / 1e6;
    let longest = stalls.iter().map(|stall| stall.lasted).max().unwrap_or(Nanos(0));
    if longest > tolerance {
        return Some(format!(
            "the emulator was not given the processor for {:.1} ms; at most {:.1} ms are harmless on this queue",
            millis(longest),
            millis(tolerance)
        ));
    }
    if millis(paused) / 1e3 > seconds * MAX_STALLED_SHARE {
        return Some(format!("the emulator was stalled for {:.0} ms in {seconds:.1} s", millis(paused)));
    }
    if link.refused > 0 {
        return Some(format!("a host refused {} packets from its interface", link.refused));
    }
    if link.unknown > 0 {
        return Some(format!("the emulator could not carry {} frames of a host", link.unknown));
    }
    let ways = [("a to b", &link.last.a_to_b), ("b to a", &link.last.b_to_a)];
    let (way, counters) = ways.into_iter().find(|(_, counters)| unaccounted(counters) != 0)?;
    Some(format!("{way}: {} of {} packets unaccounted for", unaccounted(counters), counters.offered_packets))
}

/// Returns the packets that arrived at the link and neither left it, nor were dropped, nor wait in it.
#[must_use]
pub fn unaccounted(counters: &Counters) -> i64 {
    let accounted = counters.delivered_packets
        + counters.drops_queue_packets
        + counters.drops_random_packets
        + counters.queued_packets;
    counters.offered_packets.cast_signed() - accounted.cast_signed()
}

/// Returns the rate at which TCP payload passes a link of `rate` in full segments with timestamps: the ceiling of
/// goodput.
#[must_use]
pub fn goodput_ceiling(rate: BitRate, mtu: u16) -> f64 {
    /// IPv4 header, TCP header and timestamps option, bytes.
    const HEADERS: f64 = 20.0 + 20.0 + 12.0;
    let mtu = f64::from(mtu);
    rate.0 as f64 * (mtu - HEADERS) / (mtu + f64::from(bufwise_link::ETHERNET_HEADER))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;
    use crate::pump::LinkSample;

    #[test]
    fn stalls_before_the_first_connection_do_no_harm() {
        let millis = Nanos::from_millis;
        let stall = |at, lasted| StallAt { at: millis(at), lasted: millis(lasted) };
        let stalls = [stall(233, 10), stall(330, 2), stall(900, 3)];
        let judged = |data_at| harmful(&stalls, millis(16), data_at, millis(40));
        assert_eq!(judged(Some(millis(400))), (stalls[1..].to_vec(), millis(6)));
        assert_eq!(judged(Some(millis(410))), (stalls[1..].to_vec(), millis(6)), "in the handshake");
        assert_eq!(judged(Some(millis(411))), (stalls[2..].to_vec(), millis(4)));
        for always in [None, Some(millis(50))] {
            assert_eq!(judged(always), (stalls.to_vec(), millis(16)), "{always:?}");
        }
    }

    #[test]
    fn a_run_is_invalid_if_packets_are_lost_outside_the_links_model() {
        let counters = Counters::default();
        let last = LinkSample { at: Nanos(0), wall: Nanos(0), a_to_b: counters, b_to_a: counters };
        let why = |refused, unknown| {
            let lateness_us = Histogram::new(2).unwrap();
            let link = LinkLog { last, timeline: vec![last], lateness_us, data_at: None, refused, unknown };
            why_invalid(&link, &[], Nanos(0), 1.0, MAX_STALL).unwrap_or_default()
        };
        assert_eq!(why(0, 0), "");
        assert_eq!(why(3, 0), "a host refused 3 packets from its interface");
        assert_eq!(why(0, 2), "the emulator could not carry 2 frames of a host");
    }
}
