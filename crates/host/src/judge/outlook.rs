//! Answers whether fit would help: what `fit` at this end, at the other, or at both would change for a connection,
//! judged from its measurements.
//!
//! Known properties of fit (docs/algorithms/fit.md): at either end alone it removes the queue that the connection
//! itself fills, and the drops of a queue that overflows, at the rate that the path carries; at both ends it removes
//! no more than at one. It does not make data move faster, except where retransmissions had delayed it. At a sender
//! it works with CUBIC and Reno. It leaves round trips below 2 ms to the kernel. Buffers that are too small are sized
//! as by the other policies.

use bufwise_units::Bytes;
use serde::Serialize;

use super::advice::{BufferOwner, Case, MOSTLY, NOTABLE, Roof};
use super::{Direction, Limited};

/// Fit leaves shorter round trips alone; seconds.
pub(super) const SHORTEST_PATH: f64 = 0.002;

/// A change that fit at one end would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The queue is removed, and with it the drops that it causes.
    Queue,
    /// Drops of a queue that overflows are removed.
    Drops,
    /// The window or buffer becomes as large as the path needs, as under any policy that sizes it.
    Buffer,
    /// No change: fit, or another policy with the same outcome, is at work there.
    AtWork,
    /// No change.
    Nothing,
    /// Unknown: the measurements do not tell.
    Unknown,
}

/// The changes that fit would make.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outlook {
    /// By fit at this end.
    pub here: Effect,
    /// By fit at the other end.
    pub there: Effect,
    /// By fit at both ends: as at the one where it has an effect.
    pub both: Effect,
    /// Queueing delay that would be removed, seconds.
    pub queue_s: Option<f64>,
    /// Payload bytes that would no longer wait in the queue.
    pub queue_bytes: Option<u64>,
    /// The answer as a sentence for people.
    pub sentence: String,
}

impl Outlook {
    /// Appends to the sentence what both ends together would change.
    fn new(here: Effect, there: Effect, sentence: &str) -> Self {
        let (both, of_both) = match (here, there) {
            (Effect::Nothing, Effect::Nothing) => (Effect::Nothing, ""),
            (Effect::Unknown, _) => (Effect::Unknown, ""),
            (Effect::AtWork, _) => (Effect::AtWork, " At both: no more."),
            (Effect::Nothing, there) => (there, " At both: no more than at the other."),
            (here, Effect::Nothing) => (here, " At both: no more than at this one."),
            (here, _) => (here, " At both: no more than at one."),
        };
        let sentence = format!("{sentence}{of_both}");
        Self { here, there, both, queue_s: None, queue_bytes: None, sentence }
    }

    fn nothing(sentence: &str) -> Self {
        Self::new(Effect::Nothing, Effect::Nothing, sentence)
    }
}

impl Case {
    /// Answers whether fit would help, here or at the other end.
    pub fn outlook(&self) -> Outlook {
        let Some(limited) = self.limited.filter(|_| self.goodput_bps > 0) else {
            let why = "Unknown: too little data passed while the connection was watched.";
            return Outlook::new(Effect::Unknown, Effect::Unknown, why);
        };
        if self.memory_short {
            Outlook::nothing("No: the host's memory for TCP is the limit.")
        } else if limited.reader >= NOTABLE {
            Outlook::nothing("No, at neither end: the program that reads is the limit.")
        } else if limited.application > MOSTLY {
            Outlook::nothing("No, at neither end: the program that sends is the limit.")
        } else if self.is_short() {
            Outlook::nothing("No, at neither end: the path is so short that hosts delay more than it does.")
        } else if let Some(queue) = self.queue_s {
            // A queue means that the path is full, whatever limit the kernel counts then.
            self.queue_outlook(queue)
        } else if let Some(of_buffer) = self.buffer_outlook(limited) {
            of_buffer
        } else {
            self.path_outlook()
        }
    }

    /// Returns the outlook if a buffer or a window is the limit.
    fn buffer_outlook(&self, limited: Limited) -> Option<Outlook> {
        let send = limited.send_buffer >= NOTABLE && self.direction == Direction::Send;
        let window = limited.receive_window >= NOTABLE;
        if window && self.is_held_by_scale(&limited) {
            return Some(Outlook::new(
                Effect::Buffer,
                Effect::Nothing,
                "At this end, in a new connection: the window scale of this one allows no larger window. \
                 At the other end: no.",
            ));
        }
        Some(match (self.direction, send, window) {
            (Direction::Send, true, _) if matches!(self.roof, Roof::Limits | Roof::Bound) => return None,
            (Direction::Send, true, _) => Outlook::new(
                Effect::Buffer,
                Effect::Nothing,
                match self.send {
                    BufferOwner::Application => {
                        "At this end, with --override: the program's own send buffer is too small for the path. At the \
                         other end: no."
                    }
                    BufferOwner::Kernel => {
                        "At this end: the send buffer is too small for the path. At the other end: no."
                    }
                    BufferOwner::Sobas => {
                        "At this end, with more --memory: its share is too small for the path. At the other end: no."
                    }
                    BufferOwner::Policy => {
                        "At this end, where --memory suffices: the policy's size is too small for the path. At the other \
                         end: no."
                    }
                    BufferOwner::Unprivileged => {
                        "At this end, as root: without it the send buffer cannot exceed the host's maxima. At the other \
                         end: no."
                    }
                },
            ),
            (Direction::Send, _, true) => Outlook::new(
                Effect::Nothing,
                Effect::Buffer,
                "At the other end, if its receive buffer is what bounds the window. At this end: no.",
            ),
            (Direction::Receive, _, true) => match self.receive {
                BufferOwner::Sobas => Outlook::new(
                    Effect::AtWork,
                    Effect::Nothing,
                    "It is at work here: the window is held at what the path carries.",
                ),
                BufferOwner::Application => Outlook::new(
                    Effect::Buffer,
                    Effect::Nothing,
                    "At this end, with --override: the program's own receive buffer is too small for the path. At the \
                     other end: no.",
                ),
                BufferOwner::Kernel | BufferOwner::Policy | BufferOwner::Unprivileged => Outlook::new(
                    Effect::Buffer,
                    Effect::Nothing,
                    "At this end: the receive window is used up in every round trip. At the other end: no.",
                ),
            },
            _ => return None,
        })
    }

    /// Returns the outlook if a queue stands.
    fn queue_outlook(&self, queue: f64) -> Outlook {
        if self.roof == Roof::ForeignQueue {
            return Outlook::nothing("No: a lower rate did not shorten the queue, so others fill it.");
        }
        if self.fit_acts() {
            let sentence = "It is at work here. A queue that stands all the same is filled by others.";
            return Outlook::new(Effect::AtWork, Effect::Nothing, sentence);
        }
        let bytes = (queue * self.goodput_bps as f64 / 8.0) as u64;
        let less = format!("{:.0} ms of delay and {} in the queue", queue * 1e3, Bytes(bytes).readable());
        let drops = if self.lost().is_some() { ", and the drops" } else { "" };
        let whose = "if the connection fills the queue itself";
        let (here, sentence) = match (self.direction, self.paces_itself) {
            (Direction::Send, true) => (
                Effect::Nothing,
                format!(
                    "At the other end: {less} less{drops}, at the same rate, {whose}. At this end: no, for its \
                     congestion control paces by itself."
                ),
            ),
            (Direction::Send, false) => (
                Effect::Queue,
                format!("At this end or at the other: {less} less{drops}, at the same rate, {whose}."),
            ),
            (Direction::Receive, _) => (
                Effect::Queue,
                format!(
                    "At this end: {less} less{drops}, at the same rate, {whose}. At the other, too, if it sends by CUBIC or \
                     Reno."
                ),
            ),
        };
        let outlook = Outlook::new(here, Effect::Queue, &sentence);
        Outlook { queue_s: Some(queue), queue_bytes: Some(bytes), ..outlook }
    }

    /// Returns the outlook if the path is the limit and no queue stands.
    fn path_outlook(&self) -> Outlook {
        if self.fit_acts() && (self.roof == Roof::Limits || self.direction == Direction::Receive) {
            let sentence = "It is at work here: no queue stands. At the other end: no.";
            return Outlook::new(Effect::AtWork, Effect::Nothing, sentence);
        }
        if self.roof == Roof::Bound {
            return Outlook::nothing("No, at neither end: its rate is held to a bound (SO_MAX_PACING_RATE).");
        }
        if self.lost().is_none() {
            return Outlook::nothing("No, at neither end: the path is the limit, and no queue stands.");
        }
        if self.fit_acts() {
            let sentence = "It is at work here. Losses all the same may come from the link or from others.";
            return Outlook::new(Effect::AtWork, Effect::Nothing, sentence);
        }
        let here = if self.paces_itself { Effect::Nothing } else { Effect::Drops };
        let sides = if self.paces_itself { "At the other end" } else { "At this end or at the other" };
        let sentence = &if self.retransmitted_now == Some(0) {
            format!(
                "{sides}, from the start of a connection: the losses came earlier, as when slow start overflows a short \
                 queue. Now: no."
            )
        } else {
            format!(
                "{sides}, if a short queue overflows: its drops would go. Losses by the link's quality stay."
            )
        };
        Outlook::new(here, Effect::Drops, sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::case;
    use super::*;

    /// Returns a CUBIC sender that the path limits, 80 Mbit/s over 40 ms.
    fn path() -> Case {
        case(Limited { congestion_window: 1.0, ..Limited::default() })
    }

    #[test]
    fn each_case_has_its_effect_at_either_end() {
        use Effect::{AtWork, Buffer, Drops, Nothing, Queue, Unknown};
        let buffer = case(Limited { send_buffer: 1.0, ..Limited::default() });
        let window = case(Limited { receive_window: 1.0, ..Limited::default() });
        let receives = Case { direction: Direction::Receive, ..window };
        let arrives = case(Limited { path: 1.0, ..Limited::default() });
        let arrives = Case { direction: Direction::Receive, ..arrives };
        let queue = Case { queue_s: Some(0.047), ..path() };
        for (case, effects, words) in [
            (path(), (Nothing, Nothing), "no queue stands"),
            (Case { min_rtt_s: 0.0005, ..queue }, (Nothing, Nothing), "so short"),
            (Case { goodput_bps: 0, ..queue }, (Unknown, Unknown), "too little"),
            (Case { limited: None, ..queue }, (Unknown, Unknown), "too little"),
            (case(Limited { application: 1.0, ..Limited::default() }), (Nothing, Nothing), "that sends"),
            (case(Limited { reader: 0.9, ..Limited::default() }), (Nothing, Nothing), "that reads"),
            (Case { memory_short: true, ..queue }, (Nothing, Nothing), "memory"),
            (buffer, (Buffer, Nothing), "At this end: the send buffer"),
            (Case { send: BufferOwner::Application, ..buffer }, (Buffer, Nothing), "--override"),
            (Case { send: BufferOwner::Sobas, ..buffer }, (Buffer, Nothing), "with more --memory"),
            (Case { send: BufferOwner::Policy, ..buffer }, (Buffer, Nothing), "where --memory suffices"),
            (Case { send: BufferOwner::Unprivileged, ..buffer }, (Buffer, Nothing), "as root"),
            (
                Case { send: BufferOwner::Sobas, has_fit: true, roof: Roof::Limits, ..buffer },
                (AtWork, Nothing),
                "at work",
            ),
            (window, (Nothing, Buffer), "At the other end"),
            (receives, (Buffer, Nothing), "At this end: the receive window"),
            (Case { receive: BufferOwner::Application, ..receives }, (Buffer, Nothing), "--override"),
            (Case { receive: BufferOwner::Sobas, has_fit: true, ..receives }, (AtWork, Nothing), "at work"),
            (queue, (Queue, Queue), "47 ms of delay and 470.0 KB in the queue less, at the same rate"),
            (Case { retransmits: 20, ..queue }, (Queue, Queue), "and the drops"),
            (Case { paces_itself: true, ..queue }, (Nothing, Queue), "paces by itself"),
            (Case { roof: Roof::ForeignQueue, ..queue }, (Nothing, Nothing), "others fill it"),
            (Case { has_fit: true, ..queue }, (AtWork, Nothing), "filled by others"),
            (Case { has_fit: true, paces_itself: true, ..queue }, (Nothing, Queue), "paces by itself"),
            (Case { has_fit: true, retransmits: 20, ..path() }, (AtWork, Nothing), "from the link or"),
            (Case { queue_s: Some(0.047), ..buffer }, (Queue, Queue), "47 ms of delay"),
            (Case { queue_s: Some(0.047), ..receives }, (Queue, Queue), "CUBIC or Reno"),
            (Case { queue_s: Some(0.047), ..arrives }, (Queue, Queue), "At this end"),
            (arrives, (Nothing, Nothing), "no queue stands"),
            (Case { roof: Roof::Bound, ..path() }, (Nothing, Nothing), "held to a bound"),
            (Case { roof: Roof::Bound, ..buffer }, (Nothing, Nothing), "held to a bound"),
            (Case { retransmits: 20, ..path() }, (Drops, Drops), "if a short queue overflows"),
            (Case { retransmits: 20, retransmitted_now: Some(0), ..path() }, (Drops, Drops), "came earlier"),
            (Case { retransmits: 20, paces_itself: true, ..path() }, (Nothing, Drops), "At the other end"),
        ] {
            let outlook = case.outlook();
            assert_eq!((outlook.here, outlook.there), effects, "{case:?}: {outlook:?}");
            assert!(outlook.sentence.contains(words), "{words}: {}", outlook.sentence);
            // At both ends fit is known to do no more than at one (docs/algorithms/fit.md).
            let (here, there) = effects;
            assert_eq!(outlook.both, if here == Nothing { there } else { here }, "{outlook:?}");
            let has_effect = !matches!(outlook.both, Nothing | Unknown);
            assert_eq!(outlook.sentence.contains("At both: no more"), has_effect, "{outlook:?}");
        }
    }

    #[test]
    fn both_ends_do_what_the_better_one_does() {
        let queue = Case { queue_s: Some(0.047), ..path() };
        let sentence = |case: Case| case.outlook().sentence;
        assert!(sentence(queue).ends_with("fills the queue itself. At both: no more than at one."));
        let paces = Case { paces_itself: true, ..queue };
        assert!(sentence(paces).ends_with("paces by itself. At both: no more than at the other."));
        let window = case(Limited { receive_window: 1.0, ..Limited::default() });
        assert!(sentence(window).ends_with("At this end: no. At both: no more than at the other."));
        let buffer = case(Limited { send_buffer: 1.0, ..Limited::default() });
        assert!(sentence(buffer).ends_with("At the other end: no. At both: no more than at this one."));
        assert!(sentence(Case { has_fit: true, ..queue }).ends_with("by others. At both: no more."));
    }

    #[test]
    fn what_would_go_is_told_in_figures() {
        let outlook = Case { queue_s: Some(0.047), ..path() }.outlook();
        assert_eq!((outlook.queue_s, outlook.queue_bytes), (Some(0.047), Some(470_000)));
        let json = serde_json::to_value(&outlook).unwrap();
        assert_eq!(
            (&json["here"], &json["there"], &json["both"]),
            (&"queue".into(), &"queue".into(), &"queue".into())
        );
        assert_eq!(path().outlook().queue_bytes, None);
    }
}
