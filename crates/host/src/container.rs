//! Whether a container sees the cgroups of the whole host.
//!
//! In a cgroup namespace of its own (the default of podman and docker, also of privileged containers) the root of the
//! hierarchy is the container's own cgroup: programs attached there see the container's connections alone.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Advice for people.
pub const ADVICE: &str = "start the container with --cgroupns=host";

/// Returns whether process 1 is in another cgroup namespace than this process. If process 1 is the container's own,
/// both share a namespace, and the cgroups in reach are the intended ones.
pub fn has_cgroups_of_its_own() -> bool {
    let namespace = |process| fs::metadata(format!("/proc/{process}/ns/cgroup")).map(|file| file.ino());
    matches!((namespace("self"), namespace("1")), (Ok(own), Ok(first)) if own != first)
}
