//! Data that moves in bursts, with pauses between: its rate must be measured over whole periods, or it depends on the
//! time of the sample.

use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;

use super::Direction;

/// Shorter pauses come from round trips and from the samples themselves.
const PAUSE: Micros = Micros::from_millis(100);

/// The samples of one connection as bursts and pauses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bursts {
    /// Share of the time in which data moved, 0 to 1.
    pub moving: f64,
    /// Indices of the samples at which a burst began after a pause.
    onsets: Vec<usize>,
    paused: bool,
}

impl Bursts {
    /// Finds the bursts in consecutive samples.
    pub fn of(direction: Direction, samples: &[SocketSample]) -> Self {
        let mut bursts = Self::default();
        let (mut pause, mut moving, mut watched, mut longest) = (Micros::ZERO, 0, 0, Micros::ZERO);
        for (number, pair) in samples.windows(2).enumerate() {
            let elapsed = pair[1].at.since(pair[0].at);
            watched += elapsed.0;
            if direction.moved(&pair[0], &pair[1]) == 0 {
                pause += elapsed;
                longest = longest.max(pause);
                continue;
            }
            moving += elapsed.0;
            if is_pause(pause, &pair[1]) {
                bursts.onsets.push(number);
            }
            pause = Micros::ZERO;
        }
        bursts.moving = moving as f64 / (watched as f64).max(1.0);
        bursts.paused = moving > 0 && samples.last().is_some_and(|last| is_pause(longest, last));
        bursts
    }

    /// Returns whether data moved, but paused for longer than a round trip; more samples then give a better rate.
    pub fn is_bursty(&self) -> bool {
        self.paused
    }

    /// Returns the samples from the start of the first burst to the start of the last: whole periods, if there are
    /// any.
    pub fn whole_periods(&self) -> Option<(usize, usize)> {
        let (first, last) = (*self.onsets.first()?, *self.onsets.last()?);
        (first < last).then_some((first, last))
    }
}

fn is_pause(pause: Micros, sample: &SocketSample) -> bool {
    pause >= PAUSE.max(Micros(u64::from(sample.info.rtt.max(sample.info.rcv_rtt)) * 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_socket::info::TcpInfo;

    /// Returns samples 50 ms apart; `passes` gives the bytes of each interval.
    fn samples(intervals: usize, passes: impl Fn(usize) -> u64) -> Vec<SocketSample> {
        let mut received = 0;
        let mut samples = vec![SocketSample::default()];
        for number in 0..intervals {
            received += passes(number);
            let info = TcpInfo { bytes_received: received, ..TcpInfo::default() };
            samples.push(SocketSample {
                at: Micros::from_millis(50 * (number as u64 + 1)),
                info,
                ..SocketSample::default()
            });
        }
        samples
    }

    /// Mean rate over the whole periods, bit/s.
    fn rate(samples: &[SocketSample]) -> Option<u64> {
        let (from, to) = Bursts::of(Direction::Receive, samples).whole_periods()?;
        let span = samples[to].at.since(samples[from].at).0;
        Some(Direction::Receive.moved(&samples[from], &samples[to]) * 8_000_000 / span)
    }

    #[test]
    fn sixteen_megabits_in_bursts_are_sixteen_wherever_the_watch_begins() {
        // 4 MB every 2 s, in 250 ms.
        let mut judged = 0;
        for phase in 0..40 {
            let seen = samples(100, |number| if (number + phase) % 40 < 5 { 800_000 } else { 0 });
            let bursts = Bursts::of(Direction::Receive, &seen);
            assert!(bursts.is_bursty(), "phase {phase}");
            if bursts.whole_periods().is_some() {
                assert_eq!(rate(&seen), Some(16_000_000), "phase {phase}");
                judged += 1;
            }
        }
        assert!(judged > 0, "some watches have whole periods");
        let first =
            Bursts::of(Direction::Receive, &samples(20, |number| if number == 3 { 33_000 } else { 0 }));
        assert!(first.is_bursty() && first.whole_periods().is_none(), "one burst is no period: {first:?}");
    }

    #[test]
    fn a_steady_flow_and_an_idle_one_have_no_bursts() {
        assert!(!Bursts::of(Direction::Receive, &samples(20, |_| 100_000)).is_bursty());
        assert!(!Bursts::of(Direction::Receive, &samples(20, |_| 0)).is_bursty());
        assert!(!Bursts::of(Direction::Receive, &[]).is_bursty());
        let every_second = Bursts::of(Direction::Receive, &samples(20, |number| (number as u64 % 2) * 1_000));
        assert!(!every_second.is_bursty() && (every_second.moving - 0.5).abs() < 0.01, "{every_second:?}");
    }

    #[test]
    fn a_long_round_trip_is_no_pause() {
        let mut seen = samples(20, |number| if number % 8 < 2 { 100_000 } else { 0 });
        seen.iter_mut().for_each(|sample| sample.info.rcv_rtt = 400_000);
        assert!(!Bursts::of(Direction::Receive, &seen).is_bursty());
    }
}
