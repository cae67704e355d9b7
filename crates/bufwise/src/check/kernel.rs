//! Checks the kernel, the privileges and the tools.

use std::fs;
use std::path::Path;

use bufwise_bpf::kernel_version;
use bufwise_host::processes::effective_capabilities;
use bufwise_socket::memory::HostMemory;

use super::Point;
use crate::figures::size;

/// The oldest kernel on which bufwise was tested.
const FIRST: (u32, u32) = (5, 10);
/// Capabilities by their bit in `CapEff` (capabilities(7)), their purpose, and whether the engine needs them.
const CAPABILITIES: [(u32, &str, &str, bool); 6] = [
    (39, "CAP_BPF", "load the programs", true),
    (12, "CAP_NET_ADMIN", "attach the programs, size sockets beyond the host's maxima", true),
    (38, "CAP_PERFMON", "read connections in the programs", true),
    (
        19,
        "CAP_SYS_PTRACE",
        "size other users' sockets beyond the host's maxima, and give buffers back",
        false,
    ),
    (2, "CAP_DAC_READ_SEARCH", "find other users' sockets", false),
    (21, "CAP_SYS_ADMIN", "enter network namespaces, mount cgroup v2, run the daemon and the lab", false),
];
/// Bit of CAP_SYS_ADMIN.
const SYS_ADMIN: u32 = 21;
/// Capabilities, and what implies them: CAP_SYS_ADMIN the two that were split from it in Linux 5.8, CAP_DAC_OVERRIDE (1) the one to read.
const IMPLIED: [(u32, u32); 3] = [(38, SYS_ADMIN), (39, SYS_ADMIN), (2, 1)];

pub(super) fn points() -> Vec<Point> {
    vec![version(), privileges(), btf(), unprivileged_bpf(), memory(), tun(), iperf3()]
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn version() -> Point {
    let found = format!("Linux {}", release());
    match kernel_version() {
        Some(version) if version >= FIRST => Point::ok("kernel", found),
        Some(_) => {
            Point::limited("kernel", found, "bufwise is tested on Linux 5.10 and newer: see the lines below")
        }
        None => Point::limited("kernel", "its version cannot be read", "mount /proc"),
    }
}

fn privileges() -> Point {
    let Some(effective) = effective_capabilities() else {
        return Point::missing("privileges", "they cannot be read from /proc/self/status", "mount /proc")
            .needed();
    };
    of_capabilities(effective, nix::unistd::geteuid().is_root())
}

fn of_capabilities(effective: u64, root: bool) -> Point {
    let has = |bit: u32| {
        let by = IMPLIED.into_iter().filter(|(implied, _)| *implied == bit);
        by.fold(1_u64 << bit, |bits, (_, other)| bits | 1 << other) & effective != 0
    };
    let who = if root { "root" } else { "not root" };
    let (have, lack): (Vec<_>, Vec<_>) = CAPABILITIES.into_iter().partition(|one| has(one.0));
    let names = |of: &[(u32, &'static str, &str, bool)]| {
        of.iter().map(|(_, name, ..)| *name).collect::<Vec<_>>().join(", ")
    };
    if lack.is_empty() {
        return Point::ok("privileges", format!("{who}, with {}", names(&have))).needed();
    }
    let found = format!("{who}, without {}", names(&lack));
    let needed: Vec<_> = lack.iter().copied().filter(|(.., needed)| *needed).collect();
    if !needed.is_empty() {
        let advice = format!("run as root, or with at least {}", names(&needed));
        return Point::missing("privileges", found, &advice).needed();
    }
    let purposes: Vec<String> =
        lack.iter().map(|(_, name, purpose, _)| format!("{name} would let it {purpose}")).collect();
    Point::limited("privileges", found, &purposes.join("; ")).needed()
}

fn btf() -> Point {
    let path = "/sys/kernel/btf/vmlinux";
    match fs::metadata(path) {
        Ok(file) => Point::ok("BTF", format!("{path}, {}", size(file.len()))).needed(),
        Err(error) => Point::missing(
            "BTF",
            format!("{path}: {error}"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, and mount /sys",
        )
        .needed(),
    }
}

fn unprivileged_bpf() -> Point {
    let name = "unprivileged BPF";
    match fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref().map(str::trim) {
        Ok("0") => {
            Point::ok(name, "allowed (kernel.unprivileged_bpf_disabled = 0); bufwise does not need it")
        }
        Ok(value) => {
            Point::ok(name, format!("off (kernel.unprivileged_bpf_disabled = {value}), as it should be"))
        }
        Err(_) => Point::ok(name, "not known; bufwise does not need it"),
    }
}

fn memory() -> Point {
    match HostMemory::now() {
        Some(HostMemory { total, available }) => {
            Point::ok("memory", format!("{}, {} available", total.readable(), available.readable()))
        }
        None => {
            Point::limited("memory", "it cannot be read from /proc/meminfo", "give the budget with --memory")
        }
    }
}

fn tun() -> Point {
    let path = "/dev/net/tun";
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Point::ok("TUN, for the lab", path),
        Err(error) => Point::limited(
            "TUN, for the lab",
            format!("{path}: {error}"),
            "run as root with the module tun loaded; run and daemon do not need it",
        ),
    }
}

fn iperf3() -> Point {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join("iperf3")).find(|file| is_program(file));
    match found {
        Some(file) => Point::ok("iperf3, for the lab", file.display()),
        None => Point::limited(
            "iperf3, for the lab",
            "not installed",
            "install iperf3; run and daemon do not need it",
        ),
    }
}

fn is_program(file: &Path) -> bool {
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok() && file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn each_capability_that_lacks_is_named_with_its_purpose() {
        let all = CAPABILITIES.iter().fold(0, |bits, (bit, ..)| bits | 1_u64 << bit);
        assert_eq!(of_capabilities(all, true).status, Status::Ok);
        let split = 1 << 1 | 1 << 12 | 1 << 19 | 1 << 21;
        assert_eq!(of_capabilities(split, true).status, Status::Ok, "the others are implied");
        for (bit, name, ..) in CAPABILITIES {
            let found = of_capabilities(all & !(1 << bit), true);
            // CAP_SYS_ADMIN implies two of them.
            assert_eq!(
                found.found.ends_with(&format!("without {name}")),
                ![38, 39].contains(&bit),
                "{}",
                found.found
            );
        }
        let least = of_capabilities(1 << 12 | 1 << 38 | 1 << 39, false);
        assert_eq!(least.status, Status::Limited);
        assert_eq!(least.found, "not root, without CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN");
        assert!(least.advice.unwrap().contains("CAP_SYS_PTRACE would let it size other users' sockets"));
        let none = of_capabilities(0, false);
        assert!(none.needed && none.status == Status::Missing);
        assert_eq!(none.advice.unwrap(), "run as root, or with at least CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON");
    }
}
