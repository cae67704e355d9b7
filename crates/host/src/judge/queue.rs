//! Evidence of a queue that stands on the path.
//!
//! Problem: a round trip longer than its minimum is caused by a queue, by a delayed acknowledgement (up to 40 ms if
//! few segments are under way), by a window that a slow reader opens late, or by a pause of the application. Only a
//! queue is on the path.
//!
//! A time between two samples counts as queued if the path, a window or a buffer holds the connection back, and
//! - at a sender: enough segments are under way that delayed acknowledgements do not matter, and the round trip is
//!   steady;
//! - at a receiver: enough segments arrive per round trip, and no pause between arrivals is as long as the delay,
//!   because the receiver's own estimate of the round trip contains the sender's pauses.
//!
//! The queue stands if at least half of the time in which data moved was queued; its delay is the mean. If a program
//! reads slowly for a notable share of the time, acknowledgements wait for it at other times as well: then there is
//! no evidence.

use bufwise_socket::info::TcpInfo;
use bufwise_socket::limit::SocketSample;

use super::advice::NOTABLE;
use super::{Cause, Direction, cause, in_a_round_trip};

/// Least number of segments under way at a sender. With fewer, a round trip may end with a delayed acknowledgement:
/// only every second segment is acknowledged at once.
const UNDER_WAY: u32 = 8;
/// Least number of segments that arrive per round trip at a receiver.
const ARRIVING: u64 = 16;
/// Least delay that counts, microseconds: a host's own delays are shorter. A receiver's estimate is less precise.
const LEAST_SENDING: u64 = 5_000;
const LEAST_RECEIVING: u64 = 10_000;
/// The delay must be more than a quarter of the smallest round trip; less is jitter.
const LEAST_PART: u64 = 4;
/// Resolution of the kernel's pauses: its tick in milliseconds at `CONFIG_HZ=250`.
const TICK_MS: u64 = 4;
/// Share of the moving time from which on a queue stands.
const STANDS: f64 = 0.5;

/// The evidence of a queue, added up over the samples. Times are in microseconds: watched, waiting for the reader,
/// moving data, and of the latter queued.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queue {
    watched: f64,
    unread: f64,
    moving: f64,
    standing: f64,
    /// Sum of delay times time, microseconds squared.
    delayed: f64,
}

impl Queue {
    /// Adds the time between two samples.
    pub fn add(&mut self, direction: Direction, previous: &SocketSample, now: &SocketSample) {
        let elapsed = now.at.since(previous.at).0 as f64;
        let cause = cause(direction, previous, now);
        self.watched += elapsed;
        if cause == Cause::Reader {
            self.unread += elapsed;
        }
        if direction.moved(previous, now) == 0 {
            return;
        }
        self.moving += elapsed;
        let is_the_paths = !matches!(cause, Cause::Application | Cause::Reader);
        if let Some(delay) = delay(direction, previous, now).filter(|_| is_the_paths) {
            self.standing += elapsed;
            self.delayed += elapsed * delay as f64;
        }
    }

    /// Returns the seconds that segments spend in the queue; `None` if no queue stands.
    pub fn delay_s(&self) -> Option<f64> {
        let stands = self.standing > 0.0 && self.standing >= STANDS * self.moving;
        (stands && self.unread < NOTABLE * self.watched).then(|| self.delayed / self.standing / 1e6)
    }
}

/// Returns the queueing delay between two samples in microseconds; `None` without evidence of a queue.
fn delay(direction: Direction, previous: &SocketSample, now: &SocketSample) -> Option<u64> {
    let least = now.info.min_rtt()?.0;
    let beyond = |field: fn(&TcpInfo) -> u32| {
        u64::from(field(&previous.info).min(field(&now.info))).saturating_sub(least)
    };
    let (delay, at_least, evident) = match direction {
        Direction::Send => {
            let delay = beyond(|info| info.rtt);
            let is_steady = u64::from(now.info.rttvar) * 2 < delay;
            let under_way = previous.info.unacked.min(now.info.unacked);
            (delay, LEAST_SENDING, is_steady && under_way >= UNDER_WAY)
        }
        Direction::Receive => {
            let delay = beyond(|info| info.rcv_rtt);
            let segment = u64::from(now.info.rcv_mss.max(now.info.snd_mss));
            let arriving = in_a_round_trip(direction, now.info.rcv_rtt.into(), previous, now);
            let pause = u64::from(previous.info.last_data_recv.max(now.info.last_data_recv));
            let is_steady = pause <= TICK_MS.max(delay / 4_000);
            (delay, LEAST_RECEIVING, is_steady && arriving >= u128::from(ARRIVING * segment))
        }
    };
    (evident && delay > at_least && delay * LEAST_PART > least).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_units::Micros;

    /// Samples a connection for a second, with the figures of `info`, while `bytes` move both ways in each interval
    /// of 50 ms.
    fn watched(direction: Direction, info: TcpInfo, bytes: u64) -> Option<f64> {
        let sample = |number: u64| SocketSample {
            at: Micros::from_millis(50 * number),
            info: TcpInfo {
                bytes_acked: bytes * number,
                bytes_received: bytes * number,
                busy_time: 50_000 * number,
                ..info
            },
            ..SocketSample::default()
        };
        let samples: Vec<SocketSample> = (0..=20).map(sample).collect();
        let mut queue = Queue::default();
        samples.windows(2).for_each(|pair| queue.add(direction, &pair[0], &pair[1]));
        queue.delay_s()
    }

    /// Returns a sender of 100 Mbit/s over 40 ms, with 100 ms of queue.
    fn sender() -> TcpInfo {
        TcpInfo {
            min_rtt: 40_000,
            rtt: 140_000,
            rttvar: 3_000,
            unacked: 1_200,
            snd_mss: 1_448,
            ..TcpInfo::default()
        }
    }

    /// Returns a receiver of 27 Mbit/s over 60 ms, with 47 ms of queue.
    fn receiver() -> TcpInfo {
        TcpInfo {
            min_rtt: 60_000,
            rcv_rtt: 107_000,
            rcv_mss: 1_448,
            rcv_wnd: 3_000_000,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn a_sender_that_fills_a_queue_sees_its_delay() {
        assert_eq!(watched(Direction::Send, sender(), 625_000), Some(0.1));
        let empty = TcpInfo { rtt: 44_000, ..sender() };
        assert_eq!(watched(Direction::Send, empty, 625_000), None, "less than jitter");
    }

    #[test]
    fn a_receiver_sees_the_queue_in_its_own_round_trip() {
        assert_eq!(watched(Direction::Receive, receiver(), 170_000), Some(0.047));
    }

    #[test]
    fn delayed_acknowledgements_are_no_queue() {
        let near = TcpInfo { min_rtt: 60, rtt: 44_000, rttvar: 1_000, snd_mss: 1_448, ..TcpInfo::default() };
        assert_eq!(watched(Direction::Send, TcpInfo { unacked: 2, ..near }, 2_896), None);
        let varies = TcpInfo { unacked: 40, rttvar: 23_000, ..near };
        assert_eq!(watched(Direction::Send, varies, 100_000), None);
    }

    /// Samples a sender that its peer's window limits nearly all the time; `info` gives the kernel's figures at each
    /// sample.
    fn held_up(info: impl Fn(u64) -> TcpInfo) -> Queue {
        let sample = |number: u64| SocketSample {
            at: Micros::from_millis(50 * number),
            info: TcpInfo {
                bytes_acked: 100_000 * number,
                busy_time: 50_000 * number,
                rwnd_limited: 49_000 * number,
                unacked: 40,
                snd_mss: 1_448,
                ..info(number)
            },
            ..SocketSample::default()
        };
        let mut queue = Queue::default();
        (0..20).for_each(|number| queue.add(Direction::Send, &sample(number), &sample(number + 1)));
        queue
    }

    #[test]
    fn a_window_that_its_reader_opens_late_is_no_queue() {
        let queue = held_up(|_| TcpInfo { min_rtt: 60, rtt: 44_000, rttvar: 1_000, ..TcpInfo::default() });
        assert_eq!(queue.delay_s(), None);
    }

    #[test]
    fn where_a_reader_is_slow_for_a_part_of_the_time_there_is_no_evidence() {
        // Shut in every fourth sample, and used up in the others.
        let window = |number: u64| if number.is_multiple_of(4) { 0 } else { 60_000 };
        let queue = held_up(|number| TcpInfo {
            snd_wnd: window(number),
            min_rtt: 10_000,
            rtt: 19_000,
            ..TcpInfo::default()
        });
        assert_eq!(queue.delay_s(), None);
        assert!(queue.standing > 0.0, "{queue:?}");
    }

    #[test]
    fn pauses_of_the_sender_are_no_queue_at_the_receiver() {
        let pauses = TcpInfo { last_data_recv: 16, ..receiver() };
        assert_eq!(watched(Direction::Receive, pauses, 170_000), None);
        let trickle = watched(Direction::Receive, receiver(), 2_000);
        assert_eq!(trickle, None, "a segment every 36 ms has its acknowledgements delayed");
    }

    #[test]
    fn nothing_that_moves_shows_nothing() {
        assert_eq!(watched(Direction::Send, sender(), 0), None);
        assert_eq!(watched(Direction::Send, TcpInfo { min_rtt: 0, ..sender() }, 625_000), None);
    }
}
