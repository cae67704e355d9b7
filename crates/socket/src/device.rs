//! Network devices, and what a TCP sender may hand each of them at once.
//!
//! Problem: a writer fills a buffer of `gso_max_size` before TCP checks whether the send buffer has room for another,
//! so a small send buffer does not bound the memory of a connection. If many connections share little memory, the
//! device's bound decides.
//! Source: rtnetlink(7), `linux/if_link.h`, `netif_set_gso_max_size()` in `net/core/dev.c`, `tcp_xmit_size_goal()`. A
//! connection copies its device's bound when it looks up its route (`sk_setup_caps()`): when it is made, and again
//! once the route has become invalid (`routes`).
//! Properties kept: as for netlink; a device is identified by its number, which stays when its name changes.

mod routes;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;

use nix::sys::socket::SockProtocol;

use crate::netlink::{self, AskError, Malformed, Netlink, u32_at};

/// Length of `struct ifinfomsg`, bytes.
const MESSAGE_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_GSO_MAX_SIZE: u16 = 41;
/// Exists since Linux 6.3; older kernels use `IFLA_GSO_MAX_SIZE` for IPv4 as well.
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
/// Times that a list is read if devices come or go meanwhile.
const ATTEMPTS: u32 = 5;
/// `RTEXT_FILTER_SKIP_STATS`.
const WITHOUT_STATISTICS: u32 = 1 << 3;

/// A device's name: at most 15 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name([u8; libc::IFNAMSIZ]);

/// A network device of one namespace. Devices compare equal if their numbers are equal.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    index: u32,
    name: Name,
}

impl Device {
    /// Returns the device with that number (shown by `ip link`) and name; `None` if the name is empty, over 15 bytes or has a
    /// zero, at which the kernel's would end.
    #[must_use]
    pub fn new(index: u32, name: &str) -> Option<Self> {
        let mut bytes = [0; libc::IFNAMSIZ];
        bytes
            .get_mut(..name.len())
            .filter(|_| (1..libc::IFNAMSIZ).contains(&name.len()) && !name.contains('\0'))?
            .copy_from_slice(name.as_bytes());
        Some(Self { index, name: Name(bytes) })
    }

    /// Returns the device's number in its namespace.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name(bytes) = &self.name;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        f.pad(std::str::from_utf8(&bytes[..end]).unwrap_or("?"))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Eq for Device {}

impl PartialOrd for Device {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Device {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.index.cmp(&other.index)
    }
}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

/// Largest packet that a sender hands a device at once, in bytes with headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoMaxSize {
    /// `gso_max_size` of the device.
    pub size: u32,
    /// `gso_ipv4_max_size`, for IPv4; equal to `size` before Linux 6.3.
    pub ipv4: u32,
}

/// Why a request about network devices failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A system call failed.
    #[error("{operation} network devices (netlink) failed: {source}")]
    Io {
        /// The step that failed.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused, mostly for lack of CAP_NET_ADMIN; or the device is gone (`ENODEV`).
    #[error("the kernel refused: {0}")]
    Refused(io::Error),
    /// A message did not have the form that `linux/if_link.h` gives.
    #[error("the kernel's list of network devices is malformed: {0}")]
    Malformed(Malformed),
}

impl From<AskError> for DeviceError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Io(operation, source) => Self::Io { operation, source },
            AskError::Refused(source) => Self::Refused(source),
            AskError::Malformed(source) => Self::Malformed(source),
        }
    }
}

/// The devices of the network namespace in which this was opened.
///
/// ```
/// use bufwise_socket::device::Devices;
///
/// let mut devices = Devices::open()?;
/// for device in devices.all()? {
///     println!("{device}: up to {} bytes at once", devices.gso_max_size(device)?.size);
/// }
/// # Ok::<(), bufwise_socket::device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct Devices(Netlink);

impl Devices {
    /// Opens a socket in the calling thread's network namespace; needs no privilege.
    ///
    /// # Errors
    /// [`DeviceError::Io`] when descriptors are used up.
    pub fn open() -> Result<Self, DeviceError> {
        let netlink = Netlink::open(SockProtocol::NetlinkRoute);
        netlink.map(Self).map_err(|source| DeviceError::Io { operation: "opening", source })
    }

    /// Returns every device but the loopback, ordered by number. A device whose name is not UTF-8 is skipped. Where devices come and
    /// go all the time, the list may lack one.
    ///
    /// # Errors
    /// Any [`DeviceError`]; a list that cannot be read to its end is not returned.
    pub fn all(&mut self) -> Result<Vec<Device>, DeviceError> {
        let mut links = self.ask(0, netlink::DUMP)?;
        links.sort_by_key(|link| link.device);
        Ok(links.into_iter().filter(|link| !link.is_loopback).map(|link| link.device).collect())
    }

    /// Returns the largest packet that a sender hands the device at once, in bytes.
    ///
    /// # Errors
    /// Any [`DeviceError`], notably [`DeviceError::Refused`] if the device is gone.
    pub fn gso_max_size(&mut self, device: Device) -> Result<GsoMaxSize, DeviceError> {
        let links = self.ask(device.index, netlink::ACKNOWLEDGE)?;
        let link = links.into_iter().find(|link| link.device == device);
        link.map(|link| link.gso_max_size).ok_or_else(|| DeviceError::Refused(io::ErrorKind::NotFound.into()))
    }

    /// Sets `gso_max_size` for connections that look up their route from now on; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] without the privilege, if the device is gone, or for a size beyond the device's `tso_max_size`;
    /// [`DeviceError::Io`].
    pub fn set_gso_max_size(&mut self, device: Device, size: GsoMaxSize) -> Result<(), DeviceError> {
        let mut body = message(device.index);
        // A first attribute of 64 KiB or less sets both sizes, so the IPv4 size must come second.
        netlink::put_attribute(&mut body, IFLA_GSO_MAX_SIZE, &size.size.to_ne_bytes());
        netlink::put_attribute(&mut body, IFLA_GSO_IPV4_MAX_SIZE, &size.ipv4.to_ne_bytes());
        let flags = netlink::REQUEST | netlink::ACKNOWLEDGE;
        self.0.ask(|sequence| netlink::request(libc::RTM_NEWLINK, flags, sequence, &body), |_, _| Ok(()))?;
        Ok(())
    }

    fn ask(&mut self, index: u32, flags: u16) -> Result<Vec<Link>, AskError> {
        let mut body = message(index);
        netlink::put_attribute(&mut body, IFLA_EXT_MASK, &WITHOUT_STATISTICS.to_ne_bytes());
        let mut links = Vec::new();
        for _ in 0..ATTEMPTS {
            links.clear();
            let is_whole = self.0.ask(
                |sequence| netlink::request(libc::RTM_GETLINK, netlink::REQUEST | flags, sequence, &body),
                |kind, body| {
                    if kind == libc::RTM_NEWLINK {
                        links.extend(Link::read(body)?);
                    }
                    Ok(())
                },
            )?;
            if is_whole {
                break;
            }
        }
        Ok(links)
    }
}

/// Returns a `struct ifinfomsg`: any family, any type, the device's number, no flags.
fn message(index: u32) -> Vec<u8> {
    let mut body = vec![0; MESSAGE_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body
}

/// The kernel's information on a device.
#[derive(Clone, Copy, Debug)]
struct Link {
    device: Device,
    is_loopback: bool,
    gso_max_size: GsoMaxSize,
}

impl Link {
    /// Returns `None` if the device has no valid name.
    fn read(body: &[u8]) -> Result<Option<Self>, Malformed> {
        let (fixed, attributes) = body.split_first_chunk::<MESSAGE_LEN>().ok_or(Malformed::Truncated)?;
        let (mut name, mut size, mut ipv4) = (&[][..], 0, None);
        for attribute in netlink::attributes(attributes) {
            match attribute? {
                (IFLA_IFNAME, value) => name = value,
                (IFLA_GSO_MAX_SIZE, value) => size = u32_at(value, 0)?,
                (IFLA_GSO_IPV4_MAX_SIZE, value) => ipv4 = Some(u32_at(value, 0)?),
                _ => {}
            }
        }
        let name = std::str::from_utf8(name.strip_suffix(&[0]).unwrap_or(name)).unwrap_or_default();
        let flags = u32_at(fixed, 8)?;
        Ok(Device::new(u32_at(fixed, 4)?, name).map(|device| Self {
            device,
            is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
            gso_max_size: GsoMaxSize { size, ipv4: ipv4.unwrap_or(size) },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::tests::in_own_namespace;
    use proptest::prelude::*;

    fn link(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = message(7);
        attributes.iter().for_each(|(kind, value)| netlink::put_attribute(&mut body, *kind, value));
        body
    }

    #[test]
    fn a_device_is_read_with_its_bounds_and_older_kernels_have_one_for_both() {
        let size = 65_536_u32.to_ne_bytes();
        let name: (u16, &[u8]) = (IFLA_IFNAME, b"bw0\0");
        let old = Link::read(&link(&[(99, b"x"), name, (IFLA_GSO_MAX_SIZE, &size)])).unwrap().unwrap();
        assert_eq!((old.device.index(), old.device.to_string().as_str(), old.is_loopback), (7, "bw0", false));
        assert_eq!(old.gso_max_size, GsoMaxSize { size: 65_536, ipv4: 65_536 });
        let ipv4 = 4_096_u32.to_ne_bytes();
        let new = Link::read(&link(&[name, (IFLA_GSO_MAX_SIZE, &size), (IFLA_GSO_IPV4_MAX_SIZE, &ipv4)]));
        assert_eq!(new.unwrap().unwrap().gso_max_size, GsoMaxSize { size: 65_536, ipv4: 4_096 });
    }

    #[test]
    fn names_that_are_none_or_too_long_or_no_text_are_left_out_and_cut_bounds_are_errors() {
        for name in [&b"\0"[..], b"sixteen-bytes-00\0", b"\xff\0"] {
            assert!(Link::read(&link(&[(IFLA_IFNAME, name)])).unwrap().is_none(), "{name:?}");
        }
        assert_eq!(Link::read(&link(&[(IFLA_GSO_MAX_SIZE, &[1, 2])])).unwrap_err(), Malformed::Truncated);
        assert_eq!(Link::read(&[0; MESSAGE_LEN - 1]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn a_renamed_device_is_the_same() {
        let device = |index, name| Device::new(index, name).unwrap();
        assert_eq!(device(3, "eth0"), device(3, "ens3"));
        assert_ne!(device(3, "eth0"), device(4, "eth0"));
        for name in ["", "sixteen-bytes-00", "\0", "a\0b"] {
            assert_eq!(Device::new(1, name), None, "{name:?}");
        }
    }

    #[test]
    fn the_loopback_is_no_device_and_one_that_is_not_there_is_an_error() {
        let mut devices = Devices::open().unwrap();
        assert!(devices.all().unwrap().iter().all(|one| one.to_string() != "lo"));
        let nowhere = Device::new(i32::MAX.unsigned_abs(), "nowhere").unwrap();
        assert!(matches!(devices.gso_max_size(nowhere), Err(DeviceError::Refused(_))));
    }

    #[test]
    fn root_bounds_are_set_each_for_itself() {
        in_own_namespace(|| {
            let _tun = crate::tun::Tun::open("bw-test3").unwrap();
            let mut devices = Devices::open().unwrap();
            let all = devices.all().unwrap();
            let device = *all.iter().find(|one| one.to_string() == "bw-test3").expect("it is listed");
            assert_eq!(devices.gso_max_size(device).unwrap(), GsoMaxSize { size: 65_536, ipv4: 65_536 });
            for wanted in [GsoMaxSize { size: 4_096, ipv4: 8_192 }, GsoMaxSize { size: 32_768, ipv4: 2_048 }]
            {
                devices.set_gso_max_size(device, wanted).unwrap();
                assert_eq!(devices.gso_max_size(device).unwrap(), wanted);
            }
            let too_much = GsoMaxSize { size: u32::MAX, ipv4: 65_536 };
            assert!(matches!(devices.set_gso_max_size(device, too_much), Err(DeviceError::Refused(_))));
        });
    }

    proptest! {
        #[test]
        fn garbage_never_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Link::read(&body);
        }
    }
}
