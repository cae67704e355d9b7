//! The state of fit for one sender, from `struct bw_fit`.

use bufwise_units::{CongestionControl, Micros, Rate};

use crate::abi::bw_flow;
use crate::flow::number_of;

/// `BW_FIT_SHORTEST`: in shorter round trips the hosts' own delays outweigh the path's.
const SHORTEST: Micros = Micros(2_000);
/// `tcpi_min_rtt` before the first measurement.
const NO_RTT: u32 = u32::MAX;

/// The phase of the rule (`enum bw_fit_phase`; `docs/algorithms/fit.md` describes them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FitPhase {
    /// The kernel's slow start; trains of acknowledgements are measured.
    #[default]
    Start,
    /// Phase Ramp: slow start below the first roof.
    Ramp,
    /// Phase Follow: the roof follows the path's measured capacity.
    Follow,
    /// Phase Open: no roof for 2 to 64 s, then another attempt.
    Open,
}

/// Why fit sets no roof for a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FitReason {
    /// No evidence of the path's capacity yet.
    NoEvidence,
    /// The smallest round trip is too short to judge.
    ShortRoundTrip,
    /// The congestion control is neither CUBIC nor Reno, and paces the connection itself.
    PacesItself,
    /// The queue on the path did not shrink with the roof.
    ForeignQueue,
}

/// The findings and decisions of fit. If another policy sizes the sender, they are those of a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FitState {
    /// The phase of the rule.
    pub phase: FitPhase,
    /// Largest rate at which the connection may send, as decided, bytes per second; `None`: no bound.
    pub roof: Option<Rate>,
    /// Estimate of the path's capacity, payload bytes per second.
    pub capacity: Option<Rate>,
    /// Number of times that the roof descended.
    pub descents: u32,
    /// Number of times that the phase Open began.
    pub opened: u32,
    /// Why there is no roof; `None` if there is one.
    pub reason: Option<FitReason>,
}

impl FitState {
    pub(crate) fn from_kernel(flow: &bw_flow) -> Self {
        let fit = &flow.fit;
        let known = |rate: u64| (rate != 0).then_some(Rate(rate));
        Self {
            phase: phase(fit.phase),
            roof: known(fit.roof),
            capacity: known(fit.capacity),
            descents: fit.descents,
            opened: fit.opened,
            reason: (fit.roof == 0).then(|| reason(flow)),
        }
    }
}

fn phase(number: u32) -> FitPhase {
    match number {
        0 => FitPhase::Start,
        1 => FitPhase::Ramp,
        2 => FitPhase::Follow,
        _ => FitPhase::Open,
    }
}

/// Returns why there is no roof, with tests in the order of `bw_fit_observe()`; the congestion control is known from
/// the first sample on.
fn reason(flow: &bw_flow) -> FitReason {
    let is_measured = flow.samples > 0 && !matches!(flow.min_rtt, 0 | NO_RTT);
    if is_measured && Micros(flow.min_rtt.into()) < SHORTEST {
        FitReason::ShortRoundTrip
    } else if is_measured && flow.congestion_control == number_of(CongestionControl::Other) {
        FitReason::PacesItself
    } else if phase(flow.fit.phase) == FitPhase::Open && flow.fit.opened > 0 {
        FitReason::ForeignQueue
    } else {
        FitReason::NoEvidence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::bw_fit;
    use crate::config::{Config, SendRule};
    use crate::rules;

    /// Returns a CUBIC sender 40 ms from its peer, of which fit has no findings yet.
    fn sender() -> bw_flow {
        bw_flow { samples: 1, min_rtt: 40_000, srtt: 40_000, congestion_control: 2, ..bw_flow::default() }
    }

    fn reason_of(flow: &bw_flow) -> Option<FitReason> {
        FitState::from_kernel(flow).reason
    }

    #[test]
    fn a_roof_is_shown_with_its_phase_and_needs_no_reason() {
        for (number, phase) in [(1, FitPhase::Ramp), (2, FitPhase::Follow)] {
            let fit = bw_fit {
                phase: number,
                roof: 11_775_000,
                capacity: 12_000_000,
                descents: 12,
                opened: 1,
                ..bw_fit::default()
            };
            let expected = FitState {
                phase,
                roof: Some(Rate(11_775_000)),
                capacity: Some(Rate(12_000_000)),
                descents: 12,
                opened: 1,
                reason: None,
            };
            assert_eq!(FitState::from_kernel(&bw_flow { fit, ..sender() }), expected);
        }
    }

    #[test]
    fn without_a_roof_the_reason_is_told() {
        let open = |opened| bw_fit { phase: 3, opened, ..bw_fit::default() };
        assert_eq!(reason_of(&sender()), Some(FitReason::NoEvidence));
        assert_eq!(reason_of(&bw_flow { fit: open(1), ..sender() }), Some(FitReason::ForeignQueue));
        // Adopted in the middle of its transfer: fit first measures the delivery.
        assert_eq!(reason_of(&bw_flow { fit: open(0), ..sender() }), Some(FitReason::NoEvidence));
        assert_eq!(reason_of(&bw_flow { min_rtt: 300, ..sender() }), Some(FitReason::ShortRoundTrip));
        let bbr = bw_flow { congestion_control: 0, ..sender() };
        assert_eq!(reason_of(&bbr), Some(FitReason::PacesItself));
    }

    #[test]
    fn before_the_first_sample_nothing_is_known_of_round_trip_and_congestion_control() {
        for min_rtt in [0, NO_RTT] {
            let flow = bw_flow { min_rtt, congestion_control: 0, ..sender() };
            assert_eq!(reason_of(&flow), Some(FitReason::NoEvidence));
        }
        let unseen = FitState { reason: Some(FitReason::NoEvidence), ..FitState::default() };
        assert_eq!(FitState::from_kernel(&bw_flow::default()), unseen);
    }

    #[test]
    fn the_shortest_round_trip_and_the_congestion_controls_are_those_of_the_rule() {
        let config = (&Config { send: SendRule::Fit, ..Config::default() }).into();
        for (min_rtt, congestion_control) in [(1_999, 2), (2_000, 2), (1_999, 1), (2_000, 1), (2_000, 0)] {
            let mut flow = bw_flow { min_rtt, congestion_control, mss: 1_448, cwnd: 10, ..sender() };
            rules::observe_fit(&config, &mut flow, 1_000_000);
            let is_watched = flow.fit.last_at != 0;
            assert_eq!(reason_of(&flow) == Some(FitReason::NoEvidence), is_watched, "{min_rtt}");
        }
    }
}
