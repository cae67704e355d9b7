//! The exercise of every server, over one session: in clear text, then encrypted where it can.

#[path = "../../../mover/src/pattern.rs"]
mod pattern;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bufwise_ftp::client::{
    Access, ClientError, Event, Folder, Login, Scheme, Security, Settings, Target, Worker,
};
use bufwise_ftp::wire::Secret;
use bufwise_mover::Cancel;
use bufwise_mover::hash::Digest;
use bufwise_mover::tls::{ClientTls, Trust};
use tempfile::TempDir;

use self::pattern::pattern;
use crate::servers::Server;

/// Long enough for several windows, short enough for a quick test.
const SIZE: usize = 3_000_001;

pub(crate) fn exercise(server: &Server) {
    securities(server).into_iter().for_each(|security| run(server, security));
}

/// In clear text, then encrypted where it can.
pub(crate) fn securities(server: &Server) -> Vec<Security> {
    let encrypted = server.certificate.as_ref().map(|certificate| {
        Security::Required(ClientTls::new(&Trust::Authorities(certificate.clone())).unwrap())
    });
    std::iter::once(Security::Plain).chain(encrypted).collect()
}

fn run(server: &Server, security: Security) {
    let encrypted = matches!(security, Security::Required(_));
    eprintln!("encrypted: {encrypted}");
    for entry in fs::read_dir(&server.root).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let access = access(server, security);
    let settings =
        Settings { retries: 0, resume: true, checksum: server.sum.is_some(), ..Settings::default() };
    let mut all = Exercise::new(server, Worker::new(&access, &settings));
    all.gets_what_is_there();
    all.goes_on_where_it_stopped();
    all.begins_anew_what_is_another_file();
    all.says_what_is_missing_and_stays_in_step();
    all.puts();
    all.puts_the_rest();
    let session = all.worker.session().unwrap();
    assert_eq!(session.server().tls, encrypted);
}

pub(crate) fn access(server: &Server, security: Security) -> Access {
    let login = match server.user {
        None => Login::anonymous(),
        Some((user, password)) => Login { user: user.to_owned(), password: Some(Secret::new(password)) },
    };
    Access {
        scheme: Scheme::Ftp,
        host: "127.0.0.1".to_owned(),
        port: server.port,
        login,
        security,
        timeout: Duration::from_secs(10),
        cancel: Cancel::default(),
    }
}

struct Exercise<'a> {
    server: &'a Server,
    worker: Worker,
    files: TempDir,
    content: Vec<u8>,
}

/// The bytes that are moved.
pub(crate) fn content() -> Vec<u8> {
    pattern(SIZE)
}

impl<'a> Exercise<'a> {
    fn new(server: &'a Server, worker: Worker) -> Self {
        Self { server, worker, files: tempfile::tempdir().unwrap(), content: content() }
    }

    fn odd_up(&self) -> &'static str {
        if self.server.utf8 { "up 'x' \u{e4}" } else { "up 'x'" }
    }

    /// A name with characters that some programs handle wrongly.
    fn odd_name(&self) -> &'static str {
        if self.server.utf8 { "a b;c#d%41 \u{e4}.bin" } else { "a b;c#d%41.bin" }
    }

    /// The name on the server.
    fn remote(&self, name: &str) -> PathBuf {
        self.server.path.join(name)
    }

    /// The same file as the server's disk has it.
    fn served(&self, name: &str) -> PathBuf {
        self.server.root.join(name)
    }

    fn serve(&self, name: &str, bytes: &[u8]) {
        use std::os::unix::fs::PermissionsExt;
        fs::write(self.served(name), bytes).unwrap();
        fs::set_permissions(self.served(name), fs::Permissions::from_mode(0o666)).unwrap();
    }

    fn target(&self, name: &str) -> Target {
        Folder::open(self.files.path()).unwrap().target(Path::new(name)).unwrap()
    }

    fn local(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn gets_what_is_there(&mut self) {
        for (name, len) in [("plain.bin", SIZE), ("empty", 0), ("one", 1), (self.odd_name(), 70_000)] {
            self.serve(name, &self.content[..len]);
            let (remote, target) = (self.remote(name), self.target(name));
            let got = self.worker.get(&remote, &target, |_| ()).unwrap();
            assert_eq!((got.size, got.resumed_from), (len as u64, 0), "{name}");
            assert_eq!(got.checksum.map(Digest::kind), self.server.sum);
            assert!(fs::read(self.local(name)).unwrap() == self.content[..len], "{name}");
        }
        let (remote, target) = (self.remote("plain.bin"), self.target("plain.bin"));
        let again = self.worker.get(&remote, &target, |_| ()).unwrap();
        assert_eq!(again.resumed_from, SIZE as u64, "it is there already");
    }

    fn goes_on_where_it_stopped(&mut self) {
        for have in [1, 65_536, 1_000_000, SIZE] {
            let (remote, target) = (self.remote("plain.bin"), self.target("rest.bin"));
            fs::write(self.local(".rest.bin.bufwise-part"), &self.content[..have]).unwrap();
            let got = self.worker.get(&remote, &target, |_| ()).unwrap();
            assert_eq!(got.resumed_from, have as u64);
            assert!(fs::read(self.local("rest.bin")).unwrap() == self.content, "from {have}");
            fs::remove_file(self.local("rest.bin")).unwrap();
        }
    }

    fn begins_anew_what_is_another_file(&mut self) {
        let (remote, target) = (self.remote("plain.bin"), self.target("anew.bin"));
        let mut other = self.content[..500_000].to_vec();
        other[499_999] ^= 1;
        fs::write(self.local(".anew.bin.bufwise-part"), other).unwrap();
        let mut anew = false;
        let watch = |event: Event<'_>| anew |= matches!(event, Event::BegunAnew);
        let got = self.worker.get(&remote, &target, watch).unwrap();
        assert!(anew && got.resumed_from == 0);
        assert!(fs::read(self.local("anew.bin")).unwrap() == self.content);
        assert!(!self.local(".anew.bin.bufwise-part").exists());
    }

    fn says_what_is_missing_and_stays_in_step(&mut self) {
        let (remote, target) = (self.remote("missing"), self.target("missing"));
        let error = self.worker.get(&remote, &target, |_| ()).unwrap_err();
        assert!(matches!(&error, ClientError::Refused { reply, .. } if reply.code / 100 == 5), "{error}");
        assert!(!self.worker.session().unwrap().is_spent());
        assert_eq!(
            fs::read_dir(self.files.path())
                .unwrap()
                .filter(|entry| { entry.as_ref().unwrap().file_name().to_string_lossy().contains("missing") })
                .count(),
            0
        );
        let (remote, target) = (self.remote("one"), self.target("after"));
        assert_eq!(self.worker.get(&remote, &target, |_| ()).unwrap().size, 1);
    }

    fn puts(&mut self) {
        for (name, len) in [("up.bin", SIZE), ("up-empty", 0), (self.odd_up(), 70_000)] {
            let file = self.file_of(len);
            let remote = self.remote(name);
            let put = self.worker.put(&file, &remote, |_| ()).unwrap();
            assert_eq!((put.size, put.resumed_from), (len as u64, 0), "{name}");
            assert!(fs::read(self.served(name)).unwrap() == self.content[..len], "{name}");
        }
        let file = self.file_of(SIZE);
        let remote = self.remote("up.bin");
        assert_eq!(self.worker.put(&file, &remote, |_| ()).unwrap().resumed_from, SIZE as u64);
        assert!(
            !fs::read_dir(&self.server.root)
                .unwrap()
                .any(|entry| { entry.unwrap().file_name().to_string_lossy().contains("bufwise-part") })
        );
    }

    fn puts_the_rest(&mut self) {
        let anonymous = self.server.user.is_none();
        for have in [1, 1_000_000] {
            let begun = if anonymous { "rest.up" } else { ".rest.up.bufwise-part" };
            self.serve(begun, &self.content[..have]);
            let (file, remote) = (self.file_of(SIZE), self.remote("rest.up"));
            let put = self.worker.put(&file, &remote, |_| ()).unwrap();
            assert_eq!(put.resumed_from, have as u64);
            assert!(fs::read(self.served("rest.up")).unwrap() == self.content, "from {have}");
            fs::remove_file(self.served("rest.up")).unwrap();
        }
    }

    fn file_of(&self, len: usize) -> File {
        let path = self.local("source");
        fs::write(&path, &self.content[..len]).unwrap();
        File::open(path).unwrap()
    }
}
