//! Shares of the send memory: what each connection may hold.
//!
//! Terms: sizes of memory count the kernel's overhead; it takes two bytes of memory for one of payload
//! (`SO_SNDBUF`'s own rule). The *budget* bounds what send queues hold together.
//! - ABT: max-min fair over the network targets (Semke 1998, appendix A), twice a second.
//! - SABT: in proportion to the demands of the throughput equation (Matsuo, section 2.2), every second. The equation
//!   gives the mean window; the memory that is left goes to its swings, up to twice the demand (Semke 1998, section
//!   2.2.1). Where there is less than 64 KB for each that is busy, SABT shares as ABT does.
//! - EQ: the same for all.
//! - `abt:published`, `sabt:published`: the papers' rules alone, over the whole budget: what follows here is ours.
//!
//! Between two rounds a window may double several times. So nobody may outgrow what there would be if everybody did,
//! even while the budget suffices; and who comes between two rounds finds a bound already.
//!
//! Where a share binds, the kernel's side paces the sender, so that the share is kept (`bpf/socket.h`). A writer may
//! always fill one buffer (`tcp_sendmsg()`), whose size follows the shares (`at_once.rs`): a budget of less for each busy
//! connection cannot be kept.

use std::time::Duration;

use bufwise_bpf::{FlowState, Order, Shares};
use bufwise_policy::share::AbtRounds;
use bufwise_policy::{Policy, PolicyKind, Sabt, Share, sabt, share};
use bufwise_units::{Bytes, Micros, Rate};

use super::asked::Asked;
use super::by_cookie::ByCookie;
use super::orders::Orders;

/// Memory for one byte of payload.
pub(super) const OVERHEAD: u64 = 2;
/// The least share: the kernel's own minimum (`SOCK_MIN_SNDBUF`).
const FLOOR: Bytes = Bytes(4_608);
/// By how much a connection may grow until the next round, and what one may need of which nothing is known yet.
const GROWTH: u64 = 4;
const NEWCOMER: Bytes = Bytes(65_536);
/// The memory that is left goes to a connection's swings above its mean window: up to twice that altogether.
const SWING: (u64, u64) = (2, 1);
/// So many may come at once, before a look finds them.
const AT_ONCE: u64 = 4;
/// A connection that was silent for so long is none that sends.
const LATELY: Micros = Micros(5_000_000);
/// The rest of the budget takes in what varies between two looks.
const SHARED: (u64, u64) = (4, 5);

/// The result of a round.
pub(super) struct Round {
    /// For all alike.
    pub(super) shares: Shares,
    /// For some alone, as far as they have changed.
    pub(super) orders: Vec<(u64, Order)>,
    /// The sum of the connections' demands.
    pub(super) asked: Asked,
}

/// What a connection claims in a round.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Memory.
    demand: Bytes,
    /// The demand of the throughput equation (payload); zero as long as it has none.
    modelled: Bytes,
}

/// The books of one run.
#[derive(Debug)]
pub(super) struct ShareBook {
    policy: PolicyKind,
    budget: Bytes,
    /// A connection that has not sent more than this takes no part yet.
    small_document: Bytes,
    models: ByCookie<Sabt>,
    orders: Orders,
    /// `abt:published`: the fair share of the last round, to which the next one compares.
    rounds: AbtRounds,
}

impl ShareBook {
    pub(super) fn new(policy: PolicyKind, budget: Bytes, small_document: Bytes) -> Self {
        let (orders, rounds) = (Orders::new(policy.is_published()), AbtRounds::new(budget));
        Self { policy, budget, small_document, models: ByCookie::default(), orders, rounds }
    }

    /// How often shares are computed.
    pub(super) fn interval(&self) -> Duration {
        match self.policy {
            PolicyKind::Sabt | PolicyKind::SabtPublished => Duration::from_secs(1),
            _ => Duration::from_millis(500),
        }
    }

    /// Sees the connections, more often than there are rounds: SABT's model counts losses over time.
    pub(super) fn look(&mut self, flows: &[FlowState], now: Micros) {
        let config = match self.policy {
            PolicyKind::Sabt => model(),
            PolicyKind::SabtPublished => sabt::Config::published(),
            _ => return,
        };
        let small_document = self.small_document;
        for flow in flows.iter().filter(|flow| takes_part(flow, small_document)) {
            let model = self.models.entry(flow.cookie).or_insert_with(|| Sabt::new(config));
            model.observe(&flow.sample, now);
        }
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.models.remove(&cookie);
        self.orders.forget(cookie);
    }

    /// Whether the send queues hold more than they may.
    pub(super) fn is_exceeded(&self, held: Bytes) -> bool {
        held > self.budget
    }

    /// Whether buffers shrink by what is acknowledged: Semke 1998, section 2.2.3. Matsuo has no such rule.
    pub(super) fn is_pressed(&self, held: Bytes) -> bool {
        self.policy != PolicyKind::SabtPublished && self.is_exceeded(held)
    }

    /// Whether shares are computed at their times alone, whoever comes or goes meanwhile, as in the papers.
    pub(super) fn keeps_its_times(&self) -> bool {
        self.policy.is_published()
    }

    /// The part of the budget that is shared out.
    pub(super) fn shared(&self) -> Bytes {
        if self.policy.is_published() {
            return self.budget;
        }
        self.budget.scaled(SHARED.0, SHARED.1)
    }

    /// Connections that have sent lately, more than they received.
    pub(super) fn senders(flows: &[FlowState], now: Micros) -> usize {
        let sends = |flow: &&FlowState| {
            let lately = now.since(flow.seen_at.max(flow.active_at)) < LATELY;
            is_ours(flow) && lately && flow.bytes_sent > flow.sample.bytes_received
        };
        flows.iter().filter(sends).count()
    }

    /// Shares the budget out among connections whose send queues hold `held` together.
    pub(super) fn round(&mut self, flows: &[FlowState], held: Bytes) -> Round {
        let senders = flows.iter().filter(|flow| is_ours(flow)).count();
        let flows: Vec<&FlowState> =
            flows.iter().filter(|flow| takes_part(flow, self.small_document)).collect();
        let shared = self.shared();
        let claims: Vec<Claim> = flows.iter().map(|flow| self.claim(flow)).collect();
        let demands: Vec<Bytes> = claims.iter().map(|claim| claim.demand).collect();
        let asked = self.asked(&demands);
        let share = match self.policy {
            PolicyKind::Eq if flows.is_empty() => Share::Level(shared.scaled(1, AT_ONCE)),
            PolicyKind::Eq => share::equal(flows.len(), shared),
            PolicyKind::Sabt => {
                let (shares, orders) = self.proportional_round(&flows, senders, &claims, &demands, held);
                return Round { shares, orders: self.orders.changed(orders), asked };
            }
            PolicyKind::SabtPublished => {
                let (shares, orders) = self.round_in_packets(&flows, &claims);
                return Round { shares, orders: self.orders.changed(orders), asked };
            }
            PolicyKind::AbtPublished => self.rounds.round(demands),
            PolicyKind::Abt | PolicyKind::Fit => {
                max_min_with_newcomers(&with_room_to_grow(&flows, &demands, shared), shared)
            }
            PolicyKind::Kernel
            | PolicyKind::Fixed(_)
            | PolicyKind::Drs
            | PolicyKind::DrsFtp
            | PolicyKind::Sobas => Share::Unlimited,
        };
        let level = Shares::from(share).level.map(|level| level.max(FLOOR));
        let shares = Shares { level, window: None, pressure: self.is_pressed(held) };
        Round { shares, orders: Vec::new(), asked: Asked { level, ..asked } }
    }

    /// The sum of these demands and what is shared; all zero where no shares bound them.
    fn asked(&self, demands: &[Bytes]) -> Asked {
        if !self.has_shares() {
            return Asked::default();
        }
        let (connections, shared) = (demands.len() as u64, self.shared());
        Asked { connections, demand: demands.iter().copied().sum(), shared, ..Asked::default() }
    }

    /// Whether the policy shares the budget out at all.
    fn has_shares(&self) -> bool {
        !matches!(
            self.policy,
            PolicyKind::Kernel
                | PolicyKind::Fixed(_)
                | PolicyKind::Drs
                | PolicyKind::DrsFtp
                | PolicyKind::Sobas
        )
    }

    /// SABT: each its own bound; newcomers, and those that have not outgrown a small document, what one more of all senders
    /// would get of the whole.
    fn proportional_round(
        &self,
        flows: &[&FlowState],
        senders: usize,
        claims: &[Claim],
        demands: &[Bytes],
        held: Bytes,
    ) -> (Shares, Vec<(u64, Order)>) {
        let shared = self.shared();
        let limits = match is_tight(flows, shared) {
            true => level_for_all(flows, demands, shared),
            false => proportional_with_growth(demands, shared),
        };
        let of_each = flows.iter().zip(claims).zip(limits);
        let orders = of_each.map(|((flow, claim), limit)| (flow.cookie, claim.order(limit))).collect();
        let newcomer = shared.scaled(1, AT_ONCE.max(senders as u64 + 1)).max(FLOOR);
        (Shares { level: Some(newcomer), window: None, pressure: self.is_pressed(held) }, orders)
    }

    /// SABT as published: whole packets, the mean window without room for its swings. A newcomer has an equal part until the
    /// next round.
    fn round_in_packets(&self, flows: &[&FlowState], claims: &[Claim]) -> (Shares, Vec<(u64, Order)>) {
        let mut demands: Vec<Bytes> = claims.iter().map(|claim| claim.demand).collect();
        let share = share::proportional_in_place(&mut demands, self.budget);
        let order = |(flow, claim): (&&FlowState, &Claim)| {
            let packet = flow.sample.mss;
            let limit = share.limit(claim.demand);
            let limit = limit.map(|limit| share::in_packets(limit, packet.times(OVERHEAD)).max(FLOOR));
            (flow.cookie, Order { demand: share::in_packets(claim.modelled, packet), limit })
        };
        let orders = flows.iter().zip(claims).map(order).collect();
        let newcomer = self.budget.scaled(1, flows.len() as u64 + 1).max(FLOOR);
        (Shares { level: Some(newcomer), ..Shares::default() }, orders)
    }

    fn claim(&self, flow: &FlowState) -> Claim {
        let model = self.models.get(&flow.cookie);
        let modelled = model.filter(|model| model.is_modelled()).and_then(Policy::demand);
        let demand = match self.policy {
            PolicyKind::AbtPublished => flow.net_target,
            _ => model.and_then(Policy::demand).unwrap_or_else(|| flow.net_target.min(used(flow))),
        };
        Claim { demand: demand.times(OVERHEAD), modelled: modelled.unwrap_or_default() }
    }
}

impl Claim {
    /// Until the first loss the kernel's side goes by cwnd, once per round trip, which no second-hand demand could. After
    /// that the demand's swings have the room that there is.
    fn order(self, limit: Bytes) -> Order {
        Order { demand: self.modelled.scaled(SWING.0, SWING.1), limit: Some(limit.max(FLOOR)) }
    }
}

/// It is bufwise's to size, and more than a small document.
fn takes_part(flow: &FlowState, small_document: Bytes) -> bool {
    is_ours(flow) && flow.sample.bytes_acked >= small_document
}

/// Its application may still send, and its buffer is bufwise's to size.
fn is_ours(flow: &FlowState) -> bool {
    flow.may_send && !flow.owned.send
}

/// SABT's model of a connection. A round trip with losses counts as one loss, as the throughput equation has it: by lost
/// segments (Matsuo), one overshoot of slow start would hold the demand down for the whole minute of the loss window.
fn model() -> sabt::Config {
    sabt::Config { losses: sabt::LossCount::Events, ..sabt::Config::default() }
}

/// Whether the busy have less for each than a newcomer needs. Then windows are a few segments, which swing by more than their mean
/// within a round, and a writer fills one buffer however small its part is: parts in proportion cannot be kept.
fn is_tight(flows: &[&FlowState], budget: Bytes) -> bool {
    let busy = flows.iter().filter(|flow| flow.sample.send_queued > Bytes::ZERO).count();
    budget.scaled(1, busy.max(1) as u64) < NEWCOMER
}

/// The same bound for each, max-min fair with room to grow, as ABT has it.
fn level_for_all(flows: &[&FlowState], demands: &[Bytes], budget: Bytes) -> Vec<Bytes> {
    let share = max_min_with_newcomers(&with_room_to_grow(flows, demands, budget), budget);
    demands.iter().map(|demand| Shares::from(share).level.unwrap_or(*demand)).collect()
}

/// Proportional; while all are met, bounds that growth cannot carry beyond the budget together, but that cut nobody.
fn proportional_with_growth(demands: &[Bytes], budget: Bytes) -> Vec<Bytes> {
    let of = |share: Share, demands: &[Bytes]| -> Vec<Bytes> {
        demands.iter().map(|demand| share.limit(*demand).unwrap_or(*demand)).collect()
    };
    let present = share::proportional(demands, budget);
    if present != Share::Unlimited {
        return of(present, demands);
    }
    let grown: Vec<Bytes> = demands.iter().map(|demand| (*demand).max(NEWCOMER).times(GROWTH)).collect();
    let limits = of(share::proportional(&grown, budget), &grown);
    limits.into_iter().zip(demands).map(|(limit, demand)| limit.max(*demand)).collect()
}

/// Max-min; while all are met, a level that growth cannot carry beyond the budget but that cuts nobody.
fn max_min_with_growth(demands: &[Bytes], budget: Bytes) -> Share {
    let present = share::max_min(demands, budget);
    let Share::Unlimited = present else { return present };
    let mut grown: Vec<Bytes> = demands.iter().map(|demand| (*demand).max(NEWCOMER).times(GROWTH)).collect();
    match share::max_min_in_place(&mut grown, budget) {
        Share::Level(level) => Share::Level(level.max(demands.iter().copied().max().unwrap_or_default())),
        unlimited => unlimited,
    }
}

/// The demands that busy connections may have by the next round, as far as an equal share holds them: after a loss many
/// ask for little at the same time, and grow together. An idle connection leaves its share to the others.
fn with_room_to_grow(flows: &[&FlowState], demands: &[Bytes], budget: Bytes) -> Vec<Bytes> {
    let equal = budget.scaled(1, flows.len().max(1) as u64);
    let grown = |(flow, demand): (&&FlowState, &Bytes)| match flow.sample.send_queued {
        Bytes::ZERO => *demand,
        _ => demand.times(GROWTH).min(equal).max(*demand),
    };
    flows.iter().zip(demands).map(grown).collect()
}

/// The payload that a connection can use until the next round, by what was delivered in a round trip. A sender that its
/// buffer holds back keeps a congestion window that it no longer fills: the window alone would claim memory for ever.
fn used(flow: &FlowState) -> Bytes {
    let (rate, rtt) = (flow.sample.delivery_rate, flow.sample.srtt);
    if rate == Rate::ZERO || rtt == Micros::ZERO {
        return Bytes::MAX;
    }
    rate.over(rtt).times(GROWTH).max(NEWCOMER)
}

/// The same for senders: newcomers find a bound too, for an idle connection that is there already is no reason to leave
/// them without one.
pub(super) fn max_min_with_newcomers(demands: &[Bytes], budget: Bytes) -> Share {
    let share = max_min_with_growth(demands, budget);
    let Share::Unlimited = share else { return share };
    let largest = demands.iter().copied().max().unwrap_or_default();
    Share::Level(largest.times(GROWTH).max(budget.scaled(1, AT_ONCE)))
}

#[cfg(test)]
mod plain;
#[cfg(test)]
pub(super) mod tests;
