//! Finds the sockets of a command, of its process and of all descendants; or those of this process itself.
//!
//! Problem: without privilege the kernel does not report that a process has forked, or made a socket. `/proc` shows
//! both.
//! - Descendants: every process whose parent is one. The caller is made a reaper (`PR_SET_CHILD_SUBREAPER`), so that
//!   a process whose parent has ended becomes its child and stays a descendant, however often it has forked. The
//!   parent is read only for new processes.
//! - New processes: `/proc/loadavg` ends with the number that was assigned last, so only the numbers assigned since are
//!   looked up. All processes are listed where these are unknown, too many or begin anew, and now and then in any case, to
//!   forget those that have ended. Containers may show another `/proc/loadavg`, with foreign numbers or rarely updated: if it
//!   does not tell of the command, all processes are listed instead, at least four times a second.
//! - The children of another `bufwise run` among them are left to that: it is nearer, and two rules would overwrite each
//!   other's settings.
//! - Sockets: the links in `/proc/PID/fd`, those of the process's first thread. Its other threads share them.
//! - Connections that this process has inherited, and the command from it, as under inetd(8): once the command has closed
//!   them, they are reached here, because the process that passed them on may still use them.
//!
//! Cost: a few microseconds for a process, and one for each of its descriptors. A list of all processes takes one for each,
//! 50 ms beside 50,000: more than searches may take at once (`schedule.rs`). So it is made at most once per [`REST`]
//! times the processor time of the previous one, and once per [`REST_ANYWAY`] times this if the numbers suffice.
//!
//! Out of reach: a process that may not be traced, because it is setuid, belongs to another user, or forbids it
//! (`PR_SET_DUMPABLE`); all processes under Yama's scopes 2 and 3. [`Finder::refusals`] lists them. Descriptors that a
//! thread does not share (`unshare(CLONE_FILES)`), or that the first thread left to the others when it ended, are not found.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bufwise_socket::child;
use bufwise_units::Micros;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use socket2::{Protocol, SockRef};

use crate::clock::{self, processor_time};
use crate::error::is_scarce;
use crate::reach::{self, Place, SocketCopy};

use super::process::{Process, is_run, last_started, processes, shows_this_process};

/// Least time between two lists of processes, as a multiple of the processor time of the previous one; so between two
/// look-ups of the numbers assigned since.
const REST: u64 = 100;
/// Time after which processes are listed in any case: this multiple of the processor time of the previous list, and at
/// least so many microseconds.
const REST_ANYWAY: u64 = 1_000;
const LIST_ANYWAY: u64 = 250_000;
/// Most numbers that are looked up one by one: so many take some 10 ms.
const LOOKED_UP: i32 = 4_096;
/// Most refusals that are reported.
const TOLD: usize = 4;

/// Finds and keeps the command's processes.
#[derive(Debug)]
pub(super) struct Finder {
    own: i32,
    /// Whether `/proc` shows this process and its descendants by their numbers.
    is_shown: bool,
    /// Descendants are looked for; else this process alone is `ours`.
    descends: bool,
    /// The command, which its starter waits for; other children are reaped here.
    command: Option<i32>,
    ours: BTreeSet<i32>,
    others: BTreeSet<i32>,
    /// Processes whose parent was neither ours nor another's at the last list.
    doubtful: BTreeSet<i32>,
    /// Numbers that had been assigned, but showed no process yet, at the last look-up.
    unborn: BTreeSet<i32>,
    /// The last field of `/proc/loadavg` at the last list of processes or look-up.
    last_started: Option<i32>,
    /// Whether that field is the number that this process namespace has assigned last.
    tells_numbers: bool,
    /// Earliest times of the next look-up and of the next list of processes, microseconds, and the time at which they are
    /// listed in any case.
    look_up_at: u64,
    list_at: u64,
    list_anyway_at: u64,
    /// The TCP sockets that this process has inherited, by inode.
    inherited: Arc<HashMap<u64, Place>>,
    refusals: Vec<String>,
}

/// One pass over the processes.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Place of each socket of the command's processes, by inode.
    pub(super) places: HashMap<u64, Place>,
    /// Those of the sockets that this process has inherited.
    inherited: Arc<HashMap<u64, Place>>,
    /// Whether there is a new process.
    pub(super) started: bool,
    /// Whether a process that was started shortly before would have been found: a socket that is not here is gone.
    pub(super) is_complete: bool,
}

impl Found {
    /// Returns the place of a connection of the command: in one of its processes, or else here, if it was inherited.
    pub(super) fn place_of(&self, inode: u64) -> Option<Place> {
        self.places.get(&inode).or_else(|| self.inherited.get(&inode)).copied()
    }
}

impl Finder {
    /// Makes a finder of the descendants that this process has from now on. Others may be there already: a shell that becomes
    /// this process (exec) leaves its background processes as children.
    pub(super) fn new() -> Self {
        let inherited = Arc::new(own_connections());
        let (last_started, used_before) = (last_started(), processor_time());
        let others = processes().unwrap_or_default().into_iter().collect();
        let ours = BTreeSet::new();
        let mut finder = Self { descends: true, ours, others, last_started, inherited, ..Self::of_itself() };
        finder.rest(clock::now().0, used_before);
        finder
    }

    /// Finds the sockets of this process itself.
    pub(super) fn of_itself() -> Self {
        let own = std::process::id().cast_signed();
        Self {
            own,
            is_shown: shows_this_process(),
            descends: false,
            command: None,
            ours: BTreeSet::from([own]),
            others: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            unborn: BTreeSet::new(),
            last_started: None,
            tells_numbers: true,
            look_up_at: 0,
            list_at: 0,
            list_anyway_at: 0,
            inherited: Arc::default(),
            refusals: Vec::new(),
        }
    }

    /// Sets the child that another part of this process waits for.
    pub(super) fn leave_to_its_starter(&mut self, command: i32) {
        self.command = Some(command);
        self.ours.insert(command);
        // Where the numbers begin anew just then, processes are listed.
        let told = self.last_started.zip(last_started());
        self.tells_numbers = told.is_some_and(|(before, last)| (before..=last).contains(&command));
        if !self.tells_numbers {
            self.list_next();
        }
    }

    /// Searches the processes at `now` (microseconds).
    pub(super) fn search(&mut self, now: u64) -> Found {
        self.reap();
        if !self.is_shown {
            self.refuse("/proc does not show this process: the kernel sizes the connections".to_owned());
            return Found::default();
        }
        let started = if self.descends { self.find_new(now) } else { Ok(Some(false)) };
        let mut is_complete = matches!(started, Ok(Some(_))) && self.doubtful.is_empty();
        let mut places = HashMap::new();
        let processes: Vec<i32> = self.ours.iter().copied().collect();
        for pid in processes {
            match reach::sockets_if_allowed(pid) {
                Ok(sockets) => {
                    let mut sockets = sockets.peekable();
                    // A nearer `run` has copies of its command's sockets while it samples them, and no connections of its own.
                    if sockets.peek().is_some() && pid != self.own && is_run(pid) {
                        continue;
                    }
                    sockets.for_each(|(inode, place)| {
                        places.entry(inode).or_insert(place);
                    });
                }
                Err(error) => is_complete &= !self.note_unread(pid, &error),
            }
        }
        let (inherited, started) = (Arc::clone(&self.inherited), started.ok().flatten().unwrap_or_default());
        Found { places, inherited, started, is_complete }
    }

    /// Has the next search list the processes in any case, so that it misses none.
    pub(super) fn list_next(&mut self) {
        (self.list_at, self.list_anyway_at) = (0, 0);
    }

    /// Returns a descriptor of the socket at a place.
    pub(super) fn fetch(&mut self, place: Place) -> Option<SocketCopy> {
        let fetched = reach::whatever_is_at(place);
        if let Err(error) = &fetched {
            self.note_refused(place.pid(), error);
        }
        fetched.ok()
    }

    /// Returns how many of the processes that the last list has found still run, except for this process itself.
    pub(super) fn left(&self) -> usize {
        let runs = |pid: i32| Process::of(pid).is_some_and(|process| !process.is_over);
        self.ours.iter().filter(|pid| **pid != self.own && runs(**pid)).count()
    }

    /// Returns why sockets of the command are out of reach; one line each.
    pub(super) fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Finds new descendants; returns whether there are any; `None`: it is too early for another look-up or list.
    fn find_new(&mut self, now: u64) -> io::Result<Option<bool>> {
        let last = last_started();
        let is_same = last.is_some() && last == self.last_started;
        let is_early = now < self.list_anyway_at;
        if is_early && is_same && self.doubtful.is_empty() && self.unborn.is_empty() {
            return Ok(Some(false));
        }
        if let Some(since) = self.assigned_since(last).filter(|_| is_early && self.tells_numbers) {
            return Ok((now >= self.look_up_at).then(|| self.look_up(now, &since, last)));
        }
        if now < self.list_at { Ok(None) } else { self.list(now, last).map(Some) }
    }

    /// Returns the numbers that were assigned since the last list of processes or look-up; `None`: they are not known, too many,
    /// or begin anew.
    fn assigned_since(&self, last: Option<i32>) -> Option<RangeInclusive<i32>> {
        let (before, last) = (self.last_started?, last?);
        let count = last.checked_sub(before)?;
        (0..=LOOKED_UP).contains(&count).then(|| before.saturating_add(1)..=last)
    }

    /// Looks for new descendants among these numbers; returns whether there are any.
    fn look_up(&mut self, now: u64, since: &RangeInclusive<i32>, last: Option<i32>) -> bool {
        let used_before = processor_time();
        let unborn = std::mem::take(&mut self.unborn);
        let numbers: BTreeSet<i32> = self.doubtful.union(&unborn).copied().chain(since.clone()).collect();
        let mut unknown = Vec::new();
        for number in numbers {
            if self.ours.contains(&number) || self.others.contains(&number) {
                continue;
            }
            match Process::of(number) {
                Some(process) if process.is_thread => {}
                Some(process) => unknown.push((number, process)),
                // Its fork has begun, or it has ended: the next look-up tells.
                None if since.contains(&number) => {
                    self.unborn.insert(number);
                }
                None => {}
            }
        }
        let before = self.ours.len();
        self.classify(unknown);
        self.last_started = last;
        self.look_up_at = now + processor_time().since(used_before).0 * REST;
        self.ours.len() != before
    }

    /// Lists all processes, and finds new descendants; returns whether there are any.
    fn list(&mut self, now: u64, last: Option<i32>) -> io::Result<bool> {
        let used_before = processor_time();
        let all = processes()?;
        self.ours.retain(|pid| all.contains(pid));
        self.others.retain(|pid| all.contains(pid));
        let is_new = |pid: &&i32| !self.ours.contains(*pid) && !self.others.contains(*pid);
        let unknown = all.iter().filter(is_new).filter_map(|pid| Some((*pid, Process::of(*pid)?))).collect();
        let before = self.ours.len();
        self.classify(unknown);
        self.unborn.clear();
        self.last_started = last;
        self.rest(now, used_before);
        Ok(self.ours.len() != before)
    }

    /// Rests after a list of all processes, before which this thread had used so much processor time.
    fn rest(&mut self, now: u64, used_before: Micros) {
        let cost = processor_time().since(used_before).0;
        self.list_at = now + cost * REST;
        let rest = if self.tells_numbers { REST_ANYWAY } else { REST };
        self.list_anyway_at = now + LIST_ANYWAY.max(cost * rest);
    }

    /// Decides by their parents which new processes are ours. A parent may end before it is read itself; the next list finds
    /// its children with another parent. Children of a parent that still is not shown then are not ours.
    fn classify(&mut self, unknown: Vec<(i32, Process)>) {
        let is_nearer = |parent: i32| parent != self.own && !self.others.contains(&parent) && is_run(parent);
        let (nearer, mut unknown): (Vec<_>, Vec<_>) =
            unknown.into_iter().partition(|(_, process)| is_nearer(process.parent));
        self.others.extend(nearer.iter().map(|(pid, _)| *pid));
        add_descendants(&mut self.ours, self.own, &mut unknown);
        // Parents outside this process namespace have the number 0.
        add_descendants(&mut self.others, 0, &mut unknown);
        let (again, first): (BTreeSet<i32>, BTreeSet<i32>) =
            unknown.iter().map(|(pid, _)| *pid).partition(|pid| self.doubtful.contains(pid));
        self.others.extend(again);
        self.doubtful = first;
    }

    /// Reaps ended children, except the command.
    fn reap(&self) {
        let Some(command) = self.command else { return };
        while let Some(pid) = child::ended().ok().flatten().filter(|pid| *pid != command) {
            let _taken = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Notes a process whose descriptors were not read; returns whether a later search may read them.
    fn note_unread(&mut self, pid: i32, error: &io::Error) -> bool {
        if is_scarce(error) {
            return true;
        }
        if pid == self.own {
            self.refuse(format!("/proc does not show sockets ({error}): the kernel sizes the connections"));
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            self.note_kept_out(pid);
        } else {
            self.ours.remove(&pid);
        }
        false
    }

    /// Notes a process whose descriptors may not be read: it has ended, or it is out of reach for good.
    fn note_kept_out(&mut self, pid: i32) {
        let Some(process) = Process::of(pid) else {
            self.ours.remove(&pid);
            return;
        };
        // It has no descriptors any more, or closes them, but is listed until its parent has waited for it.
        if process.is_over {
            return;
        }
        self.refuse(format!(
            "{} is out of reach, because it is setuid, runs as another user, or forbids tracing: the kernel sizes its \
             connections",
            process.name
        ));
    }

    /// Notes that the kernel has not passed a descriptor: it is out of reach for good, or the process or its descriptor is gone.
    fn note_refused(&mut self, pid: i32, error: &io::Error) {
        if !matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EPERM | Errno::ENOSYS)) {
            return;
        }
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        match scope.trim() {
            _ if !reach::may_copy() => self.refuse(format!(
                "sockets are out of reach ({error}): pidfd_getfd needs Linux 5.6 and a seccomp profile that allows it; the \
                 kernel sizes the connections"
            )),
            scope @ ("2" | "3") => self.refuse(format!(
                "sockets are out of reach while kernel.yama.ptrace_scope is {scope}: the kernel sizes the connections"
            )),
            _ => self.note_kept_out(pid),
        }
    }

    fn refuse(&mut self, why: String) {
        if self.refusals.len() < TOLD && !self.refusals.contains(&why) {
            self.refusals.push(why);
        }
    }
}

/// Returns whether a socket is of TCP.
pub(super) fn is_tcp(socket: &SocketCopy) -> bool {
    SockRef::from(socket).protocol().is_ok_and(|found| found == Some(Protocol::TCP))
}

/// Returns the TCP sockets of this process, by inode.
fn own_connections() -> HashMap<u64, Place> {
    let of_tcp = |place: Place| reach::whatever_is_at(place).is_ok_and(|socket| is_tcp(&socket));
    let sockets = reach::sockets_of(std::process::id().cast_signed());
    sockets.filter(|(_, place)| of_tcp(*place)).collect()
}

/// Moves the children of `first`, those of `family`, and all their descendants from `unknown` to `family`.
fn add_descendants(family: &mut BTreeSet<i32>, first: i32, unknown: &mut Vec<(i32, Process)>) {
    loop {
        let is_child = |process: &Process| process.parent == first || family.contains(&process.parent);
        let (found, rest): (Vec<_>, Vec<_>) = unknown.drain(..).partition(|(_, process)| is_child(process));
        *unknown = rest;
        if found.is_empty() {
            return;
        }
        family.extend(found.iter().map(|(pid, _)| *pid));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    use nix::sys::signal::{Signal, kill};

    use super::*;

    #[test]
    fn beside_too_many_processes_to_list_a_new_one_is_looked_up_by_its_number() {
        let mut finder = Finder::new();
        (finder.list_at, finder.list_anyway_at) = (u64::MAX, u64::MAX);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let is_told = last_started().is_some_and(|last| last >= pid);
        let found = finder.search(0);
        let is_ours = finder.ours.contains(&pid);
        child.kill().unwrap();
        child.wait().unwrap();
        if !is_told {
            return bufwise_trial::skip("/proc/loadavg does not tell of new processes here");
        }
        assert!(found.started && is_ours);
    }

    #[test]
    fn a_loadavg_that_does_not_tell_of_the_command_is_not_believed() {
        let mut finder = Finder::new();
        finder.last_started = Some(i32::MAX);
        finder.leave_to_its_starter(finder.own);
        assert!(!finder.tells_numbers);
        // Children of other tests stay.
        finder.command = None;
        finder.search(0);
        assert!(finder.last_started.is_none_or(|last| last < i32::MAX), "processes were listed");
    }

    #[test]
    fn numbers_that_begin_anew_or_are_too_many_are_not_looked_up() {
        let finder = Finder { last_started: Some(100), ..Finder::new() };
        let since = |last| finder.assigned_since(last).map(Iterator::count);
        assert_eq!([Some(100), Some(103), Some(99), None].map(since), [Some(0), Some(3), None, None]);
        assert_eq!(since(Some(100 + LOOKED_UP)), usize::try_from(LOOKED_UP).ok());
        assert_eq!(since(Some(101 + LOOKED_UP)), None);
    }

    #[test]
    fn a_search_that_may_miss_a_new_process_says_so() {
        let mut finder = Finder::new();
        (finder.last_started, finder.list_at) = (None, 1_000);
        assert!(!finder.search(999).is_complete);
        // Processes whose parents end meanwhile are only found by the next list.
        let is_complete = (0..5).any(|_| {
            finder.list_next();
            finder.search(1_000).is_complete
        });
        assert!(is_complete);
        let mut own = Finder::of_itself();
        (own.last_started, own.list_at) = (None, 1_000);
        assert!(own.search(0).is_complete, "no other process counts");
    }

    #[test]
    fn a_process_that_was_just_started_is_found_where_none_may_be_missed() {
        let mut finder = Finder::new();
        (finder.look_up_at, finder.list_anyway_at) = (u64::MAX, u64::MAX);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        finder.search(0);
        let before = finder.ours.contains(&pid);
        finder.list_next();
        finder.search(0);
        let after = finder.ours.contains(&pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, after), (false, true));
    }

    #[test]
    fn a_child_from_before_the_command_is_none_of_its_processes() {
        let start = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let before = start();
        let mut finder = Finder::new();
        let mut children = [before, start()];
        finder.search(0);
        let ours = children.each_ref().map(|child| finder.ours.contains(&child.id().cast_signed()));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(ours, [false, true]);
    }

    #[test]
    fn a_process_whose_parent_ends_while_processes_are_listed_is_found_with_its_next_parent() {
        let process =
            |pid, parent| (pid, Process { name: String::new(), is_over: false, is_thread: false, parent });
        let mut finder = Finder { own: 100, others: BTreeSet::new(), ..Finder::new() };
        // Process 11 ended after its child 12 was read, and before it was read itself.
        finder.classify(vec![process(13, 12), process(12, 11), process(9, 1), process(1, 0)]);
        assert_eq!((finder.ours.len(), finder.others.clone()), (0, BTreeSet::from([1, 9])));
        finder.classify(vec![process(13, 12), process(12, 100)]);
        assert_eq!((finder.ours.clone(), finder.doubtful.len()), (BTreeSet::from([12, 13]), 0));
        // A parent that is never shown, because it is another user's.
        (0..2).for_each(|_| finder.classify(vec![process(15, 14)]));
        assert_eq!((finder.others.len(), finder.doubtful.len()), (3, 0));
    }

    #[test]
    fn what_another_run_among_the_commands_processes_starts_is_left_to_that() {
        let place = std::env::temp_dir().join(format!("bufwise-nearer-{}", std::process::id()));
        // A test that was killed may have had the same number.
        let _left = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        // A shell with the name and the first argument of a `bufwise run`.
        let program = place.join("bufwise");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        fs::write(place.join("run"), "sleep 60 & echo $!; wait").unwrap();
        let mut finder = Finder::new();
        let mut run = std::process::Command::new(&program);
        run.arg0("sh").arg("run").current_dir(&place).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let child: i32 = said.trim().parse().unwrap();
        finder.search(0);
        let kept = |pid: i32| (finder.ours.contains(&pid), finder.others.contains(&pid));
        let found = [kept(run.id().cast_signed()), kept(child)];
        kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        run.wait().unwrap();
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(found, [(true, false), (false, true)]);
    }

    #[test]
    fn processes_are_not_forgotten_for_lack_of_descriptors_or_when_they_are_zombies() {
        let mut child = std::process::Command::new("sleep").arg("0").spawn().unwrap();
        let pid = child.id().cast_signed();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !Process::of(pid).is_some_and(|process| process.is_over) {
            assert!(std::time::Instant::now() < deadline, "not within 10 s");
            std::thread::yield_now();
        }
        let mut finder = Finder::new();
        finder.ours.insert(pid);
        // Users may not open the directory of a zombie.
        let unread = [libc::EMFILE, libc::EACCES].map(|errno| {
            let may_be_read_later = finder.note_unread(pid, &io::Error::from_raw_os_error(errno));
            (may_be_read_later, finder.ours.contains(&pid))
        });
        child.wait().unwrap();
        let gone = finder.note_unread(pid, &io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(unread, [(true, true), (false, true)]);
        assert_eq!((gone, finder.ours.contains(&pid), finder.refusals().len()), (false, false, 0));
    }

    #[test]
    fn a_proc_of_another_process_namespace_is_told_and_not_searched() {
        let mut finder = Finder::of_itself();
        assert!(finder.is_shown && finder.search(0).is_complete);
        finder.is_shown = false;
        let found = finder.search(0);
        assert!(found.places.is_empty() && !found.is_complete);
        assert!(finder.refusals()[0].starts_with("/proc does not show this process"));
    }

    #[test]
    fn a_refusal_is_told_once_and_a_descriptor_that_is_gone_is_none() {
        let mut finder = Finder::new();
        let own = finder.own;
        finder.note_refused(own, &io::Error::from_raw_os_error(libc::EBADF));
        assert_eq!(finder.refusals().len(), 0);
        for _ in 0..2 {
            finder.note_refused(own, &io::Error::from_raw_os_error(libc::EPERM));
        }
        assert_eq!(finder.refusals().len(), 1);
        assert!(finder.refusals()[0].contains("out of reach"), "{:?}", finder.refusals());
        (0..2 * TOLD).for_each(|which| finder.refuse(which.to_string()));
        assert_eq!(finder.refusals().len(), TOLD);
    }
}
