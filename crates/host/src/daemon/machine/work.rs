//! The daemon's work while it tunes: samples, shares, sweeps, namespaces, the administrator's changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bufwise_bpf::{Config, FlowState};
use bufwise_units::{Bytes, Micros, counted};

use super::super::due::{DISCOVERY, lying_idle};
use super::super::event::{Action, Notice, Sweep, Work};
use super::super::ledger::Balance;
use super::reload::{Reload, Stage};
use super::telling::Trouble;
use super::{Daemon, Phase};
use crate::caps::{Change, Setting};
use crate::error::{Result, in_words};
use crate::log::{Kind, Line};
use crate::tcp_memory::TcpMemory;

/// Few connections have come or gone since the last sample if they are less than one in this many.
const FEW: usize = 20;
/// Little memory has come into use since the last sample if it is less than a budget divided by this.
const LITTLE: u64 = 8;

impl Daemon {
    pub(super) fn tick(&mut self, now: Micros) {
        if self.due.is_alive_due(now) {
            self.act(Action::Notify(Notice::Alive));
        }
        if now >= self.due.sample {
            let lines = self.limiter.catch_up(now);
            self.actions.extend(lines.into_iter().map(Action::Log));
            // Postponed until this sample is over.
            self.due.sample = now + DISCOVERY;
            if self.is_tuning() {
                self.sample_began = now;
                self.act(Action::Sample);
            }
        }
        if self.due.is_beat_due(now) && self.is_tuning() {
            self.act(Action::Beat);
        }
        if self.due.is_discovery_due(now) && self.is_tuning() {
            self.act(Action::Discover(Arc::clone(&self.task)));
        }
        if self.is_tuning() && self.due.is_maxima_due(now) {
            self.act(Action::WatchMaxima);
        }
    }

    pub(super) fn sampled(
        &mut self,
        parts: Vec<Vec<FlowState>>,
        host: Option<TcpMemory>,
        took: Micros,
        now: Micros,
    ) {
        if !self.is_tuning() {
            return;
        }
        self.sample_took = took;
        self.succeeded(Work::Sample, now);
        let is_ready = |kind| self.limiter.is_ready(kind, now);
        let Balance { bounds, lines, held } = self.ledgers.observe(&parts, host, now, is_ready);
        (self.counts.send_buffers, self.counts.receive_windows) = self.ledgers.changes();
        let flows = parts.iter().flatten();
        let all: usize = parts.iter().map(Vec::len).sum();
        let closed = flows.clone().filter(|flow| flow.closed).count();
        self.looked_at = all;
        self.memory = host;
        self.calm = closed * FEW < all && !bounds.iter().any(|bounds| bounds.shares.pressure);
        self.act(Action::Share(bounds));
        lines.into_iter().for_each(|line| self.say(line, now));
        if self.due.is_status_due(now) {
            let open = counted(all - closed, "connection");
            let (held, budget) = (held.readable(), self.task.budgets().0.readable());
            let status = format!("{open}; send queues hold {held} of {budget}");
            self.act(Action::Notify(Notice::Status(status)));
        }
        self.notice_namespaces(flows.clone(), now);
        if let Some(began) = self.unseen_sweep.take() {
            self.stubborn = lying_idle(flows.clone(), began);
        }
        let idle = lying_idle(flows, now) > self.stubborn;
        if self.due.is_sweep_due(idle, self.is_late, now) {
            self.sweep(now);
        }
        if self.due.is_record_due(now) {
            self.act(Action::Record(parts, Arc::clone(&self.task)));
        }
    }

    /// Searches early, and only once, for unknown namespaces of connections.
    fn notice_namespaces<'a>(&mut self, flows: impl Iterator<Item = &'a FlowState>, now: Micros) {
        let open = flows.filter(|flow| !flow.closed).map(|flow| flow.origin.netns);
        let elsewhere: BTreeSet<u64> = open.filter(|inode| !self.known.contains(inode)).collect();
        if !elsewhere.is_subset(&self.elsewhere) {
            self.due.discover_early(now);
        }
        self.elsewhere = elsewhere;
    }

    /// Notes that shares were written in that time, each with a heartbeat, and that devices were bounded, except `refused`.
    pub(super) fn shared(&mut self, refused: Vec<String>, took: Micros, now: Micros) {
        self.succeeded(Work::Share, now);
        self.succeeded(Work::Beat, now);
        self.counts.refused_bounds += refused.len() as u64;
        let line =
            |error| Line::warning(Kind::Refused, format_args!("bounds of devices stay as they are: {error}"));
        self.say_all(refused, line, now);
        let took = self.sample_took + took;
        self.due.sampled(self.sample_began, took, self.ledgers.interval(), self.calm, now);
    }

    /// Samples at once if many connections have come or gone since the last sample, or if the kernel's TCP holds much more:
    /// connections at rest, to which no share is assigned, may have become busy.
    pub(super) fn beaten(&mut self, turnover: u64, host: Option<TcpMemory>, now: Micros) {
        self.succeeded(Work::Beat, now);
        let many =
            usize::try_from(turnover).is_ok_and(|turnover| turnover.saturating_mul(FEW) > self.looked_at);
        let (send, receive) = self.task.budgets();
        let grown = host.zip(self.memory).map_or(Bytes::ZERO, |(now, then)| now.held - then.held);
        if many || grown.times(LITTLE) > send.min(receive) {
            self.due.sample = self.due.sample.min(now);
        }
    }

    pub(super) fn sweep(&mut self, now: Micros) {
        self.sweep_began = now;
        self.act(Action::Sweep);
    }

    /// Sweeps for connections that a search has found, unless the last sweep has to rest.
    pub(super) fn sweep_early(&mut self, now: Micros) {
        if self.due.may_sweep_early(now) {
            self.sweep(now);
        }
    }

    pub(super) fn swept(&mut self, sweep: Sweep, took: Micros, now: Micros) {
        self.counts.given_back += sweep.given_back;
        let has_failed = sweep.failed.is_some();
        self.counts.refused_sweeps += sweep.refused.len() as u64 + u64::from(has_failed);
        self.tell_trouble(Trouble::Sweep, sweep.failed, now);
        for (label, count) in sweep.adopted {
            self.counts.adopted += count;
            let count = counted(count, "existing connection");
            let line = format_args!("{count} adopted in network namespace {label}");
            self.say(Line::info(Kind::Adopted, line), now);
        }
        let told = std::mem::take(&mut self.unswept);
        self.unswept = self.tell_refusals(&told, sweep.refused.into_iter().collect(), now);
        if sweep.adoption_limit.is_some() && sweep.adoption_limit != self.adoption_limit {
            let limit = sweep.adoption_limit.as_deref().unwrap_or_default();
            let line = Line::info(Kind::AdoptionLimit, format_args!("existing connections are {limit}"));
            self.adoption_limit = sweep.adoption_limit;
            self.say(line, now);
        }
        if sweep.given_back > 0 {
            let connections = counted(sweep.given_back, "connection");
            let line = format_args!(
                "buffers of {connections} given back: nothing moved for {} s",
                Config::IDLE.as_secs_f64(),
            );
            self.say(Line::info(Kind::GivenBack, line), now);
        }
        if has_failed {
            self.due.sweep_failed(self.sweep_began, took);
        } else {
            self.unseen_sweep = Some(self.sweep_began);
            self.due.swept(self.sweep_began, took);
        }
        self.announce(now);
    }

    /// Notes that requests were granted in that time, except `refused`.
    pub(super) fn granted(&mut self, refused: Vec<String>, took: Micros, now: Micros) {
        self.due.granted(took, now);
        self.succeeded(Work::Grant, now);
        self.counts.refused_sizes += refused.len() as u64;
        let line = |error| {
            Line::warning(Kind::Refused, format_args!("a buffer stays at the host's maximum: {error}"))
        };
        self.say_all(refused, line, now);
    }

    pub(super) fn maxima_seen(&mut self, seen: Vec<(String, Result<Vec<Change>>)>, now: Micros) {
        let (mut loaded_by_it, mut refused) = (false, BTreeSet::new());
        for (label, changes) in seen {
            let changes = match changes {
                Ok(changes) => changes,
                Err(error) => {
                    self.counts.refused_bounds += 1;
                    refused.insert(format!("network namespace {label}: {}", in_words(&error)));
                    continue;
                }
            };
            for change in changes {
                // The programs read these two settings when they are loaded.
                loaded_by_it |= matches!(change.setting, Setting::RmemMax | Setting::WmemMax);
                let line =
                    format_args!("{change} in network namespace {label} was set by somebody else and stays");
                self.say(Line::info(Kind::Administrator, line), now);
            }
        }
        let told = std::mem::take(&mut self.unwatched);
        self.unwatched = self.tell_refusals(&told, refused, now);
        if loaded_by_it && self.is_tuning() {
            let task = Arc::clone(&self.task);
            let stage = Stage::Loading(Arc::clone(&task));
            self.phase = Phase::Reloading(Reload { stage, paused: false, asked: false });
            let inherit = task.inherits(&task);
            self.load(task, inherit);
        }
    }
}
