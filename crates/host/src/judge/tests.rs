//! Tests: the kernel's figures in, causes and sentences out.

use super::*;
use bufwise_socket::info::{SkMem, TcpInfo};
use bufwise_units::Micros;

/// Returns a CUBIC sender of 80 Mbit/s over 40 ms.
pub(super) fn case(limited: Limited) -> Case {
    Case {
        direction: Direction::Send,
        limited: Some(limited),
        send: BufferOwner::Kernel,
        receive: BufferOwner::Kernel,
        roof: Roof::None,
        segments_out: 1_000,
        retransmits: 0,
        retransmitted_now: None,
        min_rtt_s: 0.040,
        queue_s: None,
        goodput_bps: 80_000_000,
        paces_itself: false,
        has_fit: false,
        memory_short: false,
    }
}

/// Returns two samples a second apart, between which `received` bytes arrived.
fn second(received: u64, now: SocketSample) -> (SocketSample, SocketSample) {
    let later = TcpInfo { bytes_received: received, ..now.info };
    (SocketSample { at: Micros::ZERO, ..now }, SocketSample { at: Micros::from_secs(1), info: later, ..now })
}

#[test]
fn the_way_is_that_of_the_present_before_that_of_the_past() {
    let past = SocketSample {
        info: TcpInfo { bytes_acked: 9_000, ..TcpInfo::default() },
        ..SocketSample::default()
    };
    let (previous, now) = second(100, past);
    assert_eq!(Direction::between(Some(&previous), &now), Direction::Receive);
    assert_eq!(Direction::between(Some(&previous), &previous), Direction::Send);
    assert_eq!(Direction::between(None, &now), Direction::Send);
}

#[test]
fn a_receiver_is_judged_by_what_arrives_against_its_window() {
    let info = TcpInfo { rcv_rtt: 100_000, rcv_wnd: 100_000, ..TcpInfo::default() };
    let mem = SkMem { rcvbuf: 200_000, ..SkMem::default() };
    let sample = SocketSample { at: Micros::ZERO, info, mem };
    let verdict = |received, sample| {
        let (previous, now) = second(received, sample);
        cause(Direction::Receive, &previous, &now)
    };
    assert_eq!(verdict(0, sample), Cause::Application);
    assert_eq!(verdict(950_000, sample), Cause::ReceiveWindow);
    assert_eq!(verdict(500_000, sample), Cause::Path);
    let unread = SocketSample { mem: SkMem { rmem_alloc: 150_000, ..mem }, ..sample };
    assert_eq!(verdict(950_000, unread), Cause::Reader);
}

#[test]
fn a_buffer_full_of_data_under_way_limits_though_the_kernel_does_not_count_it() {
    let mem = SkMem { sndbuf: 32_768, wmem_queued: 30_000, ..SkMem::default() };
    let info = TcpInfo { unacked: 10, snd_mss: 1_448, ..TcpInfo::default() };
    let previous = SocketSample { at: Micros::ZERO, info, mem };
    let busy = TcpInfo { busy_time: 1_000_000, ..info };
    let now = SocketSample { at: Micros::from_secs(1), info: busy, mem };
    assert_eq!(cause(Direction::Send, &previous, &now), Cause::SendBuffer);
    let waiting = SocketSample { info: TcpInfo { notsent_bytes: 20_000, ..busy }, ..now };
    assert_eq!(cause(Direction::Send, &previous, &waiting), Cause::CongestionWindow);
}

#[test]
fn shares_add_up_and_the_largest_is_named_first() {
    let spent = Limited { application: 3.0, send_buffer: 1.0, ..Limited::default() };
    let shares = spent.shares().unwrap();
    assert_eq!((shares.application, shares.send_buffer, shares.path), (0.75, 0.25, 0.0));
    assert_eq!(shares.to_string(), "application 75%, send buffer 25%");
    assert_eq!(Limited::default().shares(), None);
}

#[test]
fn advice_names_what_can_be_done() {
    let buffer = case(Limited { send_buffer: 0.9, application: 0.1, ..Limited::default() });
    let window = case(Limited { receive_window: 1.0, ..Limited::default() });
    let path = case(Limited { congestion_window: 1.0, ..Limited::default() });
    let arrives = case(Limited { path: 1.0, ..Limited::default() });
    let reader = case(Limited { reader: 0.9, application: 0.1, ..Limited::default() });
    let receives_slowly = Case { direction: Direction::Receive, ..reader };
    let receives = |receive| Case { direction: Direction::Receive, receive, ..window };
    for (case, words) in [
        (buffer, "`bufwise run --policy abt -- CMD` or `bufwise daemon --policy abt`"),
        (Case { send: BufferOwner::Application, ..buffer }, "`bufwise run --override -- CMD`"),
        (Case { send: BufferOwner::Sobas, ..buffer }, "The share of the memory"),
        (Case { send: BufferOwner::Policy, ..buffer }, "--memory or, under `fixed`, name a larger size"),
        (Case { send: BufferOwner::Unprivileged, ..buffer }, "or raise tcp_wmem"),
        (window, "tcp_rmem there"),
        (receives(BufferOwner::Application), "SO_RCVBUF"),
        (receives(BufferOwner::Kernel), "`bufwise run --policy drs -- CMD`"),
        (receives(BufferOwner::Sobas), "no queue builds up"),
        (receives(BufferOwner::Unprivileged), "or raise tcp_rmem"),
        (path, "large enough"),
        (Case { retransmits: 20, ..path }, "loses 2.0%"),
        (
            Case { retransmits: 20, queue_s: Some(0.1), ..path },
            "queue of 100 ms stands in the path and dropped 2.0%",
        ),
        (Case { queue_s: Some(0.1), ..path }, "queue of 100 ms"),
        (Case { roof: Roof::Limits, ..path }, "found the path to carry, so that no queue"),
        (
            Case { roof: Roof::Limits, send: BufferOwner::Policy, ..buffer },
            "found the path to carry, so that no queue",
        ),
        (Case { roof: Roof::Limits, ..window }, "tcp_rmem there"),
        (Case { roof: Roof::Limits, retransmits: 20, ..path }, "loses 2.0%"),
        (Case { roof: Roof::Limits, queue_s: Some(0.1), ..path }, "other traffic may fill it"),
        (
            Case { roof: Roof::ForeignQueue, queue_s: Some(0.1), ..path },
            "queue of 100 ms stands in the path that is not",
        ),
        (Case { roof: Roof::ForeignQueue, retransmits: 20, queue_s: Some(0.1), ..path }, "is not its own"),
        (Case { roof: Roof::ForeignQueue, ..path }, "large enough"),
        (Case { queue_s: Some(0.1), ..path }, "`bufwise run --policy fit -- CMD` at this end"),
        (Case { queue_s: Some(0.1), ..buffer }, "queue of 100 ms"),
        (Case { queue_s: Some(0.1), ..window }, "queue of 100 ms"),
        (Case { queue_s: Some(0.1), paces_itself: true, ..path }, "-- CMD` at the receiver"),
        (Case { has_fit: true, queue_s: Some(0.1), ..path }, "although fit is in force at this end"),
        (Case { has_fit: true, paces_itself: true, queue_s: Some(0.1), ..path }, "-- CMD` at the receiver"),
        (Case { min_rtt_s: 0.0005, queue_s: Some(0.02), ..path }, "so short that fit leaves it"),
        (Case { direction: Direction::Receive, queue_s: Some(0.047), ..arrives }, "queue of 47 ms"),
        (Case { direction: Direction::Receive, retransmits: 20, ..arrives }, "large enough"),
        (case(Limited { reader: 0.9, ..Limited::default() }), "program at the other end"),
        (receives_slowly, "program here"),
        (Case { roof: Roof::Bound, ..path }, "held to a bound"),
        (Case { memory_short: true, ..window }, "tcp_mem"),
        (case(Limited { application: 1.0, ..Limited::default() }), "program itself"),
        (Case { limited: None, ..path }, "Too short"),
    ] {
        let advice = case.advice();
        assert!(advice.contains(words), "{words}: {advice}");
    }
}

/// Returns two samples, 250 ms apart, of a sender that the peer's window limits nearly all the time.
fn held_by_window(acked: u64, window: u32) -> (SocketSample, SocketSample) {
    let info =
        TcpInfo { rtt: 20_000, min_rtt: 20_000, snd_mss: 1_448, snd_wnd: window, ..TcpInfo::default() };
    let previous = SocketSample { info, ..SocketSample::default() };
    let later = TcpInfo { busy_time: 250_000, rwnd_limited: 240_000, bytes_acked: acked, ..info };
    (previous, SocketSample { at: Micros::from_millis(250), info: later, ..SocketSample::default() })
}

#[test]
fn a_window_that_is_shut_or_left_unused_is_the_reading_programs() {
    let verdict = |acked, window| {
        let (previous, now) = held_by_window(acked, window);
        cause(Direction::Send, &previous, &now).to_string()
    };
    // 64 KB in each of 12.5 round trips: its reader keeps up.
    assert_eq!(verdict(800_000, 64_000), "receive window");
    assert_eq!(verdict(500_000, 0), "reading program");
    assert_eq!(verdict(500_000, 1_448), "reading program");
    // The buffer opens by 400 KB now and then and fills again at once.
    assert_eq!(verdict(500_000, 400_000), "reading program");
}

#[test]
fn a_receive_buffer_full_of_what_is_not_read_is_the_reading_programs() {
    let mem = SkMem { rcvbuf: 200_000, rmem_alloc: 190_000, ..SkMem::default() };
    let info = TcpInfo { rcv_rtt: 20_000, rcv_wnd: 1_000, rcv_ssthresh: 100_000, ..TcpInfo::default() };
    let (previous, now) = second(500_000, SocketSample { info, mem, ..SocketSample::default() });
    assert_eq!(cause(Direction::Receive, &previous, &now).to_string(), "reading program");
    let (previous, now) = second(0, SocketSample { info, mem, ..SocketSample::default() });
    assert_eq!(cause(Direction::Receive, &previous, &now).to_string(), "reading program");
}

#[test]
fn data_that_waits_behind_a_hole_is_held_back_by_the_path() {
    let info = TcpInfo { rcv_rtt: 200_000, rcv_wnd: 100_000, rcv_ooopack: 7, ..TcpInfo::default() };
    let verdict = |out_of_order: u32, rmem_alloc: u32| {
        let mem = SkMem { rcvbuf: 200_000, rmem_alloc, ..SkMem::default() };
        let (previous, mut now) = second(0, SocketSample { info, mem, ..SocketSample::default() });
        now.info.rcv_ooopack += out_of_order;
        cause(Direction::Receive, &previous, &now)
    };
    assert_eq!((verdict(9, 40_000), verdict(9, 150_000)), (Cause::Path, Cause::Path));
    assert_eq!((verdict(0, 40_000), verdict(0, 150_000)), (Cause::Application, Cause::Reader));
}

#[test]
fn data_under_way_or_waiting_counts_for_the_way_before_it_is_acknowledged() {
    let request = TcpInfo { bytes_received: 500, ..TcpInfo::default() };
    let answers = TcpInfo { bytes_sent: 14_480, ..request };
    let waits = TcpInfo { notsent_bytes: 90_000, ..request };
    for info in [answers, waits] {
        let now = SocketSample { info, ..SocketSample::default() };
        assert_eq!(Direction::so_far(&now), Direction::Send);
        let before = SocketSample { info: TcpInfo::default(), ..now };
        assert_eq!(Direction::between(Some(&before), &now), Direction::Send);
    }
    assert_eq!(
        Direction::so_far(&SocketSample { info: request, ..SocketSample::default() }),
        Direction::Receive
    );
}

#[test]
fn a_window_at_the_end_of_its_scale_is_not_said_to_be_what_the_path_carries() {
    let largest: u32 = 65_535 << 7;
    let wscales = if cfg!(target_endian = "little") { 7 << 4 } else { 7 };
    // The clamp, and the kernel's figure, exceed what the window field can express.
    let info = TcpInfo { rcv_rtt: 100_000, rcv_wnd: 2 * largest, wscales, ..TcpInfo::default() };
    let mem = SkMem { rcvbuf: 8 * largest, ..SkMem::default() };
    let judged = |round_trip: u32| {
        let (previous, now) =
            second(10 * u64::from(round_trip), SocketSample { info, mem, ..SocketSample::default() });
        assert_eq!(offered_window(&now), largest);
        let mut spent = Limited::default();
        spent.add(Direction::Receive, &previous, &now);
        let limited = spent.shares().unwrap();
        move |receive| Case { direction: Direction::Receive, receive, has_fit: true, ..case(limited) }
    };
    let full = judged(largest);
    for receive in [BufferOwner::Kernel, BufferOwner::Sobas, BufferOwner::Policy] {
        let (advice, outlook) = (full(receive).advice(), full(receive).outlook());
        assert!(advice.starts_with("The window scale held it back"), "{receive:?}: {advice}");
        assert!(outlook.sentence.contains("in a new connection"), "{receive:?}: {outlook:?}");
    }
    assert!(full(BufferOwner::Application).advice().contains("SO_RCVBUF"));
    let half = judged(largest / 2)(BufferOwner::Sobas).advice();
    assert_eq!(half, "The path was the limit: the buffers are large enough.");
}

#[test]
fn a_kernel_that_does_not_tell_the_offered_window_leaves_the_largest_one() {
    let info = TcpInfo { rcv_rtt: 100_000, rcv_ssthresh: 1_000_000, ..TcpInfo::default() };
    let mem = SkMem { rcvbuf: 2_000_000, ..SkMem::default() };
    let (previous, now) = second(500_000, SocketSample { info, mem, ..SocketSample::default() });
    assert_eq!(cause(Direction::Receive, &previous, &now), Cause::Path);
}
