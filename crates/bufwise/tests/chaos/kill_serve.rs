//! `bufwise serve` is killed during uploads: at any instant, and at each call that changes the disk. Acknowledged
//! uploads are on the disk, no final name belongs to an incomplete file, and the next server resumes all others.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::seeded::{Random, steps};
use crate::uploads::{Server, Uploads, visible};

const CLIENTS: usize = 3;
/// Uploads of each client; a server that is not killed has time for all of them.
const UPLOADS: usize = 12;
/// The calls at which a killed server may leave something behind.
const CALLS: [&str; 7] = ["openat2", "write", "splice", "fsync", "renameat", "unlinkat", "fchmod"];

/// Runs uploads by some clients at once, until the server ends or all uploads are done.
fn uploads(server: &Server, random: &mut Random, during: impl FnOnce()) -> Vec<Uploads> {
    let address = server.address();
    let mut randoms: Vec<Random> = (0..CLIENTS).map(|_| random.fork()).collect();
    thread::scope(|scope| {
        let clients = randoms.iter_mut().enumerate().map(|(number, random)| {
            scope.spawn(move || {
                let mut uploads = Uploads::default();
                // The uploads end with the server.
                let _ended = uploads.go_on(address, &format!("client{number}-"), random, UPLOADS);
                uploads
            })
        });
        let clients: Vec<_> = clients.collect();
        during();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

pub(crate) fn check(all: &[Uploads], directory: &Path) {
    all.iter().for_each(|one| one.check(directory));
    let names: Vec<&str> = all.iter().flat_map(Uploads::names).collect();
    for name in visible(directory) {
        assert!(names.contains(&name.as_str()), "{name} was never uploaded");
    }
}

/// Asserts that the next server can replace every file, in spite of leftovers, and leaves nothing unfinished.
pub(crate) fn next_server(all: &[Uploads], directory: &Path) {
    let server = Server::start(directory);
    let mut client = server.client().unwrap();
    for name in all.iter().flat_map(Uploads::names) {
        client.store(name, b"after").unwrap();
        assert_eq!(std::fs::read(directory.join(name)).unwrap(), b"after");
    }
    let all = std::fs::read_dir(directory).unwrap().count();
    assert_eq!(all, visible(directory).len(), "something unfinished is left: {}", server.log());
}

#[test]
fn kill_serve_at_any_instant() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let began = Instant::now();
    let all = uploads(&server, &mut Random::of(0, 0), || {});
    assert_eq!(all.iter().map(|one| one.answered).sum::<usize>(), CLIENTS * UPLOADS, "{}", server.log());
    let whole = began.elapsed();
    drop(server);
    steps("kill_serve_at_any_instant", 5, |_, random| {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server::start(directory.path());
        let instant = random.instant(whole);
        let all = uploads(&server, random, || {
            thread::sleep(instant);
            server.kill();
        });
        server.wait();
        check(&all, directory.path());
        next_server(&all, directory.path());
    });
}

#[test]
fn kill_serve_at_each_call() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    steps("kill_serve_at_each_call", CALLS.len() as u32, |step, random| {
        let directory = tempfile::tempdir().unwrap();
        let call = CALLS[step as usize % CALLS.len()];
        let mut command = Command::new(&strace);
        let inject = format!("inject={call}:signal=KILL:when={}", 1 + random.below(40));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject]);
        command.arg(env!("CARGO_BIN_EXE_bufwise"));
        let Ok(mut server) = Server::launch(command, directory.path()) else { return };
        let all = uploads(&server, random, || {});
        server.kill();
        server.wait();
        check(&all, directory.path());
        next_server(&all, directory.path());
    });
}
