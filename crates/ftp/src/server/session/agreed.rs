//! Buffers and probes that a client and this server have agreed on.

use bufwise_mover::probe::Responder;
use bufwise_mover::{BufferGrants, Progress};
use bufwise_units::Bytes;

use crate::server::limits::Grant;
use crate::wire::dialect::ProbeOffer;

/// Buffers of data connections to come.
pub(super) struct ReservedBuffer {
    pub(super) size: Bytes,
    /// Given back with it.
    pub(super) _grant: Grant,
}

/// The probes' ends for the next transfer.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// Answers the client's probes, for a file that it will receive.
    pub(super) responder: Option<Responder>,
    /// The client's port for our probes, for a file that we will receive.
    pub(super) offer: Option<ProbeOffer>,
}

/// The tuning of the transfer that runs.
#[derive(Debug, Default)]
pub(super) struct Tuned {
    /// The client's requests, while we send a file.
    pub(super) grants: Option<(BufferGrants, Grant)>,
    /// Our requests are told, while we receive one.
    pub(super) tells: bool,
    /// The size told to the client last.
    pub(super) told: Option<Bytes>,
    /// The last sample of the transfer.
    pub(super) last: Option<Progress>,
}
