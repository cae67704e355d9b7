//! Work on the engines that fails is tried again, and ends the daemon only if the failures last.
//!
//! Problem: a call of the kernel may fail for lack of memory or descriptors, and succeed a moment later. If the daemon
//! ended, it would give every connection back. While calls fail, the programs go by the last shares, as they do between
//! two samples, and new connections have a newcomer's share. After five seconds without a heartbeat no share counts.

use bufwise_units::Micros;

use super::super::event::Work;
use super::Daemon;
use super::telling::Trouble;
use crate::error::{Error, in_words};
use crate::log::{Kind, Line};

/// Time for which the same work may fail before the daemon ends: twice the longest pause between two samples. Old shares
/// do not bound the memory of connections that have come since. A failure that lasts this long will hardly end without a
/// new start.
const PATIENCE: Micros = Micros::from_secs(60);

impl Daemon {
    /// Logs that work on the engines has failed, and schedules the next attempt. Ends the daemon with the first error if
    /// the same work has not succeeded for [`PATIENCE`]; grants never end it, because connections are sized without them.
    pub(super) fn troubled(&mut self, work: Work, error: Error, now: Micros) {
        self.tell_trouble(Trouble::Work(work), Some(in_words(&error)), now);
        match work {
            Work::Sample => self.due.sample_failed(now),
            Work::Share => {
                // Orders, and the bound of the devices, were lost with the shares.
                self.ledgers.tell_again();
                self.due.sample_failed(now);
            }
            // The next heartbeat is scheduled already.
            Work::Beat => {}
            Work::Grant => return self.due.grant_failed(now),
        }
        let (since, first) = self.failing.remove(&work).unwrap_or((now, error));
        if now.since(since) < PATIENCE {
            self.failing.insert(work, (since, first));
            return;
        }
        let seconds = PATIENCE.as_secs_f64();
        let line = format_args!("no attempt has succeeded for {seconds} s: everything is put back");
        self.say(Line::warning(Kind::Life, line), now);
        self.end(Some(first));
    }

    /// Notes that work on the engines has succeeded.
    pub(super) fn succeeded(&mut self, work: Work, now: Micros) {
        self.failing.remove(&work);
        self.tell_trouble(Trouble::Work(work), None, now);
    }
}
