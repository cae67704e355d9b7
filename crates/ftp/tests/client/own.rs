//! Our client with our server: every policy, plain and encrypted, checksums, resumed both ways, whole trees.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bufwise_ftp::client::{Access, Folder, Login, Outcome, Scheme, Security, Settings, Tree, Worker};
use bufwise_ftp::server::users::hash_password;
use bufwise_ftp::server::{Config, Rights, Server, Stop, TlsConfig, Users};
use bufwise_ftp::wire::Secret;
use bufwise_mover::Cancel;
use bufwise_mover::tls::{ClientTls, ServerTls, Trust};
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;
use tempfile::TempDir;

use crate::scripted::pattern;

const SIZE: usize = 5_000_000;

struct Own {
    served: TempDir,
    local: TempDir,
    access: Access,
    stop: Stop,
    running: Option<JoinHandle<()>>,
}

impl Own {
    fn start(encrypted: bool) -> Self {
        let (served, local) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), served.path());
        config.users = Users::nobody();
        config.users.add("jo", &hash_password(b"secret").unwrap(), Rights::Write).unwrap();
        let mut security = Security::Plain;
        if encrypted {
            let server = ServerTls::self_signed(&["127.0.0.1".to_owned()]).unwrap();
            let trust = Trust::Pinned(server.fingerprint());
            security = Security::Required(ClientTls::new(&trust).unwrap());
            config.tls = Some(TlsConfig { server, required: true, require_reuse: true });
        }
        let server = Server::bind(config, Box::new(|_| ())).unwrap();
        let (address, stop) = (server.address(), server.stop());
        let running = Some(thread::spawn(move || server.run().unwrap()));
        let access = Access {
            scheme: Scheme::Ftp,
            host: address.ip().to_string(),
            port: address.port(),
            login: Login { user: "jo".to_owned(), password: Some(Secret::new("secret")), account: None },
            security,
            timeout: Duration::from_secs(20),
            cancel: Cancel::new().unwrap(),
        };
        Self { served, local, access, stop, running }
    }

    fn serve(&self, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.served.path().join(name).parent().unwrap()).unwrap();
        fs::write(self.served.path().join(name), bytes).unwrap();
    }

    fn served(&self, name: &str) -> Vec<u8> {
        fs::read(self.served.path().join(name)).unwrap()
    }

    fn local(&self, name: &str) -> PathBuf {
        self.local.path().join(name)
    }

    fn get(&self, worker: &mut Worker, name: &str) -> Outcome {
        let target = Folder::open(self.local.path()).unwrap().target(Path::new(name)).unwrap();
        worker.get(Path::new(name), &target, |_| ()).unwrap()
    }

    fn put(&self, worker: &mut Worker, name: &str, bytes: &[u8]) -> Outcome {
        fs::write(self.local("source"), bytes).unwrap();
        worker.put(&File::open(self.local("source")).unwrap(), Path::new(name), |_| ()).unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.running.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn settings(policy: PolicyKind) -> Settings {
    Settings { policy, checksum: true, resume: true, retries: 0, ..Settings::default() }
}

#[test]
fn every_policy_moves_every_byte_both_ways() {
    for encrypted in [false, true] {
        let own = Own::start(encrypted);
        own.serve("down", &pattern(SIZE));
        let fixed = PolicyKind::Fixed(Bytes(65_536));
        for policy in [PolicyKind::Kernel, PolicyKind::Drs, PolicyKind::DrsFtp, PolicyKind::Sobas, fixed] {
            let mut worker = Worker::new(&own.access, &settings(policy));
            let got = own.get(&mut worker, "down");
            assert!(fs::read(own.local("down")).unwrap() == pattern(SIZE), "{policy}");
            assert!(got.checksum.is_some() && got.resumed_from == 0);
            let put = own.put(&mut worker, "up", &pattern(SIZE));
            assert!(own.served("up") == pattern(SIZE), "{policy}");
            assert!(put.checksum.is_some() && put.resumed_from == 0);
            let server = worker.server().unwrap();
            assert_eq!((server.tls, server.dialect), (encrypted, true));
            fs::remove_file(own.local("down")).unwrap();
            fs::remove_file(own.served.path().join("up")).unwrap();
        }
    }
}

#[test]
fn what_arrived_of_either_is_gone_on_with() {
    for encrypted in [false, true] {
        let own = Own::start(encrypted);
        own.serve("down", &pattern(SIZE));
        let mut worker = Worker::new(&own.access, &settings(PolicyKind::Kernel));
        fs::write(own.local(".down.bufwise-part"), &pattern(SIZE)[..3_000_000]).unwrap();
        assert_eq!(own.get(&mut worker, "down").resumed_from, 3_000_000);
        assert!(fs::read(own.local("down")).unwrap() == pattern(SIZE));
        own.serve(".up.bufwise-upload", &pattern(SIZE)[..2_000_000]);
        assert_eq!(own.put(&mut worker, "up", &pattern(SIZE)).resumed_from, 2_000_000);
        assert!(own.served("up") == pattern(SIZE));
        assert_eq!(own.put(&mut worker, "up", &pattern(SIZE)).resumed_from, SIZE as u64, "it is there");
        own.serve(".other.bufwise-upload", &pattern(SIZE)[1..2_000_000]);
        assert_eq!(own.put(&mut worker, "other", &pattern(SIZE)).resumed_from, 0);
        assert!(own.served("other") == pattern(SIZE));
    }
}

#[test]
fn a_tree_comes_whole() {
    let own = Own::start(true);
    for name in ["a/one", "a/b/two", "a/b/c d/three"] {
        own.serve(name, name.as_bytes());
    }
    std::os::unix::fs::symlink("/etc", own.served.path().join("a/link")).unwrap();
    let mut worker = Worker::new(&own.access, &settings(PolicyKind::Kernel));
    let tree = Tree::list(&mut worker, Path::new("a")).unwrap();
    let folder = Folder::open(own.local.path()).unwrap();
    for item in &tree.files {
        worker.get(&item.remote, &folder.target(&item.path).unwrap(), |_| ()).unwrap();
    }
    let mut paths: Vec<_> = tree.files.iter().map(|item| item.path.to_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["b/c d/three", "b/two", "one"]);
    assert_eq!(fs::read(own.local("b/c d/three")).unwrap(), b"a/b/c d/three");
}
