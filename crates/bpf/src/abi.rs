//! The kernel side's data, as bytes and as structures. All of it mirrors `bpf/flow.h`.

#![expect(
    unsafe_code,
    reason = "structures are read from the bytes of maps, and the skeleton is generated so"
)]

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    unused_qualifications,
    unreachable_pub,
    reason = "generated"
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/flow.skel.rs"));
}

#[cfg(test)]
pub(crate) use skeleton::types::{
    bw_abt, bw_arrivals, bw_bound, bw_drs, bw_fast, bw_fit, bw_fit_window, bw_loss_events, bw_losses,
    bw_reading, bw_sobas,
};
pub(crate) use skeleton::types::{
    bw_config, bw_control, bw_flow, bw_match, bw_name, bw_network, bw_order, bw_ports, bw_room, bw_swept,
    bw_turnover, rodata,
};
pub(crate) use skeleton::{FlowSkel, FlowSkelBuilder, OpenFlowSkel};

/// `struct bw_request`, which passes through a ring buffer and is therefore not in the skeleton.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BwRequest {
    pub(crate) cookie: u64,
    pub(crate) sndbuf: u32,
    pub(crate) rcvbuf: u32,
    pub(crate) clamp: u32,
    pub(crate) unused: u32,
}

/// `enum bw_swept_state`: whether connections without a record are new.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum SweptState {
    NotSwept,
    AllNew,
    Swept,
}

/// `BW_LAYOUT`: the version of the structures.
pub(crate) const LAYOUT: u32 = 23;

const _: () = assert!(size_of::<bw_flow>() == 1696);
const _: () = assert!(size_of::<bw_config>() == 112);
const _: () = assert!(size_of::<bw_control>() == 72);
const _: () = assert!(size_of::<bw_swept>() == 32);
const _: () = assert!(size_of::<bw_order>() == 16);
const _: () = assert!(size_of::<bw_turnover>() == 16);
const _: () = assert!(size_of::<bw_room>() == 24);
const _: () = assert!(size_of::<BwRequest>() == 24);

/// A structure of integers without padding: any bytes of its size are a value, and a value is only its bytes.
///
/// # Safety
/// The type must be `repr(C)`, `Copy`, consist of integers only and have no padding.
pub(crate) unsafe trait Plain: Copy + Default {
    /// Reads the structure from the start of `bytes`; `None` if they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: there are enough bytes, any alignment will do, and every bit pattern is a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// Returns the bytes of the structure.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the value is initialised, has no padding, and lives as long as the slice.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: integers, all padding explicit; the sizes asserted above leave no room for more.
unsafe impl Plain for bw_flow {}
// SAFETY: as above.
unsafe impl Plain for bw_control {}
// SAFETY: as above.
unsafe impl Plain for bw_order {}
// SAFETY: as above.
unsafe impl Plain for bw_config {}
// SAFETY: as above.
unsafe impl Plain for bw_swept {}
// SAFETY: as above.
unsafe impl Plain for bw_turnover {}
// SAFETY: as above.
unsafe impl Plain for BwRequest {}
