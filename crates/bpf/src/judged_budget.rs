//! Tests, on the host, of how the programs in the kernel apply shares of the send memory (`rules_send.h`).

use crate::abi::{bw_config, bw_control, bw_flow};
use crate::config::{ReceiveRule, SendRule};
use crate::judged::{config, control};
use crate::rules::{self, NONE};

const MSS: u32 = 1_448;

#[test]
fn until_it_sends_in_earnest_a_connection_may_hold_its_window_alone() {
    let all = bw_control { send_level: 400_000, ..control() };
    // Memory counts as twice the payload, but a window in full segments takes only five quarters of its payload.
    let of_window = u64::from(10 * MSS) * 5 / 4 / 2;
    for rule in [SendRule::Eq, SendRule::Abt, SendRule::Sabt, SendRule::Fit] {
        let payload = |bytes_acked| {
            let mut flow = bw_flow { cwnd: 10, mss: MSS, bytes_acked, ..bw_flow::default() };
            rules::decide_send(&config(rule, ReceiveRule::Kernel), &all, None, &mut flow, false).payload
        };
        // First after the handshake; then after a request, or after a greeting that a program sends.
        assert_eq!((payload(1), payload(500)), (of_window, of_window), "{rule:?}");
        assert!(payload(10_000) >= 2 * u64::from(MSS) * 10, "{rule:?}");
    }
}

#[test]
fn a_small_document_takes_no_part_but_no_more_than_a_newcomer_has() {
    let mut config = config(SendRule::Sabt, ReceiveRule::Kernel);
    config.small_document = 30_000;
    let decide = |send_level, bytes_acked| {
        let mut flow = bw_flow { cwnd: 40, mss: MSS, bytes_acked, ..bw_flow::default() };
        let all = bw_control { send_level, pressure: 1, ..control() };
        rules::decide_send(&config, &all, None, &mut flow, false)
    };
    assert_eq!((decide(9_216, 20_000).share, decide(9_216, 20_000).payload), (30_000, 30_000));
    assert_eq!(decide(100_000, 20_000).share, 50_000);
    assert_eq!(decide(100_000, 30_000).share, 50_000);
    assert_eq!(decide(NONE, 20_000).share, NONE);
}

/// Many connections begin beside one with a large buffer. Its share leaves no room for a limit beside the buffer that its writer
/// fills at once: the large buffer has to shrink all the same.
#[test]
fn a_share_of_less_than_half_of_a_writers_buffer_leaves_the_kernels_smallest_limit() {
    for rule in [SendRule::Eq, SendRule::Abt, SendRule::Sabt, SendRule::Fit] {
        let config = config(rule, ReceiveRule::Kernel);
        let limit = |send_level, pressure| {
            let mut flow = bw_flow { cwnd: 200, mss: MSS, bytes_acked: 1 << 20, ..bw_flow::default() };
            (flow.last_buffer, flow.sndbuf, flow.set_sndbuf) = (65_536, 4 << 20, 4 << 20);
            let all = bw_control { send_level, pressure, ..control() };
            let payload = rules::decide_send(&config, &all, None, &mut flow, false).payload;
            rules::step_send(&config, &mut flow, payload, false).value
        };
        // 6/5 of the payload that is left beside a quarter of the writer's buffer.
        assert_eq!(limit(40_960, 0), 4_096 + 4_096 / 5, "{rule:?}");
        assert_eq!([limit(32_768, 0), limit(10_000, 0), limit(10_000, 1)], [2_304; 3], "{rule:?}");
    }
}

#[test]
fn a_share_binds_where_the_connection_would_use_more() {
    let flow = |net_target| {
        let mut flow = bw_flow::default();
        flow.abt.net_target = net_target;
        flow
    };
    let abt = config(SendRule::Abt, ReceiveRule::Kernel);
    assert!(!rules::share_binds(&abt, &control(), &flow(500_000), 500_000));
    assert!(rules::share_binds(&abt, &control(), &flow(500_001), 500_000));
    assert!(rules::share_binds(&abt, &bw_control { pressure: 1, ..control() }, &flow(1), NONE));
    assert!(rules::share_binds(&config(SendRule::Eq, ReceiveRule::Kernel), &control(), &flow(1), NONE));
}

#[test]
fn as_published_cwnd_and_the_share_alone_decide() {
    let published = |rule| bw_config { published: 1, ..config(rule, ReceiveRule::Kernel) };
    let window = u64::from(100 * MSS);
    let decide = |config: &bw_config, send_level| {
        let mut flow = bw_flow { cwnd: 100, mss: MSS, bytes_acked: 1, ..bw_flow::default() };
        (flow.app_limited, flow.last_buffer) = (1, 65_536);
        let all = bw_control { send_level, ..control() };
        rules::decide_send(config, &all, None, &mut flow, false).payload
    };
    for rule in [SendRule::Abt, SendRule::Sabt] {
        // The flow is limited by its application, has no data acknowledged, and its writer fills one buffer beyond the
        // share.
        assert_eq!(decide(&published(rule), NONE), 2 * window, "{rule:?}");
        assert_eq!(decide(&published(rule), 200_000), 100_000, "{rule:?}");
        assert!(
            decide(&config(rule, ReceiveRule::Kernel), NONE) > 2 * window,
            "{rule:?}: nothing is known yet"
        );
        assert!(decide(&config(rule, ReceiveRule::Kernel), 200_000) < 100_000, "{rule:?}");
    }
}
