//! Log lines about findings and about the daemon's life.

use std::collections::BTreeSet;

use bufwise_units::{Micros, counted};

use super::super::event::{Found, Regrouped, Work};
use super::Daemon;
use crate::caps::{Change, Setting};
use crate::container;
use crate::log::{Kind, Line};
use crate::tuner;

/// Line of the log, and status for the service manager, once `restore` keeps the daemon from tuning.
pub(super) const PAUSED: &str =
    "paused by bufwise restore: nothing is tuned until a reload or the next start";

/// Most cgroups of groups that a line names: a pattern may fit hundreds.
const NAMED: usize = 16;

/// A line that is logged once the engines work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    Started,
    Reloaded,
}

/// A search, or work on the engines, that is not carried through; the next attempt does what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// The search for network namespaces has failed.
    Search,
    /// New network namespaces could not be opened.
    Open,
    /// The daemon has no room for all network namespaces.
    Room,
    /// The search for the groups' cgroups has failed.
    Groups,
    /// A sweep has failed.
    Sweep,
    /// Other work on the engines has failed.
    Work(Work),
}

impl Trouble {
    fn line(self, cause: &str) -> Line {
        match self {
            Self::Search => Line::warning(
                Kind::Namespace,
                format_args!("network namespaces are not searched; known ones stay tuned: {cause}"),
            ),
            Self::Open => Line::warning(
                Kind::Namespace,
                format_args!("new network namespaces cannot be opened; known ones stay tuned: {cause}"),
            ),
            Self::Room => Line::warning(Kind::Namespace, cause),
            Self::Groups => Line::warning(
                Kind::Group,
                format_args!("connections are not passed on to groups for now: {cause}"),
            ),
            Self::Sweep => Line::warning(
                Kind::Engine,
                format_args!(
                    "sweeps fail; existing connections and idle buffers stay as they are for now: {cause}"
                ),
            ),
            Self::Work(work) => {
                let what = match work {
                    Work::Sample => "connections cannot be sampled; the last shares hold for now",
                    Work::Share => "shares cannot be written; the last ones hold for now",
                    Work::Beat => "the heartbeat cannot be renewed; after 5 s without it no share counts",
                    Work::Grant => "requests cannot be read; buffers stay at the host's maxima for now",
                };
                Line::warning(Kind::Engine, format_args!("{what}: {cause}"))
            }
        }
    }

    /// Returns the line for the trouble's end; `None`: it ends without a line.
    fn end(self) -> Option<Line> {
        let text = match self {
            Self::Search | Self::Open | Self::Room | Self::Groups => return None,
            Self::Sweep => "sweeps succeed again",
            Self::Work(Work::Sample) => "connections are sampled again",
            Self::Work(Work::Share) => "shares are written again",
            Self::Work(Work::Beat) => "the heartbeat is renewed again",
            Self::Work(Work::Grant) => "requests are read again",
        };
        Some(Line::info(Kind::Engine, text))
    }
}

impl Daemon {
    /// Logs a trouble once per cause; with `None` it is over, and is logged again if it comes back.
    pub(super) fn tell_trouble(&mut self, trouble: Trouble, cause: Option<String>, now: Micros) {
        if self.troubles.get(&trouble) == cause.as_ref() {
            return;
        }
        let line = cause.as_ref().map_or_else(|| trouble.end(), |cause| Some(trouble.line(cause)));
        // A line that would be left out now is logged after the next attempt.
        if line.as_ref().is_some_and(|line| !self.limiter.is_ready(line.kind, now)) {
            return;
        }
        self.troubles.remove(&trouble);
        self.troubles.extend(cause.map(|cause| (trouble, cause)));
        line.into_iter().for_each(|line| self.say(line, now));
    }

    /// Logs refusals, each once until it has ended; `told` are those that were logged before. Returns what is logged now. A
    /// line that would be left out now is logged after the next attempt.
    pub(super) fn tell_refusals(
        &mut self,
        told: &BTreeSet<String>,
        mut refused: BTreeSet<String>,
        now: Micros,
    ) -> BTreeSet<String> {
        refused.retain(|text| {
            let is_new = !told.contains(text);
            let is_ready = self.limiter.is_ready(Kind::Refused, now);
            if is_new && is_ready {
                self.say(Line::warning(Kind::Refused, text), now);
            }
            !is_new || is_ready
        });
        refused
    }

    fn tell_room(&mut self, known: usize, left_alone: usize, now: Micros) {
        // The number changes from search to search.
        let told = self.troubles.get(&Trouble::Room).cloned();
        let cause = told.unwrap_or_else(|| {
            let namespaces = counted(left_alone, "network namespace");
            let are = if left_alone == 1 { "is" } else { "are" };
            format!(
                "{namespaces} {are} left alone: no more than {known} can be known with this limit of descriptors \
                 (LimitNOFILE=, up to 16384)"
            )
        });
        self.tell_trouble(Trouble::Room, (left_alone > 0).then_some(cause), now);
    }

    /// Logs the result of a search. `bounds_all`: the task for which maxima were raised bounds every connection there.
    pub(super) fn tell_found(&mut self, found: Found, bounds_all: bool, now: Micros) {
        let Found { new, raised, gone, failed, known, left_alone, unopened, remade, refused, .. } = found;
        // Each search tries again.
        let told = std::mem::take(&mut self.unattached);
        self.unattached = self.tell_refusals(&told, refused.into_iter().collect(), now);
        self.say_all(
            remade,
            |path| Line::info(Kind::Group, format_args!("cgroup {path} was made again and is tuned")),
            now,
        );
        self.tell_room(known.len(), left_alone, now);
        self.tell_trouble(Trouble::Open, unopened, now);
        self.counts.refused_bounds += failed.len() as u64;
        self.say_all(
            failed,
            |line| Line::warning(Kind::Refused, format_args!("bounds stay as they are in {line}")),
            now,
        );
        self.say_all(
            gone,
            |label| Line::info(Kind::Namespace, format_args!("network namespace {label} is gone")),
            now,
        );
        for (label, _) in &new {
            self.say(Line::info(Kind::Namespace, format_args!("network namespace {label} found")), now);
        }
        for (label, changes) in new.into_iter().chain(raised).filter(|(_, changes)| !changes.is_empty()) {
            let changes = with_reasons(changes, bounds_all);
            self.say(Line::info(Kind::Cap, format_args!("in network namespace {label} {changes}")), now);
        }
    }

    pub(super) fn tell_regrouped(&mut self, regrouped: Regrouped, now: Micros) {
        let Regrouped { found, gone, refused, missing, passed_on, .. } = regrouped;
        // One line, because each cgroup is reported once.
        if let Some(refused) = joined(refused) {
            self.say(Line::warning(Kind::Refused, refused), now);
        }
        let cgroups = joined(gone.into_iter().chain(found).collect());
        let theirs = if passed_on == 1 { "its group" } else { "their groups" };
        let passed_on = (passed_on > 0).then(|| counted(passed_on, "connection"));
        let passed_on = passed_on.map(|connections| format!("{connections} passed on to {theirs}"));
        let news: Vec<String> = cgroups.into_iter().chain(missing).chain(passed_on).collect();
        if !news.is_empty() {
            self.say(Line::info(Kind::Group, news.join("; ")), now);
        }
    }

    pub(super) fn announce(&mut self, now: Micros) {
        let Some(announcement) = self.announcement.take() else { return self.hear_hangup() };
        let headline = self.task.headline();
        match announcement {
            Announcement::Reloaded => {
                self.say(Line::info(Kind::Life, format_args!("reloaded: {headline}")), now);
            }
            Announcement::Started => {
                self.say(Line::info(Kind::Life, &headline), now);
                if self.task.cgroups.is_empty() && self.contained {
                    let warning = "the host's cgroups are out of reach, so only connections of this container are tuned";
                    let advice = container::ADVICE;
                    self.say(Line::warning(Kind::Life, format_args!("{warning}: {advice}")), now);
                }
            }
        }
        let bounds_devices = !self.task.leaves_devices_alone(self.in_the_first);
        let plan = &self.task.plan;
        if let Some(told) = tuner::kept_for(plan, bounds_devices).filter(|_| !plan.observe_only) {
            let line: fn(Kind, String) -> Line = if bounds_devices { Line::info } else { Line::warning };
            self.say(line(Kind::Shortage, told), now);
        }
        self.settled();
    }
}

/// Joins texts on cgroups to one line, which has at most [`NAMED`] of them; `None`: there is none.
fn joined(mut texts: Vec<String>) -> Option<String> {
    let more = texts.drain(texts.len().min(NAMED)..).count();
    texts.extend((more > 0).then(|| counted(more, "more cgroup")));
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the changes in a namespace with their reasons, in one line. A maximum applies to the whole namespace: it
/// cannot be raised for the sockets of some cgroups only.
pub(super) fn with_reasons(changes: Vec<Change>, bounds_all: bool) -> String {
    let (devices, files): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| matches!(change.setting, Setting::Device(_)));
    let why = if bounds_all {
        "each socket is bounded by its policy"
    } else {
        "sockets of the daemon's cgroups are bounded by their policy; other sockets there may grow to this maximum, too, \
         unless raise-caps is false"
    };
    let whys = [(files, why), (devices, "the memory suffices for more writers")];
    let parts = whys.into_iter().filter(|(changes, _)| !changes.is_empty()).map(|(changes, why)| {
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        format!("{}: {why}", changes.join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}
