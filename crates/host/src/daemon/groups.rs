//! `[[group]]` of the configuration: connections selected by cgroup, program, peer and port, with policies, memory
//! and settings of their own. A connection belongs to the first group whose conditions all match it.
//!
//! The memory of the whole is divided: a group has the memory it names; the remainder is divided evenly among the
//! groups that name none and the rest of the host. So the sum of all parts is never more than the whole.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bufwise_bpf::{Conditions, GroupPattern, Matching};
use bufwise_units::Bytes;
use serde::Deserialize;
use toml::Spanned;

use super::conditions::{Asked as Keys, Several};
use super::config::{Settings, line_of, written};
use crate::error::{ConfigError, Result};
use crate::tuner::choice::Choice;
use crate::tuner::plan::{Asked, Plan};
use crate::tuner::sizes::{AtOnce, Budget, LEAST_BUDGET, MaxConnections, SmallDocuments};

/// Longest name, in characters.
const LONGEST_NAME: usize = 32;

/// One `[[group]]` as written in the file. `None`: as for the rest of the host, except for memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GroupOptions {
    /// The group's name in logs, `ls --json` and metrics.
    name: Spanned<String>,
    /// The cgroups whose connections belong to the group, with all cgroups below them.
    #[serde(default)]
    cgroup: Option<Spanned<String>>,
    /// Programs, by name.
    #[serde(default)]
    process: Option<Spanned<Several>>,
    /// Peers, by address or prefix.
    #[serde(default)]
    peer: Option<Spanned<Several>>,
    /// Ports of either end.
    #[serde(default)]
    port: Option<Spanned<Several>>,
    #[serde(default, deserialize_with = "written")]
    policy: Option<Choice>,
    #[serde(default, deserialize_with = "written")]
    memory: Option<Budget>,
    #[serde(default, deserialize_with = "written")]
    receive_memory: Option<Budget>,
    #[serde(default, deserialize_with = "written")]
    small_documents: Option<SmallDocuments>,
    #[serde(default)]
    max_connections: Option<MaxConnections>,
    #[serde(default, rename = "override")]
    take_over: Option<bool>,
}

/// A group that was checked by itself and against the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSettings {
    pub(super) name: String,
    pub(super) conditions: Conditions,
    pub(super) policy: Choice,
    /// The group's options; memory is `None` unless the group names its own.
    pub(super) asked: Asked,
    /// Line and key in the file.
    place: String,
}

/// Checks the groups; `text` is the file, `rest` the settings of the connections in no group.
///
/// # Errors
/// One line: line, key, what is wrong, and what is allowed.
pub(super) fn checked(
    groups: Vec<GroupOptions>,
    rest: &Settings,
    text: &str,
) -> Result<Vec<GroupSettings>, String> {
    let at = |span: Range<usize>| line_of(text, span.start);
    let mut all: Vec<GroupSettings> = Vec::new();
    for group in groups {
        let name_at = at(group.name.span());
        let one = group.settings(rest, text)?;
        if let Some(other) = all.iter().find(|other| other.name == one.name) {
            let (name, there) = (&one.name, &other.place);
            return Err(format!(
                "{name_at}: `{name}` is the name of the group at {there}: give each its own"
            ));
        }
        if let Some(other) = all.iter().find(|other| other.conditions.cover(&one.conditions)) {
            let (own, name) = (&one.name, &other.name);
            return Err(format!(
                "{name_at}: `{own}` would have no connection: group `{name}` comes first and matches all of them"
            ));
        }
        all.push(one);
        Matching::new(all.iter().map(|group| &group.conditions))
            .map_err(|error| format!("{name_at}: there are {error}"))?;
    }
    Ok(all)
}

impl GroupOptions {
    fn settings(self, rest: &Settings, text: &str) -> Result<GroupSettings, String> {
        let at = |byte: usize| line_of(text, byte);
        let place = at(self.name.span().start);
        let cgroup_at = self.cgroup.as_ref().map(|key| at(key.span().start)).unwrap_or_default();
        let name = self.name.into_inner();
        let is_fit = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_fit) {
            return Err(format!(
                "{place}: `{}` is no name of a group: 1 to {LONGEST_NAME} letters, digits, `-`, `_` and `.`",
                name.escape_default()
            ));
        }
        let keys = Keys { cgroup: self.cgroup, process: self.process, peer: self.peer, port: self.port };
        let conditions = keys.conditions(&at)?;
        if conditions == Conditions::default() {
            return Err(format!("{place}: `{name}` has no condition: name cgroup, process, peer or port"));
        }
        let is_outside =
            |cgroup: &&GroupPattern| !rest.cgroups.iter().any(|path: &PathBuf| cgroup.is_below(path));
        if let Some(cgroup) =
            conditions.cgroup.as_ref().filter(|_| !rest.cgroups.is_empty()).filter(is_outside)
        {
            let cgroups: Vec<String> = rest
                .cgroups
                .iter()
                .map(|path| path.display().to_string().escape_debug().to_string())
                .collect();
            return Err(format!(
                "{cgroup_at}: {cgroup} is not below the cgroups that the daemon tunes: {}",
                cgroups.join(", ")
            ));
        }
        let asked = Asked {
            memory: self.memory.map(Bytes::from),
            receive_memory: self.receive_memory.map(Bytes::from),
            memory_limit: None,
            small_documents: self.small_documents.map(Bytes::from).or(rest.asked.small_documents),
            // Devices are bounded by the rest's plan: they carry the connections of all groups.
            at_once: AtOnce::Device,
            whole_host: false,
            take_over: self.take_over.unwrap_or(rest.asked.take_over),
            max_connections: self.max_connections.unwrap_or(rest.asked.max_connections),
        };
        Ok(GroupSettings { name, conditions, policy: self.policy.unwrap_or(rest.policy), asked, place })
    }
}

/// Returns the plan of the connections in no group, and those of the groups.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) if the groups' memory leaves too little,
/// [`Error::Memory`](crate::Error::Memory).
pub(super) fn plans(settings: &Settings, file: &Path) -> Result<(Plan, Vec<Plan>)> {
    let whole = Plan::new(settings.policy, settings.asked)?;
    let groups = &settings.groups;
    if groups.is_empty() {
        return Ok((whole, Vec::new()));
    }
    let divided = |key, budget, named: fn(&Asked) -> Option<Bytes>| {
        let named: Vec<Option<Bytes>> = groups.iter().map(|group| named(&group.asked)).collect();
        parts(budget, &named).ok_or_else(|| ConfigError::Content {
            path: file.into(),
            what: too_much(groups, key, budget, &named),
        })
    };
    let send = divided("memory", whole.budget, |asked| asked.memory)?;
    let receive = divided("receive-memory", whole.receive_budget, |asked| asked.receive_memory)?;
    let mut plans = Vec::new();
    for (group, (send, receive)) in groups.iter().zip(send.iter().zip(&receive)) {
        let asked = Asked { memory: Some(*send), receive_memory: Some(*receive), ..group.asked };
        plans.push(Plan::new(group.policy, asked)?);
    }
    let last = |parts: &[Bytes]| parts.last().copied().unwrap_or_default();
    Ok((whole.within(last(&send), last(&receive)), plans))
}

/// Returns the parts of the groups and, as the last, of the rest; `None` if a part would be below [`LEAST_BUDGET`].
fn parts(whole: Bytes, named: &[Option<Bytes>]) -> Option<Vec<Bytes>> {
    let sum: Bytes = named.iter().flatten().copied().sum();
    let sharers = 1 + named.iter().filter(|part| part.is_none()).count() as u64;
    let part = Bytes(whole.0.checked_sub(sum.0)? / sharers);
    (part >= LEAST_BUDGET).then(|| named.iter().map(|own| own.unwrap_or(part)).chain([part]).collect())
}

/// Returns the error for groups that leave too little memory, placed at the last group that names some.
fn too_much(groups: &[GroupSettings], key: &str, whole: Bytes, named: &[Option<Bytes>]) -> String {
    let naming = groups.iter().zip(named).rev().find(|(_, part)| part.is_some());
    let place = naming.map(|(group, _)| group).or(groups.last()).map_or("", |group| &group.place);
    let sum: Bytes = named.iter().flatten().copied().sum();
    format!(
        "{place}: the {key} of the groups up to this one is {} of {} in all: leave at least 64KiB to the rest of the host, and \
         to each group that names none",
        sum.readable(),
        whole.readable(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::config::{Options, settings};
    use super::*;
    use crate::error::in_words;

    const WHOLE: &str = "policy = \"abt,drs\"\nmemory = \"256MiB\"\nreceive-memory = \"100MiB\"\n";

    /// Parses [`WHOLE`] (three lines) followed by `text`.
    fn planned(text: &str, flags: &Options) -> Result<(Settings, Plan, Vec<Plan>), String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bufwise.toml");
        std::fs::write(&file, format!("{WHOLE}{text}")).unwrap();
        let settings = settings(Some(&file), flags).map_err(|error| in_words(&error))?;
        let (rest, groups) = plans(&settings, &file).map_err(|error| in_words(&error))?;
        Ok((settings, rest, groups))
    }

    fn group(name: &str, cgroup: &str, more: &str) -> String {
        format!("[[group]]\nname = \"{name}\"\ncgroup = \"{cgroup}\"\n{more}\n")
    }

    /// Returns a group with conditions other than a cgroup; its name grows with the number of lines.
    fn asking(conditions: &str) -> String {
        let name = format!("g{}", "x".repeat(conditions.lines().count().saturating_sub(1)));
        format!("[[group]]\nname = \"{name}\"\n{conditions}\n")
    }

    #[test]
    fn a_group_asks_for_cgroup_program_peer_and_port_by_one_value_or_several() {
        let text = asking("process = [\"rsync\", \"restic*\"]\npeer = \"10.0.0.0/8\"")
            + &group(
                "b",
                "system.slice/a.service",
                "peer = [\"10.0.0.0/8\", \"fd00::/8\"]\nport = [443, \"8000-8010\"]",
            )
            + &group("c", "system.slice", "");
        let (settings, ..) = planned(&text, &Options::default()).unwrap();
        let conditions: Vec<&Conditions> = settings.groups.iter().map(|group| &group.conditions).collect();
        let peers: [bufwise_bpf::Network; 2] = ["10.0.0.0/8", "fd00::/8"].map(|peer| peer.parse().unwrap());
        let first = Conditions {
            programs: ["rsync", "restic*"].map(|name| name.parse().unwrap()).into(),
            peers: vec![peers[0]],
            ..Conditions::default()
        };
        let second = Conditions {
            cgroup: "system.slice/a.service".parse().ok(),
            peers: peers.into(),
            ports: ["443", "8000-8010"].map(|port| port.parse().unwrap()).into(),
            ..Conditions::default()
        };
        assert_eq!(conditions[..2], [&first, &second]);
        assert!(second.peers.len() == 2 && conditions[2].cgroup.is_some(), "a wider group may follow");
    }

    #[test]
    fn a_group_has_what_it_names_and_else_what_the_rest_has() {
        let text = group(
            "db",
            "system.slice/postgresql.service",
            "policy = \"sabt\"\nmemory = \"64MiB\"\noverride = true",
        ) + &group(
            "backup",
            "system.slice/backup*.service",
            "max-connections = 10\nsmall-documents = \"9KiB\"",
        );
        let (settings, rest, groups) = planned(&text, &Options::default()).unwrap();
        let names: Vec<&str> = settings.groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["db", "backup"]);
        let mebi = |size: u64| Bytes(size << 20);
        assert_eq!((rest.budget, groups[0].budget, groups[1].budget), (mebi(96), mebi(64), mebi(96)));
        let third = Bytes((100 << 20) / 3);
        assert_eq!([rest.receive_budget, groups[0].receive_budget, rest.max_window], [third; 3]);
        assert_eq!(groups[0].choice, "sabt".parse().unwrap());
        assert_eq!(groups[1].choice, rest.choice);
        assert_eq!((groups[0].take_over, groups[1].take_over), (true, false));
        assert_eq!((groups[1].max_connections, groups[1].small_document), (10, Bytes(9 << 10)));
        assert!(groups.iter().all(|plan| plan.devices.is_none()), "devices carry everybody's");
        assert!(rest.devices.is_some());
    }

    #[test]
    fn flags_are_for_the_whole() {
        let flags = Options {
            policy: Some("fixed:64KiB".parse().unwrap()),
            memory: Some("100MiB".parse().unwrap()),
            ..Options::default()
        };
        let text = group("db", "db", "policy = \"kernel\"\nmemory = \"60MiB\"") + &group("b", "b", "");
        let (_, rest, groups) = planned(&text, &flags).unwrap();
        assert_eq!(groups[0].choice, "kernel".parse().unwrap());
        assert_eq!((groups[1].choice, groups[1].budget), (rest.choice, Bytes(20 << 20)));
    }

    #[test]
    fn without_groups_the_whole_is_the_rest() {
        let (_, rest, groups) = planned("", &Options::default()).unwrap();
        assert_eq!((rest.budget, groups.len()), (Bytes(256 << 20), 0));
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line_with_its_place() {
        let db = || group("db", "system.slice/db.service", "memory = \"200MiB\"");
        let many: String =
            (0..17).map(|number| group(&format!("g{number}"), &format!("g{number}"), "")).collect();
        for (text, words) in [
            ("[[group]]\ncgroup = \"a\"\n".to_owned(), &["line 4", "name"][..]),
            (group("a", "a", "polcy = \"abt\""), &["line 7: polcy", "`policy`", "`memory`"]),
            (group("a", "a", "policy = \"tahoe\""), &["line 7: policy", "tahoe", "abt"]),
            (group("a", "a", "memory = \"1KiB\""), &["line 7: memory", "at least 64KiB"]),
            (group("a", "a", "socket = \"/a\""), &["line 7: socket", "`name`"]),
            (group("", "a", ""), &["line 5: name", "1 to 32 letters"]),
            (group("a b", "a", ""), &["line 5: name", "`a b`", "1 to 32 letters"]),
            (group("a", "/", ""), &["line 6: cgroup", "the root of all cgroups", "system.slice/"]),
            (group("a", "a/../b", ""), &["line 6: cgroup", "/proc/PID/cgroup"]),
            (db() + &group("db", "b", ""), &["line 9: name", "`db`", "line 5"]),
            (
                db() + &group("b", "system.slice/db.service/x", "port = 80"),
                &["line 9: name", "`b` would have no connection", "group `db` comes first"],
            ),
            (asking("port = 80") + &asking("port = 80\nprocess = \"x\""), &["line 8: name", "group `g`"]),
            (asking(""), &["line 5: name", "`g` has no condition", "cgroup, process, peer or port"]),
            (asking("peer = \"10.0.0.1/8\""), &["line 6: peer", "beyond its prefix: write 10.0.0.0/8"]),
            (asking("peer = [\"10.0.0.0/8\", \"fd00\"]"), &["line 6: peer", "`fd00`", "fd00::/8"]),
            (asking("peer = \"10.0.0.0/33\""), &["line 6: peer", "`10.0.0.0/33`"]),
            (asking("port = 0"), &["line 6: port", "`0` is no port", "443"]),
            (asking("port = [80, \"90-80\"]"), &["line 6: port", "`90-80`", "50000-50100"]),
            (asking("port = true"), &["line 6: port", "one value or a list"]),
            (asking("port = [[1]]"), &["line 6: port", "a text in quotes or a number"]),
            (asking("port = []"), &["line 6: port", "the list is empty"]),
            (
                asking("process = \"a-name-of-16-byt\""),
                &["line 6: process", "1 to 15 bytes", "/proc/PID/comm"],
            ),
            (asking("process = \"/usr/bin/rsync\""), &["line 6: process", "no name of a program"]),
            (
                asking(&format!("port = {:?}", (1..66).collect::<Vec<_>>())),
                &["line 5: name", "more than 64 ports"],
            ),
            (
                db() + &group("b", "b", "memory = \"56MiB\""),
                &["line 9: name", "268.44 MB of 268.44 MB", "64KiB"],
            ),
            (db() + &group("b", "b", "memory = \"999MiB\""), &["line 9: name: the memory", "of 268.44 MB"]),
            (db() + &group("b", "b", "receive-memory = \"100MiB\""), &["line 9: name: the receive-memory"]),
            (many, &["line 69: name", "more than 16 groups"]),
            ("[group]\nname = \"a\"".to_owned(), &["line 4", "sequence"]),
        ] {
            let error = planned(&text, &Options::default()).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
            assert!(error.lines().count() == 1 && error.contains("bufwise.toml, "), "{error}");
        }
    }

    #[test]
    fn a_group_is_below_the_cgroups_that_the_daemon_is_for() {
        let of = |cgroup: &str| {
            planned(&format!("cgroups = [\"/a\", \"/b\"]\n{}", group("g", cgroup, "")), &Options::default())
        };
        assert!(of("a/x").is_ok() && of("b/x*/y").is_ok());
        for cgroup in ["a", "b*", "c/x"] {
            let error = of(cgroup).unwrap_err();
            assert!(
                error.contains("line 7: cgroup") && error.contains("not below") && error.contains("/a, /b"),
                "{error}"
            );
        }
    }
}
