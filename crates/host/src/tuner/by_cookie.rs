//! Hash maps of connections, keyed by their cookies.
//!
//! Problem: with the standard hash, which resists chosen keys, most of the cost of a round of shares is hashing
//! (100,000 connections under SABT: three quarters).
//! Rule: the kernel counts cookies up (`sock_gen_cookie()`), and no program can choose them, so multiplication
//! suffices. Both halves of the product are used: a table takes the position from the low bits, and distinguishes
//! neighbours by the high ones.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A value for each connection.
pub(super) type ByCookie<T> = HashMap<u64, T, BuildHasherDefault<OfCookie>>;

/// The 64 bits of the golden ratio (Knuth, volume 3, section 6.4), which spread neighbours far apart.
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
        // Each processor takes its cookies from a batch of its own.
        for step in [1, 2, 4_096, 1 << 20] {
            let hashes: Vec<u64> = (1..=65_536).map(|count| hash(count * step)).collect();
            let low: HashSet<u64> = hashes.iter().map(|hash| hash & 0xffff).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // Random hashes would fill 63% of the places.
            assert!(low.len() > 32_768 && high.len() == 128, "{step}: {} and {}", low.len(), high.len());
        }
    }
}
