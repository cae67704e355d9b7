//! Finds whether `bufwise run` sizes a process's connections, and by which policy.
//!
//! With the engine in the kernel the command has a cgroup of its own. With the engine in user space it is a descendant
//! of `bufwise run`, which adopts orphans.

use std::fs;

use bufwise_host::judge::Direction;
use bufwise_host::tuner::choice::Choice;
use bufwise_policy::PolicyKind;

/// Part of the name of the cgroups in which `bufwise run` keeps its commands.
const GROUP: &str = "/bufwise-run-";
/// Most ancestors that are searched: more than commands have.
const GENERATIONS: usize = 64;

/// A `bufwise run` that sizes a process's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByRun {
    /// Its policies; `None` if its command line cannot be read.
    pub(super) choice: Option<Choice>,
    /// Whether its engine is the one in user space.
    pub(super) without_root: bool,
}

impl ByRun {
    /// Whether it sizes the buffer of that direction; also if its policies are not known.
    pub(super) fn sizes(self, side: Direction) -> bool {
        let policy = |choice: Choice| match side {
            Direction::Send => choice.send,
            Direction::Receive => choice.receive,
        };
        self.choice.map(policy) != Some(PolicyKind::Kernel)
    }
}

/// Finds the `bufwise run` above a process.
pub(super) fn find(pid: i32) -> Option<ByRun> {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let with_group = of_cgroup(&cgroup);
    let mut ancestor = pid;
    for _ in 0..GENERATIONS {
        let Some(parent) = parent(ancestor).filter(|parent| *parent > 0) else { break };
        let command = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
        if is_bufwise(parent)
            && let Some(choice) = of_command(&command)
        {
            return Some(ByRun { choice, without_root: with_group.is_none() });
        }
        ancestor = parent;
    }
    with_group
}

/// Finds the `bufwise run` that a cgroup was made for, by its path.
pub(super) fn of_cgroup(path: &str) -> Option<ByRun> {
    path.contains(GROUP).then_some(ByRun { choice: None, without_root: false })
}

fn is_bufwise(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("bufwise"))
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Reads the policies in a command line, whose words end in zeros; `None`: it is not that of a `bufwise run`.
fn of_command(command: &[u8]) -> Option<Option<Choice>> {
    let command = String::from_utf8_lossy(command);
    let mut words = command.split('\0').skip(1);
    if words.next() != Some("run") {
        return None;
    }
    let mut choice = Some(Choice::OF_RUN);
    while let Some(word) = words.next().filter(|word| *word != "--") {
        let policy = if word == "--policy" { words.next() } else { word.strip_prefix("--policy=") };
        if let Some(policy) = policy {
            choice = Choice::parse_for_run(policy).ok();
        }
    }
    Some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_stands_before_the_command() {
        let policy = |command: &str| of_command(command.replace(' ', "\0").as_bytes());
        assert_eq!(policy("bufwise run --policy fit -- curl --policy x"), Some("fit".parse().ok()));
        assert_eq!(
            policy("bufwise run --engine user --policy=kernel,fit -- a"),
            Some("kernel,fit".parse().ok())
        );
        assert_eq!(policy("bufwise run -- curl"), Some(Some(Choice::OF_RUN)));
        assert_eq!(policy("bufwise explain run"), None);
        assert_eq!(policy("bufwise"), None);
    }

    #[test]
    fn this_test_is_no_command_of_a_run() {
        assert_eq!(find(std::process::id().cast_signed()), None);
    }
}
