//! Moments as the ring keeps them, packed.
//!
//! Problem: as values a full moment takes some 60 KB, and an hour of them more than the rest of the daemon: small numbers
//! in eight bytes each, absent fields, names that repeat.
//!
//! Rule: the fields follow each other in the order of the lists below. A number takes a byte for each seven bits
//! (LEB128), an optional field a number before it (0: absent), a text the number of its first occurrence in the
//! moment; at the first occurrence its length and its bytes follow.
//!
//! Properties kept, each a test: a moment is unpacked as it was; a full one, with names of usual length, takes no more
//! than its part of [`super::MAX_BYTES`].

use std::collections::HashMap;
use std::net::SocketAddr;

use super::{Kept, Moment, Sums};
use crate::containers::Container;
use crate::judge::{Cause, Direction, Limited};
use crate::view::{ConnectionView, Fit, FitPhase, FitReason, PolicyNames, Tuned};

/// Approximate overhead of an allocation, bytes.
const ALLOCATION: usize = 16;

/// A packed moment.
#[derive(Debug)]
pub(super) struct Packed {
    /// Time of the sample, in seconds since 1970 (UTC).
    pub(super) time_s: u64,
    /// Length of the moment in an answer or in the file, bytes.
    pub(super) text: usize,
    bytes: Box<[u8]>,
}

impl Packed {
    pub(super) fn new(moment: &Moment) -> Self {
        let mut to = Packer::default();
        moment.pack(&mut to);
        let text = serde_json::to_vec(moment).map_or(0, |text| text.len());
        Self { time_s: moment.time_s, text, bytes: to.bytes.into() }
    }

    /// Returns the moment; `None` only for bytes that [`Packed::new`] does not make.
    pub(super) fn moment(&self) -> Option<Moment> {
        Moment::unpack(&mut Unpacker { rest: &self.bytes, texts: Vec::new() })
    }

    /// Returns the memory that this takes, bytes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + ALLOCATION
    }
}

/// Bytes while they are written.
#[derive(Debug, Default)]
struct Packer {
    bytes: Vec<u8>,
    /// Number of each text.
    texts: HashMap<String, u64>,
}

impl Packer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        if let Some(known) = self.texts.get(text).copied() {
            return self.number(known);
        }
        let next = self.texts.len() as u64;
        self.texts.insert(text.to_owned(), next);
        self.number(next);
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// Bytes while they are read; each function returns `None` at bytes that a [`Packer`] does not write.
#[derive(Debug)]
struct Unpacker<'a> {
    rest: &'a [u8],
    /// Texts by their number.
    texts: Vec<&'a str>,
}

impl<'a> Unpacker<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a str> {
        let number = usize::try_from(self.number()?).ok()?;
        if number == self.texts.len() {
            let length = usize::try_from(self.number()?).ok()?;
            let text = std::str::from_utf8(self.take(length)?).ok()?;
            self.texts.push(text);
        }
        self.texts.get(number).copied()
    }
}

/// A value that is packed.
trait Pack: Sized {
    fn pack(&self, to: &mut Packer);

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self>;
}

impl Pack for u64 {
    fn pack(&self, to: &mut Packer) {
        to.number(*self);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        from.number()
    }
}

impl Pack for u32 {
    fn pack(&self, to: &mut Packer) {
        to.number((*self).into());
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        from.number()?.try_into().ok()
    }
}

impl Pack for i32 {
    fn pack(&self, to: &mut Packer) {
        self.cast_unsigned().pack(to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        u32::unpack(from).map(u32::cast_signed)
    }
}

impl Pack for bool {
    fn pack(&self, to: &mut Packer) {
        to.number((*self).into());
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        from.number().map(|number| number != 0)
    }
}

impl Pack for f64 {
    fn pack(&self, to: &mut Packer) {
        to.bytes.extend_from_slice(&self.to_le_bytes());
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        from.take(size_of::<Self>())?.try_into().ok().map(Self::from_le_bytes)
    }
}

impl Pack for String {
    fn pack(&self, to: &mut Packer) {
        to.text(self);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        from.text().map(str::to_owned)
    }
}

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, to: &mut Packer) {
        self.is_some().pack(to);
        if let Some(value) = self {
            value.pack(to);
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        Some(if bool::unpack(from)? { Some(T::unpack(from)?) } else { None })
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn pack(&self, to: &mut Packer) {
        to.number(self.len() as u64);
        self.iter().for_each(|one| one.pack(to));
    }

    fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
        let length = from.number()?;
        (0..length).map(|_| T::unpack(from)).collect()
    }
}

/// Packs values as the text of their JSON: those of few kinds, and rare ones.
macro_rules! as_text {
    ($($type:ty),* $(,)?) => {$(
        impl Pack for $type {
            fn pack(&self, to: &mut Packer) {
                to.text(&serde_json::to_string(self).unwrap_or_default());
            }

            fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
                serde_json::from_str(from.text()?).ok()
            }
        }
    )*};
}

/// Packs structures field by field; a field that is missing here does not compile.
macro_rules! by_field {
    ($($type:ty { $($field:ident),* $(,)? })*) => {$(
        impl Pack for $type {
            fn pack(&self, to: &mut Packer) {
                $(self.$field.pack(to);)*
            }

            fn unpack(from: &mut Unpacker<'_>) -> Option<Self> {
                Some(Self { $($field: Pack::unpack(from)?),* })
            }
        }
    )*};
}

as_text!(Box<Container>, Cause, Direction, FitPhase, FitReason, SocketAddr);

by_field! {
    Moment { time_s, interval_s, budget_bytes, memory_short, total, connections, prefixes, cgroups }
    Sums {
        name, connections, send_bps, receive_bps, held_bytes, allowed_bytes, repeated, srtt_s, min_rtt_s, limited_by,
    }
    Kept { view, queueing_delay_s, repeated }
    ConnectionView {
        netns, cgroup, container, cookie, local, peer, pid, process, state, direction, age_s, congestion_control,
        bytes_acked, bytes_received, goodput_bps, delivery_rate_bps, pacing_limit_bps, srtt_s, min_rtt_s, cwnd_bytes,
        bdp_bytes, send_buffer_bytes, send_queued_bytes, receive_buffer_bytes, receive_queued_bytes,
        receive_window_bytes, send_window_bytes, segments_out, retransmits, limited_by, limited, send_need_bytes,
        receive_need_bytes, waste_bytes, group, policy, tuned, application_set_send_buffer,
        application_set_receive_buffer,
    }
    Limited { application, send_buffer, receive_window, congestion_window, path, reader }
    PolicyNames { send, receive }
    Tuned {
        send_buffer_bytes, send_changes, receive_window_bytes, receive_buffer_bytes, receive_changes, rate_bound_bps,
        unsent_bytes, fit,
    }
    Fit { phase, reason, roof_bps, capacity_bps, descents, left_alone }
}

#[cfg(test)]
mod tests {
    use super::super::tests::moment;
    use super::super::{BY_MEMORY, BY_RATE, LENGTH, MAX_BYTES};
    use super::*;

    /// Returns the connection with a value in every field.
    fn whole(one: &Kept) -> Kept {
        let fit = Fit {
            phase: FitPhase::LeftAlone,
            reason: Some(FitReason::ForeignQueue),
            roof_bps: Some(u64::MAX),
            capacity_bps: Some(0),
            descents: u32::MAX,
            left_alone: 127,
        };
        let tuned = Tuned {
            send_buffer_bytes: Some(128),
            send_changes: 16_383,
            receive_window_bytes: Some(16_384),
            receive_buffer_bytes: Some(1 << 63),
            receive_changes: 1,
            rate_bound_bps: Some(2),
            unsent_bytes: Some(3),
            fit: Some(fit),
        };
        let id = "0123456789ab".to_owned();
        let container = Container { pod: Some("web \"7d9f\"".to_owned()), id, ..Container::default() };
        let view = ConnectionView {
            container: Some(Box::new(container)),
            peer: "[fe80::1%3]:443".parse().unwrap(),
            pid: Some(i32::MIN),
            age_s: Some(0.1),
            pacing_limit_bps: Some(4),
            limited_by: Some(Cause::CongestionWindow),
            limited: Some(Limited { path: 0.3, reader: 0.7, ..Limited::default() }),
            tuned: Some(tuned),
            application_set_send_buffer: Some(true),
            application_set_receive_buffer: Some(false),
            ..one.view.clone()
        };
        Kept { view, ..one.clone() }
    }

    #[test]
    fn a_moment_is_unpacked_as_it_was() {
        let mut all = moment(1_790_000_000, 3, 9);
        let whole = whole(&all.connections[0]);
        all.connections.push(whole);
        all.memory_short = true;
        all.total = Sums { srtt_s: Some(1.0 / 3.0), limited_by: Some(Cause::Path), ..all.total };
        let packed = Packed::new(&all);
        assert_eq!((packed.moment().as_ref(), packed.time_s), (Some(&all), all.time_s));
        assert_eq!(packed.text, serde_json::to_vec(&all).unwrap().len());
    }

    #[test]
    fn what_is_torn_is_no_moment() {
        let Packed { bytes, .. } = Packed::new(&moment(1, 1, 3));
        for end in 0..bytes.len() {
            assert_eq!(Packed { time_s: 1, text: 0, bytes: bytes[..end].into() }.moment(), None, "{end}");
        }
    }

    #[test]
    fn a_full_moment_takes_its_part_of_the_memory_at_most() {
        let memory = |moment: &Moment| Packed::new(moment).memory();
        let full = moment(1_790_000_000, BY_RATE + BY_MEMORY, 40);
        assert!(memory(&full) <= MAX_BYTES / LENGTH, "{}", memory(&full));
        let one = full.connections[0].clone();
        let alike = Moment { connections: vec![one; full.connections.len()], ..full };
        assert!(3 * memory(&alike) <= 2 * MAX_BYTES / LENGTH, "{}", memory(&alike));
    }
}
