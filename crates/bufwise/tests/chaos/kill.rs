//! The daemon is killed at any instant. Connections then go on and end whole; `restore`, or the next daemon, restores
//! all settings.

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
    /// The daemon finds connections of another network namespace, and raises its maxima.
    Adoption,
    GivingBack,
    /// `restore`, or the next start, resets the settings left by another daemon that was killed.
    Clearing,
}

const DURING: [During; 5] =
    [During::Start, During::Reload, During::Adoption, During::GivingBack, During::Clearing];

/// Two configurations; a reload from one to the other changes rules, bounds of devices and budgets.
const CONFIGURATIONS: [&str; 2] = [
    "policy = \"abt,sobas\"\ngso-max-size = \"8KiB\"\n",
    "policy = \"fixed:80KiB\"\nmemory = \"64MiB\"\nreceive-memory = \"64MiB\"\n",
];

/// Durations of each part without a kill.
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
    /// Starts, reloads and stops a daemon once, to measure the durations.
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

    /// Ends the daemon by SIGTERM; it must end with status 0.
    fn stop(&mut self) {
        self.daemon.signal(Signal::SIGTERM);
        assert_eq!(self.daemon.wait().code(), Some(0), "{}", self.daemon.log());
    }

    /// Starts the daemon, and kills it at a random instant. Returns the transfer that began meanwhile, if any.
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

    /// Resets the settings left behind, by `restore` or by the next start.
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
