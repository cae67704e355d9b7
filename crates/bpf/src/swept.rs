//! The result of a pass over the connections of a network namespace.

/// Counts of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Connections of the watched cgroups that the pass met.
    pub seen: u64,
    /// Connections among these that were unknown before.
    pub adopted: u64,
    /// Connections among these whose buffers were given back now, because they are silent.
    pub given_back: u64,
}
