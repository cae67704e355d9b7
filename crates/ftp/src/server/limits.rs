//! How many sessions, how often a password may be tried, and how much buffer memory peers may request.
//!
//! Source: RFC 2577, section 5 (password guessing); SBUF is a peer's request for our memory, so it is bounded
//! for a connection, for a user and for the host, and given back when the connection ends.
//! Terms: an *origin* is an IPv4 address, or the first 64 bits of an IPv6 one, which one household commonly
//! has for itself.
//! Properties kept: what a guard counts is given back when the guard is dropped, on every way out; attempts
//! of one origin are spaced also when they come over many connections at once; the table of origins is bounded.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bufwise_units::Bytes;

/// Failures of an origin are forgotten after so long without another one.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// Origins remembered at most; beyond, those that are due longest are forgotten.
const MAX_ADDRESSES_REMEMBERED: usize = 4_096;
/// The delay doubles with every failure up to so many times.
const DOUBLINGS: u32 = 4;

/// Whom a limit is for.
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
#[derive(Clone, Debug)]
pub(super) struct Slots {
    most: usize,
    most_per_origin: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// The server is full.
    Full,
    /// This origin has all it may.
    Origin,
}

/// One session's place.
#[derive(Debug)]
pub(super) struct Slot {
    origin: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Slots {
    pub(super) fn new(most: usize, most_per_origin: usize) -> Self {
        Self { most, most_per_origin, taken: Arc::default() }
    }

    pub(super) fn take(&self, address: IpAddr) -> Result<Slot, NoSlot> {
        let origin = origin(address);
        let mut taken = locked(&self.taken);
        if taken.values().sum::<usize>() >= self.most {
            return Err(NoSlot::Full);
        }
        let mine = taken.entry(origin).or_default();
        if *mine >= self.most_per_origin {
            return Err(NoSlot::Origin);
        }
        *mine += 1;
        Ok(Slot { origin, taken: Arc::clone(&self.taken) })
    }

    pub(super) fn taken(&self) -> usize {
        locked(&self.taken).values().sum()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        if let Some(count) = taken.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.origin);
            }
        }
    }
}

/// Password attempts, spaced for each origin once one has failed.
#[derive(Debug)]
pub(super) struct Attempts {
    /// After the first failure; doubles with each.
    delay: Duration,
    origins: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// The next attempt may be looked at from here on.
    next: Instant,
}

impl Attempts {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, origins: Mutex::default() }
    }

    /// When an attempt that comes `now` may be looked at; `None`: not before `latest`. The attempt after it waits in
    /// line behind it.
    pub(super) fn admit(&self, address: IpAddr, now: Instant, latest: Instant) -> Option<Instant> {
        let mut origins = locked(&self.origins);
        let Some(failures) = origins.get_mut(&origin(address)) else { return Some(now) };
        let at = failures.next.max(now);
        // Those who cannot wait do not make the line longer, or many of them would close it for hours.
        if at > latest {
            return None;
        }
        failures.next = at + self.spacing(failures.count);
        Some(at)
    }

    /// An attempt failed; says from when on the next may come.
    pub(super) fn failed(&self, address: IpAddr, now: Instant) -> Instant {
        let mut origins = locked(&self.origins);
        origins.retain(|_, failures| now < failures.next + FORGIVEN_AFTER);
        if origins.len() >= MAX_ADDRESSES_REMEMBERED {
            let oldest = origins.iter().min_by_key(|(_, failures)| failures.next).map(|(origin, _)| *origin);
            oldest.map(|origin| origins.remove(&origin));
        }
        let failures = origins.entry(origin(address)).or_insert(Failures { count: 0, next: now });
        failures.count = failures.count.saturating_add(1);
        failures.next = failures.next.max(now + self.spacing(failures.count));
        failures.next
    }

    fn spacing(&self, failures: u32) -> Duration {
        self.delay * (1 << failures.saturating_sub(1).min(DOUBLINGS))
    }
}

/// Buffer memory that peers have requested and got.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    caps: BufferCaps,
    held: Arc<Mutex<Held>>,
}

/// Most that peers may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferCaps {
    /// One connection.
    pub connection: Bytes,
    /// All connections of one user name.
    pub user: Bytes,
    /// All connections.
    pub host: Bytes,
}

impl Default for BufferCaps {
    /// 16 MiB fill 1 Gbit/s over 130 ms; the sums are what four and sixteen such transfers need.
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

    /// An empty grant for a connection of `user`.
    pub(super) fn open(&self, user: &str) -> Grant {
        Grant { user: user.to_owned(), bytes: 0, ledger: self.clone() }
    }
}

impl Grant {
    /// As much of `request` as the caps leave, instead of what was granted before.
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
        let first = slots.take(address(1)).unwrap();
        let _second = slots.take(address(1)).unwrap();
        assert_eq!(slots.take(address(1)).unwrap_err(), NoSlot::Origin);
        let _third = slots.take(address(2)).unwrap();
        assert_eq!(slots.take(address(3)).unwrap_err(), NoSlot::Full);
        drop(first);
        let _again = slots.take(address(1)).unwrap();
        assert_eq!(slots.taken(), 3);
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
        let admit = |last| attempts.admit(address(last), start, latest);
        assert_eq!(admit(1), Some(start), "nobody waits who has not failed");
        assert_eq!(attempts.failed(address(1), start), start + second);
        // Three at once over three connections: one after another.
        let at = [(); 5].map(|()| admit(1));
        let seconds = [1, 2, 3].map(|count| Some(start + count * second));
        assert_eq!(at, [seconds[0], seconds[1], seconds[2], None, None], "the line has an end");
        assert_eq!(admit(2), Some(start), "another origin");
        let later = start + 10 * second;
        let delays: Vec<u64> = (0..6)
            .map(|n| {
                let now = later + 100 * n * second;
                attempts.failed(address(1), now).duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(delays, [2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn failures_are_forgotten_and_the_table_is_bounded() {
        let attempts = Attempts::new(Duration::from_secs(1));
        let start = Instant::now();
        attempts.failed(address(1), start);
        let later = start + FORGIVEN_AFTER + Duration::from_secs(2);
        attempts.failed(address(2), later);
        assert_eq!(attempts.admit(address(1), later, later), Some(later));
        for n in 0..u32::try_from(MAX_ADDRESSES_REMEMBERED).unwrap() + 100 {
            attempts.failed(IpAddr::from(n.to_be_bytes()), later);
        }
        assert_eq!(locked(&attempts.origins).len(), MAX_ADDRESSES_REMEMBERED);
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
