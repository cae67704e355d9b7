//! Makes existing IPv6 connections adopt a changed `gso_max_size` of their device.
//!
//! Problem: a connection copies the bound when it looks up its route (`sk_setup_caps()`), and keeps a route that is
//! valid. `net.ipv4.route.flush` invalidates all IPv4 routes; `net.ipv6.route.flush` collects garbage and leaves the
//! others valid.
//! Rule: removing an address invalidates every IPv6 route of the namespace (`__ipv6_ifa_notify()`,
//! `rt_genid_bump_ipv6()`). So an address is added to the loopback and removed at once.
//! Properties kept: the address can be reached from this host only (link-local, on the loopback), is never a source
//! address (deprecated), has no prefix route of its own, and expires by itself if the caller is killed in between. If
//! the address exists already, another program owns it, and it stays. No setting and no connection changes; each
//! sender looks up its route once more.
//! Source: rtnetlink(7), `linux/if_addr.h`. Measured on Linux 6.18, with two alternatives: adding a route invalidates
//! only the routes that pass through its part of the table; adding a rule works, but disables the fast path of route
//! lookups for good.

use std::io;
use std::net::Ipv6Addr;

use super::{DeviceError, Devices};
use crate::netlink;

/// The loopback has this number in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// A link-local address; its last seven bytes spell the program's name in ASCII.
const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x62, 0x7566, 0x7769, 0x7365);
/// Seconds until the kernel removes the address by itself.
const LIFETIME: u32 = 2;

/// `NLM_F_CREATE | NLM_F_EXCL`.
const ONLY_NEW: u16 = 0x0600;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// `IFA_F_NODAD | IFA_F_NOPREFIXROUTE`.
const WITHOUT_CHECK_AND_ROUTE: u32 = 0x02 | 0x200;

impl Devices {
    /// Makes every IPv6 connection of the namespace look up its route at its next send; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As [`DeviceError`] says; also if the loopback has no IPv6.
    pub fn renew_ipv6_routes(&mut self) -> Result<(), DeviceError> {
        match self.change_address(libc::RTM_NEWADDR, ONLY_NEW) {
            Err(DeviceError::Refused(error)) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.change_address(libc::RTM_DELADDR, 0),
        }
    }

    fn change_address(&mut self, kind: u16, flags: u16) -> Result<(), DeviceError> {
        let (flags, body) = (netlink::REQUEST | netlink::ACKNOWLEDGE | flags, address());
        self.0.ask(|sequence| netlink::request(kind, flags, sequence, &body), |_, _| Ok(()))?;
        Ok(())
    }
}

/// Returns the `struct ifaddrmsg` of the address, with its attributes.
fn address() -> Vec<u8> {
    let mut body = vec![libc::AF_INET6 as u8, 128, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        netlink::put_attribute(&mut body, kind, &ADDRESS.octets());
    }
    // `struct ifa_cacheinfo`: preferred for 0 s, valid for `LIFETIME`, and two times that the kernel fills in.
    let lifetimes: Vec<u8> = [0, LIFETIME, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    netlink::put_attribute(&mut body, IFA_CACHEINFO, &lifetimes);
    netlink::put_attribute(&mut body, IFA_FLAGS, &WITHOUT_CHECK_AND_ROUTE.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::tests::in_own_namespace;
    use std::process::Command;

    fn addresses() -> String {
        let shown = Command::new("ip").args(["-6", "-o", "address", "show", "dev", "lo"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    }

    fn ip(arguments: &str) {
        assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
    }

    #[test]
    fn root_no_address_is_left_and_one_that_is_there_stays() {
        in_own_namespace(|| {
            ip("link set lo up");
            let mut devices = Devices::open().unwrap();
            let before = addresses();
            devices.renew_ipv6_routes().unwrap();
            assert_eq!(addresses(), before);
            ip(&format!("address add {ADDRESS}/128 dev lo"));
            let before = addresses();
            devices.renew_ipv6_routes().unwrap();
            assert_eq!(addresses(), before);
            assert!(before.contains(&ADDRESS.to_string()));
        });
    }
}
