//! Schedule of the daemon's work. Pure; time is passed in.

use std::time::Duration;

use bufwise_bpf::{Config, FlowState};
use bufwise_units::{Bytes, Micros};

use crate::history;

/// Pause between two samples. Newcomers should not wait for the next round of shares, so samples are more frequent than
/// rounds if they are cheap. The pause is at least `SAMPLE`, and at least `SAMPLE_REST` times the processor time of the
/// previous sample: a third of a percent of a processor. It is no longer than the time between two rounds, or, while little
/// changes, than `CALM`. `CALM` keeps to that share of a processor for 100,000 connections, whose sample takes 0.1 s. It is
/// three intervals of the history, whose moments come from samples.
const SAMPLE: Micros = Micros::from_millis(100);
const SAMPLE_REST: u64 = 300;
const CALM: Micros = history::INTERVAL.times(3);
/// Time between two heartbeats of the engines, which go by the shares for 5 s after one. Each heartbeat also reads how many
/// connections have come or gone and how much memory is held, so that a long pause ends early.
const BEAT: Micros = Micros::from_secs(1);
/// Time between two searches for network namespaces; the namespace of a new connection is searched for at once.
pub(super) const DISCOVERY: Micros = Micros::from_secs(5);
/// Pause between two sweeps while something lies idle. A sweep costs some microseconds per socket. The pause is at
/// least `SWEEP`, and at least `SWEEP_REST` times the processor time of the previous sweep: at most 2% of a processor, while
/// there is memory to give back.
const SWEEP: Micros = Micros::from_secs(2);
const SWEEP_REST: u64 = 50;
/// Pause between two sweeps while nothing lies idle; they find connections that were missed.
const SWEEP_AT_LEAST: Micros = Micros::from_secs(60);
/// Pause between two sweeps where records are made late: a connection that moves little gets its record from a sweep. The
/// pause is at least `NEWCOMERS`, and at least `NEWCOMERS_REST` times the processor time of the previous sweep (a third of a
/// percent of a processor), but no longer than `SWEEP_AT_LEAST`.
const NEWCOMERS: Micros = Micros::from_secs(5);
const NEWCOMERS_REST: u64 = 300;
/// Rest after a sweep, as a multiple of its processor time, before one for connections that a search has found: a tenth of a
/// processor, because any user can make network namespaces without end.
const EARLY_SWEEP_REST: u64 = 10;
/// Pause after a sample, its shares, or grants that failed, until the next attempt.
const RETRY: Micros = Micros::from_secs(1);
/// Rest after a search through all processes, or after work that may include one, as a multiple of its processor time: 5% of a
/// processor. The regular search for network namespaces comes in any case.
const SEARCH_REST: u64 = 20;
/// Time for which requests of the programs are collected before they are granted: at least `GATHER`, and at least
/// `SEARCH_REST` times what the previous grants took. It is no longer than `GATHER_AT_MOST`: a program repeats its request
/// after 1 s, and a grant after that would look like the application's own setting.
const GATHER: Micros = Micros::from_millis(50);
const GATHER_AT_MOST: Micros = Micros::from_millis(500);
/// Time between two checks for changes by the administrator, which cost a system call per setting.
const MAXIMA: Micros = Micros::from_secs(1);
/// Least time between two changes of the service manager's status line.
const STATUS: Micros = Micros::from_secs(10);

/// The time at which each kind of work is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) sample: Micros,
    beat: Micros,
    discovery: Micros,
    /// Earliest time of a search for network namespaces before the regular one.
    early_discovery: Micros,
    /// Earliest time of the next search for the programs of sockets.
    programs: Micros,
    /// Times of the next sweep: while something lies idle, where records are made late, and else.
    sweep_idle: Micros,
    sweep_newcomers: Micros,
    sweep_missed: Micros,
    /// Earliest time of a sweep for connections that a search has found.
    early_sweep: Micros,
    /// Time until which requests are left waiting.
    pub(super) gathered: Micros,
    maxima: Micros,
    status: Micros,
    record: Micros,
    alive: Micros,
    /// Pause between two signs of life; `None`: the service manager expects none.
    pause: Option<Micros>,
}

impl Due {
    /// Starts the schedule at `now`, with three signs of life per `watchdog`.
    pub(super) fn new(watchdog: Option<Micros>, now: Micros) -> Self {
        Self {
            sample: now,
            beat: now + BEAT,
            discovery: now + DISCOVERY,
            early_discovery: now,
            programs: now,
            sweep_idle: now,
            sweep_newcomers: now,
            sweep_missed: now,
            early_sweep: now,
            gathered: now,
            maxima: now,
            status: now + STATUS,
            record: now,
            alive: now,
            pause: watchdog.map(|watchdog| watchdog.scaled(1, 3)),
        }
    }

    /// Returns the next time at which something is due.
    pub(super) fn next(&self, now: Micros) -> Micros {
        let next = self.sample.min(self.beat).min(self.discovery);
        let next = if self.gathered > now { next.min(self.gathered) } else { next };
        if self.pause.is_some() { next.min(self.alive) } else { next }
    }

    /// Returns whether a sign of life is due, and schedules the next.
    pub(super) fn is_alive_due(&mut self, now: Micros) -> bool {
        let due = self.pause.filter(|_| now >= self.alive);
        if let Some(pause) = due {
            self.alive = now + pause;
        }
        due.is_some()
    }

    /// Returns whether the engines need a heartbeat, and schedules the next; each sample is one as well.
    pub(super) fn is_beat_due(&mut self, now: Micros) -> bool {
        take(&mut self.beat, now, BEAT)
    }

    /// Returns whether a new status line is due, and schedules the next.
    pub(super) fn is_status_due(&mut self, now: Micros) -> bool {
        take(&mut self.status, now, STATUS)
    }

    /// Returns whether the history is to take a sample, and schedules the next.
    pub(super) fn is_record_due(&mut self, now: Micros) -> bool {
        take(&mut self.record, now, history::INTERVAL)
    }

    /// Returns whether the raised maxima are to be checked, and schedules the next check.
    pub(super) fn is_maxima_due(&mut self, now: Micros) -> bool {
        take(&mut self.maxima, now, MAXIMA)
    }

    /// Returns whether to search for namespaces, and schedules the next search.
    pub(super) fn is_discovery_due(&mut self, now: Micros) -> bool {
        take(&mut self.discovery, now, DISCOVERY)
    }

    /// Makes the next search for namespaces come now, or as soon as the last one has rested.
    pub(super) fn discover_early(&mut self, now: Micros) {
        self.discovery = self.discovery.min(self.early_discovery.max(now));
    }

    /// Notes that a search for namespaces took that processor time.
    pub(super) fn discovered(&mut self, took: Micros, now: Micros) {
        self.early_discovery = now + took.times(SEARCH_REST);
    }

    /// Returns whether a search for namespaces and cgroups may include one for the programs of sockets.
    pub(super) fn may_search_programs(&self, now: Micros) -> bool {
        now >= self.programs
    }

    /// Notes that a search for the programs of sockets took that processor time.
    pub(super) fn searched_programs(&mut self, took: Micros, now: Micros) {
        self.programs = now + took.times(SEARCH_REST);
    }

    /// Returns whether to sweep. `idle`: some connections would be changed by a sweep; `late`: records are made late.
    pub(super) fn is_sweep_due(&self, idle: bool, late: bool, now: Micros) -> bool {
        now >= if late { self.sweep_newcomers } else { self.sweep_missed } || idle && now >= self.sweep_idle
    }

    /// Returns whether to sweep at once for connections that a search has found. If not, the next sweep comes as soon as the
    /// last one has rested.
    pub(super) fn may_sweep_early(&mut self, now: Micros) -> bool {
        self.sweep_newcomers = self.sweep_newcomers.min(self.early_sweep);
        self.sweep_missed = self.sweep_missed.min(self.early_sweep);
        now >= self.early_sweep
    }

    /// Notes that a sample that began at `began` took that processor time; shares are computed each `interval`. `calm`: memory
    /// suffices, and few connections end, whose records wait for the next sample.
    pub(super) fn sampled(
        &mut self,
        began: Micros,
        took: Micros,
        interval: Duration,
        calm: bool,
        now: Micros,
    ) {
        let interval = Micros(u64::try_from(interval.as_micros()).unwrap_or(u64::MAX));
        let longest = if calm { CALM } else { interval };
        self.sample = began + SAMPLE.max(took.times(SAMPLE_REST)).min(longest);
        self.beat = now + BEAT;
        // The history's next moment, not the one after it, if half of the pause is over by then.
        let pause = self.sample.since(began);
        if self.sample > self.record && self.record.since(began) > pause.scaled(1, 2) {
            self.sample = self.record;
        }
    }

    /// Notes that a sample, or writing its shares, has failed. Unlike a sample, this is no heartbeat for the engines.
    pub(super) fn sample_failed(&mut self, now: Micros) {
        self.sample = now + RETRY;
    }

    /// Notes that a sweep that began at `began` took that processor time.
    pub(super) fn swept(&mut self, began: Micros, took: Micros) {
        self.sweep_idle = began + SWEEP.max(took.times(SWEEP_REST));
        self.sweep_newcomers = began + NEWCOMERS.max(took.times(NEWCOMERS_REST)).min(SWEEP_AT_LEAST);
        self.sweep_missed = began + SWEEP_AT_LEAST;
        self.early_sweep = began + took.times(EARLY_SWEEP_REST);
    }

    /// Notes that a sweep that began at `began` took that processor time and was not carried through: the next one comes as if
    /// something lay idle.
    pub(super) fn sweep_failed(&mut self, began: Micros, took: Micros) {
        self.swept(began, took);
        (self.sweep_newcomers, self.sweep_missed) = (self.sweep_idle, self.sweep_idle);
    }

    /// Notes that grants took that processor time; requests that come now are collected for a while.
    pub(super) fn granted(&mut self, took: Micros, now: Micros) {
        self.gathered = now + GATHER.max(took.times(SEARCH_REST)).min(GATHER_AT_MOST);
    }

    /// Notes that requests could not be read, and are still there.
    pub(super) fn grant_failed(&mut self, now: Micros) {
        self.gathered = now + RETRY;
    }
}

fn take(due: &mut Micros, now: Micros, pause: Micros) -> bool {
    let is_due = now >= *due;
    if is_due {
        *due = now + pause;
    }
    is_due
}

/// Counts the connections that a sweep would change.
pub(super) fn lying_idle<'a>(flows: impl Iterator<Item = &'a FlowState>, now: Micros) -> usize {
    flows.filter(|flow| lies_idle(flow, now)).count()
}

/// Returns whether a connection has moved nothing for [`Config::IDLE`], and either has larger buffers than it needs
/// or has a queue that no sweep has checked since.
fn lies_idle(flow: &FlowState, now: Micros) -> bool {
    let is_large = |set: Option<Bytes>| set.is_some_and(|size| size > Config::IDLE_SIZE.times(2));
    let ours = flow.ours();
    let could_give =
        ours.send && is_large(flow.set_send_buffer) || ours.receive && is_large(flow.set_receive_buffer);
    !flow.closed
        && now.since(flow.moved_at()) > Config::IDLE
        && (could_give && !flow.given_back || flow.is_unswept() && flow.sample.send_queued > Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::tests::flow;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(100 + seconds)
    }

    #[test]
    fn a_sample_rests_300_times_what_it_took_but_no_longer_than_a_round() {
        let mut due = Due::new(None, at(0));
        let round = Duration::from_millis(500);
        let mut rest = |took: Micros, calm| {
            due.sampled(at(0), took, round, calm, at(0) + took);
            due.sample.since(at(0))
        };
        for calm in [false, true] {
            assert_eq!(rest(Micros(10), calm), Micros::from_millis(100));
            assert_eq!(rest(Micros(1_000), calm), Micros::from_millis(300));
        }
        for took in [5_000, 20_000] {
            assert_eq!(rest(Micros(took), false), Micros::from_millis(500));
        }
    }

    /// Beside 20,000 connections a sample takes some 20 ms, beside 100,000 some 100.
    #[test]
    fn where_samples_are_expensive_and_little_changes_they_take_a_third_of_a_percent() {
        let mut due = Due::new(None, at(0));
        let rest = |due: &mut Due, took: Micros| {
            due.sampled(at(0), took, Duration::from_millis(500), true, at(0) + took);
            due.sample.since(at(0))
        };
        assert_eq!(rest(&mut due, Micros(20_000)), Micros::from_secs(6));
        assert_eq!(rest(&mut due, Micros(100_000)), Micros::from_secs(30));
        assert_eq!(rest(&mut due, Micros(200_000)), Micros::from_secs(30));
        assert!(due.is_record_due(at(0)));
        due.sampled(at(6), Micros(20_000), Duration::from_millis(500), true, at(6) + Micros(20_000));
        assert_eq!(due.sample, at(10), "a moment of the history is due by then");
        due.sampled(at(0), Micros(100_000), Duration::from_millis(500), true, at(0) + Micros(100_000));
        assert_eq!(due.sample, at(30), "a third of the pause would take three times the processor");
    }

    #[test]
    fn a_sign_of_life_for_the_engines_comes_a_second_after_the_last_or_after_a_sample() {
        let mut due = Due::new(None, at(0));
        assert!(!due.is_beat_due(at(0)) && due.is_beat_due(at(1)) && !due.is_beat_due(at(1)));
        due.sampled(at(1), Micros::from_secs(1), Duration::from_millis(500), true, at(2));
        assert!(!due.is_beat_due(at(2)) && due.is_beat_due(at(3)));
        assert_eq!(due.next(at(3)), at(4));
    }

    #[test]
    fn a_sample_that_fails_comes_again_after_a_second_and_postpones_no_sign_of_life() {
        let mut due = Due::new(None, at(0));
        due.sample_failed(at(0) + Micros(500_000));
        assert_eq!(due.sample, at(1) + Micros(500_000));
        assert!(due.is_beat_due(at(1)));
    }

    #[test]
    fn grants_take_a_twentieth_of_a_processor_but_no_request_waits_until_it_is_repeated() {
        let mut due = Due::new(None, at(0));
        for (took, pause) in [(0, 50), (2, 50), (10, 200), (25, 500), (400, 500)] {
            due.granted(Micros::from_millis(took), at(1));
            assert_eq!(due.gathered.since(at(1)), Micros::from_millis(pause), "grants take {took} ms");
        }
    }

    #[test]
    fn searches_for_programs_take_a_twentieth_of_a_processor() {
        let mut due = Due::new(None, at(0));
        assert!(due.may_search_programs(at(0)), "the first one");
        due.searched_programs(Micros::from_millis(500), at(1));
        assert!(!due.may_search_programs(at(11) - Micros(1)) && due.may_search_programs(at(11)));
    }

    #[test]
    fn a_sweep_that_fails_comes_again_and_takes_two_percent() {
        for (took, pause) in [(1, 2), (100, 5)] {
            for late in [false, true] {
                let mut due = Due::new(None, at(0));
                due.sweep_failed(at(0), Micros::from_millis(took));
                assert!(!due.is_sweep_due(false, late, at(pause) - Micros(1)));
                assert!(due.is_sweep_due(false, late, at(pause)));
            }
        }
    }

    #[test]
    fn a_sweep_takes_two_percent_while_something_lies_idle_and_else_comes_once_a_minute() {
        let mut due = Due::new(None, at(0));
        assert!(due.is_sweep_due(false, false, at(0)), "the first one");
        due.swept(at(0), Micros::from_millis(100));
        assert!(!due.is_sweep_due(true, false, at(4)) && due.is_sweep_due(true, false, at(5)));
        assert!(!due.is_sweep_due(false, false, at(59)) && due.is_sweep_due(false, false, at(60)));
    }

    #[test]
    fn a_sweep_for_newcomers_takes_a_third_of_a_percent_and_comes_every_five_seconds_to_once_a_minute() {
        for (took, pause) in [(1, 5), (15, 5), (50, 15), (1_000, 60)] {
            let mut due = Due::new(None, at(0));
            due.swept(at(0), Micros::from_millis(took));
            assert!(
                !due.is_sweep_due(false, true, at(pause - 1)) && due.is_sweep_due(false, true, at(pause))
            );
        }
    }

    #[test]
    fn a_connection_lies_idle_once_its_large_buffer_is_silent_and_until_it_is_given_back() {
        let silent = FlowState {
            set_send_buffer: Some(Config::IDLE_SIZE.times(4)),
            seen_at: at(0),
            active_at: at(0),
            swept_at: Some(at(1)),
            ..flow(1, 0)
        };
        let long_after = at(0) + Config::IDLE + Micros(1);
        assert_eq!(lying_idle([silent].iter(), at(0) + Config::IDLE), 0);
        assert_eq!(lying_idle([silent].iter(), long_after), 1);
        for other in [
            FlowState { given_back: true, ..silent },
            FlowState { closed: true, ..silent },
            FlowState { set_send_buffer: Some(Config::IDLE_SIZE), ..silent },
        ] {
            assert_eq!(lying_idle([other].iter(), long_after), 0, "{other:?}");
        }
        let mut unswept = FlowState { set_send_buffer: None, swept_at: None, ..silent };
        assert_eq!(lying_idle([unswept].iter(), long_after), 0);
        unswept.sample.send_queued = Bytes(1);
        assert_eq!(lying_idle([unswept].iter(), long_after), 1, "its queue may be empty by now");
    }
}
