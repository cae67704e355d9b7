//! Whether a container sees the cgroups of the whole host.
//!
//! In a cgroup namespace of its own (the default of podman and docker, also of privileged containers) the root of the
//! hierarchy is the container's own cgroup: programs attached there see the container's connections alone. Where the host's
//! own mount of the hierarchy is passed on, as in `packaging/kubernetes`, its root is the host's all the same.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Advice for people.
pub const ADVICE: &str = "start the container with --cgroupns=host";

/// Returns whether process 1 is in another cgroup namespace than this process, and the host's root cgroup is out of reach.
/// If process 1 is the container's own, both share a namespace, and the cgroups in reach are the intended ones.
pub fn has_cgroups_of_its_own() -> bool {
    let namespace = |process| fs::metadata(format!("/proc/{process}/ns/cgroup")).map(|file| file.ino());
    let is_apart = matches!((namespace("self"), namespace("1")), (Ok(own), Ok(first)) if own != first);
    let is_hosts = |root: OwnedFd| is_hosts_root(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())));
    is_apart && !bufwise_bpf::hierarchy().is_ok_and(is_hosts)
}

/// Returns whether a cgroup's directory is that of the host's root: only there the kernel makes no file `cgroup.type`.
fn is_hosts_root(directory: &Path) -> bool {
    directory.join("cgroup.type").try_exists().is_ok_and(|exists| !exists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_the_host_has_no_type() {
        let directory = tempfile::tempdir().unwrap();
        assert!(is_hosts_root(directory.path()));
        fs::write(directory.path().join("cgroup.type"), "domain\n").unwrap();
        assert!(!is_hosts_root(directory.path()));
    }
}
