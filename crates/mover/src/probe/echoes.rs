//! Figures from the echoes: average and smallest round-trip time, and losses on the data's way.
//!
//! Source: Prasad 2004 (SOBAS), section IV-B: a running average of the round-trip time; the losses among the last 100
//! probes, found by the numbers that the *sender* puts on its echoes, so that only the direction of the data counts.
//! Rules: a missing number is lost once three later ones have come (TCP's own threshold for reordering, RFC 5681); if no
//! echo comes for a second, four round trips or two intervals, the probes sent since are lost, whatever the direction.
//! Before the first echo no probe counts as lost.
//! Properties kept: `lost` is at most 100; a duplicate changes nothing; numbers may begin anywhere.

use bufwise_units::Micros;

/// Number of echoes over which losses are counted (Prasad 2004, section IV-B).
const REMEMBERED: u64 = 100;
/// A missing number is lost when this many later ones exist.
const OUT_OF_ORDER: u64 = 3;
/// Weight of a new round-trip time is 1 / 8, as in RFC 6298.
const AVERAGE_SHIFT: u64 = 8;
/// Shortest silence that counts as loss.
const SILENCE: Micros = Micros::from_secs(1);

/// The running record of one session's echoes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echoes {
    average: Micros,
    minimum: Micros,
    /// First and highest echo number; none before the first echo.
    numbers: Option<(u64, u64)>,
    /// Bit `i`: number `highest - i` has come.
    seen: u128,
    /// When an echo last came, or the interval last changed.
    last: Micros,
}

impl Echoes {
    /// Notes that an echo with `number` came at `now`, `rtt` after its probe was sent.
    pub(super) fn came(&mut self, number: u64, rtt: Micros, now: Micros) {
        let (first, highest) = self.numbers.unwrap_or((number, number));
        if number >= highest {
            let steps = u32::try_from(number - highest).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(steps).unwrap_or(0) | 1;
            self.numbers = Some((first, number));
        } else if let Some(bit) = u32::try_from(highest - number).ok().and_then(|age| 1_u128.checked_shl(age))
        {
            self.seen |= bit;
            self.numbers = Some((first.min(number), highest));
        }
        self.average = if self.average == Micros::ZERO {
            rtt
        } else {
            Micros((self.average.0.saturating_mul(AVERAGE_SHIFT - 1).saturating_add(rtt.0)) / AVERAGE_SHIFT)
        };
        self.minimum = if self.minimum == Micros::ZERO { rtt } else { self.minimum.min(rtt) };
        self.last = now;
    }

    /// Notes that the interval of the probes changes at `now`: a silence counts from here.
    pub(super) fn interval_changed(&mut self, now: Micros) {
        self.last = now;
    }

    /// Returns the running average of the round-trip times; zero before the first echo.
    pub(super) fn average(&self) -> Micros {
        self.average
    }

    /// Returns the smallest round-trip time; zero before the first echo.
    pub(super) fn minimum(&self) -> Micros {
        self.minimum
    }

    /// Returns the number of probes lost among the last 100 at `now`, if one is sent each `interval`.
    pub(super) fn lost(&self, now: Micros, interval: Micros) -> u32 {
        let Some((first, highest)) = self.numbers else { return 0 };
        let oldest = (highest - first).min(REMEMBERED - 1);
        let missing = (OUT_OF_ORDER..=oldest).filter(|age| self.seen >> age & 1 == 0).count() as u64;
        let timeout = SILENCE.max(self.average.times(4)).max(interval.times(2));
        let silence = now.since(self.last);
        let silent = if silence > timeout { silence.0 / interval.0.max(1) } else { 0 };
        missing.saturating_add(silent).min(REMEMBERED) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERVAL: Micros = Micros::from_millis(10);
    const RTT: Micros = Micros::from_millis(40);

    /// Echoes with these numbers, one each 10 ms from 1 s on; and the time of the last.
    fn after(numbers: impl IntoIterator<Item = u64>) -> (Echoes, Micros) {
        let mut echoes = Echoes::default();
        let mut now = Micros::from_secs(1);
        for number in numbers {
            now += INTERVAL;
            echoes.came(number, RTT, now);
        }
        (echoes, now)
    }

    fn lost(numbers: impl IntoIterator<Item = u64>) -> u32 {
        let (echoes, now) = after(numbers);
        echoes.lost(now, INTERVAL)
    }

    #[test]
    fn gaps_in_the_responders_numbers_are_losses() {
        assert_eq!(lost([]), 0);
        assert_eq!(lost(0..500), 0);
        assert_eq!(lost((0..500).filter(|n| n % 25 != 10)), 4);
        assert_eq!(lost((0..=50).chain(53..56)), 2);
    }

    #[test]
    fn a_gap_is_a_loss_only_after_three_later_echoes() {
        assert_eq!(lost((0..50).chain([51, 52])), 0);
        assert_eq!(lost((0..50).chain([51, 52, 53])), 1);
        assert_eq!(lost((0..50).chain([51, 52, 53, 50])), 0);
    }

    #[test]
    fn losses_are_forgotten_after_a_hundred_echoes() {
        assert_eq!(lost((0..10).chain(20..110)), 10);
        assert_eq!(lost((0..10).chain(20..120)), 0);
        assert_eq!(lost((0..10).chain(20..115)), 5);
        assert_eq!(lost([0, u64::MAX]), 97);
    }

    #[test]
    fn silence_counts_after_a_second_or_four_round_trips() {
        let (echoes, last) = after(0..100);
        assert_eq!(echoes.lost(last + Micros::from_millis(900), INTERVAL), 0);
        assert_eq!(echoes.lost(last + Micros::from_millis(1_010), INTERVAL), 100);
        let mut slow = echoes;
        for number in 100..200 {
            slow.came(number, Micros::from_secs(1), last);
        }
        assert_eq!(slow.lost(last + Micros::from_millis(3_900), INTERVAL), 0);
    }

    #[test]
    fn rare_probes_are_lost_after_two_intervals() {
        let (mut echoes, last) = after(0..100);
        let rare = Micros::from_secs(1);
        let later = last + Micros::from_millis(1_990);
        assert_eq!(echoes.lost(later, rare), 0);
        assert_eq!(echoes.lost(last + Micros::from_millis(3_010), rare), 3);
        echoes.interval_changed(later);
        assert_eq!(echoes.lost(later + RTT, INTERVAL), 0, "few were sent in that time");
    }

    #[test]
    fn average_follows_and_minimum_stays() {
        let (mut echoes, now) = after(0..100);
        assert_eq!((echoes.average(), echoes.minimum()), (RTT, RTT));
        echoes.came(100, RTT + Micros::from_millis(8), now);
        assert_eq!((echoes.average(), echoes.minimum()), (RTT + Micros::from_millis(1), RTT));
    }

    proptest! {
        #[test]
        fn at_most_a_hundred_are_lost(numbers in prop::collection::vec(any::<u64>(), 0..50), wait: u64) {
            let (echoes, _) = after(numbers);
            prop_assert!(echoes.lost(Micros(wait), INTERVAL) <= 100);
        }
    }
}
