//! The pump: carries the real kernel's packets between TUN devices through emulated links.
//!
//! Problem: not every kernel has netem, and a path emulator can only be trusted if it knows its own error. The pump
//! reads what either host sends, asks the [`Direction`] for each wire packet's fate, keeps the packets until they are
//! due, and writes them to the other host. It measures how late each packet was, and records every time in which it did
//! not get the processor.
//!
//! Terms: *due* is when the link delivers a packet; *lateness* is how much later it was written, on the links' own
//! clock ([`crate::link_time`]), which pauses while the pump does not get the processor.
//!
//! One thread carries any number of links. Where several run side by side, their packets share its wake-ups, which are
//! most of its cost. A *route* joins two devices by links in a row; other routes may pass the same links. A packet is
//! offered to the next link at the moment at which it is due at the end of the one before, however late the pump
//! handles it.
//!
//! Properties: packets leave in the order of their due times; a packet is dropped only by a link; the packets offered
//! equal those delivered, dropped, and still held.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::thread::{self, JoinHandle};

use bufwise_link::{Counters, DATA_PACKET, Direction, Fate};
use bufwise_socket::schedule::{self, CpuLatencyRequest};
use bufwise_socket::tun::{MAX_FRAME, Tun};
use bufwise_socket::vnet::VnetHeader;
use bufwise_units::Nanos;
use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use thiserror::Error;

use crate::clock::Clock;
use crate::link_time::{LinkTime, StallAt};
use crate::segment::{Frame, MAX_HEADERS};

/// Packets due within this time of each other leave together, as with a network card's interrupt moderation. A system
/// call for each of 83,000 packets per second (1 Gbit/s) would take a whole processor.
const MODERATION: Nanos = Nanos(25_000);
/// The pump wakes at least this often, so that a stall shows even while no packet is due.
const HEARTBEAT: Nanos = Nanos(1_000_000);
/// Real-time priority of the pump's thread: the lowest, which is above every ordinary thread.
const PRIORITY: i32 = 1;
/// Interval at which the state of the links is recorded at first.
const TIMELINE_STEP: Nanos = Nanos(50_000_000);
/// Number of records at which every second one is dropped: 10 MB a link, 27 minutes at the first interval. It is odd, so that the
/// newest record is among those that stay.
const TIMELINE_LENGTH: usize = (1 << 15) - 1;

/// Why the pump ended early.
#[derive(Debug, Error)]
pub enum PumpError {
    /// A TUN device failed.
    #[error("{operation} TUN device {device} failed: {source}")]
    Device {
        /// The operation that failed.
        operation: &'static str,
        /// The device's name.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Waiting for packets failed.
    #[error("waiting for packets failed: {0}")]
    Wait(nix::Error),
    /// The thread could not be started.
    #[error("cannot start the emulator's thread: {0}")]
    Thread(io::Error),
    /// The pump's thread ended by a panic.
    #[error("the emulator's thread ended unexpectedly")]
    Panicked,
}

/// The state of one direction at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LinkSample {
    /// Time on the links' clock.
    pub at: Nanos,
    /// Time on the wall clock, which is later by all pauses so far.
    pub wall: Nanos,
    /// Counters of the direction from host A to host B.
    pub a_to_b: Counters,
    /// Counters of the direction from host B to host A.
    pub b_to_a: Counters,
}

/// Record of one link, from the pump's start to its end.
#[derive(Debug)]
pub struct LinkLog {
    /// The link's state at the end.
    pub last: LinkSample,
    /// The link's state over time, at equal distances: 50 ms in a run of up to 27 minutes. Each time that there are 32,767 samples,
    /// every second one is dropped and the distance doubles, so it is at most a 16,000th of a longer run. Counters are since the
    /// start, so two samples differ by what passed between them. All links of a pump are sampled at the same moments.
    pub timeline: Vec<LinkSample>,
    /// Lateness of each packet in microseconds.
    pub lateness_us: Histogram<u64>,
    /// When the first packet of data ([`DATA_PACKET`]) came to the link, on the wall clock; `None`: none did.
    pub data_at: Option<Nanos>,
    /// Frames that the receiving host's device refused: losses outside the link's model.
    pub refused: u64,
    /// Frames that were not IP packets that the pump can carry.
    pub unknown: u64,
}

/// Report of a pump, when it has stopped.
#[derive(Debug)]
pub struct PumpReport {
    /// Records of its links, in the order given.
    pub links: Vec<LinkLog>,
    /// The longest stalls, in the order of time; see [`crate::link_time`].
    pub stalls: Vec<StallAt>,
    /// Sum of the pauses of the links' clock.
    pub paused: Nanos,
}

/// Two devices, and the links that a packet passes between them.
#[derive(Debug)]
pub struct Route {
    /// The device of host A.
    pub a: Tun,
    /// The device of host B.
    pub b: Tun,
    /// Numbers of the links in the order in which packets from host A pass them; at least one.
    pub links: Vec<usize>,
}

/// The two directions of a link.
#[derive(Debug)]
pub struct Link {
    /// The way from host A to host B.
    pub a_to_b: Direction,
    /// The way from host B to host A.
    pub b_to_a: Direction,
}

/// A running pump. Dropping it stops it.
#[derive(Debug)]
pub struct Pump {
    /// Keeps the processor from deep sleep, in which timers are late; on a machine that does not offer this the
    /// lateness shows it.
    _awake: Option<CpuLatencyRequest>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<PumpReport, PumpError>>>,
}

impl Pump {
    /// Starts carrying packets along `routes` over `links`. A route that names a missing link, or none, carries
    /// nothing.
    ///
    /// # Errors
    /// [`PumpError::Thread`] when no thread can be started.
    pub fn start(routes: Vec<Route>, links: Vec<Link>, clock: Clock) -> Result<Self, PumpError> {
        let (stop, stopped) = UnixStream::pair().map_err(PumpError::Thread)?;
        let thread = thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || Worker::new(routes, links, clock).run(&stopped))
            .map_err(PumpError::Thread)?;
        Ok(Self { _awake: CpuLatencyRequest::ask().ok(), stop: Some(stop), thread: Some(thread) })
    }

    /// Whether the pump still carries packets.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the pump and returns what it did.
    ///
    /// # Errors
    /// The error that ended the pump, if it ended earlier.
    pub fn stop(mut self) -> Result<PumpReport, PumpError> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(report)) => report,
            _ => Err(PumpError::Panicked),
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _report_unwanted = thread.join();
        }
    }
}

/// A wire packet on its way.
struct Pending {
    /// When it is due, on the links' clock.
    due: Nanos,
    frame: Rc<Frame>,
    index: usize,
    at: Place,
    /// A link has marked it: congestion experienced.
    marked: bool,
}

/// Position of a packet on its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    route: usize,
    /// Number of links that it has passed.
    hop: usize,
}

/// One direction: the link and the packets on it.
struct Lane {
    direction: Direction,
    pending: VecDeque<Pending>,
}

impl Lane {
    /// Offers every wire packet of `frame` to the link.
    fn admit(&mut self, frame: Frame, at: Place, now: Nanos) {
        let frame = Rc::new(frame);
        for index in 0..frame.wire_packets() {
            self.offer(&frame, index, at, now, false);
        }
    }

    fn offer(&mut self, frame: &Rc<Frame>, index: usize, at: Place, now: Nanos, marked: bool) {
        let length = u32::try_from(frame.wire_len(index)).unwrap_or(u32::MAX);
        let (due, marked) = match self.direction.offer(now, length) {
            Fate::Deliver { at: due } => (due, marked),
            Fate::DeliverMarked { at: due } => (due, true),
            Fate::Drop(_) => return,
        };
        self.insert(Pending { due, frame: Rc::clone(frame), index, at, marked });
    }

    /// Inserts a packet in the order of due times; only on a link that reorders is it not the last.
    fn insert(&mut self, packet: Pending) {
        let later = self.pending.iter().rev().take_while(|other| other.due > packet.due).count();
        self.pending.insert(self.pending.len() - later, packet);
    }

    /// Returns when the next packet is due, or the last of those that may leave together with it.
    fn next_wake(&self) -> Option<Nanos> {
        let first = self.pending.front()?;
        let limit = Nanos(first.due.0 + MODERATION.0);
        let together = self.pending.partition_point(|packet| packet.due <= limit);
        self.pending.get(together.saturating_sub(1)).map(|packet| packet.due)
    }
}

/// One link with its record.
struct Carrier {
    /// `lanes[0]` leads from host A to host B, `lanes[1]` back.
    lanes: [Lane; 2],
    log: LinkLog,
}

impl Carrier {
    fn new(link: Link, now: (Nanos, Nanos)) -> Self {
        let mut lanes =
            [link.a_to_b, link.b_to_a].map(|direction| Lane { direction, pending: VecDeque::new() });
        let first = sample(&mut lanes, now);
        let log = LinkLog {
            last: first,
            timeline: vec![first],
            lateness_us: Histogram::new_with_bounds(1, 60_000_000, 2)
                .expect("1 us to 60 s with two digits is a valid range"),
            data_at: None,
            refused: 0,
            unknown: 0,
        };
        Self { lanes, log }
    }

    /// Tells both directions when the first packet of data comes to either of them; a packet of `length` comes now.
    fn note_data(&mut self, length: usize, (now, wall): (Nanos, Nanos)) {
        if self.log.data_at.is_none() && length >= DATA_PACKET as usize {
            self.log.data_at = Some(wall);
            self.lanes.iter_mut().for_each(|lane| lane.direction.begin_trace(now));
        }
    }

    fn finish(mut self, now: (Nanos, Nanos)) -> LinkLog {
        self.log.last = sample(&mut self.lanes, now);
        self.log
    }
}

fn sample(lanes: &mut [Lane; 2], (at, wall): (Nanos, Nanos)) -> LinkSample {
    let [a_to_b, b_to_a] = lanes;
    LinkSample { at, wall, a_to_b: a_to_b.direction.counters(at), b_to_a: b_to_a.direction.counters(at) }
}

/// The two ends of a route.
struct Ends {
    tuns: [Tun; 2],
    links: Vec<usize>,
}

impl Ends {
    /// Returns the link after `hop` links, on the way from `tuns[side]`.
    fn link(&self, side: usize, hop: usize) -> Option<usize> {
        let place = if side == 0 { hop } else { self.links.len().checked_sub(hop + 1)? };
        self.links.get(place).copied()
    }

    fn device_error(&self, operation: &'static str, side: usize, source: io::Error) -> PumpError {
        PumpError::Device { operation, device: self.tuns[side].name().to_owned(), source }
    }
}

/// Drops every second sample; the first one stays.
fn halve(timeline: &mut Vec<LinkSample>) {
    let mut stays = false;
    timeline.retain(|_| {
        stays = !stays;
        stays
    });
}

struct Worker {
    routes: Vec<Ends>,
    carriers: Vec<Carrier>,
    time: LinkTime,
    /// When the links were sampled last, on their clock.
    sampled: Nanos,
    /// Time between two samples of the links.
    step: Nanos,
}

impl Worker {
    fn new(routes: Vec<Route>, links: Vec<Link>, clock: Clock) -> Self {
        let mut time = LinkTime::new(clock);
        let now = time.both();
        let carriers: Vec<Carrier> = links.into_iter().map(|link| Carrier::new(link, now)).collect();
        let routes = routes.into_iter().map(|Route { a, b, mut links }| {
            links.retain(|link| *link < carriers.len());
            Ends { tuns: [a, b], links }
        });
        Self { routes: routes.collect(), carriers, time, sampled: now.0, step: TIMELINE_STEP }
    }

    fn run(mut self, stopped: &UnixStream) -> Result<PumpReport, PumpError> {
        // The pump also runs without the priority; its stalls show in the report.
        let _granted = schedule::precise(PRIORITY);
        let mut buffer = vec![0; MAX_FRAME];
        let mut readable = vec![[false; 2]; self.routes.len()];
        loop {
            self.deliver_due()?;
            let now = self.time.both();
            self.note_timeline(now);
            if !self.wait(stopped, &mut readable)? {
                let now = self.time.both();
                let links = self.carriers.into_iter().map(|carrier| carrier.finish(now)).collect();
                let (stalls, paused) = self.time.finish();
                return Ok(PumpReport { links, stalls, paused });
            }
            for (route, readable) in readable.iter().enumerate() {
                for (side, _) in readable.iter().enumerate().filter(|(_, readable)| **readable) {
                    self.read(route, side, &mut buffer)?;
                    self.deliver_due()?;
                }
            }
        }
    }

    /// Records the state of all links if the last record is a step old.
    fn note_timeline(&mut self, now: (Nanos, Nanos)) {
        if now.0.0 < self.sampled.0 + self.step.0 {
            return;
        }
        self.sampled = now.0;
        for Carrier { lanes, log } in &mut self.carriers {
            log.timeline.push(sample(lanes, now));
        }
        if self.carriers.iter().any(|carrier| carrier.log.timeline.len() >= TIMELINE_LENGTH) {
            self.carriers.iter_mut().for_each(|carrier| halve(&mut carrier.log.timeline));
            self.step.0 *= 2;
        }
    }

    /// Takes one frame from a device to the first link. Only one: cutting up a frame of 64 KB takes longer than the
    /// packets that become due meanwhile may wait.
    fn read(&mut self, route: usize, side: usize, buffer: &mut [u8]) -> Result<(), PumpError> {
        let ends = &self.routes[route];
        let length = match ends.tuns[side].read(buffer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(source) => return Err(ends.device_error("reading", side, source)),
        };
        let Some(first) = ends.link(side, 0) else { return Ok(()) };
        let carrier = &mut self.carriers[first];
        match VnetHeader::decode(&buffer[..length]).map(|(vnet, packet)| Frame::parse(vnet, packet)) {
            Some(Ok(frame)) => {
                let (now, wall) = self.time.both();
                carrier.note_data(frame.wire_len(0), (now, wall));
                carrier.lanes[side].admit(frame, Place { route, hop: 0 }, now);
            }
            _ => carrier.log.unknown += 1,
        }
        Ok(())
    }

    /// Passes on all packets that are due, the earliest first: to their next link, or to the other end.
    fn deliver_due(&mut self) -> Result<(), PumpError> {
        loop {
            let (now, wall) = self.time.both();
            let Some((link, side)) = self.earliest() else { return Ok(()) };
            let pending = &mut self.carriers[link].lanes[side].pending;
            let Some(first) = pending.pop_front_if(|packet| packet.due <= now) else { return Ok(()) };
            let Place { route, hop } = first.at;
            match self.routes[route].link(side, hop + 1) {
                Some(next) => {
                    let at = Place { route, hop: hop + 1 };
                    let carrier = &mut self.carriers[next];
                    carrier.note_data(first.frame.wire_len(first.index), (first.due, wall));
                    carrier.lanes[side].offer(&first.frame, first.index, at, first.due, first.marked);
                }
                None => self.leave((link, side), &first, now)?,
            }
        }
    }

    /// Returns the link and direction with the packet that is due first.
    fn earliest(&self) -> Option<(usize, usize)> {
        let lanes = self.carriers.iter().enumerate().flat_map(|(link, carrier)| {
            carrier.lanes.iter().enumerate().map(move |(side, lane)| ((link, side), lane))
        });
        let due = lanes.filter_map(|(place, lane)| Some((lane.pending.front()?.due, place)));
        due.min().map(|(_, place)| place)
    }

    /// Writes a packet that was the first of its link, together with due neighbours of the same super-packet.
    fn leave(&mut self, (link, side): (usize, usize), first: &Pending, now: Nanos) -> Result<(), PumpError> {
        let Carrier { lanes, log } = &mut self.carriers[link];
        record(&mut log.lateness_us, now, first.due);
        let mut end = first.index + 1;
        while let Some(next) = lanes[side].pending.pop_front_if(|next| {
            let follows = next.index == end && Rc::ptr_eq(&next.frame, &first.frame);
            follows && next.due <= now && next.marked == first.marked
        }) {
            record(&mut log.lateness_us, now, next.due);
            end += 1;
        }
        let mut scratch = [0; MAX_HEADERS];
        let (vnet, headers, payload) = first.frame.join(first.index..end, first.marked, &mut scratch);
        let vnet = vnet.encode();
        let pieces = [IoSlice::new(&vnet), IoSlice::new(headers), IoSlice::new(payload)];
        let ends = &self.routes[first.at.route];
        match ends.tuns[1 - side].write_vectored(&pieces) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                log.refused += 1;
                Ok(())
            }
            Err(source) => Err(ends.device_error("writing to", 1 - side, source)),
        }
    }

    /// Sleeps until a device has packets or one is due; records which devices have some. Returns false when the pump
    /// must stop.
    fn wait(&mut self, stopped: &UnixStream, readable: &mut [[bool; 2]]) -> Result<bool, PumpError> {
        let now = self.time.now();
        let due = self.carriers.iter().flat_map(|carrier| &carrier.lanes).filter_map(Lane::next_wake).min();
        let wake = due.map_or(now.0 + HEARTBEAT.0, |due| due.0.clamp(now.0, now.0 + HEARTBEAT.0));
        let sleep = TimeSpec::from_duration(std::time::Duration::from_nanos(wake - now.0));
        let devices = self.routes.iter().flat_map(|ends| &ends.tuns).map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> =
            devices.chain([stopped.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        self.time.sleep_until(Nanos(wake));
        match ppoll(&mut fds, Some(sleep), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(PumpError::Wait(errno)),
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        for (readable, fds) in readable.iter_mut().zip(fds.chunks(2)) {
            *readable = [ready(&fds[0]), ready(&fds[1])];
        }
        let stop = fds.last().is_some_and(ready);
        self.time.now();
        Ok(!stop)
    }
}

fn record(lateness_us: &mut Histogram<u64>, now: Nanos, due: Nanos) {
    lateness_us.saturating_record((now.0.saturating_sub(due.0) / 1_000).max(1));
}

#[cfg(test)]
mod tests {
    use bufwise_link::DirectionConfig;

    use super::*;

    /// Returns a worker with two links and without devices.
    fn worker() -> Worker {
        let way = |seed| Direction::new(DirectionConfig::default(), seed).unwrap();
        let link = |seed| Link { a_to_b: way(seed), b_to_a: way(seed) };
        Worker::new(Vec::new(), vec![link(1), link(2)], Clock::start())
    }

    #[test]
    fn both_traces_of_a_link_begin_anew_with_the_first_data() {
        let trace = "0 8mbit\n2 16mbit".parse().ok();
        let usual = DirectionConfig { overhead: 0, ..DirectionConfig::default() };
        let config = DirectionConfig { trace, trace_begins_with_data: true, ..usual };
        let way = |seed| Direction::new(config.clone(), seed).unwrap();
        let link = Link { a_to_b: way(1), b_to_a: way(2) };
        let mut carrier = Carrier::new(link, (Nanos(0), Nanos(0)));
        let at = |seconds| (Nanos::from_secs(seconds), Nanos::from_secs(seconds + 1));
        for (length, seconds, data_at) in [(511, 4, None), (512, 5, Some(6)), (1_500, 6, Some(6))] {
            carrier.note_data(length, at(seconds));
            assert_eq!(carrier.log.data_at, data_at.map(Nanos::from_secs));
        }
        // A second of the trace has passed: 1,000 bytes take a millisecond.
        for lane in &mut carrier.lanes {
            let fate = lane.direction.offer(Nanos::from_secs(6), 1_000);
            assert_eq!(fate, Fate::Deliver { at: Nanos::from_millis(6_001) });
        }
    }

    #[test]
    fn a_timeline_is_bounded_and_its_times_and_counters_stay_right() {
        const PAUSED: u64 = 7_000_000;
        let mut worker = worker();
        let begin = worker.sampled.0;
        // A packet passes the first link in each of the first intervals, for 82 minutes.
        let packets = 3 * TIMELINE_LENGTH as u64;
        for number in 1..=packets {
            let at = Nanos(begin + number * TIMELINE_STEP.0);
            worker.carriers[0].lanes[0].direction.offer(at, 1_000);
            worker.note_timeline((at, Nanos(at.0 + PAUSED)));
        }
        for (carrier, passes) in worker.carriers.iter().zip([1_u64, 0]) {
            let timeline = &carrier.log.timeline;
            assert!((TIMELINE_LENGTH / 2..TIMELINE_LENGTH).contains(&timeline.len()), "{}", timeline.len());
            assert_eq!((timeline[0].at.0, timeline[0].wall.0), (begin, begin));
            for pair in timeline.windows(2) {
                assert_eq!(pair[1].at.0 - pair[0].at.0, 4 * TIMELINE_STEP.0, "halved twice");
                assert_eq!(pair[1].wall.0, pair[1].at.0 + PAUSED);
                let number = (pair[1].at.0 - begin) / TIMELINE_STEP.0;
                assert_eq!(pair[1].a_to_b.delivered_packets, number * passes);
            }
            let newest = timeline[timeline.len() - 1].at.0 - begin;
            assert!(newest + 4 * TIMELINE_STEP.0 > packets * TIMELINE_STEP.0, "{newest}");
        }
    }
}
