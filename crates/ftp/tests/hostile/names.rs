//! Names that are hard to carry, between our client and our server.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bufwise_ftp::client::{Folder, Worker};

use crate::served::serve;
use crate::support::{Client, pattern};

#[test]
fn any_name_that_ftp_can_carry_comes_and_goes() {
    let (served, local) = (serve(|_| {}), tempfile::tempdir().unwrap());
    let client = Client::at(served.address.port());
    let mut worker = Worker::new(&client.access, &client.settings);
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
        assert_eq!(fs::read(served.directory.path().join(path)).unwrap(), content, "{shown}");
        worker
            .get(path, &folder.target(path).unwrap(), |_| ())
            .unwrap_or_else(|error| panic!("get {shown}: {error}"));
        assert_eq!(fs::read(local.path().join(path)).unwrap(), content, "{shown}");
    }
    let there = fs::read_dir(served.directory.path()).unwrap().count();
    assert_eq!(there, names.len(), "and no other file was made");
}
