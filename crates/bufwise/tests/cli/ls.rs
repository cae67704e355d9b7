//! `bufwise ls`: all connections with their figures, read-only and without privilege; as root also those of other
//! namespaces.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bufwise_lab::host::Host;
use serde_json::Value;

use crate::connections::{FakeDaemon, Pair, Transfer, find, json, unprivileged};
use crate::place::{Daemon, Net, TestGroup};
use crate::run::{PROGRAM, command, only_error, root, run, text};

#[test]
fn json_has_every_connection_with_stable_keys() {
    let pair = Pair::on("127.0.0.1:0");
    let list = json(&["ls", "--json"]);
    let one = find(&list, pair.client.local_addr().unwrap());
    assert_eq!(one["peer"], pair.address().to_string());
    assert_eq!((&one["pid"], &one["state"]), (&std::process::id().into(), &"established".into()));
    assert_eq!((&one["limited_by"], &one["goodput_bps"]), (&"application".into(), &0.into()));
    for key in ["send_buffer_bytes", "receive_buffer_bytes", "cwnd_bytes", "receive_window_bytes", "srtt_s"] {
        assert!(one[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {one}");
    }
    for key in [
        "netns",
        "cookie",
        "process",
        "direction",
        "age_s",
        "congestion_control",
        "bytes_acked",
        "bytes_received",
        "delivery_rate_bps",
        "min_rtt_s",
        "bdp_bytes",
        "send_queued_bytes",
        "receive_queued_bytes",
        "send_window_bytes",
        "segments_out",
        "retransmits",
        "limited",
        "send_need_bytes",
        "receive_need_bytes",
        "waste_bytes",
        "policy",
        "tuned",
        "application_set_send_buffer",
        "application_set_receive_buffer",
    ] {
        assert!(one.get(key).is_some(), "{key} is missing: {one}");
    }
    assert!(list["summary"]["connections"].as_u64() >= Some(2));
    assert!(list["summary"]["send_allowed_bytes"].as_u64() >= one["send_buffer_bytes"].as_u64());
    assert!(list["summary"]["budget_bytes"].is_null(), "there is no daemon");
}

#[test]
fn a_programs_name_does_nothing_to_a_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    // A process has the name of its file: a title for the window, and a line of its own.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("\u{1b}]2;\u{7}\nx");
    std::os::unix::fs::symlink("/bin/bash", &program).unwrap();
    let mut named = Command::new(program);
    let script = "exec 3<>/dev/tcp/127.0.0.1/$0; read -u 3";
    let mut named = named.args(["-c", script, &port]).stdin(Stdio::null()).spawn().unwrap();
    let (end, _) = listener.accept().unwrap();
    for arguments in [&["ls", "--all"][..], &["ls", "--all", "--group", "process"], &["explain", &port]] {
        let output = command(&[arguments, &["--no-daemon"]].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("?]2;?"), "{arguments:?}: {text:?}");
        assert!(!text.lines().any(|line| line.contains(char::is_control)), "{arguments:?}: {text:?}");
    }
    drop(end);
    named.wait().unwrap();
}

#[test]
fn json_goes_into_a_file_beside_the_table() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let output = command(&["ls", "--no-daemon", "--json", path]).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("; send queues hold "));
    let list: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(list["connections"].is_array());
    assert!(only_error(&run(&["ls", "--json", "/no/such/directory/list"]), 1).contains("/no/such/directory"));
}

#[test]
fn standard_output_by_its_path_gets_nothing_but_the_json() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut list = command(&["ls", "--no-daemon", "--json", "/dev/stdout"]);
    assert!(list.stdout(file.reopen().unwrap()).status().unwrap().success());
    let list: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).expect("it is JSON");
    assert!(list["connections"].is_array());
}

#[test]
fn a_file_that_takes_no_json_does_not_hide_the_table() {
    if !fs::exists("/dev/full").unwrap() {
        return bufwise_trial::skip("needs /dev/full");
    }
    for more in [&[][..], &["--group", "peer"]] {
        let arguments = [&["ls", "--no-daemon", "--json", "/dev/full"], more].concat();
        let output = command(&arguments).output().unwrap();
        assert!(only_error(&output, 1).starts_with("bufwise: cannot write /dev/full: "));
        assert!(text(&output.stdout).contains("; send queues hold "), "{}", text(&output.stdout));
    }
}

#[test]
fn a_new_file_that_does_not_take_all_of_the_json_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("list.json");
    // As on a full disk: the file can be made, and no byte can be written.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" ls --no-daemon --json \"$1\"";
    let output = Command::new("sh").args(["-c", script, PROGRAM]).arg(&file).output().unwrap();
    assert!(only_error(&output, 1).starts_with("bufwise: cannot write "));
    assert!(!file.exists());
}

#[test]
fn a_transfer_shows_its_rate_and_what_the_queue_holds() {
    if !bufwise_trial::ipv6() {
        return;
    }
    let pair = Pair::on("[::1]:0");
    let _transfer = Transfer::start(&pair);
    let (local, address) = (pair.client.local_addr().unwrap(), pair.address());
    // Loopback carries gigabits per second, on a busy machine fewer; nothing while the machine stands still, but not each time.
    let moves = |list: &Value| {
        [local, address].iter().all(|end| find(list, *end)["goodput_bps"].as_f64() > Some(1e6))
    };
    let mut lists = std::iter::repeat_with(|| json(&["ls", "--json"])).take(5);
    let list = lists.find(moves).expect("both ends show the rate");
    let (sender, receiver) = (find(&list, local), find(&list, address));
    assert_eq!((&sender["direction"], &receiver["direction"]), (&"send".into(), &"receive".into()));
    assert!(sender["bdp_bytes"].as_u64() > Some(0), "{sender}");
}

#[test]
fn the_table_leaves_loopback_out_unless_asked() {
    let pair = Pair::on("127.0.0.1:0");
    let text = |more: &[&str]| {
        let output = command(&[&["ls", "--no-daemon"], more].concat()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let peer = pair.address().to_string();
    let short = text(&[]);
    assert!(!short.contains(&peer) && short.contains("--all"), "{short}");
    let long = text(&["--all"]);
    let line = long.lines().find(|line| line.starts_with(&peer)).unwrap_or_else(|| panic!("{long}"));
    assert!(line.contains("application"), "{line}");
    for line in long.lines().filter(|line| !line.starts_with("note: ")) {
        assert!(line.chars().count() <= 130, "{line}");
    }
}

#[test]
fn a_daemon_adds_its_figures_and_its_budget_and_hides_nothing() {
    let (sized, other) = (Pair::on("127.0.0.1:0"), Pair::on("127.0.0.1:0"));
    let mut list = json(&["ls", "--json"]);
    let own = sized.client.local_addr().unwrap().to_string();
    let all = list["connections"].as_array_mut().unwrap();
    all.retain(|one| one["local"] == *own);
    all[0]["policy"] = serde_json::json!({ "send": "abt", "receive": "sobas" });
    all[0]["age_s"] = 12.5.into();
    list["summary"]["budget_bytes"] = 64_000_000.into();
    list["summary"]["pressure"] = true.into();
    list["notes"] = serde_json::json!(["dry run: nothing is changed"]);
    let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "list", "content": list }));
    let output = run(&["ls", "--json", "--socket", daemon.path()]);
    let heard: Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = find(&heard, sized.client.local_addr().unwrap());
    assert_eq!((&one["policy"]["send"], &one["age_s"]), (&"abt".into(), &12.5.into()));
    assert!(find(&heard, other.client.local_addr().unwrap())["policy"].is_null());
    let summary = &heard["summary"];
    assert_eq!((&summary["budget_bytes"], &summary["sized_connections"]), (&64_000_000.into(), &1.into()));
    assert_eq!(daemon.heard(), "{\"request\":\"list\"}");
    let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "list", "content": list }));
    let text = String::from_utf8(run(&["ls", "--socket", daemon.path()]).stdout).unwrap();
    let line = "daemon: budget 64.00 MB for send queues, under pressure; it sizes 1 connection\n";
    assert!(text.contains(line), "{text}");
    assert!(text.ends_with("note: dry run: nothing is changed\n"), "{text}");
}

#[test]
fn a_daemon_that_is_named_and_not_there_is_an_error() {
    assert!(only_error(&run(&["ls", "--socket", "/nope"]), 1).contains("there is no daemon at /nope"));
}

#[test]
fn a_filter_leaves_what_it_names() {
    let (one, other) = (Pair::on("127.0.0.1:0"), Pair::on("127.0.0.1:0"));
    let list = json(&["ls", &one.address().to_string(), "--json"]);
    assert_eq!(list["connections"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(list["summary"]["connections"], 2);
    let text = run(&["ls", "--all", "--no-daemon", "--sort", "peer", &other.address().port().to_string()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains(&other.address().to_string()) && !text.contains(&one.address().to_string()),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no terminal, no colours: {text}");
}

#[test]
fn a_daemon_that_answers_in_other_words_is_an_error_or_a_note() {
    let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "error", "content": "it is too hot" }));
    assert!(only_error(&run(&["ls", "--socket", daemon.path()]), 1).contains("it is too hot"));
    let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "song" }));
    let output = run(&["ls", "--socket", daemon.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("note: without the daemon's figures: "), "{text}");
}

#[test]
fn groups_have_the_sums_of_their_connections() {
    let pair = Pair::on("127.0.0.1:0");
    let port = pair.address().port().to_string();
    for (by, name) in [("peer", "127.0.0.1"), ("prefix", "127.0.0.0/24")] {
        let list = json(&["ls", &port, "--group", by, "--json"]);
        let groups = list["groups"].as_array().unwrap();
        let sum = |key: &str| {
            let all = list["connections"].as_array().unwrap();
            all.iter().map(|one| one[key].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!((groups.len(), &groups[0]["name"], &list["grouped_by"]), (1, &name.into(), &by.into()));
        assert_eq!(groups[0]["connections"], 2);
        assert_eq!(groups[0]["send_allowed_bytes"], sum("send_buffer_bytes"));
        assert_eq!(groups[0]["waste_bytes"], sum("waste_bytes"));
    }
    let ungrouped = json(&["ls", &port, "--json"]);
    assert!(ungrouped.get("groups").is_none() && ungrouped.get("grouped_by").is_none(), "{ungrouped}");
    assert!(only_error(&run(&["ls", "--group", "colour"]), 2).contains("colour"));
}

#[test]
fn root_cgroups_are_named_and_summed_up_and_filter() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let path = group.path();
    let inside = |list: &Value| {
        let mut groups = list["groups"].as_array().unwrap().iter();
        groups.find(|one| one["name"] == *path).unwrap().clone()
    };
    // While the machine stands still no byte moves, but it does not stand still in each of five lists.
    let moves = |list: &Value| inside(list)["goodput_bps"].as_u64() > Some(10_000_000);
    let mut lists = std::iter::repeat_with(|| json(&["ls", "--json", "--group", "cgroup"])).take(5);
    let list = lists.find(moves).expect("the cgroup's rate is shown");
    let own = net.connections()[0].local;
    assert_eq!(find(&list, own)["cgroup"], path);
    // Both ends of the data connection and of iperf3's control connection.
    assert_eq!(inside(&list)["connections"], 4, "{list}");
    let filtered = json(&["ls", &path, "--json"]);
    assert_eq!(filtered["summary"]["connections"], 4, "{filtered}");
    let output = run(&["top", "--once", "--all", "--group", "cgroup", "--no-daemon", &path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("CGROUP") && text.lines().nth(1).unwrap().starts_with(&path), "{text}");
    assert!(!text.contains("cgroups are not shown"), "{text}");
}

/// Nested directories, removed when this is dropped.
struct Nested(Vec<PathBuf>);

impl Nested {
    fn below(directory: &Path, names: &[&str]) -> Self {
        let mut all = Vec::new();
        for name in names {
            let path = all.last().map_or(directory, PathBuf::as_path).join(name);
            fs::create_dir(&path).unwrap();
            all.push(path);
        }
        Self(all)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|path| fs::remove_dir(path).unwrap());
    }
}

#[test]
fn root_containers_are_named_and_summed_up_and_filter() {
    let Some(_alone) = root() else { return };
    let (net, outer, id) = (Net::new(), TestGroup::new(), "0123456789abcdef".repeat(4));
    let slice = "kubepods-podfedcba98_0000_1111_2222_333344445555.slice";
    let scope = format!("cri-containerd-{id}.scope");
    let nested = Nested::below(outer.directory(), &["kubepods.slice", slice, &scope]);
    // A cgroup below the container's own is part of it.
    let group = TestGroup::below(nested.0.last().unwrap());
    let _transfer = group.transfer(&net);
    let (name, path) = ("pod fedcba98 0123456789ab", format!("{}/kubepods.slice/{slice}", outer.path()));
    let list = json(&["ls", "--json", "--group", "cgroup"]);
    let one = find(&list, net.connections()[0].local);
    assert_eq!(one["cgroup"], format!("{path}/{scope}{}", group.path()));
    let expected = serde_json::json!({
        "id": id, "pod_uid": "fedcba98-0000-1111-2222-333344445555", "runtime": "containerd",
    });
    assert_eq!(one["container"], expected, "no runtime has a file of it");
    let inside = list["groups"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    // Both ends of the data connection and of iperf3's control connection.
    assert_eq!(inside["connections"], 4, "{list}");
    for filter in [name, &path, &id] {
        assert_eq!(json(&["ls", filter, "--json"])["summary"]["connections"], 4, "{filter}");
    }
    let output = run(&["top", "--once", "--all", "--group", "cgroup", "--no-daemon", name]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with(name)), "{text}");
    let output = run(&["explain", "--no-daemon", one["local"].as_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("In container {name}.")), "{text}");
    let daemon = Daemon::ready(&net, &["--cgroup", &outer.path()]);
    let told = run(&["metrics", "--socket", &daemon.socket(), "--format", "prometheus"]);
    let text = String::from_utf8(told.stdout).unwrap();
    let line = format!("bufwise_cgroup_connections{{cgroup=\"{name}\"}} 4\n");
    assert!(text.contains(&line) && !text.contains(&scope), "{text}");
}

#[test]
fn root_connections_of_other_namespaces_are_listed_with_where_they_are() {
    let Some(_alone) = root() else { return };
    let host = Host::new("elsewhere").unwrap();
    let pair = host.run(|| Pair::on("127.0.0.1:0")).unwrap();
    let inode = host.run(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap().to_string();
    let list = json(&["ls", "--json"]);
    let one = find(&list, pair.client.local_addr().unwrap());
    assert_eq!((&one["netns"], &one["pid"]), (&inode.as_str().into(), &std::process::id().into()));
    let inside = list["connections"].as_array().unwrap().iter().filter(|one| one["netns"] == *inode);
    assert_eq!(inside.count(), 2, "{list}");
    let output = command(&["ls", "--all", "--no-daemon"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let heading = text.find(&format!("in network namespace {inode}:\n")).unwrap_or_else(|| panic!("{text}"));
    assert!(text[heading..].contains(&pair.address().to_string()), "{text}");
}

#[test]
fn root_without_privilege_the_own_namespace_is_listed_and_the_bound_said() {
    let Some(_alone) = root() else { return };
    let pair = Pair::on("127.0.0.1:0");
    let output = unprivileged(&["ls", "--json", "--no-daemon"]).expect("we are root");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = find(&list, pair.client.local_addr().unwrap());
    assert!(one["pid"].is_null() && one["send_buffer_bytes"].as_u64() > Some(0), "{one}");
    assert!(list["notes"][0].as_str().unwrap().starts_with("without root: "), "{list}");
}
