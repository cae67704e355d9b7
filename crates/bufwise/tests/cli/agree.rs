//! Every view says the same figure for the same thing: `ls`, `top`, the page, `explain` and the metrics beside the kernel's
//! own ss(8), for one connection that goes on over an emulated path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bufwise_lab::spec::{LossSpec, PathSpec};
use bufwise_lab::testbed::Testbed;
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup, Transfer};
use crate::run::{patience, root, run, within};
use crate::web::{Web, first_with};

/// For a moment in which the connection is steady: a view is judged by what ss says just before and just after it.
const PATIENCE: Duration = Duration::from_secs(25);
/// The kernel's own round trip and window may move by so much meanwhile, as where no loss comes.
const STEADY: f64 = 1.15;
/// Figures, and how far a view may lie outside of what ss said before and after.
///
/// - Sizes that bufwise has set, and counters, lie between the two; windows and times move up and down between two looks.
/// - A rate is that of the last 0.3 s (`ls`) to a second; ss tells that of the whole time between its two looks.
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

/// The sender's end, as ss(8) shows it.
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

/// The figures of a connection in the JSON of `ls`, `top` and `explain`.
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

/// The newest figures of the graphs that the page draws of one connection.
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

/// Each figure of a view that is not what the kernel said before and after it.
fn differences(before: &Kernel, seen: &Figures, after: &Kernel) -> Vec<String> {
    let rate = (after.acked - before.acked) * 8.0 / (after.at - before.at).as_secs_f64();
    let outside = |(name, band): &(&str, f64)| {
        let seen = *seen.get(name)?;
        let (one, other) = match *name {
            "rate" => (rate, rate),
            name => (before.figures[name], after.figures[name]),
        };
        let (least, most) = (one.min(other) * (1.0 - band), one.max(other) * (1.0 + band));
        // Figures for people are rounded to whole microseconds.
        (seen < least - 1.0 || seen > most + 1.0).then(|| format!("{name}: {seen}, by ss {least} to {most}"))
    };
    BANDS.iter().filter_map(outside).collect()
}

/// Whether nothing happened to the connection between two looks.
fn is_steady(before: &Kernel, after: &Kernel) -> bool {
    ["RTT", "cwnd"].iter().all(|name| {
        let (one, other) = (before.figures[name], after.figures[name]);
        one.max(other) < one.min(other) * STEADY
    })
}

/// Holds a view to what the kernel says around it.
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

/// The JSON of a command that succeeds.
fn answer(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sample of that name.
fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Holds the metrics, which are sums over what the daemon sizes, to those of the list.
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
        // The writer fills what is acknowledged, 64 KB at a time of some 500.
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
    // A buffer of 256 KiB over a path of 100 KB: the path is full, a queue of 60 ms stands, and a loss comes each six seconds,
    // after which CUBIC's window moves for three.
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
    let _transfer = Transfer([server, group.spawn(&here, "exec iperf3 -c 198.18.0.2 -t 100")]);
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
