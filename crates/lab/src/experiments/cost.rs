//! Cost of the programs in the kernel: nanoseconds per call, as the kernel counts them.
//!
//! Problem: the kernel counts only while `kernel.bpf_stats_enabled` is set, for the whole machine, and it must be put
//! back on every way out, also when bufwise is killed.
//!
//! So a shell does it that waits on a pipe whose other end only bufwise holds, as a laboratory host's first process
//! does: when the pipe closes, it puts the value back. The figures stand in the `fdinfo` of the programs' descriptors.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use bufwise_link::QueueSize;
use bufwise_units::Nanos;

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// `BPF_PROG_TYPE_SOCK_OPS` of `linux/bpf.h`.
const SOCK_OPS: &str = "13";
/// Counts until its input ends; signals of a terminal do not reach it.
const COUNT: &str = "trap '' INT TERM HUP; setting=/proc/sys/kernel/bpf_stats_enabled; \
    before=$(cat $setting) && echo 1 >$setting && echo counting; cat >/dev/null; echo $before >$setting";
/// Called, and returns at once.
const NOTHING: &str = "nothing";
/// More than the path holds, bytes.
const LARGE: u64 = 32 << 20;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        cost("cost-send", Way::Upload, ["abt", "sabt", "fit,kernel"], 350e-9),
        cost("cost-receive", Way::Download, ["drs", "sobas", "kernel,fit"], 200e-9),
    ]
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
        scale: "Four connections; all calls of the program, those that open connections too. `nothing` is called and returns.",
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

/// The kernel counts while this lives.
pub(super) struct Counting {
    shell: Child,
}

impl Counting {
    pub(super) fn start() -> io::Result<Self> {
        let mut shell =
            Command::new("sh").args(["-c", COUNT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
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
    /// From descriptors' `fdinfo`, one after the other; `None` if no program was called.
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
    fn only_programs_of_ours_count() {
        let fdinfo = "pos:\t0\nflags:\t02\npos:\t0\nprog_type:\t13\nrun_time_ns:\t600\nrun_cnt:\t2\n\
            pos:\t0\nprog_type:\t8\nrun_time_ns:\t9000\nrun_cnt:\t1\n";
        assert_eq!(Cost::parse(fdinfo), Some(Cost { seconds: 600e-9, calls: 2.0 }));
        assert_eq!(Cost::parse("pos:\t0\nprog_type:\t13\nrun_time_ns:\t0\nrun_cnt:\t0\n"), None);
        assert_eq!(Cost::parse(""), None);
    }
}
