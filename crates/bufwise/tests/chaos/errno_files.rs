//! Failing calls of `serve` during uploads, and of `get -o`.

use std::fs;
use std::process::Command;

use crate::errno::{each_case, watched};
use crate::kill_serve::{check, next_server};
use crate::run::eventually;
use crate::scene::{PROGRAM, ended};
use crate::seeded::Random;
use crate::uploads::{Client, Server, Uploads};

/// Enough for each kind of call to come about more than once.
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
    each_case("errno_serve", 8, &trace, |case| {
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
            // A session may fail, and the next one as well: each of their threads meets the failure.
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
    each_case("errno_get", 10, &trace, |case| {
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
