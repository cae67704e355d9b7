//! The tight link: a virtual server behind a DropTail queue.
//!
//! A packet of `n` wire bytes that arrives at `t` departs at `max(t, free) + 8n / rate`, where `free` is the departure
//! of the packet admitted before it and the rate is integrated over the [`Schedule`]. So its fate is known on arrival,
//! no event has to be processed later, and counters catch up when the clock moves.
//!
//! Terms, all in exact work units of the schedule: `served` is `W(now)`, what the link could have sent so far; `finish`
//! is the value of `W` at which everything admitted has been sent. The *backlog* is `finish - served`, zero when idle:
//! a fluid, in which the packet in service counts with its unsent part.
//!
//! DropTail refuses a packet if backlog plus packet exceeds the limit in bytes, or if as many packets as the limit in
//! packets have not departed (the one in service included). A packet that exactly fills the queue is admitted.
//!
//! A *policer* is the same server, but packets depart at once. The tokens that its bucket lacks equal the bytes that a
//! queue of that depth would hold, so a packet conforms if the queue would admit it.
//!
//! Properties: departures never decrease; every packet is refused, queued or departed; a departure is the first whole
//! nanosecond by which the fluid is sent, and no rounding is carried on.

use std::collections::VecDeque;

use crate::config::{DirectionConfig, QueueLimit};
use crate::occupancy::Occupancy;
use crate::schedule::{BYTE, Cursor, Schedule};
use bufwise_units::BitRate;

/// The sender of a packet: own or cross traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Own,
    Cross,
}

/// A number of packets and their wire bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.packets -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Counts of one owner's packets at the queue, by their fate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passage {
    pub(crate) departed: Tally,
    pub(crate) dropped: Tally,
    pub(crate) queued: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    departure: u64,
    bytes: u64,
    owner: Owner,
}

/// When a packet leaves the link, and the delay that follows, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) at: u64,
    pub(crate) delay: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    schedule: Schedule,
    limited: bool,
    limit: QueueLimit,
    policer: bool,
    now: u64,
    /// The stretch of the schedule that holds now, and the stretch in which the last packet departs.
    here: Cursor,
    tail: Cursor,
    served: u128,
    finish: u128,
    admitted: u128,
    queue: VecDeque<Queued>,
    own: Passage,
    cross: Passage,
    occupancy: Occupancy,
}

impl Server {
    /// Makes a server for a configuration that has been validated.
    pub(crate) fn new(config: &DirectionConfig) -> Self {
        let rate = config.rate.unwrap_or(BitRate(0));
        let schedule = Schedule::new(rate, config.delay, config.trace.as_ref());
        let start = schedule.at_time(0);
        Self {
            schedule,
            limited: config.is_limited(),
            limit: config.queue,
            policer: config.policer,
            now: 0,
            here: start,
            tail: start,
            served: 0,
            finish: 0,
            admitted: 0,
            queue: VecDeque::new(),
            own: Passage::default(),
            cross: Passage::default(),
            occupancy: Occupancy::new(),
        }
    }

    pub(crate) const fn passage(&self, owner: Owner) -> &Passage {
        match owner {
            Owner::Own => &self.own,
            Owner::Cross => &self.cross,
        }
    }

    pub(crate) const fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// Returns the time to which the clock has moved, ns.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Returns the wire bytes not yet sent, rounded up; 0 for a policer.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        if self.policer {
            return 0;
        }
        bytes_of(self.finish.saturating_sub(self.served))
    }

    /// Returns the share of the possible work so far that the link did; 0 without a rate.
    pub(crate) fn utilisation(&self) -> f64 {
        if !self.limited || self.served == 0 {
            return 0.0;
        }
        let sent = self.admitted.saturating_sub(self.finish.saturating_sub(self.served));
        (sent as f64 / self.served as f64).min(1.0)
    }

    /// Moves the clock to `to`; an earlier time changes nothing.
    pub(crate) fn advance(&mut self, to: u64) {
        if to <= self.now {
            return;
        }
        if self.policer {
            self.occupancy.idle((to - self.now) as f64);
        } else if self.limited {
            self.drain(to);
        }
        self.here.seek_time(&self.schedule, to);
        self.served = self.here.work_at(to);
        self.now = to;
        while let Some(front) = self.queue.front()
            && front.departure <= to
        {
            let passage = match front.owner {
                Owner::Own => &mut self.own,
                Owner::Cross => &mut self.cross,
            };
            passage.queued.remove(front.bytes);
            passage.departed.add(front.bytes);
            self.queue.pop_front();
        }
    }

    /// Begins the trace anew, now. Packets that wait keep their departures, and later ones do not depart before them.
    pub(crate) fn begin_trace(&mut self) {
        self.schedule.begin(self.now, self.served);
        self.here = self.schedule.at_time(self.now);
        self.tail = self.here;
    }

    /// Records how the backlog falls from now until `to`, stretch by stretch.
    fn drain(&mut self, to: u64) {
        let mut at = self.now;
        let mut served = self.served;
        while served < self.finish && at < to {
            let end = to.min(self.here.end);
            let reached = self.here.work_at(end);
            let backlog = fluid_bytes(self.finish - served);
            if reached >= self.finish {
                let busy = (self.finish - served) as f64 / self.here.rate as f64;
                self.occupancy.drain(backlog, 0.0, busy);
                self.occupancy.idle((to - at) as f64 - busy);
                return;
            }
            self.occupancy.drain(backlog, fluid_bytes(self.finish - reached), (end - at) as f64);
            (at, served) = (end, reached);
            self.here.seek_time(&self.schedule, at);
        }
        self.occupancy.idle((to - at) as f64);
    }

    /// Takes a packet that arrives now; `None`: dropped, because the queue has no room for it.
    pub(crate) fn admit(&mut self, bytes: u64, owner: Owner) -> Option<Departure> {
        let passage = match owner {
            Owner::Own => &mut self.own,
            Owner::Cross => &mut self.cross,
        };
        if !self.limited {
            passage.departed.add(bytes);
            return Some(Departure { at: self.now, delay: self.here.delay });
        }
        let work = u128::from(bytes) * BYTE;
        let backlog = self.finish.saturating_sub(self.served);
        let room = match self.limit {
            QueueLimit::Unlimited => true,
            QueueLimit::Bytes(limit) => backlog.saturating_add(work) <= u128::from(limit) * BYTE,
            QueueLimit::Packets(limit) => self.queue.len() < limit as usize,
        };
        if !room {
            passage.dropped.add(bytes);
            return None;
        }
        self.finish = self.finish.max(self.served).saturating_add(work);
        self.admitted = self.admitted.saturating_add(work);
        if self.policer {
            passage.departed.add(bytes);
            return Some(Departure { at: self.now, delay: self.here.delay });
        }
        passage.queued.add(bytes);
        self.tail.seek_work(&self.schedule, self.finish);
        let earliest = self.queue.back().map_or(self.now, |before| before.departure);
        let at = self.tail.time_of(self.finish).max(earliest);
        // A packet that departs at the very end of a stretch gets the delay of the next.
        self.tail.seek_time(&self.schedule, at);
        self.queue.push_back(Queued { departure: at, bytes, owner });
        self.occupancy.rise(bytes_of(backlog.saturating_add(work)));
        Some(Departure { at, delay: self.tail.delay })
    }
}

fn bytes_of(work: u128) -> u64 {
    u64::try_from(work.div_ceil(BYTE)).unwrap_or(u64::MAX)
}

fn fluid_bytes(work: u128) -> f64 {
    // The work of a queue below 2 GB fits into `u64`, whose conversion is quicker.
    u64::try_from(work).map_or(work as f64, |work| work as f64) / BYTE as f64
}
