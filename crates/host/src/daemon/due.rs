//! When the daemon does what. Pure; time is passed in.

use std::time::Duration;

use bufwise_bpf::{Config, FlowState};
use bufwise_units::{Bytes, Micros};

use crate::history;

/// Newcomers must not wait for the next round of shares, so looks come more often than rounds where they cost little: no
/// sooner than this, nor sooner than this many times what the one before took (0.4% of a processor).
const LOOK: Micros = Micros::from_millis(100);
const LOOK_REST: u64 = 250;
/// Time between two looks for network namespaces; one that a connection is in is looked for at once.
pub(super) const DISCOVERY: Micros = Micros::from_secs(5);
/// A sweep costs some microseconds a socket. It comes no sooner than this after the one before, nor sooner than this
/// many times what that took: sweeps take 2% of a processor at most while there is something to give back.
const SWEEP: Micros = Micros::from_secs(2);
const SWEEP_REST: u64 = 50;
/// A sweep with nothing to give back still finds what was missed.
const SWEEP_AT_LEAST: Micros = Micros::from_secs(60);
/// Requests of the engine's side are gathered for so long before they are granted.
const GATHER: Micros = Micros::from_millis(50);
/// Time between two looks at what the administrator has changed: a system call for each setting.
const MAXIMA: Micros = Micros::from_secs(1);
/// The service manager's status line changes no more often.
const STATUS: Micros = Micros::from_secs(10);

/// When what is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) look: Micros,
    pub(super) discovery: Micros,
    /// Next sweep while something lies idle, and while nothing does.
    sweep_early: Micros,
    sweep_late: Micros,
    /// Requests are left waiting until then.
    pub(super) gathered: Micros,
    maxima: Micros,
    status: Micros,
    record: Micros,
    alive: Micros,
    /// Pause between two signs of life; `None`: nobody waits for them.
    pause: Option<Micros>,
}

impl Due {
    /// Signs of life come three times in `watchdog`.
    pub(super) fn new(watchdog: Option<Micros>, now: Micros) -> Self {
        Self {
            look: now,
            discovery: now + DISCOVERY,
            sweep_early: now,
            sweep_late: now,
            gathered: now,
            maxima: now,
            status: now + STATUS,
            record: now,
            alive: now,
            pause: watchdog.map(|watchdog| watchdog.scaled(1, 3)),
        }
    }

    /// The next time at which something is due.
    pub(super) fn next(&self, now: Micros) -> Micros {
        let next = self.look.min(self.discovery);
        let next = if self.gathered > now { next.min(self.gathered) } else { next };
        if self.pause.is_some() { next.min(self.alive) } else { next }
    }

    /// Whether a sign of life is due; the next one is due a pause later.
    pub(super) fn is_alive_due(&mut self, now: Micros) -> bool {
        let due = self.pause.filter(|_| now >= self.alive);
        if let Some(pause) = due {
            self.alive = now + pause;
        }
        due.is_some()
    }

    /// Whether a new status line is due.
    pub(super) fn is_status_due(&mut self, now: Micros) -> bool {
        take(&mut self.status, now, STATUS)
    }

    /// Whether the history is to take a look.
    pub(super) fn is_record_due(&mut self, now: Micros) -> bool {
        take(&mut self.record, now, history::INTERVAL)
    }

    /// Whether the raised maxima are to be looked at.
    pub(super) fn is_maxima_due(&mut self, now: Micros) -> bool {
        take(&mut self.maxima, now, MAXIMA)
    }

    /// Whether to look for namespaces.
    pub(super) fn is_discovery_due(&mut self, now: Micros) -> bool {
        take(&mut self.discovery, now, DISCOVERY)
    }

    /// Whether to sweep, with or without connections that a sweep would change.
    pub(super) fn is_sweep_due(&self, idle: bool, now: Micros) -> bool {
        now >= if idle { self.sweep_early } else { self.sweep_late }
    }

    /// A look has been taken from `began` to `now`; shares are computed each `interval`.
    pub(super) fn looked(&mut self, began: Micros, interval: Duration, now: Micros) {
        let interval = Micros(u64::try_from(interval.as_micros()).unwrap_or(u64::MAX));
        self.look = began + LOOK.max(now.since(began).times(LOOK_REST)).min(interval);
    }

    /// A sweep has been made from `began` to `now`.
    pub(super) fn swept(&mut self, began: Micros, now: Micros) {
        self.sweep_early = began + SWEEP.max(now.since(began).times(SWEEP_REST));
        self.sweep_late = began + SWEEP_AT_LEAST;
    }

    /// Requests are being granted; those that come now wait a moment.
    pub(super) fn granted(&mut self, now: Micros) {
        self.gathered = now + GATHER;
    }
}

fn take(due: &mut Micros, now: Micros, pause: Micros) -> bool {
    let is_due = now >= *due;
    if is_due {
        *due = now + pause;
    }
    is_due
}

/// How many connections a sweep would change something of.
pub(super) fn lying_idle<'a>(flows: impl Iterator<Item = &'a FlowState>, now: Micros) -> usize {
    flows.filter(|flow| lies_idle(flow, now)).count()
}

/// A connection lies idle if it has moved nothing for a while, and its buffers are larger than it needs, or no sweep has
/// seen its queue since.
fn lies_idle(flow: &FlowState, now: Micros) -> bool {
    let unswept = flow.swept_at.is_none_or(|at| at < flow.seen_at);
    let active = if unswept { flow.seen_at } else { flow.active_at };
    let is_large = |set: Option<Bytes>| set.is_some_and(|size| size > Config::IDLE_SIZE.times(2));
    let ours = flow.ours();
    let could_give =
        ours.send && is_large(flow.set_send_buffer) || ours.receive && is_large(flow.set_receive_buffer);
    !flow.closed
        && now.since(active) > Config::IDLE
        && (could_give && !flow.given_back || unswept && flow.sample.send_queued > Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::tests::flow;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(100 + seconds)
    }

    #[test]
    fn a_look_rests_250_times_what_it_took_but_no_longer_than_a_round() {
        let mut due = Due::new(None, at(0));
        let round = Duration::from_millis(500);
        let mut rest = |took: Micros| {
            due.looked(at(0), round, at(0) + took);
            due.look.since(at(0))
        };
        assert_eq!(rest(Micros(10)), Micros::from_millis(100));
        assert_eq!(rest(Micros(1_000)), Micros::from_millis(250));
        assert_eq!(rest(Micros(10_000)), Micros::from_millis(500));
    }

    #[test]
    fn a_sweep_takes_two_percent_while_something_lies_idle_and_else_comes_once_a_minute() {
        let mut due = Due::new(None, at(0));
        assert!(due.is_sweep_due(false, at(0)), "the first one");
        due.swept(at(0), at(0) + Micros::from_millis(100));
        assert!(!due.is_sweep_due(true, at(4)) && due.is_sweep_due(true, at(5)));
        assert!(!due.is_sweep_due(false, at(59)) && due.is_sweep_due(false, at(60)));
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
