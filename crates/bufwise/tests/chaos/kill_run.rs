//! `bufwise run` is killed at any instant. Its command goes on, the transfer ends whole, and the next `restore` leaves
//! nothing behind. The engine in user space changes only the sizes of the command's own sockets.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{eventually, root};
use crate::scene::{BOUND, PROGRAM, Scene};
use crate::seeded::steps;
use crate::stream::{Stream, accepted};

/// Time within which a started command connects.
const SOON: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum Engine {
    Kernel,
    User,
}

#[derive(Clone, Copy)]
enum During {
    /// From the start until the command has connected.
    Start,
    Transfer,
    /// From the command's end to the report.
    End,
}

fn start(scene: &Scene, engine: Engine, script: &str) -> Child {
    let words = ["--policy", "abt,sobas", "--", "bash", "-c", script];
    let mut command = match engine {
        Engine::Kernel => {
            let mut command = scene.net.command(PROGRAM);
            command.args(["run", "--engine", "kernel", "--gso-max-size", "8KiB"]);
            command
        }
        Engine::User => unprivileged(scene),
    };
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The unprivileged user may not reach the program's path, so it is started through a descriptor that is already open.
fn unprivileged(scene: &Scene) -> Command {
    let mut command = scene.net.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
    command.args(["/proc/self/fd/0", "run", "--engine", "user"]).stdin(File::open(PROGRAM).unwrap());
    command
}

/// Durations of the start and of the end without a kill.
fn durations(scene: &Scene, engine: Engine) -> (Duration, Duration) {
    let listener = Stream::listener(&scene.net);
    let began = Instant::now();
    let child = start(scene, engine, &Stream::script(&listener, scene.directory.path()));
    let stream = Stream::accept(&listener, child, "the command's transfer");
    let connected = began.elapsed();
    stream.moves();
    let began = Instant::now();
    stream.finish();
    (connected, began.elapsed())
}

fn kill_at_any_instant(name: &'static str, engine: Engine) {
    let scene = Scene::new();
    fs::set_permissions(scene.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let (connected, ended) = durations(&scene, engine);
    scene.must_be_as_before();
    steps(name, 3, |step, random| {
        let during = [During::Start, During::Transfer, During::End][step as usize % 3];
        let listener = Stream::listener(&scene.net);
        let mut child = start(&scene, engine, &Stream::script(&listener, scene.directory.path()));
        let stream = match during {
            During::Start => {
                thread::sleep(random.instant(connected));
                child.kill().unwrap();
                // `None` if the command was not started yet.
                accepted(&listener, SOON)
            }
            During::Transfer | During::End => accepted(&listener, connected + BOUND),
        };
        // A command that was started and connects later is refused, and ends.
        drop(listener);
        let stream = stream.map(|server| Stream::of(server, None, "the command's transfer"));
        assert!(stream.is_some() || matches!(during, During::Start), "the command does not connect");
        match during {
            During::Start => {}
            During::Transfer => thread::sleep(random.instant(Duration::from_millis(500))),
            During::End => {
                stream.iter().for_each(Stream::moves);
                stream.into_iter().for_each(Stream::finish);
                thread::sleep(random.instant(ended));
                child.kill().unwrap();
                child.wait().unwrap();
                return after(&scene);
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(stream) = stream {
            stream.moves();
            scene.restore();
            stream.moves();
            if matches!(engine, Engine::Kernel) {
                stream.must_be_free();
            }
            stream.finish();
        }
        after(&scene);
    });
}

/// Waits for the command's end, after which nothing may be left.
fn after(scene: &Scene) {
    eventually("the command's processes end", || scene.commands().is_empty());
    scene.restore();
    scene.must_be_as_before();
}

#[test]
fn root_kill_run_with_the_engine_in_the_kernel() {
    let Some(_alone) = root() else { return };
    kill_at_any_instant("kill_run_with_the_engine_in_the_kernel", Engine::Kernel);
}

#[test]
fn root_kill_run_with_the_engine_in_user_space() {
    let Some(_alone) = root() else { return };
    kill_at_any_instant("kill_run_with_the_engine_in_user_space", Engine::User);
}
