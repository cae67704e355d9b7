//! Shares of the time by cause.

use std::fmt;

use bufwise_socket::limit::SocketSample;
use serde::{Deserialize, Serialize};

use super::{Cause, Direction, cause, is_at_scale};

/// Time by the cause that held a connection back: shares from 0 to 1, or microseconds while they are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    /// [`Cause::Application`].
    pub application: f64,
    /// [`Cause::SendBuffer`].
    pub send_buffer: f64,
    /// [`Cause::ReceiveWindow`].
    pub receive_window: f64,
    /// [`Cause::CongestionWindow`].
    pub congestion_window: f64,
    /// [`Cause::Path`].
    pub path: f64,
    /// [`Cause::Reader`]; daemons before 0.3 do not send it.
    #[serde(default)]
    pub reader: f64,
    /// Part of `receive_window` in which a receiver offered the largest window that its window scale can express.
    #[serde(skip)]
    pub at_scale: f64,
}

impl Limited {
    /// Adds the time between two samples to the cause that held the connection back.
    pub fn add(&mut self, direction: Direction, previous: &SocketSample, now: &SocketSample) {
        let (cause, elapsed) = (cause(direction, previous, now), now.at.since(previous.at).0 as f64);
        *self.place(cause) += elapsed;
        if (direction, cause) == (Direction::Receive, Cause::ReceiveWindow) && is_at_scale(now) {
            self.at_scale += elapsed;
        }
    }

    /// Returns whether the window scale held a receiver back, for most of the time in which its window did.
    pub(super) fn is_at_scale(&self) -> bool {
        self.at_scale > 0.0 && self.at_scale * 2.0 >= self.receive_window
    }

    /// Returns all the time attributed to one cause.
    #[must_use]
    pub fn by(cause: Cause) -> Self {
        let mut limited = Self::default();
        *limited.place(cause) = 1.0;
        limited
    }

    fn place(&mut self, cause: Cause) -> &mut f64 {
        match cause {
            Cause::Application => &mut self.application,
            Cause::SendBuffer => &mut self.send_buffer,
            Cause::ReceiveWindow => &mut self.receive_window,
            Cause::CongestionWindow => &mut self.congestion_window,
            Cause::Path => &mut self.path,
            Cause::Reader => &mut self.reader,
        }
    }

    /// Adds the times of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.application += other.application;
        self.send_buffer += other.send_buffer;
        self.receive_window += other.receive_window;
        self.congestion_window += other.congestion_window;
        self.path += other.path;
        self.reader += other.reader;
        self.at_scale += other.at_scale;
    }

    /// Returns the shares of the whole time; `None` if there was none.
    pub fn shares(&self) -> Option<Self> {
        let total: f64 = self.by_cause().map(|(_, time)| time).iter().sum();
        (total > 0.0).then(|| Self {
            application: self.application / total,
            send_buffer: self.send_buffer / total,
            receive_window: self.receive_window / total,
            congestion_window: self.congestion_window / total,
            path: self.path / total,
            reader: self.reader / total,
            at_scale: self.at_scale / total,
        })
    }

    /// Returns each cause with its time, the largest first.
    pub fn by_cause(&self) -> [(Cause, f64); 6] {
        let mut causes = [
            (Cause::Application, self.application),
            (Cause::SendBuffer, self.send_buffer),
            (Cause::ReceiveWindow, self.receive_window),
            (Cause::CongestionWindow, self.congestion_window),
            (Cause::Path, self.path),
            (Cause::Reader, self.reader),
        ];
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        causes
    }
}

/// Lists the causes of at least 1%, the largest first.
impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worth = self.by_cause().into_iter().filter(|(_, share)| *share >= 0.01);
        for (place, (cause, share)) in worth.enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{cause} {:.0}%", share * 100.0)?;
        }
        Ok(())
    }
}
