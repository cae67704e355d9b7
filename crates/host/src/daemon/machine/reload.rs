//! Reloads: a new configuration is read and taken over; if that fails, the old one stays.

use std::sync::Arc;

use bufwise_units::Micros;

use super::super::event::{Action, Notice};
use super::super::task::Task;
use super::telling::PAUSED;
use super::{Daemon, Phase};
use crate::error::{Error, Result, in_words};
use crate::log::{Kind, Line};

/// A reload under way.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) stage: Stage,
    /// The daemon was paused before.
    pub(super) paused: bool,
    /// Whether SIGHUP requested the reload; otherwise a change by the administrator caused it.
    pub(super) asked: bool,
}

/// Stage of a reload.
#[derive(Debug)]
pub(super) enum Stage {
    /// The configuration is being read.
    Reading,
    /// Engines are being loaded for this task.
    Loading(Arc<Task>),
    /// The load has failed: the former maxima are being raised again.
    Undoing,
}

impl Daemon {
    pub(super) fn hang_up(&mut self) {
        let paused = match self.phase {
            Phase::Tuning => false,
            Phase::Paused => true,
            Phase::Starting | Phase::Reloading(_) => {
                self.hung_up = true;
                return;
            }
            Phase::Ending(_) => return,
        };
        self.phase = Phase::Reloading(Reload { stage: Stage::Reading, paused, asked: true });
        self.act(Action::Notify(Notice::Reloading));
        self.act(Action::ReadConfiguration);
    }

    pub(super) fn configured(&mut self, task: Result<Box<Task>>, now: Micros) {
        let Phase::Reloading(reload) = &mut self.phase else { return };
        let mut task = match task {
            Ok(task) => task,
            Err(error) => {
                self.phase = if reload.paused { Phase::Paused } else { Phase::Tuning };
                return self.stays(&error, now);
            }
        };
        // These settings are fixed at the start.
        let same_socket = task.settings.socket == self.task.settings.socket;
        let same_format = task.settings.log_format == self.task.settings.log_format;
        let same_metrics = task.settings.metrics == self.task.settings.metrics;
        let same_otlp = task.settings.otlp == self.task.settings.otlp;
        let same_interval = task.settings.otlp_interval == self.task.settings.otlp_interval;
        let same_history = task.settings.history == self.task.settings.history;
        task.settings.socket.clone_from(&self.task.settings.socket);
        task.settings.log_format = self.task.settings.log_format;
        task.settings.metrics.clone_from(&self.task.settings.metrics);
        task.settings.otlp.clone_from(&self.task.settings.otlp);
        task.settings.otlp_interval = self.task.settings.otlp_interval;
        task.settings.history.clone_from(&self.task.settings.history);
        let task = Arc::<Task>::from(task);
        // While the maxima are restored, new connections would get a smaller window scale, for good.
        let lowers = reload.paused || !task.keeps_maxima(&self.task);
        reload.stage = Stage::Loading(Arc::clone(&task));
        for (same, what) in [
            (same_socket, "another control socket"),
            (same_format, "another log format"),
            (same_metrics, "another address of the metrics"),
            (same_otlp, "another receiver of the metrics"),
            (same_interval, "another interval of the metrics"),
            (same_history, "another file of the history"),
        ] {
            if !same {
                self.say(
                    Line::warning(Kind::Life, format_args!("{what} takes effect at the next start")),
                    now,
                );
            }
        }
        if lowers {
            self.act(Action::LowerMaxima);
        }
        self.act(Action::Discover(task));
    }

    /// Keeps the running configuration.
    pub(super) fn stays(&mut self, error: &Error, now: Micros) {
        self.counts.failed_reloads += 1;
        let words = in_words(error);
        self.say(Line::warning(Kind::Life, format_args!("the old configuration stays: {words}")), now);
        self.settled();
    }

    /// Undoes a failed reload: raises the former maxima again; the engines have not been replaced.
    pub(super) fn undo(&mut self, error: &Error, now: Micros) {
        let Phase::Reloading(reload) = &mut self.phase else { return };
        let stage = std::mem::replace(&mut reload.stage, Stage::Undoing);
        let (paused, asked) = (reload.paused, reload.asked);
        let kept = matches!(&stage, Stage::Loading(task) if task.keeps_maxima(&self.task));
        self.counts.failed_reloads += 1;
        let words = in_words(error);
        // Without a request: the administrator has changed a maximum that the programs read when they are loaded.
        let what = if asked {
            "the old configuration stays"
        } else {
            "the engines go on with the former rmem_max and wmem_max"
        };
        self.say(Line::warning(Kind::Life, format_args!("{what}: {words}")), now);
        if !asked {
            return self.undone(now);
        }
        if paused || !kept {
            self.act(Action::LowerMaxima);
        }
        if paused { self.undone(now) } else { self.act(Action::Discover(Arc::clone(&self.task))) }
    }

    pub(super) fn undone(&mut self, now: Micros) {
        let Phase::Reloading(Reload { paused, asked, .. }) = self.phase else { return };
        self.phase = if paused { Phase::Paused } else { Phase::Tuning };
        // The devices were put back, and bounded again to the size that the plan begins with.
        self.ledgers.tell_again();
        if !paused {
            // Adopts connections made while the programs were being replaced.
            self.sweep(now);
        }
        if asked { self.settled() } else { self.hear_hangup() }
    }

    /// Ends a reload.
    pub(super) fn settled(&mut self) {
        let is_paused = matches!(self.phase, Phase::Paused);
        let status = if is_paused { PAUSED.to_owned() } else { self.task.headline() };
        self.act(Action::Notify(Notice::Ready(status)));
        self.hear_hangup();
    }

    /// Handles a SIGHUP that came during a load.
    pub(super) fn hear_hangup(&mut self) {
        if std::mem::take(&mut self.hung_up) {
            self.hang_up();
        }
    }
}
