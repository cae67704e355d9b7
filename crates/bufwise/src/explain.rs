//! `bufwise explain`: one connection watched for a second, and what that means, in sentences.
//!
//! The cause of its limit comes from [`bufwise_host::judge`]; who set its buffers from the daemon, or from the socket's own locks
//! where the process that holds it may be looked into.

mod watch;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use bufwise_host::address::Pattern;
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::judge::{Case, Direction, Sizer};
use bufwise_host::view::{ConnectionView, Listing};
use clap::Args;
use serde::Serialize;

use crate::exit::{FAILED, Failure, Outcome};
use crate::figures::{rate, size};
use crate::output;
use watch::Watched;

/// Connections explained to people; JSON has them all.
const SHOWN: usize = 8;

/// Watch the connections from or to an address for a second, and say what limits them and what to do.
///
/// Reads only. Without root it looks into this network namespace alone, and cannot always tell who set the buffers.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise explain 198.18.0.2:443")]
pub(crate) struct ExplainArgs {
    /// Either end: an address with its port ([fd00::2]:443), an address alone or a port alone
    #[expect(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(value_name = "ADDR:PORT")]
    address: Pattern,
    /// Write what was found as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Where the daemon listens
    #[arg(long, value_name = "PATH", default_value = control::DEFAULT_PATH)]
    socket: PathBuf,
}

/// The JSON form of the report.
#[derive(Debug, Serialize)]
struct Report {
    address: Pattern,
    watched_s: f64,
    connections: Vec<Explanation>,
    notes: Vec<String>,
}

/// One connection explained.
#[derive(Debug, Serialize)]
struct Explanation {
    #[serde(flatten)]
    view: ConnectionView,
    /// Share of the segments that had to be repeated.
    loss: f64,
    /// Smoothed round-trip time less the smallest; of a sender.
    queueing_delay_s: Option<f64>,
    /// It is one of a command's that `bufwise run` tunes.
    tuned_by_run: bool,
    sentences: Vec<String>,
    advice: String,
}

impl ExplainArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let watch::Watch { seconds, connections, mut notes } = watch::watch(self.address)?;
        if connections.is_empty() {
            let where_else = if notes.is_empty() { "; bufwise ls --all lists all" } else { "; " };
            let message =
                format!("no connection from or to {}{where_else}{}", self.address, notes.join("; "));
            return Err(Failure::new(FAILED, message));
        }
        let known = self.known_to_daemon().unwrap_or_else(|error| {
            notes.push(format!("without the daemon's figures: {}", bufwise_host::in_words(error.as_ref())));
            Vec::new()
        });
        let explained = |watched: Watched| {
            let known = known.iter().find(|one| one.cookie == watched.view.cookie);
            Explanation::new(watched, known)
        };
        let mut connections: Vec<Explanation> = connections.into_iter().map(explained).collect();
        connections.sort_by_key(|one| std::cmp::Reverse((one.view.goodput_bps, one.view.bytes())));
        let report = Report { address: self.address, watched_s: seconds, connections, notes };
        if let Some(json) = &self.json {
            output::json(json, &report)?;
        }
        if !self.json.as_deref().is_some_and(output::is_stdout) {
            output::line(&report.to_text())?;
        }
        Ok(0)
    }

    /// The connections as the daemon knows them; none without a daemon.
    fn known_to_daemon(&self) -> Result<Vec<ConnectionView>> {
        match control::ask(&self.socket, &Request::Explain { address: self.address })? {
            None => Ok(Vec::new()),
            Some(Reply::List(Listing { connections, .. })) => Ok(connections),
            Some(Reply::Error(error)) => anyhow::bail!("{error}"),
            Some(_) => anyhow::bail!("it gave another answer than a list"),
        }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let mut text = String::new();
        for one in self.connections.iter().take(SHOWN) {
            text += &one.to_text();
        }
        // Writing into a string cannot fail.
        if let Some(more @ 1..) = self.connections.len().checked_sub(SHOWN) {
            let _infallible = writeln!(text, "{more} more with less traffic: --json has all");
        }
        for note in &self.notes {
            let _infallible = writeln!(text, "note: {note}");
        }
        text
    }
}

impl Explanation {
    fn new(watched: Watched, known: Option<&ConnectionView>) -> Self {
        let Watched { mut view, locked, tuned_by_run } = watched;
        if let Some(lock) = locked.filter(|_| !tuned_by_run) {
            view.application_set_send_buffer = Some(lock.send);
            view.application_set_receive_buffer = Some(lock.receive);
        }
        if let Some(known) = known {
            view.age_s = known.age_s;
            view.policy.clone_from(&known.policy);
            view.tuned = known.tuned;
            view.application_set_send_buffer = known.application_set_send_buffer;
            view.application_set_receive_buffer = known.application_set_receive_buffer;
        }
        let case = case(&view, tuned_by_run);
        let queueing_delay_s = match (view.direction, view.srtt_s, view.min_rtt_s) {
            (Direction::Send, Some(srtt), Some(least)) => Some((srtt - least).max(0.0)),
            _ => None,
        };
        let mut explanation = Self {
            loss: case.loss(),
            queueing_delay_s,
            tuned_by_run,
            sentences: Vec::new(),
            advice: case.advice(),
            view,
        };
        explanation.sentences = explanation.sentences();
        explanation
    }

    fn sentences(&self) -> Vec<String> {
        let view = &self.view;
        let sentences = [
            Some(limit_sentence(view)),
            rate_sentence(view),
            bound_sentence(view),
            self.send_buffer_sentence(),
            self.receive_buffer_sentence(),
            Some(window_sentence(view)),
            loss_sentence(view, self.loss),
            self.queueing_delay_s.filter(|_| view.goodput_bps > Some(0)).map(|delay| {
                format!("Its segments wait {:.1} ms in queues (round trip less its smallest).", delay * 1e3)
            }),
        ];
        sentences.into_iter().flatten().collect()
    }

    fn send_buffer_sentence(&self) -> Option<String> {
        let view = &self.view;
        let set = view.tuned.and_then(|tuned| tuned.send_buffer_bytes);
        let setter = self.setter(view.application_set_send_buffer, set);
        let matters = view.direction == Direction::Send || view.send_need_bytes > view.send_buffer_bytes;
        matters.then(|| {
            buffer_sentence(
                "send",
                view.send_buffer_bytes,
                view.send_queued_bytes,
                view.send_need_bytes,
                &setter,
            )
        })
    }

    fn receive_buffer_sentence(&self) -> Option<String> {
        let view = &self.view;
        let set = view.tuned.and_then(|tuned| tuned.receive_buffer_bytes.or(tuned.receive_window_bytes));
        let setter = self.setter(view.application_set_receive_buffer, set);
        let (limit, need) = (view.receive_buffer_bytes, view.receive_need_bytes);
        let matters = view.direction == Direction::Receive || need > limit;
        matters.then(|| buffer_sentence("receive", limit, view.receive_queued_bytes, need, &setter))
    }

    /// Says which of program, bufwise and kernel set a buffer.
    fn setter(&self, by_application: Option<bool>, by_bufwise: Option<u64>) -> String {
        match (by_application, by_bufwise) {
            _ if self.tuned_by_run => "sized by `bufwise run`, which reports at the command's end".to_owned(),
            (Some(true), _) => "set by the program itself".to_owned(),
            (_, Some(_)) => "set by bufwise".to_owned(),
            (Some(false), None) => "sized by the kernel".to_owned(),
            (None, None) => "set by the kernel or the program".to_owned(),
        }
    }

    fn to_text(&self) -> String {
        let view = &self.view;
        let (way, preposition) = match view.direction {
            Direction::Send => ("sending", "to"),
            Direction::Receive => ("receiving", "from"),
        };
        let process = match (&view.process, view.pid) {
            (Some(name), Some(pid)) => format!("{name} ({pid}), "),
            _ => String::new(),
        };
        let head = format!(
            "{}, {way} {preposition} {}: {process}{}, {}",
            view.local, view.peer, view.state, view.congestion_control
        );
        let body = self.sentences.iter().map(|sentence| format!("  {sentence}\n"));
        format!("{head}\n{}  Advice: {}\n", body.collect::<String>(), self.advice)
    }
}

fn case(view: &ConnectionView, tuned_by_run: bool) -> Case {
    let sizer = |by_application: Option<bool>, by_bufwise: bool, policy: Option<&str>| {
        if by_application == Some(true) {
            Sizer::Application
        } else if tuned_by_run || by_bufwise {
            if matches!(policy, Some("sobas" | "fit")) { Sizer::Sobas } else { Sizer::Policy }
        } else {
            Sizer::Kernel
        }
    };
    let policy = view.policy.as_ref();
    let tuned = view.tuned.unwrap_or_default();
    Case {
        direction: view.direction,
        limited: view.limited,
        send: sizer(
            view.application_set_send_buffer,
            tuned.send_buffer_bytes.is_some(),
            policy.map(|policy| policy.send.as_str()),
        ),
        receive: sizer(
            view.application_set_receive_buffer,
            tuned.receive_window_bytes.is_some() || tuned.receive_buffer_bytes.is_some(),
            policy.map(|policy| policy.receive.as_str()),
        ),
        roof: view.roof(),
        segments_out: view.segments_out,
        retransmits: view.retransmits,
        srtt_s: view.srtt_s.unwrap_or_default(),
        min_rtt_s: view.min_rtt_s.unwrap_or_default(),
    }
}

fn limit_sentence(view: &ConnectionView) -> String {
    view.limited.map_or_else(
        || "It ended before it could be told what limits it.".to_owned(),
        |limited| format!("Limited by {limited} of the time watched."),
    )
}

fn rate_sentence(view: &ConnectionView) -> Option<String> {
    let moves = match view.goodput_bps? {
        0 => "Nothing moves now".to_owned(),
        goodput => format!("It moves {}", rate(goodput)),
    };
    let path = match (view.bdp_bytes, view.min_rtt_s, view.direction) {
        (Some(bdp @ 1..), Some(least), Direction::Send) => format!(
            "; the BDP is {}: a delivery rate of {} over {:.1} ms",
            size(bdp),
            rate(view.delivery_rate_bps),
            least * 1e3
        ),
        (Some(bdp @ 1..), Some(least), Direction::Receive) => {
            format!("; that is {} per round trip of {:.1} ms (BDP)", size(bdp), least * 1e3)
        }
        _ => String::new(),
    };
    Some(format!("{moves}{path}."))
}

/// The bound of a sender's rate, or why fit leaves it to the kernel.
fn bound_sentence(view: &ConnectionView) -> Option<String> {
    let tuned = view.tuned.filter(|_| view.direction == Direction::Send)?;
    match tuned.rate_bound_bps {
        Some(bound) => {
            let unsent =
                tuned.unsent_bytes.map(|unsent| format!(", and {} may be written ahead of it", size(unsent)));
            let (bound, unsent) = (rate(bound), unsent.unwrap_or_default());
            Some(format!("Its rate is held to at most {bound} ({}){unsent}.", tuned.bound_by()))
        }
        None => {
            let why = tuned.fit?.why(&view.congestion_control)?;
            Some(format!("Fit leaves its rate to the kernel: {why}."))
        }
    }
}

fn buffer_sentence(side: &str, limit: u64, queued: u64, need: u64, setter: &str) -> String {
    let verdict = match need {
        0 => String::new(),
        _ if limit < need => format!(", less than the {} that this rate needs", size(need)),
        _ => format!(", enough for the {} that this rate needs", size(need)),
    };
    format!("Its {side} buffer may hold {} ({setter}){verdict}; {} are in use.", size(limit), size(queued))
}

fn window_sentence(view: &ConnectionView) -> String {
    format!(
        "Windows: congestion {}, offered by the peer {}, offered to it {}.",
        size(view.cwnd_bytes),
        size(view.send_window_bytes),
        size(view.receive_window_bytes),
    )
}

fn loss_sentence(view: &ConnectionView, loss: f64) -> Option<String> {
    match (view.segments_out, view.retransmits) {
        (0, _) => None,
        (out, 0) => Some(format!("None of its {out} segments had to be repeated.")),
        (out, repeated) => {
            Some(format!("{repeated} of its {out} segments had to be repeated ({:.2}%).", loss * 100.0))
        }
    }
}
