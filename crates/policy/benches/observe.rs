//! Cost of one observation of each policy, on a connection that is busy in both directions.

use bufwise_policy::{BuildOptions, PolicyKind};
use bufwise_units::{Bytes, Micros, Rate, Sample};
use divan::Bencher;

fn main() {
    divan::main();
}

#[divan::bench(args = PolicyKind::ALL)]
fn observe(bencher: Bencher, kind: PolicyKind) {
    measure(bencher, kind, &BuildOptions::default());
}

#[divan::bench]
fn observe_sobas_paced(bencher: Bencher) {
    measure(bencher, PolicyKind::Sobas, &BuildOptions { pacing: true, ..Default::default() });
}

fn measure(bencher: Bencher, kind: PolicyKind, options: &BuildOptions) {
    let mut policy = kind.build(options);
    let rtt = Micros::from_millis(40);
    let mut sample = Sample {
        mss: Bytes(1_448),
        srtt: rtt,
        rto: rtt.times(5),
        rcv_rtt: rtt,
        probe_rtt: rtt,
        capacity: Rate(12_500_000),
        ..Sample::default()
    };
    let mut now = Micros::ZERO;
    let mut round = 0_u64;
    bencher.bench_local(|| {
        round += 1;
        now += rtt;
        sample.cwnd = Bytes((100 + round % 100) * 1_448);
        sample.segs_out += 100;
        sample.segs_lost += u64::from(round.is_multiple_of(100));
        sample.bytes_acked += sample.cwnd;
        sample.bytes_received += sample.cwnd;
        policy.observe(divan::black_box(&sample), now)
    });
}
