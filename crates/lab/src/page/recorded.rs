//! Reads reports that `bufwise lab path --json` wrote.

use serde::{Deserialize, Deserializer};

use super::curves::{Curves, Line};
use crate::report::{LinkPoint, LinkReport, Stall};

/// Shortest time over which a rate is computed, seconds.
const RATE_OVER: f64 = 0.1;
/// Part of it that suffices: the interval between samples varies by some microseconds.
const ENOUGH: f64 = 0.99;
/// Most intervals over which rates are computed.
const RATES: f64 = 200.0;

/// Name, unit, and lines of a picture.
type Panel = (&'static str, &'static str, [Line; 2]);

/// A run over an emulated path, as read from its report.
#[derive(Clone, Debug, Deserialize)]
pub struct Recorded {
    /// Name for people; not in the file.
    #[serde(skip)]
    pub name: String,
    /// Goodput in bit/s, if the client printed it.
    pub goodput_bps: Option<f64>,
    /// Seconds for which the client ran.
    pub seconds: f64,
    /// The client's exit status.
    pub client_status: i32,
    /// Whether the emulator kept time.
    pub valid: bool,
    /// Why the run must not be trusted; `None` if valid.
    pub why_invalid: Option<String>,
    /// The tight link.
    pub link: LinkReport,
    /// Times in which the emulator did not get the processor.
    #[serde(default)]
    pub stalls: Vec<Stall>,
    /// The connections over time.
    pub samples: Vec<RecordedSample>,
    /// The tight link over time.
    pub link_samples: Vec<LinkPoint>,
}

/// One connection at one moment, as read back: [`crate::sampler::ConnectionSample`].
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of ConnectionSample")]
pub struct RecordedSample {
    pub t: f64,
    pub host: String,
    pub local: String,
    pub peer: String,
    pub congestion_control: String,
    pub srtt_us: u64,
    pub min_rtt_us: u64,
    pub cwnd_bytes: u64,
    pub flight_bytes: u64,
    pub sndbuf: u64,
    pub rcvbuf: u64,
    pub wmem_queued: u64,
    pub rmem_alloc: u64,
    pub snd_wnd: u64,
    pub rcv_wnd: u64,
    pub delivery_rate_bps: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub retrans: u64,
    #[serde(default, deserialize_with = "or_nothing")]
    pub limited_by: String,
}

fn or_nothing<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Recorded {
    /// Returns the samples of the sending side of the connection that moved most, and of its receiving side.
    pub(super) fn busiest(&self) -> (Vec<&RecordedSample>, Vec<&RecordedSample>) {
        let Some(most) = self.samples.iter().max_by_key(|sample| sample.bytes_acked) else {
            return (Vec::new(), Vec::new());
        };
        let sends = |sample: &&RecordedSample| {
            (&sample.host, &sample.local, &sample.peer) == (&most.host, &most.local, &most.peer)
        };
        let receives = |sample: &&RecordedSample| (&sample.local, &sample.peer) == (&most.peer, &most.local);
        // A closing socket shows zeros.
        let sending = self.samples.iter().filter(sends).filter(|sample| sample.srtt_us > 0);
        (sending.collect(), self.samples.iter().filter(receives).collect())
    }

    /// Returns the number of connections that sent data.
    pub(super) fn connections(&self) -> usize {
        /// Bytes that are more than a command takes.
        const DATA: u64 = 10_000;
        let with_data = self.samples.iter().filter(|sample| sample.bytes_acked > DATA);
        let mut names: Vec<_> = with_data.map(|sample| (&sample.host, &sample.local, &sample.peer)).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Returns when the emulator stalled: from, to, in seconds.
    pub(super) fn stalled(&self) -> Vec<(f64, f64)> {
        self.stalls.iter().map(|stall| (stall.at - stall.ms / 1e3, stall.at)).collect()
    }

    /// Returns the panels over time: of the link, and of the connection that moved most.
    pub(super) fn panels<'a>(&self, stalls: &'a [(f64, f64)]) -> Vec<Curves<'a>> {
        let times = self.samples.iter().map(|sample| sample.t);
        let end = times.chain(self.link_samples.iter().map(|point| point.t)).fold(0.0, f64::max);
        let panels = self.of_link(end).into_iter().chain(self.of_connection());
        panels
            .map(|(name, unit, lines)| Curves { name, unit, lines: lines.into(), keys: true, stalls, end })
            .collect()
    }

    fn of_link(&self, end: f64) -> [Panel; 2] {
        let queue = |name, colour, value: fn(&LinkPoint) -> u64| {
            Line::new(
                name,
                colour,
                self.link_samples.iter().map(|point| (point.t, value(point) as f64 / 1e3)),
            )
        };
        let rates = [
            self.rate(("A to B", 0), end, |point| point.a_to_b.bytes),
            self.rate(("B to A", 1), end, |point| point.b_to_a.bytes),
        ];
        let queues = [
            queue("A to B", 0, |point| point.a_to_b.queue_bytes),
            queue("B to A", 1, |point| point.b_to_a.queue_bytes),
        ];
        [("Rate of the link", "Mbit/s", rates), ("Queue of the link", "kB", queues)]
    }

    fn of_connection(&self) -> [Panel; 5] {
        let (sending, receiving) = self.busiest();
        let line = |(name, colour), samples: &[&RecordedSample], value: fn(&RecordedSample) -> u64| {
            Line::new(name, colour, samples.iter().map(|sample| (sample.t, value(sample) as f64 / 1e3)))
        };
        let sender = |name, colour, value| line((name, colour), &sending, value);
        let receiver = |name, colour, value| line((name, colour), &receiving, value);
        // 0 means that there is no measurement yet.
        let measured: Vec<_> = sending.iter().copied().filter(|sample| sample.min_rtt_us > 0).collect();
        let round_trip = |name, colour, value| line((name, colour), &measured, value);
        let flight = || sender("in flight", 1, |sample| sample.flight_bytes);
        let (payload, memory) = ("kB of payload", "kB of memory");
        [
            ("Congestion window", payload, [sender("window", 0, |sample| sample.cwnd_bytes), flight()]),
            ("Receiver's window", payload, [sender("offered", 0, |sample| sample.snd_wnd), flight()]),
            (
                "Send buffer",
                memory,
                [sender("limit", 0, |sample| sample.sndbuf), sender("held", 1, |sample| sample.wmem_queued)],
            ),
            (
                "Receive buffer",
                memory,
                [
                    receiver("limit", 0, |sample| sample.rcvbuf),
                    receiver("held", 1, |sample| sample.rmem_alloc),
                ],
            ),
            (
                "Round-trip time",
                "ms",
                [
                    round_trip("smoothed", 0, |sample| sample.srtt_us),
                    round_trip("shortest", 1, |sample| sample.min_rtt_us),
                ],
            ),
        ]
    }

    /// Returns the rate at which bytes left the link, Mbit/s, at the end of each interval.
    fn rate(&self, (name, colour): (&str, usize), end: f64, bytes: fn(&LinkPoint) -> u64) -> Line {
        let interval = (end / RATES).max(RATE_OVER);
        let mut points = Vec::new();
        let Some(mut before) = self.link_samples.first() else {
            return Line::new(name, colour, std::iter::empty());
        };
        for point in &self.link_samples {
            let passed = point.t - before.t;
            if passed >= interval * ENOUGH {
                let moved = bytes(point).saturating_sub(bytes(before));
                points.push((point.t, moved as f64 * 8.0 / passed / 1e6));
                before = point;
            }
        }
        Line::new(name, colour, points.into_iter())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A transfer from A to B at 10 Mbit/s, three seconds long, with a connection of few bytes beside it.
    pub(crate) fn recorded() -> Recorded {
        let sample = |tenth: u32, host: &str, acked: u32, received: u32| {
            let (local, peer) = if host == "a" {
                ("198.18.0.1:40000", "198.18.0.2:5201")
            } else {
                ("198.18.0.2:5201", "198.18.0.1:40000")
            };
            json!({ "t": f64::from(tenth) / 10.0, "host": host, "local": local, "peer": peer, "congestion_control": "cubic",
                "srtt_us": 40_000 + tenth * 100, "min_rtt_us": 40_000, "cwnd_bytes": 14_480 + tenth * 1_000,
                "flight_bytes": 10_000, "sndbuf": 87_040 + tenth * 2_000, "rcvbuf": 131_072, "wmem_queued": 20_000,
                "rmem_alloc": 300, "snd_wnd": 65_536, "rcv_wnd": 65_536, "delivery_rate_bps": 10_000_000,
                "bytes_acked": acked, "bytes_received": received, "retrans": 0, "limited_by": (tenth > 20).then_some("cwnd") })
        };
        let samples: Vec<_> = (0..=30)
            .flat_map(|tenth| {
                [sample(tenth, "a", tenth * 125_000, 37), sample(tenth, "b", 37, tenth * 125_000)]
            })
            .collect();
        let way = |bytes: u32, queue: u32| json!({ "bytes": bytes, "drops": 0, "queue_bytes": queue });
        let link: Vec<_> = (0..=30)
            .map(|tenth| json!({ "t": f64::from(tenth) / 10.0, "a_to_b": way(tenth * 125_000, tenth * 700), "b_to_a": way(tenth * 100, 0) }))
            .collect();
        let direction = json!({ "offered_packets": 9, "packets": 8, "bytes": 7, "drops": 1, "drops_random": 0,
            "queue_mean_bytes": 5, "queue_max_bytes": 21_000, "queue_p95_bytes": 6, "utilisation": 0.97 });
        let report = json!({ "goodput_bps": 9.6e6, "seconds": 3.1, "client_status": 0, "valid": false,
            "why_invalid": "it <stalled>", "link": { "a_to_b": direction, "b_to_a": direction },
            "timing_error_us": { "p50": 1, "p99": 2, "max": 3 }, "paused_ms": 200.0, "stalls": [{ "at": 1.2, "ms": 200.0 }],
            "samples": samples, "link_samples": link });
        let read: Recorded = serde_json::from_value(report).unwrap();
        Recorded { name: "by hand".to_owned(), ..read }
    }

    #[test]
    fn the_busiest_connection_is_seen_from_both_ends() {
        let recorded = recorded();
        let (sending, receiving) = recorded.busiest();
        assert!(sending.len() == 31 && sending.iter().all(|sample| sample.host == "a"));
        assert!(receiving.len() == 31 && receiving.iter().all(|sample| sample.host == "b"));
        assert_eq!((recorded.connections(), recorded.stalled()), (1, vec![(1.0, 1.2)]));
        assert_eq!(sending[30].limited_by, "cwnd");
    }

    #[test]
    fn rates_are_those_of_the_bytes_that_left() {
        let line = recorded().rate(("A to B", 0), 3.0, |point| point.a_to_b.bytes);
        assert!(line.points.len() > 20, "{}", line.points.len());
        assert!(line.points.iter().all(|(_, rate)| (rate - 10.0).abs() < 0.01), "{:?}", line.points);
    }

    #[test]
    fn a_run_without_samples_has_no_lines() {
        let recorded = Recorded { samples: Vec::new(), link_samples: Vec::new(), ..recorded() };
        let mut text = String::new();
        recorded.panels(&[]).iter().for_each(|panel| panel.draw(&mut text).unwrap());
        assert_eq!(text, "");
    }
}
