//! Existing connections, of IPv4 and of IPv6, adopt a changed `gso_max_size` of their device, and its restored value:
//! two namespaces, joined by a pair of devices.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use bufwise_socket::options::set_send_buffer;
use bufwise_units::Bytes;
use nix::sched::{CloneFlags, unshare};

use super::*;

const HERE: [&str; 2] = ["198.18.0.1/24", "fd00:b::1/64"];
const THERE: [&str; 2] = ["198.18.0.2/24", "fd00:b::2/64"];
/// More than a device takes at once, in bytes.
static MUCH: [u8; 300_000] = [0; 300_000];
/// A writer fills more than this at once if the device takes 64 KiB, and less if it takes 4 KiB.
const BETWEEN: usize = 16_384;

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

fn address(device: &str, addresses: [&str; 2]) {
    ip(&format!("link set {device} up"));
    ip(&format!("address add {} dev {device}", addresses[0]));
    ip(&format!("address add {} dev {device} nodad", addresses[1]));
}

/// Runs the other host: sends its thread's number and, once its device exists, its ports; after each read it tells
/// the connection how many bytes have arrived so far.
fn serve(number: &Sender<i32>, device: &Receiver<()>, ports: &Sender<u16>) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    number.send(nix::unistd::gettid().as_raw()).unwrap();
    device.recv().unwrap();
    address("bw1", THERE);
    let listeners = ["0.0.0.0:0", "[::]:0"].map(|any| TcpListener::bind(any).unwrap());
    listeners.iter().for_each(|one| ports.send(one.local_addr().unwrap().port()).unwrap());
    let answering = listeners.map(|listener| {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut buffer, mut count) = (vec![0; 1 << 20], 0_u64);
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                count += len as u64;
                stream.write_all(&count.to_ne_bytes()).unwrap();
            }
        })
    });
    answering.into_iter().for_each(|one| one.join().unwrap());
}

struct Connection {
    stream: TcpStream,
    sent: u64,
}

impl Connection {
    fn to(address: &str, port: u16) -> Self {
        let address: IpAddr = address.split('/').next().unwrap().parse().unwrap();
        let stream = TcpStream::connect((address, port)).unwrap();
        // So small that a writer that has filled one buffer begins no other.
        set_send_buffer(stream.as_fd(), Bytes(1)).unwrap();
        let mut connection = Self { stream, sent: 0 };
        // Opens the peer's window.
        (0..4).for_each(|_| _ = connection.fill());
        connection
    }

    /// Writes as much as one call takes while nothing is queued, waits until it has arrived, and returns its size in
    /// bytes.
    fn fill(&mut self) -> usize {
        self.stream.set_nonblocking(true).unwrap();
        let taken = self.stream.write(&MUCH).unwrap();
        self.stream.set_nonblocking(false).unwrap();
        self.sent += taken as u64;
        let mut arrived = [0; 8];
        while u64::from_ne_bytes(arrived) < self.sent {
            self.stream.read_exact(&mut arrived).unwrap();
        }
        taken
    }

    /// As [`Self::fill`], with a route that a first send has renewed.
    fn at_once(&mut self) -> usize {
        self.fill();
        self.fill()
    }
}

fn host_beside(number: &Receiver<i32>, device: &Sender<()>, ports: &Receiver<u16>) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link set lo up");
    ip(&format!("link add bw0 type veth peer name bw1 netns {}", number.recv().unwrap()));
    device.send(()).unwrap();
    address("bw0", HERE);
    let [v4, v6] = THERE;
    let mut connections = [v4, v6].map(|there| Connection::to(there, ports.recv().unwrap()));
    let mut is_small = || connections.each_mut().map(|one| one.at_once() < BETWEEN);
    assert_eq!(is_small(), [false; 2]);
    let journals = tempfile::tempdir().unwrap();
    let caps = Caps::with_journals(journals.path());
    let mut raised = caps.raise(&[Wanted::Devices { size: 4_096, also_in_the_first: true }]).unwrap();
    assert_eq!(is_small(), [true; 2], "bounded from the start");
    raised.bound_devices(u64::MAX).unwrap();
    assert_eq!(is_small(), [false; 2], "the shares allow more");
    raised.bound_devices(4_096).unwrap();
    assert_eq!(is_small(), [true; 2], "the shares allow less");
    drop(raised);
    assert_eq!(is_small(), [false; 2], "put back");
}

#[test]
fn root_existing_connections_follow_their_device_and_get_back_what_it_took() {
    if !bufwise_trial::root() || !bufwise_trial::ipv6() {
        return;
    }
    let (number, device, ports) = (channel(), channel(), channel());
    let there = thread::spawn(move || serve(&number.0, &device.1, &ports.0));
    let here = thread::spawn(move || host_beside(&number.1, &device.0, &ports.1));
    here.join().unwrap();
    there.join().unwrap();
}
