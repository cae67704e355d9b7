//! Names that are hard to carry, between our client and our server.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bufwise_ftp::client::{Access, ClientError, Folder, Login, Scheme, Security, Settings, Worker};
use bufwise_ftp::server::{Config, Rights, Server, Users};
use bufwise_ftp::wire::WireError;
use bufwise_mover::Cancel;

use crate::support::pattern;

#[test]
fn any_name_that_ftp_can_carry_comes_and_goes() {
    let (served, local) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), served.path());
    config.users = Users::anonymous(Rights::Write);
    let server = Server::bind(config, Box::new(|_| ())).unwrap();
    let (address, stop) = (server.address(), server.stop());
    let running = thread::spawn(move || server.run());
    let access = Access {
        scheme: Scheme::Ftp,
        host: "127.0.0.1".to_owned(),
        port: address.port(),
        login: Login::anonymous(),
        security: Security::Plain,
        timeout: Duration::from_secs(20),
        cancel: Cancel::new().unwrap(),
    };
    let settings = Settings { retries: 0, ..Settings::default() };
    let mut worker = Worker::new(&access, &settings);
    let folder = Folder::open(local.path()).unwrap();
    let names = [
        &b"plain"[..],
        b" leading and trailing ",
        b"-la",
        b"a;b=c; d",
        b"226 done",
        b"quote\"d \"\"",
        b"tab\tand\x1b[2J",
        "größe 文件".as_bytes(),
        // Telnet's IAC: alone, doubled, and as the beginning of a command; bytes that are not UTF-8.
        b"\xff",
        b"\xff\xff\xff\xf4\xff\xfdx\xff\xfa",
        b"\xfe\x80\xc3",
        &[b'x'; 200],
    ];
    for name in names {
        let (path, content) = (Path::new(OsStr::from_bytes(name)), pattern(1_000 + name.len()));
        fs::write(local.path().join("source"), &content).unwrap();
        let source = fs::File::open(local.path().join("source")).unwrap();
        let shown = name.escape_ascii();
        worker.put(&source, path, |_| ()).unwrap_or_else(|error| panic!("put {shown}: {error}"));
        assert_eq!(fs::read(served.path().join(path)).unwrap(), content, "{shown}");
        worker
            .get(path, &folder.target(path).unwrap(), |_| ())
            .unwrap_or_else(|error| panic!("get {shown}: {error}"));
        assert_eq!(fs::read(local.path().join(path)).unwrap(), content, "{shown}");
    }
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), names.len(), "and no other file was made");
    let broken = worker.get(Path::new("a\nb"), &folder.target(Path::new("x")).unwrap(), |_| ());
    assert!(matches!(broken, Err(ClientError::Wire(WireError::LineBreak { .. }))));
    drop(worker);
    stop.stop();
    running.join().unwrap().unwrap();
}
