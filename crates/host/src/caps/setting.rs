//! The settings, as open files and an open netlink socket.
//!
//! A file below /proc/sys/net belongs to the network namespace in which it was opened, for as long as it is open and
//! whichever process reads it. So the namespace is entered once, and each later read costs one system call. The same
//! holds for the socket by which devices are set.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bufwise_socket::device::{Device, DeviceError, Devices, GsoMaxSize};
use nix::errno::Errno;

use super::Change;
use crate::error::{During, Error, Result};
use crate::processes::printable;

/// Longest content that is read, in bytes: enough for three numbers.
const LONGEST: usize = 128;

/// A file that only the first network namespace has (`ipv4_table`).
const OF_THE_FIRST: &str = "net/ipv4/tcp_mem";

/// Name of a device's setting, before the device.
const OF_DEVICE: &str = "gso_max_size of ";

/// A setting that bounds buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// `net.ipv4.tcp_rmem`: its maximum fixes the window scale at the SYN. One per network namespace.
    TcpRmem,
    /// `net.ipv4.tcp_wmem`: the bound to which the kernel grows send buffers. One per network namespace.
    TcpWmem,
    /// `net.core.rmem_max`: the largest size for `SO_RCVBUF`. One for the host, writable only in its first namespace.
    RmemMax,
    /// `net.core.wmem_max`: the largest size for `SO_SNDBUF`. One for the host, writable only in its first namespace.
    WmemMax,
    /// `gso_max_size` and `gso_ipv4_max_size`: the largest packet that a sender fills at once, whatever its buffer.
    Device(Device),
}

impl Setting {
    /// The settings that every namespace has, as files.
    pub const FILES: [Self; 4] = [Self::TcpRmem, Self::TcpWmem, Self::RmemMax, Self::WmemMax];
    /// Settings that a new namespace copies from the first one (`tcp_sk_init()`).
    pub(super) const INHERITED: [Self; 2] = [Self::TcpRmem, Self::TcpWmem];

    /// Returns the setting's path below the directory of all settings; `None` for a device.
    pub(super) fn path(self) -> Option<&'static str> {
        match self {
            Self::TcpRmem => Some("net/ipv4/tcp_rmem"),
            Self::TcpWmem => Some("net/ipv4/tcp_wmem"),
            Self::RmemMax => Some("net/core/rmem_max"),
            Self::WmemMax => Some("net/core/wmem_max"),
            Self::Device(_) => None,
        }
    }

    /// Parses a name as [`fmt::Display`] writes it.
    pub(super) fn named(name: &str) -> Option<Self> {
        if let Some(device) = name.strip_prefix(OF_DEVICE) {
            let (name, index) = device.strip_suffix(')')?.rsplit_once(" (device ")?;
            return Device::new(index.parse().ok()?, name).map(Self::Device);
        }
        Self::FILES.into_iter().find(|setting| setting.to_string() == name)
    }

    pub(super) fn is_device(self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Returns how many numbers the setting has. In a file the last is the maximum; a device's second number is for
    /// IPv4.
    fn numbers(self) -> usize {
        match self {
            Self::TcpRmem | Self::TcpWmem => 3,
            Self::RmemMax | Self::WmemMax => 1,
            Self::Device(_) => 2,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Users name the devices of their own namespaces, and the name may have control characters.
            Self::Device(device) => {
                let name = printable(&device.to_string());
                write!(f, "{OF_DEVICE}{name} (device {})", device.index())
            }
            file => f.write_str(&file.path().unwrap_or_default().replace('/', ".")),
        }
    }
}

/// A setting's value: numbers with single spaces between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// Parses numbers separated by any white space; `None` if `text` does not fit the setting.
    pub(crate) fn parse(setting: Setting, text: &str) -> Option<Self> {
        let numbers: Vec<&str> = text.split_whitespace().collect();
        let all = numbers.len() == setting.numbers() && numbers.iter().all(|one| one.parse::<u64>().is_ok());
        all.then(|| Self(numbers.join(" ")))
    }

    /// Returns the last number; `None` if it does not parse.
    pub(super) fn maximum(&self) -> Option<u64> {
        self.0.rsplit(' ').next()?.parse().ok()
    }

    /// Returns the value with a maximum of at least `size`.
    pub(super) fn with_maximum(&self, size: u64) -> Self {
        let (before, maximum) = self.0.rsplit_once(' ').unwrap_or(("", &self.0));
        // `parse` has checked that these are numbers.
        let largest = maximum.parse::<u64>().unwrap_or(u64::MAX).max(size);
        Self(format!("{before} {largest}").trim_start().to_owned())
    }

    /// Returns the value with every number reduced to at most `size`.
    pub(super) fn bounded(&self, size: u64) -> Self {
        let smaller =
            |number: &str| number.parse::<u64>().map_or(size, |number| number.min(size)).to_string();
        Self(self.0.split(' ').map(smaller).collect::<Vec<_>>().join(" "))
    }
}

impl From<GsoMaxSize> for Value {
    fn from(GsoMaxSize { size, ipv4 }: GsoMaxSize) -> Self {
        Self(format!("{size} {ipv4}"))
    }
}

impl TryFrom<&Value> for GsoMaxSize {
    type Error = io::Error;

    fn try_from(Value(text): &Value) -> io::Result<Self> {
        let numbers =
            text.split_once(' ').and_then(|(size, ipv4)| Some((size.parse().ok()?, ipv4.parse().ok()?)));
        let (size, ipv4) = numbers.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { size, ipv4 })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns whether the settings below `root` are those of the first network namespace.
pub(super) fn are_of_the_first(root: &Path) -> bool {
    root.join(OF_THE_FIRST).exists()
}

/// Returns the value of a file below `root` in the calling thread's network namespace, also where this process may only
/// read it; `None` for a device.
pub(super) fn present(root: &Path, setting: Setting) -> Option<Value> {
    let text = fs::read_to_string(root.join(setting.path()?)).ok()?;
    Value::parse(setting, text.lines().next()?)
}

/// The settings of one namespace, whichever process has set them.
#[derive(Debug)]
pub(super) struct Settings {
    files: Vec<Open>,
    /// Writing to this file makes IPv4 connections look up their route again, and adopt the bound of their device
    /// (`ipv4_sysctl_rtcache_flush()`, `sk_setup_caps()`).
    routes: Option<File>,
    devices: Arc<Mutex<Devices>>,
    /// Whether these are the settings of the first namespace, from which new ones inherit.
    pub(super) are_the_first: bool,
}

impl Settings {
    /// Opens the settings of the calling thread's network namespace, files below `root`; a file that is missing, or
    /// that this process may not read, is skipped.
    pub(super) fn open(root: &Path) -> Result<Self, DeviceError> {
        let file = |setting: Setting| {
            let path = root.join(setting.path()?);
            let access = match File::options().read(true).write(true).open(&path) {
                Ok(file) => Access::File(Arc::new(file)),
                Err(error) => {
                    let refusal = Errno::from_raw(error.raw_os_error()?);
                    Access::ReadOnly(Arc::new(File::open(path).ok()?), refusal)
                }
            };
            Some(Open { setting, access })
        };
        Ok(Self {
            files: Setting::FILES.into_iter().filter_map(file).collect(),
            routes: File::options().write(true).open(root.join("net/ipv4/route/flush")).ok(),
            devices: Arc::new(Mutex::new(Devices::open()?)),
            are_the_first: are_of_the_first(root),
        })
    }

    /// Closes the files that this process may not write.
    pub(super) fn retain_writable(&mut self) {
        self.files.retain(|open| !matches!(open.access, Access::ReadOnly(..)));
    }

    /// Returns the files and, with `devices`, every present device.
    pub(super) fn all(&self, devices: bool) -> Result<Vec<Open>, DeviceError> {
        let mut all = self.files.clone();
        if devices {
            all.extend(self.devices()?);
        }
        Ok(all)
    }

    /// Returns every present device.
    pub(super) fn devices(&self) -> Result<Vec<Open>, DeviceError> {
        let there = self.devices.lock().unwrap_or_else(PoisonError::into_inner).all()?;
        Ok(there.into_iter().map(|device| self.device(device)).collect())
    }

    /// Makes existing connections adopt the settings of their devices; without permission only new connections do.
    pub(super) fn forget_routes(&self) {
        if let Some(routes) = &self.routes {
            let _in_vain = routes.write_all_at(b"1\n", 0);
        }
        let _without_ipv6 = self.devices.lock().unwrap_or_else(PoisonError::into_inner).renew_ipv6_routes();
    }

    /// Returns one setting, a device whether it is present or not; `None` for a file that could not be opened.
    pub(super) fn find(&self, setting: Setting) -> Option<Open> {
        match setting {
            Setting::Device(device) => Some(self.device(device)),
            _ => self.files.iter().find(|open| open.setting == setting).cloned(),
        }
    }

    fn device(&self, device: Device) -> Open {
        Open { setting: Setting::Device(device), access: Access::Device(device, Arc::clone(&self.devices)) }
    }
}

/// One setting of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) setting: Setting,
    access: Access,
}

#[derive(Clone, Debug)]
enum Access {
    File(Arc<File>),
    /// A file that this process may not write, and why not.
    ReadOnly(Arc<File>, Errno),
    Device(Device, Arc<Mutex<Devices>>),
}

impl Open {
    /// Reads the value; `NotFound` if the setting is gone.
    pub(super) fn read(&self) -> io::Result<Value> {
        let file = match &self.access {
            Access::File(file) | Access::ReadOnly(file, _) => file,
            Access::Device(device, devices) => {
                let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
                return devices.gso_max_size(*device).map(Value::from).map_err(|error| match error {
                    DeviceError::Refused(_) => io::ErrorKind::NotFound.into(),
                    other => io::Error::other(other),
                });
            }
        };
        let mut text = [0; LONGEST];
        let len = file.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..len).unwrap_or(&text));
        let first_line = text.lines().next().unwrap_or_default();
        Value::parse(self.setting, first_line).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads the value; `None` for a device that has gone since the devices were listed.
    pub(super) fn current(&self) -> Result<Option<Value>> {
        match self.read() {
            Err(error) if self.setting.is_device() && is_gone(&error) => Ok(None),
            read => read.map(Some).during(|| format!("cannot read {}", self.setting)),
        }
    }

    pub(super) fn write(&self, value: &Value) -> io::Result<()> {
        match &self.access {
            Access::File(file) => file.write_all_at(format!("{value}\n").as_bytes(), 0),
            Access::ReadOnly(_, refusal) => Err((*refusal).into()),
            Access::Device(device, devices) => {
                let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
                devices.set_gso_max_size(*device, value.try_into()?).map_err(io::Error::other)
            }
        }
    }
}

/// Returns whether a setting that cannot be read no longer exists, or holds a value that bufwise never writes.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

/// Sets each setting from its current value to another; the two may be equal. Returns what holds now, and why a device
/// refused. A device that has gone is left out.
///
/// # Errors
/// A file cannot be written; the settings after it are not set.
pub(super) fn set_all(changes: Vec<(Open, Value, Value)>) -> Result<(Vec<Change>, Option<Error>)> {
    let (mut done, mut refused) = (Vec::new(), None);
    for (open, current, value) in changes {
        let setting = open.setting;
        let written = if value == current { Ok(()) } else { open.write(&value) };
        match written.during(|| format!("cannot set {setting} to {value}")) {
            Ok(()) => done.push(Change { setting, value }),
            Err(error) if !setting.is_device() => return Err(error),
            Err(_) if matches!(open.current(), Ok(None)) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Ok((done, refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_found_again_by_the_name_that_the_journal_has() {
        let device = Setting::Device(Device::new(7, "eth0").unwrap());
        for setting in Setting::FILES.into_iter().chain([device]) {
            assert_eq!(Setting::named(&setting.to_string()), Some(setting));
        }
        let odd = Setting::Device(Device::new(7, "e\u{1b}[2J").unwrap());
        assert_eq!(odd.to_string(), "gso_max_size of e?[2J (device 7)");
        assert_eq!(Setting::named(&odd.to_string()), Some(odd), "the number counts");
        for damaged in ["", "net.ipv4", "gso_max_size of eth0", "gso_max_size of eth0 (device x)"] {
            assert_eq!(Setting::named(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_value_has_as_many_numbers_as_its_setting() {
        let parse = |setting, text| Value::parse(setting, text).map(|value: Value| value.to_string());
        assert_eq!(parse(Setting::TcpRmem, " 1\t22  333 \n").as_deref(), Some("1 22 333"));
        for (setting, text) in [
            (Setting::TcpRmem, "1 2"),
            (Setting::TcpRmem, "1 2 3 4"),
            (Setting::RmemMax, ""),
            (Setting::RmemMax, "-1"),
            (Setting::WmemMax, "many"),
        ] {
            assert_eq!(parse(setting, text), None, "{text:?}");
        }
    }

    #[test]
    fn a_maximum_is_raised_and_never_lowered_a_device_the_other_way_round() {
        let files = Value::parse(Setting::TcpRmem, "4096 131072 6291456").unwrap();
        assert_eq!(files.with_maximum(7_000_000).to_string(), "4096 131072 7000000");
        assert_eq!(files.with_maximum(1), files);
        let one = Value::parse(Setting::RmemMax, "212992").unwrap();
        assert_eq!(one.with_maximum(300_000).to_string(), "300000");
        let device = Value::from(GsoMaxSize { size: 65_536, ipv4: 2_048 });
        assert_eq!(device.bounded(4_096).to_string(), "4096 2048");
        assert_eq!(
            GsoMaxSize::try_from(&device.bounded(4_096)).unwrap(),
            GsoMaxSize { size: 4_096, ipv4: 2_048 }
        );
    }
}
