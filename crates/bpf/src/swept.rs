//! The result of a pass over the connections of a network namespace.

/// Counts of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Connections of the watched cgroups that it met.
    pub seen: u64,
    /// Of these, those that had not been known.
    pub adopted: u64,
    /// Of these, those whose buffers were given back now, because they have been silent.
    pub given_back: u64,
}
