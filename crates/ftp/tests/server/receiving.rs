//! Receive buffers of many uploads at once, as their clients see them: by the windows that they may fill.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use bufwise_ftp::server::ReceiveCaps;
use bufwise_mover::Share;
use bufwise_policy::PolicyKind;
use bufwise_socket::options::tcp_info;
use bufwise_units::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::{Client, Served, pattern, serve};

/// Uploads at once.
const COUNT: usize = 24;
/// Bytes of each.
const SIZE: usize = 3 << 20;
/// Bytes written at once.
const CHUNK: usize = 16 << 10;
/// Number of bytes after which the first segments, which change the kernel's choice of the window, are long past.
const SETTLED: usize = 1 << 20;

fn served(policy: PolicyKind, user: u64, host: u64) -> Served {
    serve(|config| {
        config.tuning.policy = policy;
        config.tuning.receiving = ReceiveCaps { user: Bytes(user), host: Bytes(host) };
    })
}

/// The window that a client may fill.
fn window(data: &TcpStream) -> u64 {
    tcp_info(data).unwrap().snd_wnd.into()
}

/// Runs all uploads at once, all of which must arrive; returns the largest sum of their windows while all ran.
fn together(served: &Served) -> u64 {
    let bytes = pattern(SIZE);
    let mut uploads: Vec<(Client, TcpStream)> = (0..COUNT)
        .map(|at| {
            let mut client = served.client();
            let data = client.begin(&format!("STOR {at}"), b"");
            data.set_nonblocking(true).unwrap();
            (client, data)
        })
        .collect();
    let (mut sent, mut most) = ([0; COUNT], 0);
    while sent.iter().any(|sent| *sent < SIZE) {
        // The last piece of each waits for all to settle, so that there is a moment in which all run.
        let end = if sent.iter().all(|sent| *sent >= SETTLED) { SIZE } else { SIZE - CHUNK };
        let running = uploads.iter().zip(&sent).filter(|(_, sent)| **sent < end);
        let mut watched: Vec<PollFd<'_>> =
            running.map(|((_, data), _)| PollFd::new(data.as_fd(), PollFlags::POLLOUT)).collect();
        poll(&mut watched, PollTimeout::from(20_000_u16)).unwrap();
        for ((_, data), sent) in uploads.iter_mut().zip(&mut sent).filter(|(_, sent)| **sent < end) {
            match data.write(&bytes[*sent..end.min(*sent + CHUNK)]) {
                Ok(len) => *sent += len,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if sent.iter().all(|sent| (SETTLED..SIZE).contains(sent)) {
            most = most.max(uploads.iter().map(|(_, data)| window(data)).sum());
        }
    }
    for (at, (client, data)) in uploads.iter_mut().enumerate() {
        data.shutdown(Shutdown::Write).unwrap();
        client.expect(226);
        assert!(fs::read(served.path(&at.to_string())).unwrap() == bytes, "upload {at}");
    }
    most
}

/// The memory that all of them have in any case, beside the bound.
const LEAST: u64 = COUNT as u64 * Share::LEAST.0;
const BOUND: u64 = 8 << 20;

#[test]
fn a_crowd_of_uploads_stays_within_the_bound_and_all_arrive() {
    for policy in ["kernel", "drs", "drs-ftp", "sobas", "fixed:1MiB"] {
        let served = served(policy.parse().unwrap(), BOUND, 2 * BOUND);
        let most = together(&served);
        assert!((1..=BOUND + LEAST).contains(&most), "{policy}: {most} bytes of windows");
    }
}

#[test]
fn where_there_is_room_an_upload_is_not_held_back() {
    let served = served(PolicyKind::Kernel, 1 << 30, 1 << 30);
    // How far the kernel enlarges them in so short a time depends on the machine's load.
    let most: Vec<u64> = (0..3).map(|_| together(&served)).collect();
    assert!(
        most.iter().any(|most| *most > LEAST),
        "{most:?} bytes of windows, no more than where nothing is left"
    );
}

#[test]
fn where_nothing_is_left_each_has_a_small_window_in_any_case() {
    let served = served(PolicyKind::Kernel, 0, 0);
    let most = together(&served);
    assert!((1..=LEAST).contains(&most), "{most} bytes of windows");
}

#[test]
fn a_size_that_a_client_asks_for_takes_no_upload_out_of_the_bound() {
    let served = served(PolicyKind::Kernel, 0, 0);
    let mut client = served.client();
    client.ask("SBUF 100000", 200);
    // Without a byte that could widen the window before it is bounded.
    client.deliver("STOR file", b"", 226);
    let report = served.transfers()[0].report.unwrap();
    assert!(report.largest_buffer <= Share::LEAST, "{:?}", report.largest_buffer);
}
