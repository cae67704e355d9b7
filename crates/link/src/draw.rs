//! Random draws from a seed, the same on every machine and in every version.

/// The generator Splitmix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Draw(
    /// The state; at first the seed.
    pub u64,
);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number uniformly from `from..=to`, with `from <= to`; the bias is below `(to - from) / 2^64`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        let product = u128::from(self.next()) * (u128::from(to - from) + 1);
        from + u64::try_from(product >> 64).unwrap_or(0)
    }

    /// Draws `count` of `items` without replacement, or all of them if they are fewer.
    #[must_use]
    pub fn sample<T>(&mut self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let mut drawn = Vec::new();
        while drawn.len() < count && !items.is_empty() {
            let last = items.len() as u64 - 1;
            let place = usize::try_from(self.between(0, last)).unwrap_or(0);
            drawn.push(items.swap_remove(place));
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_repeats_and_has_nothing_twice() {
        let sample = |seed| Draw(seed).sample((0..100).collect(), 40);
        let mut drawn: Vec<i32> = sample(7);
        assert_eq!(drawn, sample(7));
        assert_ne!(drawn, sample(8));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 40);
        assert_eq!(Draw(1).sample(vec![1, 2], 5).len(), 2);
    }

    #[test]
    fn draws_cover_their_range() {
        let mut draw = Draw(3);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[usize::try_from(draw.between(5, 8) - 5).unwrap()] = true;
        }
        assert_eq!(seen, [true; 4]);
    }
}
