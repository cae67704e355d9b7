//! Maps from connections, by their cookies.
//!
//! Problem: with the standard hash, which nobody can foresee, most of what a round of shares costs is hashing (100,000
//! connections: three quarters under SABT).
//! Rule: the kernel counts cookies up (`sock_gen_cookie()`), nobody chooses them, so a product will do. Both halves of it are
//! used: a table takes its place from the low bits and tells neighbours apart by the high ones.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A value for each connection.
pub(super) type ByCookie<T> = HashMap<u64, T, BuildHasherDefault<OfCookie>>;

/// The golden ratio's 64 bits (Knuth, volume 3, section 6.4): neighbours go far apart.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes a cookie.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfCookie(u64);

impl Hasher for OfCookie {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, cookie: u64) {
        let product = u128::from(self.0 ^ cookie) * u128::from(FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn cookies_in_a_row_and_far_apart_spread_over_a_table() {
        let hash = |cookie: u64| BuildHasherDefault::<OfCookie>::default().hash_one(cookie);
        // Each processor counts in a batch of its own.
        for step in [1, 2, 4_096, 1 << 20] {
            let hashes: Vec<u64> = (1..=65_536).map(|count| hash(count * step)).collect();
            let low: HashSet<u64> = hashes.iter().map(|hash| hash & 0xffff).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // By chance alone 63% of the places are taken.
            assert!(low.len() > 32_768 && high.len() == 128, "{step}: {} and {}", low.len(), high.len());
        }
    }
}
