//! When the engine in user space looks: for new sockets, and at each connection. Pure; time is passed in (microseconds).
//!
//! Problem: a connection should be found within a round trip of its birth and followed closely while it starts, and a
//! process that only waits should cost next to nothing.
//! Rules:
//! - What has been quiet for a time T is looked at again after T/8: an event that takes a round trip (a handshake, the
//!   answer to a request) is seen an eighth of that round trip late at most, however long it is.
//! - A connection is sampled every millisecond for its first 30 round trips (slow start takes about half of them), then
//!   four times per round trip.
//! - A rule that times trains wants to see their first and last segments. A train comes a round trip after the one before: from
//!   shortly before it is due until it has passed, samples are a quarter of a millisecond apart.
//! - All of this together takes at most a 64th of a processor in the long run ([`Allowance`]), so that with the wake-ups and
//!   the looks for the report it is a fiftieth. If a sample takes 5 us, 100 busy connections are sampled every 32 ms.

/// The shortest time between two looks.
const LEAST: u64 = 1_000;
/// The quiet time counts so many times the next interval.
const QUIET: u64 = 8;
/// New sockets are looked for at least so often: a server may accept at any time.
const LONGEST_SEARCH: u64 = 20_000;
/// A connection without progress is sampled at least so often, one with progress every [`LONGEST_SAMPLE`].
const LONGEST_SILENCE: u64 = 100_000;
const LONGEST_SAMPLE: u64 = 50_000;
/// Samples per round trip after the start.
const PER_ROUND_TRIP: u64 = 4;
/// A connection starts for so many round trips, and for at least this time.
const STARTING_ROUND_TRIPS: u64 = 30;
const LEAST_START: u64 = 30_000;
/// One part in so many of the time is for work.
const PART: u64 = 64;
/// Work that is not used may be saved up to this much: the start of many connections at once is not to be missed.
const SAVED: u64 = 40_000;

/// While a train is due or passes; how long before it is due that begins; a train has passed after so long a silence.
const FINE: u64 = 200;
const AHEAD: u64 = 1_500;
const PASSED: u64 = 1_500;

/// The interval that follows a quiet time.
fn after_quiet(quiet: u64, longest: u64) -> u64 {
    (quiet / QUIET).clamp(LEAST, longest)
}

/// When to look for new sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) next_at: u64,
    new_at: u64,
}

impl Search {
    pub(super) fn new(now: u64) -> Self {
        Self { next_at: now, new_at: now }
    }

    /// A search was made at `now`; `found`: it met a process or socket that was not there before.
    pub(super) fn made(&mut self, now: u64, found: bool) {
        if found {
            self.new_at = now;
        }
        self.next_at = now + after_quiet(now.saturating_sub(self.new_at), LONGEST_SEARCH);
    }

    /// A socket is not where it was: look at once.
    pub(super) fn hasten(&mut self, now: u64) {
        self.next_at = self.next_at.min(now);
    }
}

/// When to sample one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// The next sample is due; a rule that needs one earlier may lower it.
    pub(super) next_at: u64,
    opened_at: u64,
    moved_at: u64,
    /// When the last train began.
    train_at: u64,
}

impl Schedule {
    pub(super) fn new(now: u64) -> Self {
        Self { next_at: now, opened_at: now, moved_at: now, train_at: now }
    }

    /// A sample was taken at `now`; `moved`: data went or came since the one before; `rtt`: 0 if it is not known; `trains`: the
    /// rule times them.
    pub(super) fn sampled(&mut self, now: u64, moved: bool, rtt: u64, trains: bool) {
        if moved {
            if now - self.moved_at > rtt / 4 {
                self.train_at = now;
            }
            self.moved_at = now;
        }
        let starts = now - self.opened_at < (rtt * STARTING_ROUND_TRIPS).max(LEAST_START);
        let busy = if starts { LEAST } else { (rtt / PER_ROUND_TRIP).clamp(LEAST, LONGEST_SAMPLE) };
        let quiet = now - self.moved_at;
        self.next_at = now + if quiet == 0 { busy } else { busy.max(after_quiet(quiet, LONGEST_SILENCE)) };
        if let Some(at) = self.next_of_train(now, rtt).filter(|_| trains) {
            self.next_at = self.next_at.min(at);
        }
    }

    /// When to look so that the begin or the end of a train is not missed.
    fn next_of_train(&self, now: u64, rtt: u64) -> Option<u64> {
        let (begin, end) = ((self.train_at + rtt).saturating_sub(AHEAD), self.train_at + rtt + rtt / 4);
        if now < self.moved_at + PASSED || (begin..end).contains(&now) {
            return Some(now + FINE);
        }
        (now < begin).then_some(begin)
    }
}

/// Processor time that the engine may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Work done up to here is paid for: behind `now` by what is saved, before it by what is owed.
    paid_until: u64,
}

impl Allowance {
    pub(super) fn new(now: u64) -> Self {
        Self { paid_until: now.saturating_sub(SAVED * PART) }
    }

    /// Work that took `cost` of processor time has been done at `now`.
    pub(super) fn spend(&mut self, now: u64, cost: u64) {
        self.paid_until = self.paid_until.max(now.saturating_sub(SAVED * PART)) + cost * PART;
    }

    /// No work is to be done before.
    pub(super) fn ready_at(self) -> u64 {
        self.paid_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches from `now` on until `end`; how many.
    fn searches(search: &mut Search, end: u64) -> u64 {
        let mut count = 0;
        while search.next_at < end {
            search.made(search.next_at, false);
            count += 1;
        }
        count
    }

    #[test]
    fn a_handshake_is_seen_to_end_an_eighth_of_its_round_trip_late_at_most() {
        for rtt in [100, 5_000, 40_000, 150_000, 300_000] {
            let mut search = Search::new(1_000_000);
            search.made(1_000_000, true);
            while search.next_at < 1_000_000 + rtt {
                search.made(search.next_at, false);
            }
            let late = search.next_at - 1_000_000 - rtt;
            assert!(late <= (rtt / 8).max(LEAST), "{late} us after {rtt}");
        }
    }

    #[test]
    fn searches_get_rare_while_nothing_is_new_and_frequent_again() {
        let mut search = Search::new(0);
        searches(&mut search, 1_000_000);
        assert_eq!(searches(&mut search, 2_000_000), 50, "one every 20 ms");
        search.made(2_000_000, true);
        assert_eq!(search.next_at, 2_001_000);
        search.made(2_001_000, false);
        search.hasten(2_001_500);
        assert_eq!(search.next_at, 2_001_500);
    }

    /// Samples of a connection that moves data at each, over this time.
    fn samples(schedule: &mut Schedule, rtt: u64, end: u64) -> u64 {
        let mut count = 0;
        while schedule.next_at < end {
            schedule.sampled(schedule.next_at, true, rtt, false);
            count += 1;
        }
        count
    }

    #[test]
    fn a_connection_is_followed_closely_at_first_and_then_some_times_per_round_trip() {
        let mut schedule = Schedule::new(0);
        assert_eq!(samples(&mut schedule, 40_000, 1_200_000), 1_200, "30 round trips of 40 ms, once per ms");
        assert_eq!(samples(&mut schedule, 40_000, 2_200_000), 100, "four per round trip");
        let mut near = Schedule::new(0);
        samples(&mut near, 50, 30_000);
        assert_eq!(samples(&mut near, 50, 1_030_000), 1_000, "no more than one per ms");
    }

    #[test]
    fn begin_and_end_of_a_train_are_seen_within_a_quarter_of_a_millisecond() {
        // Trains of 3 ms, every 40 ms.
        let (mut schedule, mut looks) = (Schedule::new(0), Vec::new());
        while schedule.next_at < 400_000 {
            let now = schedule.next_at;
            looks.push(now);
            schedule.sampled(now, now % 40_000 < 3_000, 40_000, true);
        }
        for train in 2..10 {
            for edge in [train * 40_000, train * 40_000 + 3_000] {
                let near = looks.iter().map(|at| at.abs_diff(edge)).min();
                assert!(near.is_some_and(|near| near <= 250), "{near:?} us beside {edge}");
            }
        }
        assert!(looks.len() < 800, "{} in 400 ms", looks.len());
    }

    #[test]
    fn a_silent_connection_is_left_alone_until_it_moves_again() {
        let mut schedule = Schedule::new(0);
        samples(&mut schedule, 20_000, 1_000_000);
        let mut count = 0;
        while schedule.next_at < 11_000_000 {
            schedule.sampled(schedule.next_at, false, 20_000, false);
            count += 1;
        }
        assert!((100..150).contains(&count), "{count} in 10 s");
        let moved_at = schedule.next_at;
        schedule.sampled(moved_at, true, 20_000, false);
        assert_eq!(schedule.next_at, moved_at + 5_000);
    }

    #[test]
    fn a_request_is_answered_within_an_eighth_of_the_wait_and_a_millisecond() {
        let mut schedule = Schedule::new(0);
        schedule.sampled(0, true, 0, false);
        let answer = 200_000;
        while schedule.next_at < answer {
            schedule.sampled(schedule.next_at, false, 0, false);
        }
        assert!(schedule.next_at - answer <= answer / 8);
    }

    #[test]
    fn work_is_a_64th_of_the_time_after_a_start_that_may_take_more() {
        let begin = 60_000_000;
        let (mut allowance, mut now, mut spent) = (Allowance::new(begin), begin, 0);
        // 100 connections of 5 us each, whenever allowed.
        while now < begin + 10_000_000 {
            now = now.max(allowance.ready_at());
            allowance.spend(now, 500);
            spent += 500;
        }
        assert!((156_000..=157_000 + SAVED).contains(&spent), "{spent} us in 10 s");
        let mut busy = Allowance::new(begin);
        for millis in 0..20 {
            assert!(busy.ready_at() <= begin + millis * 1_000, "the start is not slowed down");
            busy.spend(begin + millis * 1_000, 200);
        }
    }

    #[test]
    fn what_is_not_used_is_saved_to_a_bound() {
        let mut allowance = Allowance::new(0);
        allowance.spend(3_600_000_000, SAVED + 100);
        assert_eq!(allowance.ready_at(), 3_600_000_000 + 100 * PART);
    }
}
