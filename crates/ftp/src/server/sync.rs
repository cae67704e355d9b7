//! Locks and threads of the state that sessions share: the standard ones, or with the feature `shuttle` those of shuttle, which
//! runs threads in thousands of orders (`make test`, `scripts/sanitize threads`) and prints one that fails.
//!
//! shuttle sees neither poll(2) nor files. Threads that wait in poll(2), or work on shared files, therefore call
//! [`wait_for`] and [`moment`], at which shuttle may run another thread.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use bufwise_mover::Cancel;
use bufwise_mover::wake::Bell;
use nix::poll::PollFlags;

#[cfg(feature = "shuttle")]
pub(super) use shuttle::{
    sync::atomic::AtomicBool,
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(feature = "shuttle"))]
pub(super) use std::{
    sync::atomic::AtomicBool,
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

/// Waits until `bell` is rung, `cancel` is used or `deadline` has come; says whether the bell was rung.
///
/// # Errors
/// The system's error.
#[cfg(not(feature = "shuttle"))]
pub(super) fn wait_for(bell: &Bell, cancel: &Cancel, deadline: Instant) -> io::Result<bool> {
    cancel.wait(bell.as_fd(), PollFlags::POLLIN, deadline)
}

/// The same without a deadline: if the bell is never rung, the test fails by its number of steps.
#[cfg(feature = "shuttle")]
pub(super) fn wait_for(bell: &Bell, cancel: &Cancel, _deadline: Instant) -> io::Result<bool> {
    loop {
        let rung = cancel.wait(bell.as_fd(), PollFlags::POLLIN, Instant::now())?;
        if rung || cancel.is_cancelled() {
            return Ok(rung);
        }
        thread::yield_now();
    }
}

/// Marks a point between two system calls on files at which other sessions may change them.
pub(super) fn moment() {
    #[cfg(feature = "shuttle")]
    thread::yield_now();
}

/// Orders that a test tries.
#[cfg(test)]
#[cfg(feature = "shuttle")]
pub(super) const ORDERS: usize = 5_000;

/// Runs `work` on as many threads, numbered, and waits for them all.
#[cfg(test)]
#[cfg(feature = "shuttle")]
pub(super) fn threads(count: u16, work: impl Fn(u16) + Send + Sync + 'static) {
    let work = std::sync::Arc::new(work);
    let start = |number| {
        let work = std::sync::Arc::clone(&work);
        thread::spawn(move || work(number))
    };
    let started: Vec<_> = (0..count).map(start).collect();
    started.into_iter().for_each(|thread| thread.join().unwrap());
}
