//! README's pictures of `top` and of the page: a host with transfers over some paths, in a terminal and in a browser.
//! `make pictures` keeps them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use bufwise_lab::host::Host;
use bufwise_lab::spec::{LossSpec, PathSpec};
use bufwise_lab::testbed::Testbed;
use serde_json::json;

use crate::browser::{Browser, keep};
use crate::place::{Daemon, Net, TestGroup};
use crate::run::{command, eventually, root};
use crate::terminal::{self, Session, Size};
use crate::web::Web;

const SIZE: Size = Size { lines: 16, columns: 138 };
/// Rate, round-trip time, queue and loss of each path, and additional arguments of iperf3.
const TRANSFERS: [(&str, &str, &str, &str, &str); 5] = [
    ("40mbit", "50ms", "bdp", "0", ""),
    ("20mbit", "20ms", "bdp/2", "0.1%", ""),
    ("30mbit", "120ms", "bdp", "0", "-w 96K"),
    ("5mbit", "80ms", "480ms", "0", "-R"),
    ("20mbit", "10ms", "bdp", "0", "-b 2M"),
];
/// Whether the page lists each transfer.
const ALL_LISTED: &str = "[0, 1, 2, 3, 4].every(path => document.getElementById('rows').textContent.includes(`198.18.${path}.2:5201`))";
/// The time span of the graphs.
const MINUTE: Duration = Duration::from_secs(60);

/// Transfers from one host, each over its own path, and a daemon on that host. All of them are in namespaces of their
/// own, so that the pictures show nothing else of this machine.
struct Scene {
    daemon: Daemon,
    net: Net,
    _clients: Clients,
    _group: TestGroup,
    testbed: Testbed,
}

struct Clients(Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _over = child.kill();
            child.wait().unwrap();
        }
    }
}

impl Scene {
    fn new() -> Self {
        let path = |(rate, rtt, queue, loss, _): &(&str, &str, &str, &str, &str)| PathSpec {
            rate: Some(rate.parse().unwrap()),
            rtt: rtt.parse().unwrap(),
            queue: Some(queue.parse().unwrap()),
            loss: loss.parse::<LossSpec>().unwrap().0,
            congestion_control: Some("cubic".to_owned()),
            ..PathSpec::default()
        };
        let testbed = Testbed::start_star(&TRANSFERS.each_ref().map(path)).unwrap();
        let host = &testbed.hosts[0].a;
        let (net, group) = (Net::of(host), TestGroup::new());
        let daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--memory", "16MiB"]);
        let mut clients = Clients(Vec::new());
        for (hosts, (.., options)) in testbed.hosts.iter().zip(&TRANSFERS) {
            clients.0.push(hosts.b.spawn(&mut quiet("exec iperf3 -s")).unwrap());
            Net::of(&hosts.b).listens();
            let peer = format!("198.18.{}.2", clients.0.len() / 2);
            let procs = group.directory().join("cgroup.procs");
            let script = format!("echo 0 >{} && exec iperf3 -c {peer} -t 600 {options}", procs.display());
            clients.0.push(host.spawn(&mut quiet(&script)).unwrap());
        }
        Self { daemon, net, _clients: clients, _group: group, testbed }
    }

    fn host(&self) -> &Host {
        &self.testbed.hosts[0].a
    }
}

fn quiet(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The directory in which pictures are kept, if they are; then the graphs are filled first.
fn album() -> Option<PathBuf> {
    env::var_os("BUFWISE_PICTURES").map(PathBuf::from)
}

#[test]
fn root_top_and_the_page_are_pictured() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let socket = scene.daemon.socket();
    let spawn = |command: &mut Command| scene.host().spawn(command).unwrap();
    let top = Session::spawned(&["top", "--socket", &socket], SIZE, spawn);
    let web = Web::spawned(command(&["web", "--socket", &socket]), spawn);
    let browser = scene.net.inside(Browser::start);
    top.shows("198.18.4.2:5201");
    if let Some(album) = album() {
        // The page samples connections only while it is open.
        if let Some(mut browser) = browser {
            browser.view("light", 1180, 780);
            browser.go_to(&web.url);
            thread::sleep(MINUTE);
            browser.until(ALL_LISTED);
            let shot = browser.call("Page.captureScreenshot", &json!({ "format": "webp", "quality": 80 }));
            keep(&album.join("web.webp"), shot["data"].as_str().unwrap());
        }
        fs::write(album.join("top.svg"), terminal::svg(&top.text(), SIZE)).unwrap();
        return;
    }
    let mut picture = String::new();
    eventually("a picture of each transfer", || {
        picture = terminal::svg(&top.text(), SIZE);
        (0..5).all(|path| picture.contains(&format!("198.18.{path}.2:5201")))
    });
    assert!(
        picture.starts_with("<svg") && picture.contains("iperf3") && picture.contains("LIMITED BY"),
        "{picture}"
    );
    assert!(picture.len() < 100_000 && picture.lines().all(|line| line.len() < 4_000), "{}", picture.len());
    let Some(mut browser) = browser else { return };
    browser.go_to(&web.url);
    browser.until(ALL_LISTED);
}

#[test]
fn the_pictures_of_readme_are_there_and_light() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let readme = fs::read_to_string(docs.join("../README.md")).unwrap();
    for (name, begins, most) in [("top.svg", &b"<svg"[..], 100_000), ("web.webp", b"RIFF", 300_000)] {
        let picture = fs::read(docs.join(name)).unwrap();
        assert!(picture.starts_with(begins) && picture.len() < most, "{name}: {} bytes", picture.len());
        assert!(readme.contains(&format!("](docs/{name})")), "{name} is shown");
    }
}
