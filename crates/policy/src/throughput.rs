//! The TCP throughput equation: the rate that a path with random losses allows a connection.
//!
//! Problem: the window of a connection swings by a factor of two at every loss. Its mean does not, if loss rate,
//! round-trip time and time-out are steady; the equation computes the mean from those.
//! Source: Padhye, Firoiu, Towsley, Kurose, "Modeling TCP Throughput: A Simple Model and its Empirical Validation",
//! 1998, in the form with time-outs ("PFTK full"), not the square-root law alone; CUBIC's mean window from RFC 9438,
//! section 5.1.
//! Terms: `p` is the rate of loss indications per packet, `b` the packets per acknowledgement, `RTT` and `RTO` are in
//! seconds, `W` is the mean window of congestion avoidance in packets.
//!
//! ```text
//! packets/s = 1 / ( RTT / W + RTO * min(1, 3*sqrt(3*b*p/8)) * p * (1 + 32*p^2) ), at most Wmax / RTT
//!
//! Reno:   W = sqrt(3 / (2*b*p))
//! CUBIC:  W = (C * (3+beta) / (4 * (1-beta)))^(1/4) * (RTT/p)^(3/4), C = 0.4, beta = 0.7; at least Reno's
//! ```
//!
//! `b` is 1 for Linux: its congestion controls count acknowledged packets, not acknowledgements (since 3.x; RFC 3465),
//! so a receiver that delays acknowledgements does not slow the window's growth. Padhye's analysis grows the window per
//! acknowledgement; there a receiver that delays has `b = 2`. CUBIC's Reno-friendly region (RFC 9438, section 4.3)
//! increases by `3*(1-beta)/(1+beta)` and keeps `beta`, which gives Reno's mean window: CUBIC never has less. Its
//! time-outs are Reno's.
//!
//! The equation needs roots, so it is in floating point; only user space evaluates it.
//! Properties kept: the throughput falls as `p`, `RTT`, `RTO` grow; for small `p` it is the square-root law
//! `sqrt(3 / (2*b*p)) / RTT` (CUBIC: with a short `RTT`); without loss it is `Wmax / RTT`; CUBIC's rate is at least
//! Reno's.

/// `C` of RFC 9438 in packets per second cubed (section 5).
const CUBIC_C: f64 = 0.4;
/// The part of its window that CUBIC keeps at a loss (RFC 9438, section 4.6).
const CUBIC_BETA: f64 = 0.7;

/// How a congestion control responds to losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Response {
    /// Halves the window at a loss and adds a packet per round trip.
    #[default]
    Reno,
    /// CUBIC, RFC 9438.
    Cubic,
}

/// A connection as the equation sees it.
///
/// ```
/// use bufwise_policy::throughput::{PathModel, Response};
///
/// let reno = PathModel { response: Response::Reno, loss: 0.0001, rtt: 0.1, rto: 0.3, packets_per_ack: 1.0,
///     max_window: f64::INFINITY };
/// assert_eq!(reno.mean_window().round(), 122.0);
/// let cubic = PathModel { response: Response::Cubic, ..reno };
/// assert!(cubic.mean_window() > reno.mean_window());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathModel {
    /// How the sender responds to losses.
    pub response: Response,
    /// Losses per packet sent, clamped to 0 to 1; NaN counts as 0.
    pub loss: f64,
    /// Round-trip time in seconds; a value that is not above zero gives no bound.
    pub rtt: f64,
    /// Retransmission time-out in seconds; negative counts as 0.
    pub rto: f64,
    /// Packets acknowledged per step of window growth: 1 for Linux; smaller values count as 1.
    pub packets_per_ack: f64,
    /// Largest window in packets; infinite: no limit.
    pub max_window: f64,
}

impl PathModel {
    /// Returns packets per second; infinite where nothing bounds them.
    #[must_use]
    pub fn packets_per_sec(&self) -> f64 {
        if self.rtt.is_nan() || self.rtt <= 0.0 {
            return f64::INFINITY;
        }
        let p = if self.loss.is_nan() { 0.0 } else { self.loss.clamp(0.0, 1.0) };
        let b = self.packets_per_ack.max(1.0);
        let avoidance = self.rtt / self.avoidance_window(p, b);
        let timeouts = (3.0 * (3.0 * b * p / 8.0).sqrt()).min(1.0);
        let waiting = self.rto.max(0.0) * timeouts * p * (1.0 + 32.0 * p * p);
        let window_limit = self.max_window.max(0.0) / self.rtt;
        (1.0 / (avoidance + waiting)).min(window_limit)
    }

    /// Returns the mean window in packets; infinite where nothing bounds it.
    #[must_use]
    pub fn mean_window(&self) -> f64 {
        self.packets_per_sec() * self.rtt
    }

    /// Returns the mean window of congestion avoidance in packets, without time-outs; infinite without loss.
    fn avoidance_window(&self, p: f64, b: f64) -> f64 {
        let reno = (3.0 / (2.0 * b * p)).sqrt();
        match self.response {
            Response::Reno => reno,
            Response::Cubic => {
                let factor = CUBIC_C * (3.0 + CUBIC_BETA) / (4.0 * (1.0 - CUBIC_BETA));
                reno.max(factor.powf(0.25) * (self.rtt / p).powf(0.75))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(loss: f64, rtt: f64, rto: f64) -> PathModel {
        let response = Response::Reno;
        PathModel { response, loss, rtt, rto, packets_per_ack: 2.0, max_window: f64::INFINITY }
    }

    /// A connection as Linux runs it, without time-outs.
    fn linux(response: Response, loss: f64, rtt: f64) -> PathModel {
        PathModel { response, packets_per_ack: 1.0, ..model(loss, rtt, 0.0) }
    }

    #[test]
    fn a_worked_example() {
        // p = 0.01, b = 2: sqrt(0.04/3) = 0.115470; 3*sqrt(0.0075) = 0.259808; 1 + 32e-4 = 1.0032.
        // 1 / (0.1 * 0.115470 + 0.4 * 0.259808 * 0.01 * 1.0032) = 1 / (0.0115470 + 0.0010426).
        let rate = model(0.01, 0.1, 0.4).packets_per_sec();
        assert!((rate - 79.4309).abs() < 0.001, "{rate}");
    }

    #[test]
    fn at_high_loss_each_loss_is_a_time_out() {
        // p = 0.5, b = 2: sqrt(2/3) = 0.816497; 3*sqrt(0.375) = 1.837, at most 1; 1 + 32*0.25 = 9.
        // 1 / (0.1 * 0.816497 + 0.4 * 1 * 0.5 * 9) = 1 / (0.0816497 + 1.8).
        let rate = model(0.5, 0.1, 0.4).packets_per_sec();
        assert!((rate - 0.531449).abs() < 1e-5, "{rate}");
    }

    #[test]
    fn cubic_has_the_windows_of_rfc_9438() {
        // Section 5.2, RTT 0.1 s, packets of 1,500 bytes: 100 Mbit/s, 1 and 10 Gbit/s; losses to two digits.
        for (loss, window) in [(1.4e-5, 833.3), (6.3e-7, 8_333.3), (2.9e-8, 83_333.3)] {
            let cubic = linux(Response::Cubic, loss, 0.1).mean_window();
            assert!((cubic / window - 1.0).abs() < 0.03, "{cubic} for {window}");
        }
        // Section 5.1: with an RTT of 0.01 s, p = 10^-6 is in Reno's region, p = 10^-7 is not.
        let reno = linux(Response::Reno, 1e-6, 0.01).mean_window();
        assert!((linux(Response::Cubic, 1e-6, 0.01).mean_window() / reno - 1.0).abs() < 1e-9);
        let cubic = linux(Response::Cubic, 1e-7, 0.01).mean_window();
        assert!((cubic / 5_926.0 - 1.0).abs() < 1e-3, "{cubic}");
    }

    #[test]
    fn cubic_waits_for_time_outs_as_reno_does() {
        // p = 0.01, RTT 0.1: W = sqrt(150) = 12.247 for both; 3*sqrt(0.00375) = 0.183712; 1 + 32e-4.
        // 1 / (0.1 / 12.247449 + 0.4 * 0.183712 * 0.01 * 1.0032) = 1 / (0.00816497 + 0.00073720).
        for response in [Response::Reno, Response::Cubic] {
            let path = PathModel { rto: 0.4, ..linux(response, 0.01, 0.1) };
            assert!((path.packets_per_sec() - 112.332).abs() < 0.01, "{}", path.packets_per_sec());
        }
    }

    #[test]
    fn without_loss_the_window_is_the_bound() {
        assert!(model(0.0, 0.1, 0.4).packets_per_sec().is_infinite());
        let limited = PathModel { max_window: 50.0, ..model(0.0, 0.1, 0.4) };
        assert!((limited.packets_per_sec() - 500.0).abs() < 1e-9);
        assert!((limited.mean_window() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn odd_input_gives_an_answer() {
        for rtt in [0.0, -1.0, f64::NAN] {
            assert!(model(0.1, rtt, 0.2).packets_per_sec().is_infinite());
        }
        assert!(model(f64::NAN, 0.1, 0.2).packets_per_sec().is_infinite());
        assert!(model(7.0, 0.1, 0.2).packets_per_sec() > 0.0);
        assert!(
            (model(0.5, 0.1, -3.0).packets_per_sec() - model(0.5, 0.1, 0.0).packets_per_sec()).abs() < 1e-9
        );
    }

    proptest! {
        #[test]
        fn small_losses_give_the_square_root_law(exponent in 5.0_f64..9.0, rtt in 0.001_f64..1.0, b in 1_u32..3) {
            let p = 10_f64.powf(-exponent);
            let path = PathModel { packets_per_ack: f64::from(b), ..model(p, rtt, 4.0 * rtt) };
            let law = (1.5 / (f64::from(b) * p)).sqrt() / rtt;
            // The time-out term is 4 * 3 * sqrt(3/8) / sqrt(2/3) * p = 9 * p of the other one, squared p aside.
            prop_assert!((path.packets_per_sec() / law - 1.0).abs() < 10.0 * p + 1e-9);
        }

        #[test]
        fn more_loss_or_longer_times_never_help(
            p in prop_oneof![0.0_f64..1.0, 0.0_f64..1e-4], rtt in 0.0001_f64..2.0, rto in 0.0_f64..10.0,
            more in 1.0_f64..3.0, window in 1.0_f64..1e6, b in 1_u32..3, cubic in any::<bool>(),
        ) {
            let response = if cubic { Response::Cubic } else { Response::Reno };
            let base =
                PathModel { response, packets_per_ack: f64::from(b), max_window: window, ..model(p, rtt, rto) };
            let rate = base.packets_per_sec();
            let lossier = PathModel { loss: p * more, ..base };
            let longer = PathModel { rtt: rtt * more, ..base };
            let waiting = PathModel { rto: rto * more, ..base };
            for worse in [lossier, longer, waiting] {
                // Roots are rounded.
                prop_assert!(worse.packets_per_sec() <= rate * (1.0 + 1e-12), "{:?}", worse);
            }
            prop_assert!(rate <= window / rtt);
        }

        #[test]
        fn cubic_is_friendly_to_reno(exponent in 0.0_f64..9.0, rtt in 0.0001_f64..2.0, rto in 0.0_f64..2.0) {
            let p = 10_f64.powf(-exponent);
            let of = |response| PathModel { rto, ..linux(response, p, rtt) }.packets_per_sec();
            let (reno, cubic) = (of(Response::Reno), of(Response::Cubic));
            prop_assert!(cubic >= reno, "{} of {}", cubic, reno);
            // Its own window exceeds Reno's where 1.0538 * RTT^(3/4) > 1.2247 * p^(1/4), so for RTT^3 > 1.824 * p.
            prop_assert!(rtt.powi(3) > 1.82 * p || cubic == reno, "{} of {}", cubic, reno);
        }
    }
}
