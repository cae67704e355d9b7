//! What `run` and `daemon` share: looking at the connections, sharing the memory out, carrying out wishes.

pub mod choice;
pub mod plan;
mod shares;
mod windows;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bufwise_bpf::{Engine, FlowState, Shares, Wish};
use bufwise_socket::options::{self, OptionError};
use bufwise_units::Bytes;

use crate::error::Result;
use plan::Plan;
use shares::ShareBook;
use windows::WindowBook;

/// What the memory allows before anything is known.
const NO_BOUNDS: Shares = Shares { level: None, window: None, pressure: false };

/// Memory that the send queues hold together, as the kernel's side saw them last.
pub fn held(flows: &[FlowState]) -> Bytes {
    flows.iter().filter(|flow| !flow.closed).map(|flow| flow.sample.send_queued).sum()
}

/// Why the budget cannot be kept with those connections that have something to send, and what to do; `None` if it can.
/// A writer fills the buffer that it has begun, whatever its limit is (`tcp_sendmsg()`).
pub fn shortage<'a>(writers: impl Iterator<Item = &'a FlowState>, budget: Bytes) -> Option<String> {
    let (count, least) =
        writers.fold((0_usize, Bytes::ZERO), |(count, sum), flow| (count + 1, sum + flow.last_buffer));
    (least > budget).then(|| {
        format!(
            "{count} connections are sending and may fill {} whatever their limits, more than the memory of {}: raise \
             --memory to at least {}KiB, or let them fill less at once, as --gso-max-size 4KiB",
            least.readable(),
            budget.readable(),
            least.0.div_ceil(1 << 10),
        )
    })
}

/// The engine, and the books that are kept of its connections.
pub struct Tuner {
    engine: Engine,
    shares: ShareBook,
    windows: WindowBook,
    next_round: Instant,
    /// Connections at the last look: newcomers do not wait for the next round.
    known: usize,
    held_max: Bytes,
}

impl Tuner {
    /// Books for an engine that has been loaded by this plan; gives it the first shares.
    pub fn new(plan: &Plan, mut engine: Engine) -> Result<Self> {
        let mut shares = ShareBook::new(plan.choice.send, plan.budget, plan.small_document);
        // The first connections may come before anybody looks.
        engine.beat(shares.round(&[], Bytes::ZERO).shares)?;
        Ok(Self {
            engine,
            shares,
            windows: WindowBook::new(plan.choice.receive, plan.receive_budget),
            next_round: Instant::now(),
            known: 0,
            held_max: Bytes::ZERO,
        })
    }

    /// Every connection, those that have just ended for the last time.
    pub fn flows(&self) -> Result<Vec<FlowState>> {
        Ok(self.engine.flows()?)
    }

    /// Largest memory that the send queues were seen to hold together.
    pub fn held_max(&self) -> Bytes {
        self.held_max
    }

    /// How often shares are computed.
    pub fn interval(&self) -> Duration {
        self.shares.interval()
    }

    /// Takes notice of the connections: a new round of shares when it is due, and the sign that user space lives.
    pub fn look(&mut self, flows: &[FlowState], held: Bytes) -> Result<Shares> {
        self.held_max = self.held_max.max(held);
        self.shares.look(flows);
        let known = std::mem::replace(&mut self.known, flows.len());
        let early = known != flows.len() || self.shares.is_exceeded(held);
        let shares = if early || Instant::now() >= self.next_round {
            self.next_round = Instant::now() + self.shares.interval();
            self.round(flows, held)?
        } else {
            self.engine.shares().unwrap_or(NO_BOUNDS)
        };
        for flow in flows.iter().filter(|flow| flow.closed) {
            self.engine.forget(flow.cookie);
            self.shares.forget(flow.cookie);
        }
        self.engine.beat(shares)?;
        Ok(shares)
    }

    fn round(&mut self, flows: &[FlowState], held: Bytes) -> Result<Shares> {
        let round = self.shares.round(flows, held);
        for (cookie, order) in round.orders {
            self.engine.order(cookie, order)?;
        }
        Ok(Shares { window: self.windows.level(flows), ..round.shares })
    }

    /// A descriptor that is readable when there are wishes.
    pub fn wishes_fd(&self) -> BorrowedFd<'_> {
        self.engine.wishes_fd()
    }

    /// Carries out what only user space may, on the sockets that `find` finds by their cookies; returns what the kernel
    /// refused.
    pub fn carry_out(&mut self, mut find: impl FnMut(u64) -> Option<OwnedFd>) -> Result<Vec<OptionError>> {
        let wishes = self.engine.wishes()?;
        let granted = wishes.iter().map(|wish| {
            // A connection may be over by now.
            find(wish.cookie).map_or(Ok(()), |socket| grant(wish, socket.as_fd()))
        });
        Ok(granted.filter_map(Result::err).collect())
    }

    /// The kernel's side.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

fn grant(wish: &Wish, socket: BorrowedFd<'_>) -> Result<(), OptionError> {
    // The kernel doubles what it is told.
    let half = |size: Bytes| Bytes(size.0 / 2);
    if let Some(size) = wish.send_buffer {
        options::force_send_buffer(socket, half(size))?;
    }
    if let Some(size) = wish.receive_buffer {
        options::force_receive_buffer(socket, half(size))?;
    }
    if let Some(window) = wish.window {
        options::set_window_clamp(socket, window)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_below_what_writers_hold_anyway_is_named_with_the_least_that_will_do() {
        let writers = vec![shares::tests::flow(1, 0); 17];
        let short = |count: usize, budget: &str| shortage(writers[..count].iter(), budget.parse().unwrap());
        assert_eq!(short(16, "1MiB"), None);
        let text = short(17, "1MiB").unwrap();
        assert!(text.starts_with("17 connections") && text.contains("to at least 1088KiB,"), "{text}");
        assert_eq!(short(17, "1088KiB"), None);
    }
}
