//! Plan of the demo: its paths, its methods, and the programs of each.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bufwise_link::QueueSize;
use bufwise_units::{BitRate, Nanos};

use crate::commands::{ClientOutput, Programs};
use crate::congestion;
use crate::experiments::quoted;
use crate::spec::{DEFAULT_MTU, PathSpec};
use crate::testbed::goodput_ceiling;

const RATE: BitRate = BitRate(100_000_000);
/// Kernel limits in both hosts, in bytes, too large to have an effect.
const LARGE_BUFFERS: u64 = 32 << 20;
/// Duration of a transfer: CUBIC fills a third of the deep queue on the mean of that time, and five rounds fit into 55 s.
const TIME: Duration = Duration::from_secs(7);
const QUICK_TIME: Duration = Duration::from_secs(6);
/// Extra time that the programs have, to start, and to empty a queue at the end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Command that runs what follows without any privilege, as another user.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --";
/// This program, by a descriptor: the other user may not be able to reach it by its path.
const BY_DESCRIPTOR: &str = "/proc/self/fd/9";

/// The sender and the receiver of a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name in the table and in the picture.
    pub name: &'static str,
    congestion_control: &'static str,
    /// More options of the sender's iperf3.
    iperf3: &'static str,
    /// Options of `bufwise run` around the sender; `None`: the sender is not tuned.
    sender: Option<&'static str>,
    /// The same for the receiver.
    receiver: Option<&'static str>,
    /// Whether the sender and its `bufwise run` run as an ordinary user.
    as_nobody: bool,
}

pub(super) const CUBIC: Method = Method {
    name: "kernel, CUBIC",
    congestion_control: "cubic",
    iperf3: "",
    sender: None,
    receiver: None,
    as_nobody: false,
};
/// Buffers as in the papers' time at both ends (Feng 2002, section 5.3).
pub(super) const SMALL: Method = Method { name: "64 KB buffers", iperf3: " -w 64K", ..CUBIC };
pub(super) const BBR: Method = Method { name: "kernel, BBR", congestion_control: "bbr", ..CUBIC };
pub(super) const SENDER: Method =
    Method { name: "fit at the sender", sender: Some("--policy fit,kernel"), ..CUBIC };
pub(super) const RECEIVER: Method =
    Method { name: "fit at the receiver", receiver: Some("--policy kernel,fit"), ..CUBIC };
pub(super) const NO_ROOT: Method = Method {
    name: "fit, no root",
    sender: Some("--engine user --policy fit,kernel"),
    as_nobody: true,
    ..CUBIC
};

impl Method {
    /// Whether this kernel has the congestion control, and this machine can run programs as an ordinary user if that is needed.
    fn is_possible(&self) -> bool {
        congestion::loads(self.congestion_control) && (!self.as_nobody || runs_as_nobody())
    }

    /// Returns the commands: the receiver on host B and the sender on host A. `bufwise` is this program's file; the
    /// sender's messages go into the file `errors`.
    pub(super) fn programs(&self, bufwise: &Path, time: Duration, errors: &Path) -> Programs {
        let Self { congestion_control, iperf3, .. } = self;
        let (bufwise, errors) = (quoted(bufwise), quoted(errors));
        let around = |program: &str, options: Option<&str>| {
            options.map(|options| format!("{program} run {options} -- ")).unwrap_or_default()
        };
        let (open, sender) = if self.as_nobody {
            (format!("exec 9<{bufwise}; "), around(&format!("{AS_NOBODY} {BY_DESCRIPTOR}"), self.sender))
        } else {
            (String::new(), around(&bufwise, self.sender))
        };
        let seconds = time.as_secs();
        Programs {
            server: Some(format!("{}iperf3 -s -1", around(&bufwise, self.receiver)).into()),
            listeners: 1,
            client: format!(
                "{open}{sender}iperf3 -c 198.18.0.2 -t {seconds} -C {congestion_control}{iperf3} -J 2>{errors}"
            )
            .into(),
            elsewhere: Vec::new(),
            timeout: time + PATIENCE,
            output: ClientOutput::Kept,
        }
    }
}

/// Whether setpriv(1) can run a program without any privilege; minimal systems lack it, or these options of it.
fn runs_as_nobody() -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{AS_NOBODY} true")]).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// One of the two paths.
#[derive(Clone, Debug)]
pub struct DemoPath {
    /// Short name.
    pub name: &'static str,
    /// The property that the path shows.
    pub about: &'static str,
    /// The path.
    pub spec: PathSpec,
}

impl DemoPath {
    /// Returns the most payload that this path carries, bit/s.
    #[must_use]
    pub fn ceiling(&self) -> f64 {
        goodput_ceiling(self.spec.rate.unwrap_or(RATE), self.spec.mtu)
    }
}

/// The paths and methods that the demo runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The paths; each method runs over all of them.
    pub paths: Vec<DemoPath>,
    /// The methods; those of one round run at the same time, and at most one of them fills its paths.
    pub rounds: Vec<Vec<Method>>,
    /// Time for which each method sends.
    pub time: Duration,
}

impl Plan {
    /// Returns the whole demo, under a minute.
    #[must_use]
    pub fn whole() -> Self {
        let rounds = vec![vec![SMALL, CUBIC], vec![BBR], vec![SENDER], vec![RECEIVER], vec![NO_ROOT]];
        Self { paths: paths(), rounds, time: TIME }
    }

    /// Returns a shorter demo, under 25 seconds.
    #[must_use]
    pub fn quick() -> Self {
        let rounds = vec![vec![SMALL, CUBIC], vec![SENDER], vec![RECEIVER]];
        Self { paths: paths(), rounds, time: QUICK_TIME }
    }

    /// Returns the rounds without the methods that this machine cannot run.
    pub(super) fn possible(&self) -> Vec<Vec<Method>> {
        let possible = |round: &Vec<Method>| -> Vec<Method> {
            round.iter().copied().filter(Method::is_possible).collect()
        };
        self.rounds.iter().map(possible).filter(|round| !round.is_empty()).collect()
    }
}

fn paths() -> Vec<DemoPath> {
    let path = |rtt_ms, queue| PathSpec {
        rate: Some(RATE),
        rtt: Nanos::from_millis(rtt_ms),
        queue: Some(queue),
        mtu: DEFAULT_MTU,
        rmem: Some(LARGE_BUFFERS),
        wmem: Some(LARGE_BUFFERS),
        // A connection that starts under a BBR default stays paced under another congestion control.
        congestion_control: Some(CUBIC.congestion_control.to_owned()),
        ..PathSpec::default()
    };
    vec![
        DemoPath {
            name: "shallow queue",
            about: "100 Mbit/s, 40 ms, queue of an eighth of the bandwidth-delay product (5 ms)",
            spec: path(40, QueueSize::Bdp(0.125)),
        },
        DemoPath {
            name: "deep queue",
            about: "100 Mbit/s, 50 ms, queue of 480 ms",
            spec: path(50, QueueSize::Time(Nanos::from_millis(480))),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn commands(method: Method) -> (String, String) {
        let programs = method.programs(Path::new("/bin/bufwise"), TIME, Path::new("/tmp/errors"));
        let text = |command: OsString| command.into_string().unwrap();
        (text(programs.server.unwrap()), text(programs.client))
    }

    #[test]
    fn the_whole_demo_ends_within_a_minute() {
        // Hosts and programs begin, and queues empty, before and after the transfers of a round.
        let around = Duration::from_secs(4);
        let takes = |plan: &Plan| (plan.time + around) * plan.rounds.len() as u32;
        assert!(takes(&Plan::whole()) <= Duration::from_secs(55));
        assert!(takes(&Plan::quick()) <= Duration::from_secs(30));
    }

    #[test]
    fn one_end_is_tuned_and_the_other_plain() {
        let (server, client) = commands(SENDER);
        assert_eq!(server, "iperf3 -s -1");
        let iperf3 = "iperf3 -c 198.18.0.2 -t 7 -C cubic -J 2>'/tmp/errors'";
        assert_eq!(client, format!("'/bin/bufwise' run --policy fit,kernel -- {iperf3}"));
        let (server, client) = commands(RECEIVER);
        assert_eq!(server, "'/bin/bufwise' run --policy kernel,fit -- iperf3 -s -1");
        assert_eq!(client, iperf3);
        assert!(commands(BBR).1.contains("-C bbr"));
    }

    #[test]
    fn an_ordinary_user_needs_no_way_to_the_program() {
        let (_, client) = commands(NO_ROOT);
        assert!(client.starts_with("exec 9<'/bin/bufwise'; setpriv --reuid=65534 "), "{client}");
        assert!(
            client.contains(" /proc/self/fd/9 run --engine user --policy fit,kernel -- iperf3 "),
            "{client}"
        );
    }
}
