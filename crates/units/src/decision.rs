//! The decision of a policy: the sizes and rates that its caller sets on the socket.

use crate::quantity::{Bytes, Rate};

/// Settings that a policy requests for the socket now. `None` leaves a setting as it is.
///
/// A policy repeats its request at every observation; the caller may skip settings that have not changed.
///
/// ```
/// use bufwise_units::{Bytes, Decision};
///
/// let decision = Decision { send_buffer: Some(Bytes(1 << 20)), ..Decision::NONE };
/// assert_eq!(decision.receive_window, None, "left as it is");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Payload that the send buffer should be able to hold.
    pub send_buffer: Option<Bytes>,
    /// Largest window to advertise, in payload bytes; [`Bytes::MAX`]: no limit.
    pub receive_window: Option<Bytes>,
    /// Upper bound of the sending rate, payload bytes per second; [`Rate::MAX`]: no limit.
    pub pacing: Option<Rate>,
}

impl Decision {
    /// Leave everything as it is.
    pub const NONE: Self = Self { send_buffer: None, receive_window: None, pacing: None };
}
