//! Shares one memory budget between connections.
//!
//! Problem: `n` connections demand `d_i` bytes each, the host has `B`. How much does each get?
//! Terms: the *share* is one rule for all connections, of constant size; [`Share::of`] applies it to each. A million
//! connections cost one pass to find the share and no memory to keep it.
//!
//! - EQ (Matsuo): `B / n` each, needed or not.
//! - Max-min (Semke 1998; exact): each connection gets `min(d_i, L)`, with the level `L` that uses up `B`.
//! - ABT (Semke 1998, appendix A): one step per round towards that level ([`AbtRounds`]).
//! - Proportional (Matsuo): `B / n` each. The part that some connections do not need goes to the others in proportion
//!   to their *demand*, repeated until no connection has more than it demands. Each round adds the same multiple of its
//!   demand to every connection still in need, so the result is `min(d_i, B/n + k * d_i)`, with one `k` for all.
//!
//! Both fixed points have the form "the smallest `m` demands are met in full", so `m` is found by halving: a selection
//! (no sort) moves the smaller half of the open demands to the front, and one sum decides on which side `m` lies. The
//! cost is `n + n/2 + n/4 + ...`, linear whatever the demands.
//!
//! Properties kept: the parts sum to no more than `B` (EQ, max-min, proportional); no part exceeds its demand (max-min,
//! proportional); a connection that demands no more than `B / n` gets all of it; the order of connections does not
//! matter. Rounding to whole bytes leaves at most one byte per connection unused (proportional: three).

use bufwise_units::Bytes;

/// A rule that gives each connection its part for its demand.
///
/// ```
/// use bufwise_policy::share;
/// use bufwise_units::Bytes;
///
/// // A megabyte for three connections: the small one gets all that it demands, the others share the rest.
/// let demands = [Bytes(200_000), Bytes(700_000), Bytes(900_000)];
/// let share = share::max_min(&demands, Bytes(1_000_000));
/// assert_eq!(demands.map(|demand| share.of(demand).0), [200_000, 400_000, 400_000]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The whole demand: the budget suffices for all.
    Unlimited,
    /// This many bytes, whatever the demand is.
    Equal(Bytes),
    /// The demand, but no more than this.
    Level(Bytes),
    /// The demand, but no more than `base + demand * excess / over`.
    Proportional {
        /// `B / n`.
        base: Bytes,
        /// The budget that remains beyond `base` for the connections in need.
        excess: Bytes,
        /// The sum of the demands of those connections; above zero.
        over: u128,
    },
}

impl Share {
    /// Returns the part of a connection that demands `demand`.
    #[must_use]
    pub fn of(self, demand: Bytes) -> Bytes {
        match self {
            Self::Equal(part) => part,
            other => other.limit(demand).map_or(demand, |limit| limit.min(demand)),
        }
    }

    /// Returns the bound to set for a connection of this demand until the next round; `None`: no bound.
    ///
    /// The bound may exceed the demand of a connection that gets all it demands: it may grow up to the bound meanwhile.
    #[must_use]
    pub fn limit(self, demand: Bytes) -> Option<Bytes> {
        match self {
            Self::Unlimited => None,
            Self::Equal(part) | Self::Level(part) => Some(part),
            Self::Proportional { base, excess, over } => {
                let more = u128::from(demand.0) * u128::from(excess.0) / over.max(1);
                Some(base + Bytes(u64::try_from(more).unwrap_or(u64::MAX)))
            }
        }
    }
}

/// Computes EQ: `budget / connections` for each.
#[must_use]
pub fn equal(connections: usize, budget: Bytes) -> Share {
    Share::Equal(Bytes(budget.0 / (connections as u64).max(1)))
}

/// Computes exact max-min fair shares by water-filling, in linear time.
#[must_use]
pub fn max_min(demands: &[Bytes], budget: Bytes) -> Share {
    // If the budget suffices there is nothing to copy.
    if total(demands) <= u128::from(budget.0) {
        return Share::Unlimited;
    }
    max_min_in_place(&mut demands.to_vec(), budget)
}

/// Computes [`max_min`] without a copy: reorders `demands`.
#[must_use]
pub fn max_min_in_place(demands: &mut [Bytes], budget: Bytes) -> Share {
    if total(demands) <= u128::from(budget.0) {
        return Share::Unlimited;
    }
    let connections = demands.len();
    // A demand is met in full if all demands up to it fit, with all larger ones held at its level.
    let met = split(demands, |demand, below, count| {
        let others = u128::from(demand.0) * (connections - count) as u128;
        below.saturating_add(others) <= u128::from(budget.0)
    });
    let left = u128::from(budget.0).saturating_sub(met.sum);
    // At least one demand is not met, because the sum exceeds the budget.
    let level = left / ((connections - met.count) as u128).max(1);
    Share::Level(Bytes(u64::try_from(level).unwrap_or(u64::MAX)))
}

/// Computes SABT's proportional shares, the fixed point of giving the excess in proportion to demand, in linear time.
///
/// ```
/// use bufwise_policy::share;
/// use bufwise_units::Bytes;
///
/// let demands = [Bytes(100_000), Bytes(500_000), Bytes(1_000_000)];
/// let share = share::proportional(&demands, Bytes(900_000));
/// // Each has 300,000; of the 200,000 that the first does not need, the others get parts as 1 to 2.
/// assert_eq!(demands.map(|demand| share.of(demand).0), [100_000, 366_666, 433_333]);
/// ```
#[must_use]
pub fn proportional(demands: &[Bytes], budget: Bytes) -> Share {
    if total(demands) <= u128::from(budget.0) {
        return Share::Unlimited;
    }
    proportional_in_place(&mut demands.to_vec(), budget)
}

/// Computes [`proportional`] without a copy: reorders `demands`.
#[must_use]
pub fn proportional_in_place(demands: &mut [Bytes], budget: Bytes) -> Share {
    let (sum, connections) = (total(demands), demands.len());
    if sum <= u128::from(budget.0) {
        return Share::Unlimited;
    }
    let base = budget.0 / (connections as u64).max(1);
    let left = |met_sum: u128, met_count: usize| {
        let rest = (connections - met_count) as u128 * u128::from(base);
        u128::from(budget.0).checked_sub(met_sum.saturating_add(rest))
    };
    // A demand d is met if all demands above it can get the same factor k = (d - base) / d.
    let met = split(demands, |demand, below, count| {
        demand.0 <= base
            || left(below, count)
                .is_some_and(|left| scaled_up(sum - below, demand.0 - base, demand.0) <= left)
    });
    let excess = left(met.sum, met.count).unwrap_or(0);
    Share::Proportional {
        base: Bytes(base),
        excess: Bytes(u64::try_from(excess).unwrap_or(u64::MAX)),
        over: (sum - met.sum).max(1),
    }
}

/// Rounds a share down to whole packets of `packet` bytes, but at least one packet unless the share is zero. SABT as
/// published counts its buffers in packets (Matsuo, equation 1 and section 3.1). If `packet` is zero (unknown), the
/// share stays as it is.
///
/// Properties kept: the result is no more than the share, unless that is below one packet.
#[must_use]
pub fn in_packets(share: Bytes, packet: Bytes) -> Bytes {
    match (share, packet) {
        (_, Bytes::ZERO) | (Bytes::ZERO, _) => share,
        _ => packet.times((share.0 / packet.0).max(1)),
    }
}

/// Returns `value * part / whole`, rounded up, for `part <= whole`; never overflows.
fn scaled_up(value: u128, part: u64, whole: u64) -> u128 {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    value / whole * part + (value % whole * part).div_ceil(whole)
}

fn total(demands: &[Bytes]) -> u128 {
    demands.iter().map(|demand| u128::from(demand.0)).sum()
}

/// The smallest demands, which are met in full: their sum and number.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    sum: u128,
    count: usize,
}

/// Finds the smallest demands for which `is_met(demand, sum, count)` holds; `sum` and `count` are over all demands up
/// to and including `demand`. Once `is_met` fails for a demand it must fail for all larger ones.
fn split(demands: &mut [Bytes], is_met: impl Fn(Bytes, u128, usize) -> bool) -> Met {
    let mut met = Met::default();
    let mut open = demands;
    while !open.is_empty() {
        let middle = open.len() / 2;
        let (_, &mut pivot, _) = open.select_nth_unstable(middle);
        let lower = Met { sum: met.sum + total(&open[..=middle]), count: met.count + middle + 1 };
        if is_met(pivot, lower.sum, lower.count) {
            met = lower;
            open = &mut open[middle + 1..];
        } else {
            open = &mut open[..middle];
        }
    }
    met
}

/// ABT's fair share, computed one round at a time (Semke 1998, appendix A).
///
/// `small` are the connections that demand less than the *previous* fair share, `M` is the sum of their demands. If
/// `M >= threshold`, each connection gets `threshold / n`. Otherwise the large ones share `threshold - M`. Without
/// large ones there is no limit.
///
/// Ours: the share is kept as a fraction. In whole bytes the rounds can stop short of max-min: with three demands of 5,
/// one of 100 and a budget of 22 bytes, 22 / 4 = 5 would never let the three count as small.
/// Properties kept: with steady demands the share reaches the max-min level within one round per distinct demand and
/// two more, and stays there.
///
/// ```
/// use bufwise_policy::share::{AbtRounds, Share};
/// use bufwise_units::Bytes;
///
/// let mut rounds = AbtRounds::new(Bytes(1_000_000));
/// let demands = [Bytes(200_000), Bytes(700_000), Bytes(900_000)];
/// assert_eq!(rounds.round(demands), Share::Level(Bytes(333_333)));
/// assert_eq!(rounds.round(demands), Share::Level(Bytes(400_000)), "the max-min level");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AbtRounds {
    threshold: Bytes,
    /// The previous fair share as a fraction; `None`: no limit.
    fair: Option<(u128, u128)>,
}

impl AbtRounds {
    /// Returns the state of a host with `threshold` bytes for send buffers (half of all network memory in Semke 1998).
    #[must_use]
    pub const fn new(threshold: Bytes) -> Self {
        Self { threshold, fair: None }
    }

    /// Runs one round over the demands of all connections in ESTABLISHED or CLOSE_WAIT; to be called twice a second.
    pub fn round(&mut self, demands: impl IntoIterator<Item = Bytes>) -> Share {
        let (mut wanted, mut small, mut large) = (0_u128, 0_u128, 0_u128);
        for demand in demands {
            if self.is_small(demand) {
                wanted += u128::from(demand.0);
                small += 1;
            } else {
                large += 1;
            }
        }
        let threshold = u128::from(self.threshold.0);
        self.fair = if small + large > 0 && wanted >= threshold {
            Some((threshold, small + large))
        } else if large > 0 {
            Some((threshold - wanted, large))
        } else {
            None
        };
        self.share()
    }

    /// Returns the fair share of the last round, in whole bytes.
    #[must_use]
    pub fn share(&self) -> Share {
        let level = |(part, of): (u128, u128)| Bytes(u64::try_from(part / of).unwrap_or(u64::MAX));
        self.fair.map_or(Share::Unlimited, |fair| Share::Level(level(fair)))
    }

    fn is_small(&self, demand: Bytes) -> bool {
        // The divisor counts connections, so the product fits.
        self.fair.is_none_or(|(part, of)| u128::from(demand.0).saturating_mul(of) < part)
    }
}
