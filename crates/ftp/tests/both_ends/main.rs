//! Our client with our server, over loopback: with every policy, in clear text and encrypted, and after interruptions.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

#[path = "../server/support.rs"]
#[expect(dead_code, reason = "the client does the talking here; the server's own tests need more")]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bufwise_ftp::client::{
    Access, Event, Folder, Login, Scheme, Security, Settings, Target, Tree, Worker, in_parallel,
};
use bufwise_ftp::server::{Rights, TlsConfig, Users, users};
use bufwise_ftp::wire::Secret;
use bufwise_mover::Cancel;
use bufwise_mover::tls::{ClientTls, ServerTls, Trust};
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;
use support::{Served, pattern, serve};

const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Kernel,
    PolicyKind::Fixed(Bytes(300_000)),
    PolicyKind::Drs,
    PolicyKind::DrsFtp,
    PolicyKind::Sobas,
    PolicyKind::SobasPublished,
];

/// A server with the user `jo`, and what its client needs.
struct Ends {
    served: Served,
    access: Access,
    settings: Settings,
    local: tempfile::TempDir,
}

fn ends(policy: PolicyKind, encrypted: bool) -> Ends {
    let tls = encrypted.then(|| ServerTls::self_signed(&["localhost".to_owned()]).unwrap());
    let security = match &tls {
        Some(server) => Security::Required(ClientTls::new(&Trust::Pinned(server.fingerprint())).unwrap()),
        None => Security::Plain,
    };
    let served = serve(|config| {
        config.users = Users::nobody();
        config.users.add("jo", &users::hash_password(b"secret").unwrap(), Rights::Write).unwrap();
        config.tuning.policy = policy;
        config.tls = tls.map(|server| TlsConfig { server, required: true, require_reuse: true });
    });
    let access = Access {
        scheme: Scheme::Ftp,
        host: "127.0.0.1".to_owned(),
        port: served.address.port(),
        login: Login { user: "jo".to_owned(), password: Some(Secret::new("secret")) },
        security,
        timeout: Duration::from_secs(20),
        cancel: Cancel::default(),
    };
    let settings = Settings { policy, checksum: true, retries: 0, ..Settings::default() };
    Ends { served, access, settings, local: tempfile::tempdir().unwrap() }
}

impl Ends {
    fn worker(&self) -> Worker {
        Worker::new(&self.access, &self.settings)
    }

    fn local(&self, name: &str, bytes: &[u8]) -> File {
        fs::write(self.local.path().join(name), bytes).unwrap();
        File::open(self.local.path().join(name)).unwrap()
    }

    /// Puts and gets several files over one session.
    fn exercise(&self) {
        let bytes = pattern(3_000_001);
        let file = self.local("up", &bytes);
        let mut worker = self.worker();
        for number in 0..4 {
            let name = format!("file {number}");
            let put = worker.put(&file, Path::new(&name), |_| {}).unwrap();
            assert!(put.size == 3_000_001 && put.checksum.is_some());
            assert!(fs::read(self.served.path(&name)).unwrap() == bytes);
            let target = Target::new(&self.local.path().join("down")).unwrap();
            let got = worker.get(Path::new(&name), &target, |_| {}).unwrap();
            assert!(got.report.is_some() && fs::read(self.local.path().join("down")).unwrap() == bytes);
        }
        assert!(worker.server().unwrap().dialect);
        drop(worker);
        let log = self.served.log();
        assert_eq!(log.matches("logged in").count(), 1, "one session for all of it: {log}");
        assert!(self.served.transfers().iter().all(|transfer| transfer.failure.is_none()), "{log}");
        let names = fs::read_dir(self.served.directory.path()).unwrap().count();
        assert_eq!(names, 4, "nothing else is left");
    }
}

#[test]
fn files_go_both_ways_with_every_policy() {
    for policy in POLICIES {
        ends(policy, false).exercise();
    }
}

#[test]
fn files_go_both_ways_encrypted_each_connection_continuing_the_session() {
    for policy in POLICIES {
        ends(policy, true).exercise();
    }
}

#[test]
fn an_interrupted_put_ends_up_whole() {
    for encrypted in [false, true] {
        let mut ends = ends(PolicyKind::Drs, encrypted);
        ends.settings.resume = true;
        let bytes = pattern(2_000_000);
        let file = ends.local("up", &bytes);
        // The partial files that interruptions of this file, one of them after its last byte, and of another one have left.
        for (there, resumed_from) in
            [(&bytes[..700_000], 700_000), (&bytes[..], 2_000_000), (&pattern(800_000)[1..], 0)]
        {
            ends.served.put(".file.bufwise-upload", there);
            ends.served.put("..file.bufwise-part.bufwise-upload", there);
            let mut worker = ends.worker();
            let put = worker.put(&file, Path::new("file"), |_| {}).unwrap();
            assert!(put.resumed_from == resumed_from && fs::read(ends.served.path("file")).unwrap() == bytes);
            let put = worker.put(&file, Path::new("file"), |_| {}).unwrap();
            assert_eq!(put.resumed_from, 2_000_000, "it is there");
            fs::remove_file(ends.served.path("file")).unwrap();
        }
    }
}

#[test]
fn of_a_file_that_grows_while_it_is_put_comes_what_it_was() {
    for (encrypted, len) in [(false, 1_000_000), (true, 1_000_000), (false, 0), (true, 0)] {
        let ends = ends(PolicyKind::Kernel, encrypted);
        let bytes = pattern(len);
        let file = ends.local("up", &bytes);
        let mut writer = OpenOptions::new().append(true).open(ends.local.path().join("up")).unwrap();
        let grow = |event: Event<'_>| {
            if let Event::Begun { .. } = event {
                writer.write_all(b"more").unwrap();
            }
        };
        let put = ends.worker().put(&file, Path::new("file"), grow).unwrap();
        assert!(put.size == len as u64 && put.checksum.is_some());
        assert!(fs::read(ends.served.path("file")).unwrap() == bytes);
    }
}

#[test]
fn a_file_whose_file_system_does_not_know_its_length_is_put_whole() {
    let bytes = fs::read("/proc/version").unwrap();
    for encrypted in [false, true] {
        let mut ends = ends(PolicyKind::Kernel, encrypted);
        // An empty file at the server is not taken for it.
        ends.settings.resume = true;
        ends.served.put("file", b"");
        let file = File::open("/proc/version").unwrap();
        let put = ends.worker().put(&file, Path::new("file"), |_| {}).unwrap();
        assert!(put.size == bytes.len() as u64 && put.checksum.is_some());
        assert!(fs::read(ends.served.path("file")).unwrap() == bytes);
    }
}

#[test]
fn an_interrupted_get_goes_on() {
    for encrypted in [false, true] {
        let mut ends = ends(PolicyKind::Drs, encrypted);
        ends.settings.resume = true;
        let bytes = pattern(2_000_000);
        ends.served.put("file", &bytes);
        fs::write(ends.local.path().join(".file.bufwise-part"), &bytes[..700_000]).unwrap();
        let target = Target::new(&ends.local.path().join("file")).unwrap();
        let got = ends.worker().get(Path::new("file"), &target, |_| {}).unwrap();
        assert_eq!(got.resumed_from, 700_000);
        assert!(fs::read(ends.local.path().join("file")).unwrap() == bytes);
    }
}

#[test]
fn a_tree_comes_whole() {
    let ends = ends(PolicyKind::Kernel, true);
    fs::create_dir_all(ends.served.path("a/b/c d")).unwrap();
    for name in ["a/one", "a/b/two", "a/b/c d/three"] {
        ends.served.put(name, name.as_bytes());
    }
    std::os::unix::fs::symlink("/etc", ends.served.path("a/link")).unwrap();
    let mut worker = ends.worker();
    let tree = Tree::list(&mut worker, Path::new("a"), |_| ()).unwrap();
    let folder = Folder::open(ends.local.path()).unwrap();
    for item in &tree.files {
        worker.get(&item.remote, &folder.target(&item.path).unwrap(), |_| ()).unwrap();
    }
    let mut paths: Vec<_> = tree.files.iter().map(|item| item.path.to_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["b/c d/three", "b/two", "one"]);
    assert_eq!(fs::read(ends.local.path().join("b/c d/three")).unwrap(), b"a/b/c d/three");
}

#[test]
fn a_server_that_allows_fewer_sessions_than_are_wanted_fails_no_file() {
    let ends = ends(PolicyKind::Kernel, false);
    let served = serve(|config| config.limits.sessions_per_address = 1);
    let access = Access { port: served.address.port(), login: Login::anonymous(), ..ends.access.clone() };
    let mut workers: Vec<Worker> = (0..3).map(|_| Worker::new(&access, &ends.settings)).collect();
    workers[0].session().unwrap();
    let up = ends.local.path().join("up");
    fs::write(&up, pattern(100_000)).unwrap();
    let names = ["one", "two", "three"].map(PathBuf::from);
    let work = |worker: &mut Worker, name: &PathBuf| worker.put(&File::open(&up).unwrap(), name, |_| {});
    let mut stored = 0;
    in_parallel(workers, &names, work, |_, put| {
        put.unwrap();
        stored += 1;
    })
    .unwrap();
    assert_eq!(stored, 3);
}
