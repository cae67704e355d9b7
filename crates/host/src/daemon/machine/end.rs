//! Clients' requests, and giving everything back: on request, or at the end.

use bufwise_bpf::Released;
use bufwise_units::Micros;

use super::super::event::{Action, Facts, GivenBack, Notice};
use super::telling::PAUSED;
use super::{Daemon, Phase};
use crate::control::message::Restored;
use crate::control::{Reply, Request};
use crate::error::{Error, in_words};
use crate::leftovers;
use crate::log::{Kind, Line};

impl Daemon {
    pub(super) fn asked(&mut self, request: Request, now: Micros) {
        let is_ending = matches!(self.phase, Phase::Ending(_));
        match request {
            _ if is_ending => self.act(Action::Answer(Reply::Error("the daemon is ending".to_owned()))),
            Request::Restore if matches!(self.phase, Phase::Starting | Phase::Reloading(_)) => {
                self.act(Action::Answer(Reply::Error("the daemon is busy: try again".to_owned())));
            }
            Request::Restore => {
                self.phase = Phase::Paused;
                self.act(Action::GiveBack);
            }
            Request::Status
            | Request::List
            | Request::Explain { .. }
            | Request::Metrics
            | Request::History(_) => {
                let paused = matches!(self.phase, Phase::Paused);
                let facts = Facts {
                    plan: self.task.plan,
                    // After everything was given back, no memory is shared out.
                    parts: self.ledgers.terms(!paused),
                    paused,
                    uptime: now.since(self.began),
                    counts: self.counts,
                };
                self.act(Action::Describe(request, facts));
            }
        }
    }

    /// Gives everything back, once, and then ends.
    pub(super) fn end(&mut self, reason: Option<Error>) {
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        self.phase = Phase::Ending(reason);
        self.act(Action::Notify(Notice::Stopping));
        self.act(Action::GiveBack);
    }

    pub(super) fn given_back(&mut self, given_back: GivenBack, now: Micros) {
        let GivenBack { settings, failed, released } = given_back;
        for line in &settings {
            self.say(Line::info(Kind::PutBack, format_args!("put back: {line}")), now);
        }
        for line in &failed {
            self.say(Line::warning(Kind::PutBack, format_args!("not put back: {line}")), now);
        }
        if let Ok(released) = &released
            && *released != Released::default()
        {
            self.say(Line::info(Kind::PutBack, leftovers::given_back(*released)), now);
        }
        let Phase::Ending(reason) = &mut self.phase else {
            let reply = released.map_or_else(
                |error| Reply::Error(in_words(&error)),
                |released| Reply::Restored(restored(released, settings, failed)),
            );
            self.say(Line::info(Kind::Life, PAUSED), now);
            self.act(Action::Notify(Notice::Status(PAUSED.to_owned())));
            return self.act(Action::Answer(reply));
        };
        let reason = reason.take();
        self.say(
            match reason {
                None => Line::info(Kind::Life, "stopped"),
                Some(_) => Line::warning(Kind::Life, "stopped by an error"),
            },
            now,
        );
        self.act(Action::Quit(reason.map_or_else(|| released.map(drop), Err)));
    }
}

fn restored(released: Released, settings: Vec<String>, failed: Vec<String>) -> Restored {
    Restored {
        connections: released.released as u64,
        failed_connections: (released.not_found + released.refused) as u64,
        settings,
        notes: failed.into_iter().map(|line| format!("not put back: {line}")).collect(),
    }
}
