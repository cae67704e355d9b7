//! Demands and grants of a round of shares, as views and the log show them.

use bufwise_units::Bytes;

/// The demand of one direction's connections at the last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Connections that take part in the shares, and stalled senders.
    pub(crate) connections: u64,
    /// Memory that they demand together, with what closing connections and stalled senders hold.
    pub(crate) demand: Bytes,
    /// Memory that is shared out among them; zero: this direction has no shares.
    pub(crate) shared: Bytes,
    /// Most memory of any connection; `None`: each has its own bound, or there is none.
    pub(crate) level: Option<Bytes>,
    /// Stalled readers: connections with more unread data than a round trip brings or an equal share.
    pub(crate) standing: u64,
    /// Unread memory of the stalled readers.
    pub(crate) unread: Bytes,
}

impl Asked {
    /// Returns whether there are shares, and memory for all demands.
    pub(super) fn is_met(&self) -> bool {
        self.demand < self.shared
    }
}

/// The demands of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskedBoth {
    pub(crate) send: Asked,
    pub(crate) receive: Asked,
}
