//! The files for Kubernetes, as far as they can be checked without a cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::run::{only_error, run};

fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(of_repository(path)).unwrap()
}

/// Returns the documents of a file; `None`, and the test skipped, without a YAML parser.
pub(crate) fn documents(name: &str) -> Option<Vec<Value>> {
    bufwise_trial::program("python3")?;
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(of_repository("packaging/kubernetes").join(name));
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named 'yaml'") {
        bufwise_trial::skip("python3-yaml is not installed (make peers)");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

pub(crate) fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    let mut found = all.iter().filter(|one| one["kind"] == kind);
    let one = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "one {kind}");
    one
}

fn words(list: &Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// Returns the values of a key of the systemd unit.
fn of_unit<'a>(unit: &'a str, key: &str) -> BTreeSet<&'a str> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).collect()
}

#[test]
fn the_daemon_set_has_the_privileges_of_the_unit_and_of_the_tried_container() {
    let Some(all) = documents("bufwise.yaml") else { return };
    let pod = &of_kind(&all, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    let security = &container["securityContext"];
    let unit = text("etc/bufwise.service");
    let added = words(&security["capabilities"]["add"]);
    let bounded = of_unit(&unit, "CapabilityBoundingSet");
    assert_eq!(added, bounded.iter().map(|name| name.strip_prefix("CAP_").unwrap()).collect());
    assert_eq!(words(&security["capabilities"]["drop"]), ["ALL"].into());
    let documentation = text("docs/container.md");
    let tried = documentation.split("--cap-add=").find(|rest| rest.starts_with("BPF,")).unwrap();
    assert_eq!(added, tried.split_whitespace().next().unwrap().split(',').collect());

    // Neither the image nor the unit names a user.
    assert!(!text("packaging/Containerfile").lines().any(|line| line.starts_with("USER")));
    assert!(of_unit(&unit, "User").is_empty());
    assert_eq!(security["runAsUser"], 0);
    assert_eq!((&security["privileged"], &security["readOnlyRootFilesystem"]), (&false.into(), &true.into()));
    assert_eq!(of_unit(&unit, "NoNewPrivileges"), ["yes"].into());
    assert_eq!(security["allowPrivilegeEscalation"], false);
    // Neither module of the kernel keeps it from the host's sockets and files.
    assert_eq!(security["appArmorProfile"]["type"], "Unconfined");
    assert_eq!(security["seLinuxOptions"], serde_json::json!({ "type": "spc_t", "level": "s0" }));
    assert_eq!((&pod["hostPID"], &pod["hostNetwork"]), (&true.into(), &true.into()));
    assert!(documentation.contains("--pid=host --network=host"));

    let directory = of_unit(&unit, "RuntimeDirectory").into_iter().next().unwrap();
    let mounts = container["volumeMounts"].as_array().unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    let of_host = |path: &str| {
        let mount = mounts.iter().find(|mount| mount["mountPath"] == path).expect("it is mounted");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("it is a volume");
        assert_eq!(volume["hostPath"]["path"], path);
    };
    of_host(&format!("/run/{directory}"));
    of_host("/sys/fs/cgroup");
    // Only the names of pods are mounted from there, read-only.
    let names = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
    of_host(names);
    let mount = mounts.iter().find(|mount| mount["mountPath"] == names).unwrap();
    assert_eq!((&mount["readOnly"], &mount["recursiveReadOnly"]), (&true.into(), &"IfPossible".into()));
    let looked_at = format!("Root::containerd(\"{names}\")");
    assert!(text("crates/host/src/containers.rs").contains(&looked_at), "{names}");
    assert_eq!(mounts.len(), volumes.len());
}

#[test]
fn a_pod_is_ready_within_seconds_and_has_as_long_to_start_as_under_the_unit() {
    let Some(all) = documents("bufwise.yaml") else { return };
    let container = &of_kind(&all, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let (startup, readiness) = (&container["startupProbe"], &container["readinessProbe"]);
    assert_eq!(startup["exec"], readiness["exec"]);
    let seconds = startup["periodSeconds"].as_u64().unwrap();
    assert!(seconds <= 5, "{seconds}");
    // The unit's watchdog ends a start that takes longer.
    assert_eq!(of_unit(&text("etc/bufwise.service"), "WatchdogSec"), ["2min"].into());
    assert!(seconds * startup["failureThreshold"].as_u64().unwrap() >= 120);
}

#[test]
fn the_daemon_set_selects_its_pods_and_runs_this_version_by_a_configuration_that_is_right() {
    let Some(all) = documents("bufwise.yaml") else { return };
    let set = of_kind(&all, "DaemonSet");
    let template = &set["spec"]["template"];
    assert_eq!(set["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let space = &of_kind(&all, "Namespace")["metadata"]["name"];
    let configuration = of_kind(&all, "ConfigMap");
    for one in [set, configuration] {
        assert_eq!(&one["metadata"]["namespace"], space);
    }
    let image = template["spec"]["containers"][0]["image"].as_str().unwrap();
    assert!(image.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))), "{image}");

    let file = tempfile::NamedTempFile::new().unwrap();
    let text = configuration["data"]["bufwise.toml"].as_str().unwrap();
    fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    // No daemon starts with this group, but a wrong configuration is refused before.
    let line = only_error(&run(&["daemon", "--config", path, "--cgroup", "/bufwise-no-such-group"]), 2);
    assert!(line.contains("there is no cgroup"), "{line}");
    fs::write(file.path(), "polcy = \"auto\"").unwrap();
    let line = only_error(&run(&["daemon", "--config", path, "--cgroup", "/bufwise-no-such-group"]), 2);
    assert!(line.contains("polcy"), "{line}");

    let Some(monitors) = documents("podmonitor.yaml") else { return };
    let monitor = of_kind(&monitors, "PodMonitor");
    assert_eq!(&monitor["metadata"]["namespace"], space);
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let port = text.lines().find_map(|line| line.strip_prefix("metrics = \"127.0.0.1")?.strip_suffix('"'));
    let port = port.unwrap();
    let relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"].as_array().unwrap();
    let of_address = relabelings.iter().filter(|one| one["targetLabel"] == "__address__");
    let addresses: Vec<&str> = of_address.map(|one| one["replacement"].as_str().unwrap()).collect();
    assert_eq!(addresses, [format!("${{1}}{port}"), format!("[${{1}}]{port}")], "of IPv4 and of IPv6");
}
