//! The report on a command: for people on standard error, and as JSON with stable keys (bytes, seconds, bit/s).

use std::fmt::{self, Write};
use std::time::Duration;

use bufwise_policy::{Bytes, PolicyKind};
use serde::Serialize;

use super::history::{Histories, History, Limited, Point};
use crate::tuner::plan::Plan;

/// Connections shown to people; JSON has them all.
const SHOWN: usize = 12;
/// Below this nothing can be said of a connection.
const TOO_SHORT_SECONDS: f64 = 0.3;
/// A cause that took this share of the time is worth a word.
const NOTABLE: f64 = 0.2;
/// A path that loses more than this share of the segments is at fault itself.
const LOSSY: f64 = 0.005;
/// A round trip this many times its minimum stands in a queue.
const QUEUED: f64 = 2.0;
/// Less than this is a host's own delay.
const QUEUE_SECONDS: f64 = 0.005;

/// What became of the command's connections.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    command: Vec<String>,
    status: u8,
    seconds: f64,
    policy: PolicyNames,
    memory_budget_bytes: u64,
    held_send_peak_bytes: u64,
    connections: Vec<ConnectionReport>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PolicyNames {
    send: String,
    receive: String,
}

#[derive(Debug, Serialize)]
struct ConnectionReport {
    local: String,
    peer: String,
    direction: &'static str,
    seconds: f64,
    bytes_acked: u64,
    bytes_received: u64,
    goodput_bps: u64,
    srtt_s: f64,
    min_rtt_s: f64,
    segments_out: u64,
    retransmits: u64,
    limited_by: Option<Limited>,
    tuned: Tuned,
    buffers: Vec<Point>,
    advice: String,
}

/// What bufwise did.
#[derive(Debug, Serialize)]
struct Tuned {
    send_buffer_bytes: Option<u64>,
    send_changes: u32,
    receive_window_bytes: Option<u64>,
    receive_buffer_bytes: Option<u64>,
    receive_changes: u32,
    application_set_send_buffer: bool,
    application_set_receive_buffer: bool,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        command: Vec<String>,
        status: u8,
        elapsed: Duration,
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
    let size = |set: Option<Bytes>| set.map(|size| size.0);
    let srtt = if history.receives() && sample.rcv_rtt.0 > 0 { sample.rcv_rtt } else { sample.srtt };
    ConnectionReport {
        local: flow.local.to_string(),
        peer: flow.peer.to_string(),
        direction: if history.receives() { "receive" } else { "send" },
        seconds,
        bytes_acked: sample.bytes_acked.0,
        bytes_received: sample.bytes_received.0,
        goodput_bps: if seconds > 0.0 { (bytes.0 as f64 * 8.0 / seconds) as u64 } else { 0 },
        srtt_s: srtt.as_secs_f64(),
        min_rtt_s: sample.min_rtt.as_secs_f64(),
        segments_out: sample.segs_out,
        retransmits: sample.segs_lost,
        limited_by: history.limited(),
        tuned: Tuned {
            send_buffer_bytes: size(flow.set_send_buffer),
            send_changes: flow.send_changes,
            receive_window_bytes: size(flow.set_window),
            receive_buffer_bytes: size(flow.set_receive_buffer),
            receive_changes: flow.window_changes,
            application_set_send_buffer: flow.owned.send,
            application_set_receive_buffer: flow.owned.receive,
        },
        buffers: history.points.clone(),
        advice: advice(plan, history, seconds),
    }
}

/// One sentence: what to do about what limited the connection most.
fn advice(plan: &Plan, history: &History, seconds: f64) -> String {
    let flow = &history.last;
    let Some(limited) = history.limited().filter(|_| seconds >= TOO_SHORT_SECONDS) else {
        return "Too short to tell what limited it.".to_owned();
    };
    if limited.send_buffer >= NOTABLE {
        return if flow.owned.send {
            "The program's own SO_SNDBUF held it back: raise it there, or use --override."
        } else if plan.choice.send == PolicyKind::Kernel {
            "The send buffer held it back: use --policy abt."
        } else {
            "The share of the memory held it back: give more with --memory."
        }
        .to_owned();
    }
    if limited.receive_window >= NOTABLE {
        return receive_window_advice(plan, history).to_owned();
    }
    path_advice(history, &limited)
}

fn receive_window_advice(plan: &Plan, history: &History) -> &'static str {
    if !history.receives() {
        "The receiver's window held it back: run bufwise there too, or raise tcp_rmem there."
    } else if history.last.owned.receive {
        "The program's own SO_RCVBUF held it back: raise it there, or use --override."
    } else if plan.choice.receive == PolicyKind::Kernel {
        "The receive window held it back: use --policy drs or sobas."
    } else if plan.choice.receive == PolicyKind::Sobas {
        "The path is full: the window was held at what it carries, so that no queue builds up."
    } else {
        "The receive window held it back: its policy chose it so."
    }
}

fn path_advice(history: &History, limited: &Limited) -> String {
    let sample = &history.last.sample;
    let loss = sample.segs_lost as f64 / sample.segs_out.max(1) as f64;
    let (srtt, min_rtt) = (sample.srtt.as_secs_f64(), sample.min_rtt.as_secs_f64());
    if limited.application > 0.5 {
        "The program itself was the limit: larger buffers would not help.".to_owned()
    } else if loss > LOSSY {
        format!(
            "The path loses {:.1}% of the segments: its quality is the limit, not the buffers.",
            loss * 100.0
        )
    } else if !history.receives()
        && min_rtt > 0.0
        && srtt - min_rtt > QUEUE_SECONDS
        && srtt > QUEUED * min_rtt
    {
        format!(
            "A queue of {:.0} ms stands in the path: a receiver with --policy sobas would avoid it.",
            (srtt - min_rtt) * 1e3
        )
    } else {
        "The path was the limit: the buffers are large enough.".to_owned()
    }
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
            "receive" => (self.bytes_received, "from"),
            _ => (self.bytes_acked, "to"),
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
            writeln!(f, "    limited by {}", causes(limited))?;
        }
        writeln!(f, "    {}", self.tuned)?;
        writeln!(f, "    {}", self.advice)
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(send) = self.send_buffer_bytes {
            parts.push(format!("send buffer {} ({} changes)", size(send), self.send_changes));
        }
        if let Some(window) = self.receive_window_bytes {
            parts.push(format!("receive window {} ({} changes)", size(window), self.receive_changes));
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

/// The causes above 1%, largest first.
fn causes(limited: &Limited) -> String {
    let mut causes = [
        (limited.application, "application"),
        (limited.send_buffer, "send buffer"),
        (limited.receive_window, "receive window"),
        (limited.congestion_window, "congestion window"),
        (limited.path, "path or sender"),
    ];
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut text = String::new();
    for (share, name) in causes.into_iter().filter(|(share, _)| *share >= 0.01) {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing into a string cannot fail.
        let _infallible = write!(text, "{comma}{name} {:.0}%", share * 100.0);
    }
    text
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1e4 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.1} KB", bytes / 1e3),
        ..1e9 => format!("{:.2} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

fn rate(bits: u64) -> String {
    let bits = bits as f64;
    if bits < 1e6 { format!("{:.1} kbit/s", bits / 1e3) } else { format!("{:.1} Mbit/s", bits / 1e6) }
}
