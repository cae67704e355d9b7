//! Finds and clears what a killed bufwise left behind.
//!
//! Its programs stay attached to their cgroups; buffers that they set stay set; settings stay raised; a cgroup made
//! for a command stays. A living bufwise's property is not touched: programs name their owner, and journals and
//! cgroups are locked while their owner lives.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bufwise_bpf::{CgroupError, Group, await_owners, leftovers};
use bufwise_units::counted;

use crate::caps::{self, Caps, Change};
use crate::error::{Error, Result, in_words};
use crate::netns;
use crate::processes::{effective_capabilities, printable_path};

/// Inode of the first process namespace (`PROC_PID_INIT_INO`), in which every process has a number.
const FIRST_PROCESS_NAMESPACE: u64 = 0xefff_fffc;
/// CAP_SYS_PTRACE, which the namespaces of processes with more privileges need.
const SYS_PTRACE: u64 = 1 << 19;

/// Leftovers that were cleared; one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Restored or removed.
    pub done: Vec<String>,
    /// Not restored, and why.
    pub failed: Vec<String>,
}

/// Clears what dead owners left. Settings come first, because sockets that are given back are sized within them.
///
/// # Errors
/// The host's cgroups or programs cannot be listed, for lack of privilege or of cgroup v2; settings are restored all the
/// same.
pub fn clear() -> Result<Cleared> {
    let (cleared, refused) = clear_most();
    refused.map_or(Ok(cleared), Err)
}

/// As [`clear`], but also returns what was cleared if the host's cgroups or programs cannot be listed, and why they cannot.
pub fn clear_most() -> (Cleared, Option<Error>) {
    let mut cleared = Cleared::default();
    clear_settings(&Caps::of_host(), &mut cleared);
    let refused = clear_cgroups(&mut cleared).err();
    (cleared, refused)
}

/// Clears the programs of dead owners, and the cgroups that they made.
fn clear_cgroups(cleared: &mut Cleared) -> Result<()> {
    let (mut found, mut ours, mut refused) = (Vec::new(), Vec::new(), None);
    Group::walk(&mut |group| {
        match leftovers(group.as_fd()) {
            // Not the leftovers themselves: each holds descriptors, and the programs of a `[[group]]` may be on very many
            // cgroups.
            Ok(left) if !left.is_empty() => found.push(group.path().to_owned()),
            Err(error) if group.exists() => refused = Some(error),
            _ => {}
        }
        if group.is_ours() {
            // Not the group itself: any user with a cgroup of his own can make very many with such a name.
            ours.push(group.path().to_owned());
        }
    })?;
    if let Some(error) = refused {
        return Err(error.into());
    }
    for path in found {
        clear_programs(&path, cleared);
    }
    for path in ours {
        if Group::open(&path).is_ok_and(Group::remove_if_abandoned) {
            cleared.done.push(format!("cgroup {} removed", printable_path(&path)));
        }
    }
    Ok(())
}

/// Clears the programs on one cgroup.
fn clear_programs(path: &Path, cleared: &mut Cleared) {
    let name = printable_path(path);
    let group = match Group::open(path) {
        Ok(group) => group,
        // Its programs have gone with it.
        Err(CgroupError::Open { source, .. }) if source.kind() == ErrorKind::NotFound => return,
        Err(error) => return cleared.failed.push(in_words(&error)),
    };
    let left = match leftovers(group.as_fd()) {
        Ok(left) => left,
        Err(_) if !group.exists() => return,
        Err(error) => return cleared.failed.push(format!("cgroup {name}: {error}")),
    };
    for leftover in left {
        match leftover.release() {
            Ok(released) => {
                cleared.done.push(format!("programs taken off cgroup {name}; {}", given_back(released)));
            }
            Err(error) => cleared.failed.push(format!("cgroup {name}: {error}")),
        }
    }
}

/// As [`clear`], for the start of a daemon: first waits until it is known which owners live. The programs of one that was
/// killed just now would otherwise stay, and take each new connection before the daemon's own programs see it.
pub(crate) fn clear_before_daemon() -> Result<Cleared> {
    await_owners()?;
    clear()
}

/// Describes how many connections were given back to the kernel.
pub fn given_back(released: bufwise_bpf::Released) -> String {
    let mut text = format!("{} given back to the kernel", counted(released.released, "connection"));
    if released.not_found > 0 {
        text += &format!(", {} not found in any process", released.not_found);
    }
    if released.refused > 0 {
        text += &format!(", {} refused by the kernel", released.refused);
    }
    text
}

/// Describes a setting that was restored.
pub fn put_back(change: &Change, namespace: &str) -> String {
    format!("{change} (network namespace {namespace})")
}

/// Restores what network namespaces have inherited from the first one while its maxima were raised, unless a living
/// owner still relies on these.
pub fn clear_inherited(cleared: &mut Cleared) {
    let caps = Caps::of_host();
    if caps.ownerless().is_ok_and(|ownerless| ownerless.contains(&Caps::INHERITED)) {
        clear_settings(&caps, cleared);
    }
}

fn clear_settings(caps: &Caps, cleared: &mut Cleared) {
    let ownerless: BTreeSet<u64> = match caps.ownerless() {
        Ok(ownerless) if ownerless.is_empty() => return,
        Ok(ownerless) => ownerless.into_iter().collect(),
        Err(error) => return cleared.failed.push(in_words(&error)),
    };
    let anywhere = ownerless.contains(&Caps::INHERITED);
    let put_back_there = || -> Result<_> {
        let cookie = caps::here()?;
        let is_left = anywhere || ownerless.contains(&cookie);
        let changes = if is_left { caps.put_back(cookie)? } else { Vec::new() };
        Ok((cookie, changes))
    };
    let mut met = BTreeSet::new();
    let complete = netns::visit(|namespace| match namespace.run(put_back_there).flatten() {
        Ok((cookie, changes)) => {
            met.insert(cookie);
            cleared.done.extend(changes.iter().map(|change| put_back(change, &namespace.label())));
        }
        Err(error) => {
            cleared.failed.push(format!("network namespace {}: {}", namespace.label(), in_words(&error)));
        }
    });
    match complete {
        Ok(true) => {}
        Ok(false) => cleared.failed.push("not every network namespace could be opened".to_owned()),
        Err(error) => cleared.failed.push(in_words(&error)),
    }
    if cleared.failed.is_empty() && sees_every_process() {
        forget_namespaces(caps, ownerless.difference(&met), cleared);
    }
}

/// Forgets namespaces that are gone; their settings have gone with them.
fn forget_namespaces<'a>(caps: &Caps, gone: impl Iterator<Item = &'a u64>, cleared: &mut Cleared) {
    for namespace in gone {
        if let Err(error) = caps.forget(*namespace) {
            cleared.failed.push(in_words(&error));
        }
    }
}

/// Returns whether this process may see the network namespaces of all processes. A security module may hide some all the same.
fn sees_every_process() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.ino() == FIRST_PROCESS_NAMESPACE)
        && effective_capabilities().is_some_and(|held| held & SYS_PTRACE != 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;
    use bufwise_bpf::Released;

    #[test]
    fn root_namespaces_that_nobody_met_get_back_what_the_first_one_had() {
        if !bufwise_trial::root() {
            return;
        }
        // Unique values, because every namespace of this machine is checked.
        let (original, raised, own) = ("4096 131072 6291001", "4096 131072 7654321", "4096 131072 7654323");
        let script = |value| {
            format!(
                "echo '{value}' >/proc/sys/net/ipv4/tcp_rmem; echo up; cat; cat /proc/sys/net/ipv4/tcp_rmem"
            )
        };
        let start = |value| {
            let mut command = Command::new("unshare");
            command.args(["-n", "sh", "-c", &script(value)]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).expect("the namespace is ready");
            child
        };
        let strangers = [start(raised), start(own)];
        let directory = tempfile::tempdir().unwrap();
        let inherited = directory.path().join("caps-0");
        fs::write(&inherited, format!("net.ipv4.tcp_rmem\t{original}\t{raised}\n")).unwrap();
        let mut cleared = Cleared::default();
        clear_settings(&Caps::with_journals(directory.path()), &mut cleared);
        let values = strangers.map(|stranger| {
            let said = stranger.wait_with_output().unwrap().stdout;
            String::from_utf8(said).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        });
        assert_eq!(values, [original, own]);
        let line = format!("net.ipv4.tcp_rmem = {original} (network namespace ");
        assert!(matches!(&cleared.done[..], [one] if one.starts_with(&line)), "{cleared:?}");
        assert_eq!(inherited.exists(), !(cleared.failed.is_empty() && sees_every_process()));
    }

    #[test]
    fn connections_that_could_not_be_reached_are_counted_apart() {
        let all = Released { released: 3, not_found: 2, refused: 1 };
        assert_eq!(
            given_back(all),
            "3 connections given back to the kernel, 2 not found in any process, 1 refused by the kernel"
        );
        let usual = Released { released: 3, ..Released::default() };
        assert_eq!(given_back(usual), "3 connections given back to the kernel");
        let single = Released { released: 1, ..Released::default() };
        assert_eq!(given_back(single), "1 connection given back to the kernel");
    }
}
