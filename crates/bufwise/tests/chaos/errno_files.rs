//! Failing calls of `serve` during uploads, of `get -o` and of `put`.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use crate::errno::{Short, each_case, watched};
use crate::kill_serve::{check, next_server};
use crate::scene::{PROGRAM, ended, silent};
use crate::seeded::Random;
use crate::transfer::{Transfer, Way};
use crate::uploads::{Server, Uploads};

/// Enough uploads to make each kind of call more than once.
const UPLOADS: usize = 4;
/// A file to which the server appends [`MORE`].
const BEGUN: &[u8] = b"begun";
const MORE: &[u8] = b" and more";

/// Makes a directory to serve. The file to append to is in a directory of its own.
fn served() -> tempfile::TempDir {
    let served = tempfile::tempdir().unwrap();
    fs::create_dir(served.path().join("more")).unwrap();
    fs::write(served.path().join("more/file"), BEGUN).unwrap();
    served
}

/// Appends to the file: the server first copies its beginning.
fn append(server: &Server) -> io::Result<()> {
    server.client()?.send("APPE more/file", MORE)
}

#[test]
fn errno_serve() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("trace");
    let mut command = Command::new(&strace);
    watched(&mut command, &trace);
    command.arg(PROGRAM);
    let directory = served();
    let mut server = Server::launch(command, directory.path()).unwrap();
    Uploads::default().go_on(server.address(), "a", &mut Random::of(0, 0), UPLOADS).unwrap();
    append(&server).unwrap();
    server.kill();
    server.wait();
    each_case("errno_serve", Short { steps: 8, of_each_call: 1 }, &trace, |case| {
        let directory = served();
        let mut command = Command::new(&strace);
        case.traced(&mut command);
        command.arg(PROGRAM);
        let mut server = match Server::launch(command, directory.path()) {
            Ok(server) => server,
            Err(output) => {
                case.must_be_sound(&output, 0);
                return;
            }
        };
        let (mut uploads, mut random) = (Uploads::default(), Random::of(0, 1));
        for _ in 0..UPLOADS {
            // A session may fail, and so may the next one: the failure happens in each of their threads.
            let _refused = uploads.go_on(server.address(), "a", &mut random, UPLOADS);
        }
        let _refused = append(&server);
        assert!(server.is_running(), "{case}: the server has ended: {}", server.log());
        case.must_not_panic(&server.log());
        server.kill();
        server.wait();
        let appended = fs::read(directory.path().join("more/file")).unwrap();
        assert!(appended == BEGUN || appended == [BEGUN, MORE].concat(), "{case}: {appended:?}");
        fs::remove_dir_all(directory.path().join("more")).unwrap();
        let all = [uploads];
        check(&all, directory.path());
        next_server(&all, directory.path());
    });
}

fn errno_of_client(name: &'static str, way: Way, steps: u32) {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let bufwise = || Command::new(PROGRAM);
    let mut transfer = Transfer::new(way, bufwise(), bufwise, &[]);
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("trace");
    let mut command = Command::new(&strace);
    watched(&mut command, &trace);
    command.arg(PROGRAM);
    assert!(ended(silent(&mut transfer.command(command, &[]))).status.success());
    each_case(name, Short { steps, of_each_call: 4 }, &trace, |case| {
        transfer.prepare(None);
        let mut command = Command::new(&strace);
        case.traced(&mut command);
        command.arg(PROGRAM);
        let output = ended(silent(&mut transfer.command(command, &[])));
        if case.must_be_sound(&output, 0) {
            transfer.must_be_whole(case);
        }
        transfer.check(case, None, false);
    });
}

#[test]
fn errno_get() {
    errno_of_client("errno_get", Way::Get, 20);
}

#[test]
fn errno_put() {
    errno_of_client("errno_put", Way::Put, 10);
}

#[test]
fn an_upload_that_the_disk_did_not_take_leaves_nothing_to_resume() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let (place, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(strace);
    watched(&mut command, &place.path().join("trace"));
    command.args(["-e", "trace=fsync", "-e", "inject=fsync:error=EIO", PROGRAM]);
    let mut server = Server::launch(command, served.path()).expect("the server starts");
    let error = server.client().unwrap().store("file", b"whole").unwrap_err();
    assert!(error.to_string().starts_with("451"), "{error}");
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 0);
    server.kill();
    server.wait();
}

#[test]
fn a_download_that_the_disk_did_not_take_leaves_nothing_to_resume() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let [place, served, into] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    fs::write(served.path().join("file"), vec![7; 300_000]).unwrap();
    let server = Server::start(served.path());
    let mut command = Command::new(strace);
    watched(&mut command, &place.path().join("trace"));
    command.args(["-e", "trace=fsync", "-e", "inject=fsync:error=EIO", PROGRAM, "get"]);
    command.arg(format!("ftp://{}/file", server.address())).arg("-o").arg(into.path().join("file"));
    let output = ended(silent(&mut command));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("writing to the disk") && said.lines().count() == 1, "{said}");
    assert_eq!(fs::read_dir(into.path()).unwrap().count(), 0);
}

/// Starts a server, for one session, that reports success before it sends any data. It ends with the process.
fn hasty_server(content: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let session = move || -> io::Result<()> {
        let (mut control, data) = (listener.accept()?.0, TcpListener::bind("127.0.0.1:0")?);
        control.write_all(b"220 Ready.\r\n")?;
        for line in BufReader::new(control.try_clone()?).lines() {
            match line?.split(' ').next().unwrap_or_default() {
                "USER" => control.write_all(b"230 Welcome.\r\n")?,
                "TYPE" => control.write_all(b"200 Binary.\r\n")?,
                "SIZE" => write!(control, "213 {}\r\n", content.len())?,
                "EPSV" => write!(control, "229 Here (|||{}|)\r\n", data.local_addr()?.port())?,
                "RETR" => {
                    // In one segment, so that the client has both lines before it waits for the data.
                    control.write_all(b"150 Begun.\r\n226 Done.\r\n")?;
                    data.accept()?.0.write_all(&content)?;
                }
                "QUIT" => control.write_all(b"221 Goodbye.\r\n")?,
                _ => control.write_all(b"502 No such command.\r\n")?,
            }
        }
        Ok(())
    };
    thread::spawn(session);
    address
}

#[test]
fn a_download_ends_though_no_thread_of_it_can_be_woken() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let place = tempfile::tempdir().unwrap();
    let (trace, target) = (place.path().join("trace"), place.path().join("file"));
    let content = vec![7; 500_000];
    let url = format!("ftp://{}/file", hasty_server(content.clone()));
    let mut command = Command::new(strace);
    watched(&mut command, &trace);
    command.args(["-e", "trace=write", "-e", "inject=write:error=ENOSPC"]);
    // The rate limit makes the data arrive after the reply.
    command.args([PROGRAM, "get", &url, "--quiet", "--limit-rate", "8mbit", "-o"]).arg(&target);
    let output = ended(silent(&mut command));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(&target).unwrap() == content);
    assert!(fs::read_to_string(&trace).unwrap().contains("(INJECTED)"), "no thread was woken by a write");
}

#[test]
fn a_download_for_which_no_thread_is_left_fails_in_a_line() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let (place, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(served.path().join("file"), "bytes").unwrap();
    let server = Server::start(served.path());
    for (options, path) in [(&["get"][..], "file"), (&["get", "-r"], "")] {
        let mut command = Command::new(&strace);
        watched(&mut command, &place.path().join("trace"));
        // The first thread waits for signals.
        command
            .args(["-e", "trace=clone3", "-e", "inject=clone3:error=EAGAIN:when=2+", PROGRAM])
            .args(options);
        command.arg(format!("ftp://{}/{path}", server.address())).arg("-o").arg(place.path().join("got"));
        let output = ended(silent(&mut command));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {said}");
        assert!(
            said.starts_with("bufwise: preparing a transfer failed: ") && said.lines().count() == 1,
            "{said}"
        );
    }
}
