//! Seeded randomness, with one stream for each use, so that one use never shifts another's draws.
//!
//! The generator is xoshiro256++ (Blackman, Vigna). Each further stream of a seed starts 2^128 draws later, so no two
//! overlap.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Returns `N` streams of a seed.
    pub(crate) fn streams<const N: usize>(seed: u64) -> [Self; N] {
        let mut next = Xoshiro256PlusPlus::seed_from_u64(seed);
        std::array::from_fn(|_| {
            let stream = Self(next.clone());
            next.jump();
            stream
        })
    }

    /// Draws a number uniformly from `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 * STEP
    }

    /// Draws a number uniformly from `0..=max`; the bias is below `max / 2^64`.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        let product = u128::from(self.0.next_u64()) * (u128::from(max) + 1);
        u64::try_from(product >> 64).unwrap_or(max)
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_seed_repeat_and_differ() {
        let [mut a, mut b]: [Random; 2] = Random::streams(7);
        let [mut again, _]: [Random; 2] = Random::streams(7);
        let draws = |random: &mut Random| (0..8).map(|_| random.up_to(u64::MAX)).collect::<Vec<_>>();
        let first = draws(&mut a);
        assert_eq!(first, draws(&mut again));
        assert_ne!(first, draws(&mut b));
    }

    #[test]
    fn a_draw_covers_its_range_and_stays_in_it() {
        let [mut random] = Random::streams(1);
        let mut seen = [false; 6];
        for _ in 0..1_000 {
            seen[usize::try_from(random.up_to(5)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 6]);
        assert_eq!(random.up_to(0), 0);
        assert!(!random.chance(0.0));
        assert!(random.chance(1.0));
    }
}
