//! Compares the kernel's policies (C, integers) with those of `bufwise-policy` (Rust), call by call, on random
//! connections.
//!
//! ABT, arrivals, the bound, DRS and SOBAS must agree exactly at every call, in their results and in the state
//! compared. The simple send rules are compared with their bounds.

#![expect(unsafe_code, reason = "calls C")]

use std::collections::HashSet;

use bufwise_policy::{Abt, Arrivals, Bound, Drs, Policy, Sobas, abt, bound, drs, sobas};
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};
use proptest::prelude::*;

use crate::abi::{bw_abt, bw_arrivals, bw_bound, bw_drs, bw_sobas};

const LEAVE: u64 = u64::MAX;
const NO_LIMIT: u64 = u64::MAX;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendSample {
    pub(crate) cwnd: u64,
    pub(crate) mss: u64,
    pub(crate) bytes_acked: u64,
    pub(crate) send_queued: u64,
    pub(crate) sndbuf: u64,
    pub(crate) app_limited: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendBounds {
    pub(crate) max: u64,
    pub(crate) limit: u64,
    pub(crate) demand: u64,
    pub(crate) least: u64,
    pub(crate) pressure: u32,
    pub(crate) stale: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BoundSample {
    pub(crate) now: u64,
    pub(crate) mss: u64,
    pub(crate) cwnd: u64,
    pub(crate) srtt: u64,
    pub(crate) min_rtt: u64,
    pub(crate) usual: u64,
    pub(crate) send_queued: u64,
    pub(crate) sndbuf: u64,
    pub(crate) delivered: u32,
    pub(crate) app_limited: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveSample {
    pub(crate) now: u64,
    pub(crate) received: u64,
    pub(crate) mss: u64,
    pub(crate) rcv_rtt: u64,
    pub(crate) srtt: u64,
    pub(crate) losses: u32,
    pub(crate) scale: u32,
}

unsafe extern "C" {
    fn bufwise_arrivals(
        state: *mut bw_arrivals,
        now: u64,
        rtt: u64,
        in_order: u64,
        segments: u32,
        out_of_order: u32,
    ) -> u64;
    fn bufwise_send_target(
        rule: u32,
        fixed: u64,
        state: *mut bw_abt,
        sample: *const SendSample,
        bounds: *const SendBounds,
    ) -> u64;
    fn bufwise_limit_of_share(share: u64, last_buffer: u64) -> u64;
    fn bufwise_pace(payload: u64, last_buffer: u64, srtt: u64, mss: u64) -> u32;
    fn bufwise_bound(state: *mut bw_bound, sample: *const BoundSample) -> u64;
    fn bufwise_drs(state: *mut bw_drs, sample: *const ReceiveSample, initial: u64, max: u64) -> u64;
    fn bufwise_sobas_init(state: *mut bw_sobas, max: u64);
    fn bufwise_sobas(state: *mut bw_sobas, sample: *const ReceiveSample, max: u64) -> u64;
}

pub(crate) fn arrivals_of(
    state: &mut bw_arrivals,
    now: u64,
    rtt: u64,
    in_order: u64,
    segments: u32,
    disorder: u32,
) -> u64 {
    // SAFETY: the structure is that of arrivals.h and outlives the call; C keeps no pointer.
    unsafe { bufwise_arrivals(state, now, rtt, in_order, segments, disorder) }
}

pub(crate) fn send_target(
    rule: u32,
    fixed: u64,
    state: &mut bw_abt,
    sample: &SendSample,
    bounds: &SendBounds,
) -> u64 {
    // SAFETY: the structures are those of send.h and bound.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_send_target(rule, fixed, state, sample, bounds) }
}

fn limit_of_share(share: u64, last_buffer: u64) -> u64 {
    // SAFETY: numbers only.
    unsafe { bufwise_limit_of_share(share, last_buffer) }
}

pub(crate) fn pace(payload: u64, last_buffer: u64, srtt: u64, mss: u64) -> u32 {
    // SAFETY: numbers only.
    unsafe { bufwise_pace(payload, last_buffer, srtt, mss) }
}

pub(crate) fn bound_of(state: &mut bw_bound, sample: &BoundSample) -> u64 {
    // SAFETY: as above.
    unsafe { bufwise_bound(state, sample) }
}

pub(crate) fn drs_window(state: &mut bw_drs, sample: &ReceiveSample, initial: u64, max: u64) -> u64 {
    // SAFETY: as above.
    unsafe { bufwise_drs(state, sample, initial, max) }
}

/// The C implementation of SOBAS.
pub(crate) struct CSobas {
    state: bw_sobas,
    max: u64,
}

impl CSobas {
    pub(crate) fn new(max: u64) -> Self {
        let mut state = bw_sobas::default();
        // SAFETY: as above.
        unsafe { bufwise_sobas_init(&raw mut state, max) };
        Self { state, max }
    }

    pub(crate) fn observe(&mut self, sample: &ReceiveSample) -> u64 {
        // SAFETY: as above.
        unsafe { bufwise_sobas(&raw mut self.state, sample, self.max) }
    }

    fn state(&self) -> sobas::State {
        use sobas::State;
        match self.state.state {
            1 => State::Estimating,
            2 => State::SlowStart,
            3 => State::Recovery,
            4 => State::BufferLimited,
            5 => State::Final,
            6 => State::Congested,
            other => panic!("no state {other}"),
        }
    }
}

/// Generates sizes from 1 byte to 1 TiB, and edge cases.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1_u64..100_000, 1_u64..1 << 40, Just(1 << 62)]
}

/// One sample: cwnd, mss, bytes newly acknowledged, memory queued and the send buffer, application-limited, pressure,
/// share.
type Input = (u64, u64, u64, (u64, u64), bool, bool, Option<u64>);

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let memory = prop_oneof![(size(), size()), (0_u64..20, 0_u64..20)];
    let limit = prop_oneof![Just(None), size().prop_map(Some)];
    prop::collection::vec((size(), 0_u64..9_000, size(), memory, any::<bool>(), any::<bool>(), limit), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_limit_of_a_share_keeps_it_on_the_mean_and_cuts_no_large_one(share in size(), last in 1_448..600_000_u64) {
        let limit = limit_of_share(share, last);
        prop_assert!(limit <= share);
        if share >= 6 * (last / 4) {
            prop_assert_eq!(limit, share);
        }
        // Memory held on the mean: 5/3 of the limit and half of a buffer, if the share has room for them.
        let held = limit / 3 * 5 + last / 2;
        prop_assert!(held <= share.saturating_mul(2) + 4 || limit == 0, "{limit} of {share}");
    }

    #[test]
    fn a_pace_fills_no_more_than_the_share_but_a_quarter_of_it_and_two_segments(
        share in 0..1_u64 << 34,
        last in 1_448..600_000_u64,
        srtt in 1..10_000_000_u64,
        mss in 536..9_000_u64,
    ) {
        let on_its_way = u128::from(pace(share, last, srtt, mss)) * u128::from(srtt) / 1_000_000;
        prop_assert!(on_its_way <= u128::from(share.max(2 * mss)) * 2, "{on_its_way}");
        // Memory held: 5/4 of the bytes in flight and five eighths of the last buffer, if the share has room for them.
        let held = on_its_way * 5 / 4 + u128::from(last) * 5 / 8;
        let floor = u128::from((share / 2).max(2 * mss));
        prop_assert!(on_its_way <= floor || held <= u128::from(share) * 2 + 4, "{held} of {share}");
        let least = u128::from((share / 2).max(2 * mss));
        let largest = u128::from(u32::MAX - 1) * u128::from(srtt) / 1_000_000;
        // A pace is rounded down to whole bytes per second.
        prop_assert!(on_its_way + u128::from(srtt) / 1_000_000 + 1 >= least.min(largest), "{on_its_way} of {least}");
        prop_assert_eq!(pace(share, last, 0, mss), 0);
    }

    #[test]
    fn abt_is_the_same_byte_for_byte(
        inputs in inputs(), max in prop_oneof![Just(u64::MAX), size()], acked in begin(),
    ) {
        let mut rust = Abt::new(abt::Config { max: Bytes(max), ..abt::Config::default() });
        let mut c = bw_abt::default();
        let mut acked = acked;
        for (cwnd, mss, step, (send_queued, sndbuf), app_limited, pressure, limit) in inputs {
            acked = acked.saturating_add(step);
            rust.set_limit(limit.map(Bytes));
            rust.set_pressure(pressure);
            let sample = Sample {
                cwnd: Bytes(cwnd), mss: Bytes(mss), bytes_acked: Bytes(acked), app_limited,
                send_queued: Bytes(send_queued), sndbuf: Bytes(sndbuf), ..Sample::default()
            };
            let wanted = rust.observe(&sample, Micros::ZERO).send_buffer.map_or(LEAVE, |size| size.0);
            let sample = SendSample { cwnd, mss, bytes_acked: acked, app_limited: app_limited.into(), send_queued, sndbuf, unused: 0 };
            let bounds = SendBounds {
                max, limit: limit.unwrap_or(NO_LIMIT), demand: 0, least: 0, pressure: pressure.into(), stale: 0,
            };
            prop_assert_eq!(send_target(3, 0, &mut c, &sample, &bounds), wanted);
            prop_assert_eq!(c.net_target, rust.net_target().0);
        }
    }

    #[test]
    fn without_user_space_every_shared_rule_is_abt_alone(inputs in inputs(), rule in 2_u32..=4) {
        let mut alone = Abt::new(abt::Config::default());
        let mut c = bw_abt::default();
        for (cwnd, mss, acked, (send_queued, sndbuf), app_limited, pressure, limit) in inputs {
            let sample = Sample {
                cwnd: Bytes(cwnd), mss: Bytes(mss), app_limited,
                send_queued: Bytes(send_queued), sndbuf: Bytes(sndbuf), ..Sample::default()
            };
            let wanted = alone.observe(&sample, Micros::ZERO).send_buffer.map_or(LEAVE, |size| size.0);
            let sample = SendSample {
                cwnd, mss, bytes_acked: acked, app_limited: app_limited.into(), send_queued, sndbuf, unused: 0,
            };
            let bounds = SendBounds {
                max: u64::MAX, limit: limit.unwrap_or(NO_LIMIT), demand: 7, least: 0, pressure: pressure.into(), stale: 1,
            };
            prop_assert_eq!(send_target(rule, 0, &mut c, &sample, &bounds), wanted);
        }
    }

    #[test]
    fn the_simple_send_rules_are_their_bounds(
        fixed in size(), limit in size(), demand in 1_u64..1 << 50, max in size(), cwnd in size(), mss in mss(),
    ) {
        let sample = SendSample { cwnd, mss, ..SendSample::default() };
        let bounds = SendBounds { max, limit, demand, least: 0, pressure: 0, stale: 0 };
        let target = |rule, bounds| send_target(rule, fixed, &mut bw_abt::default(), &sample, &bounds);
        prop_assert_eq!(target(0, bounds), LEAVE);
        prop_assert_eq!(target(1, bounds), fixed);
        prop_assert_eq!(target(2, bounds), limit.min(max));
        prop_assert_eq!(target(2, SendBounds { limit: NO_LIMIT, ..bounds }), LEAVE);
        prop_assert_eq!(target(4, bounds), demand.min(limit));
    }

    #[test]
    fn arrivals_are_the_same_byte_for_byte(
        inputs in prop::collection::vec(
            (0_u64..400_000, prop_oneof![Just(0), 0_u64..3_000_000, any::<u64>()], 0_u32..3_000, 0_u32..3, 0_u64..300_000),
            1..120,
        ),
        start in any::<u32>(),
    ) {
        let (mut rust, mut c) = (Arrivals::default(), bw_arrivals::default());
        let (mut now, mut in_order, mut segments, mut disorder) = (1, 0_u64, start, start);
        // Both start from the counters' initial values.
        let first = Sample { segs_in: start.into(), rcv_out_of_order: start.into(), ..Sample::default() };
        rust.observe(&first, Micros::ZERO, Micros(now));
        arrivals_of(&mut c, now, 0, 0, start, start);
        for (step, bytes, came, disordered, rtt) in inputs {
            now += step;
            in_order = in_order.saturating_add(bytes);
            segments = segments.wrapping_add(came);
            disorder = disorder.wrapping_add(disordered.saturating_sub(1));
            let sample = Sample {
                bytes_received: Bytes(in_order), segs_in: segments.into(), rcv_out_of_order: disorder.into(),
                ..Sample::default()
            };
            let wanted = rust.observe(&sample, Micros(rtt), Micros(now));
            prop_assert_eq!(arrivals_of(&mut c, now, rtt, in_order, segments, disorder), wanted.0);
        }
    }

    #[test]
    fn the_bound_is_the_same_byte_for_byte(
        inputs in prop::collection::vec(
            (
                0_u64..1 << 22, 0_u32..20_000, size(), 0_u64..1 << 20, 0_u64..300_000,
                (size(), prop_oneof![Just(50_000), size()], prop::bool::weighted(0.2), mss()),
            ),
            1..120,
        ),
        steady in any::<bool>(), min_rtt in 1_u64..200_000, same_mss in prop::option::of(mss()), usual in size(),
        began in begin(), delivered in prop_oneof![Just(u32::MAX - 50_000), any::<u32>()],
    ) {
        let (mut rust, mut c) = (Bound::default(), bw_bound::default());
        let (mut now, mut delivered) = (began + 1, delivered);
        for (step, segments, cwnd, srtt, other_rtt, (send_queued, sndbuf, app_limited, mss)) in inputs {
            let mss = same_mss.unwrap_or(mss);
            now += step;
            // On half of the paths only queue and window change, so that the start phase ends.
            delivered = delivered.wrapping_add(if steady { (step / 1_000) as u32 } else { segments });
            let min_rtt = if steady { min_rtt } else { other_rtt };
            let sample = bound::BoundSample {
                cwnd: Bytes(cwnd), mss: Bytes(mss), delivered, srtt: Micros(srtt), min_rtt: Micros(min_rtt),
                app_limited, autotuning_max: Bytes(usual), send_queued: Bytes(send_queued),
                sndbuf: Bytes(sndbuf),
            };
            let wanted = rust.observe(&sample, Micros(now)).map_or(NO_LIMIT, |memory| memory.0);
            let sample = BoundSample {
                now, mss, cwnd, srtt, min_rtt, usual, send_queued, sndbuf, delivered,
                app_limited: app_limited.into(),
            };
            prop_assert_eq!(bound_of(&mut c, &sample), wanted);
            prop_assert_eq!(c.rate.max(c.rate_before), rust.rate().0);
            prop_assert_eq!(c.usual_until != 0, rust.is_usual());
        }
    }

    #[test]
    fn drs_is_the_same_byte_for_byte(
        inputs in prop::collection::vec(
            (0_u64..1 << 26, 0_u64..1 << 32, 0_u64..1 << 22, 0_u64..1 << 22, mss()), 1..60,
        ),
        // The TCP option allows a scale of at most 14; larger values count as 14.
        scale in 0_u8..=20, initial in 0_u64..1 << 20, max in 0_u64..1 << 34, same_mss in prop::option::of(mss()),
        began in begin(), received in begin(),
    ) {
        let mut rust = Drs::new(drs::Config {
            window_scale: scale, initial: Bytes(initial), max: Bytes(max), granularity: Micros(1),
        });
        let mut c = bw_drs::default();
        let (mut now, mut received) = (began, received);
        for (step, bytes, rcv_rtt, srtt, mss) in inputs {
            let mss = same_mss.unwrap_or(mss);
            now += step;
            received += bytes;
            // Half of the samples have no round-trip time from the sender's side.
            let srtt = if srtt % 2 == 0 { 0 } else { srtt };
            let sample = Sample {
                bytes_received: Bytes(received), rcv_rtt: Micros(rcv_rtt), srtt: Micros(srtt), mss: Bytes(mss),
                ..Sample::default()
            };
            let wanted = rust.observe(&sample, Micros(now)).receive_window.map(|size| size.0);
            let sample = ReceiveSample { now, received, mss, rcv_rtt, srtt, losses: 0, scale: scale.into() };
            prop_assert_eq!(Some(drs_window(&mut c, &sample, initial, max)), wanted);
            prop_assert_eq!(c.largest, rust.largest_measurement().0);
            prop_assert_eq!(c.own_rtt, rust.own_rtt().0);
        }
    }
}

/// A period of a path from the receiver's side: growth, steady rate, drop, noise, silence or loss.
#[derive(Clone, Copy, Debug)]
struct Phase {
    milliseconds: u64,
    /// Time without a call before the phase, and between two calls in it, us.
    gap: u64,
    spacing: u64,
    /// Bytes per millisecond at the beginning, and their change in per mille per millisecond.
    rate: u64,
    change: i64,
    noise: u64,
    /// Bytes that arrive in a burst at the beginning.
    burst: u64,
    losses: u32,
    rcv_rtt: u64,
    srtt: u64,
    mss: u64,
    scale: u32,
}

fn mss() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(1_448_u64), 1 => Just(0_u64), 1 => Just(536_u64), 1 => Just(8_948_u64), 1 => 1_u64..9_000]
}

/// Generates initial values of counters and clocks: small, about to pass 2^32, and large.
fn begin() -> impl Strategy<Value = u64> {
    let near_wrap = (1_u64 << 32) - 100_000_000..(1 << 32) + 1_000;
    prop_oneof![3 => 0_u64..1_000_000, 2 => near_wrap, 1 => 1_u64 << 40..1 << 60]
}

fn phase() -> impl Strategy<Value = Phase> {
    // Some phases outlast ten seconds, after which SOBAS retries a decision.
    let milliseconds = prop_oneof![6 => 50_u64..3_000, 1 => 9_000_u64..14_000];
    let gap = prop_oneof![8 => Just(0_u64), 2 => 1_u64..3_000_000, 1 => 1_u64..1 << 42];
    // Some distances of samples exceed a rate window, which is at least 10 ms and two round trips.
    let spacing = prop_oneof![8 => Just(1_000_u64), 2 => 100_u64..20_000, 1 => 10_000_u64..1_500_000];
    let change = prop_oneof![3 => Just(0_i64), 1 => Just(5), 1 => -3_i64..8];
    let noise = prop_oneof![Just(0_u64), 0_u64..30];
    let burst = prop_oneof![12 => Just(0_u64), 1 => 0_u64..1 << 34, 1 => 1_u64 << 36..1 << 46];
    let losses = prop_oneof![8 => Just(0_u32), 1 => 0_u32..4];
    let rtts = || prop_oneof![4 => 1_000_u64..300_000, 1 => Just(0_u64), 1 => 1_u64..30_000_000];
    let speed = (10_u64..125_000, change, noise, burst);
    ((milliseconds, gap, spacing), speed, losses, (rtts(), rtts()), mss(), 0_u32..16).prop_map(
        |((milliseconds, gap, spacing), speed, losses, (rcv_rtt, srtt), mss, scale)| {
            let (rate, change, noise, burst) = speed;
            Phase {
                milliseconds,
                gap,
                spacing,
                rate,
                change,
                noise,
                burst,
                losses,
                rcv_rtt,
                srtt,
                mss,
                scale,
            }
        },
    )
}

/// Generates the phases of one path: round trip and segment size mostly stay, but sometimes change during the run.
fn path() -> impl Strategy<Value = Vec<Phase>> {
    (prop::collection::vec((phase(), prop::bool::weighted(0.2)), 1..10)).prop_map(|phases| {
        let mut path: Vec<Phase> = Vec::new();
        for (phase, changes) in phases {
            let kept = path.last().filter(|_| !changes).copied().unwrap_or(phase);
            path.push(Phase {
                rcv_rtt: kept.rcv_rtt,
                srtt: kept.srtt,
                mss: kept.mss,
                scale: kept.scale,
                spacing: kept.spacing,
                ..phase
            });
        }
        path
    })
}

/// SOBAS in both languages, and the connection that both observe.
struct Pair {
    rust: Sobas,
    c: CSobas,
    now: u64,
    received: u64,
    random: u64,
}

impl Pair {
    fn new(max: u64, now: u64, received: u64) -> Self {
        let config = sobas::Config {
            continuous: true,
            unloaded_rtt: true,
            max_window: Bytes(max),
            ..sobas::Config::default()
        };
        Self { rust: Sobas::new(config), c: CSobas::new(max), now, received, random: 12_345 }
    }

    /// Passes a sample to both and compares their states.
    fn observe(&mut self, phase: &Phase) -> Result<(), TestCaseError> {
        let (now, received) = (self.now, self.received);
        let &Phase { mss, rcv_rtt, srtt, losses, scale, .. } = phase;
        let sample = Sample {
            bytes_received: Bytes(received),
            rcv_rtt: Micros(rcv_rtt),
            srtt: Micros(srtt),
            mss: Bytes(mss),
            probes_lost: losses,
            ..Sample::default()
        };
        let decision = self.rust.observe(&sample, Micros(now));
        let window = self.c.observe(&ReceiveSample { now, received, mss, rcv_rtt, srtt, losses, scale });
        let (rust, c) = (&self.rust, &self.c.state);
        prop_assert_eq!(decision, Decision { receive_window: Some(Bytes(window)), ..Decision::NONE });
        prop_assert_eq!(self.c.state(), rust.state());
        prop_assert_eq!((c.window, c.peak, c.count as usize), (window, rust.peak().0, rust.readings()));
        let decided = sobas::SobasDecision {
            rate: Rate(c.decided_rate),
            rtt: Micros(c.decided_rtt),
            at: Micros(c.decided_at),
            window: Bytes(c.decided_window),
            outliers: c.strays,
        };
        prop_assert_eq!(decided, rust.decided());
        Ok(())
    }

    /// Lets a phase pass; collects the states that occurred and returns the number of calls.
    fn pass(&mut self, phase: &Phase, met: &mut HashSet<sobas::State>) -> Result<usize, TestCaseError> {
        self.now += phase.gap;
        self.received += phase.burst;
        let (mut rate, mut passed, mut calls) = (phase.rate as i64, 0, 0);
        while passed < phase.milliseconds * 1_000 {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = (self.random >> 33) % (phase.noise + 1);
            passed += phase.spacing;
            self.now += phase.spacing;
            self.received += rate.unsigned_abs() * (1_000 - noise) * phase.spacing / 1_000_000;
            rate = (rate + rate * phase.change / 1_000).clamp(1, 1_250_000);
            self.observe(phase)?;
            met.insert(self.rust.state());
            calls += 1;
        }
        Ok(calls)
    }
}

#[test]
fn sobas_is_the_same_step_by_step() {
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(2_000) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let met = std::cell::RefCell::new(HashSet::new());
    let calls = std::cell::Cell::new(0_usize);
    let max = prop_oneof![4 => 100_000_u64..1 << 30, 1 => 0_u64..100_000, 1 => 1_u64 << 30..1 << 62, 1 => Just(1 << 62)];
    runner
        .run(&(path(), max, begin(), begin()), |(path, max, now, received)| {
            let mut pair = Pair::new(max, now, received);
            pair.observe(&Phase { rcv_rtt: 0, srtt: 0, ..path[0] })?;
            met.borrow_mut().insert(pair.rust.state());
            for phase in &path {
                calls.set(calls.get() + pair.pass(phase, &mut met.borrow_mut())?);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(met.borrow().len(), 6, "not every state was met: {:?}", met.borrow());
    assert!(calls.get() > 1_000_000, "{} calls", calls.get());
}
