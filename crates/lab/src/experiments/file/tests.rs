use bufwise_units::{BitRate, Nanos};

use super::super::catalogue;
use super::super::model::{Amount, Bound, Program, Quantity, Way};
use super::*;

const WHOLE: &str = include_str!("../../../experiments/example.toml");

fn read(text: &str) -> Result<Experiment, String> {
    let policy = |name: &str| match name {
        "kernel" | "fit" => Ok(()),
        other => Err(format!("unknown policy `{other}`: kernel or fit")),
    };
    parse(text, "mine", &Policies { run: policy, get: policy, ..Policies::ANY })
        .map_err(|error| error.to_string())
}

#[test]
fn all_of_the_catalogue_but_surveys_and_costs_can_be_written_and_read_again() {
    let mut without = Vec::new();
    for experiment in catalogue() {
        match show(&experiment) {
            Some(text) => assert_eq!(parse(&text, "other", &Policies::ANY).as_ref(), Ok(&experiment)),
            None => without.push(experiment.id),
        }
    }
    assert_eq!(
        without,
        [
            "sobas-queues",
            "cost-send",
            "cost-receive",
            "fit-grid",
            "fit-harm",
            "pair-harm",
            "head-to-head",
            "probe-grid"
        ]
    );
}

#[test]
fn an_experiment_without_a_file_says_why_and_what_can_be_said() {
    let cost = catalogue().into_iter().find(|experiment| experiment.id == "cost-send").unwrap();
    let text = outline(&cost);
    assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
    assert!(text.starts_with("# cost-send cannot be written as a file yet: it counts"), "{text}");
    for words in ["500 Mbit/s, 2 ms, queue", "# method sabt: sabt at the client, cubic", cost.question] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_a_file_leaves_out_is_as_usual() {
    let text = "[[path]]\nrate = \"10mbit\"\nrtt = \"20ms\"\n[[workload]]\n[[method]]\nname = \"kernel\"\n";
    let mine = read(text).unwrap();
    assert_eq!((mine.id, mine.way, mine.cases.len(), mine.targets.len()), ("mine", Way::Upload, 1, 0));
    let case = &mine.cases[0];
    assert_eq!((case.paths[0].rate, case.paths[0].rtt), (Some(BitRate(10_000_000)), Nanos::from_millis(20)));
    assert_eq!((case.flows[0].amount, case.flows[0].connections), (Amount::Seconds(10, 10), 1));
    assert!(case.quick && mine.quantities.contains(&Quantity::GoodputBps));
}

#[test]
fn the_example_of_the_docs_has_every_kind_of_workload() {
    let example = read(WHOLE).unwrap();
    assert_eq!(example.id, "example");
    let flows: Vec<_> = example.cases.iter().flat_map(|case| &case.flows).collect();
    let any = |of: fn(Amount) -> bool| flows.iter().any(|flow| of(flow.amount));
    assert!(any(|amount| matches!(amount, Amount::Seconds(..))));
    assert!(any(|amount| matches!(amount, Amount::File(..))));
    assert!(any(
        |amount| matches!(amount, Amount::Program(Program { server, .. }, ..) if server.contains("$PORT"))
    ));
    let requests = flows.iter().find(|flow| matches!(flow.amount, Amount::Requests(..))).unwrap();
    assert!(requests.sizes.len() > 2 && requests.delay > Nanos(0), "{requests:?}");
    assert!(flows.iter().any(|flow| flow.cross && flow.path == 0 && flow.connections > 1));
    assert!(flows.iter().any(|flow| flow.path == 1));
    assert!(example.targets.iter().any(|target| matches!(target.bound, Bound::AtLeastTimes(..))));
}

/// Returns a file into which a test puts one wrong value.
fn with(path: &str, workload: &str, method: &str, rest: &str) -> String {
    format!(
        "[[path]]\nrate = \"10mbit\"\n{path}\n[[workload]]\n{workload}\n[[method]]\nname = \"kernel\"\n{method}\n{rest}"
    )
}

/// Returns an expectation with these bounds.
fn bounded(bounds: &str) -> String {
    format!("[[expect]]\nmethod = \"kernel\"\nquantity = \"drops\"\n{bounds}")
}

/// A method that is the only one of a case.
const FIT_ALONE: &str = "[[method]]\nname = \"fit\"\n[[case]]\nname = \"a\"\nmethods = [\"fit\"]\n";

/// Returns a file with [`FIT_ALONE`], and with an expectation of `fit` with these bounds.
fn by_fit_alone(bounds: &str) -> String {
    with("", "", "", &format!("{FIT_ALONE}{}", bounded(bounds).replacen("kernel", "fit", 1)))
}

const LINK: &str = "[[link]]\nname = \"a\"\nrate = \"1mbit\"\nrtt = \"20ms\"\n";

#[test]
fn paths_pass_links_in_a_row_share_them_and_begin_where_they_say() {
    let rest = "[[path]]\nfrom = \"C\"\nlinks = [\"a\", \"z\"]\n[[link]]\nname = \"z\"\nloss = \"1%\"\n";
    let mine = read(&with("links = [\"a\"]", "start = \"0.25s\"", "", &format!("{LINK}{rest}"))).unwrap();
    let [one, other] = &mine.cases[0].paths[..] else { panic!("{mine:?}") };
    assert_eq!((one.from.as_deref(), other.from.as_deref()), (None, Some("C")));
    assert_eq!(one.links[0], other.links[0]);
    assert_eq!((one.links[0].name.as_str(), other.links[1].name.as_str()), ("a", "z"));
    assert_eq!((one.tight_rate(), one.whole_rtt()), (Some(BitRate(1_000_000)), Nanos::from_millis(20)));
    assert_eq!(mine.cases[0].flows[0].delay, Nanos::from_millis(250));
    let shown = show(&mine).unwrap();
    assert_eq!(parse(&shown, "other", &Policies::ANY).as_ref(), Ok(&mine), "{shown}");
}

#[test]
fn the_example_of_routers_is_shown_as_it_is_written() {
    let routers =
        read(&include_str!("../../../experiments/routers.toml").replace("\"abt\"", "\"fit\"")).unwrap();
    assert_eq!(parse(&show(&routers).unwrap(), "other", &Policies::ANY).as_ref(), Ok(&routers));
    let text = super::super::settings::path(&routers.cases[0].paths[1]);
    assert_eq!(text, "from C: no limit, 2 ms, then left (10 Mbit/s, 20 ms, queue 25000 B)");
    let over_all = routers.cases[0].paths.iter().map(|path| path.whole_rtt().0 / 1_000_000);
    assert_eq!(over_all.collect::<Vec<_>>(), [42, 22, 22]);
}

#[test]
fn a_trace_begins_with_the_path_or_with_the_first_data() {
    let begins = |begins: &str| {
        let path = format!("trace = \"0 10mbit\\n5 5mbit\"\n{begins}");
        read(&with(&path, "", "", "")).unwrap()
    };
    let with_data = |mine: &Experiment| mine.cases[0].paths[0].trace_begins_with_data;
    assert!(!with_data(&begins("")) && !with_data(&begins("trace-begins = \"path\"")));
    let mine = begins("trace-begins = \"data\"");
    assert!(with_data(&mine));
    let shown = show(&mine).unwrap();
    assert!(shown.contains("\ntrace-begins = \"data\"\n"), "{shown}");
    assert_eq!(parse(&shown, "other", &Policies::ANY).as_ref(), Ok(&mine), "{shown}");
}

#[test]
fn a_case_may_have_links_of_its_own() {
    let case = |name: &str, rate: &str| {
        let link = format!("[[case.link]]\nname = \"a\"\nrate = \"{rate}\"\n");
        format!("[[case]]\nname = \"{name}\"\n{}", if rate.is_empty() { String::new() } else { link })
    };
    let rest = format!("{LINK}{}{}", case("slow", ""), case("fast", "9mbit"));
    let mine = read(&with("links = [\"a\"]", "", "", &rest)).unwrap();
    let rates = mine.cases.iter().map(|case| case.paths[0].tight_rate());
    assert_eq!(rates.collect::<Vec<_>>(), [1_000_000, 9_000_000].map(|rate| Some(BitRate(rate))));
    assert_eq!(parse(&show(&mine).unwrap(), "other", &Policies::ANY).as_ref(), Ok(&mine));
}

#[test]
fn a_case_with_paths_of_its_own_need_not_pass_the_files_links() {
    let cases =
        "[[case]]\nname = \"through\"\n[[case]]\nname = \"around\"\n[[case.path]]\nrate = \"5mbit\"\n";
    let text = with("links = [\"a\"]", "", "", &format!("{LINK}{cases}"));
    let mine = read(&text).unwrap();
    let links = mine.cases.iter().map(|case| case.paths[0].links.len());
    assert_eq!(links.collect::<Vec<_>>(), [1, 0]);
    assert_eq!(parse(&show(&mine).unwrap(), "other", &Policies::ANY).as_ref(), Ok(&mine));
    // A link of the case itself, and one of the file that no case passes.
    for (text, name) in [
        (format!("{text}[[case.link]]\nname = \"b\"\n"), "`b`"),
        (text.replace("[[case]]\nname = \"through\"\n", ""), "`a`"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains("link: ") && error.contains(name) && error.contains("no path"), "{error}");
    }
}

#[test]
fn errors_name_line_key_and_what_is_allowed() {
    for (text, words) in [
        (with("rtt = \"40\"", "", "", ""), &["line 3: rtt: `40`", "40ms"][..]),
        (with("rtt = 40", "", "", ""), &["line 3: rtt", "40", "string"]),
        (with("rate-back = \"1mbit\"", "", "", ""), &["line 3", "rate-back", "`rate-a-to-b`"]),
        (with("queue = \"100\"", "", "", ""), &["line 1: path", "100 bytes", "1514"]),
        (with("queue = \"bdp/0\"", "", "", ""), &["line 3: queue", "\"bdp/0\"", "bdp/8"]),
        (with("loss = \"2\"", "", "", ""), &["line 3: loss", "probability"]),
        (with("trace-begins = \"x\"", "", "", ""), &["line 3: trace-begins", "`x`", "`path`", "`data`"]),
        (with("trace-begins = \"data\"", "", "", ""), &["line 1: path: trace-begins", "no trace", "`trace`"]),
        (with("", "path = \"far\"", "", ""), &["line 5: path", "`far`", "`path 1`"]),
        (with("", "start = \"soon\"", "", ""), &["line 5: start", "`soon`", "40ms"]),
        (with("", "start = \"90000s\"", "", ""), &["line 5: start", "at most 86400s"]),
        (with("links = [\"b\"]", "", "", LINK), &["line 3: links", "`b` is no link", "there is `a`"]),
        (with("links = [\"b\"]", "", "", ""), &["line 3: links", "`b` is no link", "none: add [[link]]"]),
        (with("links = [\"a\", \"a\"]", "", "", LINK), &["line 3: links", "`a`", "once"]),
        (with("", "", "", LINK), &["line 9: link", "`a`", "no path", "links = [\"a\"]"]),
        (with("links = [\"a\"]", "", "", &format!("{LINK}{LINK}")), &["line 13: link", "name", "already"]),
        (with("links = [\"a\"]", "", "", "[[link]]\nrate = \"1mbit\""), &["line 9: link", "name", "`links`"]),
        (
            with("links = [\"a\"]", "", "", &format!("{LINK}mtu = 1500")),
            &["line 9: link", "mtu", "of a path"],
        ),
        (
            with("links = [\"a\"]", "", "", &format!("{LINK}queue = \"9\"")),
            &["line 9: link", "holds no packet"],
        ),
        (
            with("mtu = 9000\nlinks = [\"a\"]", "", "", &format!("{LINK}queue = \"5000\"")),
            &["line 1: path: mtu", "`a`", "no packet of 9014"],
        ),
        (with("from = \"a b\"", "", "", ""), &["line 3: from", "letters"]),
        (with("", "connections = 900", "", ""), &["line 5: connections", "from 1 to 128"]),
        (with("", "connections = 70000", "", ""), &["line 5: connections: from 1 to 128"]),
        (with("", "connections = -1", "", ""), &["line 5: connections: from 1 to 128"]),
        (with("mtu = 500", "", "", ""), &["line 3: mtu: from 1280 to 65535 bytes"]),
        (with("mtu = 70000", "", "", ""), &["line 3: mtu: from 1280 to 65535 bytes"]),
        (format!("repeat = -1\n{}", with("", "", "", "")), &["line 1: repeat: from 1 to 1000"]),
        (
            with("", "kind = \"documents\"\nsize = \"1KB\"\ncount = -3", "", ""),
            &["line 7: count: from 1 to 10000"],
        ),
        (with("", "count = 3", "", ""), &["line 4", "count", "kind bulk", "quick-time"]),
        (with("", "kind = \"documents\"", "", ""), &["line 4", "size", "`sizes`"]),
        (with("", "kind = \"web\"", "", ""), &["line 5: kind", "web", "`requests`"]),
        (
            with("", "kind = \"requests\"\nsize = \"1KB\"\nserver = \"apache\"", "", ""),
            &["line 4", "server", "`apache`", "`nginx`"],
        ),
        (with("", "kind = \"file\"\nsize = \"1MB\"", "", ""), &["line 4", "kind", "download"]),
        (with("", "kind = \"requests\"\nsize = \"1KB\"", "", ""), &["line 4: workload: kind", "download"]),
        (with("", "kind = \"documents\"\nsize = \"1KB\"", "", ""), &["line 4: workload: kind", "download"]),
        (
            with("", "cross = true", "", "[[workload]]\nkind = \"requests\"\nsize = \"1KB\""),
            &["line 9: workload: kind", "download"],
        ),
        (with("", "", "initial-window = 0", ""), &["line 8: initial-window: from 1 to"]),
        (with("", "", "initial-window = -2", ""), &["line 8: initial-window: from 1 to"]),
        (
            with("", "", "", "[[case]]\nname = \"a\"\ninitial-window = 0"),
            &["line 11: initial-window: from 1 to"],
        ),
        (with("", "kind = \"program\"\nclient = \"true\"", "", ""), &["line 4", "server", "needs it"]),
        (
            with("", "cross = true", "", ""),
            &["line 4: workload: no workload that is measured", "[[workload]]"],
        ),
        (with("", "", "client = \"tahoe\"", ""), &["line 8: client", "tahoe", "kernel or fit"]),
        (with("", "", "rmem = \"1KB\"", ""), &["line 8: rmem", "from 4KiB"]),
        (with("", "", "sender = { \"kernel.panic\" = \"1\" }", ""), &["line 8", "`net.`"]),
        (with("", "", "sender = { \"net.x/../y\" = \"1\" }", ""), &["line 8", "`net.`"]),
        (
            with("", "", "", "[[method]]\nname = \"kernel\""),
            &["line 10: name", "already the name of a method"],
        ),
        (with("", "", "", "[[case]]\nname = \"a\"\nmethods = [\"fit\"]"), &["line 11: methods", "`kernel`"]),
        (with("", "", "", "[[case]]\nname = \"a\"\nquick = false"), &["line 11: quick: no case is quick"]),
        (
            format!(
                "way = \"download\"\n{}",
                with("", "kind = \"file\"\nsize = \"1MB\"", "", "[[case]]\nname = \"a\"\nipv6 = true")
            ),
            &["line 13: ipv6", "IPv4 only"],
        ),
        (
            with("", "", "", &format!("{FIT_ALONE}{}", bounded("at-most = 1\ncases = [\"a\"]"))),
            &["line 14: expect: cases", "`kernel` does not run in case `a`"],
        ),
        (
            with("", "", "", &format!("{FIT_ALONE}{}", bounded("at-most = 1"))),
            &["line 14: expect: method", "`kernel` runs in no case"],
        ),
        (
            by_fit_alone("at-most-times = 2.0\nof = \"kernel\""),
            &["line 14: expect: of", "`kernel` does not run in case `a`"],
        ),
        (
            with("", "", "", &bounded("at-most-bdp = 2.0")).replace("rate = \"10mbit\"", "rtt = \"10ms\""),
            &["line 9: expect: at-most-bdp", "`mine`", "`rate`"],
        ),
        (
            with("", "", "", &bounded("at-most-bdp = 2.0").replace("drops", "goodput_bps")),
            &["line 9: expect: at-most-bdp", "in bytes", "held_peak_bytes"],
        ),
        (
            format!("memory = \"1MB\"\n{}", with("", "", "", &bounded("within-memory = true"))),
            &["line 10: expect: within-memory", "in bytes", "held_peak_bytes"],
        ),
        (
            with("", "", "", "[[expect]]\nmethod = \"fit\"\nquantity = \"drops\"\nat-most = 1"),
            &["line 10: method", "`fit` is no method", "`kernel`"],
        ),
        (
            with("", "", "", "[[expect]]\nmethod = \"kernel\"\nquantity = \"speed\"\nat-most = 1"),
            &["line 11: quantity", "speed", "`goodput_bps`"],
        ),
        (
            with("", "", "", "[[expect]]\nmethod = \"kernel\"\nquantity = \"drops\""),
            &["line 9", "expect", "at-least-times (with `of`)"],
        ),
        (
            with("", "", "", "[[expect]]\nmethod = \"kernel\"\nquantity = \"drops\"\nat-most = \"1ms\""),
            &["line 12: at-most", "no unit"],
        ),
        (
            with(
                "",
                "",
                "",
                "[[expect]]\nmethod = \"kernel\"\nquantity = \"goodput_bps\"\nat-least = \"1ms\"",
            ),
            &["line 12: at-least", "`1ms` is not a rate", "mbit"],
        ),
        (
            with("", "", "", "[[expect]]\nmethod = \"kernel\"\nquantity = \"drops\"\nwithin-memory = true"),
            &["line 9", "within-memory", "`memory`"],
        ),
        (
            with("", "", "", &bounded("at-least = 1\nat-least-times = 2.0")),
            &["line 9", "expect: at-least-times", "it has at-least already"],
        ),
        (
            with("", "", "", &bounded("at-least = 1\nat-most = 2")),
            &["line 9", "expect: at-most", "another [[expect]]"],
        ),
        (
            with("", "", "", &bounded("at-most-times = 2.0")),
            &["line 9", "expect: at-most-times", "needs `of`"],
        ),
        (with("", "", "", &bounded("reaches = 0.9")), &["line 9", "expect: reaches", "needs `before`"]),
        (
            by_fit_alone("reaches = 0.9\nbefore = \"kernel\""),
            &["line 14: expect: before", "`kernel` runs in no case"],
        ),
        (
            with(
                "",
                "",
                "",
                &format!(
                    "[[method]]\nname = \"fit\"\n[[case]]\nname = \"a\"\n{}",
                    bounded("reaches = 0.9\nbefore = \"fit\"\ncases = [\"a\"]")
                ),
            ),
            &["line 13: expect: cases", "over all cases"],
        ),
        (
            format!(
                "way = \"download\"\n{}",
                with("", "kind = \"requests\"\nsize = \"1KB\"", "workload = { time = \"3s\" }", "")
            ),
            &["line 10: workload: kind", "`bulk`", "`requests`", "case `mine`"],
        ),
        (
            format!(
                "way = \"download\"\n{}",
                with("", "", "workload = { kind = \"file\", size = \"1MB\" }", "")
            ),
            &["line 9: workload: kind", "`file`", "`bulk`"],
        ),
        ("id = \"a/b\"".to_owned(), &["line 1: id", "hyphens"]),
        (String::new(), &["line 1: path: no path", "[[path]]"]),
        ("[[path]]\nrate = \"1mbit\"\n[[workload]]".to_owned(), &["line 1: method: no method", "[[method]]"]),
        ("[[path]]\nrate = \"1mbit\"".to_owned(), &["line 1: workload: no workload", "[[workload]]"]),
        ("[[workload]]\n[[case]]\nname = \"a\"".to_owned(), &["line 2: path: no path", "[[path]]"]),
        ("path = [{ rate = \"fast\" }]".to_owned(), &["line 1: rate", "fast", "100mbit"]),
        ("path".to_owned(), &["line 1"]),
        ("[path]\nrate = \"1mbit\"".to_owned(), &["line 1", "two brackets", "[[path]]"]),
        (
            with("", "", "sender = { net.ipv4.tcp_wmem = \"4096 4096 4096\" }", ""),
            &["line 8", "in quotation marks"],
        ),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(words.iter().all(|word| error.contains(word)), "{text}\n{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn sizes_are_those_that_bufwise_run_takes() {
    let policies = Policies {
        memory: |size| Err(format!("{size}: too little memory")),
        small_documents: |size| Err(format!("{size}: too large a document")),
        gso_max_size: |size| Err(format!("{size}: no packet")),
        ..Policies::ANY
    };
    for (text, words) in [
        (format!("memory = \"1KB\"\n{}", with("", "", "", "")), "line 1: memory: 1000B: too little"),
        (with("", "", "", "[[case]]\nname = \"a\"\nmemory = \"1KB\""), "line 11: memory: 1000B: too little"),
        (with("", "", "small-documents = \"9MB\"", ""), "line 8: small-documents: 9000000B: too large"),
        (with("", "", "gso-max-size = \"9B\"", ""), "line 8: gso-max-size: 9B: no packet"),
    ] {
        let error = parse(&text, "mine", &policies).expect_err(&text).to_string();
        assert!(error.starts_with(words), "{text}\n{error}");
    }
}

#[test]
fn a_quantity_that_is_named_twice_is_read_once() {
    let read = |list: &str| read(&format!("quantities = {list}\n{}", with("", "", "", ""))).unwrap();
    let twice = read("[\"drops\", \"goodput_bps\", \"drops\"]");
    assert_eq!(twice.quantities, [Quantity::Drops, Quantity::GoodputBps]);
    assert!(read("[]").quantities.contains(&Quantity::GoodputBps), "as usual");
}

#[test]
fn documents_may_be_fetched_beside_an_upload() {
    let documents = "[[workload]]\nkind = \"documents\"\nsize = \"1KB\"\n";
    let mine = read(&with("", "", "initial-window = 1", documents)).unwrap();
    assert_eq!((mine.way, mine.cases[0].flows.len()), (Way::Upload, 2));
    assert_eq!(mine.methods[0].initial_window, Some(1));
}

#[test]
fn what_this_machine_lacks_is_named_with_its_line_and_key() {
    fn only(name: &str, known: &str) -> Result<(), String> {
        if name == known { Ok(()) } else { Err(format!("no `{name}`: there is `{known}`")) }
    }
    let policies = Policies {
        congestion_control: |name| only(name, "reno"),
        setting: |name| only(name, "net.a"),
        ..Policies::ANY
    };
    let case = |rest: &str| with("", "", "", &format!("[[case]]\nname = \"a\"\n{rest}"));
    for (text, words) in [
        (with("", "", "congestion-control = \"tahoe\"", ""), "line 8: congestion-control: no `tahoe`"),
        (with("", "congestion-control = \"tahoe\"", "", ""), "line 5: congestion-control: no `tahoe`"),
        (case("workload = [{ congestion-control = \"tahoe\" }]"), "line 11: congestion-control: no `tahoe`"),
        (with("", "", "sender = { \"net.b\" = \"1\" }", ""), "line 8: sender: no `net.b`"),
        (with("", "", "receiver = { \"net.b\" = \"1\" }", ""), "line 8: receiver: no `net.b`"),
        (case("settings = { \"net.b\" = \"1\" }"), "line 11: settings: no `net.b`"),
    ] {
        let error = parse(&text, "mine", &policies).expect_err(&text).to_string();
        assert!(error.starts_with(words) && error.contains("there is `"), "{text}\n{error}");
        let there = text.replace("tahoe", "reno").replace("net.b", "net.a");
        assert!(parse(&there, "mine", &policies).is_ok(), "{there}");
        assert!(parse(&text, "mine", &Policies::ANY).is_ok(), "another machine may have it: {text}");
    }
    let beside = with("", "", "congestion-control = \"tahoe\"\nbeside = true", "");
    assert!(parse(&beside, "mine", &policies).is_ok(), "the method is left out of the runs");
}

#[test]
fn bounds_have_the_unit_of_their_quantity() {
    for (expected, bound) in [
        ("quantity = \"goodput_bps\"\nat-least = \"37mbit\"", Bound::AtLeast(37e6)),
        ("quantity = \"goodput_bps\"\nat-least = 37000000", Bound::AtLeast(37e6)),
        ("quantity = \"rtt_mean_s\"\nat-most = \"50ms\"", Bound::AtMost(0.05)),
        ("quantity = \"held_peak_bytes\"\nat-most = \"2MiB\"", Bound::AtMost(2_097_152.0)),
        (
            "quantity = \"held_peak_bytes\"\nat-most-bdp = 2.5\nplus = \"256KiB\"",
            Bound::WithinOwnProducts(2.5, 262_144.0),
        ),
    ] {
        let rest = format!("[[expect]]\nmethod = \"kernel\"\n{expected}");
        let mine = read(&with("", "", "", &rest)).unwrap();
        assert_eq!(mine.targets[0].bound, bound);
        assert!(mine.quantities.contains(&mine.targets[0].quantity));
    }
}

#[test]
fn a_name_is_kept_once() {
    let [one, other] = [(); 2].map(|()| read::kept("a name of a test"));
    assert!(std::ptr::eq(one, other));
}
