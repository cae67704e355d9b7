//! SOBAS: stops growing the window when the path is full.
//!
//! Problem: with large buffers a flow grows until it overflows the tight link, and then pays with a halved window or
//! with time-outs. The receiver can prevent that: it sees when its rate no longer grows, and limits the window it
//! advertises to what the path holds at that moment.
//! Source: Prasad 2004, sections IV and V and the appendix (figure 8 is the diagram below).
//! Terms: `S` is the window limit; `R` the received rate over windows of `2 * T`; `T` the running average of the
//! round-trip time, from probes; `C'` the rough capacity from packet trains; a path is *congested* when more than one
//! of the last 100 probes is lost.
//!
//! ```text
//!  1 Estimating   --- C' known: S = 1.2 * C' * T ------------------> 2
//!  2 SlowStart    --- rate drop -----------------------------------> 3
//!  2, 3           --- buffer-limited (R * T close to S): S += mss -> 4
//!  4 BufferLimited - each T: S += mss -----------------------------> 4
//!  2, 3, 4        --- flat-rate or const-rate-drop: S = R * T -----> 5 Final
//!  2, 3, 4        --- probes lost: S = maximum --------------------> 6 Congested
//! ```
//!
//! A reading is judged in this order: congestion, const-rate-drop, buffer-limited (2 and 3 only), flat-rate, rate drop
//! (2 only). Buffer-limited comes before flat-rate because the rate of a flow that fills its window is flat for that
//! reason, which says nothing of the path. The readings are forgotten on entering state 4. So in state 4 all five
//! readings are taken while `S` grows, and a flat rate is that of the path. `published.rs` has our further conditions on
//! a flat rate.
//!
//! [`Config::published`] is the paper's rule without these conditions, for comparing.
//!
//! Three options are ours, all off by default. *continuous* keeps watching after the decision and starts anew when the
//! path has changed. *pacing* (`paced.rs`) limits the sender's rate as well as its window, and always keeps watching.
//! *unloaded_rtt* is for a `T` that never contains a queue. Continuous with an unloaded `T` and without an estimate is
//! what runs in the kernel: `crates/bpf/src/bpf/sobas.h` has the same arithmetic, operation by operation.
//!
//! Rates, times and thresholds are integers: bytes per second, microseconds, ratios. (Only `overflow.rs` uses floating
//! point: it explains, and decides nothing.)
//! Properties kept: a congested path ends at the maximum; `S` never falls before the decision; `S` is never below two
//! segments; as published, 5 and 6 are final.

mod detectors;
mod flights;
mod overflow;
mod paced;
mod pacer;
mod published;
mod round_trips;
#[cfg(test)]
mod tests;

pub use overflow::{Acks, TightLink};
pub use published::SobasDecision;

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};
use detectors::{LARGEST_SEGMENT, LONGEST, MOST_RATE, Meter, Reading, Series};
use flights::Flights;
use paced::Search;
use pacer::Pacer;
use round_trips::RoundTrips;

/// Most of the last 100 probes that may be lost on a path without congestion (Prasad 2004, section IV-B).
const PROBES_MAY_BE_LOST: u32 = 1;
/// Shortest rate window: probes are sent every 10 ms (Prasad 2004, section IV-B), so `T` has no finer resolution.
const SHORTEST_WINDOW: Micros = Micros::from_millis(10);
/// Smallest limit, in segments: below two a receiver that delays acknowledgements waits for its timer.
const SMALLEST_WINDOW_SEGMENTS: u64 = 2;
/// Time for which the probes must show congestion before a *paced* flow enters state 6, and no congestion before a
/// *continuous* one leaves it. The last 100 probes, one per 10 ms, cover one second, so a burst of our own losses no longer
/// counts by then.
const PATIENCE: Micros = Micros::from_secs(2);

/// Parameters of SOBAS. The default has the transitions of Prasad 2004 with our conditions on a flat rate, and no upper
/// bound of its own; [`Config::published`] is the paper's rule alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Limits the sender's rate as well as its window (ours; see `docs/algorithms/sobas.md`).
    pub pacing: bool,
    /// Keeps watching after the decision, and starts anew when the path has changed (ours). A paced flow keeps watching
    /// in any case; with this option it also leaves state 6 again, and looks for more rate at least every ten seconds.
    pub continuous: bool,
    /// The round-trip time of the samples is that of the path without a queue, such as the smallest seen. It shows no
    /// queue, so only the rate shows a full path (ours; the kernel's form). It must not be combined with `pacing`, which
    /// needs a round-trip time that shows queues.
    pub unloaded_rtt: bool,
    /// A flat rate or a const-rate-drop decides by itself, and five values are flat by their slope alone: Prasad 2004
    /// without our conditions (`published.rs`).
    pub flat_alone: bool,
    /// The "maximum" of Prasad 2004: the limit on a congested path; [`Bytes::MAX`]: no limit.
    pub max_window: Bytes,
    /// Payload of a full TCP segment over payload of the train packets, which fill the same frame: 1,448 of 1,472 for
    /// Ethernet with timestamps. The capacity of a sample is scaled by it before it is compared with a TCP rate;
    /// `(1, 1)` if the source has already done so.
    pub payload_ratio: (u64, u64),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pacing: false,
            continuous: false,
            unloaded_rtt: false,
            flat_alone: false,
            max_window: Bytes::MAX,
            payload_ratio: (1_448, 1_472),
        }
    }
}

impl Config {
    /// Returns SOBAS as published: `S = 1.2 * C' * T` with the packet trains' rate as it is, one decision, no pacing,
    /// and none of our conditions.
    #[must_use]
    pub fn published() -> Self {
        Self { flat_alone: true, payload_ratio: (1, 1), ..Self::default() }
    }
}

/// The states of Prasad 2004, figure 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// 1: waits for the capacity estimate, or for data if there is none.
    Estimating,
    /// 2: the initial slow start.
    SlowStart,
    /// 3: after a rate drop that said nothing of the path; loss recovery and congestion avoidance.
    Recovery,
    /// 4: the own limit (paced: the rate limit) holds the flow back, and grows until the path does.
    BufferLimited,
    /// 5: the path is full; the limit is what it holds.
    Final,
    /// 6: other flows fill the path; a limit could only hurt.
    Congested,
}

/// SOBAS for one transfer, at its receiver.
///
/// It takes a sample every few milliseconds, at least once per round trip, and cuts the time into windows itself. It
/// reads `bytes_received`, `probe_rtt` (else `rcv_rtt`, else `srtt`), `probes_lost`, `capacity`, `mss`, and, with
/// pacing, `rcv_out_of_order`.
///
/// ```
/// use bufwise_policy::{Policy, Sobas, sobas};
/// use bufwise_units::{Bytes, Micros, Rate, Sample};
///
/// let mut sobas = Sobas::new(sobas::Config { payload_ratio: (1, 1), ..Default::default() });
/// let (capacity, probe_rtt) = (Rate(12_500_000), Micros::from_millis(40));
/// sobas.observe(&Sample { capacity, probe_rtt, ..Sample::default() }, Micros::ZERO);
/// assert_eq!(sobas.state(), sobas::State::SlowStart);
/// // 1.2 times what the packet trains say that the path holds.
/// assert_eq!(sobas.window(), Bytes(600_000));
/// ```
#[derive(Clone, Debug)]
pub struct Sobas {
    config: Config,
    state: State,
    /// The window limit `S`.
    window: Bytes,
    meter: Meter,
    series: Series,
    /// Largest `R` since the path last changed; a drop is measured against it.
    peak: Rate,
    /// `C'` in TCP payload; zero: none, or the estimate of a former path.
    estimate: Rate,
    /// When `S` last grew, in state 4.
    grown_at: Micros,
    /// Whether the probes show congestion, and since when.
    congestion: (bool, Micros),
    decided: SobasDecision,
    path: RoundTrips,
    pacer: Pacer,
    search: Search,
    flights: Flights,
}

/// Input of a step: the window that closed, and the path as the sample shows it.
#[derive(Clone, Copy, Debug)]
struct View {
    reading: Reading,
    rtt: Micros,
    mss: Bytes,
    /// `C'` in TCP payload; zero: none.
    estimate: Rate,
    /// Segments that came out of order so far.
    out_of_order: u64,
}

impl Sobas {
    /// Returns the state of a transfer that has not begun.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Estimating,
            window: config.max_window,
            meter: Meter::default(),
            series: Series::default(),
            peak: Rate::ZERO,
            estimate: Rate::ZERO,
            grown_at: Micros::ZERO,
            congestion: (false, Micros::ZERO),
            decided: SobasDecision::default(),
            path: RoundTrips::default(),
            pacer: Pacer::default(),
            search: Search::default(),
            flights: Flights::default(),
        }
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the window limit `S`, in bytes.
    #[must_use]
    pub fn window(&self) -> Bytes {
        self.window
    }

    /// Returns the largest rate of a window since the path last changed.
    #[must_use]
    pub fn peak(&self) -> Rate {
        self.peak
    }

    /// Returns how many readings the detectors hold, 0 to 5.
    #[must_use]
    pub fn readings(&self) -> usize {
        self.series.len()
    }

    /// Returns the measurements on which the last decision (state 5) rested; all zero before the first.
    #[must_use]
    pub fn decided(&self) -> SobasDecision {
        self.decided
    }

    /// Returns the rate limit, if pacing is on and a rate is known.
    #[must_use]
    pub fn pacing(&self) -> Option<Rate> {
        self.pacer.rate()
    }

    /// Acts in state 1: waits for `C'`; without it the first data begin slow start without a limit. An estimate that comes during
    /// this slow start still sets the limit.
    fn start(&mut self, sample: &Sample, rtt: Micros, now: Micros) {
        let late = self.state == State::SlowStart && self.window == self.config.max_window;
        if self.state != State::Estimating && !late {
            return;
        }
        let mss = segment(sample);
        if sample.capacity.0 > 0 && self.pacer.rate().is_none() {
            self.state = State::SlowStart;
            self.grown_at = now;
            let estimate = self.estimate_in(sample);
            self.estimate = estimate;
            if self.config.pacing {
                self.start_paced(estimate, mss);
            } else {
                self.window = self.initial_window(estimate, rtt, mss);
            }
        } else if sample.bytes_received > Bytes::ZERO {
            self.state = State::SlowStart;
        }
    }

    fn estimate_in(&self, sample: &Sample) -> Rate {
        let (tcp, train) = self.config.payload_ratio;
        sample.capacity.scaled(tcp, train).min(MOST_RATE)
    }

    /// Takes the number of lost probes; returns true when they show congestion (paced: for [`PATIENCE`]).
    fn is_congested(&mut self, probes_lost: u32, now: Micros) -> bool {
        let lossy = probes_lost > PROBES_MAY_BE_LOST;
        if lossy != self.congestion.0 {
            self.congestion = (lossy, now);
        }
        // As published, the first sign decides. A paced flow may still be finding its rate.
        lossy && (!self.config.pacing || now.since(self.congestion.1) >= PATIENCE)
    }

    /// Enters state 6, and leaves it if continuous; no other function does.
    fn follow_congestion(&mut self, congested: bool, now: Micros) {
        let watching = match self.state {
            State::SlowStart | State::Recovery | State::BufferLimited => true,
            State::Final => self.config.continuous || self.config.pacing,
            State::Estimating | State::Congested => false,
        };
        if congested && watching {
            self.state = State::Congested;
            self.window = self.config.max_window;
            self.pacer.release();
        } else if self.state == State::Congested
            && self.config.continuous
            && !self.congestion.0
            && now.since(self.congestion.1) >= PATIENCE
        {
            self.forget_the_path();
        }
    }

    fn clamped(&self, window: Bytes, mss: Bytes) -> Bytes {
        window.max(mss.times(SMALLEST_WINDOW_SEGMENTS)).min(self.config.max_window)
    }

    fn decision(&self) -> Decision {
        Decision { send_buffer: None, receive_window: Some(self.window), pacing: self.pacer.rate() }
    }
}

/// Returns the payload of a full segment, capped to what products can hold.
fn segment(sample: &Sample) -> Bytes {
    sample.mss_or_default().min(LARGEST_SEGMENT)
}

impl Policy for Sobas {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let known = [sample.probe_rtt, sample.rcv_rtt, sample.srtt].into_iter().find(|t| *t > Micros::ZERO);
        let Some(rtt) = known else { return self.decision() };
        self.path.see(rtt);
        self.start(sample, rtt, now);
        let congested = self.is_congested(sample.probes_lost, now);
        self.follow_congestion(congested, now);
        let mss = segment(sample);
        if self.config.pacing {
            self.follow_base(mss);
            self.follow_flights(sample, rtt, mss, now);
        } else {
            self.grow(rtt, mss, now);
        }
        let length = rtt.times(2).min(LONGEST).max(SHORTEST_WINDOW);
        if let Some(reading) = self.meter.observe(sample.bytes_received, length, now) {
            self.series.push(reading);
            let mean_rtt = self.path.take(reading);
            let rtt = if self.config.pacing { mean_rtt } else { rtt };
            let estimate = self.estimate_in(sample);
            let view = View { reading, rtt, mss, estimate, out_of_order: sample.rcv_out_of_order };
            if self.config.pacing { self.step_paced(&view) } else { self.step(&view) }
        }
        self.decision()
    }
}
