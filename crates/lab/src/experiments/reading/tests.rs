//! Tests of the quantities of a run, and runs made up for the tests of other modules.

use bufwise_link::Counters;
use hdrhistogram::Histogram;

use super::super::model::path;
use super::*;
use crate::commands::Outcome;
use crate::pump::LinkLog;
use crate::spec::PathSpec;

/// A sample of a sender on host A: time, own port, flow, bytes acknowledged, round-trip time in ms.
pub(in crate::experiments) fn sample(
    t: f64,
    port: u16,
    flow: u16,
    bytes_acked: u64,
    rtt_ms: u32,
) -> ConnectionSample {
    ConnectionSample {
        t,
        host: "a",
        local: SocketAddr::from(([198, 18, 0, 1], port)),
        peer: SocketAddr::from(([198, 18, 0, 2], super::port(usize::from(flow)))),
        congestion_control: Default::default(),
        srtt_us: rtt_ms * 1_000,
        min_rtt_us: 0,
        cwnd_bytes: 0,
        flight_bytes: 0,
        sndbuf: 0,
        rcvbuf: 0,
        wmem_queued: 0,
        rmem_alloc: 0,
        snd_wnd: 0,
        rcv_wnd: 0,
        delivery_rate_bps: 0,
        bytes_acked,
        bytes_received: 0,
        retrans: 0,
        limited_by: None,
    }
}

/// Returns the report on a link with this timeline.
pub(in crate::experiments) fn link(timeline: Vec<LinkSample>) -> PathReport {
    let last = timeline[timeline.len() - 1];
    let lateness_us = Histogram::new(2).unwrap();
    let link = LinkLog { last, timeline, lateness_us, data_at: None, refused: 0, unknown: 0 };
    PathReport { link, stalls: Vec::new(), paused: Nanos(0), invalid: None }
}

/// Returns a link at one moment: time on the wall clock and pauses so far in ms, bytes that have left it towards host B, and
/// bytes in its queue there.
pub(in crate::experiments) fn moment(
    wall_ms: u64,
    paused_ms: u64,
    delivered_bytes: u64,
    queued_bytes: u64,
) -> LinkSample {
    let a_to_b = Counters { delivered_bytes, queued_bytes, ..Counters::default() };
    let [at, wall] = [wall_ms - paused_ms, wall_ms].map(Nanos::from_millis);
    LinkSample { at, wall, a_to_b, b_to_a: Counters::default() }
}

/// Returns the value of a quantity of a run with one iperf3 from host A, which had 9.5 Mbit/s by its report, over 10 Mbit/s.
fn value(quantity: Quantity, timeline: Vec<LinkSample>, samples: Vec<ConnectionSample>) -> Option<f64> {
    value_over(quantity, vec![link(timeline)], samples)
}

/// Returns the same as [`value`] of a run over these links.
fn value_over(quantity: Quantity, paths: Vec<PathReport>, samples: Vec<ConnectionSample>) -> Option<f64> {
    value_on(path(10, 20), quantity, paths, samples)
}

/// Returns the same as [`value_over`] of a run on the path `spec`.
fn value_on(
    spec: PathSpec,
    quantity: Quantity,
    paths: Vec<PathReport>,
    samples: Vec<ConnectionSample>,
) -> Option<f64> {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-beside").unwrap();
    experiment.way = Way::Upload;
    let case = &mut experiment.cases[0];
    (case.paths, case.flows) = (vec![spec], vec![Flow::default()]);
    let directory = tempfile::tempdir().unwrap();
    let report = r#"{"end":{"sum_received":{"bits_per_second":9.5e6}}}"#;
    fs::write(directory.path().join(flow_report(0)), report).unwrap();
    let outcome = Outcome { status: 0, seconds: 14.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples, paths };
    Reading::new(&experiment, &experiment.cases[0], &seen, directory.path()).value(quantity)
}

#[test]
fn pauses_count_only_while_data_move() {
    // Data move from 2 s to 12 s. The path stands still for a second before, and for half a second meanwhile.
    let moved = |tenth: u64| sample(tenth as f64 / 10.0, 1, 0, tenth * 100_000, 20);
    let paused = |ms: u64| ms.clamp(500, 1_500) - 500 + ms.clamp(7_000, 7_500) - 7_000;
    let timeline = (0..=140).map(|tenth| moment(tenth * 100, paused(tenth * 100), 0, 0)).collect();
    let goodput = value(Quantity::GoodputBps, timeline, (20..=120).map(moved).collect()).unwrap();
    assert!((goodput - 1e7).abs() < 1.0, "{goodput}");
    let timeline = vec![moment(0, 0, 0, 0), moment(9_000, 9_000, 0, 0)];
    assert_eq!(value(Quantity::GoodputBps, timeline, Vec::new()), Some(9.5e6), "no data was sampled");
}

#[test]
fn a_path_may_change_from_its_first_data_on() {
    let trace = "0 10mbit 10ms\n5 - 30ms".parse().ok();
    let spec = PathSpec { trace, trace_begins_with_data: true, ..path(10, 20) };
    let mut seen = link(vec![moment(0, 0, 0, 0)]);
    seen.link.data_at = Some(Nanos::from_secs(4));
    let samples = vec![sample(6.0, 1, 0, 1_000_000, 30)];
    let added = value_on(spec, Quantity::AddedRttS, vec![seen], samples).unwrap();
    assert!((added - 0.01).abs() < 1e-9, "two seconds after the first data: {added}");
}

#[test]
fn the_rates_of_flows_that_run_alone_for_a_while_do_not_add_up() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-together").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let outcome = Outcome { status: 0, seconds: 25.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
    let goodput = |experiment: &Experiment, rate: &str| {
        let report = format!(
            r#"{{"end":{{"sum_received":{{"bytes":15625000,"seconds":20.0,"bits_per_second":{rate}}}}}}}"#
        );
        for flow in 0..2 {
            fs::write(directory.path().join(flow_report(flow)), &report).unwrap();
        }
        let reading = Reading::new(experiment, &experiment.cases[0], &seen, directory.path());
        reading.values(&[Quantity::GoodputBps]).get(&Quantity::GoodputBps).copied()
    };
    // The second one begins 5 s later: 10 Mbit/s for 25 s.
    assert_eq!(goodput(&experiment, "6.25e6"), Some(10e6));
    experiment.cases[0].flows[1].delay = Nanos(0);
    assert_eq!(goodput(&experiment, "6.25e6"), Some(12.5e6));
    assert_eq!(goodput(&experiment, "1.7e308"), None, "JSON has no infinite number");
}

#[test]
fn a_file_has_a_share_of_what_its_path_carries() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm").unwrap();
    let case = &mut experiment.cases[0];
    let file = Flow { amount: Amount::File(1, 1, 1, 1), ..Flow::default() };
    (case.paths, case.flows) = (vec![path(10, 20)], vec![file]);
    let directory = tempfile::tempdir().unwrap();
    // Half of 9.564 Mbit/s.
    let report = r#"{"files":[{"bytes":2391017,"seconds":4.0,"error":null}]}"#;
    fs::write(directory.path().join(flow_report(0)), report).unwrap();
    let outcome = Outcome { status: 0, seconds: 5.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
    let reading = Reading::new(&experiment, &experiment.cases[0], &seen, directory.path());
    let share = reading.value(Quantity::GoodputShare).unwrap();
    assert!((share - 0.5).abs() < 1e-6, "{share}");
}

#[test]
fn a_flow_that_a_full_queue_puts_off_ends_as_much_later() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-together").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let report = r#"{"end":{"sum_received":{"bytes":15625000,"seconds":20.0,"bits_per_second":6.25e6}}}"#;
    for flow in 0..2 {
        fs::write(directory.path().join(flow_report(flow)), report).unwrap();
    }
    let goodput = |experiment: &Experiment, samples: Vec<ConnectionSample>| {
        let outcome = Outcome { status: 0, seconds: 25.0, stdout: Vec::new(), server_output: String::new() };
        let seen = Observed { outcome, samples, paths: Vec::new() };
        let reading = Reading::new(experiment, &experiment.cases[0], &seen, directory.path());
        reading.value(Quantity::GoodputBps).unwrap() / 1e6
    };
    // Data leave at 1 s and, instead of 5 s later, 9 s later; before that a connection of iperf3 carries commands.
    let begins =
        [sample(1.04, 1, 0, 10_000, 40), sample(7.0, 2, 1, 300, 500), sample(10.5, 3, 1, 10_000, 500)];
    let on = |end: f64| [sample(end, 1, 0, 15_625_000, 40), sample(end, 3, 1, 15_625_000, 500)];
    let all = [&begins[..], &on(21.0)].concat();
    assert!((goodput(&experiment, all.clone()) - 250.0 / 29.0).abs() < 1e-9);
    // The planned starts count where one was not seen.
    assert!((goodput(&experiment, all[..1].to_vec()) - 250.0 / 25.0).abs() < 1e-9);
    // A client counts from when the data arrive.
    experiment.way = Way::Download;
    let turned = |one: ConnectionSample| {
        let (local, peer) = (one.peer, one.local);
        ConnectionSample { host: "b", local, peer, ..one }
    };
    let all = all.into_iter().map(turned).collect();
    assert!((goodput(&experiment, all) - 250.0 / 29.46).abs() < 1e-9);
}

#[test]
fn a_ramp_up_takes_as_long_however_often_the_link_is_sampled() {
    // Half of the rate from 1 s on, all of it from 2 s to 2.3 s.
    let bytes = |ms: u64| 625 * (ms.saturating_sub(1_000) + ms.clamp(2_000, 2_300) - 2_000);
    for step in [50, 100] {
        let timeline = (0..60).map(|number| number * step).map(|ms| moment(ms, 0, bytes(ms), 0));
        let found = value(Quantity::RampUpS, timeline.collect(), Vec::new()).unwrap();
        assert!((found - 1.0).abs() < 1e-9, "{step} ms: {found}");
    }
}

#[test]
fn drops_are_those_of_the_links_on_which_data_start() {
    let with = |wall_ms, delivered_bytes, drops| {
        let mut moment = moment(wall_ms, 0, delivered_bytes, 0);
        moment.a_to_b.drops_queue_packets = drops;
        moment
    };
    // The data start at 1 s. Of eight drops three are later than two seconds after that.
    let busy = || {
        let started = [with(1_000, 50_000, 1), with(2_500, 90_000, 5), with(3_500, 99_000, 8)];
        link([&[with(0, 0, 0)][..], &started].concat())
    };
    let quiet = || link(vec![with(0, 0, 0), with(3_500, 29_000, 2)]);
    let late = |links| value_over(Quantity::LateDrops, links, Vec::new());
    assert_eq!(late(vec![busy()]), Some(3.0));
    assert_eq!(late(vec![quiet(), busy(), quiet()]), Some(3.0), "two links carry almost nothing");
    assert_eq!(late(vec![busy(), busy()]), Some(6.0));
    assert_eq!(late(vec![quiet()]), None, "no data");
    assert_eq!(value_over(Quantity::SettledDrops, vec![busy(), quiet()], Vec::new()), Some(0.0));
}

#[test]
fn a_background_flow_on_another_link_does_not_put_off_the_start_of_the_data() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-beside").unwrap();
    let late = Flow { delay: Nanos::from_secs(4), ..Flow::default() };
    let case = &mut experiment.cases[0];
    case.paths = vec![path(10, 20), path(10, 20)];
    case.flows = vec![late, Flow { cross: true, path: 1, ..Flow::default() }];
    let outcome = Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let head_starts = |experiment: &Experiment| {
        let reading = Reading::new(experiment, &experiment.cases[0], &seen, directory.path());
        [0, 1].map(|link| reading.head_start(link))
    };
    assert_eq!(head_starts(&experiment), [0.0, 4.0]);
    experiment.cases[0].flows[1].path = 0;
    assert_eq!(head_starts(&experiment), [4.0, 0.0]);
}

#[test]
fn a_quantile_is_the_least_value_that_the_share_does_not_exceed() {
    let of_hundred = |share| quantile((1..=100).map(f64::from).collect(), share);
    let found = [0.01, 0.5, 0.95, 0.99, 1.0].map(of_hundred);
    assert_eq!(found, [1.0, 50.0, 95.0, 99.0, 100.0].map(Some));
    assert_eq!((quantile(vec![7.0], 0.05), quantile(Vec::new(), 0.5)), (Some(7.0), None));
}

#[test]
fn data_is_what_moves_much_on_the_flows_that_are_measured() {
    let flow = Flow::default();
    let case = Case {
        name: String::new(),
        paths: Vec::new(),
        flows: vec![flow.clone(), Flow { cross: true, ..flow }],
        memory: None,
        quick: true,
        setup: Default::default(),
    };
    let samples = [
        sample(0.0, 1, 0, 500, 20),
        sample(0.0, 2, 0, 0, 20),
        sample(0.0, 3, 1, 900_000, 20),
        sample(1.0, 1, 0, 600, 20),
        sample(1.0, 2, 0, 800_000, 30),
        // A closing socket.
        sample(2.0, 2, 0, 0, 0),
    ];
    let data = data_samples(Way::Upload, &case, &samples);
    let seen: Vec<_> = data.iter().map(|sample| (sample.t, sample.local.port())).collect();
    assert_eq!(seen, [(0.0, 2), (1.0, 2)]);
    assert_eq!(starts(&data)[&key(data[0])], 1.0);
    assert!(data_samples(Way::Download, &case, &samples).is_empty());
}

#[test]
fn a_connection_over_a_slow_path_carries_data_and_a_small_document_there_does_not() {
    let flow = Flow { path: 1, ..Flow::default() };
    let documents = Flow { amount: Amount::Requests(1_000, 10, 10), ..flow.clone() };
    let case = Case {
        name: String::new(),
        paths: Vec::new(),
        flows: vec![Flow::default(), flow, documents],
        memory: None,
        quick: true,
        setup: Default::default(),
    };
    // Own port, flow, path, bytes acknowledged.
    let connections: [(u16, u16, u8, u64); 5] =
        [(1, 0, 0, 9_000_000), (2, 0, 0, 500), (3, 1, 1, 50_000), (4, 1, 1, 500), (5, 2, 1, 10_000)];
    let samples = connections.map(|(own, flow, path, bytes)| {
        let one = sample(1.0, own, flow, bytes, 20);
        ConnectionSample { peer: SocketAddr::from(([198, 18, path, 2], one.peer.port())), ..one }
    });
    let data = data_samples(Way::Upload, &case, &samples);
    assert_eq!(data.iter().map(|sample| sample.local.port()).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_settled_rate_is_that_of_all_connections_while_all_carry_data() {
    let line = |port: u16, from: u32, to: u32, rate: u64| {
        (from..=to).map(move |t| sample(f64::from(t), port, 0, u64::from(t - from + 1) * rate, 20))
    };
    let rate = |lines: Vec<ConnectionSample>, beside: Vec<ConnectionSample>| {
        let data: Vec<_> = lines.iter().collect();
        let sending: Vec<_> = lines.iter().chain(&beside).collect();
        rates::of_all(&data, &sending)
    };
    let alone = || line(1, 0, 10, 1_000_000);
    assert_eq!(rate(alone().collect(), Vec::new()), Some(8e6));
    // All from two seconds after the second start on.
    let together = alone().chain(line(2, 3, 10, 500_000)).collect();
    assert_eq!(rate(together, Vec::new()), Some(12e6));
    assert_eq!(rate(alone().collect(), line(2, 0, 10, 50_000).collect()), Some(8.4e6), "it starves");
    let one_after_the_other = line(1, 0, 4, 1_000_000).chain(line(2, 6, 12, 1_000_000)).collect();
    assert_eq!(rate(one_after_the_other, Vec::new()), None);
    assert_eq!(rate(line(1, 0, 2, 1_000_000).collect(), alone().collect()), None, "its data end at once");
    assert_eq!(rate(Vec::new(), alone().collect()), None);
}

#[test]
fn buffers_are_judged_while_all_connections_are_present() {
    // The second connection begins at 2 s; the first one ends, and leaves its memory to the second.
    let variation = |end: u32, of_first: fn(u32) -> u32| {
        let sized = |t: u32, port: u16, sndbuf: u32| {
            let moved = u64::from(t + 1) * 1_000_000;
            ConnectionSample { sndbuf, ..sample(f64::from(t), port, 0, moved, 20) }
        };
        let first = (0..=end).map(|t| sized(t, 1, of_first(t)));
        let second = (2..=20).map(|t| sized(t, 2, if t > end { 9_000 } else { 1_000 }));
        let mut samples: Vec<_> = first.chain(second).collect();
        samples.sort_by(|one, other| one.t.total_cmp(&other.t));
        value(Quantity::BufferVariation, vec![moment(0, 0, 0, 0)], samples)
    };
    assert_eq!(variation(10, |_| 1_000), Some(0.0));
    // Half of the first one's 3/8, from 4 s to 7 s.
    assert_eq!(variation(7, |t| if t.is_multiple_of(2) { 5_000 } else { 11_000 }), Some(0.1875));
    assert_eq!(variation(4, |_| 1_000), None, "they are together for two seconds only");
}

#[test]
fn memory_is_that_of_the_measured_flows() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-beside").unwrap();
    experiment.cases[0].flows = vec![Flow::default(), Flow { cross: true, ..Flow::default() }];
    let ends = |flow: u16, wmem_queued: u32, rmem_alloc: u32| {
        let sender = ConnectionSample { wmem_queued, ..sample(1.0, 40_000 + flow, flow, 0, 20) };
        let (local, peer) = (sender.peer, sender.local);
        let receiver = ConnectionSample { host: "b", local, peer, rmem_alloc, ..sender.clone() };
        [sender, receiver]
    };
    let samples = [ends(0, 100, 30), ends(1, 9_000, 9_000)].concat();
    let outcome = Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples, paths: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let reading = Reading::new(&experiment, &experiment.cases[0], &seen, directory.path());
    assert_eq!(reading.value(Quantity::HeldPeakBytes), Some(100.0));
    assert_eq!(reading.value(Quantity::ReceiveHeldPeakBytes), Some(30.0));
    assert_eq!(reading.value(Quantity::SocketMemoryBytes), Some(130.0));
}

#[test]
fn connections_of_iperf3_are_judged_without_a_users_requests() {
    let catalogue = super::super::catalogue();
    let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-beside").unwrap();
    let requests = Flow { amount: Amount::Requests(1_000, 2, 2), ..Flow::default() };
    let outcome = Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
    let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let streams = r#"{"end":{"sum_received":{"bits_per_second":1e6},"streams":[
        {"receiver":{"bytes":10,"bits_per_second":8.0}},{"receiver":{"bytes":0,"bits_per_second":0.0}}]}}"#;
    fs::write(directory.path().join(flow_report(0)), r#"{"response_s":[0.1]}"#).unwrap();
    fs::write(directory.path().join(flow_report(1)), streams).unwrap();
    let mut values = |flows: Vec<Flow>| {
        experiment.cases[0].flows = flows;
        let reading = Reading::new(&experiment, &experiment.cases[0], &seen, directory.path());
        [Quantity::Served, Quantity::JainIndex].map(|quantity| reading.value(quantity))
    };
    let two = Flow { connections: 2, ..Flow::default() };
    assert_eq!(values(vec![requests.clone(), two]), [Some(0.5); 2]);
    assert_eq!(values(vec![requests]), [None; 2]);
}

#[test]
fn variation_is_relative() {
    assert_eq!(variation(&[5.0, 5.0]), Some(0.0));
    assert_eq!(variation(&[1.0, 3.0]), Some(0.5));
    assert_eq!(variation(&[]), None);
}
