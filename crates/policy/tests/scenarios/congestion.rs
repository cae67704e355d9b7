//! The sender's congestion window: Reno (RFC 5681) and CUBIC (RFC 9438), optionally with HyStart.
//!
//! Windows are in segments. Growth counts acknowledged segments, so delayed acknowledgements do not slow
//! it down (as in Linux); the caller asks for growth only while the window is what limits.

use crate::hystart::{HyStart, Seen};

/// The congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Reno,
    Cubic,
}

impl Algorithm {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
        }
    }
}

/// RFC 6928; segments.
const INITIAL_WINDOW: f64 = 10.0;
/// The smallest window after a loss, segments.
const SMALLEST_THRESHOLD: f64 = 2.0;
/// RFC 9438, section 4.6 and 5.
const CUBIC_BETA: f64 = 0.7;
const CUBIC_C: f64 = 0.4;

/// The congestion window.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    algorithm: Algorithm,
    pub(crate) cwnd: f64,
    /// Infinite during the first slow start.
    pub(crate) ssthresh: f64,
    /// CUBIC: the window before the last reduction.
    w_max: f64,
    epoch: Option<Epoch>,
    hystart: Option<HyStart>,
}

/// CUBIC's congestion avoidance since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: f64,
    /// Seconds until `w_max` is reached again.
    k: f64,
    /// The window that Reno would have reached.
    w_est: f64,
    prior: f64,
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            cwnd: INITIAL_WINDOW,
            ssthresh: f64::INFINITY,
            w_max: 0.0,
            epoch: None,
            hystart: None,
        }
    }

    pub(crate) const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds HyStart.
    pub(crate) fn with_hystart(self) -> Self {
        Self { hystart: Some(HyStart::new()), ..self }
    }

    /// Takes a measured round trip.
    pub(crate) fn see(&mut self, seen: Seen) {
        if self.ssthresh.is_infinite() && self.hystart.as_mut().is_some_and(|hystart| hystart.ends(seen)) {
            self.ssthresh = self.cwnd;
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window by acknowledged segments, if the window was the limit; times in seconds.
    pub(crate) fn grow(&mut self, acked: u64, now: f64, srtt: f64) {
        let mut acked = acked as f64;
        if self.in_slow_start() {
            let step = acked.min(self.ssthresh - self.cwnd);
            self.cwnd += step;
            acked -= step;
        }
        if acked > 0.0 {
            match self.algorithm {
                Algorithm::Reno => self.cwnd += acked / self.cwnd,
                Algorithm::Cubic => self.grow_cubic(acked, now, srtt),
            }
        }
    }

    fn grow_cubic(&mut self, acked: f64, now: f64, srtt: f64) {
        let cwnd = self.cwnd;
        let w_max = self.w_max.max(cwnd);
        let epoch = self.epoch.get_or_insert(Epoch {
            began: now,
            k: ((w_max - cwnd) / CUBIC_C).cbrt(),
            w_est: cwnd,
            prior: w_max,
        });
        let cubic = |t: f64| CUBIC_C * (t - epoch.k).powi(3) + w_max;
        let t = now - epoch.began;
        let alpha =
            if epoch.w_est < epoch.prior { 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA) } else { 1.0 };
        let reached = cubic(t);
        let target = cubic(t + srtt).clamp(cwnd, 1.5 * cwnd);
        epoch.w_est += alpha * acked / cwnd;
        self.cwnd =
            if reached < epoch.w_est { epoch.w_est.max(cwnd) } else { cwnd + (target - cwnd) * acked / cwnd };
    }

    /// Lowers the threshold after a loss; the caller then lowers the window to it.
    pub(crate) fn reduce(&mut self) {
        let beta = match self.algorithm {
            Algorithm::Reno => 0.5,
            Algorithm::Cubic => CUBIC_BETA,
        };
        // Fast convergence (RFC 9438, section 4.7).
        self.w_max = if self.cwnd < self.w_max { self.cwnd * (1.0 + CUBIC_BETA) / 2.0 } else { self.cwnd };
        self.ssthresh = (self.cwnd * beta).max(SMALLEST_THRESHOLD);
        self.epoch = None;
    }

    /// Resets the window to one segment, after the retransmission timer has fired.
    pub(crate) fn restart(&mut self) {
        self.cwnd = 1.0;
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: f64 = 0.1;

    /// Returns the window, `round_trips` after a loss at 100 segments in congestion avoidance.
    fn after_loss(algorithm: Algorithm, round_trips: u32) -> f64 {
        let mut congestion = Congestion::new(algorithm);
        congestion.cwnd = 100.0;
        congestion.reduce();
        congestion.cwnd = congestion.ssthresh;
        for round_trip in 0..round_trips {
            for part in 0..10 {
                let acked = congestion.cwnd as u64 / 10;
                congestion.grow(acked, (f64::from(round_trip) + f64::from(part) / 10.0) * RTT, RTT);
            }
        }
        congestion.cwnd
    }

    #[test]
    fn reno_halves_and_gains_a_segment_per_round_trip() {
        assert_eq!(after_loss(Algorithm::Reno, 0), 50.0);
        let gained = after_loss(Algorithm::Reno, 20) - 50.0;
        assert!((17.0..=20.0).contains(&gained), "{gained}");
    }

    #[test]
    fn cubic_is_back_at_its_maximum_after_k() {
        // K = cbrt(30 / 0.4) = 4.2 s: 42 round trips. There the window is nearly constant before it grows beyond.
        assert_eq!(after_loss(Algorithm::Cubic, 0), 70.0);
        let at_k = after_loss(Algorithm::Cubic, 42);
        assert!((97.0..=101.0).contains(&at_k), "{at_k}");
        assert!(after_loss(Algorithm::Cubic, 84) > 125.0, "{}", after_loss(Algorithm::Cubic, 84));
    }

    #[test]
    fn slow_start_doubles() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
            let mut congestion = Congestion::new(algorithm);
            congestion.grow(10, 0.0, RTT);
            assert_eq!(congestion.cwnd, 20.0);
        }
    }
}
