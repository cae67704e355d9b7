//! All views agree on the figures of one connection over an emulated path: `ls`, `top`, the page, `explain` and the
//! metrics are compared with the kernel's own ss(8).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bufwise_lab::spec::{LossSpec, PathSpec};
use bufwise_lab::testbed::Testbed;
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup, Transfer};
use crate::run::{patience, root, run, within};
use crate::web::{Web, first_with};

/// Time to wait for a moment in which the connection is steady: a view is compared with the output of ss just before
/// and just after it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The connection is steady if its round trip and window in ss change by at most this factor, as without a loss.
const STEADY: f64 = 1.15;
/// Figures, and how far a view may lie outside the two outputs of ss.
///
/// - Sizes set by bufwise, and counters, lie between the two; windows and times go up and down between two samples.
/// - A rate covers the last 0.3 s (`ls`) to a second; that of ss covers the time between its two outputs.
const BANDS: [(&str, f64); 7] = [
    ("send buffer", 0.0),
    ("receive buffer", 0.0),
    ("repeated", 0.0),
    ("base", 0.01),
    ("RTT", 0.05),
    ("cwnd", 0.05),
    ("rate", 0.25),
];

/// A view's figures of the connection, by the names of [`BANDS`]: bytes, microseconds, bit/s.
type Figures = BTreeMap<&'static str, f64>;

/// The sender's figures in ss(8).
struct Kernel {
    at: Instant,
    acked: f64,
    figures: Figures,
}

impl Kernel {
    fn now(net: &Net, port: u64) -> Self {
        let mut ss = net.command("ss");
        ss.args(["--no-header", "--tcp", "--info", "--numeric", "--memory", &format!("sport = :{port}")]);
        let output = ss.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // `rtt:40.1/0.2`, `skmem:(r0,rb131072,t0,tb87040,..)`
        let word = |name: &str| {
            let word = text.split_whitespace().find_map(|word| word.strip_prefix(name));
            word.unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        let number = |name: &str| word(name).split('/').next().unwrap().parse::<f64>().unwrap();
        let memory = |name: &str| {
            let mut parts = word("skmem:(").split(',');
            parts.find_map(|part| part.strip_prefix(name)?.parse::<f64>().ok()).unwrap()
        };
        let repeated =
            text.split_whitespace().find_map(|word| word.strip_prefix("retrans:")?.split('/').next_back());
        let figures = [
            ("send buffer", memory("tb")),
            ("receive buffer", memory("rb")),
            ("repeated", repeated.map_or(0.0, |count| count.parse().unwrap())),
            ("base", number("minrtt:") * 1e3),
            ("RTT", number("rtt:") * 1e3),
            ("cwnd", number("cwnd:") * number("mss:")),
        ];
        Self { at: Instant::now(), acked: number("bytes_acked:"), figures: figures.into() }
    }
}

/// Reads the figures of a connection from the JSON of `ls`, `top` and `explain`.
fn of_json(one: &Value) -> Figures {
    let figure = |key: &str| one[key].as_f64().unwrap_or_else(|| panic!("no {key} in {one}"));
    [
        ("send buffer", figure("send_buffer_bytes")),
        ("receive buffer", figure("receive_buffer_bytes")),
        ("repeated", figure("retransmits")),
        ("base", figure("min_rtt_s") * 1e6),
        ("RTT", figure("srtt_s") * 1e6),
        ("cwnd", figure("cwnd_bytes")),
        ("rate", figure("goodput_bps")),
    ]
    .into()
}

/// Reads the newest figures of the page's graphs of one connection.
fn of_page(event: &Value) -> Option<Figures> {
    let graphs = event["opened"]["graphs"].as_array()?;
    let newest = |title: &str, name: &str| {
        let graph = graphs.iter().find(|graph| graph["title"] == title)?;
        let line = graph["lines"].as_array()?.iter().find(|line| line["name"] == name)?;
        line["values"].as_array()?.last()?.as_f64()
    };
    let figures = [
        ("send buffer", newest("Send buffer", "limit")?),
        ("receive buffer", newest("Receive buffer", "limit")?),
        ("base", newest("Round trip", "base")?),
        ("RTT", newest("Round trip", "RTT")?),
        ("cwnd", newest("Windows", "congestion")?),
        ("rate", newest("Rate", "rate")?),
    ];
    Some(figures.into())
}

/// Returns the figures of a view that lie outside the kernel's before and after it.
fn differences(before: &Kernel, seen: &Figures, after: &Kernel) -> Vec<String> {
    let rate = (after.acked - before.acked) * 8.0 / (after.at - before.at).as_secs_f64();
    let outside = |(name, band): &(&str, f64)| {
        let seen = *seen.get(name)?;
        let (one, other) = match *name {
            "rate" => (rate, rate),
            name => (before.figures[name], after.figures[name]),
        };
        let (least, most) = (one.min(other) * (1.0 - band), one.max(other) * (1.0 + band));
        // The views round to whole microseconds.
        (seen < least - 1.0 || seen > most + 1.0).then(|| format!("{name}: {seen}, by ss {least} to {most}"))
    };
    BANDS.iter().filter_map(outside).collect()
}

/// Whether the connection was steady between two outputs of ss.
fn is_steady(before: &Kernel, after: &Kernel) -> bool {
    ["RTT", "cwnd"].iter().all(|name| {
        let (one, other) = (before.figures[name], after.figures[name]);
        one.max(other) < one.min(other) * STEADY
    })
}

/// Asserts that a view agrees with the kernel's figures before and after it.
fn agree(what: &str, kernel: impl Fn() -> Kernel, mut view: impl FnMut() -> Figures) {
    let (start, mut judged) = (Instant::now(), Vec::new());
    loop {
        let before = kernel();
        let seen = view();
        let after = kernel();
        if is_steady(&before, &after) {
            judged.push(differences(&before, &seen, &after).join("; "));
            if judged.last().is_some_and(String::is_empty) {
                return;
            }
        }
        assert!(start.elapsed() < patience(PATIENCE), "{what}: {judged:#?}");
    }
}

/// Returns the JSON of a command, which must succeed.
fn answer(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the sample of that name.
fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Asserts that the metrics, which are sums over the tuned connections, agree with the list.
fn sums_agree(socket: &str, list: impl Fn() -> Value) {
    let sized = |key: &str| {
        let list = list();
        let all = list["connections"].as_array().unwrap().iter();
        all.filter(|one| !one["policy"].is_null()).map(|one| one[key].as_f64().unwrap()).sum::<f64>()
    };
    let start = Instant::now();
    for (metric, key, band) in [
        ("bufwise_memory_allowed_bytes{direction=\"send\"}", "send_buffer_bytes", 0.01),
        ("bufwise_memory_allowed_bytes{direction=\"receive\"}", "receive_buffer_bytes", 0.01),
        // The writer refills acknowledged memory, 64 KB at a time of some 500.
        ("bufwise_memory_held_bytes{direction=\"send\"}", "send_queued_bytes", 0.3),
        ("bufwise_memory_waste_bytes", "waste_bytes", 0.3),
    ] {
        loop {
            let (before, text, after) =
                (sized(key), run(&["metrics", "--socket", socket]).stdout, sized(key));
            let said = sample(&String::from_utf8(text).unwrap(), metric);
            let (least, most) = (before.min(after) * (1.0 - band), before.max(after) * (1.0 + band));
            if (least..=most).contains(&said) {
                break;
            }
            assert!(start.elapsed() < patience(PATIENCE), "{metric}: {said}, by ls {least} to {most}");
        }
    }
}

#[test]
fn root_every_view_says_what_the_kernel_says_of_a_connection() {
    let Some(_alone) = root() else { return };
    if bufwise_trial::program("ss").is_none() {
        return;
    }
    // A buffer of 256 KiB over a path of 100 KB: the path is full with a queue of 60 ms. A loss comes every six
    // seconds, and CUBIC's window changes for three seconds after it.
    let path = PathSpec {
        rate: Some("20mbit".parse().unwrap()),
        rtt: "40ms".parse().unwrap(),
        queue: Some("480ms".parse().unwrap()),
        loss: "0.01%".parse::<LossSpec>().unwrap().0,
        congestion_control: Some("cubic".to_owned()),
        ..PathSpec::default()
    };
    let testbed = Testbed::start(&[path]).unwrap();
    let (here, there) = (Net::of(&testbed.hosts[0].a), Net::of(&testbed.hosts[0].b));
    let (group, other) = (TestGroup::new(), TestGroup::new());
    let daemon = Daemon::ready(&here, &["--cgroup", &group.path(), "--policy", "fixed:256KiB"]);
    let server = other.spawn(&there, "exec iperf3 -s -1");
    there.listens();
    let _transfer = Transfer([server, group.spawn(&here, "exec iperf3 -c 198.18.0.2 -t 1000")]);
    let socket = daemon.socket();
    let list = || answer(&["ls", "--all", "--json", "--socket", &socket]);
    within(patience(Duration::from_secs(60)), "data moves and a segment was repeated", || {
        here.connections().iter().any(|one| one.info.total_retrans > 0 && one.info.bytes_acked > 2_000_000)
    });
    let one = here.busiest(&list());
    let port = one["local"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let kernel = || Kernel::now(&here, port);

    agree("ls", kernel, || of_json(&here.busiest(&list())));
    let top = || answer(&["top", "--once", "--all", "--json", "--socket", &socket]);
    agree("top", kernel, || of_json(&here.busiest(&top())));
    let explained = || answer(&["explain", "198.18.0.2:5201", "--json", "--socket", &socket]);
    agree("explain", kernel, || of_json(&here.busiest(&explained())));
    let web = Web::start(&[]);
    let mut events = web.events(&format!("open={}", one["cookie"]));
    agree("the page", kernel, || first_with(&mut events, of_page));

    sums_agree(&socket, list);
}
