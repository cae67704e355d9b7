//! Decides when the engine in user space searches for sockets and samples each connection. Pure; time is passed in
//! (microseconds).
//!
//! Problem: a connection should be found within a round trip of its start and sampled often during its start phase, and a
//! process that only waits should cost almost nothing.
//! Rules:
//! - After a quiet time T, the next check comes after T/8. So an event that takes a round trip (a handshake, the answer to a
//!   request) is seen at most an eighth of that round trip late, however long the round trip is.
//! - A connection is sampled every millisecond for its first 30 round trips (slow start takes about half of them),
//!   then four times per round trip.
//! - While segments wait behind a hole, samples are a millisecond apart.
//! - A rule that times trains needs samples at their first and last segments. A train follows the previous one after a
//!   round trip. From shortly before it is due until it has passed, samples are [`FINE`] apart; they are [`FINEST`] apart
//!   until its first segments have been seen, because a whole first flight may last for only a millisecond.
//! - All of this together takes at most a 64th of a processor in the long run ([`Allowance`]); with the wake-ups and
//!   the samples for the report, a fiftieth. If a sample takes 5 us, 100 busy connections are sampled every 32 ms.
//! - Searches take at most half of that. Otherwise the searches of an idle server with many processes would leave no saved
//!   time for the start of its next connection. While searches use all of their half, samples have the other half for
//!   themselves ([`Search::counted`]). Otherwise a search of thousands of descriptors would delay them by tenths of a second.
//! - Silent connections take turns ([`chosen`]). If all silent connections of a server were sampled at once, the busy ones
//!   would have to wait until the allowance has recovered.

/// Least time between two checks, microseconds, as all times here.
const LEAST: u64 = 1_000;
/// The next interval is this part of the quiet time.
const QUIET: u64 = 8;
/// Longest time between two searches for new sockets: a server may accept at any time.
const LONGEST_SEARCH: u64 = 20_000;
/// Longest time between two samples: of a connection without progress, and of one with progress ([`LONGEST_SAMPLE`]).
const LONGEST_SILENCE: u64 = 100_000;
const LONGEST_SAMPLE: u64 = 50_000;
/// Samples per round trip after the start phase.
const PER_ROUND_TRIP: u64 = 4;
/// Length of a connection's start phase: this many round trips, and at least this time.
const STARTING_ROUND_TRIPS: u64 = 30;
const LEAST_START: u64 = 30_000;
/// All work takes at most one part in [`PART`] of the time, and searches one part in [`PART_OF_SEARCHES`].
pub(super) const PART: u64 = 64;
const PART_OF_SEARCHES: u64 = 128;
/// Largest amount of unused work that is saved, in microseconds of a processor, so that the start of many connections
/// at once is not missed.
const SAVED: u64 = 40_000;
/// Silent connections that are sampled at once: at least this many, and at least this part of all connections.
const SILENT_AT_ONCE: usize = 16;
const PART_OF_SILENT: usize = 64;

/// Timing of samples around a train, in microseconds: the time between two samples; that time while the train begins; how
/// long before the train is due these samples start; and the silence after which the train has passed.
const FINE: u64 = 200;
const FINEST: u64 = 100;
const AHEAD: u64 = 1_000;
const PASSED: u64 = 1_500;
/// How long the beginning of a train lasts, in microseconds.
const BEGIN: u64 = 1_000;

/// Returns the interval that follows a quiet time.
fn after_quiet(quiet: u64, longest: u64) -> u64 {
    (quiet / QUIET).clamp(LEAST, longest)
}

/// Schedule of the searches for new sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Time of the next one, if it is allowed by then.
    due_at: u64,
    new_at: u64,
    allowance: Allowance,
}

impl Search {
    pub(super) fn new(now: u64) -> Self {
        Self { due_at: now, new_at: now, allowance: Allowance::new(PART_OF_SEARCHES, now) }
    }

    /// Returns the time of the next search.
    pub(super) fn next_at(&self) -> u64 {
        self.due_at.max(self.allowance.ready_at())
    }

    /// Notes that the search at `now` took `cost` of processor time.
    pub(super) fn spend(&mut self, now: u64, cost: u64) {
        self.allowance.spend(now, cost);
    }

    /// Returns how much of the work at `now` counts for the allowance of all work. The work took `all` of processor time, and
    /// `searched` of that was for searches. The time that searches owe does not count; but until it is paid, samples count
    /// twice.
    pub(super) fn counted(&self, now: u64, all: u64, searched: u64) -> u64 {
        let owed = self.allowance.ready_at().saturating_sub(now);
        if owed == 0 {
            return all;
        }
        all.saturating_sub(searched) * 2 + searched.saturating_sub(owed / PART_OF_SEARCHES)
    }

    /// Notes a search at `now`; `found`: it found a new process or socket.
    pub(super) fn made(&mut self, now: u64, found: bool) {
        if found {
            self.new_at = now;
        }
        self.due_at = now + after_quiet(now.saturating_sub(self.new_at), LONGEST_SEARCH);
    }

    /// Makes the next search due at once, because a socket was not found at its known place.
    pub(super) fn hasten(&mut self, now: u64) {
        self.due_at = self.due_at.min(now);
    }
}

/// Schedule of the samples of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Time of the next sample; a rule that needs an earlier one may lower it.
    pub(super) next_at: u64,
    opened_at: u64,
    moved_at: u64,
    sampled_at: u64,
    /// The last train started after the first of these times, and not after the second one.
    train_after: u64,
    train_by: u64,
}

impl Schedule {
    pub(super) fn new(now: u64) -> Self {
        Self { next_at: now, opened_at: now, moved_at: now, sampled_at: now, train_after: now, train_by: now }
    }

    /// Notes a sample at `now`. `moved`: data moved since the previous sample. `rtt`: the mean round trip; 0 if unknown.
    /// `trains`: the shortest round trip, if the rule times trains. (The mean may be too long for that, because a delayed
    /// acknowledgement lengthens the first round trip.)
    pub(super) fn sampled(&mut self, now: u64, moved: bool, rtt: u64, trains: Option<u64>) {
        if moved {
            if now - self.moved_at > rtt / 4 {
                (self.train_after, self.train_by) = (self.sampled_at, now);
            }
            self.moved_at = now;
        }
        self.sampled_at = now;
        let starts = now - self.opened_at < (rtt * STARTING_ROUND_TRIPS).max(LEAST_START);
        let busy = if starts { LEAST } else { (rtt / PER_ROUND_TRIP).clamp(LEAST, LONGEST_SAMPLE) };
        let quiet = now - self.moved_at;
        self.next_at = now + if quiet == 0 { busy } else { busy.max(after_quiet(quiet, LONGEST_SILENCE)) };
        if let Some(at) = trains.and_then(|shortest| self.next_of_train(now, shortest)) {
            self.next_at = self.next_at.min(at);
        }
    }

    /// Returns whether no data has moved for so long that samples have their longest interval.
    fn is_silent(&self) -> bool {
        self.sampled_at - self.moved_at >= LONGEST_SILENCE * QUIET
    }

    /// Makes the next sample due as soon as in the start phase.
    pub(super) fn hasten(&mut self, now: u64) {
        self.next_at = self.next_at.min(now + LEAST);
    }

    /// Returns the time of the next sample that the start or end of a train needs.
    fn next_of_train(&self, now: u64, rtt: u64) -> Option<u64> {
        let (begin, end) = ((self.train_after + rtt).saturating_sub(AHEAD), self.train_by + rtt + rtt / 4);
        if (begin..end).contains(&now) || now < self.train_by + BEGIN {
            return Some(now + FINEST);
        }
        if now < self.moved_at + PASSED {
            return Some(now + FINE);
        }
        (now < begin).then_some(begin)
    }
}

/// Returns the cookies of the connections that are sampled now. `due` are the connections that are due, `all` is the number
/// of open ones. All busy connections are sampled, and as many silent ones, at least a part of all; of the silent ones those
/// that have been due for longest.
pub(super) fn chosen(due: impl Iterator<Item = (u64, Schedule)>, all: usize) -> Vec<u64> {
    let (mut silent, busy): (Vec<_>, Vec<_>) = due.partition(|(_, schedule)| schedule.is_silent());
    silent.sort_unstable_by_key(|(cookie, schedule)| (schedule.next_at, *cookie));
    silent.truncate(busy.len().max(all / PART_OF_SILENT).max(SILENT_AT_ONCE));
    busy.into_iter().chain(silent).map(|(cookie, _)| cookie).collect()
}

/// The processor time that the engine may use for some kind of work: one part in `part` of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    part: u64,
    /// Time up to which work is paid for. Before `now`, the difference is saved; after `now`, it is owed.
    paid_until: u64,
}

impl Allowance {
    pub(super) fn new(part: u64, now: u64) -> Self {
        Self { part, paid_until: now.saturating_sub(SAVED * part) }
    }

    /// Notes work at `now` that took `cost` of processor time.
    pub(super) fn spend(&mut self, now: u64, cost: u64) {
        self.paid_until = self.paid_until.max(now.saturating_sub(SAVED * self.part)) + cost * self.part;
    }

    /// Returns the time before which no work may be done.
    pub(super) fn ready_at(self) -> u64 {
        self.paid_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches from the next due time until `end`; returns the number of searches.
    fn searches(search: &mut Search, end: u64) -> u64 {
        let mut count = 0;
        while search.next_at() < end {
            search.made(search.next_at(), false);
            count += 1;
        }
        count
    }

    #[test]
    fn a_handshake_is_seen_to_end_an_eighth_of_its_round_trip_late_at_most() {
        for rtt in [100, 5_000, 40_000, 150_000, 300_000] {
            let mut search = Search::new(1_000_000);
            search.made(1_000_000, true);
            while search.next_at() < 1_000_000 + rtt {
                search.made(search.next_at(), false);
            }
            let late = search.next_at() - 1_000_000 - rtt;
            assert!(late <= (rtt / 8).max(LEAST), "{late} us after {rtt}");
        }
    }

    #[test]
    fn searches_get_rare_while_nothing_is_new_and_frequent_again() {
        let mut search = Search::new(0);
        searches(&mut search, 1_000_000);
        assert_eq!(searches(&mut search, 2_000_000), 50, "one every 20 ms");
        search.made(2_000_000, true);
        assert_eq!(search.next_at(), 2_001_000);
        search.made(2_001_000, false);
        search.hasten(2_001_500);
        assert_eq!(search.next_at(), 2_001_500);
    }

    /// Samples a connection that always moves data, until `end`; returns the number of samples.
    fn samples(schedule: &mut Schedule, rtt: u64, end: u64) -> u64 {
        let mut count = 0;
        while schedule.next_at < end {
            schedule.sampled(schedule.next_at, true, rtt, None);
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
        let (mut schedule, mut times) = (Schedule::new(0), Vec::new());
        while schedule.next_at < 400_000 {
            let now = schedule.next_at;
            times.push(now);
            // The mean round trip is longer than the shortest one.
            schedule.sampled(now, now % 40_000 < 3_000, 45_000, Some(40_000));
        }
        for train in 2..10 {
            for edge in [train * 40_000, train * 40_000 + 3_000] {
                let near = times.iter().map(|at| at.abs_diff(edge)).min();
                assert!(near.is_some_and(|near| near <= 250), "{near:?} us beside {edge}");
            }
        }
        assert!(times.len() < 800, "{} in 400 ms", times.len());
    }

    /// A program sends its first flight some time after the connection was established. The answer is due a round trip later,
    /// but that time is known only to lie between two samples.
    #[test]
    fn the_begin_of_a_first_flight_is_seen_within_a_tenth_of_a_millisecond_though_it_was_sent_between_two_samples()
     {
        for (rtt, sent_at) in [(20_000, 20_700), (40_000, 41_300), (80_000, 95_000), (200_000, 333_000)] {
            let (mut schedule, mut sent, mut seen) = (Schedule::new(0), false, Vec::new());
            while schedule.next_at < sent_at + rtt + 1_000 {
                let now = schedule.next_at;
                // Its segments are acknowledged a tenth of a millisecond apart.
                let moved = (now >= sent_at && !sent) || now >= sent_at + rtt;
                sent |= now >= sent_at;
                seen.push(now);
                schedule.sampled(now, moved, rtt, sent.then_some(rtt));
            }
            let begin: Vec<u64> = seen.iter().copied().filter(|at| *at >= sent_at + rtt).collect();
            assert!(begin[0] - sent_at - rtt <= FINEST, "{} us late after {rtt}", begin[0] - sent_at - rtt);
            assert!(begin.windows(2).all(|two| two[1] - two[0] <= FINEST), "{begin:?}");
            assert!(seen.len() < 450, "{} samples", seen.len());
        }
    }

    #[test]
    fn a_sample_that_is_hastened_comes_within_a_millisecond() {
        let mut schedule = Schedule::new(0);
        samples(&mut schedule, 80_000, 3_000_000);
        let now = schedule.next_at;
        schedule.sampled(now, true, 80_000, None);
        assert_eq!(schedule.next_at, now + 20_000);
        schedule.hasten(now);
        assert_eq!(schedule.next_at, now + 1_000);
    }

    #[test]
    fn a_silent_connection_is_left_alone_until_it_moves_again() {
        let mut schedule = Schedule::new(0);
        samples(&mut schedule, 20_000, 1_000_000);
        let mut count = 0;
        while schedule.next_at < 11_000_000 {
            schedule.sampled(schedule.next_at, false, 20_000, None);
            count += 1;
        }
        assert!((100..150).contains(&count), "{count} in 10 s");
        let moved_at = schedule.next_at;
        schedule.sampled(moved_at, true, 20_000, None);
        assert_eq!(schedule.next_at, moved_at + 5_000);
    }

    #[test]
    fn a_request_is_answered_within_an_eighth_of_the_wait_and_a_millisecond() {
        let mut schedule = Schedule::new(0);
        schedule.sampled(0, true, 0, None);
        let answer = 200_000;
        while schedule.next_at < answer {
            schedule.sampled(schedule.next_at, false, 0, None);
        }
        assert!(schedule.next_at - answer <= answer / 8);
    }

    #[test]
    fn work_is_a_64th_of_the_time_after_a_start_that_may_take_more() {
        let begin = 60_000_000;
        let (mut allowance, mut now, mut spent) = (Allowance::new(PART, begin), begin, 0);
        // 100 connections of 5 us each, whenever work is allowed.
        while now < begin + 10_000_000 {
            now = now.max(allowance.ready_at());
            allowance.spend(now, 500);
            spent += 500;
        }
        assert!((156_000..=157_000 + SAVED).contains(&spent), "{spent} us in 10 s");
        let mut busy = Allowance::new(PART, begin);
        for millis in 0..20 {
            assert!(busy.ready_at() <= begin + millis * 1_000, "the start is not slowed down");
            busy.spend(begin + millis * 1_000, 200);
        }
    }

    /// A server has thousands of descriptors: each search takes 3 ms, and is due again after 20 ms. Samples are due every 10 ms.
    #[test]
    fn costly_searches_keep_no_sample_waiting_and_all_work_stays_within_its_part() {
        for (cost, wait) in [(25, 15_000), (500, 70_000)] {
            let (begin, end) = (60_000_000_u64, 90_000_000);
            let (mut all, mut search) = (Allowance::new(PART, begin), Search::new(begin));
            all.spend(begin, SAVED);
            search.spend(begin, SAVED);
            let (mut at, mut sampled_at, mut longest, mut used) = (begin, begin, 0_u64, 0_u64);
            while at < end {
                at = search.next_at().min(sampled_at + 10_000).max(all.ready_at());
                let searched = if at >= search.next_at() { 3_000 } else { 0 };
                if searched > 0 {
                    search.made(at, false);
                    search.spend(at, searched);
                }
                let is_due = at >= sampled_at + 10_000;
                let work = searched + if is_due { cost } else { 0 };
                if is_due {
                    longest = longest.max(at - sampled_at);
                    sampled_at = at;
                }
                all.spend(at, search.counted(at, work, searched));
                used += work;
            }
            assert!(longest <= wait, "{longest} us between samples of {cost} us");
            assert!(used <= (end - begin) / PART + SAVED, "{used} us with samples of {cost} us");
        }
    }

    /// A server with two thousand idle connections and five busy ones; a sample takes 5 us.
    #[test]
    fn silent_connections_take_turns_and_keep_no_busy_one_waiting() {
        const EACH: u64 = 5;
        let (begin, busy, all) = (60_000_000_u64, 5, 2_005);
        let mut schedules = vec![Schedule::new(begin); all];
        let mut allowance = Allowance::new(PART, begin);
        let (mut at, mut last, mut longest) = (begin, vec![begin; all], [0_u64; 2]);
        while at < begin + 20_000_000 {
            let next = schedules.iter().map(|one| one.next_at).min().unwrap();
            at = at.max(next).max(allowance.ready_at());
            let due = (0_u64..).zip(schedules.iter().copied()).filter(|(_, one)| one.next_at <= at);
            let sampled = chosen(due, all);
            allowance.spend(at, EACH * sampled.len() as u64);
            for one in sampled.into_iter().map(|cookie| cookie as usize) {
                let is_busy = one < busy;
                schedules[one].sampled(at, is_busy, 40_000, None);
                // Before, all are new.
                if at > begin + 10_000_000 {
                    let longest = &mut longest[usize::from(is_busy)];
                    *longest = (*longest).max(at - last[one]);
                }
                last[one] = at;
            }
        }
        let [silent, busy] = longest;
        assert!(busy <= 30_000 && silent <= 2_000_000, "{busy} us between samples, of silent ones {silent}");
    }

    #[test]
    fn what_is_not_used_is_saved_to_a_bound() {
        let mut allowance = Allowance::new(PART, 0);
        allowance.spend(3_600_000_000, SAVED + 100);
        assert_eq!(allowance.ready_at(), 3_600_000_000 + 100 * PART);
    }

    /// An idle server with many processes: each search takes 300 us, and is due again after 20 ms.
    #[test]
    fn costly_searches_leave_the_next_start_all_that_can_be_saved() {
        let (begin, cost) = (60_000_000, 300);
        let (mut all, mut search) = (Allowance::new(PART, begin), Search::new(begin));
        all.spend(begin, SAVED);
        search.spend(begin, SAVED);
        let mut at = begin;
        while at < begin + 30_000_000 {
            at = search.next_at().max(all.ready_at());
            search.made(at, false);
            search.spend(at, cost);
            all.spend(at, cost);
        }
        assert_eq!(all.ready_at(), at - SAVED * PART + cost * PART);
    }
}
