//! A thread that does work for which the loop has no time, one message after the other. The loop never waits for it.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use crate::error::{During, Result};

/// Handle of the thread; dropping it waits until the thread has done the queued messages and ended.
#[derive(Debug)]
pub(super) struct Worker<T> {
    sender: Option<SyncSender<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread, with a queue of `waiting` messages.
    pub(super) fn start(
        name: &str,
        waiting: usize,
        work: impl FnOnce(&Receiver<T>) + Send + 'static,
    ) -> Result<Self> {
        let (sender, messages) = sync_channel(waiting);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&messages));
        let thread = thread.during(|| format!("cannot start the thread {name}"))?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Queues a message; returns it if the queue is full.
    pub(super) fn hand(&self, message: T) -> Option<T> {
        let error = self.sender.as_ref()?.try_send(message).err()?;
        let (TrySendError::Full(message) | TrySendError::Disconnected(message)) = error;
        Some(message)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // The thread has already reported its own panic.
            let _over = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_busy_thread_delays_nobody_and_gives_back_what_is_too_much() {
        let (open, gate) = channel();
        let (done, results) = channel();
        let work = move |messages: &Receiver<u32>| {
            for message in messages {
                gate.recv().unwrap();
                done.send(message).unwrap();
            }
        };
        let worker = Worker::start("test", 2, work).unwrap();
        // The thread may already have taken a message from the queue.
        let returned: Vec<u32> = (0..10).filter_map(|number| worker.hand(number)).collect();
        assert!((7..=8).contains(&returned.len()), "{returned:?}");
        (0..3).for_each(|_| open.send(()).unwrap());
        drop(worker);
        let taken: Vec<u32> = results.iter().collect();
        assert_eq!(taken.len() + returned.len(), 10, "what was handed over is done before the end");
    }
}
