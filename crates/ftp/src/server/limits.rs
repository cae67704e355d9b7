//! Limits of sessions, of password attempts, and of the memory that peers may request.
//!
//! Source: RFC 2577, section 5 (password guessing). SBUF is a peer's request for this host's memory, so it is bounded
//! for a connection, for a user and for the host, and given back when the connection ends. The names of listed
//! directories are bounded likewise (`store.rs`).
//! Terms: an *origin* is an IPv4 address, or the first 64 bits of an IPv6 address, which commonly belong to one
//! household. A *stranger* is a session that has not logged in. A *guest* is a session that has logged in without a
//! password (anonymous), which costs an attacker no more than being a stranger. A session is *dispensable* if it is a
//! stranger's or a guest's and no transfer of it runs; a sum (HASH) counts as a transfer.
//! Rules: when all places are taken, a newcomer replaces the oldest dispensable session of the origin with most of them,
//! if that origin has more than the newcomer's own. When all ports for data connections are taken, a newcomer likewise
//! takes that of a dispensable session that only waits on it; that session continues. Password attempts are spaced for each
//! origin and name, so that guesses at one name do not delay another; names of one origin beyond [`NAMES`] share one
//! spacing.
//! Properties kept: a guard gives back what it counts when it is dropped, on every path; a session that has logged in
//! with a password is never replaced, nor is one whose transfer runs; attempts at one name are spaced even over many
//! connections at once; unknown names are spaced like known ones; the table of origins is bounded.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bufwise_units::Bytes;

use super::sync::{Mutex, MutexGuard};

/// Failures of an origin are forgotten after this time without a further failure.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// Most queues of attempts that are remembered. When there are more, those that have been due longest are forgotten.
const MAX_LINES: usize = 4_096;
/// Names of one origin that have a queue of their own: enough for people behind one address, not for a list of guesses.
const NAMES: usize = 16;
/// The delay doubles with every failure, at most this many times.
const DOUBLINGS: u32 = 4;

/// Returns the origin to which a limit applies.
#[must_use]
pub(super) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread panics while it holds such a lock, and every value in it is valid at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sessions: in all, and for each origin.
#[derive(Clone)]
pub(super) struct Slots {
    most: usize,
    most_per_origin: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    sessions: BTreeMap<u64, Holder>,
    /// Number of the next session, in the order of arrival.
    number: u64,
}

/// A session that has a place.
struct Holder {
    peer: SocketAddr,
    /// Ends the session.
    hang_up: Box<dyn FnOnce() + Send>,
    /// It has logged in with a password.
    has_password: bool,
    /// A transfer of it runs.
    transfers: bool,
    /// Closes the port on which it waits for its next data connection, if it does.
    give_up_port: Option<Box<dyn FnOnce() + Send>>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// The server is full.
    Full,
    /// This origin has as many sessions as it may.
    Origin,
}

/// One session's place.
pub(super) struct Slot {
    number: u64,
    taken: Arc<Mutex<Taken>>,
}

impl Slots {
    pub(super) fn new(most: usize, most_per_origin: usize) -> Self {
        Self { most, most_per_origin, taken: Arc::default() }
    }

    /// Returns a place for `peer`, and the peer whose session was ended to make room. `hang_up` must end the new
    /// session at once; it is called only while the new session is dispensable.
    pub(super) fn take(
        &self,
        peer: SocketAddr,
        hang_up: impl FnOnce() + Send + 'static,
    ) -> Result<(Slot, Option<SocketAddr>), NoSlot> {
        let mut taken = locked(&self.taken);
        let origin = origin(peer.ip());
        if taken.sessions.values().filter(|holder| holder.origin() == origin).count() >= self.most_per_origin
        {
            return Err(NoSlot::Origin);
        }
        let mut displaced = None;
        if taken.sessions.len() >= self.most {
            let number = taken.dispensable(origin, |_| true).ok_or(NoSlot::Full)?;
            displaced = taken.sessions.remove(&number).map(|holder| {
                (holder.hang_up)();
                holder.peer
            });
        }
        let number = taken.number;
        taken.number += 1;
        let hang_up = Box::new(hang_up);
        let holder = Holder { peer, hang_up, has_password: false, transfers: false, give_up_port: None };
        taken.sessions.insert(number, holder);
        Ok((Slot { number, taken: Arc::clone(&self.taken) }, displaced))
    }

    /// Closes the port of a session that waits for a data connection and is dispensable, for one of `newcomer`. False if
    /// there is no such session, or not of an origin with more of them.
    pub(super) fn free_port(&self, newcomer: IpAddr) -> bool {
        let mut taken = locked(&self.taken);
        let number = taken.dispensable(origin(newcomer), |holder| holder.give_up_port.is_some());
        let holder = number.and_then(|number| taken.sessions.get_mut(&number));
        let Some(give_up) = holder.and_then(|holder| holder.give_up_port.take()) else { return false };
        give_up();
        true
    }

    pub(super) fn taken(&self) -> usize {
        locked(&self.taken).sessions.len()
    }
}

impl Taken {
    /// Returns the session, of those that are `fit`, which makes room for one from `newcomer`.
    fn dispensable(&self, newcomer: IpAddr, fit: impl Fn(&Holder) -> bool) -> Option<u64> {
        let fit = &fit;
        let dispensable =
            || self.sessions.iter().filter(move |(_, holder)| holder.is_dispensable() && fit(holder));
        let mut origins: HashMap<IpAddr, usize> = HashMap::new();
        dispensable().for_each(|(_, holder)| *origins.entry(holder.origin()).or_default() += 1);
        let own = origins.get(&newcomer).copied().unwrap_or(0);
        let most = origins.values().copied().max().filter(|most| *most > own)?;
        dispensable()
            .find(|(_, holder)| origins.get(&holder.origin()) == Some(&most))
            .map(|(number, _)| *number)
    }
}

impl Holder {
    fn origin(&self) -> IpAddr {
        origin(self.peer.ip())
    }

    fn is_dispensable(&self) -> bool {
        !self.has_password && !self.transfers
    }
}

impl Slot {
    /// Notes that the session has logged in with a password: it keeps its place until [`Slot::release`].
    pub(super) fn keep(&self) {
        self.change(|holder| holder.has_password = true);
    }

    /// Notes that the session's login has ended: it is a stranger again.
    pub(super) fn release(&self) {
        self.change(|holder| holder.has_password = false);
    }

    /// Notes that the session waits for a data connection on a port, which `give_up` closes; `None`: it waits no
    /// longer.
    pub(super) fn wait_on_port(&self, give_up: Option<Box<dyn FnOnce() + Send>>) {
        self.change(|holder| holder.give_up_port = give_up);
    }

    /// Notes that a transfer of the session runs: it has its place until [`Slot::end_transfer`], also as a guest.
    pub(super) fn begin_transfer(&self) {
        self.change(|holder| holder.transfers = true);
    }

    /// Notes that the session's transfer has ended.
    pub(super) fn end_transfer(&self) {
        self.change(|holder| holder.transfers = false);
    }

    /// Changes the session's entry, unless a newcomer has its place already.
    fn change(&self, change: impl FnOnce(&mut Holder)) {
        if let Some(holder) = locked(&self.taken).sessions.get_mut(&self.number) {
            change(holder);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        locked(&self.taken).sessions.remove(&self.number);
    }
}

/// Password attempts, spaced for each origin and name once one has failed.
#[derive(Debug)]
pub(super) struct Attempts {
    /// After the first failure; doubles with each.
    delay: Duration,
    names: RandomState,
    lines: Mutex<HashMap<Line, Failures>>,
}

/// Key of a queue of attempts: an origin and the hash of a name, `None` for all names beyond [`NAMES`].
type Line = (IpAddr, Option<u64>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When the next attempt may be checked.
    next: Instant,
}

impl Attempts {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, names: RandomState::new(), lines: Mutex::default() }
    }

    /// Returns when an attempt at `name` that comes `now` may be checked; `None`: not before `latest`. Later attempts
    /// queue behind it.
    pub(super) fn admit(
        &self,
        address: IpAddr,
        name: &str,
        now: Instant,
        latest: Instant,
    ) -> Option<Instant> {
        let mut lines = locked(&self.lines);
        let line = self.line(&lines, address, name);
        let Some(failures) = lines.get_mut(&line) else { return Some(now) };
        let at = failures.next.max(now);
        // Attempts that cannot wait do not join the queue, or many of them would block it for hours.
        if at > latest {
            return None;
        }
        failures.next = at + self.spacing(failures.count);
        Some(at)
    }

    /// Notes that an attempt at `name` failed, and returns when the next one may be checked.
    pub(super) fn failed(&self, address: IpAddr, name: &str, now: Instant) -> Instant {
        let mut lines = locked(&self.lines);
        lines.retain(|_, failures| now < failures.next + FORGIVEN_AFTER);
        if lines.len() >= MAX_LINES {
            let oldest = lines.iter().min_by_key(|(_, failures)| failures.next).map(|(line, _)| *line);
            oldest.map(|line| lines.remove(&line));
        }
        let line = self.line(&lines, address, name);
        let failures = lines.entry(line).or_insert(Failures { count: 0, next: now });
        failures.count = failures.count.saturating_add(1);
        failures.next = failures.next.max(now + self.spacing(failures.count));
        failures.next
    }

    fn line(&self, lines: &HashMap<Line, Failures>, address: IpAddr, name: &str) -> Line {
        let own = (origin(address), Some(self.names.hash_one(name)));
        let known = lines.contains_key(&own);
        let full =
            || lines.keys().filter(|(origin, name)| *origin == own.0 && name.is_some()).count() >= NAMES;
        if !known && full() { (own.0, None) } else { own }
    }

    fn spacing(&self, failures: u32) -> Duration {
        self.delay * (1 << failures.saturating_sub(1).min(DOUBLINGS))
    }
}

/// Memory granted to peers, of one kind: buffers, or names of listed directories.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    caps: BufferCaps,
    held: Arc<Mutex<Held>>,
}

/// Most bytes of buffers that peers may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferCaps {
    /// Bound for one connection.
    pub connection: Bytes,
    /// Bound for all connections of one user name together.
    pub user: Bytes,
    /// Bound for all connections together.
    pub host: Bytes,
}

impl Default for BufferCaps {
    /// Returns 16 MiB, which fill 1 Gbit/s over 130 ms, and sums for four and sixteen such transfers.
    fn default() -> Self {
        Self { connection: Bytes(16 << 20), user: Bytes(64 << 20), host: Bytes(256 << 20) }
    }
}

#[derive(Debug, Default)]
struct Held {
    host: u64,
    users: HashMap<String, u64>,
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct Grant {
    user: String,
    bytes: u64,
    ledger: Ledger,
}

impl Ledger {
    pub(super) fn new(caps: BufferCaps) -> Self {
        Self { caps, held: Arc::default() }
    }

    /// Returns an empty grant for a connection, or a listing, of `user`.
    pub(super) fn open(&self, user: &str) -> Grant {
        Grant { user: user.to_owned(), bytes: 0, ledger: self.clone() }
    }
}

impl Grant {
    /// Grants as much of `request` as the caps leave, in place of the grant before.
    pub(super) fn ask(&mut self, request: Bytes) -> Bytes {
        let mut held = locked(&self.ledger.held);
        held.give_back(&self.user, self.bytes);
        let caps = self.ledger.caps;
        let user = held.users.get(&self.user).copied().unwrap_or(0);
        let granted = request
            .0
            .min(caps.connection.0)
            .min(caps.user.0.saturating_sub(user))
            .min(caps.host.0.saturating_sub(held.host));
        held.host += granted;
        *held.users.entry(self.user.clone()).or_default() += granted;
        self.bytes = granted;
        Bytes(granted)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        locked(&self.ledger.held).give_back(&self.user, self.bytes);
    }
}

impl Held {
    fn give_back(&mut self, user: &str, bytes: u64) {
        self.host -= bytes;
        if let Some(held) = self.users.get_mut(user) {
            *held -= bytes;
            if *held == 0 {
                self.users.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [198, 18, 0, last].into()
    }

    #[test]
    fn slots_are_bounded_for_all_and_for_each_origin_and_come_back() {
        let slots = Slots::new(3, 2);
        let take = |last| {
            let (slot, displaced) =
                slots.take((address(last), 1_024).into(), || panic!("it has logged in"))?;
            slot.keep();
            assert_eq!(displaced, None);
            Ok(slot)
        };
        let first = take(1).unwrap();
        let _second = take(1).unwrap();
        assert_eq!(take(1).err(), Some(NoSlot::Origin));
        let _third = take(2).unwrap();
        assert_eq!(take(3).err(), Some(NoSlot::Full));
        drop(first);
        let _again = take(1).unwrap();
        assert_eq!(slots.taken(), 3);
    }

    #[test]
    fn a_place_is_kept_by_a_password_or_for_as_long_as_a_transfer_runs() {
        let slots = Slots::new(2, 2);
        let take = |last| slots.take((address(last), 1_024).into(), || {});
        let displaced = |last| take(last).map(|(_, displaced)| displaced.map(|peer| peer.ip()));
        let (first, second) = (take(1).unwrap().0, take(1).unwrap().0);
        first.keep();
        second.begin_transfer();
        assert_eq!(displaced(2), Err(NoSlot::Full));
        second.end_transfer();
        assert_eq!(displaced(2), Ok(Some(address(1))));
        // Neither has any effect on a place that is another's by now.
        second.begin_transfer();
        second.keep();
        let _third = take(3).unwrap().0;
        assert_eq!(displaced(2), Ok(Some(address(3))), "the first one stays");
        let _again = take(3).unwrap().0;
        first.release();
        first.begin_transfer();
        assert_eq!(displaced(2), Ok(Some(address(3))), "without a login, but it transfers");
        let _fourth = take(3).unwrap().0;
        first.end_transfer();
        assert_eq!(displaced(2), Ok(Some(address(1))), "the oldest, whose login has ended");
    }

    #[test]
    fn a_newcomer_has_the_place_of_the_oldest_stranger_of_those_who_have_most() {
        let slots = Slots::new(4, 4);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let take = |last, port| {
            let told = Arc::clone(&ended);
            let (slot, displaced) =
                slots.take((address(last), port).into(), move || locked(&told).push(port))?;
            assert_eq!(displaced.map(|peer| peer.port()), locked(&ended).pop());
            Ok((slot, displaced.map(|peer| peer.port())))
        };
        let known = take(1, 1).unwrap().0;
        known.keep();
        let idle = [2, 3, 4].map(|port| take(1, port).unwrap().0);
        assert_eq!(take(1, 5).err(), Some(NoSlot::Origin));
        let (newcomer, displaced) = take(2, 6).unwrap();
        assert_eq!(displaced, Some(2), "the one that has logged in stays");
        drop(idle);
        assert_eq!(slots.taken(), 2, "a place that was taken is not given back twice");
        let (_third, _fourth) = (take(3, 7).unwrap(), take(4, 8).unwrap());
        assert_eq!(take(2, 9).err(), Some(NoSlot::Full), "it has as many as anybody");
        assert_eq!(take(5, 9).unwrap().1, Some(6), "the oldest");
        drop(newcomer);
    }

    #[test]
    fn a_newcomer_has_the_port_of_a_guest_that_waits_but_not_of_its_own_origin_nor_with_a_password() {
        let slots = Slots::new(5, 5);
        let closed = Arc::new(Mutex::new(Vec::new()));
        let take = |last, port: u16| {
            let slot = slots.take((address(last), port).into(), || panic!("it goes on")).unwrap().0;
            let told = Arc::clone(&closed);
            slot.wait_on_port(Some(Box::new(move || locked(&told).push(port))));
            slot
        };
        let (known, _first) = (take(1, 1), take(2, 2));
        known.keep();
        let (second, third) = (take(2, 3), take(2, 4));
        assert!(!slots.free_port(address(2)), "its own origin has most");
        third.wait_on_port(None);
        assert!(slots.free_port(address(3)), "the oldest");
        second.begin_transfer();
        assert!(!slots.free_port(address(3)), "one transfers, one has given its port up, one has a password");
        assert_eq!(*locked(&closed), [2]);
    }

    #[test]
    fn an_ipv6_network_is_one_origin_and_a_mapped_address_its_ipv4() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(origin(parse("fd00:b::1")), origin(parse("fd00:b::ffff:2")));
        assert_ne!(origin(parse("fd00:b::1")), origin(parse("fd00:b:0:1::1")));
        assert_eq!(origin(parse("::ffff:198.18.0.1")), address(1));
    }

    #[test]
    fn attempts_wait_longer_after_each_failure_and_in_line() {
        let second = Duration::from_secs(1);
        let attempts = Attempts::new(second);
        let start = Instant::now();
        let latest = start + 3 * second;
        let admit = |last| attempts.admit(address(last), "jo", start, latest);
        assert_eq!(admit(1), Some(start), "nobody waits who has not failed");
        assert_eq!(attempts.failed(address(1), "jo", start), start + second);
        // Three at once over three connections: one after another.
        let at = [(); 5].map(|()| admit(1));
        let seconds = [1, 2, 3].map(|count| Some(start + count * second));
        assert_eq!(at, [seconds[0], seconds[1], seconds[2], None, None], "the line has an end");
        assert_eq!(admit(2), Some(start), "another origin");
        assert_eq!(attempts.admit(address(1), "ann", start, latest), Some(start), "another name");
        let later = start + 10 * second;
        let delays: Vec<u64> = (0..6)
            .map(|n| {
                let now = later + 100 * n * second;
                attempts.failed(address(1), "jo", now).duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(delays, [2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn guesses_at_many_names_wait_for_each_other() {
        let attempts = Attempts::new(Duration::from_secs(1));
        let start = Instant::now();
        for n in 0..NAMES {
            attempts.failed(address(1), &format!("guess {n}"), start);
        }
        let admit = |name: &str| attempts.admit(address(1), name, start, start);
        assert_eq!(admit("jo"), Some(start));
        attempts.failed(address(1), "one more", start);
        assert_eq!((admit("jo"), admit("another")), (None, None));
        assert_eq!(attempts.admit(address(2), "jo", start, start), Some(start), "another origin");
    }

    #[test]
    fn failures_are_forgotten_and_the_table_is_bounded() {
        let attempts = Attempts::new(Duration::from_secs(1));
        let start = Instant::now();
        attempts.failed(address(1), "jo", start);
        let later = start + FORGIVEN_AFTER + Duration::from_secs(2);
        attempts.failed(address(2), "jo", later);
        assert_eq!(attempts.admit(address(1), "jo", later, later), Some(later));
        for n in 0..u32::try_from(MAX_LINES).unwrap() + 100 {
            attempts.failed(IpAddr::from(n.to_be_bytes()), "jo", later);
        }
        assert_eq!(locked(&attempts.lines).len(), MAX_LINES);
    }

    #[test]
    fn requests_are_bounded_by_connection_user_and_host_and_come_back() {
        let caps = BufferCaps { connection: Bytes(10), user: Bytes(15), host: Bytes(22) };
        let ledger = Ledger::new(caps);
        let mut first = ledger.open("a");
        assert_eq!(first.ask(Bytes(u64::MAX)), Bytes(10));
        let mut second = ledger.open("a");
        assert_eq!(second.ask(Bytes(8)), Bytes(5), "the user's");
        let mut third = ledger.open("b");
        assert_eq!(third.ask(Bytes(9)), Bytes(7), "the host's");
        assert_eq!(first.ask(Bytes(4)), Bytes(4), "a new request replaces the old one");
        assert_eq!(third.ask(Bytes(9)), Bytes(9));
        drop((first, second, third));
        let held = locked(&ledger.held);
        assert_eq!((held.host, held.users.len()), (0, 0));
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings;
