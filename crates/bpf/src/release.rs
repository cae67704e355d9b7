//! Gives a socket back to the kernel.
//!
//! Problem: a buffer that was set is locked: the kernel's autotuning leaves it alone for ever. Only user space can
//! remove the lock (`SO_BUF_LOCK`), on a descriptor of its own. Autotuning then continues from the present size: it
//! enlarges a receive buffer when more arrives in a round trip than ever before, which a buffer that is too small
//! prevents (`tcp_rcv_space_adjust()`). So each buffer is first set to the size that the kernel would have reached by
//! now.
//! - Send: twice cwnd, with overhead (`tcp_sndbuf_expand()`), within `tcp_wmem`, and not below the queued memory.
//! - Receive: twice the data of a round trip, with overhead (`tcp_rcvbuf_grow()`), or as much as the reader waits for, with
//!   overhead (`tcp_set_rcvlowat()`), within `tcp_rmem`, and not below the memory of unread data and of the offered window.
//! - A buffer that the application had set, and that bufwise was told to take over, gets its former size back and
//!   stays locked. Buffers that bufwise never set are not touched.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use bufwise_socket::namespace;
use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::{Bytes, Rate};

use crate::entries::Entries;
use crate::flow::{FlowState, Owned};
use crate::means::Means;
use crate::owners::Owners;

/// Bytes of buffer memory for a byte of payload: kernels assume that half of the memory is payload
/// (`tcp_scaling_ratio`).
const OVERHEAD: u64 = 2;
/// Factor in both rules of the kernel: room for the data of a round trip, and as much again.
const ROUND_TRIPS: u64 = 2;
/// Number of searches for the processes that hold the sockets: the process that was found may end meanwhile, and the
/// kernel may refuse a call that it grants a moment later (`ENOMEM`).
const SEARCHES: u32 = 2;
/// The pacing rate without a bound.
const UNPACED: Rate = Rate(u64::MAX);
/// The largest value of the window field (RFC 7323).
const LARGEST_FIELD: u64 = 65_535;
/// The largest shift of the window-scale option (RFC 7323).
const LARGEST_SCALE: u32 = 14;

/// How many sockets were given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Number of sockets that were given back.
    pub released: usize,
    /// Sockets in no process that could be found, or gone; those that still exist keep their locks.
    pub not_found: usize,
    /// Number of sockets that the kernel refused to change.
    pub refused: usize,
}

/// Gives a socket back to the kernel's autotuning. Harmless if it was given back before.
///
/// No program may still tune the connection; otherwise it sets the socket again.
///
/// # Errors
/// [`OptionError`] as the kernel answers, notably without `CAP_NET_ADMIN`.
pub fn release(flow: &FlowState, socket: BorrowedFd<'_>) -> Result<(), OptionError> {
    release_to(&Autotuning::of(socket), flow, socket, Means::Force)
}

/// Returns the largest window that a connection with this shift of its window scale can offer, whatever its buffer is.
pub(crate) fn largest_window(scale: u32) -> Bytes {
    Bytes(LARGEST_FIELD << scale.min(LARGEST_SCALE))
}

fn release_to(
    kernel: &Autotuning,
    flow: &FlowState,
    socket: BorrowedFd<'_>,
    means: Means,
) -> Result<(), OptionError> {
    let origin = flow.origin;
    if let Some(rate) = flow.set_pacing
        && options::max_pacing_rate(socket)? == rate
    {
        options::set_max_pacing_rate(socket, UNPACED)?;
    }
    if let Some(unsent) = flow.set_unsent
        && options::notsent_low_water(socket)? == unsent
    {
        options::set_notsent_low_water(socket, Bytes::ZERO)?;
    }
    if flow.set_window.is_some() {
        let scale = options::tcp_info(socket)?.rcv_wscale();
        options::set_window_clamp(socket, largest_window(scale.into()))?;
    }
    // Before Linux 5.15 no call removes a lock: the buffer stays at the largest size that autotuning could have
    // reached.
    let lock = options::buffer_lock(socket).ok();
    let ours = ours_by_now(flow, socket, lock.unwrap_or_default())?;
    // The kernel doubles the value it is given.
    if ours.send {
        let memory = match lock {
            _ if origin.locked.send => origin.send_buffer,
            Some(_) => autotuned_send(kernel, socket)?,
            None => kernel.send.largest,
        };
        means.set_send(socket, Bytes(memory.0 / 2))?;
    }
    if ours.receive {
        let memory = match lock {
            _ if origin.locked.receive => origin.receive_buffer,
            Some(_) => autotuned_receive(kernel, socket)?,
            None => kernel.receive.largest,
        };
        means.set_receive(socket, Bytes(memory.0 / 2))?;
    }
    let Some(mut lock) = lock else { return Ok(()) };
    lock.send &= !ours.send || origin.locked.send;
    lock.receive &= !ours.receive || origin.locked.receive;
    options::set_buffer_lock(socket, lock)
}

/// Returns the buffers that are ours, including those whose request was granted after the last sample: they are locked at the
/// requested size. Autotuning may reach the same size, but locks no buffer.
fn ours_by_now(flow: &FlowState, socket: BorrowedFd<'_>, lock: BufferLock) -> Result<Owned, OptionError> {
    let mut ours = flow.ours();
    if let Some(size) = flow.requested_send_buffer.filter(|_| lock.send && !flow.owned.send) {
        ours.send |= options::send_buffer(socket)? == size;
    }
    if let Some(size) = flow.requested_receive_buffer.filter(|_| lock.receive && !flow.owned.receive) {
        ours.receive |= options::receive_buffer(socket)? == size;
    }
    Ok(ours)
}

/// Returns the send buffer (memory) that the kernel's autotuning would have reached by now.
fn autotuned_send(kernel: &Autotuning, socket: BorrowedFd<'_>) -> Result<Bytes, OptionError> {
    let info = options::tcp_info(socket)?;
    let cwnd = Bytes(u64::from(info.snd_cwnd) * u64::from(info.snd_mss));
    let queued = Bytes(options::memory(socket)?.wmem_queued.into());
    Ok(kernel.send.bound(cwnd.times(ROUND_TRIPS * OVERHEAD)).max(queued))
}

/// Returns the receive buffer (memory) that the kernel's autotuning would have reached by now. It has room for unread data and
/// for the offered window: the kernel drops data for which there is no room.
fn autotuned_receive(kernel: &Autotuning, socket: BorrowedFd<'_>) -> Result<Bytes, OptionError> {
    let (info, memory) = (options::tcp_info(socket)?, options::memory(socket)?);
    // Kernels before Linux 6.2 do not report the window. The present buffer has room for it beside the unread data.
    let in_use = match info.rcv_wnd {
        0 => Bytes(memory.rcvbuf.into()),
        window => Bytes(window.into()).times(OVERHEAD) + Bytes(memory.rmem_alloc.into()),
    };
    let grown = Bytes(info.rcv_space.into()).times(ROUND_TRIPS * OVERHEAD);
    let awaited = options::receive_low_water(socket)?.times(OVERHEAD);
    Ok(kernel.receive.bound(grown.max(awaited)).max(in_use))
}

/// Autotuning's initial size and its bound: the second and third number of `tcp_wmem` and `tcp_rmem`.
struct Range {
    first: Bytes,
    largest: Bytes,
}

impl Range {
    fn read(name: &str) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        let mut numbers = text.split_whitespace().skip(1).map_while(|word| word.parse().ok().map(Bytes));
        Some(Self { first: numbers.next()?, largest: numbers.next()? })
    }

    fn bound(&self, size: Bytes) -> Bytes {
        size.max(self.first).min(self.largest)
    }
}

/// Autotuning's settings in a network namespace.
struct Autotuning {
    send: Range,
    receive: Range,
}

impl Autotuning {
    /// Reads the settings of the socket's namespace; if it cannot be entered, those of our own.
    fn of(socket: BorrowedFd<'_>) -> Self {
        let theirs = namespace::of_socket(socket);
        let read = theirs.and_then(|namespace| namespace::inside(namespace.as_fd(), Self::read));
        read.unwrap_or_else(|_| Self::read())
    }

    /// Reads the settings of the calling thread's namespace. If they cannot be read, they are the kernel's defaults
    /// for hosts with enough memory (`tcp_init()`).
    fn read() -> Self {
        let send = Range { first: Bytes(16 << 10), largest: Bytes(4 << 20) };
        let receive = Range { first: Bytes(131_072), largest: Bytes(6 << 20) };
        Self {
            send: Range::read("tcp_wmem").unwrap_or(send),
            receive: Range::read("tcp_rmem").unwrap_or(receive),
        }
    }
}

/// Gives back all sockets of `entries` that have a setting of bufwise, or may have one since the last sample.
pub(crate) fn release_all(entries: &Entries) -> Released {
    let touched = entries.flows().filter(|flow| flow.is_touched() || flow.is_requesting()).collect();
    release_each(touched, Means::Force, || {
        let owners = Owners::scan();
        move |flow: &FlowState| match flow.origin.inode {
            Some(inode) => owners.socket(inode, flow.cookie),
            None => owners.search(flow.cookie),
        }
    })
}

/// Gives these connections back, on the sockets that a search finds. If a socket is not found, or the kernel refuses,
/// one more search follows.
pub(crate) fn release_each<Socket: AsFd, Find: FnMut(&FlowState) -> Option<Socket>>(
    mut left: Vec<FlowState>,
    means: Means,
    mut search: impl FnMut() -> Find,
) -> Released {
    let mut result = Released::default();
    for _ in 0..SEARCHES {
        if left.is_empty() {
            break;
        }
        let (mut find, mut kernels) = (search(), HashMap::new());
        (result.not_found, result.refused) = (0, 0);
        left.retain(|flow| {
            let released = find(flow).map(|socket| {
                let socket = socket.as_fd();
                let kernel = kernels.entry(flow.origin.netns).or_insert_with(|| Autotuning::of(socket));
                release_to(kernel, flow, socket, means)
            });
            match released {
                Some(Ok(())) => result.released += 1,
                Some(Err(_)) => result.refused += 1,
                None => result.not_found += 1,
            }
            !matches!(released, Some(Ok(())))
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::abi::bw_flow;
    use crate::flow::{RECEIVE, SEND};
    use crate::user::tells_locks;

    #[test]
    fn a_receive_buffer_has_room_for_unread_data_beside_the_offered_window() {
        if !tells_locks() {
            return bufwise_trial::skip("needs Linux 5.15");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Connections inherit it. Without it the host's settings would count.
        options::set_receive_buffer(&listener, Bytes(65_536)).unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let reader = listener.accept().unwrap().0;
        let mut data = [7_u8; 10_000];
        writer.write_all(&data).unwrap();
        // The data arrive and stay unread.
        while reader.peek(&mut data).unwrap() < data.len() {}
        let unread = Bytes(options::memory(&reader).unwrap().rmem_alloc.into());
        let offered = || Bytes(options::tcp_info(&reader).unwrap().rcv_wnd.into());
        let flow = FlowState::from_kernel(1, &bw_flow { set_rcvbuf: 131_072, ..bw_flow::default() });
        let nothing = || Range { first: Bytes::ZERO, largest: Bytes::ZERO };
        let kernel = Autotuning { send: nothing(), receive: nothing() };
        let before = offered();
        release_to(&kernel, &flow, reader.as_fd(), Means::Plain).unwrap();
        // A delayed acknowledgement may have moved the window meanwhile.
        let in_use = before.min(offered()).times(OVERHEAD) + unread;
        let room = options::receive_buffer(&reader).unwrap();
        assert!(unread > Bytes::ZERO && room >= in_use, "{unread} of {in_use}: {room}");
    }

    #[test]
    fn a_receive_buffer_has_room_for_what_its_reader_waits_for() {
        if !tells_locks() {
            return bufwise_trial::skip("needs Linux 5.15");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        options::set_receive_low_water(&reader, Bytes(150_000)).unwrap();
        options::set_receive_buffer(&reader, Bytes(65_536)).unwrap();
        let flow = FlowState::from_kernel(1, &bw_flow { set_rcvbuf: 131_072, ..bw_flow::default() });
        let range = || Range { first: Bytes::ZERO, largest: Bytes::MAX };
        let kernel = Autotuning { send: range(), receive: range() };
        release_to(&kernel, &flow, reader.as_fd(), Means::Plain).unwrap();
        assert_eq!(options::receive_buffer(&reader).unwrap(), Bytes(300_000));
    }

    #[test]
    fn a_buffer_whose_request_was_granted_since_the_last_sample_is_given_back() {
        if !tells_locks() {
            return bufwise_trial::skip("needs Linux 5.15");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let asked = bw_flow { requested_sndbuf: 100_000, requested_rcvbuf: 100_000, ..bw_flow::default() };
        let owned = bw_flow { owned: SEND | RECEIVE, ..asked };
        let (locked, free) = (BufferLock { send: true, receive: true }, BufferLock::default());
        for (flow, present, before, after) in [
            (asked, 50_000, locked, free),
            (asked, 40_000, locked, locked),
            (owned, 50_000, locked, locked),
            (asked, 50_000, free, free),
        ] {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            options::set_send_buffer(&socket, Bytes(present)).unwrap();
            options::set_receive_buffer(&socket, Bytes(present)).unwrap();
            options::set_buffer_lock(&socket, before).unwrap();
            let flow = FlowState::from_kernel(1, &flow);
            assert!(flow.is_requesting() && !flow.is_touched());
            release_to(&Autotuning::read(), &flow, socket.as_fd(), Means::Plain).unwrap();
            assert_eq!(options::buffer_lock(&socket).unwrap(), after);
            let sizes = [options::send_buffer(&socket), options::receive_buffer(&socket)].map(Result::unwrap);
            let stays = sizes == [Bytes(2 * present); 2];
            assert_eq!(stays, before == after, "{present}: {sizes:?}");
        }
    }

    #[test]
    fn what_may_be_written_ahead_is_the_kernels_again_unless_the_application_has_set_it_since() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let flow = FlowState::from_kernel(1, &bw_flow { set_unsent: 131_072, ..bw_flow::default() });
        assert!(flow.is_touched());
        for (present, after) in [(131_072, 0), (16_384, 16_384)] {
            options::set_notsent_low_water(&socket, Bytes(present)).unwrap();
            release_to(&Autotuning::read(), &flow, socket.as_fd(), Means::Plain).unwrap();
            assert_eq!(options::notsent_low_water(&socket).unwrap(), Bytes(after));
        }
    }

    #[test]
    fn a_socket_that_is_refused_once_is_given_back_by_the_next_search() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        options::set_notsent_low_water(&socket, Bytes(131_072)).unwrap();
        let flow = FlowState::from_kernel(1, &bw_flow { set_unsent: 131_072, ..bw_flow::default() });
        // Every option fails on a file that is no socket.
        let refuses = || OwnedFd::from(File::open("/dev/null").unwrap());
        for (refusals, refused) in [(1, 0), (SEARCHES, 1)] {
            let mut searches = 0;
            let released = release_each(vec![flow], Means::Plain, || {
                searches += 1;
                let found = if searches <= refusals { refuses() } else { socket.try_clone().unwrap().into() };
                let mut found = Some(found);
                move |_: &FlowState| found.take()
            });
            assert_eq!(released, Released { released: 1 - refused, not_found: 0, refused });
            assert_eq!(options::notsent_low_water(&socket).unwrap(), Bytes::ZERO);
        }
    }
}
