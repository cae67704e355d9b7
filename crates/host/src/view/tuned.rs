//! The settings that bufwise has made for a connection, and fit's findings about its sender.

use std::fmt;

use bufwise_bpf::{FitPhase as EnginePhase, FitReason as EngineReason, FitState, FlowState};
use bufwise_policy::PolicyKind;
use bufwise_units::Rate;
use serde::{Deserialize, Serialize};

use super::PolicyNames;
use crate::judge::Roof;

/// Part of a rate bound, in eighths, from which on the bound counts as limiting the sender: delivery rates err by
/// some percent.
const USED_EIGHTHS: u64 = 7;

/// Sizes and rates that bufwise has set; `null`: left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// Limit of the send buffer (memory), bytes.
    pub send_buffer_bytes: Option<u64>,
    /// Number of changes of that limit.
    pub send_changes: u32,
    /// Bound of the window (payload), bytes.
    pub receive_window_bytes: Option<u64>,
    /// Limit of the receive buffer (memory), bytes.
    pub receive_buffer_bytes: Option<u64>,
    /// Number of changes of the window's bound.
    pub receive_changes: u32,
    /// Bound of the sending rate, bit/s: fit's roof, or the rate that keeps the connection within its share of the
    /// memory.
    pub rate_bound_bps: Option<u64>,
    /// Bound of data written and not sent, bytes: below a roof more would only wait.
    pub unsent_bytes: Option<u64>,
    /// Findings of fit at the sender; `null` under other policies.
    pub fit: Option<Fit>,
}

/// Findings of fit at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// The phase of the rule.
    pub phase: FitPhase,
    /// Why there is no roof; `null` if there is one.
    pub reason: Option<FitReason>,
    /// The roof as decided, bit/s; a dry run does not set it.
    pub roof_bps: Option<u64>,
    /// Estimate of the path's capacity, bit/s.
    pub capacity_bps: Option<u64>,
    /// Number of times that the roof descended.
    pub descents: u32,
    /// Number of times that the connection was left to the kernel (phase Open began).
    #[serde(rename = "left_alone")]
    pub opened: u32,
}

/// The phase of fit's rule at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FitPhase {
    /// The kernel's slow start, measured.
    #[serde(rename = "starting")]
    Start,
    /// Slow start below the first roof.
    #[serde(rename = "ramping")]
    Ramp,
    /// The roof follows the path's measured capacity.
    #[serde(rename = "following")]
    Follow,
    /// No roof for now: the connection is left to the kernel.
    #[serde(rename = "left-alone")]
    Open,
}

/// Why fit sets no roof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FitReason {
    /// The path's capacity has not been seen yet.
    NoEvidence,
    /// The round trip is too short to judge.
    ShortRoundTrip,
    /// The congestion control is neither CUBIC nor Reno.
    PacesItself,
    /// The queue on the path is not the connection's own.
    ForeignQueue,
}

impl Tuned {
    /// Returns the settings of a connection that these policies tune.
    pub fn of(flow: &FlowState, policy: &PolicyNames) -> Self {
        Self {
            send_buffer_bytes: flow.set_send_buffer.map(|size| size.0),
            send_changes: flow.send_changes,
            receive_window_bytes: flow.set_window.map(|size| size.0),
            receive_buffer_bytes: flow.set_receive_buffer.map(|size| size.0),
            receive_changes: flow.window_changes,
            rate_bound_bps: flow.set_pacing.map(Rate::bits_per_sec),
            unsent_bytes: flow.set_unsent.map(|size| size.0),
            fit: (policy.send == PolicyKind::Fit.name()).then(|| Fit::from(&flow.fit)),
        }
    }

    /// Returns fit's findings if its roof is the bound of the rate; a lower bound is due to the share of the memory.
    pub fn roof(&self) -> Option<&Fit> {
        let bound = self.rate_bound_bps?;
        self.fit.as_ref().filter(|fit| fit.roof_bps.is_some_and(|roof| is_used(roof, bound)))
    }

    /// Describes the source of the rate's bound: `following; 12 descents`.
    pub fn bound_by(&self) -> String {
        self.roof().map_or_else(|| "its share of the memory".to_owned(), Fit::to_string)
    }

    /// Returns what fit does with a sender that moves data at this rate (bit/s).
    pub fn judged(&self, moved: u64) -> Roof {
        if self.roof().is_some() && self.rate_bound_bps.is_some_and(|bound| is_used(bound, moved)) {
            return Roof::Limits;
        }
        match self.fit.and_then(|fit| fit.reason) {
            Some(FitReason::ForeignQueue) => Roof::ForeignQueue,
            _ => Roof::None,
        }
    }
}

/// Returns whether data moves at least at 7/8 of the bound (both bit/s), so that the bound limits.
pub(super) fn is_used(bound: u64, moved: u64) -> bool {
    u128::from(moved) * 8 >= u128::from(bound) * u128::from(USED_EIGHTHS)
}

impl Fit {
    /// Describes in one line why the sender is left to the kernel, if it is; `congestion_control` is the name of its
    /// congestion control (`""`: unknown).
    pub fn left_to_kernel(&self, congestion_control: &str) -> Option<String> {
        self.why(congestion_control).map(|why| format!("fit leaves it to the kernel: {why}"))
    }

    /// Returns only the reason.
    pub fn why(&self, congestion_control: &str) -> Option<String> {
        Some(match self.reason? {
            FitReason::NoEvidence => "it has not seen the path's capacity yet".to_owned(),
            FitReason::ShortRoundTrip => "the round trip is too short".to_owned(),
            FitReason::ForeignQueue => "the queue on the path is not its own".to_owned(),
            FitReason::PacesItself => match congestion_control {
                "" => "its congestion control is neither cubic nor reno".to_owned(),
                name if name.starts_with("bbr") => format!("{name} paces itself"),
                name => format!("{name} is neither cubic nor reno"),
            },
        })
    }
}

/// Shows phase and counts: `following; 12 descents`.
impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.phase {
            FitPhase::Start => "starting",
            FitPhase::Ramp => "ramping",
            FitPhase::Follow => "following",
            FitPhase::Open => "left alone",
        })?;
        match self.descents {
            0 => {}
            1 => f.write_str("; 1 descent")?,
            many => write!(f, "; {many} descents")?,
        }
        match self.opened {
            0 => Ok(()),
            1 => f.write_str("; once left to the kernel"),
            many => write!(f, "; {many} times left to the kernel"),
        }
    }
}

impl From<&FitState> for Fit {
    fn from(state: &FitState) -> Self {
        Self {
            phase: match state.phase {
                EnginePhase::Start => FitPhase::Start,
                EnginePhase::Ramp => FitPhase::Ramp,
                EnginePhase::Follow => FitPhase::Follow,
                EnginePhase::Open => FitPhase::Open,
            },
            reason: state.reason.map(|reason| match reason {
                EngineReason::NoEvidence => FitReason::NoEvidence,
                EngineReason::ShortRoundTrip => FitReason::ShortRoundTrip,
                EngineReason::PacesItself => FitReason::PacesItself,
                EngineReason::ForeignQueue => FitReason::ForeignQueue,
            }),
            roof_bps: state.roof.map(Rate::bits_per_sec),
            capacity_bps: state.capacity.map(Rate::bits_per_sec),
            descents: state.descents,
            opened: state.opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::tests::flow;

    /// Returns a sender in phase Follow, at 80 Mbit/s.
    fn following() -> FlowState {
        let state = FitState {
            phase: EnginePhase::Follow,
            roof: Some(Rate(10_000_000)),
            capacity: Some(Rate(10_100_000)),
            descents: 12,
            ..FitState::default()
        };
        FlowState { set_pacing: state.roof, fit: state, ..flow(1, 0) }
    }

    fn policy(send: &str) -> PolicyNames {
        PolicyNames { send: send.to_owned(), receive: "kernel".to_owned() }
    }

    fn open(reason: EngineReason) -> Tuned {
        let fit = FitState { phase: EnginePhase::Open, reason: Some(reason), ..FitState::default() };
        Tuned::of(&FlowState { fit, ..flow(1, 0) }, &policy("fit"))
    }

    #[test]
    fn a_roof_is_shown_in_bits_per_second_under_fit_alone() {
        let tuned = Tuned::of(&following(), &policy("fit"));
        assert_eq!(tuned.rate_bound_bps, Some(80_000_000));
        let fit = tuned.fit.unwrap();
        assert_eq!((fit.roof_bps, fit.capacity_bps), (Some(80_000_000), Some(80_800_000)));
        assert_eq!(fit.to_string(), "following; 12 descents");
        let once = Fit { descents: 1, opened: 1, ..fit };
        assert_eq!(once.to_string(), "following; 1 descent; once left to the kernel");
        assert_eq!(fit.left_to_kernel("cubic"), None);
        assert_eq!(Tuned::of(&following(), &policy("abt")).fit, None);
    }

    #[test]
    fn the_reason_for_leaving_it_to_the_kernel_is_one_line() {
        for (reason, name, words) in [
            (EngineReason::NoEvidence, "cubic", "it has not seen the path's capacity yet"),
            (EngineReason::ShortRoundTrip, "cubic", "the round trip is too short"),
            (EngineReason::ForeignQueue, "cubic", "the queue on the path is not its own"),
            (EngineReason::PacesItself, "bbr", "bbr paces itself"),
            (EngineReason::PacesItself, "vegas", "vegas is neither cubic nor reno"),
            (EngineReason::PacesItself, "", "its congestion control is neither cubic nor reno"),
        ] {
            let line = open(reason).fit.unwrap().left_to_kernel(name);
            assert_eq!(line, Some(format!("fit leaves it to the kernel: {words}")));
        }
    }

    #[test]
    fn a_roof_limits_a_sender_that_moves_what_it_allows() {
        let tuned = Tuned::of(&following(), &policy("fit"));
        assert_eq!((tuned.judged(70_000_000), tuned.judged(69_000_000)), (Roof::Limits, Roof::None));
        let shared = FlowState { set_pacing: Some(Rate(5_000_000)), ..following() };
        let shared = Tuned::of(&shared, &policy("fit"));
        assert_eq!((shared.roof(), shared.judged(40_000_000)), (None, Roof::None), "the share limits");
        let dry = Tuned::of(&FlowState { set_pacing: None, ..following() }, &policy("fit"));
        assert_eq!((dry.roof(), dry.judged(80_000_000)), (None, Roof::None));
        assert_eq!(open(EngineReason::ForeignQueue).judged(0), Roof::ForeignQueue);
        assert_eq!(open(EngineReason::NoEvidence).judged(0), Roof::None);
    }

    #[test]
    fn it_travels_as_json_and_is_read_from_an_older_daemon() {
        let tuned = Tuned::of(&following(), &policy("fit"));
        let text = serde_json::to_string(&tuned).unwrap();
        assert!(text.contains(r#""phase":"following","reason":null"#), "{text}");
        assert_eq!(serde_json::from_str::<Tuned>(&text).unwrap(), tuned);
        let text = serde_json::to_string(&open(EngineReason::ForeignQueue)).unwrap();
        assert!(text.contains(r#""phase":"left-alone","reason":"foreign-queue""#), "{text}");
        let older = r#"{"send_buffer_bytes":1,"send_changes":2,"receive_window_bytes":null,
            "receive_buffer_bytes":null,"receive_changes":0}"#;
        let read: Tuned = serde_json::from_str(older).unwrap();
        assert_eq!((read.send_changes, read.rate_bound_bps, read.fit), (2, None, None));
    }
}
