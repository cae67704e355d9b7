//! The TCP throughput equation: what a path with random losses lets a connection have.
//!
//! Problem: a connection's window swings by a factor of two at every loss. Its mean does not, if loss rate,
//! round-trip time and time-out hold still: compute the mean from those.
//! Source: Padhye, Firoiu, Towsley, Kurose, "Modeling TCP Throughput", 1998, full form; used by 002.
//! Terms: `p` rate of loss indications per packet, `b` packets per acknowledgement, `RTT`, `RTO` in seconds.
//!
//! ```text
//! packets/s = 1 / ( RTT * sqrt(2*b*p/3) + RTO * min(1, 3*sqrt(3*b*p/8)) * p * (1 + 32*p^2) )
//! ```
//! and at most `Wmax / RTT`.
//! Keeps: falls as `p`, `RTT`, `RTO` grow; for small `p` it is the square-root law
//! `sqrt(3 / (2*b*p)) / RTT`; without loss it is `Wmax / RTT`.

/// What the equation needs to know of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathModel {
    /// Losses per packet sent; outside 0 to 1 the nearer end is taken, no number counts as 0.
    pub loss: f64,
    /// Round-trip time in seconds; what is not above zero leaves no bound.
    pub rtt: f64,
    /// Retransmission time-out in seconds; negative counts as 0.
    pub rto: f64,
    /// Packets that one acknowledgement covers: 2 with delayed acknowledgements, else 1.
    pub packets_per_ack: f64,
    /// Largest window in packets; infinite: no limit.
    pub max_window: f64,
}

impl PathModel {
    /// The equation's packets per second; infinite where nothing bounds them.
    #[must_use]
    pub fn packets_per_sec(&self) -> f64 {
        if self.rtt.is_nan() || self.rtt <= 0.0 {
            return f64::INFINITY;
        }
        let p = if self.loss.is_nan() { 0.0 } else { self.loss.clamp(0.0, 1.0) };
        let b = self.packets_per_ack.max(1.0);
        let avoidance = self.rtt * (2.0 * b * p / 3.0).sqrt();
        let timeouts = (3.0 * (3.0 * b * p / 8.0).sqrt()).min(1.0);
        let waiting = self.rto.max(0.0) * timeouts * p * (1.0 + 32.0 * p * p);
        let window_limit = self.max_window.max(0.0) / self.rtt;
        (1.0 / (avoidance + waiting)).min(window_limit)
    }

    /// The mean window in packets that goes with it; infinite where nothing bounds it.
    #[must_use]
    pub fn mean_window(&self) -> f64 {
        self.packets_per_sec() * self.rtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(loss: f64, rtt: f64, rto: f64) -> PathModel {
        PathModel { loss, rtt, rto, packets_per_ack: 2.0, max_window: f64::INFINITY }
    }

    #[test]
    fn a_worked_example() {
        // p = 0.01, b = 2: sqrt(0.04/3) = 0.115470; 3*sqrt(0.0075) = 0.259808; 1 + 32e-4 = 1.0032.
        // 1 / (0.1 * 0.115470 + 0.4 * 0.259808 * 0.01 * 1.0032) = 1 / (0.0115470 + 0.0010426).
        let rate = model(0.01, 0.1, 0.4).packets_per_sec();
        assert!((rate - 79.4309).abs() < 0.001, "{rate}");
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
            p in 0.0_f64..1.0, rtt in 0.0001_f64..2.0, rto in 0.0_f64..10.0,
            more in 1.0_f64..3.0, window in 1.0_f64..1e6, b in 1_u32..3,
        ) {
            let base = PathModel { packets_per_ack: f64::from(b), max_window: window, ..model(p, rtt, rto) };
            let rate = base.packets_per_sec();
            let lossier = PathModel { loss: p * more, ..base };
            let longer = PathModel { rtt: rtt * more, ..base };
            let waiting = PathModel { rto: rto * more, ..base };
            for worse in [lossier, longer, waiting] {
                prop_assert!(worse.packets_per_sec() <= rate, "{:?}", worse);
            }
            prop_assert!(rate <= window / rtt);
        }
    }
}
