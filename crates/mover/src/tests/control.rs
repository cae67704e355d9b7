//! Control of a running transfer: its end, a lower rate, another buffer.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;

use super::*;
use crate::Share;

#[test]
fn cancelling_ends_a_waiting_receiver_and_a_waiting_sender_at_once() {
    let cancel = Cancel::new().unwrap();
    let job = Job { cancel: cancel.clone(), ..job() };
    let (quiet, receiving) = pair(&Sockets::default());
    let (sending, unread) = pair(&Sockets::fixed(Bytes(65_536)));
    let start = Instant::now();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            receive(receiving, &mut Writer(io::sink()), &mut Tuner::untouched(), None, &job, |_| {})
        });
        let sender = scope
            .spawn(|| send(Source::Reader(&mut io::repeat(7)), sending, &no_grants(), None, &job, |_| {}));
        // The sender is stuck once its peer holds a window's worth.
        await_that("the sender is stuck", || options::tcp_info(&unread).unwrap().bytes_received > 60_000);
        cancel.cancel();
        let error = receiver.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the transfer was cancelled after 0 bytes");
        let error = sender.join().unwrap().unwrap_err();
        assert!(matches!(error, MoveError::Cancelled { bytes: 60_000.. }), "{error}");
    });
    assert!(start.elapsed() < TEST_TIMEOUT, "nobody waited for the idle time");
    assert!(cancel.is_cancelled());
    let (_later, receiving) = pair(&Sockets::default());
    let error = receive(receiving, &mut Writer(io::sink()), &mut Tuner::untouched(), None, &job, |_| {});
    assert!(matches!(error, Err(MoveError::Cancelled { .. })), "once cancelled is cancelled for ever");
    drop(quiet);
}

#[test]
fn cancelling_ends_a_sender_whose_peer_has_ended_its_side_and_does_not_read() {
    let cancel = Cancel::new().unwrap();
    let job = Job { cancel: cancel.clone(), ..job() };
    let (sending, unread) = pair(&Sockets::fixed(Bytes(65_536)));
    unread.shutdown(Shutdown::Write).unwrap();
    let watched = sending.try_clone().unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            // More than the peer's window, and little enough for the rest to fit into the send buffer.
            let mut from = io::repeat(7).take(150_000);
            send(Source::Reader(&mut from), sending, &no_grants(), None, &job, |_| {})
        });
        // LAST_ACK: all bytes are in the kernel.
        await_that("the sender has ended, too", || options::tcp_info(&watched).unwrap().state == 9);
        cancel.cancel();
        let error = sender.join().unwrap().unwrap_err();
        assert!(matches!(error, MoveError::Cancelled { bytes: 150_000 }), "{error}");
    });
}

#[test]
fn bytes_that_a_peer_takes_after_it_has_ended_its_side_are_no_silence() {
    // The last 350 KB leave the send buffer in several pieces; all of them together take longer than the idle time.
    let (idle, between) = (Duration::from_millis(600), Duration::from_millis(350));
    let taken = || {
        let (sending, mut receiving) = pair(&Sockets::fixed(Bytes(65_536)));
        options::set_send_buffer(&sending, Bytes(200_000)).unwrap();
        receiving.shutdown(Shutdown::Write).unwrap();
        receiving.set_nonblocking(true).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut waste = vec![0; 1 << 20];
                loop {
                    thread::sleep(between);
                    if matches!(receiving.read(&mut waste), Ok(0)) {
                        return;
                    }
                }
            });
            let mut from = io::repeat(7).take(350_000);
            send(Source::Reader(&mut from), sending, &no_grants(), None, &impatient(idle), |_| {})
        })
    };
    // On a machine that stands still for so long the peer is silent, but not each time.
    let sent = std::iter::repeat_with(taken).take(5).find_map(Result::ok).expect("the peer takes bytes");
    assert_eq!(sent.report.bytes, 350_000);
}

#[test]
fn a_sender_that_stood_still_itself_does_not_blame_its_peer() {
    let (sending, mut receiving) = pair(&Sockets::default());
    let idle = Duration::from_millis(500);
    let job = Job { limit: Some(Rate(2_000_000)), ..impatient(idle) };
    thread::scope(|scope| {
        scope.spawn(move || io::copy(&mut receiving, &mut io::sink()).unwrap());
        let (mut from, mut stood) = (io::repeat(7).take(1_000_000), false);
        let sent = send(Source::Reader(&mut from), sending, &no_grants(), None, &job, |_| {
            if !std::mem::replace(&mut stood, true) {
                thread::sleep(2 * idle);
            }
        });
        assert_eq!(sent.unwrap().report.bytes, 1_000_000);
        assert!(stood);
    });
}

#[test]
fn a_transfer_that_fails_tells_how_much_was_moved() {
    let (mut sending, receiving) = pair(&Sockets::default());
    sending.write_all(&pattern(5_000)).unwrap();
    drop(sending);
    let mut told = Vec::new();
    let into = &mut Writer(io::sink());
    let error = receive(receiving, into, &mut Tuner::untouched(), Some(9_000), &job(), |seen| {
        told.push(seen.bytes);
    });
    assert!(matches!(error, Err(MoveError::Length { expected: 9_000, received: 5_000 })), "{error:?}");
    assert_eq!(told.last(), Some(&5_000));
    let (sending, _receiving) = pair(&Sockets::default());
    let mut from = io::repeat(7).take(5_000).chain(Failing);
    let error = send(Source::Reader(&mut from), sending, &no_grants(), None, &job(), |seen| {
        told.push(seen.bytes);
    });
    assert!(matches!(error, Err(MoveError::File { bytes: 5_000, .. })), "{error:?}");
    assert_eq!(told.last(), Some(&5_000));
}

/// A file that cannot be read.
struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Seconds that 4 MB take with these limits, and the receiver's result and last window.
fn seconds(sender: Option<Rate>, receiver: Option<Rate>) -> (f64, (Received, Bytes)) {
    let (sending, receiving) = pair(&Sockets::default());
    let mut tuner = Tuner::untouched();
    let start = Instant::now();
    let received = thread::scope(|scope| {
        scope.spawn(move || {
            let mut from = io::repeat(7).take(4_000_000);
            let job = Job { limit: sender, ..job() };
            send(Source::Reader(&mut from), sending, &no_grants(), None, &job, |_| {}).unwrap();
        });
        let job = Job { limit: receiver, ..job() };
        receive(receiving, &mut Writer(io::sink()), &mut tuner, None, &job, |_| {}).unwrap()
    });
    (start.elapsed().as_secs_f64(), (received, tuner.timeline.last().unwrap().window))
}

#[test]
fn a_limit_of_either_end_bounds_the_rate() {
    // 0.2 s at 20 MB/s, less the burst of 20 ms; a busy machine is slower.
    let limit = Some(Rate(20_000_000));
    let (by_sender, _) = in_time(|| seconds(limit, None));
    let (by_receiver, (received, window)) = in_time(|| seconds(None, limit));
    assert!(by_sender >= 0.15 && by_receiver >= 0.15, "sender {by_sender} s, receiver {by_receiver} s");
    // 10 ms of the rate, and a quarter; the quantum of the window's scale comes on top.
    assert!((Bytes(200_000)..Bytes(2_000_000)).contains(&window), "{window}");
    assert!(received.info.rcv_wnd < 2_000_000, "{}", received.info.rcv_wnd);
}

#[test]
fn a_request_that_came_too_soon_is_told_later_though_the_policy_says_no_more() {
    /// Two decisions at its first two samples, a few milliseconds apart, and no further one.
    struct Hasty(Vec<Bytes>);
    impl Policy for Hasty {
        fn observe(&mut self, _: &Sample, _: Micros) -> Decision {
            Decision { send_buffer: self.0.pop(), ..Decision::NONE }
        }
    }
    let (_quiet, receiving) = pair(&Sockets::default());
    let cancel = Cancel::new().unwrap();
    let job = Job { cancel: cancel.clone(), ..job() };
    let mut tuner = Tuner::custom(Box::new(Hasty(vec![Bytes(200_000), Bytes(50_000)])), None);
    let mut told = Vec::new();
    let error = receive(receiving, &mut Writer(io::sink()), &mut tuner, None, &job, |seen| {
        told.extend(seen.buffer_request);
        if told.len() == 2 {
            cancel.cancel();
        }
    });
    assert!(matches!(error, Err(MoveError::Cancelled { .. })), "{error:?}");
    assert_eq!(told, [Bytes(50_000), Bytes(200_000)]);
}

#[test]
fn requests_are_bounded_whatever_the_peer_says() {
    let (sending, _receiving) = pair(&Sockets::default());
    let cap = Bytes(150_000);
    let grants = BufferGrants::new(cap);
    assert_eq!(grants.set(Bytes::MAX).unwrap(), cap, "before the transfer");
    assert_eq!(grants.granted(), Some(cap));
    grants.attach(&sending).unwrap();
    assert_eq!(options::send_buffer(&sending).unwrap(), Bytes(300_000), "the kernel doubles it");
    thread::sleep(Duration::from_millis(11));
    assert_eq!(grants.set(Bytes(140_000)).unwrap(), cap, "less than a quarter");
    let least = grants.set(Bytes::ZERO).unwrap();
    assert_eq!(least, Bytes(16_384));
    assert_eq!(options::send_buffer(&sending).unwrap(), least.times(2));
    grants.detach();
    thread::sleep(Duration::from_millis(11));
    assert_eq!(grants.set(Bytes(100_000)).unwrap(), Bytes(100_000));
    assert_eq!(options::send_buffer(&sending).unwrap(), least.times(2), "the transfer is over");
}

#[test]
fn a_request_beyond_the_hosts_maximum_leaves_autotuning_on_where_that_reaches_further() {
    let (sending, _receiving) = pair(&Sockets::default());
    let grants = BufferGrants::with_limits(Bytes::MAX, Bytes(100_000), Bytes(4 << 20));
    grants.attach(&sending).unwrap();
    grants.set(Bytes(90_000)).unwrap();
    assert!(options::buffer_lock(&sending).unwrap().send);
    thread::sleep(Duration::from_millis(11));
    grants.set(Bytes(1 << 20)).unwrap();
    assert!(!options::buffer_lock(&sending).unwrap().send);
    let small = BufferGrants::with_limits(Bytes::MAX, Bytes(100_000), Bytes(150_000));
    small.attach(&sending).unwrap();
    small.set(Bytes(1 << 20)).unwrap();
    assert!(options::buffer_lock(&sending).unwrap().send, "the host's maximum is the most there is");
}

#[test]
fn a_receiver_that_talks_instead_of_reading_does_not_count_as_alive() {
    let (sending, talking) = pair(&Sockets::fixed(Bytes(65_536)));
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while (&talking).write_all(b"!").is_ok()
                && stopped.recv_timeout(Duration::from_millis(2)) == Err(RecvTimeoutError::Timeout)
            {
            }
        });
        let mut from = io::repeat(7).take(1_000_000);
        let job = impatient(Duration::from_millis(250));
        let error = send(Source::Reader(&mut from), sending, &no_grants(), None, &job, |_| {});
        assert!(matches!(error, Err(MoveError::Idle { .. })), "{error:?}");
        drop(stop);
    });
}

#[test]
fn a_sender_does_not_wait_for_a_receiver_that_keeps_its_connection() {
    let (sending, receiving) = pair(&Sockets::default());
    let mut from = &b"a listing"[..];
    let sent = send(Source::Reader(&mut from), sending, &no_grants(), None, &job(), |_| {}).unwrap();
    assert_eq!(sent.report.bytes, 9);
    drop(receiving);
}

#[test]
fn a_peer_that_closes_early_is_an_error_for_the_sender() {
    let (sending, receiving) = pair(&Sockets::default());
    drop(receiving);
    let mut from = io::repeat(7).take(10_000_000);
    let error = send(Source::Reader(&mut from), sending, &no_grants(), None, &job(), |_| {}).unwrap_err();
    assert!(matches!(error, MoveError::Connection { .. }), "{error}");
}

/// How long to wait for a stalled peer, and from when on samples are counted.
const STALL: Duration = Duration::from_secs(3);
const SETTLED: Duration = Duration::from_millis(1_200);

/// Samples of a silent connection, once they are rare.
fn late_samples(policy: PolicyKind) -> usize {
    let (_silent, receiving) = pair(&Sockets::default());
    let late = Arc::new(AtomicUsize::new(0));
    let (samples, mut first) = (Arc::clone(&late), None);
    let share = Share::new(move |wanted, _| {
        // The machine may have stood still before the first of them.
        let began = *first.get_or_insert_with(Instant::now);
        samples.fetch_add(usize::from(began.elapsed() > SETTLED), Ordering::Relaxed);
        wanted
    });
    let mut tuner = Tuner::new(policy, BuildOptions::default(), None).within(share);
    let error = receive(receiving, &mut Writer(io::sink()), &mut tuner, None, &impatient(STALL), |_| {});
    assert!(matches!(error, Err(MoveError::Idle { .. })), "{error:?}");
    late.load(Ordering::Relaxed)
}

#[test]
fn a_silent_sender_wakes_its_receiver_ever_more_rarely() {
    // Side by side, because each of them only waits.
    thread::scope(|scope| {
        let policies = [PolicyKind::Kernel, PolicyKind::Drs, PolicyKind::DrsFtp];
        // On a machine that stands still for almost two seconds there is none, but not each time.
        let some = |policy| std::iter::repeat_with(|| late_samples(policy)).take(5).find(|late| *late > 0);
        let all = policies.map(|policy| (policy, scope.spawn(move || some(policy))));
        for (policy, samples) in all {
            let late = samples.join().unwrap().expect("some samples");
            assert!(late < 12, "{policy}: {late} samples");
        }
    });
}

/// Probes of a silent transfer once they are rare, and the losses that were counted.
fn late_probes() -> (u64, u32) {
    let (responder, prober) = probes();
    let mut tuner = Tuner::new(PolicyKind::Sobas, BuildOptions::default(), Some(prober));
    let (_silent, receiving) = pair(&Sockets::default());
    let (mut first, mut before) = (None, None);
    let error = receive(receiving, &mut Writer(io::sink()), &mut tuner, None, &impatient(STALL), |_| {
        let began = *first.get_or_insert_with(Instant::now);
        if before.is_none() && began.elapsed() > SETTLED {
            before = Some(responder.counters().echoes);
        }
    });
    assert!(matches!(error, Err(MoveError::Idle { .. })), "{error:?}");
    let late = before.map_or(0, |before| responder.counters().echoes - before);
    (late, tuner.measured().unwrap().lost)
}

#[test]
fn probes_rest_while_a_transfer_is_silent() {
    // On a machine that stands still for more than a second none is in time, or the silence counts as loss, but not each time.
    let is_as_promised = || {
        let (late, lost) = late_probes();
        // More than a second, in which an active transfer sends more than a hundred.
        assert!(late < 12, "{late} probes");
        late > 0 && lost == 0
    };
    assert!((0..4).any(|_| is_as_promised()));
}

#[test]
fn a_limit_that_keeps_a_receiver_waiting_is_no_silence() {
    // A piece of 4 KiB each half second, which is longer than the idle time.
    let job = Job { limit: Some(Rate(8_192)), ..impatient(Duration::from_millis(300)) };
    let (mut sending, receiving) = pair(&Sockets::default());
    sending.write_all(&pattern(8_192)).unwrap();
    drop(sending);
    let mut into = Writer(Vec::new());
    receive(receiving, &mut into, &mut Tuner::untouched(), None, &job, |_| {}).unwrap();
    assert!(into.0 == pattern(8_192));
}

#[test]
fn a_byte_that_comes_after_silence_is_taken_at_once() {
    let (sending, receiving) = pair(&Sockets::default());
    let (words, heard) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut words = Some(words);
            let mut into = Writer(Vec::new());
            let tuner = &mut Tuner::untouched();
            let received = receive(receiving, &mut into, tuner, None, &job(), |seen| {
                if seen.bytes > 0 {
                    words.take().map(|words| words.send(seen.bytes));
                }
            });
            assert_eq!((received.unwrap().report.bytes, into.0), (1, b"!".to_vec()));
        });
        // The connection is quiet by now, so that no sample is due for a while.
        thread::sleep(SETTLED);
        (&sending).write_all(b"!").unwrap();
        assert_eq!(heard.recv_timeout(TEST_TIMEOUT), Ok(1), "long before the stream ends");
        drop(sending);
    });
}

#[test]
fn a_receiver_that_does_not_read_wakes_its_sender_ever_more_rarely() {
    let (sending, _stalled) = pair(&Sockets::fixed(Bytes(65_536)));
    let (mut bytes, mut since, mut late) = (0, Instant::now(), 0);
    let mut from = io::repeat(7).take(10_000_000);
    let error = send(Source::Reader(&mut from), sending, &no_grants(), None, &impatient(STALL), |seen| {
        if seen.bytes > bytes {
            (bytes, since) = (seen.bytes, Instant::now());
        }
        late += u32::from(since.elapsed() > SETTLED);
    });
    assert!(matches!(error, Err(MoveError::Idle { .. })), "{error:?}");
    assert!((1..10).contains(&late), "{late} words");
}

/// Grants within memory of which so much is left.
fn within(left: &Arc<AtomicU64>) -> BufferGrants {
    let left = Arc::clone(left);
    BufferGrants::with_limits(Bytes::ZERO, Bytes(212_992), Bytes(4 << 20))
        .within(move |wanted, _| wanted.min(Bytes(left.load(Ordering::Relaxed))))
}

#[test]
fn a_sender_keeps_within_its_memory_and_is_given_back_to_the_kernel() {
    let (sending, _receiving) = pair(&Sockets::default());
    let left = Arc::new(AtomicU64::new(100_000));
    let grants = within(&left);
    grants.attach(&sending).unwrap();
    assert_eq!(options::send_buffer(&sending).unwrap(), Bytes(100_000), "before the first byte");
    for (room, buffer) in [(300_000, 300_000), (200_000, 200_000), (3 << 20, 425_984)] {
        left.store(room, Ordering::Relaxed);
        grants.renew().unwrap();
        assert_eq!(options::send_buffer(&sending).unwrap(), Bytes(buffer), "as much as can be set");
    }
    left.store(u64::MAX, Ordering::Relaxed);
    grants.renew().unwrap();
    assert!(!options::buffer_lock(&sending).unwrap().send);
}

#[test]
fn a_send_buffer_of_a_size_that_was_set_gets_that_back() {
    let (sending, _receiving) = pair(&Sockets::fixed(Bytes(100_000)));
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let grants = within(&left);
    grants.attach(&sending).unwrap();
    for (room, buffer) in [(u64::MAX, 200_000), (150_000, 150_000), (u64::MAX, 200_000)] {
        left.store(room, Ordering::Relaxed);
        grants.renew().unwrap();
        assert_eq!(options::send_buffer(&sending).unwrap(), Bytes(buffer));
    }
}
