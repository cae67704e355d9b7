//! Moments as the ring keeps them: their JSON, compressed.
//!
//! Problem: as values a full moment takes some 60 KB, and an hour of them more than the rest of the daemon. Most of it are
//! keys, absent fields and names that repeat.
//!
//! Properties kept, each a test: a moment is unpacked as it was; a full one, with names of usual length, takes no more
//! than its part of [`super::MAX_BYTES`]; a clone shares the bytes.

use std::sync::Arc;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::Moment;

/// Approximate overhead of a shared allocation, bytes: the allocator's, and two counts.
const ALLOCATION: usize = 32;
/// Deflate's level, 0 to 10: the fast ones find the repeated keys as well.
const LEVEL: u8 = 3;

/// A packed moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed {
    /// Time of the sample, in seconds since 1970 (UTC).
    pub(super) time_s: u64,
    /// Length of the moment in an answer or in the file, bytes.
    pub(super) text: usize,
    bytes: Arc<[u8]>,
}

impl Packed {
    pub(super) fn new(moment: &Moment) -> Self {
        let text = serde_json::to_vec(moment).unwrap_or_default();
        let bytes = compress_to_vec(&text, LEVEL).into();
        Self { time_s: moment.time_s, text: text.len(), bytes }
    }

    /// Returns the moment; `None` only for bytes that [`Packed::new`] does not make.
    pub(super) fn moment(&self) -> Option<Moment> {
        serde_json::from_slice(&self.json()?).ok()
    }

    /// Returns the moment's JSON; `None` as for [`Packed::moment`].
    pub(super) fn json(&self) -> Option<Vec<u8>> {
        decompress_to_vec_with_limit(&self.bytes, self.text).ok()
    }

    /// Returns the memory that this takes, bytes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + ALLOCATION
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::moment;
    use super::super::{BY_MEMORY, BY_RATE, LENGTH, MAX_BYTES, Query, Ring};
    use super::*;

    #[test]
    fn a_moment_is_unpacked_as_it_was() {
        let all = moment(1_790_000_000, 3, 9);
        let packed = Packed::new(&all);
        assert_eq!((packed.moment().as_ref(), packed.time_s), (Some(&all), all.time_s));
        assert_eq!(packed.text, serde_json::to_vec(&all).unwrap().len());
    }

    #[test]
    fn an_answer_shares_the_bytes_of_the_ring() {
        let mut ring = Ring::default();
        (1..=3).for_each(|time| ring.push(&moment(time, 2, 9)));
        let answer = ring.answer(Query { since_s: Some(2), ..Query::default() });
        let shared = answer.moments.packed.iter().zip(ring.moments.iter().skip(1));
        assert_eq!(shared.filter(|(one, other)| Arc::ptr_eq(&one.bytes, &other.bytes)).count(), 2);
    }

    #[test]
    fn what_is_torn_is_no_moment() {
        let Packed { time_s, text, bytes } = Packed::new(&moment(1, 1, 3));
        for end in 0..bytes.len() {
            assert_eq!(Packed { time_s, text, bytes: bytes[..end].into() }.moment(), None, "{end}");
        }
    }

    #[test]
    fn a_full_moment_takes_its_part_of_the_memory_at_most() {
        let full = Packed::new(&moment(1_790_000_000, BY_RATE + BY_MEMORY, 40));
        assert!(full.memory() <= MAX_BYTES / LENGTH, "{}", full.memory());
    }
}
