//! EQ: each connection gets the same part of the send memory.
//!
//! The baseline of Matsuo, section 3. It reads nothing of a connection, so small ones waste their part and large ones
//! starve; [`crate::share::equal`] computes the part.
//! Properties kept: the buffer is the limit that was set, at most `max`; no decision before the first limit.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// One connection under EQ.
///
/// ```
/// use bufwise_policy::{EqualShare, Policy, share};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut eq = EqualShare::new(Bytes::MAX);
/// let part = share::equal(4, Bytes(1_000_000)).of(Bytes::MAX);
/// eq.set_limit(Some(part));
/// assert_eq!(eq.observe(&Sample::default(), Micros::ZERO).send_buffer, Some(Bytes(250_000)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EqualShare {
    max: Bytes,
    limit: Option<Bytes>,
}

impl EqualShare {
    /// Returns a connection that may hold up to `max` of its share.
    #[must_use]
    pub const fn new(max: Bytes) -> Self {
        Self { max, limit: None }
    }
}

impl Policy for EqualShare {
    fn observe(&mut self, _sample: &Sample, _now: Micros) -> Decision {
        Decision { send_buffer: self.limit.map(|limit| limit.min(self.max)), ..Decision::NONE }
    }

    /// Returns the maximum: EQ does not measure what the connection needs.
    fn demand(&self) -> Option<Bytes> {
        Some(self.max)
    }

    fn set_limit(&mut self, limit: Option<Bytes>) {
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_the_buffer() {
        let mut eq = EqualShare::new(Bytes(100_000));
        assert_eq!(eq.observe(&Sample::default(), Micros(0)), Decision::NONE);
        for (limit, buffer) in [(50_000, 50_000), (200_000, 100_000)] {
            eq.set_limit(Some(Bytes(limit)));
            assert_eq!(eq.observe(&Sample::default(), Micros(1)).send_buffer, Some(Bytes(buffer)));
        }
    }
}
