//! Advice: one thing to do about the largest cause that a person can do something about.
//!
//! Segments that are lost while a queue stands were dropped by it, and the connection itself, or those beside it, had filled
//! it; losses without a queue are the path's. A sender that moves what fit's roof allows is held by it, whichever of its
//! windows the kernel accounts for that.

use super::{Direction, Limited};

/// A cause that took this share of the time is worth a word.
pub(super) const NOTABLE: f64 = 0.2;
/// The program itself is the limit from this share of the time on.
pub(super) const MOSTLY: f64 = 0.5;
/// A path that loses more than this share of the segments is at fault itself.
pub(super) const LOSSY: f64 = 0.005;

/// The sizer of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizer {
    /// The program set it, and it is left alone.
    Application,
    /// The kernel's own autotuning.
    Kernel,
    /// SOBAS, which keeps windows small on purpose.
    Sobas,
    /// Any other policy of bufwise.
    Policy,
}

/// What fit does about a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roof {
    /// Nothing that explains its rate; another policy may be in charge.
    #[default]
    None,
    /// Holds its rate at what it found the path to carry, and the sender goes that fast.
    Limits,
    /// Leaves it to the kernel, for the queue on the path is not its own.
    ForeignQueue,
    /// The sender goes as fast as a bound of its rate lets it (`SO_MAX_PACING_RATE`) that somebody has set.
    Bound,
}

/// All that advice on a connection depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The way of the data.
    pub direction: Direction,
    /// Shares of the time; `None` if it was too short to tell.
    pub limited: Option<Limited>,
    /// Sizer of the send buffer.
    pub send: Sizer,
    /// Sizer of the receive buffer.
    pub receive: Sizer,
    /// Fit at the sender.
    pub roof: Roof,
    /// Segments with data that were sent.
    pub segments_out: u64,
    /// Segments of these that were repeated.
    pub retransmits: u64,
    /// Segments of these that were repeated while it was watched; `None`: not known.
    pub repeated_now: Option<u64>,
    /// Smallest round-trip time, seconds; 0: not known.
    pub min_rtt_s: f64,
    /// Time that segments spend in a queue, seconds, where there is evidence of one ([`super::Queue`]).
    pub queue_s: Option<f64>,
    /// Payload that passes, bit/s.
    pub goodput_bps: u64,
    /// The congestion control of this end is neither CUBIC nor Reno: fit leaves its sending to it.
    pub paces_itself: bool,
    /// Fit sizes this end already.
    pub has_fit: bool,
    /// The kernel is short of memory for TCP (`tcp_mem`), and shrinks buffers.
    pub memory_short: bool,
}

impl Case {
    /// One sentence: what to do about what limited the connection most.
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
        // Below the roof the send buffer, too, holds what the path carries; where a queue stands it holds more.
        let is_full = self.queue_s.is_some();
        if limited.send_buffer >= NOTABLE && self.roof != Roof::Limits && !is_full {
            return match self.send {
                Sizer::Application => {
                    "The program's own SO_SNDBUF held it back: raise it there, or let bufwise size it with --override."
                }
                Sizer::Kernel => "The send buffer held it back: let bufwise size it with --policy abt.",
                Sizer::Sobas | Sizer::Policy => {
                    "The share of the memory held it back: give more with --memory."
                }
            }
            .to_owned();
        }
        if limited.receive_window >= NOTABLE && !is_full {
            return self.receive_window_advice().to_owned();
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

    fn receive_window_advice(&self) -> &'static str {
        if self.direction == Direction::Send {
            return "The receiver's window held it back: run bufwise there too, or raise tcp_rmem there.";
        }
        match self.receive {
            Sizer::Application => {
                "The program's own SO_RCVBUF held it back: raise it there, or let bufwise size it with --override."
            }
            Sizer::Kernel => {
                "The receive window held it back: let bufwise size it with --policy drs or sobas."
            }
            Sizer::Sobas => {
                "The path is full: the window was held at what it carries, so that no queue builds up."
            }
            Sizer::Policy => "The receive window held it back: its policy chose it so.",
        }
    }

    fn path_advice(&self) -> String {
        let loss = self.loss();
        let queue = self.queue_s.map(|queue| queue * 1e3);
        let lost = (loss > LOSSY).then_some(loss * 100.0);
        if let (Some(queue), Roof::ForeignQueue) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path that is not its own: a lower rate did not shorten it."
            )
        } else if let (Some(queue), Roof::Limits) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path though the rate is held at what fit found it to carry: other \
                 traffic may fill it."
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

    /// The end at which fit takes a queue away that the connection itself fills.
    fn remedy(&self) -> &'static str {
        match (self.direction, self.paces_itself) {
            (Direction::Send, true) => "a receiver with --policy fit",
            _ => "--policy fit at this end",
        }
    }

    /// Share of the segments that had to be repeated.
    pub fn loss(&self) -> f64 {
        self.retransmits as f64 / self.segments_out.max(1) as f64
    }
}
