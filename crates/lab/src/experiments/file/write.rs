//! Writes an experiment as the text of a file. [`parse`](super::parse) must give the same experiment back, or there is
//! no text.

use std::collections::BTreeMap;

use bufwise_link::{CrossPattern, CrossTraffic, Loss, QueueLimit, QueueSize, Trace};
use bufwise_units::{BitRate, Nanos};
use toml::Spanned;

use super::super::model::{
    Amount, Bound, Case, Experiment, Flow, Ftp, Method, Setup, Target, USUAL_RMEM, USUAL_WMEM, WEB_SERVER,
    Way,
};
use super::super::settings;
use super::format::{self, File, Kind, TraceBegins, Value, WayKey, Word, Workload};
use super::{Policies, parse};
use crate::spec::{HEAVY_TAIL, PathSpec, SharedLink, shared_links};

/// Returns the text of a file for this experiment; `None`: it uses something that the format lacks.
#[must_use]
pub fn show(experiment: &Experiment) -> Option<String> {
    let text = toml::to_string(&file(experiment)).ok()?;
    (parse(&text, experiment.id, &Policies::ANY).as_ref() == Ok(experiment)).then_some(text)
}

/// Returns an outline of an experiment that has no file, as comments: the reason, its question, source, paths and
/// methods.
#[must_use]
pub fn outline(experiment: &Experiment) -> String {
    let Experiment { id, source, question, scale, .. } = experiment;
    let why = match experiment {
        Experiment { counts_cost: true, .. } => "it counts what programs in the kernel cost",
        Experiment { survey: true, .. } => "it is a survey, whose runs are kept and continued",
        _ => "it uses settings that the format lacks",
    };
    let mut text = format!(
        "# {id} cannot be written as a file yet: {why}.\n# question: {question}\n# source: {source}\n# scale: {scale}\n"
    );
    for case in &experiment.cases {
        let paths: Vec<String> = case.paths.iter().map(settings::path).collect();
        text += &format!("# case {}: {}\n", case.name, paths.join("; "));
    }
    for method in &experiment.methods {
        let end = |name, policy: Option<&str>| policy.map(|policy| format!("{policy} at the {name}, "));
        let (client, server) = (end("client", method.client), end("server", method.server));
        let ends = client.into_iter().chain(server).collect::<String>();
        text += &format!("# method {}: {ends}{}\n", method.name, settings::kernel(method));
    }
    text
}

fn word(text: impl Into<String>) -> Word {
    Spanned::new(0..0, text.into())
}

fn if_set(is: bool) -> Option<bool> {
    is.then_some(true)
}

fn time(time: Nanos) -> Option<Word> {
    (time != Nanos(0)).then(|| word(time.to_string()))
}

fn whole(number: impl Into<i64>) -> Spanned<i64> {
    Spanned::new(0..0, number.into())
}

fn bytes(bytes: u64) -> Word {
    word(format!("{bytes}B"))
}

fn seconds(seconds: u32) -> Word {
    word(format!("{seconds}s"))
}

fn file(experiment: &Experiment) -> File {
    let cases = &experiment.cases;
    let all = |same: &dyn Fn(&Case, &Case) -> bool| cases.windows(2).all(|pair| same(&pair[0], &pair[1]));
    let first = cases.first();
    // Keys that all cases share are written at the top.
    let paths = first.filter(|_| all(&|one, other| one.paths == other.paths));
    let workloads = paths.filter(|_| all(&|one, other| one.flows == other.flows));
    let memory = first.and_then(|case| case.memory).filter(|_| all(&|one, other| one.memory == other.memory));
    let has_files =
        cases.iter().flat_map(|case| &case.flows).any(|flow| matches!(flow.amount, Amount::File(..)));
    let of_case = |case: &Case| {
        let mut written = self::case(case);
        written.path = if paths.is_none() { self::paths(case) } else { Vec::new() };
        written.link = if paths.is_none() { links(case) } else { Vec::new() };
        written.workload = if workloads.is_none() { self::workloads(case) } else { Vec::new() };
        written.memory = written.memory.filter(|_| memory.is_none());
        Spanned::new(0..0, written)
    };
    File {
        id: Some(word(experiment.id)),
        source: Some(experiment.source.to_owned()),
        question: Some(experiment.question.to_owned()),
        scale: Some(experiment.scale.to_owned()),
        way: Some(if experiment.way == Way::Upload { WayKey::Upload } else { WayKey::Download }),
        quantities: Some(experiment.quantities.clone()),
        repeat: None,
        memory: memory.map(bytes),
        path: paths.map(self::paths).unwrap_or_default(),
        link: paths.map(links).unwrap_or_default(),
        workload: workloads.map(self::workloads).unwrap_or_default(),
        method: experiment.methods.iter().map(|one| Spanned::new(0..0, method(one, has_files))).collect(),
        case: cases.iter().map(of_case).collect(),
        expect: experiment.targets.iter().map(|target| Spanned::new(0..0, expect(target))).collect(),
    }
}

fn case(case: &Case) -> format::Case {
    let Setup { methods, repeat, limits, settings, initial_window, ipv6, .. } = &case.setup;
    format::Case {
        name: word(&case.name),
        memory: case.memory.map(bytes),
        quick: (!case.quick).then(|| Spanned::new(0..0, false)),
        repeat: repeat.map(whole),
        limits: limits.map(bytes),
        initial_window: initial_window.map(whole),
        ipv6: ipv6.then(|| Spanned::new(0..0, true)),
        methods: methods.iter().map(|name| word(*name)).collect(),
        settings: table(settings),
        path: Vec::new(),
        link: Vec::new(),
        workload: Vec::new(),
    }
}

fn table(settings: &[(&'static str, &'static str)]) -> BTreeMap<Word, String> {
    settings.iter().map(|(key, value)| (word(*key), (*value).to_owned())).collect()
}

/// Returns the name of a path if there are several: its number.
fn path_name(case: &Case, index: usize) -> Option<Word> {
    (case.paths.len() > 1).then(|| word(format!("path {}", index + 1)))
}

fn paths(case: &Case) -> Vec<Spanned<format::Path>> {
    let one = |(index, spec): (usize, &PathSpec)| Spanned::new(0..0, path(spec, path_name(case, index)));
    case.paths.iter().enumerate().map(one).collect()
}

fn links(case: &Case) -> Vec<Spanned<format::Path>> {
    let one = |link: &SharedLink| Spanned::new(0..0, path(&link.spec, Some(word(&link.name))));
    shared_links(&case.paths).into_iter().map(one).collect()
}

fn path(spec: &PathSpec, name: Option<Word>) -> format::Path {
    let usual = PathSpec::default();
    let rate = |rate: &Option<BitRate>| rate.map(|rate| word(rate.to_string()));
    format::Path {
        name,
        from: spec.from.clone().map(word),
        links: spec.links.iter().map(|link| word(&link.name)).collect(),
        rate: rate(&spec.rate),
        rtt: time(spec.rtt),
        queue: spec.queue.map(queue),
        policer: if_set(spec.policer),
        mark: spec.mark.map(|mark| word(mark.to_string())),
        loss: loss(spec.loss),
        jitter: time(spec.jitter),
        reorder: if_set(spec.reorder),
        rate_a_to_b: rate(&spec.rate_a_to_b),
        cross_a_to_b: spec.cross_a_to_b.map(cross),
        cross_b_to_a: spec.cross_b_to_a.map(cross),
        mtu: (spec.mtu != usual.mtu).then(|| whole(spec.mtu)),
        seed: Some(spec.seed).filter(|seed| *seed != usual.seed),
        trace: spec.trace.as_ref().map(trace),
        trace_a_to_b: spec.trace_a_to_b.as_ref().map(trace),
        trace_begins: spec.trace_begins_with_data.then_some(TraceBegins::Data),
    }
}

fn queue(size: QueueSize) -> Word {
    match size {
        QueueSize::Limit(QueueLimit::Unlimited) => word("unlimited"),
        QueueSize::Limit(QueueLimit::Bytes(size)) => bytes(size),
        QueueSize::Limit(QueueLimit::Packets(packets)) => word(format!("{packets}pkt")),
        QueueSize::Bdp(share) => word(format!("{share}bdp")),
        QueueSize::Time(Nanos(time)) if !time.is_multiple_of(1_000) => {
            word(format!("{}.{:03}us", time / 1_000, time % 1_000))
        }
        QueueSize::Time(time) => word(time.to_string()),
    }
}

fn loss(loss: Loss) -> Option<Word> {
    match loss {
        Loss::None => None,
        Loss::Uniform { probability } => Some(word(probability.to_string())),
        Loss::GilbertElliott { good_to_bad, bad_to_good, loss_bad, .. } => {
            Some(word(format!("gilbert:{good_to_bad},{bad_to_good},{loss_bad}")))
        }
    }
}

fn cross(CrossTraffic { rate, pattern, .. }: CrossTraffic) -> Word {
    word(match pattern {
        CrossPattern::Bursty { on, off, durations } if durations == HEAVY_TAIL => {
            format!("{rate}:{on},{off}")
        }
        CrossPattern::Aggregate { sources, on, off, durations } if durations == HEAVY_TAIL => {
            format!("{rate}:{on},{off},{sources}")
        }
        _ => rate.to_string(),
    })
}

/// Writes a trace in the form of trace files: seconds, rate, one-way delay.
fn trace(trace: &Trace) -> Word {
    let seconds = |Nanos(at): Nanos| format!("{}.{:09}", at / 1_000_000_000, at % 1_000_000_000);
    let steps = trace.steps().iter().map(|step| {
        let rate = step.rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string());
        let delay = step.delay.map(|delay| format!(" {delay}")).unwrap_or_default();
        format!("{} {rate}{delay}\n", seconds(step.at))
    });
    let again = trace.period().map(|period| format!("{} repeat\n", seconds(period)));
    word(steps.chain(again).collect::<String>())
}

fn workloads(case: &Case) -> Vec<Spanned<Workload>> {
    let one = |flow: &Flow| {
        let path = usize::from(flow.path);
        let written = Workload {
            path: path_name(case, path).filter(|_| path > 0),
            start: time(flow.delay),
            cross: if_set(flow.cross),
            connections: (flow.connections != 1).then(|| whole(flow.connections)),
            buffer: flow.buffer.map(bytes),
            congestion_control: flow.congestion_control.map(word),
            writes: flow.writes.map(str::to_owned),
            stops: if_set(flow.stops),
            ..amount(flow.amount, &flow.sizes)
        };
        let written =
            if flow.web { Workload { server: Some(WEB_SERVER.to_owned()), ..written } } else { written };
        Spanned::new(0..0, written)
    };
    case.flows.iter().map(one).collect()
}

fn amount(amount: Amount, several: &[u64]) -> Workload {
    let sizes = |size| match several {
        [] => (Some(bytes(size)), None),
        several => (None, Some(several.iter().copied().map(bytes).collect())),
    };
    let timed = |kind, time, quick| Workload {
        kind: Some(kind).filter(|kind| *kind != Kind::Bulk),
        time: Some(seconds(time)),
        quick_time: (quick != time).then(|| seconds(quick)),
        ..Workload::default()
    };
    match amount {
        Amount::Seconds(time, quick) => timed(Kind::Bulk, time, quick),
        Amount::Bytes(size, time, quick) => {
            Workload { size: Some(bytes(size)), ..timed(Kind::Bulk, time, quick) }
        }
        Amount::Documents(size, count, quick) => {
            let (size, sizes) = sizes(size);
            let [count, quick_count] = [count, quick].map(|count| Some(whole(count)));
            Workload { kind: Some(Kind::Documents), size, sizes, count, quick_count, ..Workload::default() }
        }
        Amount::Requests(size, time, quick) => {
            let (size, sizes) = sizes(size);
            Workload { size, sizes, ..timed(Kind::Requests, time, quick) }
        }
        Amount::File(whole, time, part, quick) => Workload {
            size: Some(bytes(whole)),
            quick_size: (part != whole).then(|| bytes(part)),
            ..timed(Kind::File, time, quick)
        },
        Amount::Program(program, time, quick) => Workload {
            server: Some(program.server.to_owned()),
            client: Some(program.client.to_owned()),
            ..timed(Kind::Program, time, quick)
        },
        Amount::Probe(time, quick) => timed(Kind::Probe, time, quick),
    }
}

fn method(method: &Method, has_files: bool) -> format::Method {
    let usual = Method::default();
    let policy = |policy: Option<&str>| policy.map(word);
    let Ftp { client, server } = method.ftp;
    format::Method {
        name: word(method.name),
        client: policy(method.client),
        server: policy(method.server),
        congestion_control: Some(method.congestion_control)
            .filter(|name| *name != usual.congestion_control)
            .map(word),
        rmem: (method.rmem != USUAL_RMEM).then(|| bytes(method.rmem)),
        wmem: (method.wmem != USUAL_WMEM).then(|| bytes(method.wmem)),
        small_documents: method.small_documents.map(bytes),
        gso_max_size: method.at_once.map(word),
        initial_window: method.initial_window.map(whole),
        beside: if_set(method.beside),
        sender: table(&method.sender),
        receiver: table(&method.receiver),
        ftp: (has_files || method.ftp != Ftp::default()).then(|| format::Ftp {
            client: Some(word(client.unwrap_or("curl"))),
            server: Some(server.unwrap_or("vsftpd").to_owned()),
        }),
        workload: method.amount.map(|own| Spanned::new(0..0, amount(own, &[]))),
    }
}

fn expect(target: &Target) -> format::Expect {
    let mut written = format::Expect {
        method: word(target.method),
        quantity: target.quantity,
        at_least: None,
        at_most: None,
        at_least_times: None,
        at_most_times: None,
        at_most_bdp: None,
        within_memory: None,
        reaches: None,
        of: None,
        plus: None,
        before: None,
        cases: target.cases.iter().map(word).collect(),
    };
    let value = |number| Some(Spanned::new(0..0, Value::Number(number)));
    let plus = |number| value(number).filter(|_| number != 0.0);
    match target.bound {
        Bound::AtLeast(limit) => written.at_least = value(limit),
        Bound::AtMost(limit) => written.at_most = value(limit),
        Bound::AtLeastTimes(times, of) => {
            (written.at_least_times, written.of) = (Some(times), Some(word(of)));
        }
        Bound::AtMostTimes(times, of, more) => {
            (written.at_most_times, written.of, written.plus) = (Some(times), Some(word(of)), plus(more));
        }
        Bound::WithinMemory => written.within_memory = Some(true),
        Bound::WithinProducts(times, more, of) => {
            (written.at_most_bdp, written.of, written.plus) = (Some(times), Some(word(of)), plus(more));
        }
        Bound::WithinOwnProducts(times, more) => {
            (written.at_most_bdp, written.plus) = (Some(times), plus(more));
        }
        Bound::EarlierThan(share, before) => {
            (written.reaches, written.before) = (Some(share), Some(word(before)));
        }
        // Only grids have these bounds, and grids have no file: the text is refused when it is read again.
        Bound::AtLeastOfCeiling(_) | Bound::AtLeastTimesBest(..) | Bound::NearRtt(..) => {}
    }
    written
}
