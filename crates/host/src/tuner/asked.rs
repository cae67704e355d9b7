//! Demands and grants of connections: the figures of a round that views and the log show.

use bufwise_units::Bytes;

/// The requests of one direction's connections at the last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Connections that take part in the shares.
    pub(crate) connections: u64,
    /// Memory that they ask for together.
    pub(crate) demand: Bytes,
    /// Memory that is shared out among them; zero: this direction has no shares.
    pub(crate) shared: Bytes,
    /// Most memory of any of them; `None`: each has its own bound, or there is none.
    pub(crate) level: Option<Bytes>,
    /// Readers that stand: they leave more unread than they should.
    pub(crate) standing: u64,
    /// Memory that these hold unread.
    pub(crate) unread: Bytes,
}

/// Both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskedBoth {
    pub(crate) send: Asked,
    pub(crate) receive: Asked,
}
