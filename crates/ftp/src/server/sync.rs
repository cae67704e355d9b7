//! Locks of the state that all sessions share: the standard ones, or with the feature `shuttle` those of shuttle, which runs threads
//! in thousands of orders (`scripts/sanitize threads`) and prints one that fails.
//!
//! Sums are not among these tests: threads that wait for their turn sleep in poll(2), which no scheduler but the kernel's sees.
//! Their line is changed in one critical section for each event, and tested as a sequence of events.

#[cfg(feature = "shuttle")]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Orders that a test tries.
#[cfg(all(test, feature = "shuttle"))]
pub(super) const ORDERS: usize = 5_000;

/// Runs `work` on as many threads, numbered, and waits for them all.
#[cfg(all(test, feature = "shuttle"))]
pub(super) fn threads(count: u16, work: impl Fn(u16) + Send + Sync + 'static) {
    let work = std::sync::Arc::new(work);
    let start = |number| {
        let work = std::sync::Arc::clone(&work);
        shuttle::thread::spawn(move || work(number))
    };
    let started: Vec<_> = (0..count).map(start).collect();
    started.into_iter().for_each(|thread| thread.join().unwrap());
}
