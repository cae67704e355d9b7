//! Synthetic traces of shared media, which send waiting packets in aggregates. They are drawn from a seed and copy no
//! recording.

use bufwise_units::{BitRate, Nanos};

use crate::draw::Draw;
use crate::trace::{Step, Trace};

/// Period after which a trace begins anew, in us; [`wifi`] adds what its last pause exceeds it by.
const PERIOD_US: u64 = 10_000_000;

/// Returns a Wi-Fi trace: a station waits 1 to 8 ms for the medium, then sends for 0.5 to 3 ms at 240 Mbit/s; about 67
/// Mbit/s.
#[must_use]
pub fn wifi(seed: u64) -> Option<Trace> {
    const RATE: u64 = 240_000_000;
    let mut draw = Draw(seed);
    let (mut at, mut steps) = (0, Vec::new());
    while at < PERIOD_US {
        steps.push(step(at, RATE));
        at += draw.between(500, 3_000);
        steps.push(step(at, 0));
        at += draw.between(1_000, 8_000);
    }
    repeating(steps, at)
}

/// Returns an LTE trace: grants of 2 ms every 5 ms, at a rate that changes every 100 ms between 25 and 150 Mbit/s; 10
/// to 60 Mbit/s.
#[must_use]
pub fn lte(seed: u64) -> Option<Trace> {
    const RATES: [u64; 2] = [25_000_000, 150_000_000];
    const FADING_US: u64 = 100_000;
    const GRANT_US: u64 = 2_000;
    const BETWEEN_US: u64 = 5_000;
    /// Largest change of the rate at once, bit/s.
    const FADES: u64 = 20_000_000;
    let mut draw = Draw(seed);
    let (mut rate, mut steps) = (90_000_000, Vec::new());
    for at in (0..PERIOD_US).step_by(BETWEEN_US as usize) {
        if at % FADING_US == 0 {
            rate = (rate + draw.between(0, 2 * FADES)).saturating_sub(FADES).clamp(RATES[0], RATES[1]);
        }
        steps.extend([step(at, rate), step(at + GRANT_US, 0)]);
    }
    repeating(steps, PERIOD_US)
}

fn step(at_us: u64, rate: u64) -> Step {
    Step { at: Nanos::from_micros(at_us), rate: Some(BitRate(rate)), delay: None }
}

fn repeating(steps: Vec<Step>, period_us: u64) -> Option<Trace> {
    Trace::new(steps, Some(Nanos::from_micros(period_us))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean rate over a period, bit/s.
    fn mean(trace: &Trace) -> f64 {
        let period = trace.period().unwrap().0;
        let ends = trace.steps().iter().skip(1).map(|step| step.at.0).chain([period]);
        let work: f64 = trace
            .steps()
            .iter()
            .zip(ends)
            .map(|(step, end)| step.rate.unwrap().0 as f64 * (end - step.at.0) as f64)
            .sum();
        work / period as f64
    }

    #[test]
    fn traces_have_their_mean_rates_and_repeat_for_a_seed() {
        for (trace, between) in [(wifi as fn(u64) -> _, 55e6..80e6), (lte, 20e6..55e6)] {
            let of_seed = |seed| -> Trace { Option::expect(trace(seed), "a trace") };
            assert!(between.contains(&mean(&of_seed(1))), "{}", mean(&of_seed(1)));
            assert_eq!(of_seed(1), of_seed(1));
            assert_ne!(of_seed(1), of_seed(2));
        }
    }
}
