//! Reads a run's quantities from the clients' reports, the samples of the connections, and the link.

mod rates;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use bufwise_units::Nanos;
use serde_json::Value;

use super::cost::{self, Cost};
use super::ends::{FIRST_PORT, flow_report, port};
use super::engine;
use super::fairness;
use super::idle;
use super::model::{Amount, Case, Experiment, Flow, Quantity, Way};
use super::over_time::OverTime;
use super::path_changes::Probed;
use super::probe_grid;
use super::program;
use super::reports::Report;
use super::script::{COST, SERVERS_REPORT, run_report};
use super::transfers;
use super::windows;
use crate::path::Observed;
use crate::pump::LinkSample;
use crate::sampler::ConnectionSample;
use crate::testbed::PathReport;
pub(super) use rates::all_present;

/// A connection that moved less than the bytes of the largest one on its path over this number carries commands, not data.
const DATA_SHARE: u64 = 10;
/// Seconds of a connection that are left out of its limits: they say more about slow start than about buffers.
const SETTLED: f64 = 1.0;
/// Seconds after the start of the data from which drops are counted, in two ways.
const DROPS_SETTLED: f64 = 3.0;
const DROPS_LATE: f64 = 2.0;
/// Seconds after the last connection's start from which the variation of send buffers is measured.
const BUFFERS_SETTLED: f64 = 2.0;
/// Bytes on the wire before the data: connections and commands.
const PRELUDE: u64 = 30_000;
/// Bytes that iperf3 sends before the data to identify a connection.
const GREETING: u64 = 100;
/// Share of the link's rate that ends the ramp-up, and how long it must last.
const RAMPED_UP: f64 = 0.9;
const RAMP_LASTS: Nanos = Nanos(200_000_000);

/// All data of one run.
pub(super) struct Reading<'a> {
    way: Way,
    case: &'a Case,
    seen: &'a Observed,
    reports: Vec<Report<'a>>,
    /// Reports of the background flows.
    others: Vec<Report<'a>>,
    /// Reports of `bufwise run`, one for each host at which paths begin.
    run: Vec<Value>,
    /// The report of `bufwise run` around the servers; where there are several hosts B, of one of them.
    servers: Option<Value>,
    /// The cost of the programs in the kernel.
    cost: Option<Cost>,
    /// Samples of the connections that carry measured data, on the sending side.
    data: Vec<&'a ConnectionSample>,
    /// Share of the time of the data in which the path did not stand still.
    moving: f64,
}

impl<'a> Reading<'a> {
    pub(super) fn new(experiment: &Experiment, case: &'a Case, seen: &'a Observed, directory: &Path) -> Self {
        let json = |name: &str| -> Option<Value> {
            serde_json::from_slice(&fs::read(directory.join(name)).ok()?).ok()
        };
        let reports = case.flows.iter().enumerate().map(|(number, flow)| {
            Report::new(flow, json(&flow_report(number)), |report| {
                program::end(report, experiment.way, number, &seen.samples)
            })
        });
        let (others, reports) = reports.partition(|report| report.flow.cross);
        let data = data_samples(experiment.way, case, &seen.samples);
        Self {
            way: experiment.way,
            case,
            seen,
            reports,
            others,
            run: case.begins().filter_map(|(path, _)| json(&run_report(path))).collect(),
            servers: json(SERVERS_REPORT),
            cost: fs::read_to_string(directory.join(COST)).ok().and_then(|text| Cost::parse(&text)),
            moving: moving(&data, &seen.paths),
            data,
        }
    }

    /// Returns why a flow did not reach its end; `None`: all flows did. Background flows count as well: without them the
    /// path is another one.
    pub(super) fn incomplete(&self) -> Option<String> {
        self.reports.iter().chain(&self.others).find_map(Report::incomplete)
    }

    /// Returns the remarks on how the run was tuned.
    pub(super) fn notes(&self) -> Vec<String> {
        engine::notes(&self.run, self.servers.as_ref())
    }

    /// Returns the run over time.
    pub(super) fn over_time(&self) -> OverTime {
        OverTime::new(self.way, self.seen, &self.data)
    }

    /// Returns the quantities of the list that this run has.
    pub(super) fn values(&self, quantities: &[Quantity]) -> BTreeMap<Quantity, f64> {
        // JSON has no infinite number: a quotient by zero is not measured.
        let value = |quantity: Quantity| self.value(quantity).filter(|value| value.is_finite());
        quantities.iter().filter_map(|quantity| Some((*quantity, value(*quantity)?))).collect()
    }

    fn value(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::GoodputBps => self.goodput(&self.reports, |_| true),
            Quantity::OthersBps => self.goodput(&self.others, |_| true),
            Quantity::GoodputPath1Bps => self.goodput(&self.reports, |flow| flow.path == 0),
            Quantity::GoodputPath2Bps => self.goodput(&self.reports, |flow| flow.path == 1),
            Quantity::GoodputPath3Bps => self.goodput(&self.reports, |flow| flow.path == 2),
            Quantity::HeldPeakBytes => Some(self.held_peak()),
            Quantity::ReceiveHeldPeakBytes => Some(self.receive_held_peak()),
            Quantity::SocketMemoryBytes => Some(self.socket_memory()),
            Quantity::TransferS => transfers::seconds(&self.reports),
            Quantity::TransferBps => transfers::rate(&self.reports),
            Quantity::TransferVariation => transfers::scatter(&self.reports),
            Quantity::ResponseSmallS => transfers::response(&self.reports, true),
            Quantity::ResponseLargeS => transfers::response(&self.reports, false),
            Quantity::SettledBps => self.settled_rate(),
            Quantity::SettledDrops => self.drops_after(DROPS_SETTLED),
            Quantity::LateDrops => self.drops_after(DROPS_LATE),
            Quantity::GoodputShare => self.goodput_share(),
            Quantity::RttMeanS => self.rtt_mean(),
            Quantity::AddedRttS => idle::added_rtt(self.case, |path| self.data_at(path), &self.data),
            Quantity::Drops => Some(self.drops()),
            Quantity::ReceiveWindowLimited => self.receive_window_limited(),
            Quantity::Retransmits => self.retransmits(),
            Quantity::RetransmitShare => self.retransmit_share(),
            Quantity::SettledJainIndex => fairness::settled(self.case, &self.data),
            Quantity::JainIndex => fairness::jain_index(&self.streams("receiver")?),
            Quantity::FairShareIndex => fairness::of_shares(self.way, self.case, &self.data),
            Quantity::RampUpS => self.ramp_up(),
            Quantity::BufferVariation => self.buffer_variation(),
            Quantity::ResponseS => self.response(),
            Quantity::ResponseMedianS => self.response_quantile(0.5),
            Quantity::ResponseP95S => self.response_quantile(0.95),
            Quantity::ResponseP99S => self.response_quantile(0.99),
            Quantity::CallbackS => Some(self.cost?.seconds / self.cost?.calls),
            Quantity::Callbacks => Some(self.cost?.calls),
            Quantity::Served => self.served(),
            Quantity::BufferWindowsP5 => windows::of_buffer(&self.data, 0.05),
            Quantity::BufferWindowsP95 => windows::of_buffer(&self.data, 0.95),
            Quantity::FlightMeanBytes => windows::mean_flight(&self.data),
            Quantity::WindowPerFlight => windows::per_flight(&self.data),
            Quantity::WindowPeakBytes => windows::peak(&self.data),
            Quantity::CapacityLeast
            | Quantity::CapacityMost
            | Quantity::ProbedRttLeast
            | Quantity::ProbedRttMost
            | Quantity::AvailableLeast
            | Quantity::AvailableMost
            | Quantity::BdpRangeBits => self.probed(quantity),
            Quantity::SenderCpuPerGigabyteS => {
                cost::sender_cpu_per_gigabyte(self.way, self.loads().map(|report| report.end.as_ref()))
            }
            Quantity::CarriedWithin => {
                self.case.carried(self.way, self.value(Quantity::GoodputBps), self.held_peak())
            }
        }
    }

    /// Returns payload per second, without the time in which the path stood still. The rates of flows that run all the time
    /// together add up. Where some run alone for a while, they do not: there the payload counts over the time from the first
    /// start to the last end.
    fn goodput(&self, reports: &[Report<'_>], of: impl Fn(&Flow) -> bool) -> Option<f64> {
        let reports = reports.iter().filter(|report| report.flow.amount.is_load() && of(report.flow));
        let reports: Vec<&Report<'_>> = reports.collect();
        let first = reports.first()?.flow;
        let with_first = |flow: &Flow| {
            (flow.delay, flow.amount) == (first.delay, first.amount)
                && matches!(flow.amount, Amount::Seconds(..))
        };
        let are_together = reports.len() == 1 || reports.iter().all(|report| with_first(report.flow));
        let sum = |pointer| reports.iter().map(|report| number(report, pointer)).sum::<Option<f64>>();
        let rate = if are_together {
            sum("/sum_received/bits_per_second")?
        } else {
            sum("/sum_received/bytes")? * 8.0 / rates::span(self.way, self.case, &self.data, &reports)?
        };
        Some(rate / self.moving)
    }

    /// Returns the larger of the samples' peak and the peak that `bufwise run` measured.
    fn held_peak(&self) -> f64 {
        let sampled = self.peak(self.sides().0, |sample| sample.wmem_queued);
        let told = self.run.iter().filter_map(|run| run.get("held_send_peak_bytes")?.as_f64());
        told.filter(|_| self.way == Way::Upload).fold(sampled, f64::max)
    }

    /// Returns the sum of the peaks of the two sides, which may be of different moments.
    fn socket_memory(&self) -> f64 {
        self.peak(self.sides().0, |sample| sample.wmem_queued) + self.receive_held_peak()
    }

    fn receive_held_peak(&self) -> f64 {
        self.peak(self.sides().1, |sample| sample.rmem_alloc)
    }

    /// Returns the hosts that send and receive.
    fn sides(&self) -> (&'static str, &'static str) {
        if self.way == Way::Upload { ("a", "b") } else { ("b", "a") }
    }

    /// Returns the most that all connections of `host` had together at one moment, without those of background flows.
    fn peak(&self, host: &str, of: fn(&ConnectionSample) -> u32) -> f64 {
        let others = self.case.flows.iter().enumerate().filter(|(_, flow)| flow.cross);
        let others: BTreeSet<u16> = others.map(|(number, _)| port(number)).collect();
        let is_measured = |sample: &&ConnectionSample| {
            let server = if host == "a" { sample.peer } else { sample.local };
            sample.host == host && !others.contains(&server.port())
        };
        let mut sums: HashMap<u64, u64> = HashMap::new();
        for sample in self.seen.samples.iter().filter(is_measured) {
            *sums.entry(sample.t.to_bits()).or_default() += u64::from(of(sample));
        }
        sums.into_values().max().unwrap_or(0) as f64
    }

    /// Returns payload per second once all connections have started, without the time in which the path stood still.
    fn settled_rate(&self) -> Option<f64> {
        let sending = sending_samples(self.way, self.case, &self.seen.samples);
        Some(rates::of_all(&self.data, &sending)? / self.moving)
    }

    /// Returns the drops from `from` seconds after the start of the data on, over all links. Data that never start on a
    /// link are not dropped there; `None`: they start on none.
    fn drops_after(&self, from: f64) -> Option<f64> {
        let of_link = |(link, path): (usize, &PathReport)| {
            let way = |sample: &LinkSample| match self.way {
                Way::Upload => (sample.a_to_b.delivered_bytes, sample.a_to_b.drops_queue_packets),
                Way::Download => (sample.b_to_a.delivered_bytes, sample.b_to_a.drops_queue_packets),
            };
            let seconds = |sample: &LinkSample| sample.at.0 as f64 / 1e9;
            let began = path.link.timeline.iter().find(|sample| way(sample).0 >= PRELUDE)?;
            let settled = seconds(began) + self.head_start(link) + from;
            let before = path.link.timeline.iter().rfind(|sample| seconds(sample) < settled)?;
            Some(way(&path.link.last).1 - way(before).1)
        };
        let drops = self.seen.paths.iter().enumerate().filter_map(of_link);
        let drops = drops.reduce(|sum, drops| sum + drops)?;
        Some(drops as f64)
    }

    /// Returns the seconds by which background flows start on a link before the first measured flow does, there or, if none passes
    /// the link, anywhere.
    fn head_start(&self, link: usize) -> f64 {
        let first = |of: &dyn Fn(&Flow) -> bool| {
            let starts = self.case.flows.iter().filter(|flow| of(flow)).map(|flow| flow.delay.0);
            starts.min()
        };
        let passes = |flow: &Flow| self.case.passes(flow, link);
        let measured = first(&|flow| !flow.cross && passes(flow)).or(first(&|flow| !flow.cross));
        let any = first(&passes).or(measured);
        measured.unwrap_or_default().saturating_sub(any.unwrap_or_default()) as f64 / 1e9
    }

    fn rtt_mean(&self) -> Option<f64> {
        mean(self.data.iter().map(|sample| f64::from(sample.srtt_us) / 1e6))
    }

    fn goodput_share(&self) -> Option<f64> {
        let on_first = self.reports.iter().filter(|report| report.flow.path == 0);
        let seconds = on_first.filter_map(rates::lasts);
        let data = self.data_at(0);
        // The path's time counts from its making, or from the first data on.
        let begin = if self.case.paths.first()?.trace_begins_with_data {
            data + self.head_start(0)
        } else {
            self.data.first().map_or(0.0, |sample| sample.t)
        };
        let ideal = idle::goodput(self.case, self.way, data, begin, seconds.reduce(f64::max)?)?;
        Some(self.value(Quantity::GoodputPath1Bps)? / ideal)
    }

    /// Returns when the first data came to the path with this index, in seconds of the run.
    fn data_at(&self, path: usize) -> f64 {
        let data_at = self.seen.paths.get(path).and_then(|path| path.link.data_at);
        data_at.map_or(0.0, |data_at| data_at.0 as f64 / 1e9)
    }

    fn drops(&self) -> f64 {
        let of = |last: &LinkSample| match self.way {
            Way::Upload => last.a_to_b.drops_queue_packets,
            Way::Download => last.b_to_a.drops_queue_packets,
        };
        self.seen.paths.iter().map(|path| of(&path.link.last)).sum::<u64>() as f64
    }

    fn receive_window_limited(&self) -> Option<f64> {
        let began = starts(&self.data);
        let settled = self
            .data
            .iter()
            .filter(|sample| began.get(&key(sample)).is_some_and(|began| sample.t > began + SETTLED));
        mean(settled.map(|sample| f64::from(u8::from(sample.limited_by == Some("receive-window")))))
    }

    /// Returns the retransmitted segments as the kernel counts them, over all connections; `None` without any.
    fn retransmits(&self) -> Option<f64> {
        let mut counts: HashMap<Key, u32> = HashMap::new();
        for sample in &self.data {
            let most = counts.entry(key(sample)).or_default();
            *most = sample.retrans.max(*most);
        }
        (!counts.is_empty()).then(|| counts.values().copied().map(f64::from).sum())
    }

    /// Returns the reports of the measured flows that load their paths.
    fn loads(&self) -> impl Iterator<Item = &Report<'a>> {
        self.reports.iter().filter(|report| report.flow.amount.is_load())
    }

    fn retransmit_share(&self) -> Option<f64> {
        let bytes: Option<f64> = self.loads().map(|report| number(report, "/sum_received/bytes")).sum();
        let bytes = bytes.filter(|bytes| *bytes > 0.0);
        let mtu = self.case.paths.first()?.mtu;
        /// IPv4 header, TCP header, timestamps option.
        const HEADERS: f64 = 52.0;
        Some(self.retransmits()? / (bytes? / (f64::from(mtu) - HEADERS)).max(1.0))
    }

    /// Returns each connection's rate, as the side `end` of iperf3 counted it.
    fn streams(&self, end: &str) -> Option<Vec<f64>> {
        let mut rates = Vec::new();
        for report in self.loads() {
            let streams = report.end.as_ref()?.get("streams")?.as_array()?;
            rates.extend(
                streams.iter().filter_map(|stream| stream.get(end)?.get("bits_per_second")?.as_f64()),
            );
        }
        Some(rates)
    }

    /// Returns a quantity of the probes: over all files, each with its own probes, or over both ways of the path.
    fn probed(&self, quantity: Quantity) -> Option<f64> {
        let of = |report: &Report<'_>| {
            let path = self.case.paths.get(usize::from(report.flow.path))?;
            match report.flow.amount {
                // A flow's start counts from the making of the path, and these steps do not.
                _ if path.trace_begins_with_data => None,
                Amount::Probe(..) => probe_grid::found(path, report.flow, report.end.as_ref()?),
                _ => Some(vec![Probed::new(path, report.flow, report.end.as_ref()?)?]),
            }
        };
        Probed::value(quantity, &self.reports.iter().map(of).collect::<Option<Vec<_>>>()?.concat())
    }

    fn response(&self) -> Option<f64> {
        let all = self.reports.iter().filter_map(|report| report.end.as_ref()?.get("response_s")?.as_array());
        mean(all.flatten().filter_map(Value::as_f64))
    }

    fn response_quantile(&self, share: f64) -> Option<f64> {
        let all = self.reports.iter().filter_map(|report| report.end.as_ref()?.get("response_s")?.as_array());
        quantile(all.flatten().filter_map(Value::as_f64).collect(), share)
    }

    /// Returns the share of iperf3's connections through which data arrived; other programs do not report on each connection.
    fn served(&self) -> Option<f64> {
        let is_bulk =
            |report: &&Report<'_>| matches!(report.flow.amount, Amount::Seconds(..) | Amount::Bytes(..));
        let bulk: Vec<&Report<'_>> = self.reports.iter().filter(is_bulk).collect();
        let wanted: f64 = bulk.iter().map(|report| f64::from(report.flow.connections)).sum();
        let moved = |stream: &&Value| {
            stream.pointer("/receiver/bytes").and_then(Value::as_f64).is_some_and(|bytes| bytes > 0.0)
        };
        let ended = bulk.iter().filter_map(|report| report.end.as_ref()?.get("streams")?.as_array());
        let ended: usize = ended.map(|streams| streams.iter().filter(moved).count()).sum();
        (wanted > 0.0).then(|| ended as f64 / wanted)
    }

    /// Returns the ramp-up on the slowest link of the first path, by the link's own clock.
    fn ramp_up(&self) -> Option<f64> {
        let (link, rate) = self.case.tight_link(0, self.way)?;
        let rate = rate.0 as f64;
        let bytes = |sample: &LinkSample| match self.way {
            Way::Upload => sample.a_to_b.delivered_bytes,
            Way::Download => sample.b_to_a.delivered_bytes,
        };
        let seconds = |sample: &LinkSample| sample.at.0 as f64 / 1e9;
        let timeline = &self.seen.paths.get(link)?.link.timeline;
        let began = seconds(timeline.iter().take_while(|sample| bytes(sample) < PRELUDE).last()?);
        let ramped_up = timeline.iter().enumerate().find(|(place, first)| {
            let last = timeline[*place..].iter().find(|last| last.at.0 >= first.at.0 + RAMP_LASTS.0);
            last.is_some_and(|last| {
                let bits = (bytes(last) - bytes(first)) as f64 * 8.0;
                bits >= RAMPED_UP * rate * (seconds(last) - seconds(first))
            })
        });
        Some((seconds(ramped_up?.1) - began).max(0.0))
    }

    /// Returns the variation of the send buffers while all connections are present: what one leaves when it ends makes the others'
    /// buffers larger, however steady they are.
    fn buffer_variation(&self) -> Option<f64> {
        let present = all_present(&self.data, BUFFERS_SETTLED)?;
        let mut sizes: HashMap<_, Vec<f64>> = HashMap::new();
        for sample in self.data.iter().filter(|sample| present.contains(&sample.t)) {
            sizes.entry(key(sample)).or_default().push(f64::from(sample.sndbuf));
        }
        mean(sizes.values().filter_map(|sizes| variation(sizes)))
    }
}

/// Whether `sample` is of a sender of data whose flow has a port that `of_flow` accepts.
pub(super) fn sends(way: Way, sample: &ConnectionSample, of_flow: impl Fn(u16) -> bool) -> bool {
    match way {
        Way::Upload => sample.host == "a" && of_flow(sample.peer.port()),
        Way::Download => sample.host == "b" && of_flow(sample.local.port()),
    }
}

fn number(report: &Report<'_>, pointer: &str) -> Option<f64> {
    report.end.as_ref()?.pointer(pointer)?.as_f64()
}

pub(super) type Key = (SocketAddr, SocketAddr);

pub(super) fn key(sample: &ConnectionSample) -> Key {
    (sample.local, sample.peer)
}

/// Returns when each connection was first seen to carry data, in seconds.
pub(super) fn starts(samples: &[&ConnectionSample]) -> HashMap<Key, f64> {
    let mut starts = HashMap::new();
    for sample in samples.iter().filter(|sample| sample.bytes_acked > GREETING) {
        starts.entry(key(sample)).or_insert(sample.t);
    }
    starts
}

/// Returns the share of the time from the first sample of `data` to the last in which the emulator's paths, which pause together,
/// did not stand still.
fn moving(data: &[&ConnectionSample], paths: &[PathReport]) -> f64 {
    let (Some(first), Some(last), Some(path)) = (data.first(), data.last(), paths.first()) else {
        return 1.0;
    };
    let paused = |t: f64| {
        let latest = path.link.timeline.iter().rfind(|sample| sample.wall.0 as f64 / 1e9 <= t);
        latest.map_or(0.0, |sample| (sample.wall.0 - sample.at.0) as f64 / 1e9)
    };
    let lasted = last.t - first.t;
    if lasted > 0.0 { (1.0 - (paused(last.t) - paused(first.t)) / lasted).max(0.1) } else { 1.0 }
}

/// Returns the samples of the measured flows' connections, on the sending side.
fn sending_samples<'a>(way: Way, case: &Case, samples: &'a [ConnectionSample]) -> Vec<&'a ConnectionSample> {
    let flows = case.flows.iter().enumerate().filter(|(_, flow)| !flow.cross);
    let ports: BTreeSet<u16> = flows.map(|(number, _)| port(number)).collect();
    // FTP's data connections have ports of their own: all ports that belong to no other flow.
    let files = case.flows.iter().any(|flow| matches!(flow.amount, Amount::File(..)));
    let others = FIRST_PORT..port(case.flows.len());
    let of_flow = |port: u16| ports.contains(&port) || (files && !others.contains(&port));
    let ours = |sample: &&ConnectionSample| sends(way, sample, of_flow);
    // A closing socket shows zeros.
    let open = |sample: &&ConnectionSample| sample.srtt_us > 0;
    samples.iter().filter(ours).filter(open).collect()
}

/// Returns the samples of the connections that carry the measured flows' data, on the sending side. A path may carry much less than
/// another one; documents beside other flows are small on any path.
fn data_samples<'a>(way: Way, case: &Case, samples: &'a [ConnectionSample]) -> Vec<&'a ConnectionSample> {
    let sending = sending_samples(way, case, samples);
    let (mut moved, mut on_path): (HashMap<Key, u64>, HashMap<usize, u64>) = Default::default();
    for sample in &sending {
        let most = moved.entry(key(sample)).or_default();
        *most = sample.bytes_acked.max(*most);
        let most = on_path.entry(idle::path_of(sample)).or_default();
        *most = sample.bytes_acked.max(*most);
    }
    let largest = on_path.values().copied().max().unwrap_or_default();
    let is_of_documents = |sample: &ConnectionSample| {
        let mut flows = case.flows.iter().enumerate().filter(|(_, flow)| !flow.amount.is_load());
        flows.any(|(number, _)| sends(way, sample, |one| one == port(number)))
    };
    let enough = |sample: &ConnectionSample| {
        let most = if is_of_documents(sample) { largest } else { on_path[&idle::path_of(sample)] };
        moved[&key(sample)] >= most / DATA_SHARE
    };
    sending.into_iter().filter(|sample| enough(sample)).collect()
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

/// Returns the least of the values that this share of them does not exceed.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

/// Returns standard deviation over mean.
pub(super) fn variation(values: &[f64]) -> Option<f64> {
    let middle = mean(values.iter().copied())?;
    let square = mean(values.iter().map(|value| (value - middle).powi(2)))?;
    (middle > 0.0).then(|| square.sqrt() / middle)
}

#[cfg(test)]
pub(super) mod tests;
