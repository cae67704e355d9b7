//! The probes' wire format.
//!
//! All numbers are big-endian. The rest after the fields is zero up to the packet's length, which is 100 bytes
//! for all kinds but trains (Prasad 2004, section IV-B).
//!
//! ```text
//!  0       4     5     6       8          24        32        40        48
//!  | magic | ver | kind| zero  | token ... | a       | b       | c       | zero ...
//!  kind 1 Probe         a = sequence   b = sender's clock, us   c = requested rate, bytes/s (0: none)
//!  kind 2 Echo          a = sequence   b = as in the probe      c = the responder's own count
//!  kind 3 TrainRequest  a = train << 32 | packets << 16 | bytes of each
//!  kind 4 Train         a = train << 32 | packets << 16 | index
//! ```
//! `bufwise probe` has five more. Kinds 5, 6, 8 and 9 go over its TCP connection, one after another:
//! ```text
//!  kind 5 Hello         a = 1: the server is busy, else 0  (the server speaks first; it carries the token)
//!  kind 6 Order         a = train << 32 | packets << 16 | bytes of each   b = distance of the packets, ns
//!  kind 7 Stamped       a = train << 32 | packets << 16 | index           b = sender's clock, ns
//!  kind 8 Collect       a = train
//!  kind 9 Seen          a = train << 32 | received << 16 | run   b = gap << 32 | dispersion, ns   c = slope, 10^-9
//! ```
//!
//! Properties kept: decoding undoes encoding; no bytes make decoding panic; a packet of any other form is
//! rejected with its reason.

use std::fmt;
use std::io;

use bufwise_units::{Micros, Nanos, Rate};

/// Length of every packet but those of trains: 100 bytes (Prasad 2004, section IV-B).
pub const PROBE_LEN: usize = 100;
/// Longest packet of a train: what fits one Ethernet frame over IPv4.
pub const MAX_TRAIN_PACKET: usize = 1_472;

const MAGIC: [u8; 4] = *b"bfwp";
const VERSION: u8 = 1;
const FIELDS_END: usize = 48;
/// The slope of a train that shows none.
const NO_SLOPE: i64 = i64::MIN;

/// The secret that assigns probes to one transfer.
#[derive(Clone, Copy)]
pub struct Token([u8; 16]);

impl Token {
    /// Makes an unguessable token.
    ///
    /// # Errors
    /// When the system has no source of randomness.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// Makes the token of these bytes, as received over the control channel.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the token in a [`Packet::Hello`], which its receiver does not know yet; `None` for anything else, and
    /// from a server that is busy.
    #[must_use]
    pub fn of_hello(packet: &[u8; PROBE_LEN]) -> Option<Self> {
        let token = Self(*packet[8..].first_chunk()?);
        (Packet::decode(packet, token) == Ok(Packet::Hello { busy: false })).then_some(token)
    }

    /// Returns the bytes to tell the peer over the control channel.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Compares in constant time.
    fn matches(self, other: &[u8]) -> bool {
        other.len() == 16 && self.0.iter().zip(other).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// One probe packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A probe, which the data receiver sends every 10 ms.
    Probe {
        /// Number of the probe, from 0.
        sequence: u64,
        /// Time of sending by the prober's clock.
        sent: Micros,
        /// Rate at which the data should be sent, payload bytes per second; [`Rate`] of all ones: no limit.
        pacing: Option<Rate>,
    },
    /// The answer to a probe.
    Echo {
        /// Number of the probe answered.
        sequence: u64,
        /// Time at which the probe was sent, copied from it.
        sent: Micros,
        /// Number of probes that the responder had answered before: a gap is a loss in the direction of the data.
        number: u64,
    },
    /// Asks for one packet train.
    TrainRequest {
        /// Number of the train.
        train: u32,
        /// Number of packets in the train.
        packets: u16,
        /// Length of each packet, bytes.
        length: u16,
    },
    /// One packet of a train.
    Train {
        /// Number of the train.
        train: u32,
        /// Number of packets in the train.
        packets: u16,
        /// Place in the train, from 0.
        index: u16,
        /// Length of this packet, 100 to 1,472 bytes.
        length: u16,
    },
    /// The first packet of a control connection: it hands out the token.
    Hello {
        /// The server measures with another client.
        busy: bool,
    },
    /// Asks the server for a train of stamped packets.
    Order {
        /// Number of the train.
        train: u32,
        /// Number of packets in the train.
        packets: u16,
        /// Length of each packet, bytes.
        length: u16,
        /// Distance at which to send them; zero: back to back.
        spacing: Nanos,
    },
    /// One packet of a train that was ordered, or that the client sends.
    Stamped {
        /// Number of the train.
        train: u32,
        /// Number of packets in the train.
        packets: u16,
        /// Place in the train, from 0.
        index: u16,
        /// Length of this packet, 100 to 1,472 bytes.
        length: u16,
        /// Time of sending by the sender's clock.
        sent: Nanos,
    },
    /// Asks the server for its figures of the client's train.
    Collect {
        /// Number of the train.
        train: u32,
    },
    /// The answer to [`Packet::Collect`].
    Seen(Seen),
}

/// Arrivals of one train, in a form of constant size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of the train.
    pub train: u32,
    /// Packets that arrived.
    pub received: u16,
    /// Packets before the first that is missing or out of order.
    pub run: u16,
    /// Mean distance at which the run was sent, ns.
    pub gap: u32,
    /// Distance of the run's packets behind the tight link, ns; 0: not known.
    pub dispersion: u32,
    /// Growth of the one-way delay along the run, nanoseconds per second of sending; `None`: not known.
    pub slope: Option<i64>,
}

/// Why a datagram is no packet of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Its length is not 100 bytes, or for a packet of a train not 100 to 1,472.
    #[error("wrong length")]
    Length,
    /// It is no probe packet, or one of another version.
    #[error("not a probe packet")]
    Magic,
    /// It belongs to another session.
    #[error("wrong token")]
    Token,
    /// Unknown kind, non-zero padding, or fields that contradict each other.
    #[error("malformed fields")]
    Fields,
}

impl Packet {
    /// Writes the packet to the start of `out` and returns it.
    pub fn encode(self, token: Token, out: &mut [u8; MAX_TRAIN_PACKET]) -> &[u8] {
        let train_word = |train: u32, packets: u16, low: u16| {
            u64::from(train) << 32 | u64::from(packets) << 16 | u64::from(low)
        };
        let clamped = |length: u16| usize::from(length).clamp(PROBE_LEN, MAX_TRAIN_PACKET);
        let (kind, length, [a, b, c]) = match self {
            Self::Probe { sequence, sent, pacing } => {
                (1, PROBE_LEN, [sequence, sent.0, pacing.map_or(0, |rate| rate.0)])
            }
            Self::Echo { sequence, sent, number } => (2, PROBE_LEN, [sequence, sent.0, number]),
            Self::TrainRequest { train, packets, length } => {
                (3, PROBE_LEN, [train_word(train, packets, length), 0, 0])
            }
            Self::Train { train, packets, index, length } => {
                (4, clamped(length), [train_word(train, packets, index), 0, 0])
            }
            Self::Hello { busy } => (5, PROBE_LEN, [busy.into(), 0, 0]),
            Self::Order { train, packets, length, spacing } => {
                (6, PROBE_LEN, [train_word(train, packets, length), spacing.0, 0])
            }
            Self::Stamped { train, packets, index, length, sent } => {
                (7, clamped(length), [train_word(train, packets, index), sent.0, 0])
            }
            Self::Collect { train } => (8, PROBE_LEN, [train.into(), 0, 0]),
            Self::Seen(seen) => {
                let distances = u64::from(seen.gap) << 32 | u64::from(seen.dispersion);
                let slope = seen.slope.unwrap_or(NO_SLOPE).cast_unsigned();
                (9, PROBE_LEN, [train_word(seen.train, seen.received, seen.run), distances, slope])
            }
        };
        let packet = &mut out[..length];
        packet.fill(0);
        packet[0..4].copy_from_slice(&MAGIC);
        packet[4] = VERSION;
        packet[5] = kind;
        packet[8..24].copy_from_slice(&token.0);
        packet[24..32].copy_from_slice(&a.to_be_bytes());
        packet[32..40].copy_from_slice(&b.to_be_bytes());
        packet[40..48].copy_from_slice(&c.to_be_bytes());
        packet
    }

    /// Reads a datagram of the session that `token` names.
    ///
    /// # Errors
    /// [`Rejected`] for everything that [`Packet::encode`] does not produce.
    pub fn decode(datagram: &[u8], token: Token) -> Result<Self, Rejected> {
        if !(PROBE_LEN..=MAX_TRAIN_PACKET).contains(&datagram.len()) {
            return Err(Rejected::Length);
        }
        if datagram[0..4] != MAGIC || datagram[4] != VERSION {
            return Err(Rejected::Magic);
        }
        if !token.matches(&datagram[8..24]) {
            return Err(Rejected::Token);
        }
        if datagram[6..8] != [0, 0] || datagram[FIELDS_END..].iter().any(|byte| *byte != 0) {
            return Err(Rejected::Fields);
        }
        // The slice has eight bytes by construction.
        let word = |at: usize| datagram[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let fields = [word(24), word(32), word(40)];
        let kind = datagram[5];
        if kind != 4 && kind != 7 && datagram.len() != PROBE_LEN {
            return Err(Rejected::Length);
        }
        // decode_fields only ever sees lengths up to MAX_TRAIN_PACKET.
        decode_fields(kind, fields, datagram.len() as u16).ok_or(Rejected::Fields)
    }
}

fn decode_fields(kind: u8, [a, b, c]: [u64; 3], length: u16) -> Option<Packet> {
    // The parts of a train's word, cut to their width.
    let (train, packets, low) = ((a >> 32) as u32, (a >> 16) as u16, a as u16);
    let sent = Micros(b);
    match kind {
        1 => Some(Packet::Probe { sequence: a, sent, pacing: (c != 0).then_some(Rate(c)) }),
        2 => Some(Packet::Echo { sequence: a, sent, number: c }),
        3 if b == 0 && c == 0 => Some(Packet::TrainRequest { train, packets, length: low }),
        4 if b == 0 && c == 0 && low < packets => Some(Packet::Train { train, packets, index: low, length }),
        5 if a <= 1 && b == 0 && c == 0 => Some(Packet::Hello { busy: a == 1 }),
        6 if c == 0 => Some(Packet::Order { train, packets, length: low, spacing: Nanos(b) }),
        7 if c == 0 && low < packets => {
            Some(Packet::Stamped { train, packets, index: low, length, sent: Nanos(b) })
        }
        8 if b == 0 && c == 0 => u32::try_from(a).ok().map(|train| Packet::Collect { train }),
        9 if low <= packets => Some(Packet::Seen(Seen {
            train,
            received: packets,
            run: low,
            gap: (b >> 32) as u32,
            dispersion: b as u32,
            slope: Some(c.cast_signed()).filter(|slope| *slope != NO_SLOPE),
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: Token = Token([7; 16]);

    fn any_packet() -> impl Strategy<Value = Packet> {
        let probe = (any::<u64>(), any::<u64>(), any::<u64>());
        let train = (any::<u32>(), any::<u16>(), 1..u16::MAX, 100..=1_472_u16);
        prop_oneof![
            probe.prop_map(|(sequence, sent, pacing)| Packet::Probe {
                sequence,
                sent: Micros(sent),
                pacing: (pacing != 0).then_some(Rate(pacing)),
            }),
            probe.prop_map(|(sequence, sent, number)| Packet::Echo { sequence, sent: Micros(sent), number }),
            train.clone().prop_map(|(train, length, packets, _)| Packet::TrainRequest {
                train,
                packets,
                length
            }),
            train.clone().prop_map(|(train, index, packets, length)| Packet::Train {
                train,
                packets,
                index: index % packets,
                length,
            }),
            any::<bool>().prop_map(|busy| Packet::Hello { busy }),
            any::<u32>().prop_map(|train| Packet::Collect { train }),
            (train.clone(), any::<u64>()).prop_map(|((train, length, packets, _), spacing)| {
                Packet::Order { train, packets, length, spacing: Nanos(spacing) }
            }),
            (train.clone(), any::<u64>()).prop_map(|((train, index, packets, length), sent)| {
                Packet::Stamped { train, packets, index: index % packets, length, sent: Nanos(sent) }
            }),
            (train, any::<u32>(), any::<Option<i64>>()).prop_map(
                |((train, run, received, _), gap, slope)| {
                    let (run, slope) = (run % received, slope.filter(|slope| *slope != NO_SLOPE));
                    Packet::Seen(Seen { train, received, run, gap, dispersion: gap / 2, slope })
                }
            ),
        ]
    }

    fn encoded(packet: Packet) -> Vec<u8> {
        packet.encode(TOKEN, &mut [0xff; MAX_TRAIN_PACKET]).to_vec()
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(packet in any_packet()) {
            let bytes = encoded(packet);
            prop_assert_eq!(Packet::decode(&bytes, TOKEN), Ok(packet));
            prop_assert_eq!(Packet::decode(&bytes, Token([8; 16])), Err(Rejected::Token));
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..1_600)) {
            prop_assert!(Packet::decode(&bytes, TOKEN).is_err());
        }

        #[test]
        fn a_damaged_packet_is_rejected_or_another_packet(packet in any_packet(), at: usize, bit in 0..8) {
            let mut bytes = encoded(packet);
            let at = at % bytes.len();
            bytes[at] ^= 1_u8 << bit;
            if let Ok(other) = Packet::decode(&bytes, TOKEN) {
                prop_assert_ne!(other, packet);
                prop_assert_eq!(encoded(other), bytes);
            }
        }
    }

    #[test]
    fn each_rejection_has_its_reason() {
        let probe = Packet::Probe { sequence: 1, sent: Micros(2), pacing: None };
        let good = encoded(probe);
        assert_eq!(good.len(), PROBE_LEN);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Packet::decode(&bytes, TOKEN)
        };
        assert_eq!(Packet::decode(&good[..99], TOKEN), Err(Rejected::Length));
        assert_eq!(Packet::decode(&[&good[..], &[0]].concat(), TOKEN), Err(Rejected::Length));
        assert_eq!(with(0, b'x'), Err(Rejected::Magic));
        assert_eq!(with(4, 2), Err(Rejected::Magic));
        assert_eq!(with(23, 8), Err(Rejected::Token));
        assert_eq!(with(5, 9), Err(Rejected::Fields));
        assert_eq!(with(99, 1), Err(Rejected::Fields));
        assert_eq!(with(7, 1), Err(Rejected::Fields));
    }

    #[test]
    fn tokens_are_random_and_never_printed() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(a.to_bytes(), b.to_bytes());
        assert_eq!(format!("{a:?}"), "Token(secret)");
    }
}
