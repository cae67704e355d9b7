//! Shares of the send memory: what each connection may hold.
//!
//! Terms: sizes of memory count the kernel's overhead; a byte of payload takes two bytes of memory (`SO_SNDBUF`'s own
//! rule). The *budget* bounds what all send queues hold together.
//! - ABT: max-min fair over the network targets (Semke 1998, appendix A), twice a second.
//! - SABT: in proportion to the demands of the throughput equation (Matsuo, section 2.2), every second. The equation
//!   gives the mean window. The memory that is left over is room for the window to exceed its mean, up to four times the
//!   demand: random losses let the window swing to twice its mean, and recovery needs twice the window (Semke 1998, section
//!   2.2.1). If there is less than 64 KB for each busy connection, SABT shares as ABT does.
//! - EQ: the same for all.
//! - `abt:published`, `sabt:published`: the papers' rules alone, over the whole budget. All further rules below are
//!   additions of bufwise.
//!
//! Between two rounds a window may double several times. So even while the budget suffices, each connection has a bound:
//! the share that it would have if all grew alike, at least an equal part. While the budget suffices, each sample has a
//! round (`books.rs`). A connection that starts between two rounds has a bound from the start (a *newcomer's bound*). Beside few
//! other connections this is the part of one more connection, else the bound of the others, or, after an outage, an equal part.
//!
//! Two kinds of connections keep the memory that their queues hold, whatever their share is: a *closing* one, until the peer
//! has acknowledged its queue, and a *stalled* sender, of whose queue nothing has been acknowledged for [`LATELY`], because its
//! peer does not read or cannot be reached. The others share the memory that such queues leave.
//!
//! Properties kept: under SABT the limits of the connections that take part sum to at most 9/10 of the budget at any time,
//! and each limit is at least the smaller of the demand and an equal part. Where SABT shares as ABT does, demands that grow
//! fourfold stay within 9/10 of the budget. Neither holds with less than [`FLOOR`] for each connection.
//! Beside few others, connections that have not begun, are at rest or have stalled have a newcomer's bound. If all of them, and
//! one that opens meanwhile, begin at once, they hold at most another tenth of the budget, unless that is less than [`LEAST`] for
//! each.
//! Not kept: connections that send little, or whose queues are empty at the sample, count with the demand that they have shown. If
//! many of them grow to the level of the largest at once, the budget may be exceeded until the next round. The same holds for more
//! than [`AT_ONCE`] connections that begin within one sample where there were none. Senders that stall one after another, each
//! alone with a 16th of the budget ([`LEFT`]), may exceed it until their queues are acknowledged or closed.
//!
//! If a share limits a sender, the programs in the kernel pace it, so that the share is kept (`bpf/socket.h`). A writer may
//! always fill one buffer (`tcp_sendmsg()`), whose size follows the shares (`at_once.rs`): a budget with less than
//! one such buffer for each busy connection cannot be kept.

use std::collections::HashSet;
use std::time::Duration;

use bufwise_bpf::{FlowState, Order, Shares};
use bufwise_policy::share::AbtRounds;
use bufwise_policy::{Policy, PolicyKind, Sabt, Share, sabt, share};
use bufwise_units::{Bytes, Micros, Rate};

use super::asked::Asked;
use super::by_cookie::ByCookie;
use super::orders::Orders;
use super::{INITIAL_WINDOW, at_once};

/// Bytes of memory for one byte of payload.
pub(super) const OVERHEAD: u64 = 2;
/// The least share, bytes of memory: the kernel's own minimum (`SOCK_MIN_SNDBUF`).
const FLOOR: Bytes = Bytes(4_608);
/// Factor by which a connection may grow until the next round, and the demand assumed of a connection of which
/// nothing is known yet, bytes.
const GROWTH: u64 = 4;
const NEWCOMER: Bytes = Bytes(65_536);
/// The demand assumed, in bytes, of a connection that is older than [`LATELY`] and has nothing queued, such as one that
/// answers small requests: thousands of these must leave memory to a download.
const MODEST: Bytes = Bytes(8_192);
/// Ratio of limit to mean window: spare memory gives windows room to swing above their mean, up to four times the mean.
/// With a ratio of 2, a path that loses 2% of the segments had a fifth less rate (`sabt-fig5`).
const SWING: (u64, u64) = (4, 1);
/// Number of connections expected to start before a sample finds them.
const AT_ONCE: u64 = 4;
/// Beside busy connections a newcomer's bound is at most an eighth of the memory that is shared out. The others may hold
/// all of that memory until the next round, and the budget is only a quarter larger.
const BESIDE_BUSY: u64 = 8;
/// With at most this many connections, idle ones included, a newcomer's bound is the part of one more connection instead of
/// the bound of the others: on a path with a short round trip a newcomer fills its bound before a sample sees it. With
/// more connections, samples may be too rare to raise such a small bound in time.
const FEW: usize = 256;
/// A connection with an empty queue that has moved no data for this time is *at rest*: it takes no part in the shares until
/// it sends again, and then begins with a newcomer's bound. Otherwise the idle connections of a web server would leave no
/// memory to the busy ones. A sender with a queue that has moved no data for this time has *stalled*.
const LATELY: Micros = Micros(5_000_000);
/// A connection that has sent nothing yet demands [`NEWCOMER`] bytes for this time: a program may open several connections
/// some round trips before the first of them sends.
const ABOUT_TO_BEGIN: Micros = Micros(1_000_000);
/// State is kept of at most twice as many connections as a sample has, and of this many more.
const SPARE: usize = 64;
/// Part of the budget that is shared out; the rest covers changes between two samples.
const SHARED: (u64, u64) = (4, 5);
/// At least this part of the budget is shared out, so that closing and stalled connections starve no others, whatever they
/// hold.
const LEFT: (u64, u64) = (1, 16);
/// SABT: part of the budget into which connections whose demands are met may grow where the demands exceed the memory.
/// The sum stays below the budget: (4/5 + 1/12) * 64/63 + 1/10 < 1. The terms are the part shared out, this part, the
/// error of limits that were not written again (`orders.rs`), and the newcomers' eighth of the part shared out.
const GROWING: (u64, u64) = (1, 12);
/// Other connections that may begin at the same time do not reduce a newcomer's bound below this: an initial window, and
/// the smallest buffer that a writer fills at once.
const LEAST: Bytes = Bytes(INITIAL_WINDOW.0 + at_once::LEAST);

/// The result of a round.
pub(super) struct Round {
    /// Shares for all connections alike.
    pub(super) shares: Shares,
    /// Changed orders for single connections.
    pub(super) orders: Vec<(u64, Order)>,
    /// Sum of the connections' demands.
    pub(super) asked: Asked,
    /// Whether the next sample needs a round, because a connection may soon need more than its limit: it is at rest or has
    /// stalled, or its demand is small and its limit is less than an equal part.
    pub(super) soon: bool,
}

/// Demand of a connection in a round.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Demand of memory, bytes.
    demand: Bytes,
    /// Demand of the throughput equation, payload bytes; zero while it has none.
    modelled: Bytes,
}

/// The memory of a round that is left for connections with a demand.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Beside what closing connections and stalled senders hold.
    shared: Bytes,
    /// Beside what closing connections hold: stalled senders that begin anew have their queues in it.
    with_stalled: Bytes,
}

/// Computes the shares of the send memory for the connections of one engine.
#[derive(Debug)]
pub(super) struct ShareBook {
    policy: PolicyKind,
    budget: Bytes,
    /// A connection takes part once it has sent this many bytes.
    small_document: Bytes,
    models: ByCookie<Sabt>,
    /// The stalled senders of the last sample, each with the bytes that its peer has acknowledged.
    stalled: ByCookie<Bytes>,
    orders: Orders,
    /// For `abt:published`: the fair share of the last round, with which the next is compared.
    rounds: AbtRounds,
}

impl ShareBook {
    pub(super) fn new(policy: PolicyKind, budget: Bytes, small_document: Bytes) -> Self {
        let (models, stalled) = (ByCookie::default(), ByCookie::default());
        let (orders, rounds) = (Orders::new(policy.is_published()), AbtRounds::new(budget));
        Self { policy, budget, small_document, models, stalled, orders, rounds }
    }

    /// Returns the time between two rounds.
    pub(super) fn interval(&self) -> Duration {
        match self.policy {
            PolicyKind::Sabt | PolicyKind::SabtPublished => Duration::from_secs(1),
            _ => Duration::from_millis(500),
        }
    }

    /// Takes in a sample of the connections. Samples are more frequent than rounds: SABT's model counts losses over time, and
    /// senders stall.
    pub(super) fn observe(&mut self, flows: &[FlowState], now: Micros) {
        self.stalled = self.stalled_in(flows, now);
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
        self.prune(flows);
    }

    /// Returns the stalled senders of a sample; none under the papers' rules. A sender that has stalled stays so until its peer
    /// acknowledges more: probes of a closed window and retransmissions make samples, too.
    fn stalled_in(&self, flows: &[FlowState], now: Micros) -> ByCookie<Bytes> {
        if self.policy.is_published() {
            return ByCookie::default();
        }
        let acked = |flow: &FlowState| flow.sample.bytes_acked;
        let was_stalled = |flow: &FlowState| self.stalled.get(&flow.cookie) == Some(&acked(flow));
        let stalls = |flow: &&FlowState| {
            let is_queued = flow.sample.send_queued > Bytes::ZERO;
            is_queued && is_ours(flow) && (was_stalled(flow) || is_silent(flow, now))
        };
        flows.iter().filter(stalls).map(|flow| (flow.cookie, acked(flow))).collect()
    }

    /// Forgets connections that are not in the sample, once these outnumber those in it: a connection that is passed on
    /// to another engine disappears without being reported as closed.
    fn prune(&mut self, flows: &[FlowState]) {
        let most = 2 * flows.len() + SPARE;
        if self.models.len().max(self.orders.len()) > most {
            let present: HashSet<u64> = flows.iter().map(|flow| flow.cookie).collect();
            self.models.retain(|cookie, _| present.contains(cookie));
            self.orders.retain(|cookie| present.contains(&cookie));
        }
    }

    /// Makes the next round return all orders, because some may not have been written.
    pub(super) fn tell_again(&mut self) {
        self.orders.tell_again();
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.models.remove(&cookie);
        self.orders.forget(cookie);
    }

    /// Returns the number of stalled senders in the last sample.
    pub(super) fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// Returns whether the send queues hold more than the budget.
    pub(super) fn is_exceeded(&self, held: Bytes) -> bool {
        held > self.budget
    }

    /// Returns whether buffers shrink now by what is acknowledged.
    pub(super) fn is_pressed(&self, held: Bytes) -> bool {
        shrinks(self.policy) && self.is_exceeded(held)
    }

    /// Returns whether shares are computed only at fixed times, as in the papers, even if connections come or go.
    pub(super) fn keeps_its_times(&self) -> bool {
        self.policy.is_published()
    }

    /// Returns the part of the budget that is shared out.
    pub(super) fn shared(&self) -> Bytes {
        if self.policy.is_published() {
            return self.budget;
        }
        self.budget.scaled(SHARED.0, SHARED.1)
    }

    /// Counts the connections that are not at rest and have sent more than they received.
    pub(super) fn senders(flows: &[FlowState], now: Micros) -> usize {
        let sends = |flow: &&FlowState| {
            is_ours(flow) && !rests(flow, now) && flow.bytes_sent > flow.sample.bytes_received
        };
        flows.iter().filter(sends).count()
    }

    /// Shares the budget out among the connections, whose send queues hold `held` together.
    pub(super) fn round(&mut self, all: &[FlowState], held: Bytes, now: Micros) -> Round {
        let takes_part = |flow: &&FlowState| {
            takes_part(flow, self.small_document) && (self.policy.is_published() || self.is_live(flow, now))
        };
        let flows: Vec<&FlowState> = all.iter().filter(takes_part).collect();
        let closing = self.closing(all);
        let taken = closing + self.held_by_stalled(all);
        let left = Left { shared: self.left(taken), with_stalled: self.left(closing) };
        let shared = left.shared;
        let claims: Vec<Claim> = flows.iter().map(|flow| self.claim(flow, now)).collect();
        let demands: Vec<Bytes> = claims.iter().map(|claim| claim.demand).collect();
        let asked = self.asked(&demands, taken);
        let share = match self.policy {
            PolicyKind::Eq if flows.is_empty() => Share::Level(shared.scaled(1, AT_ONCE)),
            PolicyKind::Eq => share::equal(flows.len(), shared),
            PolicyKind::Sabt => {
                let (shares, orders, soon) =
                    self.proportional_round(all, &flows, &claims, &demands, left, now);
                let shares = Shares { pressure: self.is_pressed(held), ..shares };
                return Round { shares, orders: self.orders.changed(orders), asked, soon };
            }
            PolicyKind::SabtPublished => {
                let (shares, orders) = self.round_in_packets(&flows, &claims);
                return Round { shares, orders: self.orders.changed(orders), asked, soon: false };
            }
            PolicyKind::AbtPublished => self.rounds.round(demands),
            PolicyKind::Abt | PolicyKind::Fit => {
                Share::Level(level_of(&with_room_to_grow(&flows, &demands, now), shared))
            }
            PolicyKind::Kernel
            | PolicyKind::Fixed(_)
            | PolicyKind::Drs
            | PolicyKind::DrsFtp
            | PolicyKind::Sobas
            | PolicyKind::SobasPublished => Share::Unlimited,
        };
        let level = Shares::from(share).level.map(|level| level.max(FLOOR));
        let bounds_newcomers = level.is_some() && !self.policy.is_published();
        let shares = Shares {
            level,
            newcomer: if bounds_newcomers { self.newcomer(all, &flows, left, now) } else { None },
            newest_at: newest_that_has_begun(all),
            window: None,
            pressure: self.is_pressed(held),
        };
        Round { shares, orders: Vec::new(), asked: Asked { level, ..asked }, soon: false }
    }

    /// Returns whether the connection has a demand: it has neither stalled nor is it at rest.
    fn is_live(&self, flow: &FlowState, now: Micros) -> bool {
        !self.stalled.contains_key(&flow.cookie) && !rests(flow, now)
    }

    /// Returns the memory that is shared out among the connections that may still send, beside the memory `taken`.
    fn left(&self, taken: Bytes) -> Bytes {
        (self.shared() - taken).max(self.budget.scaled(LEFT.0, LEFT.1))
    }

    /// Returns the memory that closing connections still hold; zero under the papers' rules, which do not consider it.
    fn closing(&self, all: &[FlowState]) -> Bytes {
        if self.policy.is_published() {
            return Bytes::ZERO;
        }
        let is_closing = |flow: &&FlowState| !flow.may_send && !flow.closed && !flow.owned.send;
        all.iter().filter(is_closing).map(|flow| flow.sample.send_queued).sum()
    }

    /// Returns the memory that stalled senders hold.
    fn held_by_stalled(&self, all: &[FlowState]) -> Bytes {
        let stalls = |flow: &&FlowState| self.stalled.contains_key(&flow.cookie);
        all.iter().filter(stalls).map(|flow| flow.sample.send_queued).sum()
    }

    /// Returns the bound of newcomers beside the connections with a demand, `flows`; `None`: that of the others. Beside few
    /// connections it is the part of one more. Beside many it would last too long; but if most have stalled, as in an outage,
    /// it is an equal part, because all of them may begin anew at the same time.
    fn newcomer(&self, all: &[FlowState], flows: &[&FlowState], left: Left, now: Micros) -> Option<Bytes> {
        // Senders that begin anew hold memory already.
        let shared = left.with_stalled;
        if all.len() <= FEW {
            return Some(part_of_one_more(flows, self.may_begin(all, now), shared));
        }
        let (live, stalled) = (flows.len() as u64, self.stalled.len() as u64);
        (stalled > live).then(|| shared.scaled(1, live + stalled).max(FLOOR))
    }

    /// Counts the connections without a demand that will begin with a newcomer's bound: those that have not begun for a
    /// second or more, those at rest, and stalled senders.
    fn may_begin(&self, all: &[FlowState], now: Micros) -> u64 {
        let waits = |flow: &FlowState| !has_begun(flow) && !is_about_to_begin(flow, now);
        let counts = |flow: &&FlowState| is_ours(flow) && (waits(flow) || !self.is_live(flow, now));
        all.iter().filter(counts).count() as u64
    }

    /// Returns the sum of the demands and of the memory `taken`, and the memory shared out; all zero if the policy has no
    /// shares.
    fn asked(&self, demands: &[Bytes], taken: Bytes) -> Asked {
        if !has_shares(self.policy) {
            return Asked::default();
        }
        let (connections, shared) = ((demands.len() + self.stalled.len()) as u64, self.shared());
        let demand = demands.iter().copied().sum::<Bytes>() + taken;
        Asked { connections, demand, shared, ..Asked::default() }
    }

    /// Computes a round of SABT. Each connection has its own bound. Newcomers, connections that have not outgrown a small
    /// document, and connections that are at rest or have stalled have the part of one more sender. Where memory is tight,
    /// all senders have the same bound. Returns shares and orders, and whether the next sample needs a round.
    fn proportional_round(
        &self,
        all: &[FlowState],
        flows: &[&FlowState],
        claims: &[Claim],
        demands: &[Bytes],
        left: Left,
        now: Micros,
    ) -> (Shares, Vec<(u64, Order)>, bool) {
        let (shared, growing) = (left.shared, self.budget.scaled(GROWING.0, GROWING.1));
        let senders = |flow: &&FlowState| is_ours(flow) && self.is_live(flow, now);
        let senders: Vec<&FlowState> = all.iter().filter(senders).collect();
        let (mut orders, soon): (Vec<(u64, Order)>, bool) = if is_tight(&senders, shared) {
            let order = all_alike(level_for_all(&senders, shared, now).max(FLOOR));
            (flows.iter().map(|flow| (flow.cookie, order)).collect(), false)
        } else {
            let (limits, soon) = proportional_with_growth(demands, shared, growing);
            let of_each = flows.iter().zip(claims).zip(limits);
            (of_each.map(|((flow, claim), limit)| (flow.cookie, claim.order(limit))).collect(), soon)
        };
        let of_one_more = || part_of_one_more(&senders, 0, shared);
        let level = self.newcomer(all, &senders, left, now).unwrap_or_else(of_one_more);
        // With its last order, a connection without a demand would begin with memory that other connections now have.
        let was_ordered =
            |flow: &&FlowState| is_ours(flow) && !self.is_live(flow, now) && self.orders.has(flow.cookie);
        let may_begin = all.iter().filter(was_ordered);
        orders.extend(may_begin.map(|flow| (flow.cookie, all_alike(level))));
        let soon = soon || orders.len() > flows.len();
        (Shares { level: Some(level), ..Shares::default() }, orders, soon)
    }

    /// Computes a round of SABT as published: in whole packets, and of the mean window without room for its swings. A
    /// newcomer has an equal part until the next round.
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

    fn claim(&self, flow: &FlowState, now: Micros) -> Claim {
        let model = self.models.get(&flow.cookie);
        let modelled = model.filter(|model| model.is_modelled()).and_then(Policy::demand);
        let demand = match self.policy {
            PolicyKind::AbtPublished => flow.net_target,
            _ => model.and_then(Policy::demand).unwrap_or_else(|| by_window(flow, now)),
        };
        Claim { demand: demand.times(OVERHEAD), modelled: modelled.unwrap_or_default() }
    }
}

impl Claim {
    /// Returns the order. Until the first loss its demand is zero: the programs in the kernel then follow cwnd once per round
    /// trip, faster than orders could. After the first loss the demand includes room for swings, as far as there is memory.
    fn order(self, limit: Bytes) -> Order {
        Order { demand: self.modelled.scaled(SWING.0, SWING.1), limit: Some(limit.max(FLOOR)) }
    }
}

/// Returns the order for a connection that has the same bound as others, and follows its own congestion window.
fn all_alike(limit: Bytes) -> Order {
    Order { demand: Bytes::ZERO, limit: Some(limit) }
}

/// Returns whether bufwise sizes the connection, and it has outgrown a small document.
fn takes_part(flow: &FlowState, small_document: Bytes) -> bool {
    is_ours(flow) && flow.sample.bytes_acked >= small_document
}

/// Returns whether the connection is at rest as a sender.
fn rests(flow: &FlowState, now: Micros) -> bool {
    flow.sample.send_queued == Bytes::ZERO && is_silent(flow, now)
}

/// Returns whether the connection has moved no data for [`LATELY`].
pub(super) fn is_silent(flow: &FlowState, now: Micros) -> bool {
    now.since(flow.moved_at()) >= LATELY
}

/// Returns whether the connection has begun to send: ABT has a target once there was data for a round trip.
fn has_begun(flow: &FlowState) -> bool {
    flow.net_target > Bytes::ZERO || flow.sample.send_queued > Bytes::ZERO
}

/// Returns whether the connection has just opened, and has not begun.
fn is_about_to_begin(flow: &FlowState, now: Micros) -> bool {
    !has_begun(flow) && now.since(flow.opened_at) < ABOUT_TO_BEGIN
}

/// Returns when the newest connection that has begun to send began. All newer connections, and those that begin anew after
/// a rest, have a newcomer's bound.
fn newest_that_has_begun(flows: &[FlowState]) -> Micros {
    flows.iter().filter(|flow| has_begun(flow)).map(|flow| flow.began_at).max().unwrap_or_default()
}

/// Returns whether the application may still send, and bufwise sizes the buffer.
fn is_ours(flow: &FlowState) -> bool {
    flow.may_send && !flow.owned.send
}

/// Returns SABT's model of a connection. A round trip with losses counts as one loss, as in the throughput equation: if
/// each lost segment counted (Matsuo), one overshoot of slow start would reduce the demand for the whole minute of the
/// loss window.
fn model() -> sabt::Config {
    sabt::Config { losses: sabt::LossCount::Events, ..sabt::Config::default() }
}

/// Returns whether there is less memory for each busy connection than a newcomer needs. Proportional parts cannot be kept
/// then: windows have a few segments and swing by more than their mean within a round, and a writer fills one buffer,
/// however small its part is.
fn is_tight(flows: &[&FlowState], budget: Bytes) -> bool {
    budget.scaled(1, busy(flows).max(1) as u64) < NEWCOMER
}

/// Returns the bound of one more connection beside `others`, of the memory `shared`. `waiting` further connections without
/// a demand have the same bound, and may all begin at the same time.
fn part_of_one_more(others: &[&FlowState], waiting: u64, shared: Bytes) -> Bytes {
    let least = if busy(others) == 0 && waiting == 0 { AT_ONCE } else { BESIDE_BUSY };
    let part = shared.scaled(1, least.max(others.len() as u64 + 1));
    let together = shared.scaled(1, least * (waiting + 1));
    part.min(together.max(LEAST)).max(FLOOR)
}

/// Counts the connections that have something queued.
fn busy(flows: &[&FlowState]) -> usize {
    flows.iter().filter(|flow| flow.sample.send_queued > Bytes::ZERO).count()
}

/// Returns one bound for all connections, computed as for ABT; the programs in the kernel then follow the windows, too.
/// SABT's demand would be a mean window of a few segments, and the connection would need the memory that it left to others
/// again a moment later. Connections that have not outgrown a small document count as well: they hold an initial window.
fn level_for_all(flows: &[&FlowState], budget: Bytes, now: Micros) -> Bytes {
    let demands: Vec<Bytes> = flows.iter().map(|flow| by_window(flow, now).times(OVERHEAD)).collect();
    level_of(&with_room_to_grow(flows, &demands, now), budget)
}

/// Returns the bound for each of these senders: at least an equal part, to which all of them may grow at the same time.
fn level_of(demands: &[Bytes], budget: Bytes) -> Bytes {
    let level = Shares::from(max_min_with_newcomers(demands, budget)).level.unwrap_or(budget);
    if demands.is_empty() { level } else { level.max(budget.scaled(1, demands.len() as u64)) }
}

/// Returns proportional limits. Each connection gets its part of `shared`, and those whose demand is met also get room to
/// grow. All room together is what the demands leave of `shared`, but at least `growing`. It is divided in proportion to
/// what each needs to grow by [`GROWTH`]; a remainder is divided equally. The limits sum to at most `shared + growing`,
/// unless `shared` is less than [`FLOOR`] for each. Also returns whether a limit is less than the connection's
/// proportional bound, so that further rounds have to raise it.
fn proportional_with_growth(demands: &[Bytes], shared: Bytes, growing: Bytes) -> (Vec<Bytes>, bool) {
    // Each is granted the floor.
    let demands: Vec<Bytes> = demands.iter().map(|demand| (*demand).max(FLOOR)).collect();
    let share = share::proportional(&demands, shared);
    let parts: Vec<Bytes> = demands.iter().map(|demand| share.of(*demand)).collect();
    let free = (shared - parts.iter().copied().sum::<Bytes>()).max(growing);
    let room = |(part, demand): (&Bytes, &Bytes)| {
        if part == demand { (*demand).max(NEWCOMER).times(GROWTH) - *demand } else { Bytes::ZERO }
    };
    let rooms: Vec<Bytes> = parts.iter().zip(&demands).map(room).collect();
    let met = rooms.iter().filter(|room| **room > Bytes::ZERO).count() as u64;
    let growth = share::proportional(&rooms, free);
    let left = (free - rooms.iter().copied().sum::<Bytes>()).scaled(1, met);
    let limit = |(part, room): (&Bytes, &Bytes)| {
        if *room > Bytes::ZERO { *part + growth.of(*room) + left } else { *part }
    };
    let limits: Vec<Bytes> = parts.iter().zip(&rooms).map(limit).collect();
    let has_less = |(limit, demand): (&Bytes, &Bytes)| share.limit(*demand).is_some_and(|most| *limit < most);
    let soon = limits.iter().zip(&demands).any(has_less);
    (limits, soon)
}

/// Returns the max-min share. If the budget suffices for all demands, the level reduces none of them, but keeps their
/// growth within the budget.
fn max_min_with_growth(demands: &[Bytes], budget: Bytes) -> Share {
    let present = share::max_min(demands, budget);
    let Share::Unlimited = present else { return present };
    let mut grown: Vec<Bytes> = demands.iter().map(|demand| (*demand).max(NEWCOMER).times(GROWTH)).collect();
    match share::max_min_in_place(&mut grown, budget) {
        Share::Level(level) => Share::Level(level.max(demands.iter().copied().max().unwrap_or_default())),
        unlimited => unlimited,
    }
}

/// Returns the demand that each connection may reach until the next round. A busy connection, whose demand may be small
/// just after a loss, grows again. A connection with an empty queue leaves its part to the others, unless it is about to
/// begin.
fn with_room_to_grow(flows: &[&FlowState], demands: &[Bytes], now: Micros) -> Vec<Bytes> {
    let grown = |(flow, demand): (&&FlowState, &Bytes)| match flow.sample.send_queued {
        Bytes::ZERO if is_about_to_begin(flow, now) => (*demand).max(NEWCOMER),
        Bytes::ZERO => *demand,
        _ => demand.times(GROWTH),
    };
    flows.iter().zip(demands).map(grown).collect()
}

/// Returns ABT's demand of a connection, from its congestion window, in payload bytes.
fn by_window(flow: &FlowState, now: Micros) -> Bytes {
    flow.net_target.min(used(flow, now))
}

/// Returns the payload that a connection can use until the next round, estimated from the data delivered in a round trip.
/// The congestion window alone is not enough: a sender that is limited by its buffer keeps a window that it no longer
/// fills, and would claim memory for ever.
fn used(flow: &FlowState, now: Micros) -> Bytes {
    let (rate, rtt) = (flow.sample.delivery_rate, flow.sample.srtt);
    if rate == Rate::ZERO || rtt == Micros::ZERO {
        return Bytes::MAX;
    }
    let is_modest = flow.sample.send_queued == Bytes::ZERO && now.since(flow.opened_at) >= LATELY;
    rate.over(rtt).times(GROWTH).max(if is_modest { MODEST } else { NEWCOMER })
}

/// As [`max_min_with_growth`], but always returns a bound for newcomers, even if the only connections are idle.
pub(super) fn max_min_with_newcomers(demands: &[Bytes], budget: Bytes) -> Share {
    let share = max_min_with_growth(demands, budget);
    let Share::Unlimited = share else { return share };
    let largest = demands.iter().copied().max().unwrap_or_default();
    Share::Level(largest.times(GROWTH).max(budget.scaled(1, AT_ONCE)))
}

/// Returns whether the policy shares the budget out.
fn has_shares(policy: PolicyKind) -> bool {
    !matches!(
        policy,
        PolicyKind::Kernel
            | PolicyKind::Fixed(_)
            | PolicyKind::Drs
            | PolicyKind::DrsFtp
            | PolicyKind::Sobas
            | PolicyKind::SobasPublished
    )
}

/// Returns whether buffers shrink by what is acknowledged while the queues hold more than the budget (Semke 1998, section 2.2.3).
/// Matsuo has no such rule, and sizes without shares never shrink.
pub(crate) fn shrinks(policy: PolicyKind) -> bool {
    has_shares(policy) && policy != PolicyKind::SabtPublished
}

#[cfg(test)]
mod plain;
#[cfg(test)]
pub(super) mod tests;
