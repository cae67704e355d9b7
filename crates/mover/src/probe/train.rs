//! Sending packet trains: back to back, or at even distances.
//!
//! Properties kept: each packet of a spaced train carries its actual time of sending, so that a late sender shows; a
//! sender that was delayed does not catch up by a burst.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_units::Nanos;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use super::packet::{MAX_TRAIN_PACKET, Packet, Token};

/// Largest payload of one datagram over IPv4 and IPv6, and thus of one system call.
const LARGEST_DATAGRAM: usize = 65_487;
/// A sender that is late by more than this many packet times, and by more than [`LATE`], does not catch up.
const LATE_PACKETS: u32 = 4;
/// A sleep ends some 60 us late: at short distances that many packets go out together.
const LATE: Duration = Duration::from_micros(200);

/// Form of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) train: u32,
    pub(super) packets: u16,
    pub(super) length: u16,
    /// Zero: back to back.
    pub(super) spacing: Nanos,
}

/// Sends a train back to back, in one of two ways.
///
/// If `joined`, the kernel cuts the packets out of one large datagram (udp(7), `UDP_SEGMENT`): they reach the device
/// together, however often this thread is interrupted; sent one by one, they would measure this host's speed above some
/// 500 Mbit/s. Otherwise they are sent one by one: virtual devices that pass the large datagram on whole deliver it at
/// one moment, which shows no rate.
pub(super) fn send_together(
    socket: &UdpSocket,
    token: Token,
    to: SocketAddr,
    packets: u16,
    joined: bool,
    packet: impl Fn(u16) -> Packet,
) {
    let mut scratch = [0; MAX_TRAIN_PACKET];
    let whole: Vec<u8> =
        (0..packets).flat_map(|index| packet(index).encode(token, &mut scratch).to_vec()).collect();
    let segment = packet(0).encode(token, &mut scratch).len();
    let together = LARGEST_DATAGRAM / segment * segment;
    for part in whole.chunks(together) {
        if !joined || send_segmented(socket, part, segment, to).is_err() {
            // A refused datagram counts as lost.
            for single in part.chunks(segment) {
                let _lost_if_refused = socket.send_to(single, to);
            }
        }
    }
}

fn send_segmented(socket: &UdpSocket, part: &[u8], segment: usize, to: SocketAddr) -> nix::Result<usize> {
    let segment = u16::try_from(segment).map_err(|_| Errno::EMSGSIZE)?;
    let control = [ControlMessage::UdpGsoSegments(&segment)];
    let to = SockaddrStorage::from(to);
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(part)], &control, MsgFlags::empty(), Some(&to))
}

/// Sends a train of stamped packets in this form; blocks for the duration of the train.
pub(super) fn send_stamped(socket: &UdpSocket, token: Token, to: SocketAddr, form: Form) {
    let Form { train, packets, length, spacing } = form;
    let start = Instant::now();
    let stamped = |index| {
        let sent = Nanos(start.elapsed().as_nanos() as u64);
        Packet::Stamped { train, packets, index, length, sent }
    };
    if spacing == Nanos(0) {
        return send_together(socket, token, to, packets, train % 2 == 0, stamped);
    }
    let spacing = Duration::from_nanos(spacing.0);
    let mut due = start;
    let mut scratch = [0; MAX_TRAIN_PACKET];
    for index in 0..packets {
        let now = Instant::now();
        if now < due {
            thread::sleep(due - now);
        } else if now - due > LATE.max(spacing * LATE_PACKETS) {
            due = now;
        }
        let _lost_if_refused = socket.send_to(stamped(index).encode(token, &mut scratch), to);
        due += spacing;
    }
}
