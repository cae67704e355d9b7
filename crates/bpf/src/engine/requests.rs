//! The programs' requests for limits that they cannot set themselves.
//!
//! Problem: the programs repeat a request that is not granted within a second, perhaps for another size. If user space is late, it
//! finds both. A callback between the two grants would take the first one for the application's own setting
//! (`bpf/upkeep.h`). So the latest size that was requested of a connection replaces those before.

use std::collections::HashMap;

use bufwise_units::Bytes;

use crate::abi::BwRequest;

/// A request for limits that a program cannot set itself; `None`: the limit stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Cookie of the socket.
    pub cookie: u64,
    /// Limit of the send buffer (memory: twice `SO_SNDBUFFORCE`).
    pub send_buffer: Option<Bytes>,
    /// Limit of the receive buffer (memory: twice `SO_RCVBUFFORCE`).
    pub receive_buffer: Option<Bytes>,
    /// Window clamp (payload), which programs cannot set before Linux 5.11.
    pub window: Option<Bytes>,
}

impl Request {
    pub(super) fn from_kernel(request: BwRequest) -> Self {
        let wanted = |size: u32| (size != 0).then_some(Bytes(size.into()));
        Self {
            cookie: request.cookie,
            send_buffer: wanted(request.sndbuf),
            receive_buffer: wanted(request.rcvbuf),
            window: wanted(request.clamp),
        }
    }
}

/// Merges requests, in the order in which they came, into one for each connection.
pub(super) fn latest(requests: impl Iterator<Item = Request>) -> Vec<Request> {
    let (mut merged, mut places): (Vec<Request>, _) = (Vec::new(), HashMap::new());
    for request in requests {
        let place = *places.entry(request.cookie).or_insert(merged.len());
        let Some(before) = merged.get_mut(place) else {
            merged.push(request);
            continue;
        };
        before.send_buffer = request.send_buffer.or(before.send_buffer);
        before.receive_buffer = request.receive_buffer.or(before.receive_buffer);
        before.window = request.window.or(before.window);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_size_that_was_requested_of_a_connection_replaces_those_before() {
        let request = |cookie, [sndbuf, rcvbuf, clamp]: [u32; 3]| {
            Request::from_kernel(BwRequest { cookie, sndbuf, rcvbuf, clamp, unused: 0 })
        };
        let came = [
            request(7, [1_000, 0, 0]),
            request(8, [0, 5_000, 0]),
            request(7, [0, 2_000, 0]),
            request(7, [3_000, 0, 0]),
            request(7, [0, 0, 4_000]),
        ];
        assert_eq!(latest(came.into_iter()), [request(7, [3_000, 2_000, 4_000]), request(8, [0, 5_000, 0])]);
        assert_eq!(latest(std::iter::empty()), []);
    }
}
