//! Failing calls of `serve` during uploads, and of `get -o`.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use crate::errno::{Short, each_case, watched};
use crate::kill_serve::{check, next_server};
use crate::run::eventually;
use crate::scene::{PROGRAM, ended};
use crate::seeded::Random;
use crate::uploads::{Client, Server, Uploads};

/// Enough uploads to make each kind of call more than once.
const UPLOADS: usize = 4;

#[test]
fn errno_serve() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("trace");
    let mut command = Command::new(&strace);
    watched(&mut command, &trace);
    command.arg(PROGRAM);
    let served = tempfile::tempdir().unwrap();
    let mut server = Server::launch(command, served.path()).unwrap();
    Uploads::default().go_on(server.address(), "a", &mut Random::of(0, 0), UPLOADS).unwrap();
    server.kill();
    server.wait();
    each_case("errno_serve", Short { steps: 8, of_each_call: 1 }, &trace, |case| {
        let served = tempfile::tempdir().unwrap();
        let mut command = Command::new(&strace);
        case.traced(&mut command);
        command.arg(PROGRAM);
        let mut server = match Server::launch(command, served.path()) {
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
        assert!(server.is_running(), "{case}: the server has ended: {}", server.log());
        case.must_not_panic(&server.log());
        server.kill();
        server.wait();
        let all = [uploads];
        check(&all, served.path());
        next_server(&all, served.path());
    });
}

#[test]
fn errno_get() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let served = tempfile::tempdir().unwrap();
    let server = Server::start(served.path());
    let bytes: Vec<u8> = (0..500_000_u32).map(|at| (at.wrapping_mul(2_654_435_769) >> 24) as u8).collect();
    fs::write(served.path().join("file"), &bytes).unwrap();
    let url = format!("ftp://{}/file", server.address());
    let place = tempfile::tempdir().unwrap();
    let (trace, target) = (place.path().join("trace"), place.path().join("downloads/file"));
    let get = |command: &mut Command| {
        let _first = fs::remove_dir_all(target.parent().unwrap());
        fs::create_dir(target.parent().unwrap()).unwrap();
        command.args([PROGRAM, "get", &url, "--retries", "0", "-o"]).arg(&target);
        ended(crate::scene::silent(command))
    };
    let mut command = Command::new(&strace);
    watched(&mut command, &trace);
    assert!(get(&mut command).status.success());
    each_case("errno_get", Short { steps: 20, of_each_call: 4 }, &trace, |case| {
        let mut command = Command::new(&strace);
        case.traced(&mut command);
        let output = get(&mut command);
        let is_well = case.must_be_sound(&output, 0);
        let got = fs::read(&target).ok();
        assert!(
            got.as_ref() == Some(&bytes) || (!is_well && got.is_none()),
            "{case}: {:?} bytes",
            got.map(|got| got.len())
        );
        let mut again = Command::new("env");
        again.args([PROGRAM, "get", &url, "--retries", "0", "-o"]).arg(&target);
        assert!(ended(crate::scene::silent(&mut again)).status.success(), "{case}: the next download fails");
        assert!(fs::read(&target).unwrap() == bytes);
        assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1, "{case}: a part is left");
    });
    eventually("the server answers still", || Client::connect(server.address()).is_ok());
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
    let output = ended(crate::scene::silent(&mut command));
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
        let output = ended(crate::scene::silent(&mut command));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {said}");
        assert!(
            said.starts_with("bufwise: preparing a transfer failed: ") && said.lines().count() == 1,
            "{said}"
        );
    }
}
