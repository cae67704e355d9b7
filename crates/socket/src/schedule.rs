//! Precise wake-ups for a thread that keeps real time: the emulated link.
//!
//! Problem: an ordinary thread's timers are late by up to its timer slack (50 us by default). On a busy machine the
//! thread also waits for its turn on the processor. A processor that went to sleep takes tens of microseconds, in a
//! virtual machine sometimes milliseconds, to wake up.
//! Source: prctl(2) `PR_SET_TIMERSLACK`, sched(7) `SCHED_FIFO`, Linux `Documentation/power/pm_qos_interface.rst`.
//! Properties kept: scheduling changes only for the calling thread and ends with it; processors sleep again
//! as soon as the guard is dropped or the process ends, however it ends.

#![expect(unsafe_code, reason = "no library in use wraps sched_setscheduler")]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// Sets the calling thread's timer slack to 1 ns and its scheduling to `SCHED_FIFO` at `priority` (1 to 99).
///
/// Returns whether the priority was granted. If not, the thread keeps its scheduling, with exact timers. A thread
/// that calls this must sleep regularly; otherwise it starves its processor.
pub fn precise(priority: i32) -> bool {
    let _slack_is_best_effort = nix::sys::prctl::set_timerslack(1);
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler reads one `sched_param`, which outlives the call; pid 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Keeps the processors from sleeping deeper than a poll while it lives: wake-ups are prompt, but idle time costs as
/// much power as work.
#[derive(Debug)]
pub struct Wakeful {
    /// The kernel drops the request when this file is closed.
    _request: File,
}

impl Wakeful {
    /// Requests a wake-up latency of 0 us from the kernel.
    ///
    /// # Errors
    /// The kernel's answer: no such device, or no permission (root is needed).
    pub fn ask() -> io::Result<Self> {
        let mut request = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        request.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: request })
    }
}
