//! One past moment, with the sentences of `explain` on its connections.

use bufwise_host::history::{Moment, Sums};
use bufwise_units::counted;
use serde::Serialize;

use super::table;
use crate::explain::Explanation;
use crate::figures::{rate, size};

/// Most connections in the text; JSON has them all.
const SHOWN: usize = 8;

/// A moment explained.
#[derive(Debug, Serialize)]
pub(super) struct Past {
    time_s: u64,
    interval_s: f64,
    budget_bytes: u64,
    memory_short: bool,
    total: Sums,
    connections: Vec<Explanation>,
    prefixes: Vec<Sums>,
    cgroups: Vec<Sums>,
}

impl Past {
    /// Explains each of the moment's connections.
    pub(super) fn of(moment: Moment) -> Self {
        let Moment { time_s, interval_s, budget_bytes, memory_short, total, .. } = moment;
        let explain = |one| Explanation::of_the_past(one, interval_s, memory_short);
        let connections = moment.connections.into_iter().map(explain).collect();
        let (prefixes, cgroups) = (moment.prefixes, moment.cgroups);
        Self { time_s, interval_s, budget_bytes, memory_short, total, connections, prefixes, cgroups }
    }

    /// Returns the text for a reader in the network namespace `home`; `when` is the moment's time.
    pub(super) fn to_text(&self, when: &str, home: &str) -> String {
        let Sums { connections, send_bps, receive_bps, held_bytes, allowed_bytes, retransmitted, .. } =
            &self.total;
        let connections = counted(*connections, "connection");
        let retransmitted = counted(*retransmitted, "segment");
        let mut text = format!(
            "At {when}, over {:.0} s: {connections}, sending {}, receiving {}; queues held {} of {} allowed; \
             {retransmitted} repeated\n",
            self.interval_s,
            rate(*send_bps),
            rate(*receive_bps),
            size(*held_bytes),
            size(*allowed_bytes),
        );
        if self.memory_short {
            text += "The kernel was short of memory for TCP (net.ipv4.tcp_mem), and shrank buffers.\n";
        }
        text.extend(self.connections.iter().take(SHOWN).map(|one| one.to_text(home)));
        if let Some(more @ 1..) = self.connections.len().checked_sub(SHOWN) {
            text += &format!("{more} more with less traffic: --json has all\n");
        }
        text
    }

    /// Returns the sums of its groups as tables.
    pub(super) fn groups(moment: &Moment) -> String {
        let moments = std::slice::from_ref(moment);
        table::groups("PEERS OF", moments, |moment| &moment.prefixes)
            + &table::groups("CGROUP", moments, |moment| &moment.cgroups)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::moment;
    use super::*;

    #[test]
    fn a_moment_is_told_in_the_sentences_of_explain() {
        let past = Past::of(moment(0));
        let text = past.to_text("14:05:10", "blue");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "At 14:05:10, over 10 s: 3 connections, sending 8.0 Mbit/s, receiving 1.0 Mbit/s; queues held 100.0 KB of \
             8.20 MB allowed; 17 segments repeated"
        );
        assert_eq!(lines[1], "198.18.0.1:40000, sending to 198.18.0.2:443: rsync (7), established, cubic");
        assert_eq!(lines[2], "  Limited by congestion window, over 10 s.");
        for words in [
            "It moves 8.0 Mbit/s; the BDP is 50.0 KB",
            "Its send buffer may hold 4.00 MB (set by bufwise)",
            "Its segments wait 47.0 ms in a queue",
            "Advice: A queue of 47 ms stands in the path",
            "Would fit help? ",
            "receiving from 198.18.7.7:80",
            "Limited by reading program, over 10 s.",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let json = serde_json::to_value(&past).unwrap();
        assert_eq!(json["connections"][0]["queueing_delay_s"], 0.047);
        assert!(json["connections"][0]["advice"].is_string() && json["connections"][0]["limited"].is_null());
    }

    #[test]
    fn a_single_connection_and_segment_are_told_in_the_singular() {
        let mut single = moment(0);
        (single.total.connections, single.total.retransmitted) = (1, 1);
        let text = Past::of(single).to_text("14:05:10", "blue");
        assert!(text.starts_with("At 14:05:10, over 10 s: 1 connection, sending "), "{text}");
        assert!(text.contains(" allowed; 1 segment repeated\n"), "{text}");
    }

    #[test]
    fn a_short_memory_is_said_and_advised_on() {
        let text = Past::of(Moment { memory_short: true, ..moment(0) }).to_text("14:05:10", "blue");
        assert!(text.contains("short of memory for TCP (net.ipv4.tcp_mem)"), "{text}");
        assert!(text.contains("Advice: The kernel is short of memory"), "{text}");
    }
}
