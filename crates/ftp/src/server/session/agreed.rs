//! Buffers and probes that a client and this server have agreed on.

use bufwise_mover::probe::Responder;
use bufwise_mover::{BufferGrants, Progress};
use bufwise_units::Bytes;

use crate::server::limits::Grant;
use crate::wire::dialect::ProbeOffer;

/// Buffers of data connections to come.
pub(super) struct ReservedBuffer {
    pub(super) size: Bytes,
    /// Gives the memory back when dropped.
    pub(super) grant: Grant,
}

/// Both ends of the probes, for the next transfer.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// Answers the client's probes, for a file that it will receive.
    pub(super) responder: Option<Responder>,
    /// The client's port for our probes, for a file that we will receive.
    pub(super) offer: Option<ProbeOffer>,
}

/// Tuning of the running transfer.
#[derive(Debug, Default)]
pub(super) struct Tuned {
    /// The client's requests, while we send a file.
    pub(super) grants: Option<(BufferGrants, Grant)>,
    /// Whether our requests are sent to the client, while we receive a file.
    pub(super) tells: bool,
    /// The size told to the client last.
    pub(super) told: Option<Bytes>,
    /// The last sample of the transfer.
    pub(super) last: Option<Progress>,
}
