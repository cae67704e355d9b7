//! Tests, on the host, of when a new connection needs a record (`fast.h`).

#![expect(unsafe_code, reason = "calls C")]

use crate::abi::{bw_config, bw_control};
use crate::config::{Config, ReceiveRule, SendRule};
use crate::judged::{config, control};

/// `struct bw_unrecorded`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Unrecorded {
    written: u64,
    received: u64,
    segment: u64,
    sndbuf: u32,
    rcvbuf: u32,
}

/// As the kernel makes it on Ethernet: nothing moved, both buffers at their first size.
const NEW: Unrecorded = Unrecorded { written: 0, received: 0, segment: 536, sndbuf: 87_040, rcvbuf: 131_072 };

unsafe extern "C" {
    fn bufwise_is_record_due(config: *const bw_config, all: *const bw_control, v: *const Unrecorded) -> u32;
}

fn is_due(all: &bw_control, one: &Unrecorded) -> bool {
    is_due_for(ReceiveRule::Sobas, all, one)
}

fn is_due_for(rule: ReceiveRule, all: &bw_control, one: &Unrecorded) -> bool {
    let at_segment = if rule == ReceiveRule::Fit { Config::FULL_SEGMENT.0 } else { 0 };
    let config = config(SendRule::Abt, rule);
    let config =
        bw_config { record_after: Config::SHORT_CONNECTION.0, record_at_segment: at_segment, ..config };
    // SAFETY: the structures are those of flow.h and fast.h, and outlive the call.
    unsafe { bufwise_is_record_due(&raw const config, all, one) != 0 }
}

#[test]
fn a_record_is_due_once_16_kb_have_moved_in_one_direction() {
    for (written, received, due) in
        [(0, 0, false), (16_383, 16_383, false), (16_384, 0, true), (0, 16_384, true)]
    {
        let one = Unrecorded { written, received, ..NEW };
        assert_eq!(is_due(&control(), &one), due, "{written}, {received}");
    }
}

#[test]
fn a_receiver_that_times_the_first_flight_has_its_record_with_the_first_full_segment() {
    for (segment, due) in [(536, false), (1_000, false), (1_220, true), (1_448, true)] {
        let one = Unrecorded { received: segment, segment, ..NEW };
        assert_eq!(is_due_for(ReceiveRule::Fit, &control(), &one), due, "{segment}");
        assert!(!is_due_for(ReceiveRule::Sobas, &control(), &one), "{segment}");
    }
}

#[test]
fn a_record_is_due_at_once_if_memory_is_short_or_a_share_less_than_a_buffer() {
    let with_level = |level| bw_control { send_level: level, newcomer_level: level, ..control() };
    let with_window = |window_level| bw_control { window_level, ..control() };
    assert!(is_due(&bw_control { pressure: 1, ..control() }, &NEW));
    // Right after ESTABLISHED the kernel enlarges the send buffer.
    assert!(is_due(&with_level(131_071), &Unrecorded { sndbuf: 16_384, ..NEW }));
    assert!(!is_due(&with_level(131_072), &NEW));
    assert!(is_due(&with_level(1 << 20), &Unrecorded { sndbuf: 2 << 20, ..NEW }));
    // A window takes twice its payload.
    assert!(is_due(&with_window(65_535), &NEW));
    assert!(!is_due(&with_window(65_536), &NEW));
}
