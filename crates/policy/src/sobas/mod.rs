//! SOBAS: stop growing the window when the path is full.
//!
//! Problem: with large buffers a flow grows until it overflows the tight link, and then pays with a halved
//! window or with time-outs. The receiver can prevent that: it sees when its rate no longer grows, and
//! limits the window it advertises to what the path holds at that moment.
//! Source: 000, sections IV and V and the appendix (figure 8 is the diagram below).
//! Terms: `S` window limit; `R` received rate over windows of `2 * T`; `T` running average of the round-trip
//! time, from probes; `C'` rough capacity from packet trains; a path is *congested* when more than one of
//! the last 100 probes is lost.
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
//! A reading is judged in this order: congestion, const-rate-drop, buffer-limited (2 and 3 only), flat-rate,
//! rate drop (2 only). Buffer-limited comes before flat-rate because a flow that fills its window is flat for
//! that reason: it says nothing of the path. On the way to 4 the readings are forgotten, so in 4 all five are
//! taken while `S` grows, and a rate that stays flat *then* is the path's. `published.rs` has what more we ask
//! of a flat rate than the paper does.
//!
//! Two things are ours, both off by default: *continuous* watches on after the decision and starts anew
//! when the path has changed; *pacing* (`paced.rs`) bounds the sender's rate as well as its window, and always
//! watches on.
//! Keeps: a congested path ends at the maximum; `S` never falls before the decision; `S` is never below two
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

pub use detectors::{Reading, const_rate_drop, flat_rate};
pub use overflow::{Acks, TightLink};

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};
use detectors::{Meter, Series};
use flights::Flights;
use paced::Search;
use pacer::Pacer;
use published::Decided;
use round_trips::RoundTrips;

/// Lost probes of the last 100 that a path without congestion may show (000, section IV-B).
const PROBES_MAY_BE_LOST: u32 = 1;
/// Shortest rate window: probes come every 10 ms (000, section IV-B), so `T` is no finer than that.
const SHORTEST_WINDOW: Micros = Micros::from_millis(10);
/// Smallest limit: below two segments a delaying receiver waits for its timer.
const SMALLEST_WINDOW_SEGMENTS: u64 = 2;
/// How long probes must be lost, or not, before a *paced* or *continuous* flow believes it. The memory of
/// 100 probes at one per 10 ms lasts a second, so a burst of losses of our own is forgotten by then.
const PATIENCE: Micros = Micros::from_secs(2);

/// What SOBAS is told beforehand. The default is SOBAS as published, with no upper bound of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bound the sender's rate as well as its window (ours; see `docs/algorithms/sobas.md`).
    pub pacing: bool,
    /// Go on watching after the decision, and start anew when the path has changed (ours). A paced flow watches on
    /// in any case; continuous, it leaves state 6 again, and looks for more rate at least every ten seconds.
    pub continuous: bool,
    /// "Maximum" of 000: what a congested path gets; [`Bytes::MAX`]: no limit.
    pub max_window: Bytes,
    /// Payload of a full TCP segment over that of the packets of the capacity trains, which fill the same
    /// frame: 1,448 of 1,472 for Ethernet with timestamps. The capacity of a sample is scaled by it before
    /// it is compared with a TCP rate; `(1, 1)` where the source has done so.
    pub payload_ratio: (u64, u64),
}

impl Default for Config {
    fn default() -> Self {
        Self { pacing: false, continuous: false, max_window: Bytes::MAX, payload_ratio: (1_448, 1_472) }
    }
}

/// The states of 000, figure 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// 1: waiting for the capacity estimate, or for data if there is none.
    Estimating,
    /// 2: the initial slow start.
    SlowStart,
    /// 3: after a rate drop that said nothing of the path: loss recovery, congestion avoidance.
    Recovery,
    /// 4: our own limit holds the flow back (paced: the rate limit), and grows until the path does.
    BufferLimited,
    /// 5: the path is full; the limit is what it holds.
    Final,
    /// 6: others fill the path; a limit could only hurt.
    Congested,
}

/// SOBAS for one transfer, at its receiver.
///
/// Call it every few milliseconds up to every round trip: it cuts its own windows. It reads `bytes_received`,
/// `probe_rtt` (else `rcv_rtt`, else `srtt`), `probes_lost`, `capacity`, `mss`, and, paced, `rcv_out_of_order`.
#[derive(Clone, Debug)]
pub struct Sobas {
    config: Config,
    state: State,
    /// `S`.
    window: Bytes,
    meter: Meter,
    series: Series,
    /// Largest `R` so far, bytes per second: what a drop is measured against.
    peak: f64,
    /// `C'` in TCP payload, bytes per second; zero: none, or of another path.
    estimate: f64,
    /// When `S` last grew, in state 4.
    grown_at: Micros,
    /// Whether the probes show congestion, and since when.
    congestion: (bool, Micros),
    decided: Decided,
    path: RoundTrips,
    pacer: Pacer,
    search: Search,
    flights: Flights,
}

/// What a step looks at: the window that closed, and the path as the sample shows it.
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
    /// A transfer that has not begun.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Estimating,
            window: config.max_window,
            meter: Meter::default(),
            series: Series::default(),
            peak: 0.0,
            estimate: 0.0,
            grown_at: Micros::ZERO,
            congestion: (false, Micros::ZERO),
            decided: Decided::default(),
            path: RoundTrips::default(),
            pacer: Pacer::default(),
            search: Search::default(),
            flights: Flights::default(),
        }
    }

    /// Where the transfer stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The window limit `S`.
    #[must_use]
    pub fn window(&self) -> Bytes {
        self.window
    }

    /// The rate limit, if pacing is on and a rate is known.
    #[must_use]
    pub fn pacing(&self) -> Option<Rate> {
        self.pacer.rate()
    }

    /// State 1: waits for `C'`; without one the first data begin the slow start unlimited.
    fn start(&mut self, sample: &Sample, rtt: Micros, now: Micros) {
        let late = self.state == State::SlowStart && self.window == self.config.max_window;
        if self.state != State::Estimating && !late {
            return;
        }
        let mss = sample.mss_or_default();
        if sample.capacity.0 > 0 && self.pacer.rate().is_none() {
            self.state = State::SlowStart;
            self.grown_at = now;
            let estimate = self.estimate_in(sample);
            self.estimate = estimate.0 as f64;
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
        sample.capacity.scaled(tcp, train)
    }

    /// Follows the probes; true once they have shown congestion for long enough to believe it.
    fn is_congested(&mut self, probes_lost: u32, now: Micros) -> bool {
        let lossy = probes_lost > PROBES_MAY_BE_LOST;
        if lossy != self.congestion.0 {
            self.congestion = (lossy, now);
        }
        // As published the first sight decides. A paced flow may still be finding the rate.
        lossy && (!self.config.pacing || now.since(self.congestion.1) >= PATIENCE)
    }

    /// The only ways into and out of state 6 (out of it only when continuous).
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

impl Policy for Sobas {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let known = [sample.probe_rtt, sample.rcv_rtt, sample.srtt].into_iter().find(|t| *t > Micros::ZERO);
        let Some(rtt) = known else { return self.decision() };
        self.path.see(rtt);
        self.start(sample, rtt, now);
        let congested = self.is_congested(sample.probes_lost, now);
        self.follow_congestion(congested, now);
        let mss = sample.mss_or_default();
        if self.config.pacing {
            self.follow_base(mss);
            self.follow_flights(sample, rtt, mss, now);
        } else {
            self.grow(rtt, mss, now);
        }
        let length = rtt.times(2).max(SHORTEST_WINDOW);
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
