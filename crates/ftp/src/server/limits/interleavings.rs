//! Tests of the limits: shuttle runs the threads that share them in thousands of orders.

use super::*;
use crate::server::sync::{ORDERS, threads};

#[test]
fn shuttle_sessions_are_never_more_than_the_places_and_all_places_come_back() {
    let body = || {
        let slots = Slots::new(2, 2);
        let shared = slots.clone();
        threads(4, move |number| {
            let peer = SocketAddr::from(([198, 18, 0, u8::from(number > 2)], 1_024 + number));
            let ended = Arc::new(Mutex::new(false));
            let hang_up = Arc::clone(&ended);
            if let Ok((slot, _displaced)) = shared.take(peer, move || *locked(&hang_up) = true) {
                let is_guest = number % 2 == 0;
                if is_guest {
                    slot.begin_transfer()
                } else {
                    slot.keep()
                }
                let had_gone = *locked(&ended);
                assert!(shared.taken() <= 2);
                assert_eq!(*locked(&ended), had_gone, "it had logged in, or transferred");
                if is_guest {
                    slot.end_transfer();
                }
            }
            assert!(shared.taken() <= 2);
        });
        assert_eq!(slots.taken(), 0);
    };
    shuttle::check_random(body, ORDERS);
}

#[test]
fn shuttle_attempts_over_many_connections_are_spaced_as_over_one() {
    let body = || {
        let (start, delay) = (Instant::now(), Duration::from_secs(1));
        let attempts = Arc::new(Attempts::new(delay));
        let address = IpAddr::from([198, 18, 0, 1]);
        attempts.failed(address, "jo", start);
        let (shared, times) = (Arc::clone(&attempts), Arc::new(Mutex::new(Vec::new())));
        let admitted = Arc::clone(&times);
        threads(4, move |number| {
            let at = shared.admit(address, "jo", start, start + 60 * delay).unwrap();
            locked(&admitted).push(at);
            if number == 0 {
                assert!(shared.failed(address, "jo", at) > at);
            }
        });
        let mut times = locked(&times);
        times.sort();
        assert!(times[0] >= start + delay, "{times:?}");
        assert!(times.windows(2).all(|two| two[1] >= two[0] + delay), "{times:?}");
    };
    shuttle::check_random(body, ORDERS);
}

#[test]
fn shuttle_requested_buffers_are_bounded_for_all_and_come_back() {
    let body = || {
        let caps = BufferCaps { connection: Bytes(10), user: Bytes(15), host: Bytes(22) };
        let ledger = Ledger::new(caps);
        let shared = ledger.clone();
        threads(4, move |number| {
            let mut grant = shared.open(["a", "b"][usize::from(number % 2)]);
            for request in [8, 12, 3] {
                assert!(grant.ask(Bytes(request)).0 <= request.min(10));
                let held = locked(&shared.held);
                assert!(held.host <= 22 && held.users.values().all(|user| *user <= 15), "{held:?}");
            }
        });
        let held = locked(&ledger.held);
        assert_eq!((held.host, held.users.len()), (0, 0));
    };
    shuttle::check_random(body, ORDERS);
}
