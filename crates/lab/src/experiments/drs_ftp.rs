//! drsFTP's experiments (Feng 2002, section 5.3): a file by FTP, with buffers too small, right, or too large.

use super::model::{Amount, Bound, Case, Experiment, Flow, Ftp, Method, Quantity, Setup, Target, Way, path};

/// Buffer maximum, larger than what the path holds, bytes.
const LARGE: u64 = 32 << 20;
/// Size of the file (Feng 2002, section 5.3), bytes.
const FILE: u64 = 100_000_000;
/// Size of the file with `--quick`, bytes.
const PART: u64 = 30_000_000;
/// Bytes that a sender limited to 64 KB moves in ten seconds.
const LITTLE: u64 = 6_000_000;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![file()]
}

/// Returns the method in which `bufwise get` with a policy fetches from `bufwise serve`.
fn by(policy: &'static str, name: &'static str) -> Method {
    let ftp = Ftp { client: Some(policy), server: Some("") };
    Method { name, rmem: LARGE, wmem: LARGE, ftp, ..Method::default() }
}

fn file() -> Experiment {
    let flow = Flow { amount: Amount::File(FILE, 20, PART, 6), ..Flow::default() };
    let stock =
        Method { amount: Some(Amount::File(LITTLE, 15, LITTLE / 2, 6)), ..by("fixed:64KiB", "64 KB") };
    let curl = Method { name: "curl, vsftpd", ftp: Ftp::default(), ..by("kernel", "") };
    let target = Target::new;
    Experiment {
        id: "drsftp-fig11-12",
        source: "Feng 2002, figures 11 and 12",
        question: "100 MB by FTP over 100 Mbit/s x 100 ms: how fast, and with how much memory?",
        scale: "One transfer; 64 KB, whose rate is steady, moves 6 MB. Smallest and largest BDP: 25 and 320 Mbit/s.",
        counts_cost: false,
        survey: false,
        way: Way::Download,
        cases: vec![Case {
            name: "100 Mbit/s".to_owned(),
            paths: vec![path(100, 100)],
            flows: vec![flow],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![
            stock,
            by("fixed:320KiB", "smallest BDP"),
            by("fixed:4MiB", "largest BDP"),
            by("drs-ftp", "drs-ftp"),
            by("drs", "drs"),
            by("sobas", "sobas"),
            by("kernel", "kernel"),
            curl,
        ],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::TransferS,
            Quantity::SocketMemoryBytes,
            Quantity::RttMeanS,
            Quantity::Drops,
        ],
        targets: vec![
            target("drs", Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "largest BDP")),
            target("drs", Quantity::GoodputBps, Bound::AtLeastTimes(4.0, "64 KB")),
            target("drs", Quantity::SocketMemoryBytes, Bound::AtMostTimes(0.5, "largest BDP", 0.0)),
            target("drs-ftp", Quantity::GoodputBps, Bound::AtLeastTimes(3.0, "64 KB")),
        ],
    }
}
