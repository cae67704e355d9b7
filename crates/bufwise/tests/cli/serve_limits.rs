//! `bufwise serve` under attack: its memory with crowds of clients, measured from outside.

use std::net::Ipv4Addr;

use nix::sys::signal::Signal;

use crate::run::eventually;
use crate::serve::{Client, Running, directory, line_of, users_file};

/// Concurrent logins, and the number of rounds.
const CROWD: u8 = 125;
const CROWDS: u8 = 4;
/// Largest memory while passwords are checked, and after that, bytes.
const BUSY: u64 = 100 << 20;
const QUIET: u64 = 20 << 20;

/// Returns the resident memory of a server, bytes: the peak (`VmHWM`) or the present value (`VmRSS`).
fn resident(running: &Running, field: &str) -> u64 {
    let status = running.proc("status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kib: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn crowds_that_log_in_leave_no_memory_behind() {
    let (_directory, path) = directory();
    let users = users_file(line_of("jo"));
    let running = Running::start(&[&path, "--users", users.path().to_str().unwrap()], &[]);
    for crowd in 1..=CROWDS {
        // Each client has its own address, because failed logins delay later ones from the same address.
        let mut clients: Vec<Client> =
            (1..=CROWD).map(|n| running.client_from(Ipv4Addr::new(127, 0, crowd, n))).collect();
        let is_right = |n: usize| n.is_multiple_of(2);
        for (n, client) in clients.iter_mut().enumerate() {
            let password = if is_right(n) { "secret" } else { "guess" };
            client.say("USER jo");
            client.say(&format!("PASS {password}"));
        }
        for (n, client) in clients.iter_mut().enumerate() {
            client.expect("331");
            client.expect(if is_right(n) { "230" } else { "530" });
        }
        let most = resident(&running, "VmHWM");
        assert!(most < BUSY, "{most} bytes in crowd {crowd}");
    }
    eventually("the memory is given back", || resident(&running, "VmRSS") < QUIET);
    running.stop(Signal::SIGTERM);
}
