//! Which connections a list shows, and which come first.

use std::cmp::Reverse;

use bufwise_host::address::Pattern;
use bufwise_host::view::ConnectionView;
use clap::ValueEnum;

/// The figure that a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// What moves now
    Rate,
    /// The round-trip time
    Rtt,
    /// The memory that both queues hold
    Memory,
    /// The memory that the limits allow beyond need
    Waste,
    /// The program's name
    Process,
    /// The peer's address
    Peer,
}

impl Order {
    pub(super) fn sort(self, all: &mut [ConnectionView]) {
        // By the rate in any case, among equals.
        all.sort_by_key(|one| Reverse((one.goodput_bps, one.bytes())));
        let held = |one: &ConnectionView| one.send_queued_bytes + one.receive_queued_bytes;
        match self {
            Self::Rate => {}
            Self::Rtt => all.sort_by(|a, b| b.srtt_s.unwrap_or(0.0).total_cmp(&a.srtt_s.unwrap_or(0.0))),
            Self::Memory => all.sort_by_key(|one| Reverse(held(one))),
            Self::Waste => all.sort_by_key(|one| Reverse(one.waste_bytes)),
            Self::Process => all.sort_by(|a, b| a.process.cmp(&b.process)),
            Self::Peer => all.sort_by_key(|one| one.peer),
        }
    }
}

/// Whether a connection has that address or port, program or limit.
pub(super) fn matches(one: &ConnectionView, filter: &str) -> bool {
    let by_address = filter.parse::<Pattern>().is_ok_and(|pattern| pattern.matches(one.local, one.peer));
    let by_program = one.process.as_ref().is_some_and(|name| name.contains(filter));
    let by_limit = one.limited_by.is_some_and(|cause| cause.to_string() == filter.replace('-', " "));
    by_address || by_program || by_limit
}

#[cfg(test)]
mod tests {
    use super::super::tests::connection_view;
    use super::*;

    #[test]
    fn a_filter_is_an_address_a_program_or_a_limit() {
        let one = connection_view();
        for filter in ["198.18.0.2", "443", "198.18.0.1:40000", "rsync", "sync", "application"] {
            assert!(matches(&one, filter), "{filter}");
        }
        for filter in ["198.18.0.3", "80", "curl", "send buffer", "send-buffer"] {
            assert!(!matches(&one, filter), "{filter}");
        }
    }

    #[test]
    fn the_largest_comes_first_and_names_in_their_order() {
        let one = |process: &str, goodput: u64, queued: u64, srtt_s: f64| ConnectionView {
            process: Some(process.to_owned()),
            goodput_bps: Some(goodput),
            send_queued_bytes: queued,
            waste_bytes: 100 - queued,
            srtt_s: Some(srtt_s),
            ..connection_view()
        };
        let all = [one("b", 1, 30, 0.2), one("a", 2, 20, 0.1), one("c", 3, 10, 0.3)];
        for (order, names) in [
            (Order::Rate, "cab"),
            (Order::Rtt, "cba"),
            (Order::Memory, "bac"),
            (Order::Waste, "cab"),
            (Order::Process, "abc"),
            (Order::Peer, "cab"),
        ] {
            let mut sorted = all.clone();
            order.sort(&mut sorted);
            let found: String = sorted.iter().filter_map(|one| one.process.clone()).collect();
            assert_eq!(found, names, "{order:?}");
        }
    }
}
