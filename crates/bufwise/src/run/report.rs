//! The report on a command: for people on standard error, and as JSON with stable keys (bytes, seconds, bit/s).

use std::fmt;
use std::time::Duration;

use bufwise_host::judge::{Case, Direction, Limited, Sizer};
use bufwise_host::tuner::plan::Plan;
use bufwise_host::view::{PolicyNames, Tuned};
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;
use serde::Serialize;

use super::engine::Kind;
use super::history::{Histories, History, Point};
use crate::figures::{rate, size};

/// Connections shown to people; JSON has them all.
const SHOWN: usize = 12;
/// Below this nothing can be said of a connection.
const TOO_SHORT_SECONDS: f64 = 0.3;

/// A command that has ended.
pub(super) struct Ended {
    pub(super) engine: Kind,
    /// See [`Report`].
    pub(super) engine_reason: Option<String>,
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
    /// Why it is not the one in the kernel, where that would have been taken.
    engine_reason: Option<String>,
    policy: PolicyNames,
    memory_budget_bytes: u64,
    held_send_peak_bytes: u64,
    connections: Vec<ConnectionReport>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ConnectionReport {
    local: String,
    peer: String,
    direction: Direction,
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
struct Treated {
    #[serde(flatten)]
    tuned: Tuned,
    application_set_send_buffer: bool,
    application_set_receive_buffer: bool,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        Ended { engine, engine_reason, command, status, elapsed }: Ended,
        held_max: Bytes,
        histories: &Histories,
        notes: Vec<String>,
    ) -> Self {
        let mut connections: Vec<ConnectionReport> =
            histories.all.values().map(|history| connection(plan, history)).collect();
        connections.sort_by_key(|one| std::cmp::Reverse(one.bytes_acked + one.bytes_received));
        Self {
            command,
            status,
            seconds: elapsed.as_secs_f64(),
            engine,
            engine_reason,
            policy: PolicyNames {
                send: plan.choice.send.to_string(),
                receive: plan.choice.receive.to_string(),
            },
            memory_budget_bytes: plan.budget.0,
            held_send_peak_bytes: held_max.0,
            connections,
            notes,
        }
    }
}

fn connection(plan: &Plan, history: &History) -> ConnectionReport {
    let flow = &history.last;
    let sample = &flow.sample;
    let seconds = flow.seen_at.since(flow.opened_at).as_secs_f64();
    let bytes = if history.receives() { sample.bytes_received } else { sample.bytes_acked };
    let srtt = if history.receives() && sample.rcv_rtt.0 > 0 { sample.rcv_rtt } else { sample.srtt };
    ConnectionReport {
        local: flow.local.to_string(),
        peer: flow.peer.to_string(),
        direction: history.direction(),
        seconds,
        bytes_acked: sample.bytes_acked.0,
        bytes_received: sample.bytes_received.0,
        goodput_bps: if seconds > 0.0 { (bytes.0 as f64 * 8.0 / seconds) as u64 } else { 0 },
        srtt_s: srtt.as_secs_f64(),
        min_rtt_s: sample.min_rtt.as_secs_f64(),
        segments_out: sample.segs_out,
        retransmits: sample.segs_lost,
        limited_by: history.limited(),
        tuned: Treated {
            tuned: Tuned::from(flow),
            application_set_send_buffer: flow.owned.send,
            application_set_receive_buffer: flow.owned.receive,
        },
        buffers: history.points.clone(),
        advice: advice(plan, history, seconds),
    }
}

fn advice(plan: &Plan, history: &History, seconds: f64) -> String {
    let History { last: flow, .. } = history;
    let sizer = |owned: bool, policy: PolicyKind| match policy {
        _ if owned => Sizer::Application,
        PolicyKind::Kernel => Sizer::Kernel,
        PolicyKind::Sobas | PolicyKind::Fit => Sizer::Sobas,
        _ => Sizer::Policy,
    };
    let case = Case {
        direction: history.direction(),
        limited: history.limited().filter(|_| seconds >= TOO_SHORT_SECONDS),
        send: sizer(flow.owned.send, plan.choice.send),
        receive: sizer(flow.owned.receive, plan.choice.receive),
        segments_out: flow.sample.segs_out,
        retransmits: flow.sample.segs_lost,
        srtt_s: flow.sample.srtt.as_secs_f64(),
        min_rtt_s: flow.sample.min_rtt.as_secs_f64(),
    };
    case.advice()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyNames { send, receive } = &self.policy;
        writeln!(
            f,
            "bufwise: policy {send} (send), {receive} (receive); {:.1} s; {} connections; send queues held at most {}",
            self.seconds,
            self.connections.len(),
            size(self.held_send_peak_bytes),
        )?;
        write!(f, "bufwise: engine: {}", self.engine)?;
        match &self.engine_reason {
            Some(reason) => writeln!(f, " (in the kernel: {reason})")?,
            None => writeln!(f)?,
        }
        for connection in self.connections.iter().take(SHOWN) {
            connection.fmt(f)?;
        }
        if let Some(more @ 1..) = self.connections.len().checked_sub(SHOWN) {
            writeln!(f, "bufwise: {more} more with less data: --json has all")?;
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
        if let Some(limited) = &self.limited_by {
            writeln!(f, "    limited by {limited}")?;
        }
        writeln!(f, "    {}", self.tuned)?;
        writeln!(f, "    {}", self.advice)
    }
}

impl fmt::Display for Treated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(send) = self.tuned.send_buffer_bytes {
            parts.push(format!("send buffer {} ({} changes)", size(send), self.tuned.send_changes));
        }
        if let Some(window) = self.tuned.receive_window_bytes {
            parts.push(format!("receive window {} ({} changes)", size(window), self.tuned.receive_changes));
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
