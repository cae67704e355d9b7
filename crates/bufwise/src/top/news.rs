//! Threads that sample connections, and a way to wait for their results together with other events.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bufwise_bpf::processor_time;
use bufwise_host::address::Pattern;
use bufwise_host::view::{ConnectionView, Listing};
use bufwise_units::Micros;

use super::pace::{Meter, Pace};
use super::source::Source;
use crate::explain;
use crate::ls::AskedDaemon;

/// Time until the first rates, as in `ls`.
pub(crate) const FIRST: Duration = Duration::from_millis(300);

/// One sample of all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) listing: Listing,
    /// Time until the next sample.
    pub(crate) interval: Micros,
}

/// Samples after the time `first`, and then at the interval of the pace, as long as the receiver exists; `meter` has
/// the cost of drawing.
pub(crate) fn sights(
    mut source: Source,
    first: Duration,
    mut pace: Pace,
    meter: Meter,
) -> Result<News<Result<Sight>>> {
    News::from(move |news| {
        let mut next = Instant::now() + first;
        let (mut sampled, mut drawn) = (processor_time(), meter.read());
        loop {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let sight = source.sample();
            let (sampled_by_now, drawn_by_now) = (processor_time(), meter.read());
            pace.spent(sampled_by_now.since(sampled) + drawn_by_now.since(drawn));
            (sampled, drawn) = (sampled_by_now, drawn_by_now);
            let interval = pace.interval();
            let sight = sight.map(|mut listing| {
                listing.notes.extend(pace.note());
                Sight { listing, interval }
            });
            if !news.send(sight) {
                return;
            }
            // A sample that took too long delays the following ones, so that they do not follow without a pause.
            next = (next + Duration::from_micros(interval.0)).max(Instant::now());
        }
    })
}

/// Text on a connection that ended before it could be watched.
pub(crate) const ENDED: &str = "It ended.";

/// Watches a connection as `explain` does; the text is for a reader in the network namespace `home`, and `None` if the
/// connection has ended.
pub(crate) fn explanation(
    view: &ConnectionView,
    home: String,
    asked: AskedDaemon,
) -> Result<News<(u64, Option<String>)>> {
    let cookie = view.cookie;
    // The larger port is usually unique, the smaller one a service's, which many connections share.
    let end = if view.local.port() > view.peer.port() { view.local } else { view.peer };
    let address: Pattern = end.to_string().parse().map_err(anyhow::Error::msg)?;
    News::from(move |news| {
        let text = match explain::report(address, &asked) {
            Ok(report) => report.text_of(cookie, &home),
            Err(failure) => Some(failure.to_string()),
        };
        let _unheard = news.send((cookie, text));
    })
}

/// A thread's results, and a descriptor that is readable when there is one.
pub(crate) struct News<T> {
    found: Receiver<T>,
    wake: UnixStream,
}

/// The sending end of the thread.
pub(crate) struct Teller<T> {
    found: Sender<T>,
    wake: UnixStream,
}

impl<T: Send + 'static> News<T> {
    /// Starts a thread that does `work`.
    pub(crate) fn from(work: impl FnOnce(&Teller<T>) + Send + 'static) -> Result<Self> {
        let (wake, waker) = UnixStream::pair().context("cannot make a pair of sockets")?;
        wake.set_nonblocking(true).context("cannot set a socket up")?;
        let (sender, found) = mpsc::channel();
        let teller = Teller { found: sender, wake: waker };
        thread::Builder::new().spawn(move || work(&teller)).context("cannot start a thread")?;
        Ok(Self { found, wake })
    }

    /// Returns the next result that was not taken yet.
    pub(crate) fn next(&self) -> Result<Option<T>> {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
        match self.found.try_recv() {
            Ok(found) => Ok(Some(found)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the thread that samples connections ended"),
        }
    }
}

/// Readable when there is a result.
impl<T> AsFd for News<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<T> Teller<T> {
    /// Sends a result; returns whether the receiver still exists.
    pub(crate) fn send(&self, found: T) -> bool {
        self.found.send(found).is_ok() && (&self.wake).write_all(&[1]).is_ok()
    }
}
