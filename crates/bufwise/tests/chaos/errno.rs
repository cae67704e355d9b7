//! System calls fail, one at a time, in every way that they may: the disk is full or breaks, descriptors or memory run
//! out, a signal arrives. strace injects the failures. The program goes on, or prints a line and ends with status 1 or
//! 2. It must not panic or hang, settings must be as before, no final name may belong to an incomplete file, and a
//! server must outlive the failure of one client.
//!
//! `mmap` is excluded, because Rust's allocator ends the process if the system has no memory at all. `flock` is excluded,
//! because unlocking cannot fail where bufwise locks.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::seeded::{is_short, seed, steps};

/// The errors that each call may return.
const ANSWERS: [(&str, &[&str]); 57] = [
    ("openat", &["EMFILE", "ENOMEM", "EIO", "EINTR"]),
    ("openat2", &["EMFILE", "ENOMEM", "EIO", "EAGAIN"]),
    ("read", &["EIO", "EINTR"]),
    ("pread64", &["EIO", "EINTR"]),
    ("write", &["ENOSPC", "EIO", "EINTR"]),
    ("pwrite64", &["ENOSPC", "EIO"]),
    ("splice", &["ENOSPC", "EIO", "ENOMEM", "EINTR"]),
    ("sendfile", &["EIO", "ENOMEM", "EINTR"]),
    // EXDEV: the file system cannot do it.
    ("copy_file_range", &["EIO", "ENOSPC", "ENOMEM", "EXDEV"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO", "ENOSPC", "EINTR"]),
    ("chmod", &["EIO"]),
    ("fchmod", &["EIO"]),
    ("renameat", &["EIO", "ENOSPC", "ENOMEM"]),
    ("rename", &["EIO", "ENOSPC", "ENOMEM"]),
    ("unlink", &["EIO"]),
    ("unlinkat", &["EIO"]),
    ("rmdir", &["EIO"]),
    ("mkdir", &["ENOSPC", "ENOMEM"]),
    ("mkdirat", &["ENOSPC", "ENOMEM"]),
    ("readlink", &["EIO", "ENOMEM"]),
    ("readlinkat", &["EIO", "ENOMEM"]),
    ("statx", &["EIO", "ENOMEM"]),
    ("newfstatat", &["EIO", "ENOMEM"]),
    ("getdents64", &["EIO", "ENOMEM"]),
    ("fcntl", &["EMFILE"]),
    ("bpf", &["ENOMEM", "EMFILE", "EAGAIN", "ENOSPC"]),
    ("socket", &["EMFILE", "ENOMEM"]),
    ("socketpair", &["EMFILE", "ENOMEM"]),
    ("bind", &["ENOMEM"]),
    ("connect", &["EADDRNOTAVAIL", "ENETUNREACH"]),
    ("accept4", &["EMFILE", "ENOMEM", "EAGAIN", "EINTR", "ECONNABORTED"]),
    // A program on the cgroup may refuse an option, and the kernel needs memory to ask it.
    ("setsockopt", &["ENOMEM", "EPERM"]),
    // The peer has gone meanwhile.
    ("getpeername", &["ENOTCONN"]),
    ("shutdown", &["ENOTCONN"]),
    ("sendto", &["ENOMEM", "EINTR"]),
    ("recvfrom", &["ENOMEM", "EINTR"]),
    ("sendmsg", &["ENOMEM", "EINTR"]),
    ("recvmsg", &["ENOMEM", "EINTR"]),
    ("setns", &["ENOMEM"]),
    // ESRCH and EBADF would say that the process or its descriptor has gone.
    ("pidfd_open", &["EMFILE", "ENOMEM"]),
    ("pidfd_getfd", &["EMFILE", "ENOMEM"]),
    ("clone3", &["EAGAIN", "ENOMEM"]),
    // A server with a filter on its system calls makes threads by clone().
    ("clone", &["EAGAIN", "ENOMEM"]),
    ("wait4", &["EINTR"]),
    ("pipe2", &["EMFILE"]),
    ("eventfd2", &["EMFILE", "ENOMEM"]),
    ("signalfd4", &["EMFILE", "ENOMEM"]),
    ("epoll_create1", &["EMFILE", "ENOMEM"]),
    ("epoll_ctl", &["ENOMEM", "ENOSPC"]),
    ("poll", &["ENOMEM", "EINTR"]),
    ("ppoll", &["EINTR"]),
    ("getrandom", &["EINTR"]),
    ("landlock_create_ruleset", &["EMFILE", "ENOMEM"]),
    ("landlock_add_rule", &["ENOMEM"]),
    ("landlock_restrict_self", &["ENOMEM", "E2BIG"]),
    ("seccomp", &["ENOMEM"]),
];
/// Returns a stride through a list of `count` cases: a few steps spread over the whole list, and `count` steps meet
/// each case once.
fn stride(count: usize) -> usize {
    let divides = |a: usize, b: usize| (2..=a).any(|one| a.is_multiple_of(one) && b.is_multiple_of(one));
    // The golden ratio spreads the steps evenly.
    (1..=count * 618 / 1_000).rev().find(|stride| !divides(*stride, count)).unwrap_or(1)
}

/// The part of an experiment that the suite runs.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    pub(crate) steps: u32,
    /// Only this many of the first calls of each kind may fail: the number of later calls differs from run to run.
    pub(crate) of_each_call: usize,
}

/// One failing call.
pub(crate) struct Case {
    call: &'static str,
    answer: &'static str,
    /// Number of the call, counted in each thread.
    when: usize,
    trace: PathBuf,
}

impl Case {
    /// Runs a program under strace, with this failure.
    pub(crate) fn traced(&self, command: &mut Command) {
        let inject = format!("inject={}:error={}:when={}", self.call, self.answer, self.when);
        watched(command, &self.trace);
        command.args(["-e", &format!("trace={}", self.call), "-e", &inject]);
    }

    pub(crate) fn is_of(&self, call: &str) -> bool {
        self.call == call
    }

    pub(crate) fn was_met(&self) -> bool {
        fs::read_to_string(&self.trace).unwrap_or_default().contains("(INJECTED)")
    }

    /// Asserts that a program has ended soundly; `well` is its status without a failure.
    pub(crate) fn must_be_sound(&self, output: &Output, well: i32) -> bool {
        let said = String::from_utf8_lossy(&output.stderr);
        self.must_not_panic(&said);
        let status = output.status;
        assert!(status.code().is_some(), "{self}: {status}: {said}");
        if status.code() == Some(well) {
            return true;
        }
        assert!(matches!(status.code(), Some(1 | 2 | 126)), "{self}: {status}: {said}");
        let ours = said.lines().filter(|line| line.starts_with("bufwise: ")).count();
        assert!(ours == 1 && said.lines().count() == 1, "{self}: {status}, not one line: {said}");
        false
    }

    pub(crate) fn must_not_panic(&self, said: &str) {
        assert!(!said.contains("panicked") && !said.contains("memory allocation"), "{self}: {said}");
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} number {} answers {}", self.call, self.when, self.answer)
    }
}

fn pid(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

/// Runs a program under strace, to record its calls, but not those of commands that it starts.
pub(crate) fn watched(command: &mut Command, trace: &Path) {
    command.args(["-f", "-b", "execve", "-qq", "-o"]).arg(trace);
}

/// Counts each call: the most in one thread, and those before `main`.
fn counts(trace: &str) -> BTreeMap<&'static str, (usize, usize)> {
    let main = trace.lines().next().and_then(pid);
    let mut counts: BTreeMap<&str, (usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    let mut has_begun = false;
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (Some(pid), Some(call)) = (words.next(), words.next()) else { continue };
        let call = call.split('(').next().unwrap_or_default();
        // Rust's runtime first checks the standard streams by poll().
        has_begun |= call == "poll";
        let Some((name, _)) = ANSWERS.iter().find(|(name, _)| *name == call) else { continue };
        let (before, count) = counts.entry(name).or_default();
        *count.entry(pid).or_default() += 1;
        if !has_begun && Some(pid) == main {
            *before += 1;
        }
    }
    counts
        .into_iter()
        .map(|(call, (before, all))| (call, (before, all.into_values().max().unwrap_or(0))))
        .collect()
}

/// Parses `CHAOS_CASE`: call, error, number.
fn chosen() -> Option<(&'static str, &'static str, usize)> {
    let text = env::var("CHAOS_CASE").ok().filter(|text| !text.is_empty())?;
    let words: Vec<&str> = text.split(' ').collect();
    let [call, answer, when] = words[..] else { panic!("CHAOS_CASE={text} is no call, answer and number") };
    let (call, answers) = ANSWERS.iter().find(|(name, _)| *name == call).expect("the call is known");
    let answer = answers.iter().find(|one| **one == answer).expect("the answer is known");
    Some((call, answer, when.parse().unwrap()))
}

/// Runs the experiment for some of the cases of a program, whose calls are in `trace`, or for `CHAOS_CASE`. The number
/// of calls may differ from run to run, and with it the case of each step.
pub(crate) fn each_case(name: &'static str, short: Short, trace: &Path, mut run: impl FnMut(&Case)) {
    let counts = counts(&fs::read_to_string(trace).unwrap());
    let mut all = Vec::new();
    for (call, answers) in ANSWERS {
        let (before, last) = counts.get(call).copied().unwrap_or_default();
        let last = if is_short() { last.min(before + short.of_each_call) } else { last };
        for when in before + 1..=last {
            all.extend(answers.iter().map(|answer| (call, *answer, when)));
        }
    }
    assert!(!all.is_empty(), "no calls in the trace");
    let chosen = chosen();
    let mut met = 0;
    steps(name, short.steps, |step, _| {
        let sampled = (seed() as usize + step as usize * stride(all.len())) % all.len();
        let (call, answer, when) = chosen.unwrap_or(all[sampled]);
        let case = Case { call, answer, when, trace: trace.with_extension("case") };
        eprintln!("chaos: {name}: CHAOS_CASE=\"{call} {answer} {when}\"");
        run(&case);
        met += u32::from(case.was_met());
    });
    eprintln!("chaos: {name}: {met} were met, of {} cases", all.len());
    // The first calls of each kind, which the suite's steps are about, come in every run.
    assert!(met > 0 || !is_short() || chosen.is_some(), "{name}: no call has failed");
}
