//! The options that set a buffer: beyond the host's maxima with privilege, or within them without.

use std::os::fd::AsFd;

use bufwise_socket::options::{self, OptionError};
use bufwise_units::Bytes;

/// The options that set buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// `SO_SNDBUFFORCE` and `SO_RCVBUFFORCE`: any size, with CAP_NET_ADMIN.
    Force,
    /// `SO_SNDBUF` and `SO_RCVBUF`: the kernel cuts sizes to `wmem_max` and `rmem_max`.
    Plain,
}

impl Means {
    /// Sets and locks the send buffer (payload).
    pub(crate) fn set_send(self, socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
        match self {
            Self::Force => options::force_send_buffer(socket, size),
            Self::Plain => options::set_send_buffer(socket, size),
        }
    }

    /// Sets and locks the receive buffer (payload).
    pub(crate) fn set_receive(self, socket: impl AsFd, size: Bytes) -> Result<(), OptionError> {
        match self {
            Self::Force => options::force_receive_buffer(socket, size),
            Self::Plain => options::set_receive_buffer(socket, size),
        }
    }

    /// Returns whether a buffer of that size (payload) can be set in full, with `cap` as the host's maximum.
    pub(crate) fn reaches(self, size: u64, cap: u32) -> bool {
        self == Self::Force || size <= cap.into()
    }
}
