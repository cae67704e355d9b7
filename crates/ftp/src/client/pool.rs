//! Several files in flight, each over a session of its own.
//!
//! Rule: all workers but the first open their sessions before they take an item, and end if they cannot: many servers allow
//! few sessions of one address.
//! Properties kept: every item is worked on at most once; results come to the caller's thread one at a time; after a
//! cancellation no item is begun.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::worker::Worker;

/// Works on `items` with all `workers` at once, as far as threads can be started and sessions be opened; calls `each` with the
/// result of every item as it comes. Items that a cancellation left out have no result.
///
/// # Errors
/// The system's error, if it can start no thread at all.
pub fn in_parallel<T: Sync, R: Send>(
    workers: Vec<Worker>,
    items: &[T],
    work: impl Fn(&mut Worker, &T) -> R + Sync,
    mut each: impl FnMut(&T, R),
) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let (results, finished) = mpsc::channel();
    thread::scope(|scope| {
        let mut started = 0;
        for (place, mut worker) in workers.into_iter().enumerate() {
            let (results, next, work) = (results.clone(), &next, &work);
            let rounds = move || {
                // The first worker tells the error, if it has the same one.
                if place > 0 && worker.session().is_err() {
                    return;
                }
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if worker.is_cancelled() {
                        return;
                    }
                    let result = work(&mut worker, item);
                    // The caller listens until all workers have ended.
                    let _heard = results.send((item, result));
                }
            };
            match thread::Builder::new().spawn_scoped(scope, rounds) {
                Ok(_) => started += 1,
                Err(error) if started == 0 => return Err(error),
                Err(_) => break,
            }
        }
        drop(results);
        for (item, result) in finished {
            each(item, result);
        }
        Ok(())
    })
}
