//! The complete entries of a map of flows, which one engine passes to the next.
#![expect(unsafe_code, reason = "the library's iterator over batches stops at the first that is not full")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};

use crate::abi::{Plain, bw_flow};
use crate::flow::FlowState;

/// Number of flows per system call.
const BATCH: u32 = 256;

/// The programs' records of their connections, for other programs to take over ([`crate::Engine::inherit`]).
#[derive(Clone, Default)]
pub struct Entries(Vec<(u64, bw_flow)>);

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.flows()).finish()
    }
}

impl Entries {
    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the state of each connection.
    pub fn flows(&self) -> impl Iterator<Item = FlowState> + '_ {
        self.0.iter().map(|(cookie, flow)| FlowState::from_kernel(*cookie, flow))
    }

    /// Keeps only the selected connections.
    pub(crate) fn only(mut self, is_wanted: impl Fn(&FlowState) -> bool) -> Self {
        self.0.retain(|(cookie, flow)| is_wanted(&FlowState::from_kernel(*cookie, flow)));
        self
    }

    /// Returns the state of each connection of a map. A daemon calls this several times a second, so only one batch of
    /// records is in memory at a time: all records together take more memory, which the kernel would have to clear first.
    pub(crate) fn states(map: &MapHandle) -> libbpf_rs::Result<Vec<FlowState>> {
        let (mut states, mut batch, mut is_more) = (Vec::new(), Batch::of(map), true);
        while is_more {
            is_more = batch.read(map)?;
            states.extend(batch.entries().map(|(cookie, flow)| FlowState::from_kernel(cookie, &flow)));
        }
        Ok(states)
    }

    pub(crate) fn read(map: &MapHandle) -> libbpf_rs::Result<Self> {
        let (mut entries, mut batch) = (Self::default(), Batch::of(map));
        while batch.read(map)? {
            entries.0.extend(batch.entries());
        }
        entries.0.extend(batch.entries());
        Ok(entries)
    }

    /// Writes the records of open connections into another map; returns their number. Three facts are reset for the new
    /// owner: whether buffers that were found locked are the applications', which groups match a program, and the sizes that
    /// the kernel has cut, because the new owner has read the host's maxima since.
    pub(crate) fn write(&self, map: &MapHandle, take_over: bool) -> libbpf_rs::Result<usize> {
        let open = self.0.iter().filter(|(_, flow)| !FlowState::is_over(flow));
        let mut written = 0;
        for (cookie, flow) in open {
            let owned = if take_over { 0 } else { flow.owned | flow.found_locks };
            let entry = bw_flow { owned, program_groups: 0, cut_sndbuf: 0, cut_rcvbuf: 0, ..*flow };
            map.update(&cookie.to_ne_bytes(), entry.bytes(), MapFlags::ANY)?;
            written += 1;
        }
        Ok(written)
    }
}

/// A batch of entries, read by one system call. The kernel returns only whole buckets of its hash table, so a batch
/// that is not full need not be the last; `libbpf_rs`'s own iterator stops there and omits the rest.
struct Batch {
    /// Start of the next batch: an opaque number of the kernel.
    position: Option<u64>,
    keys: Vec<u64>,
    values: Vec<u8>,
    value_bytes: usize,
}

impl Batch {
    fn of(map: &MapHandle) -> Self {
        Self { position: None, keys: Vec::new(), values: Vec::new(), value_bytes: map.value_size() as usize }
    }

    /// Reads the next batch; returns whether there may be more.
    fn read(&mut self, map: &MapHandle) -> libbpf_rs::Result<bool> {
        let mut size = BATCH;
        loop {
            match self.call(map, size) {
                Ok(()) => return Ok(true),
                Err(error) => match error.kind() {
                    io::ErrorKind::NotFound => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    // A bucket is longer than the batch.
                    io::ErrorKind::StorageFull if size < map.max_entries() => size *= 2,
                    _ => {
                        self.keys.clear();
                        return Err(error.into());
                    }
                },
            }
        }
    }

    fn call(&mut self, map: &MapHandle, size: u32) -> io::Result<()> {
        let (mut count, mut next) = (size, 0_u64);
        self.keys.resize(size as usize, 0);
        self.values.resize(size as usize * self.value_bytes, 0);
        let position = self.position.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: keys and values have room for `count` entries of the map's sizes, the positions are as large as a key, and
        // a null pointer stands for no options; the kernel writes no more than that and keeps nothing.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                position.cast(),
                ptr::from_mut(&mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let error = (result != 0).then(io::Error::last_os_error);
        // The count is valid after success and at the end of the map (`ENOENT`), not after other errors.
        let is_told = error.as_ref().is_none_or(|error| error.kind() == io::ErrorKind::NotFound);
        self.keys.truncate(if is_told { count as usize } else { 0 });
        if is_told {
            self.position = Some(next);
        }
        error.map_or(Ok(()), Err)
    }

    fn entries(&self) -> impl Iterator<Item = (u64, bw_flow)> + '_ {
        let values = self.values.chunks_exact(self.value_bytes);
        self.keys.iter().zip(values).filter_map(|(key, value)| Some((*key, bw_flow::read(value)?)))
    }
}
