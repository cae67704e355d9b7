//! Leftovers of a killed bufwise on a cgroup: its program, and buffers that are set.
//!
//! Problem: the program is attached to the cgroup itself and continues when its owner is killed; the buffers it set
//! stay locked. The next start must find the program, read what it has set, and remove it, without ever touching the
//! program of a living bufwise.
//! - The control map names the owner of a program: process number, process namespace, and start of the process, so
//!   that a reused number is not mistaken for the owner.
//! - In the same process namespace the owner's process decides, however old its heartbeat is (it may be stopped). From another
//!   namespace, or where `/proc` hides the process (`hidepid=`), the heartbeat decides.
//! - A program of another version, whose structures differ, can be detached; its settings cannot be read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use bufwise_units::Micros;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::stat::fstat;
use nix::unistd::{Pid, getpgid};

use crate::abi::{LAYOUT, Plain, bw_config, bw_control, bw_flow};
use crate::cgroup::CgroupError;
use crate::clock::{self, now};
use crate::entries::Entries;
use crate::flow::FlowState;
use crate::group::Group;
use crate::program::{self, ProgramInfo};
use crate::release::{self, Released};

/// Name of the program on the cgroup.
const NAME: &str = "bufwise_flow";
/// Number of fields of `/proc/PID/stat` from the state (the third) to the start of the process (the 22nd).
const FROM_STATE_TO_BEGIN: usize = 19;
/// Unit of the start time, nanoseconds: `USER_HZ` is 100.
const TICK: i64 = 10_000_000;

/// Why leftovers could not be listed or removed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// The kernel does not list the attached programs.
    #[error("cannot ask which programs are on the cgroup: {0}; run as root")]
    Query(io::Error),
    /// A leftover program cannot be detached.
    #[error("cannot take the program that was left behind off the cgroup: {0}")]
    Detach(io::Error),
    /// The connections of a leftover program cannot be read.
    #[error("cannot read the connections of the program that was left behind: {0}")]
    Flows(libbpf_rs::Error),
    /// The structures are those of another version.
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

/// Returns the programs of a killed bufwise on a cgroup (a descriptor of its directory), not counting those above and
/// below it.
///
/// # Errors
/// [`LeftoverError::Query`] without the privilege.
pub fn leftovers(cgroup: BorrowedFd<'_>) -> Result<Vec<Leftover>, LeftoverError> {
    let programs = program::attached(cgroup).map_err(LeftoverError::Query)?;
    let mut found = Vec::new();
    // A program that may not be opened cannot be removed either.
    for program in programs.into_iter().flatten() {
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

/// Waits, for up to five seconds, until [`leftovers`] can tell which owners of programs on the host's cgroups are alive.
/// Where only the heartbeat decides, an owner that was killed just now still counts as alive; a living owner renews its
/// heartbeat within about a second.
///
/// # Errors
/// As [`Group::walk`].
pub fn await_owners() -> Result<(), CgroupError> {
    let deadline = now() + STALE;
    Group::walk(&mut |group| {
        // A program that may not be opened cannot be removed either.
        let programs = program::attached(group.as_fd()).unwrap_or_default().into_iter().flatten();
        let infos = programs.filter_map(|program| ProgramInfo::of(program.as_fd()).ok());
        let found: Vec<Maps> = infos.filter(|info| info.name == NAME).map(|info| Maps::open(&info)).collect();
        while found.iter().any(Maps::is_in_doubt) && now() <= deadline {
            thread::sleep(PAUSE);
        }
    })
}

/// Returns the cgroups, by the inode of their directory, that have a program of a living bufwise, or may have one: as
/// [`is_tuned`].
///
/// # Errors
/// As [`Group::walk`]. Cgroups that go meanwhile are skipped.
pub(crate) fn tuned_groups() -> Result<Vec<u64>, CgroupError> {
    let mut found = Vec::new();
    Group::walk(&mut |group| {
        if is_tuned(group.as_fd()) {
            found.extend(fstat(&group).map(|directory| directory.st_ino));
        }
    })?;
    Ok(found)
}

/// Returns whether a cgroup itself has a program of a living bufwise. If the kernel does not tell, it counts as tuned,
/// so that its connections are not taken from another bufwise; a cgroup that was removed meanwhile does not.
pub(crate) fn is_tuned(cgroup: BorrowedFd<'_>) -> bool {
    has_living_owner(cgroup).unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
}

fn has_living_owner(cgroup: BorrowedFd<'_>) -> io::Result<bool> {
    for program in program::attached(cgroup)? {
        let info = ProgramInfo::of(program?.as_fd())?;
        if info.name == NAME && Maps::open(&info).owner_lives() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Leftover {
    /// Returns the records of its connections, for [`crate::Engine::inherit`].
    ///
    /// # Errors
    /// [`LeftoverError::OtherVersion`], [`LeftoverError::Flows`].
    pub fn entries(&self) -> Result<Entries, LeftoverError> {
        let flows = self.flows.as_ref().ok_or(LeftoverError::OtherVersion)?;
        Entries::read(flows).map_err(LeftoverError::Flows)
    }

    /// Returns its connections.
    ///
    /// # Errors
    /// As [`Leftover::entries`].
    pub fn flows(&self) -> Result<Vec<FlowState>, LeftoverError> {
        Ok(self.entries()?.flows().collect())
    }

    /// Detaches the program from the cgroup, unless it is detached already; its records can still be read.
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

    /// Gives every socket that the program has set back to the kernel, and then detaches it, so that if this process
    /// is killed in between, another one finds the program. A program may be on several cgroups: the first call gives
    /// back the sockets of all.
    ///
    /// # Errors
    /// As [`Leftover::detach`] and [`Leftover::entries`]. A program of another version is detached all the same.
    pub fn release(mut self) -> Result<Released, LeftoverError> {
        if !self.suspend() {
            self.detach()?;
        }
        let released = match self.entries() {
            Ok(entries) => {
                let released = release::release_all(&entries);
                self.forget(&entries);
                Ok(released)
            }
            // Reading may succeed the next time.
            Err(error @ LeftoverError::Flows(_)) => return Err(error),
            Err(error) => Err(error),
        };
        self.detach()?;
        released
    }

    /// Deletes the records of connections.
    fn forget(&self, entries: &Entries) {
        let Some(map) = &self.flows else { return };
        for flow in entries.flows() {
            let _not_there = map.delete(&flow.cookie.to_ne_bytes());
        }
    }

    /// Stops the program from setting any connection; returns whether this succeeded.
    fn suspend(&self) -> bool {
        let control = self.control.as_ref().and_then(|map| Some((map, bw_control::read(&only_value(map)?)?)));
        control.is_some_and(|(map, control)| {
            let suspended = bw_control { suspended: 1, ..control };
            map.update(&0_u32.to_ne_bytes(), suspended.bytes(), MapFlags::ANY).is_ok()
        })
    }
}

/// Age of the heartbeat at which an owner counts as dead if its process is not visible.
const STALE: Micros = Micros(5_000_000);
/// Time between two reads of a heartbeat.
const PAUSE: Duration = Duration::from_millis(20);

/// The maps of a program that show its owner and its records.
#[derive(Default)]
struct Maps {
    /// Content of the control map; in every version it begins with the heartbeat, nanoseconds.
    control: Vec<u8>,
    control_map: Option<MapHandle>,
    config: Option<bw_config>,
    flows: Option<MapHandle>,
}

impl Maps {
    /// Opens the maps. libbpf names the map of a program's variables with the suffix `.data`, that of its constants
    /// with `.rodata`.
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

    /// Returns the control structure, if it is of this version.
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
        // A program without a readable heartbeat counts as alive, so that it is not touched.
        heartbeat(&self.control).is_none_or(|heartbeat| now() - heartbeat <= stale)
    }

    /// Returns whether only the last heartbeat shows that the owner is alive, and no new one has come since the maps were
    /// opened.
    fn is_in_doubt(&self) -> bool {
        self.control_map.as_ref().and_then(only_value).is_some_and(|present| self.lacks_another(&present))
    }

    /// As [`Maps::is_in_doubt`], where the control map now has this content.
    fn lacks_another(&self, present: &[u8]) -> bool {
        let is_visible = self.control().is_some_and(|control| Owner::of(&control).lives().is_some());
        let last = heartbeat(&self.control);
        !is_visible && last.is_some() && last == heartbeat(present) && self.owner_lives()
    }

    /// Returns the maps of the control structure and of the flows, if they are of this version.
    fn readable(self) -> (Option<MapHandle>, Option<MapHandle>) {
        let readable = self.control().is_some();
        let flows =
            self.flows.filter(|flows| readable && flows.value_size() as usize == size_of::<bw_flow>());
        (self.control_map.filter(|_| readable), flows)
    }
}

/// Returns the heartbeat with which the control structure begins.
fn heartbeat(control: &[u8]) -> Option<Micros> {
    control.first_chunk().map(|bytes| Micros(u64::from_ne_bytes(*bytes) / 1_000))
}

fn only_value(map: &MapHandle) -> Option<Vec<u8>> {
    map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()?
}

/// A process, identified so that another one with the same number is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    /// Low half of the inode of its process namespace.
    pub(crate) namespace: u32,
    /// Start of the process: ticks since the system started.
    pub(crate) began: u64,
}

impl Owner {
    /// Returns this process.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self { pid, namespace: own_namespace(), began: began(pid).unwrap_or_default() }
    }

    fn of(control: &bw_control) -> Self {
        Self { pid: control.owner_pid, namespace: control.owner_pidns, began: control.owner_began }
    }

    /// Returns whether it runs; `None` if that is not visible from here.
    fn lives(&self) -> Option<bool> {
        let here = own_namespace();
        // Two time namespaces whose offsets are not a multiple of a tick may see starts that differ by one tick.
        let same = || began(self.pid).is_some_and(|began| began.abs_diff(self.began) <= 1);
        let is_here = here != 0 && here == self.namespace && self.began != 0;
        (is_here && !is_hidden(self.pid)).then(same)
    }
}

/// Returns the low half of the inode of the process namespace; 0 if there is no /proc.
fn own_namespace() -> u32 {
    // Namespaces have 32-bit inodes.
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino() as u32)
}

/// Returns whether a process exists that `/proc` does not show to this one.
fn is_hidden(pid: u32) -> bool {
    let exists = getpgid(Some(Pid::from_raw(pid.cast_signed()))).is_ok();
    exists && fs::metadata(format!("/proc/{pid}/stat")).is_err()
}

fn began(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any bytes; the fields after its last closing bracket are numbers.
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    // A killed process that was not yet waited for does nothing any more.
    let state = fields.next()?;
    let began = fields.nth(FROM_STATE_TO_BEGIN - 1)?.parse().ok()?;
    (state != "Z" && state != "X").then(|| clock::started(began, TICK))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::cgroup::Cgroup;
    use crate::config::Config;
    use crate::engine::Engine;

    fn end_as_by_a_panic(engine: Engine) {
        let _dropped_meanwhile = engine;
        resume_unwind(Box::new(()));
    }

    #[test]
    fn root_a_panic_leaves_the_programs_for_the_next_start_to_find() {
        if !bufwise_trial::root() {
            return;
        }
        let cgroup = Cgroup::create().unwrap();
        let mut engine = Engine::load(&Config::default()).unwrap();
        engine.attach(cgroup.as_fd()).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| end_as_by_a_panic(engine))).is_err());
        assert_eq!(program::attached(cgroup.as_fd()).unwrap().len(), 1);
    }

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
    fn an_owner_that_only_a_heartbeat_shows_is_in_doubt_until_the_next_one_or_until_it_is_stale() {
        let control = |age: Micros| ((now() - age).0 * 1_000).to_ne_bytes().to_vec();
        let (last, stale) = (control(Micros::ZERO), control(STALE.times(2)));
        assert!(maps(last.clone()).lacks_another(&last) && !maps(last).lacks_another(&stale));
        assert!(!maps(stale.clone()).lacks_another(&stale));
        assert!(!maps(Vec::new()).lacks_another(&[]), "it would be waited for in vain");
        let own = Owner::own();
        let visible = bw_control {
            heartbeat_ns: now().0 * 1_000,
            layout: LAYOUT,
            owner_pid: own.pid,
            owner_pidns: own.namespace,
            owner_began: own.began,
            ..bw_control::default()
        };
        assert!(!maps(visible.bytes().to_vec()).lacks_another(visible.bytes()));
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
    fn a_group_whose_programs_cannot_be_listed_counts_as_tuned() {
        // The kernel refuses the question about a file that is no cgroup, with privilege and without.
        assert!(is_tuned(File::open("/dev/null").unwrap().as_fd()));
    }

    #[test]
    fn a_killed_process_is_gone_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner { pid: child.id(), began: began(child.id()).unwrap(), ..Owner::own() };
        assert_eq!(owner.lives(), Some(true));
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while owner.lives() == Some(true) && std::time::Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(owner.lives(), Some(false));
        child.wait().unwrap();
    }
}
