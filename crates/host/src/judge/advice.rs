//! Advice: one remedy for the largest cause that a person can change.
//!
//! Segments lost while a queue stands were dropped by that queue, which the connection itself or its neighbours had
//! filled; losses without a queue are the path's. A sender that reaches the rate of fit's roof is limited by the
//! roof, whichever window the kernel accounts for it.

use super::outlook::SHORTEST_PATH;
use super::{Direction, Limited};

/// A cause is reported from this share of the time on.
pub(super) const NOTABLE: f64 = 0.2;
/// The program itself counts as the limit from this share of the time on.
pub(super) const MOSTLY: f64 = 0.5;
/// A path that loses more than this share of the segments counts as faulty.
const LOSSY: f64 = 0.005;

/// The owner of a buffer's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferOwner {
    /// The program set it, and bufwise leaves it alone.
    Application,
    /// The kernel's own autotuning.
    Kernel,
    /// SOBAS or fit: the window stays at what the path carries, and only a share of the memory bounds the send buffer.
    Sobas,
    /// Any other policy of bufwise, `fixed` included.
    Policy,
    /// The kernel's own autotuning, because the policy's size exceeds what bufwise may set without privilege.
    Unprivileged,
}

/// Effect of fit on a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roof {
    /// No effect that explains the sender's rate; another policy may be in charge.
    #[default]
    None,
    /// Fit limits the rate to the path's measured capacity, and the sender reaches this rate.
    Limits,
    /// Fit leaves the sender to the kernel, because the queue on the path is not the sender's own.
    ForeignQueue,
    /// The sender reaches a bound of its rate (`SO_MAX_PACING_RATE`) that another program has set.
    Bound,
}

/// The facts on a connection that advice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Direction of the data.
    pub direction: Direction,
    /// Shares of the time by cause; `None` if the time was too short to tell.
    pub limited: Option<Limited>,
    /// Owner of the send buffer's size.
    pub send: BufferOwner,
    /// Owner of the receive buffer's size.
    pub receive: BufferOwner,
    /// Effect of fit on the sender.
    pub roof: Roof,
    /// Segments with data sent, retransmissions included.
    pub segments_out: u64,
    /// Retransmitted segments among these.
    pub retransmits: u64,
    /// Segments retransmitted while the connection was watched; `None`: unknown.
    pub retransmitted_now: Option<u64>,
    /// Smallest round-trip time, seconds; 0: unknown.
    pub min_rtt_s: f64,
    /// Time that segments spend in a queue, seconds, if there is evidence of a queue ([`super::Queue`]).
    pub queue_s: Option<f64>,
    /// Payload rate, bit/s.
    pub goodput_bps: u64,
    /// Whether this end's congestion control is neither CUBIC nor Reno, so that fit does not pace it.
    pub paces_itself: bool,
    /// Whether fit already sizes this end.
    pub has_fit: bool,
    /// Whether the kernel is short of memory for TCP (`tcp_mem`), and shrinks buffers.
    pub memory_short: bool,
}

impl Case {
    /// Returns one sentence: the remedy for the largest limit of the connection.
    pub fn advice(&self) -> String {
        let Some(limited) = self.limited else {
            return "Too short to tell what limited it.".to_owned();
        };
        if self.memory_short {
            return "The kernel is short of memory for TCP and shrinks the buffers of all connections: raise \
                    net.ipv4.tcp_mem, or let bufwise daemon hold them within --memory."
                .to_owned();
        }
        if limited.reader >= NOTABLE {
            return self.reader_advice().to_owned();
        }
        if self.roof == Roof::Bound && limited.application <= MOSTLY && limited.receive_window < NOTABLE {
            return "Its rate is held to a bound (SO_MAX_PACING_RATE): no buffer makes it faster.".to_owned();
        }
        // Below the roof the send buffer only holds what the path carries; with a queue on the path it holds more. In
        // both cases the buffer is not the limit.
        let is_full = self.queue_s.is_some();
        if limited.send_buffer >= NOTABLE && self.roof != Roof::Limits && !is_full {
            return match self.send {
                BufferOwner::Application => {
                    "The program's own SO_SNDBUF held it back: raise it there, or let bufwise size it, by `bufwise run \
                     --override -- CMD` or `bufwise daemon --override`."
                }
                BufferOwner::Kernel => {
                    "The send buffer held it back: let bufwise size it, by `bufwise run --policy abt -- CMD` or `bufwise \
                     daemon --policy abt`."
                }
                BufferOwner::Sobas => "The share of the memory held it back: give more with --memory.",
                BufferOwner::Policy => {
                    "The size that the policy allows held it back: give more memory with --memory or, under `fixed`, name a \
                     larger size."
                }
                BufferOwner::Unprivileged => {
                    "The send buffer held it back: without root it cannot exceed the host's maxima (net.core.wmem_max, \
                     net.ipv4.tcp_wmem). Run bufwise as root, or raise tcp_wmem."
                }
            }
            .to_owned();
        }
        if limited.receive_window >= NOTABLE && !is_full {
            return self.receive_window_advice(&limited).to_owned();
        }
        if limited.application > MOSTLY {
            return "The program itself was the limit: larger buffers would not help.".to_owned();
        }
        self.path_advice()
    }

    fn reader_advice(&self) -> &'static str {
        match self.direction {
            Direction::Send => {
                "The program at the other end is the limit: it reads more slowly than data could come. No buffer helps."
            }
            Direction::Receive => {
                "The program here is the limit: its receive buffer is full of data that it has not read. A larger one \
                 would fill up as well."
            }
        }
    }

    fn receive_window_advice(&self, limited: &Limited) -> &'static str {
        if self.direction == Direction::Send {
            return "The receiver's window held it back: run bufwise there too, or raise tcp_rmem there.";
        }
        if self.is_held_by_scale(limited) {
            return "The window scale held it back: the handshake fixed it by the maximum of net.ipv4.tcp_rmem at \
                    that time. Raise that maximum, as bufwise daemon does, and connect again.";
        }
        match self.receive {
            BufferOwner::Application => {
                "The program's own SO_RCVBUF held it back: raise it there, or let bufwise size it, by `bufwise run --override \
                 -- CMD` or `bufwise daemon --override`."
            }
            BufferOwner::Kernel => {
                "The receive window held it back: let bufwise size it, by `bufwise run --policy drs -- CMD` or `bufwise daemon \
                 --policy drs`."
            }
            BufferOwner::Sobas => {
                "The path is full: the window was held at what it carries, so that no queue builds up."
            }
            BufferOwner::Policy => "The receive window held it back: the policy keeps it at this size.",
            BufferOwner::Unprivileged => {
                "The receive window held it back: without root the receive buffer cannot exceed the host's maxima \
                 (net.core.rmem_max, net.ipv4.tcp_rmem). Run bufwise as root, or raise tcp_rmem."
            }
        }
    }

    fn path_advice(&self) -> String {
        let queue = self.queue_s.map(|queue| queue * 1e3);
        let lost = self.lost().map(|loss| loss * 100.0);
        if let (Some(queue), Roof::ForeignQueue) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path that is not its own: a lower rate did not shorten it."
            )
        } else if let (Some(queue), Roof::Limits) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path though the rate is held at what fit found it to carry: other \
                 traffic may fill it."
            )
        } else if let Some(queue) = queue.filter(|_| self.is_short()) {
            format!("A queue of {queue:.0} ms stands in a path so short that fit leaves it to the kernel.")
        } else if let Some(queue) = queue.filter(|_| self.fit_acts()) {
            format!(
                "A queue of {queue:.0} ms stands in the path although fit is in force at this end: other traffic may fill \
                 it."
            )
        } else if let (Some(queue), Some(lost)) = (queue, lost) {
            format!(
                "A queue of {queue:.0} ms stands in the path and dropped {lost:.1}% of the segments when it was full: {} \
                 would avoid both.",
                self.remedy()
            )
        } else if let Some(lost) = lost {
            format!(
                "The path loses {lost:.1}% of the segments, by its quality or a short queue: the buffers are not the \
                 limit."
            )
        } else if let Some(queue) = queue {
            format!("A queue of {queue:.0} ms stands in the path: {} would avoid it.", self.remedy())
        } else if self.roof == Roof::Limits {
            "The rate was held at what fit found the path to carry, so that no queue builds up.".to_owned()
        } else {
            "The path was the limit: the buffers are large enough.".to_owned()
        }
    }

    /// Returns the command, with the end, by which fit can drain a queue that the connection itself fills.
    fn remedy(&self) -> &'static str {
        match (self.direction, self.paces_itself) {
            (Direction::Send, true) => "`bufwise run --policy fit -- CMD` at the receiver",
            _ => "`bufwise run --policy fit -- CMD` at this end",
        }
    }

    /// Returns whether fit sizes this end, and acts on its congestion control.
    pub(super) fn fit_acts(&self) -> bool {
        self.has_fit && !(self.direction == Direction::Send && self.paces_itself)
    }

    /// Returns whether the window scale of this end holds the data back. It follows a receive buffer that the program has set, so
    /// that buffer is then the cause.
    pub(super) fn is_held_by_scale(&self, limited: &Limited) -> bool {
        self.direction == Direction::Receive
            && self.receive != BufferOwner::Application
            && limited.is_at_scale()
    }

    /// Returns whether the path is so short that fit leaves it to the kernel.
    pub(super) fn is_short(&self) -> bool {
        self.min_rtt_s > 0.0 && self.min_rtt_s < SHORTEST_PATH
    }

    /// Returns the share of the data's segments that the path loses, if it is large. A receiver sends only some requests,
    /// whose repetitions do not tell it.
    pub(super) fn lost(&self) -> Option<f64> {
        Some(self.loss()).filter(|loss| self.direction == Direction::Send && *loss > LOSSY)
    }

    /// Returns the share of the segments that were retransmitted, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.retransmits as f64 / self.segments_out.max(1) as f64
    }
}
