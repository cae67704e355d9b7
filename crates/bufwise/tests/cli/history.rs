//! `bufwise history`, with a daemon and without one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::connections::FakeDaemon;
use crate::place::{Daemon, Net, TestGroup};
use crate::run::{command, only_error, patience, root_in_company, text, within};

/// Time for two samples of the history, which are rarer where they take long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the program with these arguments, in a known time zone.
fn history(arguments: &[&str]) -> Output {
    command(&[&["history"], arguments].concat()).env("TZ", "UTC").output().unwrap()
}

#[test]
fn without_a_daemon_there_is_no_history() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let line = only_error(&history(&["--socket", path.to_str().unwrap()]), 1);
    assert!(line.contains("there is no daemon at"), "{line}");
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    for (arguments, words) in [
        (&["--since", "noon"][..], "write 30m for so long ago"),
        (&["--at", "25:00"], "14:05"),
        (&["--at", "14:05", "--since", "1h"], "--since"),
        (&["nginx"], "/system.slice/nginx.service"),
        (&["198.18.0.0/40"], "198.18.0.0/24"),
    ] {
        let line = only_error(&history(arguments), 2);
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn an_older_daemon_a_new_one_and_one_that_is_busy_are_told_apart() {
    let unknown =
        "the request is not understood: unknown variant `history`, expected one of `status`, `list`";
    for (reply, words) in [
        (json!({"reply": "error", "content": unknown}), "keeps no history: it is of an older version"),
        (json!({"reply": "error", "content": "the daemon is busy: try again"}), "busy: try again"),
        (
            json!({"reply": "history", "content": {"oldest_s": null, "newest_s": null, "moments": []}}),
            "no history yet",
        ),
    ] {
        let daemon = FakeDaemon::start(&reply);
        let line = only_error(&history(&["--socket", daemon.path()]), 1);
        assert!(line.contains(words), "{line}");
        assert!(daemon.heard().contains("\"request\":\"history\""));
    }
}

#[test]
fn a_time_that_was_not_kept_is_named_with_those_that_were() {
    let content = json!({"oldest_s": 1_795_439_100_u64, "newest_s": 1_795_442_700_u64, "moments": []});
    let daemon = FakeDaemon::start(&json!({"reply": "history", "content": content}));
    let line = only_error(&history(&["--socket", daemon.path(), "--at", "2026-11-23T12:00"]), 1);
    for words in ["nothing was kept around ", "12:00:00", "from 2026-11-23 13:05:00 to 2026-11-23 14:05:00"] {
        // On the same day the date is omitted.
        assert!(line.contains(words) || line.contains(&words.replace("2026-11-23 ", "")), "{words}: {line}");
    }
    let asked = daemon.heard();
    assert!(asked.contains("\"since_s\":1795435140") && asked.contains("\"until_s\":1795435260"), "{asked}");
}

#[test]
fn a_file_that_takes_no_json_does_not_hide_the_tables() {
    if !fs::exists("/dev/full").unwrap() {
        return bufwise_trial::skip("needs /dev/full");
    }
    let total = json!({
        "name": "", "connections": 3, "send_bps": 8_000_000, "receive_bps": 0, "held_bytes": 0, "allowed_bytes": 0,
        "repeated": 0, "srtt_s": null, "min_rtt_s": null, "limited_by": null,
    });
    let moment = json!({
        "time_s": 1_795_442_700_u64, "interval_s": 10.0, "budget_bytes": 0, "memory_short": false, "total": total,
        "connections": [], "prefixes": [], "cgroups": [],
    });
    let content = json!({"oldest_s": 1_795_442_700_u64, "newest_s": 1_795_442_700_u64, "moments": [moment]});
    let calls: [(&[&str], &str); 2] =
        [(&[], "TIME "), (&["--at", "2026-11-23T14:05"], "3 connections, sending 8.0 Mbit/s")];
    for (arguments, words) in calls {
        let daemon = FakeDaemon::start(&json!({"reply": "history", "content": content}));
        let output = history(&[arguments, &["--socket", daemon.path(), "--json", "/dev/full"]].concat());
        assert!(only_error(&output, 1).starts_with("bufwise: cannot write /dev/full: "));
        assert!(text(&output.stdout).contains(words), "{}", text(&output.stdout));
    }
}

#[test]
fn root_a_daemon_keeps_what_its_connections_did_and_a_file_outlives_it() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let transfer = group.transfer(&net);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history");
    let own = ["--cgroup", &group.path(), "--policy", "fixed:80KiB", "--history", file.to_str().unwrap()];
    let mut daemon = Daemon::ready(&net, &own);
    let socket = daemon.socket();
    let line = only_error(&history(&["--socket", &socket]), 1);
    assert!(line.contains("no history yet"), "{line}");
    let ask = |arguments: &[&str]| {
        let output = history(&[arguments, &["--socket", &socket]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    within(patience(PATIENCE), "a moment is kept", || history(&["--socket", &socket]).status.success());

    let kept: Value = serde_json::from_str(&ask(&["5201", "--json"])).expect("it is JSON");
    let moment = &kept["moments"][0];
    let one = |way: &str| {
        let all = moment["connections"].as_array().unwrap();
        let mut found = all.iter().filter(|one| one["direction"] == way && one["cgroup"] == *group.path());
        found.find(|one| one["goodput_bps"].as_u64() > Some(50_000_000)).expect("it moves 100 Mbit/s")
    };
    let sender = one("send");
    assert_eq!((&sender["process"], &sender["policy"]["send"]), (&json!("iperf3"), &json!("fixed:81920")));
    assert_eq!(sender["tuned"]["send_buffer_bytes"], 163_840);
    assert!(sender["limited_by"].is_string() && sender["srtt_s"].is_number(), "{sender}");
    assert!(one("receive")["limited_by"].is_string());
    assert!(moment["total"]["connections"].as_u64() >= Some(4), "{moment}");

    // As text: the host, a peer, a cgroup, and a time.
    let whole = ask(&[]);
    for words in ["TIME ", "LARGEST", "PEERS OF", "127.0.0.0/24", "CGROUP", &group.path()] {
        assert!(whole.contains(words), "{words}: {whole}");
    }
    let peer = ask(&["127.0.0.1:5201", "--since", "1h"]);
    let is_sender = |line: &str| line.contains(" 127.0.0.1:5201 ") && line.contains(" send ");
    assert!(peer.lines().any(is_sender) && peer.contains(" buf 164K"), "{peer}");
    assert!(ask(&[&group.path()]).contains("127.0.0.1:"));
    let then = ask(&["--at", "5s"]);
    for words in ["At ", ", sending ", "Limited by ", "set by bufwise", "Advice: "] {
        assert!(then.contains(words), "{words}: {then}");
    }
    let line = only_error(&history(&["203.0.113.1", "--socket", &socket]), 1);
    assert!(line.contains("no connection from or to 203.0.113.1"), "{line}");
    let line = only_error(&history(&["--at", "3h", "--socket", &socket]), 1);
    assert!(line.contains("the history goes from "), "{line}");

    // The file remains without the daemon; an incomplete record is reported.
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read(&file).unwrap();
    fs::write(&file, [&text, &b"{\"time_s\":17"[..]].concat()).unwrap();
    drop(transfer);
    daemon.start_again(&net, &own);
    daemon.hears("READY=1");
    daemon.says("1 line of ");
    let again: Value = serde_json::from_str(&ask(&["5201", "--json"])).expect("it is JSON");
    assert_eq!(again["moments"][0], *moment);
}

#[test]
fn root_a_file_that_is_not_its_own_is_left_alone() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "precious\n").unwrap();
    let path = file.path().to_str().unwrap();
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--history", path]);
    daemon.says("the history is not on disk: ");
    assert!(daemon.log().contains("is no history of this bufwise and is left as it is"), "{}", daemon.log());
    drop(daemon);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "precious\n");
}
