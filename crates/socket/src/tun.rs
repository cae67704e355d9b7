//! A TUN device: the end of an emulated link that the kernel sees as a network interface.
//!
//! Problem: packets of the real kernel's TCP must pass through a program at several Gbit/s. The device is
//! opened without packet information, with the header of [`crate::vnet`], and with checksum and TCP
//! segmentation left to the reader, so that one system call carries up to 64 KiB.
//! Source: Linux `Documentation/networking/tuntap.rst`, `drivers/net/tun.c`.
//! Properties kept: the device belongs to the network namespace of the thread that opened it; it is never
//! persistent, so it vanishes with the descriptor, also when the process is killed; no call blocks.

#![expect(unsafe_code, reason = "the device is configured by ioctl, which no library wraps safely")]

use std::ffi::{c_int, c_short, c_ulong};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::vnet::HEADER_LEN;

const CLONE_DEVICE: &str = "/dev/net/tun";

/// Work that the reader of the device takes over from the kernel: checksums and TCP segmentation.
const OFFLOADS: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// Largest read or write: header and a segment of the largest size IP allows.
pub const MAX_FRAME: usize = HEADER_LEN + 65_535;

/// Why a TUN device could not be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The system has no TUN driver, or the container was not given the device.
    #[error("{CLONE_DEVICE} is missing: load the driver (modprobe tun) or give the device to the container")]
    NoDevice,
    /// The caller may not create network devices here.
    #[error(
        "no permission to create TUN device {name}: run as root, or in a user namespace that owns the network"
    )]
    NoPermission {
        /// The device asked for.
        name: String,
    },
    /// The name is empty, `.` or `..`, longer than 15 bytes, or holds `/`, `:`, `%`, white space or NUL.
    #[error("{name:?} cannot name a network device: 1 to 15 bytes without '/', ':', spaces or NUL")]
    BadName {
        /// The device asked for.
        name: String,
    },
    /// A device of that name is open already.
    #[error("TUN device {name} is in use: choose another name or end the program that holds it")]
    InUse {
        /// The device asked for.
        name: String,
    },
    /// Anything else the kernel answered.
    #[error("{operation} of TUN device {name} failed: {source}")]
    Other {
        /// The step that failed.
        operation: &'static str,
        /// The device asked for.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An open TUN device, ready for non-blocking reads and writes of header and packet.
///
/// ```
/// use bufwise_socket::tun::{Tun, TunError};
///
///  // A name is checked before the kernel is called.
/// assert!(matches!(Tun::open("far too long a name"), Err(TunError::BadName { .. })));
/// ```
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
}

impl Tun {
    /// Creates the device `name` in the calling thread's network namespace; it starts without addresses, down.
    ///
    /// # Errors
    /// Any [`TunError`]; no device is left behind.
    pub fn open(name: &str) -> Result<Self, TunError> {
        let mut request = interface_request(name)?;
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = open(CLONE_DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => TunError::NoDevice,
            errno => classify("opening", name, errno),
        })?;
        let header_len = HEADER_LEN as c_int;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`; `request` is one, initialised, and outlives the call.
        let created = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        Errno::result(created).map_err(|errno| classify("creation", name, errno))?;
        // SAFETY: TUNSETVNETHDRSZ reads one int, which outlives the call.
        let sized = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const header_len) };
        Errno::result(sized).map_err(|errno| classify("setting the header length", name, errno))?;
        // SAFETY: TUNSETOFFLOAD takes its flags by value and touches no memory of ours.
        let offloaded =
            unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, c_ulong::from(OFFLOADS)) };
        Errno::result(offloaded).map_err(|errno| classify("offering segmentation", name, errno))?;
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one frame (header and packet) that the kernel sends out of the interface.
    ///
    /// `buffer` should hold [`MAX_FRAME`] bytes; the kernel cuts off what does not fit.
    ///
    /// # Errors
    /// `WouldBlock` if no packet waits; else the kernel's error (`EIO` while the interface is down).
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(&self.fd, buffer)?)
    }

    /// Gives the kernel one frame (header and packet, in any number of pieces) as if it had arrived.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel has no room; `InvalidInput` for a header that contradicts the packet;
    /// else the kernel's error (`EIO` while the interface is down).
    pub fn write_vectored(&self, frame: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(nix::sys::uio::writev(&self.fd, frame)?)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the request that creates device `name`, or an error for a name that the kernel refuses (`dev_valid_name`)
/// or that holds `%`, which the kernel would expand to a number.
fn interface_request(name: &str) -> Result<libc::ifreq, TunError> {
    let unusable = |byte: u8| matches!(byte, 0 | b'/' | b':' | b'%') || byte.is_ascii_whitespace();
    if name.is_empty()
        || name.len() >= libc::IFNAMSIZ
        || matches!(name, "." | "..")
        || name.bytes().any(unusable)
    {
        return Err(TunError::BadName { name: name.to_owned() });
    }
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        // Signed on x86, unsigned on ARM.
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

fn classify(operation: &'static str, name: &str, errno: Errno) -> TunError {
    let name = name.to_owned();
    match errno {
        Errno::EPERM | Errno::EACCES => TunError::NoPermission { name },
        Errno::EBUSY | Errno::EEXIST => TunError::InUse { name },
        errno => TunError::Other { operation, name, source: errno.into() },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::vnet::VnetHeader;
    use nix::sched::{CloneFlags, unshare};
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    /// Serialises these tests: a command that another test starts would inherit our descriptors until its `exec`.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Runs `body` on a thread with a network namespace of its own; skips the test if that is refused.
    pub(crate) fn in_own_namespace(body: impl FnOnce() + Send) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|scope| {
            let outcome = scope.spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
                Ok(()) => body(),
                Err(errno) => bufwise_trial::skip(&format!("a network namespace needs root: {errno}")),
            });
            outcome.join().expect("the body's assertions hold");
        });
    }

    fn interfaces() -> String {
        std::fs::read_to_string("/proc/thread-self/net/dev").expect("procfs is mounted")
    }

    /// Assigns 198.18.9.1/24 to the device and switches it on.
    fn bring_up(tun: &Tun) {
        for command in
            [format!("addr add 198.18.9.1/24 dev {}", tun.name()), format!("link set {} up", tun.name())]
        {
            let status = std::process::Command::new("ip").args(command.split(' ')).status().unwrap();
            assert!(status.success(), "ip {command}");
        }
    }

    #[test]
    fn names_the_kernel_would_refuse_are_refused_first() {
        for name in ["", "a/b", "a b", "a:b", "tun%d", ".", "..", "sixteen-bytes-xx", "nul\0"] {
            assert!(matches!(Tun::open(name), Err(TunError::BadName { .. })), "{name:?}");
        }
    }

    #[test]
    fn root_device_lives_in_the_callers_namespace_and_dies_with_the_descriptor() {
        in_own_namespace(|| {
            let tun = Tun::open("bw-test0").expect("a TUN device in an own namespace");
            assert_eq!(tun.name(), "bw-test0");
            assert!(interfaces().contains("bw-test0:"));
            assert!(matches!(Tun::open("bw-test0"), Err(TunError::InUse { .. })));
            drop(tun);
            // A command that a test of another module starts meanwhile holds a copy of the descriptor for a moment.
            let deadline = Instant::now() + Duration::from_secs(10);
            while interfaces().contains("bw-test0:") {
                assert!(Instant::now() < deadline, "the device is still there");
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn root_packet_sent_into_the_interface_is_read_with_its_header() {
        in_own_namespace(|| {
            let tun = Tun::open("bw-test1").expect("a TUN device in an own namespace");
            let mut frame = vec![0; MAX_FRAME];
            bring_up(&tun);
            let socket = std::net::UdpSocket::bind("198.18.9.1:0").unwrap();
            socket.send_to(b"ping over tun", "198.18.9.2:9").unwrap();
            let packet = loop {
                // Router solicitations may come first; the datagram is queued before send_to returns.
                let len = tun.read(&mut frame).expect("the datagram waits in the device");
                let (_, packet) = VnetHeader::decode(&frame[..len]).expect("a frame has a header");
                if packet[0] >> 4 == 4 {
                    break packet;
                }
            };
            assert!(packet.ends_with(b"ping over tun"));
            assert_eq!(&packet[16..20], [198, 18, 9, 2]);
        });
    }

    #[test]
    fn root_written_packet_arrives_at_a_socket() {
        in_own_namespace(|| {
            let tun = Tun::open("bw-test2").expect("a TUN device in an own namespace");
            bring_up(&tun);
            let socket = std::net::UdpSocket::bind("198.18.9.1:7007").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            // IPv4 header of 20 bytes, no options, UDP without checksum, 4 bytes of payload.
            let mut ip =
                [0x45_u8, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 9, 2, 198, 18, 9, 1].map(u32::from);
            let sum: u32 = ip.chunks(2).map(|pair| pair[0] << 8 | pair[1]).sum();
            let checksum = !((sum & 0xffff) + (sum >> 16)) & 0xffff;
            (ip[10], ip[11]) = (checksum >> 8, checksum & 0xff);
            let ip = ip.map(|byte| u8::try_from(byte).unwrap());
            let udp = [0x12, 0x34, 0x1b, 0x5f, 0, 12, 0, 0];
            let header = VnetHeader::default().encode();
            let frame = [&header[..], &ip, &udp, b"pong"].map(IoSlice::new);
            assert_eq!(tun.write_vectored(&frame).unwrap(), HEADER_LEN + 32);
            let mut payload = [0; 16];
            let (len, from) = socket.recv_from(&mut payload).unwrap();
            assert_eq!((&payload[..len], from), (&b"pong"[..], "198.18.9.2:4660".parse().unwrap()));
        });
    }
}
