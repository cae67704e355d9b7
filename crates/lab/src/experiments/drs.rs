//! DRS's experiments (Feng 2002, Fisk 2000): a receiver with a window that is too small, or too large.

use bufwise_link::{QueueLimit, QueueSize};
use bufwise_units::{BitRate, Nanos};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// Buffer maximum, larger than what the paths hold, bytes.
const LARGE: u64 = 64 << 20;
/// Receive buffers as in the papers' time, bytes.
const SMALL: u64 = 64 << 10;
/// Size of the file (Fisk 2000, figure 4), bytes.
const FILE: u64 = 64 << 20;
/// Transfers of each method (Fisk 2000, figure 4).
const TRANSFERS: u32 = 25;
/// Setting that turns off the kernel's own tuning of the receive buffer.
const NO_TUNING: (&str, &str) = ("net.ipv4.tcp_moderate_rcvbuf", "0");

pub(super) fn experiments() -> Vec<Experiment> {
    vec![file(), modem()]
}

/// Returns a method whose receiver has 64 KB that the kernel does not tune; the sender's buffer is no limit.
fn small() -> Method {
    Method { name: "64 KB", rmem: SMALL, wmem: LARGE, receiver: vec![NO_TUNING], ..Method::default() }
}

fn file() -> Experiment {
    // The time of the file at some 80 and 300 Mbit/s.
    let case = |rate, name: &str, seconds, quick| Case {
        name: name.to_owned(),
        paths: vec![path(rate, 100)],
        flows: vec![Flow { amount: Amount::Bytes(FILE, seconds, 3), ..Flow::default() }],
        memory: None,
        quick,
        setup: Setup { repeat: Some(TRANSFERS), ..Setup::default() },
    };
    Experiment {
        id: "drs-fig4",
        source: "Fisk 2000, figure 4",
        question: "64 MB over 100 ms: how much faster is DRS than a receive buffer of 64 KB?",
        scale: "25 transfers of each method, one after the other, as in the paper, and the kernel's beside; the static buffer, whose \
            rate is steady, moves for 5 s instead of all 64 MB.",
        way: Way::Download,
        cases: vec![case(100, "100 Mbit/s", 7, true), case(1_000, "1 Gbit/s", 3, false)],
        methods: vec![
            Method { amount: Some(Amount::Seconds(5, 3)), ..small() },
            Method { name: "drs", client: Some("drs"), ..small() },
            Method { name: "kernel", rmem: LARGE, wmem: LARGE, ..Method::default() },
        ],
        // At 1 Gbit/s a file may take less than the time after which rates are settled.
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::ReceiveWindowLimited,
            Quantity::Retransmits,
        ],
        targets: vec![
            Target::new("drs", Quantity::GoodputBps, Bound::AtLeastTimes(7.0, "64 KB")),
            Target::new("drs", Quantity::ReceiveWindowLimited, Bound::AtMost(0.02)),
        ],
        ..Experiment::default()
    }
}

fn modem() -> Experiment {
    let line = PathSpec {
        rate: Some(BitRate(56_000)),
        rtt: Nanos::from_millis(150),
        queue: Some(QueueSize::Limit(QueueLimit::Bytes(16_384))),
        ..PathSpec::default()
    };
    Experiment {
        id: "drs-fig7-9",
        source: "Fisk 2000, figures 7 to 9",
        question: "A 56 kbit/s line: does DRS cause fewer retransmissions than a receive buffer of 64 KB?",
        scale: "40 s; round trip of 150 ms and queue of 16 KB are ours, the paper gives neither.",
        way: Way::Download,
        cases: vec![Case {
            name: "56 kbit/s".to_owned(),
            paths: vec![line],
            flows: vec![Flow { amount: Amount::Seconds(40, 15), ..Flow::default() }],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![small(), Method { name: "drs", client: Some("drs"), ..small() }],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::Retransmits,
            Quantity::RetransmitShare,
            Quantity::WindowPeakBytes,
            Quantity::Drops,
            Quantity::RttMeanS,
        ],
        targets: vec![
            Target::new("drs", Quantity::RetransmitShare, Bound::AtMostTimes(0.99, "64 KB", 0.0)),
            Target::new("drs", Quantity::GoodputBps, Bound::AtLeastTimes(0.95, "64 KB")),
        ],
        ..Experiment::default()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_many_transfers_as_in_the_paper_take_less_than_half_an_hour() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|experiment| experiment.id == "drs-fig4").unwrap();
        for case in &experiment.cases {
            assert_eq!(experiment.repeat(case, false, None), 25);
            assert_eq!(experiment.repeat(case, true, None), 1);
        }
        assert!(experiment.seconds(false, None) < 1_620, "{} s", experiment.seconds(false, None));
    }
}
