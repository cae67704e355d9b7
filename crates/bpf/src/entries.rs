//! The entries of a map of flows, whole: what one engine hands to the next.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi::{Plain, bw_flow};
use crate::flow::FlowState;

/// Flows per system call when they are read.
const BATCH: u32 = 256;

/// Everything that the programs know of their connections, to be taken over by other programs
/// ([`crate::Engine::inherit`]).
#[derive(Clone, Default)]
pub struct Entries(Vec<(u64, bw_flow)>);

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.flows()).finish()
    }
}

impl Entries {
    /// How many connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The state of each connection.
    pub fn flows(&self) -> impl Iterator<Item = FlowState> + '_ {
        self.0.iter().map(|(cookie, flow)| FlowState::from_kernel(*cookie, flow))
    }

    pub(crate) fn read(map: &MapHandle) -> libbpf_rs::Result<Self> {
        let entries = map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
        let entry = |(key, value): (Vec<u8>, Vec<u8>)| {
            Some((u64::from_ne_bytes(key.try_into().ok()?), bw_flow::read(&value)?))
        };
        Ok(Self(entries.filter_map(entry).collect()))
    }

    /// Writes those that are not over into another map; how many. Whether buffers that were found locked are the
    /// applications' is for the new owner to say.
    pub(crate) fn write(&self, map: &MapHandle, take_over: bool) -> libbpf_rs::Result<usize> {
        let open = self.0.iter().filter(|(_, flow)| !FlowState::is_over(flow));
        let mut written = 0;
        for (cookie, flow) in open {
            let owned = if take_over { 0 } else { flow.owned | flow.found_locks };
            map.update(&cookie.to_ne_bytes(), bw_flow { owned, ..*flow }.bytes(), MapFlags::ANY)?;
            written += 1;
        }
        Ok(written)
    }
}
