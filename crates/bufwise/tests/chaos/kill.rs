//! The daemon is killed at any instant of what it does. Afterwards connections go on and end whole; `restore`, or the next
//! daemon, puts everything back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::place::Daemon;
use crate::run::{eventually, root};
use crate::scene::Scene;
use crate::seeded::{Random, steps};
use crate::stream::Stream;

#[derive(Clone, Copy, Debug)]
enum During {
    Start,
    Reload,
    /// Connections of another network namespace are found; its maxima are raised.
    Adoption,
    GivingBack,
    /// What another daemon has left, which was killed, is put back by `restore` or by the next start.
    Clearing,
}

const DURING: [During; 5] =
    [During::Start, During::Reload, During::Adoption, During::GivingBack, During::Clearing];

/// A reload from one to the other changes rules, bounds of devices and budgets.
const CONFIGURATIONS: [&str; 2] = [
    "policy = \"abt,sobas\"\ngso-max-size = \"8KiB\"\n",
    "policy = \"fixed:80KiB\"\nmemory = \"64MiB\"\nreceive-memory = \"64MiB\"\n",
];

/// How long each part takes when it is left alone.
struct Durations {
    start: Duration,
    reload: Duration,
    adoption: Duration,
    giving_back: Duration,
    restore: Duration,
}

struct Victim {
    scene: Scene,
    daemon: Daemon,
    config: PathBuf,
}

impl Victim {
    /// A daemon that has been started, reloaded and stopped once, and how long that took.
    fn new() -> (Self, Durations) {
        let scene = Scene::new();
        let config = scene.directory.path().join("bufwise.toml");
        fs::write(&config, CONFIGURATIONS[0]).unwrap();
        let began = Instant::now();
        let daemon = Daemon::ready(&scene.net, &arguments(&scene, &config).each_ref().map(String::as_str));
        let start = began.elapsed();
        let mut victim = Self { scene, daemon, config };
        let began = Instant::now();
        victim.reload(1);
        victim.daemon.hears("READY=1");
        let reload = began.elapsed();
        let stranger = victim.scene.stream_in(&victim.scene.other, "the stranger");
        let began = Instant::now();
        eventually("the maxima are raised", || victim.scene.other.rmem().ends_with(" 67108864"));
        let adoption = began.elapsed();
        stranger.finish();
        let began = Instant::now();
        victim.stop();
        let giving_back = began.elapsed();
        let began = Instant::now();
        victim.scene.restore();
        (victim, Durations { start, reload, adoption, giving_back, restore: began.elapsed() })
    }

    fn start(&mut self) {
        self.daemon.start_again(
            &self.scene.net,
            &arguments(&self.scene, &self.config).each_ref().map(String::as_str),
        );
    }

    fn reload(&self, configuration: usize) {
        fs::write(&self.config, CONFIGURATIONS[configuration]).unwrap();
        self.daemon.signal(Signal::SIGHUP);
    }

    /// Asks the daemon to end, which must be well.
    fn stop(&mut self) {
        self.daemon.signal(Signal::SIGTERM);
        assert_eq!(self.daemon.wait().code(), Some(0), "{}", self.daemon.log());
    }

    /// Starts it, and kills it at an instant of what it does. The transfer that began meanwhile, if one did.
    fn kill(&mut self, during: During, durations: &Durations, random: &mut Random) -> Option<Stream> {
        let first = usize::try_from(random.below(2)).unwrap();
        fs::write(&self.config, CONFIGURATIONS[first]).unwrap();
        self.start();
        if !matches!(during, During::Start) {
            self.daemon.hears("READY=1");
        }
        let (whole, begun) = match during {
            During::Start => (durations.start, None),
            During::Reload => {
                self.reload(1 - first);
                (durations.reload, None)
            }
            During::Adoption => {
                let stranger = self.scene.stream_in(&self.scene.other, "the stranger");
                (durations.adoption, Some(stranger))
            }
            During::GivingBack => {
                self.daemon.signal(Signal::SIGTERM);
                (durations.giving_back, None)
            }
            During::Clearing => {
                self.daemon.signal(Signal::SIGKILL);
                self.daemon.wait();
                if random.below(2) == 0 {
                    kill_after(self.scene.restoring(), random.instant(durations.restore));
                    return None;
                }
                self.start();
                (durations.start, None)
            }
        };
        thread::sleep(random.instant(whole));
        self.daemon.signal(Signal::SIGKILL);
        self.daemon.wait();
        begun
    }

    /// The next start, or `restore`: what was left is put back.
    fn clear(&mut self, by_restore: bool) {
        if by_restore {
            self.scene.restore();
            return;
        }
        self.start();
        self.daemon.hears("READY=1");
        self.stop();
        let log = self.daemon.log();
        assert!(!log.contains("error") && !log.contains("cannot"), "{log}");
    }
}

fn kill_after(mut child: Child, instant: Duration) {
    thread::sleep(instant);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn arguments(scene: &Scene, config: &Path) -> [String; 4] {
    ["--cgroup", &scene.group.path(), "--config", config.to_str().unwrap()].map(str::to_owned)
}

#[test]
fn root_kill_daemon() {
    let Some(_alone) = root() else { return };
    let (mut victim, durations) = Victim::new();
    victim.scene.must_be_as_before();
    let oldest = victim.scene.stream("the oldest transfer");
    steps("kill_daemon", 5, |step, random| {
        let during = DURING[step as usize % DURING.len()];
        let older = victim.scene.stream("the older transfer");
        let begun = victim.kill(during, &durations, random);
        let all = [Some(&oldest), Some(&older), begun.as_ref()];
        all.iter().flatten().for_each(|stream| stream.moves());
        victim.clear(random.below(2) == 0);
        victim.scene.must_be_as_before();
        for stream in all.into_iter().flatten() {
            stream.must_be_free();
            stream.moves();
        }
        older.finish();
        begun.into_iter().for_each(Stream::finish);
    });
    oldest.finish();
}
