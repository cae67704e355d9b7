//! Two hosts joined by the emulated path, ready for programs.
//!
//! Host A is 198.18.0.1 and fd00:b::1, host B is 198.18.0.2 and fd00:b::2 (198.18.0.0/15 is reserved for
//! such benchmarks, RFC 2544). Dropping the value, or the death of the process, removes everything.

use bufwise_link::{BitRate, Nanos};
use bufwise_socket::tun::{Tun, TunError};
use thiserror::Error;

use crate::clock::Clock;
use crate::congestion::{self, CongestionError};
use crate::host::{Host, HostError};
use crate::pump::{Pump, PumpError, PumpReport};
use crate::spec::{PathSpec, SpecError};

/// Interface of either host that leads to the path.
pub const INTERFACE: &str = "bw0";
/// Packets a host's interface holds before it drops: more than any window the lab lets grow.
const TX_QUEUE_PACKETS: u32 = 8_192;
/// A run is invalid when the pump was stalled for a larger share of the time than this.
const MAX_STALLED_SHARE: f64 = 0.01;
/// A run is invalid when the pump was stalled longer than this at once, whatever the queue.
const MAX_STALL: Nanos = Nanos(10_000_000);
/// Shorter stalls are part of life on a shared machine.
const MIN_TOLERANCE: Nanos = Nanos(2_000_000);

/// Why the two hosts could not be set up.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// The description of the path is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The hosts.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The devices.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The congestion control.
    #[error(transparent)]
    Congestion(#[from] CongestionError),
    /// The emulator.
    #[error(transparent)]
    Pump(#[from] PumpError),
}

/// Two hosts and the path between them.
#[derive(Debug)]
pub struct Testbed {
    /// Host A: 198.18.0.1, fd00:b::1.
    pub a: Host,
    /// Host B: 198.18.0.2, fd00:b::2.
    pub b: Host,
    /// The clock of everything measured here.
    pub clock: Clock,
    pump: Pump,
    tolerance: Nanos,
}

impl Testbed {
    /// Makes two hosts and joins them by the path.
    ///
    /// # Errors
    /// [`TestbedError`] with what is wrong and what to do; nothing is left behind.
    pub fn start(spec: &PathSpec) -> Result<Self, TestbedError> {
        let (a_to_b, b_to_a) = spec.directions()?;
        let a = Host::new("a")?;
        let b = Host::new("b")?;
        let tun_a = connect(&a, 1, spec)?;
        let tun_b = connect(&b, 2, spec)?;
        let clock = Clock::start();
        let pump = Pump::start(tun_a, tun_b, a_to_b, b_to_a, clock)?;
        Ok(Self { a, b, clock, pump, tolerance: stall_tolerance(spec) })
    }

    /// Whether the path still carries packets.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.pump.is_running()
    }

    /// Takes everything down and says what the path did.
    ///
    /// # Errors
    /// What ended the emulator, if it ended before.
    pub fn finish(self) -> Result<PathReport, PumpError> {
        let Self { a, b, clock, pump, tolerance } = self;
        drop((a, b));
        let seconds = clock.seconds();
        let pump = pump.stop()?;
        let invalid = why_invalid(&pump, seconds, tolerance);
        Ok(PathReport { pump, invalid })
    }
}

/// What the path did, and whether the run can be trusted.
#[derive(Debug)]
pub struct PathReport {
    /// What the emulator counted.
    pub pump: PumpReport,
    /// Why the run must not be trusted; `None`: it can be.
    pub invalid: Option<String>,
}

fn connect(host: &Host, number: u8, spec: &PathSpec) -> Result<Tun, TestbedError> {
    let tun = host.run(|| Tun::open(INTERFACE))??;
    // Without this, neighbour discovery adds packets of its own to the counters.
    let ipv6 = host.sysctl("net.ipv6.conf.bw0.router_solicitations", "0").is_ok();
    let mut commands = format!(
        "link set dev {INTERFACE} mtu {} txqueuelen {TX_QUEUE_PACKETS}\n\
         addr add 198.18.0.{number}/24 dev {INTERFACE}\n",
        spec.mtu
    );
    if ipv6 {
        commands += &format!(
            "link set dev {INTERFACE} addrgenmode none\naddr add fd00:b::{number}/64 dev {INTERFACE} nodad\n"
        );
    }
    commands += &format!("link set dev {INTERFACE} up\n");
    host.ip(&commands)?;
    // A second connection must not inherit what the first one learned.
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

/// Sets the last of the three values of `tcp_rmem` or `tcp_wmem`; the others never exceed it.
fn raise_or_lower(host: &Host, key: &str, maximum: u64) -> Result<(), HostError> {
    let found = host.read_sysctl(key)?;
    let mut values: Vec<u64> = found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if let Some(last) = values.last_mut() {
        *last = maximum;
    }
    let values: Vec<String> = values.into_iter().map(|value| value.min(maximum).to_string()).collect();
    host.sysctl(key, &values.join(" "))
}

/// The longest stall that hardly causes a drop: what arrives of a paced sender meanwhile fits the queue.
fn stall_tolerance(spec: &PathSpec) -> Nanos {
    let drain = spec.queue_drain_time().map_or(MAX_STALL.0, |drain| drain.0);
    Nanos(drain.clamp(MIN_TOLERANCE.0, MAX_STALL.0))
}

fn why_invalid(pump: &PumpReport, seconds: f64, tolerance: Nanos) -> Option<String> {
    let millis = |time: Nanos| time.0 as f64 / 1e6;
    let longest = pump.stalls.iter().map(|stall| stall.lasted).max().unwrap_or(Nanos(0));
    if longest > tolerance {
        return Some(format!(
            "the emulator was not given the processor for {:.1} ms; at most {:.1} ms are harmless on this queue",
            millis(longest),
            millis(tolerance)
        ));
    }
    if millis(pump.paused) / 1e3 > seconds * MAX_STALLED_SHARE {
        return Some(format!("the emulator was stalled for {:.0} ms in {seconds:.1} s", millis(pump.paused)));
    }
    if pump.refused > 0 {
        return Some(format!("a host refused {} packets from its interface", pump.refused));
    }
    for (way, counters) in [("a to b", &pump.last.a_to_b), ("b to a", &pump.last.b_to_a)] {
        let accounted = counters.delivered_packets
            + counters.drops_queue_packets
            + counters.drops_random_packets
            + counters.queued_packets;
        if counters.offered_packets != accounted {
            return Some(format!("{way}: {} packets offered, {accounted} accounted for", counters.offered_packets));
        }
    }
    None
}

/// The rate at which TCP payload passes a link of `rate` in full segments with timestamps: the ceiling of
/// goodput.
#[must_use]
pub fn goodput_ceiling(rate: BitRate, mtu: u16) -> f64 {
    /// IPv4 header, TCP header, timestamps option.
    const HEADERS: f64 = 20.0 + 20.0 + 12.0;
    let mtu = f64::from(mtu);
    rate.0 as f64 * (mtu - HEADERS) / (mtu + f64::from(bufwise_link::ETHERNET_HEADER))
}
