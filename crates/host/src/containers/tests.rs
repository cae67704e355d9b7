use super::*;
use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const UID: &str = "0123abcd-1111-2222-3333-444455556666";
const SLICE: &str = "kubepods-burstable-pod0123abcd_1111_2222_3333_444455556666.slice";

fn id(digit: &str) -> String {
    digit.repeat(ID_DIGITS)
}

fn label(path: &str) -> Option<String> {
    Container::of_path(path).map(|one| one.label())
}

/// Makes a directory of containerd's and one of CRI-O's, and a [`Containers`] that reads them.
fn runtimes() -> (tempfile::TempDir, Containers) {
    let directory = tempfile::tempdir().unwrap();
    let [containerd, cri_o] = ["containerd", "cri-o"].map(|name| directory.path().join(name));
    (directory, Containers::new(vec![Root::containerd(containerd), Root::cri_o(cri_o)]))
}

/// Writes a file, and makes its directory if needed.
fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn containerd_spec(namespace: &str, pod: &str, container: &str) -> String {
    let annotations = serde_json::json!({
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-name": pod,
        "io.kubernetes.cri.container-name": container,
        "io.kubernetes.pod.name": "the-author-of-the-pod-chose-this",
    });
    serde_json::json!({ "ociVersion": "1.1.0", "annotations": annotations, "root": {} }).to_string()
}

fn pods_path(digit: &str) -> String {
    format!("/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{}.scope", id(digit))
}

#[test]
fn paths_of_every_driver_and_runtime_have_the_numbers() {
    let a = id("a");
    for (path, runtime) in [
        (pods_path("a"), Some("containerd")),
        (format!("/kubepods.slice/{SLICE}/crio-{a}.scope/below/it"), Some("cri-o")),
        (
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}/cri-containerd-{a}.scope"),
            Some("containerd"),
        ),
        (format!("/kubepods/burstable/pod{UID}/{a}"), None),
        (format!("/kubelet/kubepods/pod{UID}/crio-{a}"), Some("cri-o")),
    ] {
        let one = Container::of_path(&path).unwrap_or_else(|| panic!("{path}"));
        assert_eq!((one.id.as_str(), one.pod_uid.as_deref()), (a.as_str(), Some(UID)), "{path}");
        assert_eq!(
            (one.runtime.as_deref(), one.label()),
            (runtime, "pod 0123abcd aaaaaaaaaaaa".to_owned()),
            "{path}"
        );
    }
    let of_static = format!("/kubepods/pod{}/{a}", "b".repeat(32));
    assert_eq!(label(&of_static).as_deref(), Some("pod bbbbbbbb aaaaaaaaaaaa"));
    for (path, expected) in [
        (format!("/system.slice/docker-{a}.scope"), "docker aaaaaaaaaaaa"),
        (format!("/docker/{a}/init"), "docker aaaaaaaaaaaa"),
        (format!("/machine.slice/libpod-{a}.scope/container"), "podman aaaaaaaaaaaa"),
        (format!("/system.slice/cri-containerd-{a}.scope"), "containerd aaaaaaaaaaaa"),
    ] {
        assert_eq!(label(&path).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn other_cgroups_are_no_containers() {
    let (a, short, upper) = (id("a"), "a".repeat(63), id("A"));
    for path in [
        "/",
        "/system.slice/nginx.service",
        "/kubepods.slice",
        &format!("/kubepods.slice/{SLICE}"),
        &format!("/{a}"),
        &format!("/pod{UID}/{a}"),
        &format!("/machine.slice/libpod-conmon-{a}.scope"),
        &format!("/system.slice/crio-conmon-{a}.scope"),
        &format!("/system.slice/docker-{short}.scope"),
        &format!("/system.slice/docker-{upper}.scope"),
        &format!("/docker/{short}g"),
        "/docker/..",
    ] {
        assert_eq!(Container::of_path(path), None, "{path}");
    }
}

#[test]
fn the_outermost_container_of_a_path_counts() {
    let (a, b) = (id("a"), id("b"));
    let inside = format!("/system.slice/docker-{a}.scope{}", pods_path("b"));
    assert_eq!(label(&inside).as_deref(), Some("docker aaaaaaaaaaaa"));
    assert_eq!(
        label(&format!("{}/docker-{b}.scope", pods_path("a"))).as_deref(),
        Some("pod 0123abcd aaaaaaaaaaaa")
    );
}

#[test]
fn the_runtimes_files_have_the_names() {
    let (directory, mut containers) = runtimes();
    let file = directory.path().join("containerd").join(id("a")).join("config.json");
    write(&file, containerd_spec("shop", "web-7d9f", "nginx"));
    let file = directory.path().join("cri-o").join(id("b")).join("userdata/config.json");
    let annotations = serde_json::json!({
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.name": "db-0",
        "io.kubernetes.container.name": "postgres",
        "io.kubernetes.cri.sandbox-name": "the-author-of-the-pod-chose-this",
    });
    write(&file, serde_json::json!({ "annotations": annotations }).to_string());
    let a = containers.of(1, &pods_path("a"), Micros::ZERO).unwrap();
    assert_eq!(a.label(), "shop/web-7d9f/nginx");
    let expected = serde_json::json!({
        "namespace": "shop", "pod": "web-7d9f", "container": "nginx", "id": id("a"), "pod_uid": UID, "runtime": "containerd",
    });
    assert_eq!(serde_json::to_value(&a).unwrap(), expected);
    assert_eq!(serde_json::from_value::<Container>(expected).unwrap(), *a);
    let path = format!("/kubepods.slice/{SLICE}/crio-{}.scope", id("b"));
    assert_eq!(containers.of(2, &path, Micros::ZERO).unwrap().label(), "shop/db-0/postgres");
    for (filter, matches) in [
        ("shop", true),
        ("shop/web-7d9f", true),
        ("shop/web-7d9f/nginx", true),
        ("aaaaaaaaaaaa", true),
        ("aaaaaaaaaaa", false),
        ("sho", false),
        ("web-7d9f", false),
        ("shop/web", false),
    ] {
        assert_eq!(a.matches(filter), matches, "{filter}");
    }
}

#[test]
fn a_pods_sandbox_is_named_by_its_pod() {
    let (directory, mut containers) = runtimes();
    let annotations = serde_json::json!({
        "io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-name": "web-7d9f",
    });
    let file = directory.path().join("containerd").join(id("a")).join("config.json");
    write(&file, serde_json::json!({ "annotations": annotations }).to_string());
    assert_eq!(containers.of(1, &pods_path("a"), Micros::ZERO).unwrap().label(), "shop/web-7d9f");
}

#[test]
fn links_other_kinds_of_files_and_long_ones_are_not_read() {
    let (directory, mut containers) = runtimes();
    let good = containerd_spec("shop", "web", "nginx");
    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, &good).unwrap();
    let file = |digit: &str| {
        let file = directory.path().join("containerd").join(id(digit)).join("config.json");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        file
    };
    symlink(&elsewhere, file("0")).unwrap();
    mkfifo(&file("1"), Mode::S_IRUSR).unwrap();
    fs::create_dir(file("2")).unwrap();
    let padded = |length: u64| format!("{good}{}", " ".repeat(usize::try_from(length).unwrap() - good.len()));
    fs::write(file("3"), padded(LONGEST_FILE + 1)).unwrap();
    fs::write(file("4"), "{\"annotations\": [").unwrap();
    fs::write(file("5"), "{\"annotations\": {\"io.kubernetes.cri.sandbox-name\": {}}}").unwrap();
    fs::write(file("6"), "[".repeat(100_000)).unwrap();
    fs::write(file("7"), "{}").unwrap();
    for digit in 0..8_u64 {
        let one = containers.of(digit, &pods_path(&digit.to_string()), Micros::ZERO).unwrap();
        assert_eq!(one.pod, None, "{digit}");
    }
    fs::write(file("8"), padded(LONGEST_FILE)).unwrap();
    assert_eq!(containers.of(8, &pods_path("8"), Micros::ZERO).unwrap().label(), "shop/web/nginx");
}

#[test]
fn names_hold_nothing_but_letters_of_names_and_are_bounded() {
    let (directory, mut containers) = runtimes();
    let file = directory.path().join("containerd").join(id("a")).join("config.json");
    write(&file, containerd_spec("kube/system", &"x".repeat(9_000), "\x1b[31m\u{202e}red\n"));
    let label = containers.of(1, &pods_path("a"), Micros::ZERO).unwrap().label();
    assert_eq!(label, format!("kube?system/{}/??31m?red?", "x".repeat(LONGEST_NAME)));
}

#[test]
fn names_are_read_once_and_a_file_without_them_twice_a_minute() {
    let (directory, mut containers) = runtimes();
    let file = directory.path().join("containerd").join(id("a")).join("config.json");
    let path = pods_path("a");
    let mut named = |seconds, settle: bool| {
        let one = containers.of(1, &path, Micros::from_secs(seconds)).unwrap();
        if settle {
            containers.settle();
        }
        one.pod
    };
    assert_eq!(named(0, true), None);
    write(&file, containerd_spec("shop", "web", "nginx"));
    assert_eq!(named(29, true), None, "it was asked for a moment ago");
    assert_eq!(named(30, true).as_deref(), Some("web"));
    fs::remove_file(&file).unwrap();
    assert_eq!(named(9_999, true).as_deref(), Some("web"), "a container keeps its names");
    containers.settle();
    assert_eq!(containers.of(1, &path, Micros::from_secs(9_999)).unwrap().pod, None, "it is forgotten");
}

#[test]
fn a_bounded_number_is_kept_and_the_numbers_of_all_others_are_told() {
    let (_directory, mut containers) = runtimes();
    let most = u64::try_from(MOST).unwrap();
    for number in 0..most + 9 {
        assert!(containers.of(number, &pods_path("a"), Micros::ZERO).is_some());
    }
    assert_eq!(containers.known.len(), MOST);
}

#[test]
fn cgroups_of_users_and_services_and_engines_without_pods_have_no_names_of_pods() {
    let (directory, mut containers) = runtimes();
    let file = directory.path().join("containerd").join(id("a")).join("config.json");
    write(&file, containerd_spec("shop", "web", "nginx"));
    let users = format!("/user.slice/user-1000.slice/user@1000.service{}", pods_path("a"));
    let docker = format!("/system.slice/docker-{}.scope", id("a"));
    let services = format!("/system.slice/app.service/kubepods/pod{UID}/{}", id("a"));
    let others = format!("/machine.slice/machine-test.scope{}", pods_path("a"));
    let lxc = format!("/lxc.payload.test{}", pods_path("a"));
    for (number, path) in [users, docker, services, others, lxc].iter().enumerate() {
        let number = u64::try_from(number).unwrap();
        assert_eq!(containers.of(number, path, Micros::ZERO).unwrap().pod, None, "{path}");
    }
}
