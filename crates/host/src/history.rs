//! The last hour of a host's connections: the largest ones, sums over all, and the causes that limited them.
//!
//! Problem: "why was it slow at 14:05" is asked at 14:30, when the connections are gone.
//!
//! Terms: a *moment* is one sample of all connections; its rates, retransmissions and causes belong to the time since
//! the previous sample, mostly [`INTERVAL`]. Causes are judged as by `ls` ([`crate::judge`]). A connection is *kept*
//! if it is among the largest of its moment: [`BY_RATE`] by their rate, then [`BY_MEMORY`] by the memory of their
//! queues; connections of the host to itself rank after all others. The sums cover all connections: over the whole
//! host, by the peer's prefix (/24, /48) and by cgroup.
//!
//! Properties kept, each a test:
//! - the ring holds at most [`LENGTH`] moments and [`MAX_BYTES`], and fits into [`MAX_TEXT`] of JSON, whatever names
//!   and connections there are; the oldest go first;
//! - an hour of as many connections as are kept fits, with names of usual length;
//! - a moment keeps no more connections and groups than its bounds, and the parts of each grouping add up to the
//!   whole;
//! - an answer is no longer than a client reads, and stays packed until it is written: it takes no memory but that of the
//!   ring and of one moment.

pub(crate) mod file;
pub(crate) mod moment;
mod packed;
pub(crate) mod sums;

use std::collections::VecDeque;

use bufwise_units::Micros;
use serde::{Deserialize, Serialize, Serializer};

use crate::address::Pattern;
use crate::view::ConnectionView;
use packed::Packed;
pub use sums::Sums;

/// Time between two moments.
pub const INTERVAL: Micros = Micros::from_secs(10);
/// Number of moments that are kept: an hour.
pub const LENGTH: usize = 360;
/// Memory of all moments together, packed, bytes.
pub const MAX_BYTES: usize = 8 << 20;
/// Length of all moments together in an answer or in the file, bytes.
pub const MAX_TEXT: usize = 48 << 20;
/// Number of connections kept for their rate.
pub const BY_RATE: usize = 40;
/// Number of further connections kept for the memory of their queues.
pub const BY_MEMORY: usize = 10;
/// Most peers' prefixes in a moment, including the sum of all others.
pub const MAX_PREFIXES: usize = 64;
/// Most cgroups in a moment, including the sum of all others.
pub const MAX_CGROUPS: usize = 32;

/// One sample of all connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Time of the sample, in seconds since 1970 (UTC).
    pub time_s: u64,
    /// Seconds since the previous sample, to which rates, retransmissions and causes belong.
    pub interval_s: f64,
    /// The daemon's budget for send queues, bytes.
    pub budget_bytes: u64,
    /// Whether the kernel was short of memory for TCP (`tcp_mem`), and shrank buffers.
    pub memory_short: bool,
    /// Sums over all connections.
    pub total: Sums,
    /// The largest connections, ordered by rate.
    pub connections: Vec<Kept>,
    /// Sums by the peer's prefix, the largest first; the last, `others`, sums all further prefixes.
    pub prefixes: Vec<Sums>,
    /// Sums by cgroup in the same order; empty if the kernel does not report cgroups (before Linux 5.8).
    pub cgroups: Vec<Sums>,
}

/// A connection of a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The connection as `ls` shows it.
    #[serde(flatten)]
    pub view: ConnectionView,
    /// Time that segments spent in a queue, seconds, if there is evidence of a queue ([`crate::judge::Queue`]).
    pub queueing_delay_s: Option<f64>,
    /// Segments retransmitted since the previous moment.
    #[serde(rename = "repeated")]
    pub retransmitted: u64,
}

/// Returns the history's file as a start writes it anew after it has read `content`, and the number of malformed lines in that;
/// `None` if it is the content of another file.
#[must_use]
pub fn rewritten_file(content: &[u8]) -> Option<(Vec<u8>, usize)> {
    // Reading and writing memory cannot fail.
    file::rewritten(content).ok().flatten()
}

/// The requested part of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Query {
    /// Start of the range, in seconds since 1970; `None`: from the first moment on.
    pub since_s: Option<u64>,
    /// End of the range, inclusive, in seconds since 1970; `None`: up to the last moment.
    pub until_s: Option<u64>,
    /// Restricts kept connections to those from or to this address; sums still cover all.
    pub address: Option<Pattern>,
    /// Most connections of each moment, the largest first.
    pub most: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self { since_s: None, until_s: None, address: None, most: BY_RATE + BY_MEMORY }
    }
}

impl Query {
    fn is_in(&self, moment: &Packed) -> bool {
        self.since_s.is_none_or(|since| moment.time_s >= since)
            && self.until_s.is_none_or(|until| moment.time_s <= until)
    }

    /// Returns the requested connections of a moment, with its sums.
    fn part(&self, mut moment: Moment) -> Moment {
        let is_wanted =
            |one: &Kept| self.address.is_none_or(|address| address.matches(one.view.local, one.view.peer));
        moment.connections.retain(is_wanted);
        moment.connections.truncate(self.most);
        moment
    }
}

/// The daemon's answer, as a client reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Time of the oldest moment, in seconds since 1970; `null` if there is none.
    pub oldest_s: Option<u64>,
    /// Time of the newest moment, in seconds since 1970; `null` if there is none.
    pub newest_s: Option<u64>,
    /// The requested moments, in order of time.
    pub moments: Vec<Moment>,
}

/// The daemon's answer, as it is written; a client reads it as a [`History`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    oldest_s: Option<u64>,
    newest_s: Option<u64>,
    moments: Requested,
}

/// The requested moments, unpacked one after the other while they are written.
#[derive(Clone, Debug, PartialEq)]
struct Requested {
    packed: Vec<Packed>,
    query: Query,
}

impl Serialize for Requested {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let moments = self.packed.iter().filter_map(Packed::moment);
        serializer.collect_seq(moments.map(|moment| self.query.part(moment)))
    }
}

/// The moments of the last hour.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    moments: VecDeque<Packed>,
    bytes: usize,
    /// Length of the moments as JSON, bytes.
    text: usize,
}

impl Ring {
    /// Adds a moment, and drops the oldest ones to make room.
    pub(crate) fn push(&mut self, moment: &Moment) {
        let moment = Packed::new(moment);
        self.bytes += moment.memory();
        self.text += moment.text;
        self.moments.push_back(moment);
        while self.moments.len() > LENGTH || self.bytes > MAX_BYTES || self.text > MAX_TEXT {
            let Some(oldest) = self.moments.pop_front() else { break };
            self.bytes -= oldest.memory();
            self.text -= oldest.text;
        }
    }

    /// Returns the memory of the moments, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the moments as JSON, in the order in which they were added.
    pub(crate) fn texts(&self) -> impl DoubleEndedIterator<Item = Vec<u8>> {
        self.moments.iter().filter_map(Packed::json)
    }

    /// Returns the requested part.
    pub(crate) fn answer(&self, query: Query) -> Answer {
        let requested = self.moments.iter().filter(|moment| query.is_in(moment));
        let mut packed: Vec<Packed> = requested.cloned().collect();
        // The clock may have been set back between two moments.
        packed.sort_by_key(|moment| moment.time_s);
        Answer {
            oldest_s: self.moments.iter().map(|moment| moment.time_s).min(),
            newest_s: self.moments.iter().map(|moment| moment.time_s).max(),
            moments: Requested { packed, query },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::control::{MAX_REPLY, Reply};
    use crate::view::PolicyNames;
    use crate::view::tests::connection_view;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    /// Returns a moment with that many connections, each with figures and names of its own, of length `text` and one more,
    /// in which little repeats.
    pub(crate) fn moment(time_s: u64, connections: usize, text: usize) -> Moment {
        static VIEW: OnceLock<ConnectionView> = OnceLock::new();
        let scattered = |number: usize, place: u64| {
            (number as u64 * 1_009 + place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 28
        };
        let name = |kind: char, number: usize| {
            let parts = (0..text as u64 / 8 + 1).map(|part| scattered(number, u64::from(kind) * 64 + part));
            let digits: String = parts.map(|part| format!("{part:08x}")).collect();
            format!("{kind}{}", &digits[..text])
        };
        let policy = PolicyNames { send: "fixed:64KiB".to_owned(), receive: "sobas:published".to_owned() };
        let view = |number| ConnectionView {
            netns: name('n', number),
            cgroup: Some(name('c', number)),
            process: Some(name('p', number)),
            group: Some(name('g', number)),
            policy: Some(policy.clone()),
            tuned: Some(crate::view::Tuned::default()),
            cookie: scattered(number, 1),
            bytes_acked: scattered(number, 2),
            bytes_received: scattered(number, 3),
            goodput_bps: Some(scattered(number, 4)),
            delivery_rate_bps: scattered(number, 5),
            srtt_s: Some(scattered(number, 6) as f64 / 1e12),
            cwnd_bytes: scattered(number, 7),
            send_buffer_bytes: scattered(number, 8),
            send_queued_bytes: scattered(number, 9),
            receive_buffer_bytes: scattered(number, 10),
            receive_window_bytes: scattered(number, 11),
            segments_out: scattered(number, 12),
            ..VIEW.get_or_init(connection_view).clone()
        };
        let kept = |number| Kept { view: view(number), queueing_delay_s: Some(0.047), retransmitted: 17 };
        let sums = |kind, most| -> Vec<Sums> {
            (0..most).map(|number| Sums { name: name(kind, number), ..Sums::default() }).collect()
        };
        Moment {
            time_s,
            interval_s: 10.0,
            budget_bytes: 1 << 20,
            memory_short: false,
            total: Sums::default(),
            connections: (0..connections).map(kept).collect(),
            prefixes: sums('/', MAX_PREFIXES),
            cgroups: sums('c', MAX_CGROUPS),
        }
    }

    /// Returns an answer as a client reads it.
    pub(crate) fn asked(ring: &Ring, query: Query) -> History {
        let reply = serde_json::to_string(&Reply::Written(ring.answer(query))).unwrap();
        let Ok(Reply::History(history)) = serde_json::from_str(&reply) else { panic!("{reply}") };
        *history
    }

    fn times(history: &History) -> Vec<u64> {
        history.moments.iter().map(|moment| moment.time_s).collect()
    }

    #[test]
    fn a_full_hour_fits_with_names_as_hosts_have_them() {
        let mut ring = Ring::default();
        (0..LENGTH as u64 + 9).for_each(|time| ring.push(&moment(time, BY_RATE + BY_MEMORY, 40)));
        assert_eq!(ring.moments.len(), LENGTH, "{} bytes", ring.bytes);
        assert_eq!(ring.moments[0].time_s, 9, "the oldest went first");
    }

    #[test]
    fn the_longest_answer_is_one_that_a_client_reads() {
        let mut ring = Ring::default();
        let mut one = moment(0, BY_RATE + BY_MEMORY, 1);
        // The name of all takes little memory, and is written out for each.
        let cgroup = Some("x".repeat(3_000));
        one.connections.iter_mut().for_each(|kept| kept.view.cgroup.clone_from(&cgroup));
        (0..LENGTH).for_each(|_| ring.push(&one));
        let longest = serde_json::to_vec(&ring.answer(Query::default())).unwrap().len() as u64;
        assert!(longest < MAX_REPLY.min(file::MAX_BYTES), "{longest}");
    }

    #[test]
    fn an_answer_is_the_part_that_was_asked_for() {
        let mut ring = Ring::default();
        assert_eq!(asked(&ring, Query::default()), History::default());
        (1..=9).for_each(|time| ring.push(&moment(time * 10, 3, 5)));
        let ask = |query: Query| asked(&ring, query);
        let all = ask(Query::default());
        assert_eq!((all.oldest_s, all.newest_s, all.moments.len()), (Some(10), Some(90), 9));
        let some = ask(Query { since_s: Some(25), until_s: Some(50), most: 2, ..Query::default() });
        assert_eq!((times(&some), some.oldest_s), (vec![30, 40, 50], Some(10)));
        assert!(some.moments.iter().all(|moment| moment.connections.len() == 2));
        let address = Some(all.moments[0].connections[0].view.peer.to_string().parse().unwrap());
        let same = ask(Query { address, ..Query::default() });
        assert_eq!(same.moments, all.moments);
        let none = ask(Query { address: Some("1.2.3.4".parse().unwrap()), ..Query::default() });
        assert!(none.moments.iter().all(|moment| moment.connections.is_empty()));
        assert_eq!(none.moments[0].prefixes, all.moments[0].prefixes, "sums are those of all");
    }

    #[test]
    fn an_answer_is_in_order_of_time_also_after_the_clock_was_set_back() {
        let mut ring = Ring::default();
        [30, 40, 10, 20].into_iter().for_each(|time| ring.push(&moment(time, 0, 0)));
        assert_eq!(times(&asked(&ring, Query::default())), [10, 20, 30, 40]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn the_bounds_hold_whatever_comes(sizes in prop::collection::vec((0..60_usize, 0..800_usize), 1..30)) {
            let mut ring = Ring::default();
            for (time, (connections, text)) in sizes.iter().enumerate() {
                let moment = moment(time as u64, *connections, *text);
                // Repeated; otherwise the bounds would not be reached.
                for _ in 0..8 {
                    ring.push(&moment);
                }
                let bytes: usize = ring.moments.iter().map(Packed::memory).sum();
                let text: usize = ring.moments.iter().map(|moment| moment.text).sum();
                prop_assert_eq!((bytes, text), (ring.bytes, ring.text));
                prop_assert!(bytes <= MAX_BYTES && text <= MAX_TEXT && ring.moments.len() <= LENGTH);
            }
        }
    }
}
