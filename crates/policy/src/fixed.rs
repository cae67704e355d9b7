//! A constant buffer, as of a program that sets `SO_SNDBUF` and `SO_RCVBUF` once.
//!
//! The baseline of every paper: 16 and 64 KB in Matsuo, 64 KB in Feng 2002 and Fisk 2000, 16 and 400 KB in Semke 1998.
//! Properties kept: the size never changes.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// The same size for both directions, for the whole connection.
///
/// ```
/// use bufwise_policy::{Fixed, Policy};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let decision = Fixed::new(Bytes(65_536)).observe(&Sample::default(), Micros::ZERO);
/// assert_eq!((decision.send_buffer, decision.receive_window), (Some(Bytes(65_536)), Some(Bytes(65_536))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    size: Bytes,
}

impl Fixed {
    /// Returns a policy that sets buffers for `size` bytes of payload.
    #[must_use]
    pub const fn new(size: Bytes) -> Self {
        Self { size }
    }
}

impl Policy for Fixed {
    fn observe(&mut self, _sample: &Sample, _now: Micros) -> Decision {
        Decision { send_buffer: Some(self.size), receive_window: Some(self.size), pacing: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_never_changes() {
        let mut fixed = Fixed::new(Bytes(65_536));
        for cwnd in [0, 1_448, u64::MAX] {
            let sample = Sample { cwnd: Bytes(cwnd), bytes_received: Bytes(cwnd), ..Sample::default() };
            let decision = fixed.observe(&sample, Micros(cwnd));
            assert_eq!(decision.send_buffer, Some(Bytes(65_536)));
            assert_eq!(decision.receive_window, Some(Bytes(65_536)));
        }
    }
}
