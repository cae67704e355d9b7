//! Sizes one connection from user space by the rules of the programs: samples it, decides, and sets its options.
//!
//! There are two callers: `user_space.rs`, with privilege, for connections that existed before the programs; and the
//! engine without privilege. They differ in how they reach a socket ([`Reach`]) and how they may set it ([`Means`]).
//!
//! Without privilege a buffer cannot exceed `wmem_max` and `rmem_max`, often 208 KiB, while autotuning may give it
//! megabytes. So larger sizes are left to autotuning; pacing and the window clamp keep the connection to its share.

use std::os::fd::{AsFd, BorrowedFd};

use bufwise_socket::diag::Connection;
use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::{Bytes, Rate};

use crate::abi::{bw_config, bw_control, bw_flow, bw_order};
use crate::config::{ReceiveRule, SendRule};
use crate::flow::{CLAMP, RECEIVE, SEND, word};
use crate::means::Means;
use crate::record;
use crate::release::largest_window;
use crate::rules::{self, NONE, SendDecision};

/// The largest window clamp, and the smallest (`BW_LEAST_CLAMP`), bytes.
const LARGEST_CLAMP: u64 = 1 << 30;
const LEAST_CLAMP: u64 = 2_048;

/// Access to a connection's socket.
pub(crate) trait Reach {
    /// A descriptor of the socket.
    type Socket: AsFd;
    /// Returns the descriptor, to be held for a moment only.
    fn reach(&mut self, one: &Connection) -> Option<Self::Socket>;
}

/// Makes the record of a connection that was found; `lock` says which buffers are locked.
pub(crate) fn take(config: &bw_config, one: &Connection, netns: u64, lock: BufferLock, at: u64) -> bw_flow {
    let locks = bits(lock);
    let mut flow = record::adopted(one, netns, locks, at);
    if config.take_over == 0 {
        flow.owned = locks;
    }
    rules::begin(config, &mut flow);
    flow
}

/// Returns the bits of the locked buffers, as in `sk_userlocks`.
fn bits(lock: BufferLock) -> u32 {
    let bit = |is_locked, bit| if is_locked { bit } else { 0 };
    bit(lock.send, SEND) | bit(lock.receive, RECEIVE)
}

/// One connection at one sample.
pub(crate) struct Sizing<'a, R> {
    pub(crate) config: &'a bw_config,
    pub(crate) all: &'a bw_control,
    pub(crate) order: Option<bw_order>,
    pub(crate) flow: &'a mut bw_flow,
    pub(crate) one: &'a Connection,
    pub(crate) socket: R,
    pub(crate) means: Means,
    /// Whether buffers are set: only if their lock can be removed again (Linux 5.15).
    pub(crate) sets_buffers: bool,
}

impl<R: Reach> Sizing<'_, R> {
    /// Samples the connection, decides and sets; returns whether buffers were given back because nothing has moved. `lock`: which
    /// buffers were seen to be locked; with privilege none, because programs that still see the connection may have set them.
    pub(crate) fn sample(&mut self, at: u64, lock: BufferLock) -> bool {
        record::note(self.flow, self.one, at);
        rules::settle(self.config, self.flow, bits(lock));
        let moved = record::moved(self.one);
        let is_silent = moved == self.flow.moved;
        let is_idle = rules::is_idle(self.config, self.flow, moved, at);
        if is_silent {
            // Buffers that the kernel refuses to change stay; the next sample tries again.
            return is_idle && self.give_back().unwrap_or_default();
        }
        self.decide(at);
        false
    }

    /// Decides by the present record, and applies the decisions.
    pub(crate) fn decide(&mut self, at: u64) {
        if self.config.send_rule != SendRule::Kernel as u32 {
            rules::observe_fit(self.config, self.flow, at);
            let decision = rules::decide_send(self.config, self.all, self.order.as_ref(), self.flow, false);
            let _stays_as_it_is = self.send(decision);
        }
        if self.config.receive_rule != ReceiveRule::Kernel as u32 {
            let window = rules::decide_window(self.config, self.all, self.flow, at, false);
            let _stays_as_it_is = self.receive(window);
        }
    }

    /// Applies a decision; the send buffer stays autotuned while the share does not limit it.
    fn send(&mut self, decision: SendDecision) -> Result<(), OptionError> {
        if decision.payload == NONE || self.flow.owned & SEND != 0 {
            return self.keep_below_roof();
        }
        let step = rules::step_send(self.config, self.flow, decision.payload, true);
        let binds = rules::share_binds(self.config, self.all, self.flow, decision.share);
        let paced = binds && self.config.send_rule != SendRule::Fixed as u32 && self.config.published == 0;
        let share = if paced { decision.share } else { NONE };
        let rate = rules::decide_pace(self.flow, share);
        let cap = rules::cap(self.config.send_cap, self.flow.cut_sndbuf);
        let sets = binds && self.sets_buffers && self.means.reaches(self.flow.decided_send, cap);
        let is_sized = if sets { step.value == 0 } else { self.flow.set_sndbuf == 0 };
        if self.config.observe_only != 0 || (is_sized && self.is_held_to(rate)) {
            return Ok(());
        }
        let Some(socket) = self.socket.reach(self.one) else { return Ok(()) };
        if sets && step.value != 0 {
            if self.flow.set_sndbuf == 0 && self.is_taken(&socket, SEND)? {
                return Ok(());
            }
            self.set_send(&socket, step.value)?;
        } else if !sets && self.flow.set_sndbuf != 0 {
            self.leave(&socket, SEND)?;
            self.flow.set_sndbuf = 0;
        }
        self.hold_to(&socket, rate)
    }

    /// Applies fit's roof to a connection whose send buffer is the application's own.
    fn keep_below_roof(&mut self) -> Result<(), OptionError> {
        let rate = rules::decide_pace(self.flow, NONE);
        if self.config.observe_only != 0 || self.is_held_to(rate) {
            return Ok(());
        }
        let Some(socket) = self.socket.reach(self.one) else { return Ok(()) };
        self.hold_to(&socket, rate)
    }

    fn set_send(&mut self, socket: &R::Socket, payload: u32) -> Result<(), OptionError> {
        self.means.set_send(socket, Bytes(payload.into()))?;
        self.flow.sndbuf = word(options::send_buffer(socket)?.0);
        if self.flow.sndbuf / 2 < payload {
            self.flow.cut_sndbuf = self.flow.sndbuf;
        }
        self.flow.send_changes += u32::from(self.flow.set_sndbuf != self.flow.sndbuf);
        self.flow.set_sndbuf = self.flow.sndbuf;
        Ok(())
    }

    fn set_receive(&mut self, socket: &R::Socket, size: u64) -> Result<(), OptionError> {
        self.means.set_receive(socket, Bytes(size))?;
        self.flow.rcvbuf = word(options::receive_buffer(socket)?.0);
        if u64::from(self.flow.rcvbuf / 2) < size {
            self.flow.cut_rcvbuf = self.flow.rcvbuf;
        }
        self.flow.set_rcvbuf = self.flow.rcvbuf;
        Ok(())
    }

    fn is_held_to(&self, rate: u32) -> bool {
        rate == self.flow.set_pace && rules::decide_unsent(self.config, self.flow) == self.flow.set_unsent
    }

    /// Bounds the rate, and the bytes written and not sent.
    fn hold_to(&mut self, socket: &R::Socket, rate: u32) -> Result<(), OptionError> {
        if rules::step_pace(self.flow, options::max_pacing_rate(socket)?.0, rate) {
            options::set_max_pacing_rate(socket, Rate(if rate == 0 { NONE } else { rate.into() }))?;
            self.flow.set_pace = rate;
            // From the first bound on TCP paces, also once it is lifted.
            self.flow.paced = 1;
        }
        let unsent = rules::step_unsent(self.config, self.flow, word(options::notsent_low_water(socket)?.0));
        if unsent != self.flow.set_unsent {
            options::set_notsent_low_water(socket, Bytes(unsent.into()))?;
            self.flow.set_unsent = unsent;
        }
        Ok(())
    }

    fn receive(&mut self, window: u64) -> Result<(), OptionError> {
        let window = window.min(LARGEST_CLAMP);
        self.flow.decided_window = window;
        if self.config.observe_only != 0 {
            return Ok(());
        }
        if self.flow.owned & RECEIVE != 0 {
            return self.open_window();
        }
        let Some(socket) = self.socket.reach(self.one) else { return Ok(()) };
        let present = self.settle_clamp(&socket)?;
        if rules::may_size_receive_buffer(self.flow) {
            self.size_receive(&socket, window)?;
        }
        if window == 0 { Ok(()) } else { self.set_clamp(&socket, present, window.max(LEAST_CLAMP)) }
    }

    /// Returns the present clamp, after it was tested whether the application, or the route, has set it. Without privilege the first
    /// clamp was tested when the connection was found.
    fn settle_clamp(&mut self, socket: &R::Socket) -> Result<u64, OptionError> {
        let clamp = options::window_clamp(socket)?;
        if self.means == Means::Force || self.flow.set_clamp != 0 {
            rules::settle_clamp(self.config, self.flow, word(clamp.0), 0);
        }
        Ok(clamp.0)
    }

    /// Bounds the window, unless the application does.
    fn set_clamp(&mut self, socket: &R::Socket, present: u64, window: u64) -> Result<(), OptionError> {
        if self.flow.owned & CLAMP != 0 {
            return Ok(());
        }
        if present != window {
            options::set_window_clamp(socket, Bytes(window))?;
        }
        self.flow.clamp_changes += u32::from(u64::from(self.flow.set_clamp) != window);
        self.flow.set_clamp = word(window);
        Ok(())
    }

    /// Opens the window of a connection whose receive buffer the application has set after the window was bounded: the buffer
    /// alone bounds it from then on.
    fn open_window(&mut self) -> Result<(), OptionError> {
        let largest = largest_window(self.flow.rcv_wscale);
        if self.flow.set_clamp == 0 || self.flow.set_clamp == word(largest.0) {
            return Ok(());
        }
        let Some(socket) = self.socket.reach(self.one) else { return Ok(()) };
        let present = self.settle_clamp(&socket)?;
        self.set_clamp(&socket, present, largest.0)
    }

    /// Sizes the receive buffer for a window (payload bytes). Without privilege the window clamp alone bounds the window: the
    /// buffer is only enlarged, within the host's maximum, and a larger one is left to autotuning.
    fn size_receive(&mut self, socket: &R::Socket, window: u64) -> Result<(), OptionError> {
        // The reader sleeps until this many bytes are unread.
        let low_water = options::receive_low_water(socket)?.0;
        let awaited = rules::memory_of_window(low_water.saturating_sub(1), 0);
        let (share, in_use) = (self.all.window_level, self.in_use());
        let memory = rules::decide_receive_buffer(self.config, self.flow, share, window, in_use, awaited);
        if memory == 0 {
            return Ok(());
        }
        let cap = rules::cap(self.config.receive_cap, self.flow.cut_rcvbuf);
        let within = self.means.reaches(memory / 2, cap);
        if self.means == Means::Force || (within && self.sets_buffers && memory > self.flow.rcvbuf.into()) {
            if self.flow.set_rcvbuf == 0 && self.is_taken(socket, RECEIVE)? {
                return Ok(());
            }
            return self.set_receive(socket, memory / 2);
        }
        if !within && self.flow.set_rcvbuf != 0 {
            self.leave(socket, RECEIVE)?;
            self.flow.set_rcvbuf = 0;
        }
        Ok(())
    }

    /// Leaves a buffer to autotuning; one that was taken over from the application gets the application's size again.
    fn leave(&self, socket: &R::Socket, buffer: u32) -> Result<(), OptionError> {
        let half = |memory: u32| Bytes(u64::from(memory) / 2);
        match (buffer, self.flow.found_locks & buffer != 0) {
            (SEND, true) => self.means.set_send(socket, half(self.flow.found_sndbuf)),
            (_, true) => self.means.set_receive(socket, half(self.flow.found_rcvbuf)),
            (_, false) => {
                let BufferLock { send, receive } = options::buffer_lock(socket)?;
                let lock = BufferLock { send: send && buffer != SEND, receive: receive && buffer == SEND };
                options::set_buffer_lock(socket, lock)
            }
        }
    }

    /// Returns whether the application has set that buffer since the connection was found; then the buffer belongs to
    /// the application. With privilege this is not tested, because programs that still see the connection may have
    /// set it.
    fn is_taken(&mut self, socket: &R::Socket, buffer: u32) -> Result<bool, OptionError> {
        if self.means == Means::Force || self.config.take_over != 0 {
            return Ok(false);
        }
        let lock = options::buffer_lock(socket)?;
        let is_locked = if buffer == SEND { lock.send } else { lock.receive };
        self.flow.owned |= if is_locked { buffer } else { 0 };
        Ok(is_locked)
    }

    /// Returns the memory of unread data and of the window that the peer may fill.
    fn in_use(&self) -> u64 {
        u64::from(self.one.mem.rmem_alloc) + rules::memory_of_window(self.flow.rcv_wnd.into(), 0)
    }

    fn give_back(&mut self) -> Result<bool, OptionError> {
        let before = self.flow.given_back;
        let send = rules::give_back_send(self.config, self.flow);
        let unread = self.one.mem.rmem_alloc != 0;
        let receive = rules::give_back_receive(self.config, self.flow, self.in_use(), unread);
        if send == 0 && receive == 0 {
            return Ok(false);
        }
        let Some(socket) = self.socket.reach(self.one) else { return Ok(false) };
        if send != 0 {
            self.set_send(&socket, send)?;
            self.flow.given_back |= SEND;
        }
        if receive != 0 {
            self.set_receive(&socket, receive.into())?;
            self.flow.given_back |= RECEIVE;
        }
        Ok(before == 0)
    }
}

/// Access to a socket that is already open.
impl<'a> Reach for BorrowedFd<'a> {
    type Socket = Self;

    fn reach(&mut self, _one: &Connection) -> Option<BorrowedFd<'a>> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_size_that_the_kernel_cuts_each_time_is_one_change() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        let (config, all) = (bw_config::from(&Config::default()), bw_control::default());
        let mut flow = take(&config, &one, 0, BufferLock::default(), 1);
        let (socket, means) = (client.as_fd(), Means::Plain);
        let mut sizing = Sizing {
            config: &config,
            all: &all,
            order: None,
            flow: &mut flow,
            one: &one,
            socket,
            means,
            sets_buffers: true,
        };
        // More than any host's `wmem_max`.
        (0..2).for_each(|_| sizing.set_send(&socket, 1 << 29).unwrap());
        assert_eq!(flow.send_changes, 1);
    }

    #[test]
    fn a_size_that_the_kernel_has_cut_is_left_to_autotuning() {
        if !crate::user::tells_locks() {
            return bufwise_trial::skip("needs Linux 5.15");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        // As if the host's maximum had been higher at the start.
        let (send_rule, send_cap, max_send) = (SendRule::Abt as u32, u32::MAX, NONE);
        let config = bw_config { send_rule, send_cap, max_send, ..bw_config::from(&Config::default()) };
        let all = bw_control::default();
        let mut flow = take(&config, &one, 0, BufferLock::default(), 1);
        // The share binds.
        flow.abt.net_target = NONE;
        for is_locked in [true, false] {
            let (config, all, one, flow) = (&config, &all, &one, &mut flow);
            let (socket, means) = (client.as_fd(), Means::Plain);
            let mut sizing =
                Sizing { config, all, order: None, flow, one, socket, means, sets_buffers: true };
            sizing.send(SendDecision { payload: 1 << 29, share: 1 << 29 }).unwrap();
            assert_eq!(options::buffer_lock(&client).unwrap().send, is_locked);
        }
        assert_eq!(flow.set_sndbuf, 0);
    }

    #[test]
    fn a_receive_buffer_that_was_set_grows_by_what_the_reader_waits_for() {
        if !crate::user::tells_locks() {
            return bufwise_trial::skip("needs Linux 5.15");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // As if autotuning had reached this size; the share allows a slightly larger one, within any host's `rmem_max`.
        options::set_receive_buffer(&client, Bytes(60_000)).unwrap();
        options::set_buffer_lock(&client, BufferLock::default()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        let config = bw_config::from(&Config { receive: ReceiveRule::Drs, ..Config::default() });
        let all = bw_control { window_level: 65_000, ..bw_control::default() };
        let mut flow = take(&config, &one, 0, BufferLock::default(), 1);
        let mut receive = || {
            let (config, all, one, flow) = (&config, &all, &one, &mut flow);
            let (socket, means) = (client.as_fd(), Means::Plain);
            let mut sizing =
                Sizing { config, all, order: None, flow, one, socket, means, sets_buffers: true };
            sizing.receive(30_000).unwrap();
            options::receive_buffer(&client).unwrap().0
        };
        assert!(receive() >= 130_000);
        options::set_receive_low_water(&client, Bytes(60_001)).unwrap();
        assert_eq!(receive(), 130_000 + 135_000, "60,000 bytes take 135,000 of memory");
    }

    #[test]
    fn a_window_that_was_bounded_is_opened_once_the_application_has_set_its_receive_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        let config = bw_config::from(&Config { receive: ReceiveRule::Drs, ..Config::default() });
        let all = bw_control::default();
        let receive = |flow: &mut bw_flow| {
            let (config, all, one, socket) = (&config, &all, &one, client.as_fd());
            let means = Means::Plain;
            let mut sizing =
                Sizing { config, all, order: None, flow, one, socket, means, sets_buffers: false };
            sizing.receive(30_000).unwrap();
            options::window_clamp(&client).unwrap()
        };
        let mut flow = take(&config, &one, 0, BufferLock::default(), 1);
        let before = options::window_clamp(&client).unwrap();
        assert_eq!(receive(&mut bw_flow { owned: RECEIVE, ..flow }), before, "bufwise has not bounded it");
        assert_eq!(receive(&mut flow), Bytes(30_000));
        flow.owned = RECEIVE;
        let open = Bytes(65_535 << one.info.rcv_wscale());
        assert_eq!([receive(&mut flow), receive(&mut flow)], [open; 2]);
        assert_eq!((flow.clamp_changes, u64::from(flow.set_clamp)), (2, open.0));
    }

    #[test]
    fn a_window_that_the_application_bounds_stays_until_it_is_opened() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        let config = bw_config::from(&Config { receive: ReceiveRule::Drs, ..Config::default() });
        let all = bw_control::default();
        let mut flow = take(&config, &one, 0, BufferLock::default(), 1);
        let mut receive = |bound: Option<u64>| {
            if let Some(bound) = bound {
                options::set_window_clamp(&client, Bytes(bound)).unwrap();
            }
            let (config, all, one, flow) = (&config, &all, &one, &mut flow);
            let (socket, means) = (client.as_fd(), Means::Plain);
            let mut sizing =
                Sizing { config, all, order: None, flow, one, socket, means, sets_buffers: false };
            sizing.receive(30_000).unwrap();
            options::window_clamp(&client).unwrap().0
        };
        // Less than an eighth of any host's first buffer, and more than all of it.
        let windows = [None, Some(1_500), None, Some(1 << 24), None].map(&mut receive);
        assert_eq!(windows, [30_000, 1_500, 1_500, 30_000, 30_000]);
        receive(Some(1_500));
        assert!(!crate::flow::FlowState::from_kernel(1, &flow).is_touched(), "the clamp is not bufwise's");
    }
}
