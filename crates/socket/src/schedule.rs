//! Precise wake-ups for a thread that keeps real time: the emulated link.
//!
//! Problem: an ordinary thread's timers are late by up to its timer slack (50 us by default). On a busy machine the
//! thread also waits for its turn on the processor. A processor that went to sleep takes tens of microseconds, in a
//! virtual machine sometimes milliseconds, to wake up.
//! Source: prctl(2) `PR_SET_TIMERSLACK`, sched(7) `SCHED_FIFO` and `SCHED_IDLE`, Linux `Documentation/power/pm_qos_interface.rst`.
//! Properties kept: scheduling changes only for the calling thread and ends with it; processors sleep again
//! as soon as the guard is dropped or the process ends, however it ends.

#![expect(unsafe_code, reason = "no library in use wraps sched_setscheduler")]

use std::fs::{self, File, OpenOptions};
use std::hint;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Sets the calling thread's timer slack to 1 ns and its scheduling to `SCHED_FIFO` at `priority` (1 to 99).
///
/// Returns whether the priority was granted. If not, the thread keeps its scheduling, with exact timers. A thread
/// that calls this must sleep regularly; otherwise it starves its processor.
pub fn precise(priority: i32) -> bool {
    let _slack_is_best_effort = nix::sys::prctl::set_timerslack(1);
    schedule(libc::SCHED_FIFO, priority)
}

/// Keeps the processors from sleeping deeper than a poll while it lives: wake-ups are prompt, but idle time costs as
/// much power as work.
#[derive(Debug)]
pub struct CpuLatencyRequest {
    /// The kernel drops the request when this file is closed.
    _request: File,
    _busy: Option<Busy>,
}

impl CpuLatencyRequest {
    /// Requests a wake-up latency of 0 us from the kernel. If the kernel does not control how its processors sleep, one
    /// thread for each of them takes the time that no other thread of this cgroup wants; other cgroups may then have less.
    ///
    /// Virtual machines often have no such control: each sleep gives the processor back to the host, which may take
    /// milliseconds to return it.
    ///
    /// # Errors
    /// The kernel's answer: no such device, or no permission (root is needed).
    pub fn ask() -> io::Result<Self> {
        let mut request = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        request.write_all(&0_i32.to_ne_bytes())?;
        let control = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver");
        let controlled = control.is_ok_and(|driver| driver.trim() != "none");
        Ok(Self { _request: request, _busy: (!controlled).then(Busy::start) })
    }
}

/// Threads that keep this process's processors busy, until it is dropped. Every other thread of its cgroup goes before them.
///
/// `SCHED_IDLE` orders threads of the same cgroup only. Where the kernel divides processor time between cgroups (controller `cpu`, as
/// in containers, services and sessions of users), these threads use up the share of this one, also while other cgroups want the
/// time. A thread cannot change that: the share (`cpu.weight`, `cpu.idle`) is the administrator's, and holds for the measured
/// programs as well.
#[derive(Debug)]
struct Busy {
    over: Arc<AtomicBool>,
}

impl Busy {
    /// Starts one thread for each processor that the process may use. It starts none if the process may use only a
    /// share of them (a cgroup's limit): the threads would use up that share.
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let processors: Vec<usize> =
            (0..CpuSet::count()).filter(|at| allowed.is_set(*at) == Ok(true)).collect();
        if thread::available_parallelism().is_ok_and(|share| share.get() >= processors.len()) {
            for processor in processors {
                let over = Arc::clone(&over);
                let name = format!("awake-{processor}");
                // Without the thread, wake-ups on this processor may be late, which shows as stalls.
                let _best_effort =
                    thread::Builder::new().name(name).spawn(move || stay_busy(processor, &over));
            }
        }
        Self { over }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Without waiting: on a busy processor it takes long until such a thread runs.
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Spins on `processor` until `over`, behind all other threads. Does nothing if the kernel refuses either.
fn stay_busy(processor: usize, over: &AtomicBool) {
    let mut only = CpuSet::new();
    let this = Pid::from_raw(0);
    if only.set(processor).and_then(|()| sched_setaffinity(this, &only)).is_err()
        || !schedule(libc::SCHED_IDLE, 0)
    {
        return;
    }
    while !over.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
}

/// Sets the scheduling of the calling thread; returns whether the kernel granted it.
fn schedule(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler reads one `sched_param`, which outlives the call; pid 0 is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Returns the names of this process's threads that keep processors busy, with their scheduling policies.
    fn busy_threads() -> Vec<(String, String)> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let found = tasks.filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            // proc(5): field 41 is the policy; the name, field 2, ends with the last parenthesis.
            let policy = stat.rsplit_once(") ")?.1.split(' ').nth(38)?.to_owned();
            name.starts_with("awake-").then(|| (name.trim().to_owned(), policy))
        });
        found.collect()
    }

    fn until(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", busy_threads());
            thread::yield_now();
        }
    }

    #[test]
    fn processors_are_kept_busy_behind_all_other_threads_and_until_the_end() {
        let busy = Busy::start();
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let processors = (0..CpuSet::count()).filter(|at| allowed.is_set(*at) == Ok(true)).count();
        // There are none where the process may use only a share of its processors.
        let is_whole = thread::available_parallelism().unwrap().get() >= processors;
        let all = if is_whole { processors } else { 0 };
        // SCHED_IDLE is 5.
        until(|| {
            let threads = busy_threads();
            threads.len() == all && threads.iter().all(|(_, policy)| policy == "5")
        });
        drop(busy);
        until(|| busy_threads().is_empty());
    }
}
