//! Signals that tell the daemon what to do, noticed by its loop.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{During, Result};

/// What has been asked for.
pub struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    /// Readable after a signal.
    wake: UnixStream,
}

impl Signals {
    /// From now on SIGTERM and SIGINT ask to stop, SIGHUP to reload.
    pub fn watch() -> Result<Self> {
        let what = || "cannot watch for signals".to_owned();
        let (wake, waker) = UnixStream::pair().during(what)?;
        wake.set_nonblocking(true).during(what)?;
        let (stop, reload) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &reload)] {
            // In this order the flag is set before the loop wakes.
            signal_hook::flag::register(signal, Arc::clone(flag)).during(what)?;
            let waker = waker.try_clone().during(what)?;
            signal_hook::low_level::pipe::register(signal, waker).during(what)?;
        }
        Ok(Self { stop, reload, wake })
    }

    /// Whether SIGTERM or SIGINT has come.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// True once for any number of requests to reload.
    pub fn reload(&self) -> bool {
        let mut bytes = [0; 64];
        // What woke us is in the flags.
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
        self.reload.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
