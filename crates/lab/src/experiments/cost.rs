//! Measures the cost of the programs in the kernel: nanoseconds per call, as the kernel counts them.
//!
//! Problem: the kernel counts only while `kernel.bpf_stats_enabled` is set, for the whole machine, and the setting must
//! be restored in any case, also when bufwise is killed.
//!
//! So a shell sets and restores it. The shell waits on a pipe whose other end only bufwise holds, like the first
//! process of a laboratory host: when the pipe closes, the shell restores the value. The costs are in the `fdinfo` of
//! the programs' descriptors.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bufwise_link::QueueSize;
use bufwise_units::Nanos;
use serde_json::Value;

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// `BPF_PROG_TYPE_SOCK_OPS` of `linux/bpf.h`.
const SOCK_OPS: &str = "13";
/// The kernel's setting.
const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Script that counts, by the setting in the file `$1`, until its input ends; signals of a terminal do not end it. A setting that was
/// on already is not written back: another laboratory may have switched it on, and may end first.
const COUNT: &str = "trap '' INT TERM HUP; before=$(cat \"$1\") && echo 1 >\"$1\" && echo counting; cat >/dev/null; \
    [ \"$before\" = 1 ] || echo \"$before\" >\"$1\"";
/// Name of the method whose programs return at once when they are called.
const NOTHING: &str = "nothing";
/// Buffer maximum, larger than what the path holds, bytes.
const LARGE: u64 = 32 << 20;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        cost("cost-send", Way::Upload, ["abt", "sabt", "fit,kernel"], 350e-9),
        cost("cost-receive", Way::Download, ["drs", "sobas", "kernel,fit"], 200e-9),
        at_once(),
    ]
}

/// Measures what smaller buffers cost the sender that fills them. The policy changes nothing, so only the size differs.
fn at_once() -> Experiment {
    let sizes = [("64 KB", "device"), ("16 KB", "16KiB"), ("8 KB", "8KiB"), ("4 KB", "4KiB")];
    let method = |(name, size)| Method {
        name,
        client: Some("kernel"),
        at_once: Some(size),
        rmem: LARGE,
        wmem: LARGE,
        ..Method::default()
    };
    let case = |connections| Case {
        name: if connections == 1 {
            "one connection".to_owned()
        } else {
            format!("{connections} connections")
        },
        paths: vec![PathSpec { queue: Some(QueueSize::Bdp(1.0)), ..path(1_000, 10) }],
        flows: vec![Flow { connections, amount: Amount::Seconds(8, 5), ..Flow::default() }],
        memory: None,
        quick: connections == 1,
        setup: Setup::default(),
    };
    Experiment {
        id: "cost-at-once",
        source: "engine",
        question: "What does it cost a sender to fill smaller buffers (--gso-max-size), so that a small budget holds?",
        scale: "Processor time of iperf3, and of the kernel on its behalf; what acknowledgements trigger is the emulator's.",
        way: Way::Upload,
        cases: vec![case(1), case(20)],
        methods: sizes.map(method).to_vec(),
        quantities: vec![Quantity::SenderCpuPerGigabyteS, Quantity::GoodputBps, Quantity::HeldPeakBytes],
        targets: sizes[1..]
            .iter()
            .map(|(name, _)| Target::new(name, Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "64 KB")))
            .collect(),
        ..Experiment::default()
    }
}

fn cost(id: &'static str, way: Way, policies: [&'static str; 3], limit: f64) -> Experiment {
    let flow = Flow { connections: 4, amount: Amount::Seconds(8, 4), ..Flow::default() };
    let method = |name| Method { name, client: Some(name), rmem: LARGE, wmem: LARGE, ..Method::default() };
    let nothing = Method { name: NOTHING, only_called: true, ..method(policies[0]) };
    let question = match way {
        Way::Upload => "What does a callback cost the sender, once per round trip?",
        Way::Download => "What does a callback cost the receiver, about once per acknowledgement?",
    };
    let case = |name: &str, path, quick| Case {
        name: name.to_owned(),
        paths: vec![path],
        flows: vec![flow.clone()],
        memory: None,
        quick,
        setup: Setup::default(),
    };
    let wide_area = PathSpec { queue: Some(QueueSize::Time(Nanos::from_millis(10))), ..path(500, 2) };
    let local = PathSpec {
        rtt: Nanos::from_micros(200),
        queue: Some(QueueSize::Time(Nanos::from_millis(1))),
        ..path(1_000, 0)
    };
    Experiment {
        id,
        source: "engine",
        question,
        scale: "Four connections; all calls of the program count, also those that open connections. `nothing` returns at once.",
        counts_cost: true,
        survey: false,
        way,
        cases: vec![case("500 Mbit/s x 2 ms", wide_area, true), case("1 Gbit/s x 0.2 ms", local, false)],
        methods: [nothing].into_iter().chain(policies.map(method)).collect(),
        quantities: vec![Quantity::CallbackS, Quantity::Callbacks, Quantity::GoodputBps],
        targets: policies
            .map(|policy| Target::new(policy, Quantity::CallbackS, Bound::AtMost(limit)))
            .to_vec(),
    }
}

/// Returns the sender's processor seconds per 10^9 bytes, from iperf3's percentages in the `end` of the reports; all
/// flows go the same way.
pub(super) fn sender_cpu_per_gigabyte<'a>(
    way: Way,
    mut ends: impl Iterator<Item = Option<&'a Value>>,
) -> Option<f64> {
    let share = match way {
        Way::Upload => "/cpu_utilization_percent/host_total",
        Way::Download => "/cpu_utilization_percent/remote_total",
    };
    let (seconds, bytes) = ends.try_fold((0.0, 0.0), |(seconds, bytes), end| {
        let number = |pointer| end?.pointer(pointer)?.as_f64();
        let own = number(share)? / 1e2 * number("/sum_sent/seconds")?;
        Some((seconds + own, bytes + number("/sum_received/bytes")?))
    })?;
    (bytes > 0.0).then(|| seconds / (bytes / 1e9))
}

/// Keeps the kernel counting for as long as it lives.
pub(super) struct Counting {
    shell: Child,
}

impl Counting {
    pub(super) fn start() -> io::Result<Self> {
        Self::by(Path::new(SETTING))
    }

    /// Starts counting by the setting in a file.
    fn by(setting: &Path) -> io::Result<Self> {
        let mut script = Command::new("sh");
        script.args(["-c", COUNT, "sh"]).arg(setting);
        let mut shell = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut word = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut word)?;
        }
        let counting = Self { shell };
        if word.trim() == "counting" { Ok(counting) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _put_back = self.shell.wait();
    }
}

/// Total cost of the programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) calls: f64,
}

impl Cost {
    /// Reads the `fdinfo` of descriptors, one after the other; `None` if no program was called.
    pub(super) fn parse(fdinfo: &str) -> Option<Self> {
        let mut cost = Self { seconds: 0.0, calls: 0.0 };
        let mut ours = false;
        for (key, value) in fdinfo.lines().filter_map(|line| line.split_once(':')) {
            let number = || value.trim().parse().unwrap_or(0.0);
            match key {
                "pos" => ours = false,
                "prog_type" => ours = value.trim() == SOCK_OPS,
                "run_time_ns" if ours => cost.seconds += number() / 1e9,
                "run_cnt" if ours => cost.calls += number(),
                _ => {}
            }
        }
        (cost.calls > 0.0).then_some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_senders_by_what_arrived_of_all_flows() {
        let end = |host: f64, bytes: u64| {
            serde_json::json!({
                "sum_sent": {"seconds": 5.0}, "sum_received": {"bytes": bytes},
                "cpu_utilization_percent": {"host_total": host, "remote_total": 80.0},
            })
        };
        let (one, other) = (end(10.0, 500_000_000), end(30.0, 1_500_000_000));
        let of = |way, ends: &[Option<&Value>]| sender_cpu_per_gigabyte(way, ends.iter().copied());
        // Half a second and one and a half, for two gigabytes in all.
        assert_eq!(of(Way::Upload, &[Some(&one), Some(&other)]), Some(1.0));
        assert_eq!(of(Way::Download, &[Some(&one)]), Some(8.0));
        assert_eq!(of(Way::Upload, &[Some(&one), None]), None, "a flow without a report");
        assert_eq!(of(Way::Upload, &[Some(&end(10.0, 0))]), None);
    }

    #[test]
    fn the_setting_is_as_before_when_the_last_of_two_laboratories_ends() {
        let directory = tempfile::tempdir().unwrap();
        let setting = directory.path().join("enabled");
        let now = || std::fs::read_to_string(&setting).unwrap();
        for before in ["0\n", "1\n"] {
            for first_ends_first in [true, false] {
                std::fs::write(&setting, before).unwrap();
                let [first, second] = [(); 2].map(|()| Counting::by(&setting).unwrap());
                assert_eq!(now(), "1\n");
                let (one, other) = if first_ends_first { (first, second) } else { (second, first) };
                drop(one);
                drop(other);
                assert_eq!(now(), before);
            }
        }
    }

    #[test]
    fn only_programs_of_ours_count() {
        let fdinfo = "pos:\t0\nflags:\t02\npos:\t0\nprog_type:\t13\nrun_time_ns:\t600\nrun_cnt:\t2\n\
            pos:\t0\nprog_type:\t8\nrun_time_ns:\t9000\nrun_cnt:\t1\n";
        assert_eq!(Cost::parse(fdinfo), Some(Cost { seconds: 600e-9, calls: 2.0 }));
        assert_eq!(Cost::parse("pos:\t0\nprog_type:\t13\nrun_time_ns:\t0\nrun_cnt:\t0\n"), None);
        assert_eq!(Cost::parse(""), None);
    }
}
