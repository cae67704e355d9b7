//! One connection under the rules of the programs, on the host: a policy as in `bufwise-policy`, for tests and
//! simulation.
//!
//! A [`Model`] keeps the same record as the programs and calls the same C (`bpf/rules.h`). Only the socket differs: a
//! [`Sample`] fills the record, and the caller applies the [`Decision`].

use bufwise_policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};

use crate::abi::{bw_config, bw_control, bw_flow, bw_room};
use crate::config::{Config, ReceiveRule, SendRule};
use crate::flow::{SobasState, number_of, sobas, word};
use crate::rules::{self, NONE};

/// Bytes of memory for one byte of payload, as for `SO_SNDBUF`.
const OVERHEAD: u64 = 2;

/// One connection, both directions.
#[derive(Clone, Debug)]
pub struct Model {
    config: bw_config,
    control: bw_control,
    flow: bw_flow,
    room: bw_room,
    begun: bool,
}

impl Model {
    /// Makes a connection that has just been established, under these rules.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (send_level, newcomer_level, window_level) = (NONE, NONE, NONE);
        let control = bw_control { send_level, newcomer_level, window_level, ..bw_control::default() };
        let (flow, room) = (bw_flow::default(), bw_room::default());
        Self { config: config.into(), control, flow, room, begun: false }
    }

    /// Sets the room that earlier connections have shown on the peer's path (`peers.h`): how often steps are doubled, 2 at
    /// most. Call it before the first sample.
    #[must_use]
    pub fn with_room(mut self, doublings: u32) -> Self {
        self.flow.fit_window.doublings = doublings;
        (self.room.doublings, self.room.taken_at) = (doublings, u64::from(doublings > 0));
        self
    }

    /// Returns how often the next connection's steps are doubled.
    #[must_use]
    pub fn room(&self) -> u32 {
        rules::room_doublings(&self.room, self.flow.sampled_at)
    }

    /// Sets the largest window of any connection; `None`: no bound.
    pub fn set_window_level(&mut self, level: Option<Bytes>) {
        self.control.window_level = level.map_or(NONE, |level| level.0);
    }

    /// Sets whether memory in use exceeds the budget.
    pub fn set_pressure(&mut self, pressure: bool) {
        self.control.pressure = pressure.into();
    }

    /// Returns the state of SOBAS, if it runs.
    #[must_use]
    pub fn sobas_state(&self) -> SobasState {
        sobas(self.flow.sobas.state)
    }

    /// Returns the time at which the receive rule needs its next sample; earlier samples are not needed.
    #[must_use]
    pub fn next_window(&self, now: Micros) -> Micros {
        Micros(rules::next_window(&self.config, &self.flow, now.0))
    }

    fn take(&mut self, sample: &Sample, now: Micros) {
        let (flow, mss) = (&mut self.flow, sample.mss_or_default());
        if sample.bytes_acked.0 != flow.bytes_acked {
            rules::note_rtt(flow, now.0);
        }
        flow.sampled_at = now.0;
        flow.samples += 1;
        flow.mss = word(mss.0);
        flow.rcv_mss = word(mss.0);
        flow.rcv_wscale = 7;
        flow.cwnd = word(sample.cwnd.0 / mss.0);
        flow.srtt = word(sample.srtt.0);
        flow.min_rtt = if sample.min_rtt == Micros::ZERO { u32::MAX } else { word(sample.min_rtt.0) };
        flow.rcv_rtt = word(sample.rcv_rtt.0);
        flow.rto = word(sample.rto.0);
        flow.bytes_acked = sample.bytes_acked.0;
        flow.bytes_received = sample.bytes_received.0;
        // Counters of 32 bits wrap around.
        flow.retrans = sample.segs_lost as u32;
        flow.segs_out = sample.segs_out as u32;
        flow.segs_in = sample.segs_in as u32;
        flow.out_of_order = sample.rcv_out_of_order as u32;
        flow.delivered_segs = sample.segs_delivered.max(sample.bytes_acked.0 / mss.0) as u32;
        flow.app_limited = sample.app_limited.into();
        flow.congestion_control = number_of(sample.congestion_control);
        flow.paced = sample.paced.into();
        flow.rcv_wnd = word(sample.rcv_wnd.0);
        flow.sndbuf = word(sample.sndbuf.0.saturating_mul(OVERHEAD));
        flow.send_queued = word(sample.send_queued.0.saturating_mul(OVERHEAD));
        flow.last_buffer = word(mss.0);
        if !self.begun {
            rules::begin(&self.config, flow);
            self.begun = true;
        }
    }
}

impl Policy for Model {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        self.take(sample, now);
        let mut decision = Decision::NONE;
        if self.config.send_rule != SendRule::Kernel as u32 {
            let wanted = rules::decide_send(&self.config, &self.control, None, &mut self.flow, false);
            rules::observe_fit(&self.config, &mut self.flow, now.0);
            if wanted.payload != NONE {
                decision.send_buffer = Some(Bytes(wanted.payload.min(self.config.max_send)));
                let pace = rules::decide_pace(&self.flow, wanted.share);
                let paced = pace != 0 && self.config.published == 0;
                decision.pacing = paced.then_some(Rate(pace.into()));
            }
        }
        if self.config.receive_rule != ReceiveRule::Kernel as u32 {
            let window = rules::decide_window(&self.config, &self.control, &mut self.flow, now.0, false);
            rules::learn_room(&mut self.flow, now.0, || &mut self.room);
            decision.receive_window = Some(Bytes(self.within_the_buffer(window)));
        }
        decision
    }

    fn demand(&self) -> Option<Bytes> {
        (self.config.send_rule > SendRule::Fixed as u32).then_some(Bytes(self.flow.abt.net_target))
    }

    fn set_limit(&mut self, limit: Option<Bytes>) {
        self.control.send_level = limit.map_or(NONE, |limit| limit.0.saturating_mul(OVERHEAD));
    }
}

impl Model {
    /// Returns the window for which the receive buffer has room, after sizing the buffer for it.
    fn within_the_buffer(&mut self, window: u64) -> u64 {
        let in_use = rules::memory_of_window(self.flow.rcv_wnd.into(), 0);
        let share = self.control.window_level;
        let memory = rules::decide_receive_buffer(&self.config, &self.flow, share, window, in_use, 0);
        if memory != 0 {
            (self.flow.rcvbuf, self.flow.set_rcvbuf) = (word(memory), word(memory));
        }
        // Before Linux 6.6, and for small segments since, half of the memory is window.
        window.min(u64::from(self.flow.rcvbuf) / 2)
    }
}
