//! The report on a command: as text on standard error, and as JSON with stable keys (bytes, seconds, bit/s).

use std::fmt;
use std::time::Duration;

use bufwise_host::caps::{Caps, Setting};
use bufwise_host::judge::{BufferOwner, Case, Direction, Limited, Roof};
use bufwise_host::tuner::plan::Plan;
use bufwise_host::view::{PolicyNames, Tuned};
use bufwise_policy::PolicyKind;
use bufwise_units::{Bytes, Sample, counted};
use serde::Serialize;

use super::engine::Kind;
use super::history::{Histories, History, Point};
use super::totals::Totals;
use crate::figures::{rate, size};

/// Connections shown in the text.
const SHOWN: usize = 12;
/// Most connections listed in JSON, and most of these that are listed with their buffers over time. A server may have tens of
/// thousands.
const LISTED: usize = super::history::KEPT;
const IN_FULL: usize = 100;
/// For connections that lasted shorter than this, the text names no limit: it would be that of few samples.
const TOO_SHORT_SECONDS: f64 = 0.3;
/// Part of the policy's window, in eighths, that is offered at least where the policy bounds the window: a larger window takes some
/// segments to open.
const OFFERED_EIGHTHS: u64 = 7;

/// A command that has ended.
pub(super) struct Ended {
    pub(super) engine: Kind,
    /// See [`Report`].
    pub(super) engine_reason: Option<String>,
    /// See [`Report`].
    pub(super) connections_of_little: u64,
    pub(super) command: Vec<String>,
    pub(super) status: u8,
    pub(super) elapsed: Duration,
}

/// Report on the command and its connections.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    command: Vec<String>,
    status: u8,
    seconds: f64,
    engine: Kind,
    /// Reason why the engine in the kernel, although preferred, was not chosen.
    engine_reason: Option<String>,
    policy: PolicyNames,
    memory_budget_bytes: u64,
    held_send_peak_bytes: u64,
    /// All connections together.
    totals: Totals,
    /// The connections; of more than a thousand, those that lasted longest. The first hundred have their buffers over
    /// time.
    connections: Vec<ConnectionReport>,
    /// Number of connections that are in the totals alone.
    connections_left_out: u64,
    /// Number of connections that are in no total because they moved too little to need a size: less than 16 KB in each
    /// direction and, with `fit` at the receiver, no full segment received.
    connections_of_little: u64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ConnectionReport {
    local: String,
    peer: String,
    direction: Direction,
    /// The algorithm's name, as `cubic`; `null` if the socket was never sampled.
    congestion_control: Option<String>,
    seconds: f64,
    bytes_acked: u64,
    bytes_received: u64,
    goodput_bps: u64,
    srtt_s: f64,
    min_rtt_s: f64,
    segments_out: u64,
    retransmits: u64,
    limited_by: Option<Limited>,
    tuned: Treated,
    buffers: Vec<Point>,
    advice: String,
}

/// The settings that bufwise made, and those that it left to the application.
#[derive(Debug, Serialize)]
pub(crate) struct Treated {
    #[serde(flatten)]
    pub(crate) tuned: Tuned,
    pub(crate) application_set_send_buffer: bool,
    pub(crate) application_set_receive_buffer: bool,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        Ended { engine, engine_reason, connections_of_little, command, status, elapsed }: Ended,
        held_max: Bytes,
        histories: &Histories,
        notes: Vec<String>,
    ) -> Self {
        let largest = match engine {
            Kind::User => Caps::of_host().original_maximum(Setting::TcpRmem),
            Kind::Kernel => None,
        };
        let mut connections: Vec<ConnectionReport> =
            histories.kept.values().map(|history| connection(plan, engine, largest, history)).collect();
        let sum = histories.sum();
        let all = sum.connections();
        if all > LISTED as u64 {
            connections.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
            connections.truncate(LISTED);
        } else {
            connections.sort_by_key(|one| std::cmp::Reverse(one.bytes_acked + one.bytes_received));
        }
        connections.iter_mut().skip(IN_FULL).for_each(|one| one.buffers = Vec::new());
        Self {
            command,
            status,
            seconds: elapsed.as_secs_f64(),
            engine,
            engine_reason,
            policy: plan.choice.into(),
            memory_budget_bytes: plan.budget.0,
            held_send_peak_bytes: held_max.0,
            totals: sum.into(),
            connections_left_out: all - connections.len() as u64,
            connections_of_little,
            connections,
            notes,
        }
    }
}

impl Report {
    /// Returns the number of connections, listed or not.
    fn all(&self) -> usize {
        self.connections.len() + usize::try_from(self.connections_left_out).unwrap_or(usize::MAX)
    }
}

/// Returns the report on a connection. `largest`: the host's maximum of receive buffers (memory, bytes); `None` with privilege.
fn connection(plan: &Plan, engine: Kind, largest: Option<u64>, history: &History) -> ConnectionReport {
    let flow = &history.last;
    let sample = &flow.sample;
    let seconds = history.time().as_secs_f64();
    let name = history.congestion_control.as_str();
    let tuned = Tuned::of(flow, &plan.choice.into());
    let goodput_bps = history.goodput_bps() as u64;
    ConnectionReport {
        local: flow.local.to_string(),
        peer: flow.peer.to_string(),
        direction: history.direction(),
        congestion_control: (!name.is_empty()).then(|| name.to_owned()),
        seconds,
        bytes_acked: sample.bytes_acked.0,
        bytes_received: sample.bytes_received.0,
        goodput_bps,
        srtt_s: history.srtt().as_secs_f64(),
        min_rtt_s: sample.min_rtt.as_secs_f64(),
        segments_out: sample.segs_out,
        retransmits: sample.segs_lost,
        limited_by: history.limited(),
        tuned: Treated {
            tuned,
            application_set_send_buffer: flow.owned.send,
            application_set_receive_buffer: flow.owned.receive,
        },
        buffers: history.points.clone(),
        advice: advice(plan, engine, largest, history, &tuned, seconds, goodput_bps),
    }
}

fn buffer_owner(owned: bool, policy: PolicyKind) -> BufferOwner {
    match policy {
        _ if owned => BufferOwner::Application,
        PolicyKind::Kernel => BufferOwner::Kernel,
        PolicyKind::Sobas | PolicyKind::SobasPublished | PolicyKind::Fit => BufferOwner::Sobas,
        _ => BufferOwner::Policy,
    }
}

/// As [`buffer_owner`], for the send buffer. Without privilege, the kernel goes on autotuning a buffer whose size cannot
/// be set; the policy then sets at most a rate that keeps the connection within its share of the memory.
fn send_buffer_owner(owned: bool, policy: PolicyKind, engine: Kind, tuned: &Tuned) -> BufferOwner {
    let is_shared = tuned.rate_bound_bps.is_some() && tuned.roof().is_none();
    let is_autotuned = engine == Kind::User && tuned.send_buffer_bytes.is_none() && !is_shared;
    match buffer_owner(owned, policy) {
        BufferOwner::Sobas | BufferOwner::Policy if is_autotuned => BufferOwner::Unprivileged,
        owner => owner,
    }
}

/// As [`buffer_owner`], for the receive buffer. Without privilege, the host's maximum (`largest`) may bound the window more than the
/// policy does, where the kernel goes on autotuning the buffer.
fn receive_buffer_owner(
    owned: bool,
    policy: PolicyKind,
    tuned: &Tuned,
    sample: &Sample,
    largest: Option<u64>,
) -> BufferOwner {
    let is_autotuned = tuned.receive_buffer_bytes.is_none();
    let is_largest = is_autotuned && largest.is_some_and(|largest| sample.rcvbuf.0 >= largest);
    let offered = sample.rcv_wnd.0;
    let is_smaller = tuned.receive_window_bytes.is_some_and(|window| offered * 8 < window * OFFERED_EIGHTHS);
    match buffer_owner(owned, policy) {
        BufferOwner::Sobas | BufferOwner::Policy if is_largest && is_smaller => BufferOwner::Unprivileged,
        owner => owner,
    }
}

fn advice(
    plan: &Plan,
    engine: Kind,
    largest: Option<u64>,
    history: &History,
    tuned: &Tuned,
    seconds: f64,
    goodput_bps: u64,
) -> String {
    let History { last: flow, .. } = history;
    let case = Case {
        direction: history.direction(),
        limited: history.limited().filter(|_| seconds >= TOO_SHORT_SECONDS),
        send: send_buffer_owner(flow.owned.send, plan.choice.send, engine, tuned),
        receive: receive_buffer_owner(flow.owned.receive, plan.choice.receive, tuned, &flow.sample, largest),
        roof: match history.direction() {
            Direction::Send => tuned.judged(flow.sample.delivery_rate.bits_per_sec()),
            Direction::Receive => Roof::None,
        },
        segments_out: flow.sample.segs_out,
        retransmits: flow.sample.segs_lost,
        retransmitted_now: None,
        min_rtt_s: flow.sample.min_rtt.as_secs_f64(),
        queue_s: history.queue.delay_s(),
        goodput_bps,
        paces_itself: !matches!(history.congestion_control.as_str(), "" | "cubic" | "reno"),
        has_fit: match history.direction() {
            Direction::Send => plan.choice.send == PolicyKind::Fit,
            Direction::Receive => plan.choice.receive == PolicyKind::Fit,
        },
        // A note of the whole report says so.
        memory_short: false,
    };
    case.advice()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyNames { send, receive } = &self.policy;
        writeln!(
            f,
            "bufwise: policy {send} (send), {receive} (receive); {:.1} s; {}{}; send queues held at most {}",
            self.seconds,
            counted(self.all(), "connection"),
            match self.connections_of_little {
                0 => String::new(),
                little => format!(", and {little} that moved too little to need a size"),
            },
            size(self.held_send_peak_bytes),
        )?;
        write!(f, "bufwise: engine: {}", self.engine)?;
        match &self.engine_reason {
            Some(reason) => writeln!(f, " (not in the kernel: {reason})")?,
            None => writeln!(f)?,
        }
        if self.all() > SHOWN {
            self.totals.fmt(f)?;
        }
        for connection in self.connections.iter().take(SHOWN) {
            connection.fmt(f)?;
        }
        match (self.all().saturating_sub(SHOWN), self.connections_left_out) {
            (0, _) => {}
            (more, 0) => writeln!(f, "bufwise: {more} more with less data: --json has all")?,
            (more, _) => writeln!(f, "bufwise: {more} more that ended sooner: --json has {LISTED}")?,
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "bufwise: note: {note}"))
    }
}

impl fmt::Display for ConnectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, way) = match self.direction {
            Direction::Receive => (self.bytes_received, "from"),
            Direction::Send => (self.bytes_acked, "to"),
        };
        writeln!(
            f,
            "  {way} {}: {} in {:.2} s, {}; RTT {:.1} ms (least {:.1}), {} retransmitted",
            self.peer,
            size(bytes),
            self.seconds,
            rate(self.goodput_bps),
            self.srtt_s * 1e3,
            self.min_rtt_s * 1e3,
            self.retransmits,
        )?;
        if let Some(limited) = self.limited_by.filter(|_| self.seconds >= TOO_SHORT_SECONDS) {
            writeln!(f, "    limited by {limited}")?;
        }
        writeln!(f, "    {}", self.tuned)?;
        if let Some(why) = self.left_to_kernel() {
            writeln!(f, "    {why}")?;
        }
        writeln!(f, "    {}", self.advice)
    }
}

impl ConnectionReport {
    /// Returns the reason why fit set no roof; `None` for a receiver, whose own sending is of no interest.
    fn left_to_kernel(&self) -> Option<String> {
        let fit = self.tuned.tuned.fit.filter(|_| self.direction == Direction::Send)?;
        fit.left_to_kernel(self.congestion_control.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Treated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(bound) = self.tuned.rate_bound_bps {
            parts.push(format!("rate at most {} ({})", rate(bound), self.tuned.bound_by()));
        }
        if let Some(send) = self.tuned.send_buffer_bytes {
            let changes = counted(self.tuned.send_changes, "change");
            parts.push(format!("send buffer {} ({changes})", size(send)));
        }
        if let Some(unsent) = self.tuned.unsent_bytes {
            parts.push(format!("{} written ahead at most", size(unsent)));
        }
        if let Some(window) = self.tuned.receive_window_bytes {
            let changes = counted(self.tuned.receive_changes, "change");
            parts.push(format!("receive window {} ({changes})", size(window)));
        }
        if self.application_set_send_buffer {
            parts.push("send buffer left as the program set it".to_owned());
        }
        if self.application_set_receive_buffer {
            parts.push("receive buffer left as the program set it".to_owned());
        }
        if parts.is_empty() {
            return f.write_str("bufwise changed nothing");
        }
        write!(f, "bufwise set: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_host::judge::Cause;
    use bufwise_host::view::{Fit, FitPhase, FitReason};

    fn fit(phase: FitPhase, reason: Option<FitReason>) -> Fit {
        let roof_bps = reason.is_none().then_some(94_200_000);
        Fit { phase, reason, roof_bps, capacity_bps: roof_bps, descents: 12, opened: 0 }
    }

    /// The report on a sender with these settings.
    fn report(tuned: Tuned) -> ConnectionReport {
        ConnectionReport {
            local: "198.18.0.1:1".to_owned(),
            peer: "198.18.0.2:2".to_owned(),
            direction: Direction::Send,
            congestion_control: Some("bbr".to_owned()),
            seconds: 1.0,
            bytes_acked: 1,
            bytes_received: 0,
            goodput_bps: 8,
            srtt_s: 0.04,
            min_rtt_s: 0.04,
            segments_out: 1,
            retransmits: 0,
            limited_by: None,
            tuned: Treated {
                tuned,
                application_set_send_buffer: false,
                application_set_receive_buffer: false,
            },
            buffers: Vec::new(),
            advice: "Advice.".to_owned(),
        }
    }

    #[test]
    fn a_rate_bound_is_a_change_and_is_told_with_its_reason() {
        let followed = Tuned {
            rate_bound_bps: Some(94_200_000),
            fit: Some(fit(FitPhase::Follow, None)),
            send_buffer_bytes: Some(1_200_000),
            send_changes: 3,
            ..Tuned::default()
        };
        assert_eq!(
            report(followed).tuned.to_string(),
            "bufwise set: rate at most 94.2 Mbit/s (following; 12 descents), send buffer 1.20 MB (3 changes)"
        );
        let shared = Tuned { rate_bound_bps: Some(10_000_000), fit: None, ..Tuned::default() };
        assert_eq!(
            report(shared).tuned.to_string(),
            "bufwise set: rate at most 10.0 Mbit/s (its share of the memory)"
        );
        assert_eq!(report(Tuned::default()).tuned.to_string(), "bufwise changed nothing");
        let once = Tuned {
            send_buffer_bytes: Some(18_100),
            send_changes: 1,
            receive_window_bytes: Some(65_500),
            receive_changes: 1,
            ..Tuned::default()
        };
        assert_eq!(
            report(once).tuned.to_string(),
            "bufwise set: send buffer 18.1 KB (1 change), receive window 65.5 KB (1 change)"
        );
    }

    #[test]
    fn without_privilege_a_send_buffer_that_is_not_set_is_the_hosts_unless_the_share_holds_the_rate() {
        let of = |engine, tuned: &Tuned| send_buffer_owner(false, PolicyKind::Fit, engine, tuned);
        let untouched = Tuned::default();
        assert_eq!(of(Kind::User, &untouched), BufferOwner::Unprivileged);
        assert_eq!(of(Kind::Kernel, &untouched), BufferOwner::Sobas);
        let sized = Tuned { send_buffer_bytes: Some(200_000), ..untouched };
        assert_eq!(of(Kind::User, &sized), BufferOwner::Sobas);
        let shared = Tuned { rate_bound_bps: Some(94_200_000), ..untouched };
        assert_eq!(of(Kind::User, &shared), BufferOwner::Sobas);
        let below_roof = Tuned { fit: Some(fit(FitPhase::Follow, None)), ..shared };
        assert_eq!(of(Kind::User, &below_roof), BufferOwner::Unprivileged);
        assert_eq!(
            send_buffer_owner(true, PolicyKind::Fit, Kind::User, &untouched),
            BufferOwner::Application
        );
        assert_eq!(send_buffer_owner(false, PolicyKind::Kernel, Kind::User, &untouched), BufferOwner::Kernel);
    }

    #[test]
    fn without_privilege_a_window_below_that_of_the_policy_in_the_hosts_largest_buffer_is_the_hosts() {
        let tuned = Tuned { receive_window_bytes: Some(8_000_000), ..Tuned::default() };
        let sample = Sample { rcvbuf: Bytes(6 << 20), rcv_wnd: Bytes(4 << 20), ..Sample::default() };
        let of = |tuned: &Tuned, sample: &Sample, largest| {
            receive_buffer_owner(false, PolicyKind::Fit, tuned, sample, largest)
        };
        let largest = Some(6 << 20);
        assert_eq!(of(&tuned, &sample, largest), BufferOwner::Unprivileged);
        let held = Sample { rcv_wnd: Bytes(7_500_000), ..sample };
        assert_eq!(of(&tuned, &held, largest), BufferOwner::Sobas, "the policy bounds the window");
        assert_eq!(of(&tuned, &sample, Some(12 << 20)), BufferOwner::Sobas, "autotuning goes on");
        let sized = Tuned { receive_buffer_bytes: Some(6 << 20), ..tuned };
        assert_eq!(of(&sized, &sample, largest), BufferOwner::Sobas);
        assert_eq!(of(&tuned, &sample, None), BufferOwner::Sobas, "with privilege");
        let own = receive_buffer_owner(true, PolicyKind::Fit, &tuned, &sample, largest);
        assert_eq!(own, BufferOwner::Application);
    }

    #[test]
    fn a_sender_that_fit_leaves_alone_is_reported_with_why() {
        let tuned =
            Tuned { fit: Some(fit(FitPhase::Start, Some(FitReason::PacesItself))), ..Tuned::default() };
        let sends = report(tuned);
        let text = sends.to_string();
        let lines =
            "    bufwise changed nothing\n    fit leaves it to the kernel: bbr paces itself\n    Advice.\n";
        assert!(text.ends_with(lines), "{text}");
        let receives = ConnectionReport { direction: Direction::Receive, ..sends };
        assert!(!receives.to_string().contains("fit"), "{receives}");
    }

    #[test]
    fn of_a_connection_that_is_too_short_the_text_names_no_limit() {
        let limited_by = Some(Limited::by(Cause::Application));
        let second = ConnectionReport { limited_by, ..report(Tuned::default()) };
        assert!(second.to_string().contains("    limited by application 100%\n"), "{second}");
        let short = ConnectionReport { seconds: 0.29, ..second };
        assert!(!short.to_string().contains("limited by"), "{short}");
    }

    #[test]
    fn json_has_the_bound_and_the_phase_beside_the_sizes() {
        let tuned = Tuned {
            rate_bound_bps: Some(94_200_000),
            fit: Some(fit(FitPhase::Follow, None)),
            ..Tuned::default()
        };
        let json = serde_json::to_value(report(tuned)).unwrap();
        let tuned = &json["tuned"];
        assert_eq!(
            (&tuned["rate_bound_bps"], &tuned["fit"]["phase"]),
            (&94_200_000.into(), &"following".into())
        );
        assert!(tuned["fit"]["reason"].is_null() && tuned["send_buffer_bytes"].is_null(), "{json}");
    }
}
