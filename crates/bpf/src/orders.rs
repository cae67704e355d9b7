//! The map of orders: each connection's own demand and limit, written in batches.
//!
//! One system call per order would cost more than all other work of user space for many connections. The kernel
//! accepts batches since Linux 5.6; older kernels get the orders one by one.

#![expect(unsafe_code, reason = "the library does not say how many of a batch were written before it failed")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};

use crate::abi::{Plain, bw_order};
use crate::engine::Order;
use crate::error::is_full;

/// Orders per system call: enough for some milliseconds of work.
const BATCH: usize = 4_096;
/// The kernel's `ENOTSUPP`: this type of map accepts no batches.
const NOT_SUPPORTED: i32 = 524;

/// Writes orders; keeps its buffers from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    keys: Vec<u64>,
    values: Vec<bw_order>,
    /// Whether the kernel has refused a batch.
    one_by_one: bool,
}

impl Writer {
    /// Writes each order under its connection's cookie. Orders for which there is no room are skipped.
    pub(crate) fn write(&mut self, map: &MapHandle, orders: &[(u64, Order)]) -> libbpf_rs::Result<()> {
        for batch in orders.chunks(BATCH) {
            self.keys.clear();
            self.values.clear();
            self.keys.extend(batch.iter().map(|(cookie, _)| *cookie));
            self.values.extend(batch.iter().map(|(_, order)| bw_order::from(*order)));
            self.write_batch(map)?;
        }
        Ok(())
    }

    fn write_batch(&mut self, map: &MapHandle) -> libbpf_rs::Result<()> {
        let mut written = 0;
        while written < self.keys.len() {
            if self.one_by_one {
                return self.write_each(map, written);
            }
            let (count, result) = self.call(map, written);
            match result {
                Ok(()) => return Ok(()),
                Err(error) if is_refusal(&error) => self.one_by_one = true,
                Err(error) => match libbpf_rs::Error::from(error) {
                    // The order after those written has no room; later ones may have an entry already.
                    error if is_full(&error) => written += count + 1,
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn write_each(&self, map: &MapHandle, from: usize) -> libbpf_rs::Result<()> {
        for (key, value) in self.keys[from..].iter().zip(&self.values[from..]) {
            match map.update(&key.to_ne_bytes(), value.bytes(), MapFlags::ANY) {
                Err(error) if !is_full(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the orders from `from` on by one system call; returns how many were written.
    fn call(&self, map: &MapHandle, from: usize) -> (usize, io::Result<()>) {
        let (keys, values) = (&self.keys[from..], &self.values[from..]);
        let mut count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        // SAFETY: there are `count` keys and values, of the map's sizes; the kernel reads them and keeps nothing; a null
        // pointer stands for no options.
        let result = unsafe {
            libbpf_sys::bpf_map_update_batch(
                map.as_fd().as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let outcome = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        (count as usize, outcome)
    }
}

/// Returns whether the kernel accepts no batches at all.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | NOT_SUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_units::Bytes;
    use libbpf_rs::MapType;

    fn map(room: u32) -> MapHandle {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let value = size_of::<bw_order>() as u32;
        MapHandle::create(MapType::Hash, Some("bw_orders"), 8, value, room, &options).unwrap()
    }

    fn orders(cookies: std::ops::Range<u64>, demand: u64) -> Vec<(u64, Order)> {
        cookies.map(|cookie| (cookie, Order { demand: Bytes(demand), limit: Some(Bytes(cookie)) })).collect()
    }

    /// Returns the demand written for a connection.
    fn found(map: &MapHandle, cookie: u64) -> Option<u64> {
        let value = map.lookup(&cookie.to_ne_bytes(), MapFlags::ANY).unwrap()?;
        let order = bw_order::read(&value).unwrap();
        assert_eq!(order.limit, cookie, "each its own");
        Some(order.demand)
    }

    #[test]
    fn root_orders_are_written_in_batches_or_one_by_one_and_those_without_room_are_left_out() {
        if !bufwise_trial::root() {
            return;
        }
        for one_by_one in [false, true] {
            // Two batches and a part of a third.
            let room = 2 * BATCH as u64 + 100;
            let (map, mut writer) = (map(room as u32), Writer { one_by_one, ..Writer::default() });
            writer.write(&map, &orders(0..room, 1)).unwrap();
            assert!((0..room).all(|cookie| found(&map, cookie) == Some(1)), "{one_by_one}");
            // Three have no room, among others that have an entry.
            let mut all = orders(0..10, 2);
            all.extend(orders(room..room + 3, 2));
            all.extend(orders(10..20, 2));
            writer.write(&map, &all).unwrap();
            assert!((0..20).all(|cookie| found(&map, cookie) == Some(2)), "{one_by_one}");
            assert!((room..room + 3).all(|cookie| found(&map, cookie).is_none()), "{one_by_one}");
            assert_eq!(found(&map, 20), Some(1));
            assert_eq!(writer.one_by_one, one_by_one, "this kernel takes batches");
        }
    }
}
