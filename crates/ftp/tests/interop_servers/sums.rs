//! Checksums by every way that a server has, the best one first.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use bufwise_ftp::client::{Access, ClientError, Folder, Security, Settings, Worker};
use bufwise_mover::hash::HashKind;

use crate::exercise::{access, content};
use crate::servers::Server;

/// What a server lists, in the order in which it is used, with the sum that is then made.
type Listed = (&'static str, HashKind);

/// Takes away what the server lists, one by one: the next is used, and in the end it is said that there is none.
pub(crate) fn sums(server: &Server, listed: &[Listed]) {
    let names: Vec<&str> = listed.iter().map(|(name, _)| *name).collect();
    for (at, (name, kind)) in listed.iter().enumerate() {
        let mut worker = worker(server, &names[..at]);
        let features = worker.session().unwrap().server().features.clone();
        assert!(features.has(name) && names[..at].iter().all(|name| !features.has(name)), "{name}");
        for file in ["plain", "two words 0 3"] {
            assert_eq!(there_and_back(server, &mut worker, file).unwrap(), Some(*kind), "{name}");
        }
    }
    let error = there_and_back(server, &mut worker(server, &names), "plain").unwrap_err();
    assert!(matches!(error, ClientError::NoChecksum), "{error}");
}

/// Puts a file and gets it, with what was compared.
fn there_and_back(server: &Server, worker: &mut Worker, name: &str) -> Result<Option<HashKind>, ClientError> {
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("source"), content()).unwrap();
    let file = File::open(files.path().join("source")).unwrap();
    let remote = server.path.join(name);
    let put = worker.put(&file, &remote, |_| ())?;
    let target = Folder::open(files.path()).unwrap().target(Path::new("got")).unwrap();
    let got = worker.get(&remote, &target, |_| ())?;
    assert!(fs::read(files.path().join("got")).unwrap() == content());
    assert_eq!(put.checksum, got.checksum);
    Ok(got.checksum.map(|checked| checked.digest.kind()))
}

/// A worker that hears of the server's features but these.
fn worker(server: &Server, left_out: &[&str]) -> Worker {
    let lines = left_out.iter().map(|name| format!(" {name}")).collect();
    let access = Access { port: relay(server.port, lines), ..access(server, Security::Plain) };
    Worker::new(&access, &Settings { retries: 0, checksum: true, ..Settings::default() })
}

/// A port that leads to the server's, one control connection at a time; lines of its replies that are such a one, or
/// begin with it and a space, are left out.
fn relay(port: u16, left_out: Vec<String>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let Ok((client, _)) = listener.accept() else { return };
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _gone = io::copy(&mut &client, &mut &server);
                let _gone = server.shutdown(Shutdown::Write);
            });
            let _gone = pass(&server, &client, &left_out);
            let _gone = client.shutdown(Shutdown::Both);
        });
    });
    address.port()
}

fn pass(server: &TcpStream, mut client: &TcpStream, left_out: &[String]) -> io::Result<()> {
    let mut lines = BufReader::new(server);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let is_left_out = left_out.iter().any(|start| {
            text.strip_prefix(start.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        if !is_left_out {
            client.write_all(&line)?;
        }
        line.clear();
    }
    Ok(())
}
