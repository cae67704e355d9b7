//! A policy of one's own beside two known ones, on an emulated path in virtual time: no root, no sockets, no waiting.
//!
//! `cargo run -p bufwise-policy --example own_policy`

use std::collections::VecDeque;

use bufwise_link::{Fate, Path};
use bufwise_policy::{Policy, PolicyKind};
use bufwise_units::{Bytes, Decision, Micros, Nanos, Rate, Sample};

/// The policy: a send buffer of one and a half times what the path delivers in its shortest round trip.
///
/// One such product fills the path. The half beyond it lets the rate grow where there is more to have.
#[derive(Default)]
struct Delivered {
    /// Largest rate at which bytes were acknowledged.
    rate: Rate,
    /// The last observation, and the bytes acknowledged by then.
    before: Option<(Micros, Bytes)>,
}

impl Policy for Delivered {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        if let Some((then, acked)) = self.before.replace((now, sample.bytes_acked)) {
            self.rate = self.rate.max((sample.bytes_acked - acked).per(now.since(then)));
        }
        let product = self.rate.over(sample.min_rtt);
        // Never below an initial window (RFC 6928), or a new connection could not begin.
        let buffer = product.scaled(3, 2).max(sample.mss.times(10));
        Decision { send_buffer: Some(buffer), ..Decision::NONE }
    }
}

/// Payload of a segment, its length with the headers, and that of an acknowledgement.
const MSS: Bytes = Bytes(1_448);
const PACKET: u32 = 1_500;
const ACKNOWLEDGEMENT: u32 = 52;

/// The result of a transfer.
struct Outcome {
    goodput: Rate,
    /// Mean queue before the tight link.
    queue: Bytes,
    drops: u64,
    /// The buffer at the end.
    buffer: Bytes,
}

/// A sender that halves its window at a loss, as Reno does, and keeps no more under way than the policy's buffer holds.
struct Sender {
    /// The connection as the policy sees it.
    seen: Sample,
    buffer: Bytes,
    /// When the window was last halved.
    halved: Micros,
}

/// A segment: when it was sent, when its sender learns of it, and whether it arrived.
struct Segment {
    sent: Micros,
    at: Micros,
    arrived: bool,
}

impl Sender {
    fn new() -> Self {
        let seen = Sample { mss: MSS, cwnd: MSS.times(10), ssthresh: Bytes::MAX, ..Sample::default() };
        Self { seen, buffer: Bytes::MAX, halved: Micros::ZERO }
    }

    fn learn(&mut self, segment: &Segment, now: Micros) {
        let seen = &mut self.seen;
        if segment.arrived {
            seen.bytes_acked += MSS;
            seen.srtt = now.since(segment.sent);
            seen.min_rtt = if seen.min_rtt == Micros::ZERO { seen.srtt } else { seen.min_rtt.min(seen.srtt) };
            // Only a window that is used grows: it doubles per round trip in slow start, then gains a segment.
            if seen.cwnd <= self.buffer {
                let slow_start = seen.cwnd < seen.ssthresh;
                seen.cwnd += if slow_start { MSS } else { MSS.scaled(MSS.0, seen.cwnd.0) };
            }
        } else {
            seen.segs_lost += 1;
            // All losses of one window are one.
            if segment.sent >= self.halved {
                seen.ssthresh = seen.cwnd.scaled(1, 2).max(MSS.times(2));
                seen.cwnd = seen.ssthresh;
                self.halved = now;
            }
        }
    }
}

/// Sends for `seconds` over a path of 100 Mbit/s and 40 ms, with a queue of one product.
fn transfer(policy: &mut dyn Policy, seconds: u64) -> Result<Outcome, Box<dyn std::error::Error>> {
    let mut path =
        Path::builder().rate("100mbit".parse()?).rtt("40ms".parse()?).queue("1bdp".parse()?).build(1)?;
    let (mut sender, mut now, mut next_sample) = (Sender::new(), Micros::ZERO, Micros::ZERO);
    // Oldest first; the path keeps them in order.
    let mut under_way: VecDeque<Segment> = VecDeque::new();
    let mut last_ack = Nanos::ZERO;

    while now < Micros::from_secs(seconds) {
        if now >= next_sample {
            let decision = policy.observe(&sender.seen, now);
            sender.buffer = decision.send_buffer.unwrap_or(sender.buffer);
            next_sample = now + sender.seen.srtt;
        }
        let window = sender.seen.cwnd.min(sender.buffer).0 / MSS.0;
        while (under_way.len() as u64) < window.max(1) {
            let fate = path.forward.offer(Nanos::from_micros(now.0), PACKET);
            if let Fate::Deliver { at } = fate
                && let Fate::Deliver { at } = path.backward.offer(at, ACKNOWLEDGEMENT)
            {
                last_ack = at;
            }
            // A loss shows when the segments before it have been acknowledged.
            let (at, arrived) = (Micros(last_ack.0 / 1_000), matches!(fate, Fate::Deliver { .. }));
            under_way.push_back(Segment { sent: now, at, arrived });
            sender.seen.segs_out += 1;
        }
        let Some(segment) = under_way.pop_front() else { break };
        now = now.max(segment.at);
        sender.learn(&segment, now);
    }
    let counters = path.forward.counters(Nanos::from_micros(now.0));
    Ok(Outcome {
        goodput: sender.seen.bytes_acked.per(now),
        queue: Bytes(counters.queue_mean_bytes),
        drops: counters.drops_queue_packets,
        buffer: sender.buffer,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let known = |kind: PolicyKind| (kind.to_string(), kind.build(&Default::default()) as Box<dyn Policy>);
    let policies = [
        known(PolicyKind::Fixed(Bytes(65_536))),
        known(PolicyKind::Abt),
        ("one's own".to_owned(), Box::new(Delivered::default())),
    ];
    println!("{:<12} {:>12} {:>11} {:>6} {:>10}", "policy", "goodput", "queue", "drops", "buffer");
    for (name, mut policy) in policies {
        let Outcome { goodput, queue, drops, buffer } = transfer(policy.as_mut(), 30)?;
        let mbit = goodput.bits_per_sec() as f64 / 1e6;
        let (queue, buffer) = (queue.readable(), buffer.readable());
        println!("{name:<12} {mbit:>5.1} Mbit/s {queue:>11} {drops:>6} {buffer:>10}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_filled_and_nothing_is_dropped() {
        let outcome = transfer(&mut Delivered::default(), 30).unwrap();
        // 1,448 of 1,514 bytes on the wire are payload: 95.6 Mbit/s at the most, and slow start takes some of 30 s.
        assert!(outcome.goodput > Rate::from_bits_per_sec(93_000_000), "{}", outcome.goodput);
        assert_eq!(outcome.drops, 0);
        // The path holds 478 KB of payload; the buffer half as much again.
        assert!((700_000..740_000).contains(&outcome.buffer.0), "{}", outcome.buffer);
    }

    #[test]
    fn the_table_has_a_row_for_each() {
        main().unwrap();
    }
}
