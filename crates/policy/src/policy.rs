//! The trait of all policies: each takes samples of a connection, and decides the sizes of its buffers.

use bufwise_units::{Bytes, Decision, Micros, Sample};

/// A rule that sizes one connection's buffers.
///
/// ```
/// use bufwise_policy::Policy;
/// use bufwise_units::{Bytes, Decision, Micros, Sample};
///
/// /// A send buffer of twice the congestion window.
/// struct Twice;
///
/// impl Policy for Twice {
///     fn observe(&mut self, sample: &Sample, _now: Micros) -> Decision {
///         Decision { send_buffer: Some(sample.cwnd.times(2)), ..Decision::NONE }
///     }
/// }
///
/// let sample = Sample { cwnd: Bytes(14_480), ..Sample::default() };
/// assert_eq!(Twice.observe(&sample, Micros::ZERO).send_buffer, Some(Bytes(28_960)));
/// ```
///
/// `examples/own_policy.rs` of this crate runs a whole transfer with an own policy.
pub trait Policy {
    /// Takes a sample of the connection at `now` and returns the changes to make.
    ///
    /// `now` must not go back between two calls for the same connection.
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision;

    /// Returns the send memory that this connection requests of the host's budget; `None`: it takes no part in the
    /// shares.
    fn demand(&self) -> Option<Bytes> {
        None
    }

    /// Sets the most that this connection may hold, as computed by the shares of the host's budget; `None`: no limit.
    ///
    /// The limit applies from the next observation on. Policies outside the shares ignore it.
    fn set_limit(&mut self, limit: Option<Bytes>) {
        let _ = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_send_buffer_is_no_idle_application() {
        let limits = |app_limited, queued, sndbuf| {
            let (send_queued, sndbuf) = (Bytes(queued), Bytes(sndbuf));
            Sample { app_limited, send_queued, sndbuf, ..Sample::default() }.application_limits()
        };
        assert!(limits(true, 0, 87_040));
        assert!(limits(true, 43_519, 87_040));
        assert!(!limits(true, 43_520, 87_040), "half full");
        assert!(!limits(true, 87_040, 87_040));
        assert!(!limits(false, 0, 87_040));
        assert!(limits(true, 87_040, 0), "unknown buffer");
    }
}
