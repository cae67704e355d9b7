//! Socket options that size a connection's buffers and bound its rate, typed.
//!
//! Sources: socket(7), tcp(7), `net/core/sock.c`, `net/ipv4/tcp.c`. Calls that libraries wrap are made through
//! them; the others go through two small functions, `get_raw` and `set_raw`.
//! Properties kept: every error names the option and, when setting, the value; a value too large for the
//! kernel's type is set as the largest of that type.

#![expect(unsafe_code, reason = "several options are wrapped by no library")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use bufwise_units::{Bytes, Rate};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;

use crate::info::{SkMem, TcpInfo};

/// Why an option could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// Reading failed.
    #[error("reading {option} failed: {source}")]
    Get {
        /// The option.
        option: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Setting failed.
    #[error("setting {option} to {value} failed: {source}")]
    Set {
        /// The option.
        option: &'static str,
        /// The requested value.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The buffers excluded from autotuning because a program set their size: `SO_BUF_LOCK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferLock {
    /// Send autotuning is off.
    pub send: bool,
    /// Receive autotuning is off.
    pub receive: bool,
}

/// `SOCK_SNDBUF_LOCK`.
const SEND_LOCK: c_int = 1;
/// `SOCK_RCVBUF_LOCK`.
const RECEIVE_LOCK: c_int = 2;

/// Reads the kernel's information on a TCP connection (`TCP_INFO`).
///
/// ```
/// # use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
///
/// use bufwise_socket::options;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut stream = TcpStream::connect(listener.local_addr()?)?;
/// stream.write_all(b"twelve bytes")?;
/// let info = options::tcp_info(&stream)?;
/// assert_eq!(info.bytes_sent, 12);
///  // The sample that a policy decides on.
/// let sample = info.to_sample(&options::memory(&stream)?);
/// assert_eq!(sample.cwnd, info.cwnd());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OptionError::Get`] for anything but a TCP socket.
pub fn tcp_info(socket: impl AsFd) -> Result<TcpInfo, OptionError> {
    let mut buffer = [0; size_of::<TcpInfo>()];
    let len =
        get_raw(&socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer).map_err(reading("TCP_INFO"))?;
    Ok(TcpInfo::decode(buffer.get(..len).unwrap_or(&buffer)))
}

/// Reads the memory that a socket holds, and its limits (`SO_MEMINFO`).
///
/// # Errors
/// [`OptionError::Get`] as the kernel answers.
pub fn memory(socket: impl AsFd) -> Result<SkMem, OptionError> {
    let mut buffer = [0; size_of::<SkMem>()];
    let len =
        get_raw(&socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut buffer).map_err(reading("SO_MEMINFO"))?;
    Ok(SkMem::decode(buffer.get(..len).unwrap_or(&buffer)))
}

/// Reads the limit of the send buffer (`SO_SNDBUF`) in bytes of memory: twice the size that was set.
///
/// # Errors
/// [`OptionError::Get`] as the kernel answers.
pub fn send_buffer(socket: impl AsFd) -> Result<Bytes, OptionError> {
    SockRef::from(&socket).send_buffer_size().map(|size| Bytes(size as u64)).map_err(reading("SO_SNDBUF"))
}

/// Reads the limit of the receive buffer (`SO_RCVBUF`) in bytes of memory: twice the size that was set.
///
/// # Errors
/// [`OptionError::Get`] as the kernel answers.
pub fn receive_buffer(socket: impl AsFd) -> Result<Bytes, OptionError> {
    SockRef::from(&socket).recv_buffer_size().map(|size| Bytes(size as u64)).map_err(reading("SO_RCVBUF"))
}

/// Sets and locks the send buffer; the kernel takes at most `net.core.wmem_max` and doubles it for overhead.
///
/// ```
/// use bufwise_socket::options;
/// use bufwise_units::Bytes;
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// options::set_send_buffer(&listener, Bytes(65_536))?;
/// assert_eq!(options::send_buffer(&listener)?, Bytes(131_072));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OptionError::Set`] as the kernel answers.
pub fn set_send_buffer(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    SockRef::from(&socket).set_send_buffer_size(as_int(size) as usize).map_err(setting("SO_SNDBUF", size))
}

/// Sets and locks the receive buffer; the kernel takes at most `net.core.rmem_max` and doubles it for overhead.
///
/// # Errors
/// [`OptionError::Set`] as the kernel answers.
pub fn set_receive_buffer(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    SockRef::from(&socket).set_recv_buffer_size(as_int(size) as usize).map_err(setting("SO_RCVBUF", size))
}

/// As [`set_send_buffer`], but not bounded by `net.core.wmem_max`.
///
/// # Errors
/// [`OptionError::Set`], notably without `CAP_NET_ADMIN`.
pub fn force_send_buffer(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    setsockopt(&socket, sockopt::SndBufForce, &(as_int(size) as usize))
        .map_err(|errno| setting("SO_SNDBUFFORCE", size)(errno.into()))
}

/// As [`set_receive_buffer`], but not bounded by `net.core.rmem_max`.
///
/// # Errors
/// [`OptionError::Set`], notably without `CAP_NET_ADMIN`.
pub fn force_receive_buffer(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    setsockopt(&socket, sockopt::RcvBufForce, &(as_int(size) as usize))
        .map_err(|errno| setting("SO_RCVBUFFORCE", size)(errno.into()))
}

/// Reads which buffers are locked (`SO_BUF_LOCK`).
///
/// # Errors
/// [`OptionError::Get`], notably before Linux 5.15.
pub fn buffer_lock(socket: impl AsFd) -> Result<BufferLock, OptionError> {
    let mut bits = [0; size_of::<c_int>()];
    get_raw(&socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut bits).map_err(reading("SO_BUF_LOCK"))?;
    let bits = c_int::from_ne_bytes(bits);
    Ok(BufferLock { send: bits & SEND_LOCK != 0, receive: bits & RECEIVE_LOCK != 0 })
}

/// Locks buffers at their present size, or returns them to autotuning; needs no privilege.
///
/// # Errors
/// [`OptionError::Set`], notably before Linux 5.15.
pub fn set_buffer_lock(socket: impl AsFd, lock: BufferLock) -> Result<(), OptionError> {
    let bits = if lock.send { SEND_LOCK } else { 0 } | if lock.receive { RECEIVE_LOCK } else { 0 };
    set_raw(&socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &bits.to_ne_bytes())
        .map_err(setting("SO_BUF_LOCK", bits))
}

/// Reads the largest window that the connection may offer (`TCP_WINDOW_CLAMP`), in payload bytes.
///
/// # Errors
/// [`OptionError::Get`] for anything but a TCP socket.
pub fn window_clamp(socket: impl AsFd) -> Result<Bytes, OptionError> {
    let mut value = [0; size_of::<c_int>()];
    get_raw(&socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &mut value)
        .map_err(reading("TCP_WINDOW_CLAMP"))?;
    Ok(Bytes(u64::from(c_int::from_ne_bytes(value).cast_unsigned())))
}

/// Bounds the window that the connection offers, in payload bytes; the kernel's minimum is about 1,152.
///
/// This sets no lock. Receive autotuning overwrites the clamp when it next enlarges the buffer; so does the first
/// segment that changes the kernel's estimate of the segment size (`tcp_measure_rcv_mss()`), even if the buffer is
/// locked. Check the clamp again while data arrives. A window already offered is not withdrawn; it shrinks as data
/// arrives. If set before the connection is made, the clamp also bounds the window scale.
///
/// ```
/// use bufwise_socket::options;
/// use bufwise_units::Bytes;
///
/// # use std::net::{TcpListener, TcpStream};
/// # let listener = TcpListener::bind("127.0.0.1:0")?;
/// # let stream = TcpStream::connect(listener.local_addr()?)?;
/// options::set_window_clamp(&stream, Bytes(20_000))?;
/// assert_eq!(options::window_clamp(&stream)?, Bytes(20_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OptionError::Set`]; 0 is refused on a connected socket.
pub fn set_window_clamp(socket: impl AsFd, window: Bytes) -> Result<(), OptionError> {
    set_raw(&socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &as_int(window).to_ne_bytes())
        .map_err(setting("TCP_WINDOW_CLAMP", window))
}

/// Reads the upper bound of the socket's sending rate (`SO_MAX_PACING_RATE`); [`Rate::MAX`]: no bound.
///
/// # Errors
/// [`OptionError::Get`] as the kernel answers.
pub fn max_pacing_rate(socket: impl AsFd) -> Result<Rate, OptionError> {
    let mut value = [0; size_of::<u64>()];
    get_raw(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut value)
        .map_err(reading("SO_MAX_PACING_RATE"))?;
    Ok(Rate(u64::from_ne_bytes(value)))
}

/// Bounds the socket's sending rate (`SO_MAX_PACING_RATE`); a rate below [`Rate::MAX`] turns pacing on.
///
/// ```
/// use bufwise_socket::options;
/// use bufwise_units::Rate;
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// assert_eq!(options::max_pacing_rate(&listener)?, Rate::MAX, "no bound");
/// options::set_max_pacing_rate(&listener, "100mbit".parse()?)?;
/// assert_eq!(options::max_pacing_rate(&listener)?, Rate(12_500_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OptionError::Set`] as the kernel answers.
pub fn set_max_pacing_rate(socket: impl AsFd, rate: Rate) -> Result<(), OptionError> {
    set_raw(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate.0.to_ne_bytes())
        .map_err(setting("SO_MAX_PACING_RATE", rate))
}

/// Reads the name of the congestion control in use (`TCP_CONGESTION`).
///
/// # Errors
/// [`OptionError::Get`] for anything but a TCP socket.
pub fn congestion_control(socket: impl AsFd) -> Result<String, OptionError> {
    let name = SockRef::from(&socket).tcp_congestion().map_err(reading("TCP_CONGESTION"))?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Sets the congestion control by its name (`TCP_CONGESTION`).
///
/// # Errors
/// [`OptionError::Set`]: no such algorithm (`NotFound`), or not allowed to this user (`PermissionDenied`).
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> Result<(), OptionError> {
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes()).map_err(setting("TCP_CONGESTION", name))
}

/// Reads how many bytes may wait unsent before the socket stops being writable (`TCP_NOTSENT_LOWAT`).
///
/// # Errors
/// [`OptionError::Get`] for anything but a TCP socket.
pub fn notsent_low_water(socket: impl AsFd) -> Result<Bytes, OptionError> {
    SockRef::from(&socket)
        .tcp_notsent_lowat()
        .map(|size| Bytes(size.into()))
        .map_err(reading("TCP_NOTSENT_LOWAT"))
}

/// Bounds the bytes that may wait unsent before the socket stops being writable (`TCP_NOTSENT_LOWAT`).
///
/// # Errors
/// [`OptionError::Set`] for anything but a TCP socket.
pub fn set_notsent_low_water(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    SockRef::from(&socket)
        .set_tcp_notsent_lowat(u32::try_from(size.0).unwrap_or(u32::MAX))
        .map_err(setting("TCP_NOTSENT_LOWAT", size))
}

/// Reads how many bytes must have arrived before the socket counts as readable (`SO_RCVLOWAT`); at least 1.
///
/// # Errors
/// [`OptionError::Get`] for a descriptor that is no socket.
pub fn receive_low_water(socket: impl AsFd) -> Result<Bytes, OptionError> {
    let mut value = [0; size_of::<c_int>()];
    get_raw(&socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut value).map_err(reading("SO_RCVLOWAT"))?;
    Ok(Bytes(u64::from(c_int::from_ne_bytes(value).cast_unsigned())))
}

/// Sets how many bytes must have arrived before the socket counts as readable (`SO_RCVLOWAT`); the end of the stream,
/// an error or a full window make it readable earlier. 0 counts as 1.
///
/// # Errors
/// [`OptionError::Set`] for a descriptor that is no socket.
pub fn set_receive_low_water(socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
    set_raw(&socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &as_int(size).to_ne_bytes())
        .map_err(setting("SO_RCVLOWAT", size))
}

/// Reads the unique number of the socket's network namespace (`SO_NETNS_COOKIE`); it is never reused while the system
/// runs.
///
/// # Errors
/// [`OptionError::Get`], notably before Linux 5.14.
pub fn namespace_cookie(socket: impl AsFd) -> Result<u64, OptionError> {
    let mut value = [0; size_of::<u64>()];
    get_raw(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut value)
        .map_err(reading("SO_NETNS_COOKIE"))?;
    Ok(u64::from_ne_bytes(value))
}

/// Converts to the kernel's `int`; larger values become `c_int::MAX`.
fn as_int(size: Bytes) -> c_int {
    c_int::try_from(size.0).unwrap_or(c_int::MAX)
}

fn reading(option: &'static str) -> impl FnOnce(io::Error) -> OptionError {
    move |source| OptionError::Get { option, source }
}

fn setting(option: &'static str, value: impl ToString) -> impl FnOnce(io::Error) -> OptionError {
    move |source| OptionError::Set { option, value: value.to_string(), source }
}

/// Reads an option into `into`; returns the number of bytes that the kernel wrote, at most `into.len()`.
fn get_raw(socket: &impl AsFd, level: c_int, option: c_int, into: &mut [u8]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(into.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the descriptor is open for the call; the kernel writes at most `len` bytes to `into`, whose
    // length `len` is, and the number written to `len`.
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, into.as_mut_ptr().cast(), &raw mut len)
    };
    if status == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

fn set_raw(socket: &impl AsFd, level: c_int, option: c_int, value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the descriptor is open for the call; the kernel reads at most `len` bytes of `value`, whose
    // length `len` is.
    let status =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::{Duration, Instant};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn sysctl(name: &str) -> u64 {
        std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn sockets_of_one_namespace_have_its_cookie() {
        let (client, _server) = pair();
        let cookie = namespace_cookie(&client).unwrap();
        assert_ne!(cookie, 0);
        assert_eq!(namespace_cookie(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap(), cookie);
    }

    #[test]
    fn tcp_info_counts_real_traffic() {
        let (mut client, mut server) = pair();
        client.write_all(&[1; 300_000]).unwrap();
        server.read_exact(&mut vec![0; 300_000]).unwrap();
        // The reply's segment acknowledges everything before it.
        server.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let sent = tcp_info(&client).unwrap();
        // A machine that stands still may repeat a segment.
        assert_eq!((sent.bytes_sent - sent.bytes_retrans, sent.notsent_bytes), (300_000, 0));
        assert_eq!(sent.bytes_acked, 300_000 + 1, "the SYN counts as one");
        assert_eq!(sent.bytes_received, 1);
        assert!(sent.srtt().is_some() && sent.min_rtt() <= sent.srtt());
        assert!(sent.snd_cwnd >= 10 && sent.snd_mss >= 500 && sent.rcv_wnd > 0);
        let received = tcp_info(&server).unwrap();
        assert_eq!(received.bytes_received, 300_000);
        assert_eq!(received.rcv_wnd >> received.rcv_wscale(), sent.snd_wnd >> received.rcv_wscale());
        let sample = sent.to_sample(&memory(&client).unwrap());
        assert_eq!(sample.cwnd, Bytes(u64::from(sent.snd_cwnd) * u64::from(sent.snd_mss)));
    }

    #[test]
    fn errors_name_the_option_and_the_value() {
        let (client, _server) = pair();
        let error = set_congestion_control(&client, "no-such").unwrap_err();
        assert!(error.to_string().starts_with("setting TCP_CONGESTION to no-such failed: "), "{error}");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_info(&socket).unwrap_err().to_string().starts_with("reading TCP_INFO failed: "));
        let error = set_window_clamp(&client, Bytes::ZERO).unwrap_err();
        assert!(error.to_string().contains("TCP_WINDOW_CLAMP to 0 B"), "{error}");
    }

    #[test]
    fn buffers_are_doubled_capped_and_locked() {
        let (client, _server) = pair();
        assert_eq!(buffer_lock(&client).unwrap(), BufferLock::default());
        set_send_buffer(&client, Bytes(50_000)).unwrap();
        assert_eq!(send_buffer(&client).unwrap(), Bytes(100_000));
        assert_eq!(u64::from(memory(&client).unwrap().sndbuf), 100_000);
        assert_eq!(buffer_lock(&client).unwrap(), BufferLock { send: true, receive: false });
        set_receive_buffer(&client, Bytes::MAX).unwrap();
        assert_eq!(receive_buffer(&client).unwrap(), Bytes(2 * sysctl("net/core/rmem_max")));
        assert_eq!(buffer_lock(&client).unwrap(), BufferLock { send: true, receive: true });
        set_buffer_lock(&client, BufferLock::default()).unwrap();
        assert_eq!(buffer_lock(&client).unwrap(), BufferLock::default());
    }

    #[test]
    fn root_force_goes_beyond_the_hosts_maximum() {
        let (client, _server) = pair();
        let beyond = Bytes(sysctl("net/core/rmem_max").max(sysctl("net/core/wmem_max")) + (1 << 20));
        if let Err(error) = force_receive_buffer(&client, beyond) {
            return bufwise_trial::skip(&format!("needs root: {error}"));
        }
        force_send_buffer(&client, beyond).unwrap();
        assert_eq!(receive_buffer(&client).unwrap(), beyond.times(2));
        assert_eq!(send_buffer(&client).unwrap(), beyond.times(2));
    }

    #[test]
    fn simple_options_read_back() {
        let (client, _server) = pair();
        set_notsent_low_water(&client, Bytes(16_384)).unwrap();
        assert_eq!(notsent_low_water(&client).unwrap(), Bytes(16_384));
        set_congestion_control(&client, "reno").unwrap();
        assert_eq!(congestion_control(&client).unwrap(), "reno");
        assert_eq!(max_pacing_rate(&client).unwrap(), Rate(u64::MAX));
        set_max_pacing_rate(&client, Rate(6 << 30)).unwrap();
        assert_eq!(max_pacing_rate(&client).unwrap(), Rate(6 << 30));
    }

    #[test]
    fn below_the_low_water_mark_nothing_is_readable_before_the_end() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let (mut client, server) = pair();
        let readable = |timeout: PollTimeout| {
            let mut fds = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, timeout).unwrap() == 1
        };
        assert_eq!(receive_low_water(&server).unwrap(), Bytes(1));
        set_receive_low_water(&server, Bytes(10_000)).unwrap();
        assert_eq!(receive_low_water(&server).unwrap(), Bytes(10_000));
        client.write_all(&[7; 9_999]).unwrap();
        server.peek(&mut [0; 1]).expect("the bytes are there");
        assert!(!readable(PollTimeout::ZERO));
        client.write_all(&[7; 1]).unwrap();
        assert!(readable(PollTimeout::from(5_000_u16)));
    }

    /// Moves `total` bytes through a fresh connection; calls `each` after every read with both ends and the bytes
    /// read so far.
    fn transfer(total: usize, mut each: impl FnMut(&TcpStream, &TcpStream, usize)) {
        let (client, mut server) = pair();
        each(&client, &server, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&vec![7; total]).unwrap());
            let (mut buffer, mut read) = (vec![0; 65_536], 0);
            while read < total {
                read += server.read(&mut buffer).unwrap();
                each(&client, &server, read);
            }
        });
    }

    #[test]
    fn a_clamp_set_while_data_flows_bounds_the_window() {
        let clamp = Bytes(100_000);
        let (mut clamped, mut before, mut after) = (false, 0, 0);
        transfer(12_000_000, |sender, receiver, read| {
            let window = tcp_info(sender).unwrap().snd_wnd;
            match read {
                0 => set_receive_buffer(receiver, Bytes(1 << 20)).unwrap(),
                1..4_000_000 => before = before.max(window),
                _ if !clamped => {
                    set_window_clamp(receiver, clamp).unwrap();
                    clamped = true;
                }
                // By now more bytes have arrived than the largest window offered before the clamp.
                8_000_000.. => after = after.max(window),
                _ => {}
            }
            assert!(!clamped || window_clamp(receiver).unwrap() == clamp);
        });
        assert!(before > 200_000, "window {before} before");
        // The scale rounds up to its quantum, at most 16 KiB and here far less.
        assert!((32_768..=116_384).contains(&after), "window {after} after");
    }

    #[test]
    fn pacing_bounds_the_rate() {
        let paced = || {
            let start = Instant::now();
            transfer(4_000_000, |sender, _, read| {
                if read == 0 {
                    set_max_pacing_rate(sender, Rate(16_000_000)).unwrap();
                }
            });
            start.elapsed().as_secs_f64()
        };
        // 0.25 s; a first burst of some segments is free. A machine that stands still takes longer, but not each time.
        let mut all = std::iter::repeat_with(paced).take(5);
        let seconds = all.find(|seconds| *seconds < 2.0).expect("2 s are enough");
        assert!(seconds >= 0.2, "{seconds} s");
    }

    #[test]
    fn info_of_a_closing_connection_is_still_readable() {
        let (client, server) = pair();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        drop(server);
        assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        assert_eq!(tcp_info(&client).unwrap().state, 8, "CLOSE_WAIT");
    }
}
