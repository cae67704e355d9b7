//! The clock of the emulated links: the wall clock minus the time in which the emulator did not run.
//!
//! Problem: a shared machine takes the processor away for milliseconds at a time. If the links' time ran on meanwhile,
//! all due packets would leave at once afterwards. The path would have a hole, the acknowledgements would come back in
//! one burst, and the packets sent into the hole would pile up before the tight link: a shallow queue would drop
//! packets that no real path drops.
//!
//! So the clock is read before every step of the pump. If it jumped by [`PAUSE`] or more where no sleep was planned, or
//! beyond the end of a planned sleep, it is set back to where it should have been: the path pauses, and packets keep
//! their distances. Pauses are counted, and too many of them make a run invalid.
//!
//! Properties: the links' time never runs backwards; it never jumps by [`PAUSE`] or more beyond what was planned; the
//! wall clock's time is the links' time plus the pauses.

use bufwise_units::Nanos;

use crate::clock::Clock;

/// Smallest jump at which the clock pauses.
pub const PAUSE: Nanos = Nanos(300_000);
/// Smallest pause that is listed as a stall.
pub const STALL: Nanos = Nanos(1_000_000);
/// Most stalls that are kept, the longest ones; the sum of the pauses is always exact.
pub const STALLS_KEPT: usize = 1_000;

/// A time in which the emulator did not get the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallAt {
    /// End of the stall, on the wall clock.
    pub at: Nanos,
    /// Duration of the stall.
    pub lasted: Nanos,
}

/// The links' clock.
#[derive(Debug)]
pub(crate) struct LinkTime {
    wall: Clock,
    paused: Nanos,
    /// When the clock should be read next: now, or at the end of a planned sleep.
    expected: Nanos,
    stalls: Vec<StallAt>,
}

impl LinkTime {
    pub(crate) fn new(wall: Clock) -> Self {
        Self { wall, paused: Nanos(0), expected: wall.now(), stalls: Vec::new() }
    }

    /// Returns the links' time.
    pub(crate) fn now(&mut self) -> Nanos {
        self.read(self.wall.now())
    }

    /// Returns the links' time and the wall clock's.
    pub(crate) fn both(&mut self) -> (Nanos, Nanos) {
        let now = self.now();
        (now, Nanos(now.0 + self.paused.0))
    }

    /// Announces that the pump now sleeps until `wake` at most.
    pub(crate) fn sleep_until(&mut self, wake: Nanos) {
        self.expected = wake;
    }

    /// Returns the longest stalls in the order of time, and the sum of all pauses.
    pub(crate) fn finish(self) -> (Vec<StallAt>, Nanos) {
        (self.stalls, self.paused)
    }

    fn read(&mut self, wall: Nanos) -> Nanos {
        let now = Nanos(wall.0 - self.paused.0);
        let late = Nanos(now.0.saturating_sub(self.expected.0));
        if late < PAUSE {
            self.expected = now;
            return now;
        }
        self.paused.0 += late.0;
        if late >= STALL {
            self.stalls.push(StallAt { at: wall, lasted: late });
            if self.stalls.len() > STALLS_KEPT {
                let shortest = (0..=STALLS_KEPT).min_by_key(|place| self.stalls[*place].lasted);
                self.stalls.remove(shortest.unwrap_or(0));
            }
        }
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn started(at: u64) -> LinkTime {
        LinkTime { wall: Clock::start(), paused: Nanos(0), expected: Nanos(at), stalls: Vec::new() }
    }

    #[test]
    fn a_clock_that_is_looked_at_often_is_the_walls() {
        let mut time = started(0);
        for step in 1..100 {
            let wall = Nanos(step * (PAUSE.0 - 1));
            assert_eq!(time.read(wall), wall);
        }
        assert_eq!(time.finish(), (vec![], Nanos(0)));
    }

    #[test]
    fn a_planned_sleep_is_no_pause_and_may_end_early() {
        let mut time = started(0);
        time.sleep_until(Nanos(5_000_000));
        assert_eq!(time.read(Nanos(5_100_000)), Nanos(5_100_000));
        time.sleep_until(Nanos(9_000_000));
        assert_eq!(time.read(Nanos(6_000_000)), Nanos(6_000_000));
        // The pump has been awake since: a jump now is a pause, although it ends before the planned sleep would have.
        assert_eq!(time.read(Nanos(8_000_000)), Nanos(6_000_000));
    }

    #[test]
    fn after_a_stall_time_goes_on_where_it_should_have_been() {
        let mut time = started(0);
        time.sleep_until(Nanos(1_000_000));
        assert_eq!(time.read(Nanos(8_000_000)), Nanos(1_000_000));
        assert_eq!(time.read(Nanos(8_000_500)), Nanos(1_000_500));
        let stall = StallAt { at: Nanos(8_000_000), lasted: Nanos(7_000_000) };
        assert_eq!(time.finish(), (vec![stall], Nanos(7_000_000)));
    }

    #[test]
    fn the_longest_stall_is_kept_however_late_it_comes() {
        let mut time = started(0);
        let mut wall = 0;
        let mut stall = |lasted: Nanos| {
            wall += lasted.0;
            time.read(Nanos(wall));
        };
        (0..STALLS_KEPT).for_each(|_| stall(STALL));
        let long = Nanos(50_000_000);
        stall(long);
        let (stalls, paused) = time.finish();
        assert_eq!((stalls.len(), stalls.last().map(|stall| stall.lasted)), (STALLS_KEPT, Some(long)));
        assert_eq!(paused.0, STALLS_KEPT as u64 * STALL.0 + long.0);
    }

    proptest! {
        #[test]
        fn time_never_runs_backwards_nor_jumps(
            steps in prop::collection::vec((0_u64..3_000_000, 0_u64..2_000_000), 1..100),
        ) {
            let mut time = started(0);
            let (mut wall, mut last) = (0, Nanos(0));
            for (passed, sleep) in steps {
                time.sleep_until(Nanos(last.0 + sleep));
                wall += passed;
                let now = time.read(Nanos(wall));
                prop_assert!(now >= last);
                prop_assert!(now.0 < last.0 + sleep + PAUSE.0);
                prop_assert_eq!(now.0 + time.paused.0, wall);
                last = now;
            }
        }
    }
}
