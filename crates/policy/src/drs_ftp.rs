//! drsFTP: DRS for a program that knows only how much each read returned.
//!
//! Problem: user space knows neither the round-trip time nor the window. But during a file transfer the sender always
//! has data, so a read that returns much of the receive buffer means that the buffer, not the path, sets the pace.
//! Source: Feng 2002, section 4.
//! Terms: the *buffer* is the value for `SO_RCVBUF`. Linux gives half of it to the window, so a read that returns more
//! than half of it shows a full window. The buffer is then multiplied by four: by two because the window has half of
//! it, by two for slow start. The sender's buffer keeps step (`SBUF`, or reply 126), so the decision carries the size
//! for both ends.
//! Properties kept: the buffer never shrinks, never exceeds the maximum, and grows by at most a factor of four per
//! read.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// Part of the buffer that a read must exceed: 1/2 (Feng 2002, section 4.1).
const THRESHOLD: (u64, u64) = (1, 2);
/// Growth factor of the buffer (Feng 2002, section 4.1).
const GROWTH: u64 = 4;
/// Least size of the application's own buffer, in kernel buffers (Feng 2002, section 4.1).
const APPLICATION_BUFFERS: u64 = 2;

/// Parameters of drsFTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Buffer at the start, in bytes: 64 KiB, as in stock FTP (Feng 2002, section 5.3); zero counts as one byte.
    pub initial: Bytes,
    /// Largest buffer, in bytes. It must be set before the connection begins, or the window scale is too small for it.
    pub max: Bytes,
}

impl Default for Config {
    fn default() -> Self {
        Self { initial: Bytes(65_536), max: Bytes::MAX }
    }
}

/// drsFTP for one transfer, at its receiver. Reads `read_size`.
///
/// ```
/// use bufwise_policy::{DrsFtp, Policy, drs_ftp};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut drs = DrsFtp::new(drs_ftp::Config::default());
/// let read = Sample { read_size: Bytes(40_000), ..Sample::default() };
/// // More than half of 64 KiB in one read: four times as much from now on.
/// assert_eq!(drs.observe(&read, Micros::ZERO).receive_window, Some(Bytes(262_144)));
/// assert_eq!(drs.observe(&read, Micros::ZERO).receive_window, Some(Bytes(262_144)));
/// ```
#[derive(Clone, Debug)]
pub struct DrsFtp {
    config: Config,
    buffer: Bytes,
}

impl DrsFtp {
    /// Returns the state of a transfer that has not begun.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, buffer: config.initial.max(Bytes(1)).min(config.max) }
    }

    /// Returns the value for `SO_RCVBUF`, and for the sender's `SO_SNDBUF`.
    #[must_use]
    pub fn buffer(&self) -> Bytes {
        self.buffer
    }

    /// Returns how many bytes the application must be able to read at once.
    #[must_use]
    pub fn application_buffer(&self) -> Bytes {
        self.buffer.times(APPLICATION_BUFFERS)
    }
}

impl Policy for DrsFtp {
    /// Sets `receive_window` to the value for `SO_RCVBUF` here, and `send_buffer` to that for `SO_SNDBUF` at the
    /// sender.
    fn observe(&mut self, sample: &Sample, _now: Micros) -> Decision {
        if sample.read_size > self.buffer.scaled(THRESHOLD.0, THRESHOLD.1) {
            self.buffer = self.buffer.times(GROWTH).min(self.config.max);
        }
        Decision { send_buffer: Some(self.buffer), receive_window: Some(self.buffer), pacing: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(drs: &mut DrsFtp, size: u64) -> u64 {
        let sample = Sample { read_size: Bytes(size), ..Sample::default() };
        drs.observe(&sample, Micros::ZERO).receive_window.unwrap().0
    }

    #[test]
    fn a_read_of_more_than_half_the_buffer_multiplies_it_by_four() {
        let mut drs = DrsFtp::new(Config::default());
        assert_eq!(read(&mut drs, 32_768), 65_536);
        assert_eq!(read(&mut drs, 32_769), 262_144);
        assert_eq!(read(&mut drs, 100_000), 262_144);
        assert_eq!(read(&mut drs, 262_144), 1_048_576);
        assert_eq!(drs.application_buffer(), Bytes(2_097_152));
    }

    #[test]
    fn both_ends_get_the_same_size() {
        let mut drs = DrsFtp::new(Config::default());
        let decision = drs.observe(&Sample { read_size: Bytes(60_000), ..Sample::default() }, Micros::ZERO);
        assert_eq!(decision.send_buffer, decision.receive_window);
    }

    proptest! {
        #[test]
        fn the_buffer_grows_by_four_at_most_and_never_shrinks(
            reads in proptest::collection::vec(any::<u64>(), 1..40), initial: u64, max: u64,
        ) {
            let mut drs = DrsFtp::new(Config { initial: Bytes(initial), max: Bytes(max) });
            let mut last = drs.buffer().0;
            for size in reads {
                let now = read(&mut drs, size);
                prop_assert!(now >= last && now <= last.saturating_mul(4) && now <= max);
                last = now;
            }
        }
    }
}
