//! Leftovers of a killed bufwise on a cgroup: its program, and buffers that are set.
//!
//! Problem: the program is attached to the cgroup itself and goes on when its owner is killed; the buffers it set
//! stay locked. The next start has to find it, learn what was set, and take it away, without ever touching the
//! program of a bufwise that lives.
//! - The owner of a program stands in its control map: process number, the namespace that the number belongs to, and
//!   when the process began, so that a number that was given again is not mistaken.
//! - In the same process namespace that decides, however long the owner was silent (it may be stopped). From
//!   another one the process cannot be seen: there the heartbeat decides.
//! - A program of another version, whose structures are others, can be taken off; what it set cannot be read.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use bufwise_units::Micros;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::stat::fstat;

use crate::abi::{LAYOUT, Plain, bw_config, bw_control, bw_flow};
use crate::cgroup::CgroupError;
use crate::clock::{self, now};
use crate::entries::Entries;
use crate::flow::FlowState;
use crate::group::Group;
use crate::program::{self, ProgramInfo};
use crate::release::{self, Released};

/// The name of the program on the cgroup.
const NAME: &str = "bufwise_flow";
/// Fields of `/proc/PID/stat` from the state (the third) to the time at which the process began (the 22nd).
const FROM_STATE_TO_BEGIN: usize = 19;
/// Unit of that time, nanoseconds: `USER_HZ` is 100.
const TICK: i64 = 10_000_000;

/// Why what was left behind could not be dealt with.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// The kernel does not say what is attached.
    #[error("cannot ask which programs are on the cgroup: {0}; run as root")]
    Query(io::Error),
    /// A program found there cannot be taken off.
    #[error("cannot take the program that was left behind off the cgroup: {0}")]
    Detach(io::Error),
    /// Its connections cannot be read.
    #[error("cannot read the connections of the program that was left behind: {0}")]
    Flows(libbpf_rs::Error),
    /// Another version's structures.
    #[error("the program that was left behind is another version's: its connections keep their buffers")]
    OtherVersion,
}

/// A program on a cgroup whose owner is gone.
#[derive(Debug)]
pub struct Leftover {
    cgroup: OwnedFd,
    program: OwnedFd,
    control: Option<MapHandle>,
    flows: Option<MapHandle>,
    attached: bool,
}

/// The programs on a cgroup (a descriptor of its directory; those above and below it do not count) that a killed
/// bufwise has left there.
///
/// # Errors
/// [`LeftoverError::Query`] without the privilege.
pub fn leftovers(cgroup: BorrowedFd<'_>) -> Result<Vec<Leftover>, LeftoverError> {
    let programs = program::attached(cgroup).map_err(LeftoverError::Query)?;
    let mut found = Vec::new();
    for program in programs {
        let info = ProgramInfo::of(program.as_fd()).map_err(LeftoverError::Query)?;
        if info.name != NAME {
            continue;
        }
        let maps = Maps::open(&info);
        if maps.owner_lives() {
            continue;
        }
        let cgroup = cgroup.try_clone_to_owned().map_err(LeftoverError::Query)?;
        let (control, flows) = maps.readable();
        found.push(Leftover { cgroup, program, control, flows, attached: true });
    }
    Ok(found)
}

/// The cgroups, by the inode of their directory, on which there is a program of a bufwise that lives.
///
/// # Errors
/// [`CgroupError::Hierarchy`] without cgroup v2. Cgroups that go meanwhile are left out.
pub(crate) fn tuned_groups() -> Result<Vec<u64>, CgroupError> {
    let mut found = Vec::new();
    Group::walk(&mut |group| {
        if is_tuned(group.as_fd()) {
            found.extend(fstat(&group).map(|directory| directory.st_ino));
        }
    })?;
    Ok(found)
}

/// Whether there is a program of a bufwise that lives on a cgroup itself.
pub(crate) fn is_tuned(cgroup: BorrowedFd<'_>) -> bool {
    let programs = program::attached(cgroup).unwrap_or_default();
    let mut infos = programs.iter().filter_map(|program| ProgramInfo::of(program.as_fd()).ok());
    infos.any(|info| info.name == NAME && Maps::open(&info).owner_lives())
}

/// As [`leftovers`], of a cgroup and all below it: with [`crate::hierarchy`], wherever bufwise ran.
///
/// # Errors
/// As [`leftovers`]. Cgroups that go meanwhile are left out.
pub fn leftovers_below(cgroup: BorrowedFd<'_>) -> Result<Vec<Leftover>, LeftoverError> {
    let mut found = leftovers(cgroup)?;
    let children =
        fs::read_dir(format!("/proc/self/fd/{}", cgroup.as_raw_fd())).into_iter().flatten().flatten();
    for child in children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir())) {
        if let Ok(directory) = File::open(child.path()) {
            found.extend(leftovers_below(directory.as_fd())?);
        }
    }
    Ok(found)
}

impl Leftover {
    /// The records of its connections, for [`crate::Engine::inherit`].
    ///
    /// # Errors
    /// [`LeftoverError::OtherVersion`], [`LeftoverError::Flows`].
    pub fn entries(&self) -> Result<Entries, LeftoverError> {
        let flows = self.flows.as_ref().ok_or(LeftoverError::OtherVersion)?;
        Entries::read(flows).map_err(LeftoverError::Flows)
    }

    /// Its connections.
    ///
    /// # Errors
    /// As [`Leftover::entries`].
    pub fn flows(&self) -> Result<Vec<FlowState>, LeftoverError> {
        Ok(self.entries()?.flows().collect())
    }

    /// Takes the program off the cgroup; what it knows can still be read. Done before: nothing happens.
    ///
    /// # Errors
    /// [`LeftoverError::Detach`].
    pub fn detach(&mut self) -> Result<(), LeftoverError> {
        if self.attached {
            program::detach(self.program.as_fd(), self.cgroup.as_fd()).map_err(LeftoverError::Detach)?;
            self.attached = false;
        }
        Ok(())
    }

    /// Gives every socket that the program set back to the kernel, and takes it off: until then another one finds it, should
    /// this process be killed.
    ///
    /// # Errors
    /// As [`Leftover::detach`] and [`Leftover::entries`]. A program of another version is off all the same.
    pub fn release(mut self) -> Result<Released, LeftoverError> {
        if !self.rest() {
            self.detach()?;
        }
        let released = match self.entries() {
            Ok(entries) => Ok(release::release_all(&entries)),
            // They may be readable the next time.
            Err(error @ LeftoverError::Flows(_)) => return Err(error),
            Err(error) => Err(error),
        };
        self.detach()?;
        released
    }

    /// Has the program set no connection any more; whether that can be done.
    fn rest(&self) -> bool {
        let control = self.control.as_ref().and_then(|map| Some((map, bw_control::read(&only_value(map)?)?)));
        control.is_some_and(|(map, control)| {
            let resting = bw_control { resting: 1, ..control };
            map.update(&0_u32.to_ne_bytes(), resting.bytes(), MapFlags::ANY).is_ok()
        })
    }
}

/// How long an owner may be silent of which nothing else is known.
const STALE: Micros = Micros(5_000_000);

/// The maps of a program, as far as they say who owns it and what it knows.
#[derive(Default)]
struct Maps {
    /// In every version it begins with the heartbeat, nanoseconds.
    control: Vec<u8>,
    control_map: Option<MapHandle>,
    config: Option<bw_config>,
    flows: Option<MapHandle>,
}

impl Maps {
    /// libbpf ends the names of a program's variables in `.data`, those of its constants in `.rodata`.
    fn open(info: &ProgramInfo) -> Self {
        let mut maps = Self::default();
        for map in info.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok()) {
            let name = map.name().to_string_lossy().into_owned();
            if name == "flows" {
                maps.flows = Some(map);
            } else if name.ends_with(".data") {
                maps.control = only_value(&map).unwrap_or_default();
                maps.control_map = Some(map);
            } else if name.ends_with(".rodata") {
                maps.config = only_value(&map).and_then(|bytes| bw_config::read(&bytes));
            }
        }
        maps
    }

    /// The control structure, if it is this version's.
    fn control(&self) -> Option<bw_control> {
        bw_control::read(&self.control).filter(|control| control.layout == LAYOUT)
    }

    fn owner_lives(&self) -> bool {
        let control = self.control();
        if let Some(lives) = control.and_then(|control| Owner::of(&control).lives()) {
            return lives;
        }
        let config = self.config.filter(|_| control.is_some());
        let stale = config.map_or(STALE, |config| Micros(config.stale_ns / 1_000));
        let heartbeat = self.control.first_chunk().map(|bytes| Micros(u64::from_ne_bytes(*bytes) / 1_000));
        // A program without a readable heartbeat counts as alive, so that it is not touched.
        heartbeat.is_none_or(|heartbeat| now() - heartbeat <= stale)
    }

    /// The maps of the control structure and of the flows, if they are this version's.
    fn readable(self) -> (Option<MapHandle>, Option<MapHandle>) {
        let readable = self.control().is_some();
        let flows =
            self.flows.filter(|flows| readable && flows.value_size() as usize == size_of::<bw_flow>());
        (self.control_map.filter(|_| readable), flows)
    }
}

fn only_value(map: &MapHandle) -> Option<Vec<u8>> {
    map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()?
}

/// A process, so that another one with its number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    /// Low half of the inode of its process namespace.
    pub(crate) namespace: u32,
    /// When it began: ticks since the system started.
    pub(crate) began: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self { pid, namespace: own_namespace(), began: began(pid).unwrap_or_default() }
    }

    fn of(control: &bw_control) -> Self {
        Self { pid: control.owner_pid, namespace: control.owner_pidns, began: control.owner_began }
    }

    /// Whether it runs; `None` where that cannot be seen from here.
    fn lives(&self) -> Option<bool> {
        let here = own_namespace();
        // Seen from two time namespaces whose offsets are no multiple of a tick it may differ by one.
        let same = || began(self.pid).is_some_and(|began| began.abs_diff(self.began) <= 1);
        (here != 0 && here == self.namespace && self.began != 0).then(same)
    }
}

/// 0 where there is no /proc.
fn own_namespace() -> u32 {
    // Namespaces have 32-bit inodes.
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino() as u32)
}

fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; what follows its closing bracket is numbers.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    // A process that was killed and not yet waited for does nothing any more.
    let state = fields.next()?;
    let began = fields.nth(FROM_STATE_TO_BEGIN - 1)?.parse().ok()?;
    (state != "Z" && state != "X").then(|| clock::started(began, TICK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_with_its_number_but_another_begin_does_not() {
        let own = Owner::own();
        assert_eq!(own.lives(), Some(true));
        assert_eq!(Owner { began: own.began + 2, ..own }.lives(), Some(false));
        assert_eq!(Owner { namespace: own.namespace + 1, ..own }.lives(), None);
    }

    fn maps(control: Vec<u8>) -> Maps {
        Maps { control, ..Maps::default() }
    }

    #[test]
    fn of_another_versions_program_only_the_heartbeat_is_believed() {
        let control = |age: Micros| {
            let heartbeat = (now() - age).0 * 1_000;
            [&heartbeat.to_ne_bytes()[..], &[7; 16][..]].concat()
        };
        assert!(maps(control(Micros::ZERO)).owner_lives());
        let silent = maps(control(STALE.times(2)));
        assert!(!silent.owner_lives() && silent.readable().1.is_none());
        assert!(maps(Vec::new()).owner_lives(), "a program that says nothing is nobody's leftover");
    }

    #[test]
    fn this_versions_program_is_its_processs_however_silent_that_is() {
        let own = Owner::own();
        let control = bw_control {
            layout: LAYOUT,
            owner_pid: own.pid,
            owner_pidns: own.namespace,
            owner_began: own.began,
            ..bw_control::default()
        };
        assert!(maps(control.bytes().to_vec()).owner_lives());
        let successor = bw_control { owner_began: own.began + 2, heartbeat_ns: now().0 * 1_000, ..control };
        assert!(!maps(successor.bytes().to_vec()).owner_lives());
        let elsewhere = bw_control { owner_pidns: own.namespace + 1, ..successor };
        assert!(maps(elsewhere.bytes().to_vec()).owner_lives());
    }

    #[test]
    fn a_killed_process_is_gone_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner { pid: child.id(), began: began(child.id()).unwrap(), ..Owner::own() };
        assert_eq!(owner.lives(), Some(true));
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while owner.lives() == Some(true) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(owner.lives(), Some(false));
        child.wait().unwrap();
    }
}
