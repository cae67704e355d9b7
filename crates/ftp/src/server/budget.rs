//! Buffers of transfers, bounded together: the receive buffers of uploads, the send buffers of downloads.
//!
//! Problem: a buffer is memory that a client can make this host hold. Each buffer is bounded by its policy or by the
//! kernel's `tcp_rmem` and `tcp_wmem`; the sum over many transfers is not.
//! Terms: all sizes are memory, as the kernel counts it. A transfer *requests* a buffer, and gets a *grant*. It *holds*
//! its grant or its present memory, whichever is more: the latter is a receive buffer, which shrinks only when the
//! offered window has been used up, or the content of a send buffer. Its *part* is the bound divided by the number of
//! transfers, for the host or for its user, whichever is less. A transfer is *short* if its grant is less than its
//! request, and less than its part.
//! Rules: a request is granted as far as the others leave memory; while one transfer is short, no other is granted
//! more than its part. Each transfer asks again every few milliseconds (a sender ten times a second), a stalled one
//! every few seconds, so short transfers are served soon.
//! Properties kept: the sum of what is held stays within the bounds, except for [`Share::LEAST`] of each transfer,
//! which is never denied; a transfer that asks again after all others did gets its part, if they could shrink their
//! buffers; memory that no other transfer requests is available; every grant is given back at the end.

use std::collections::HashMap;
use std::sync::Arc;

use bufwise_mover::Share;
use bufwise_units::Bytes;

use super::limits::locked;
use super::sync::Mutex;

/// Bytes that each transfer is granted in any case.
const LEAST: u64 = Share::LEAST.0;
/// Stands for "no bound": more memory than any host has, yet sums of many such bounds do not overflow.
const ENDLESS: Bytes = Bytes(1 << 60);

/// Most memory that the receive buffers of uploads may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCaps {
    /// Bound for the buffers of one user name together.
    pub user: Bytes,
    /// Bound for all buffers together.
    pub host: Bytes,
}

impl Default for ReceiveCaps {
    /// Returns bounds for as many transfers as [`super::BufferCaps`] has: a window of 16 MiB takes at least twice as
    /// much memory. With the kernel's usual maximum of 6 MiB, about twenty uploads of a user, and eighty in all, stay
    /// unbounded.
    fn default() -> Self {
        Self { user: Bytes(128 << 20), host: Bytes(512 << 20) }
    }
}

/// The memory of all transfers that run one way.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    user: Bytes,
    host: Bytes,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    host: Pool,
    users: HashMap<String, Pool>,
}

/// Memory held by some of the transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pool {
    transfers: u64,
    bytes: u64,
    short: u64,
}

/// One transfer's buffer.
#[derive(Debug)]
pub(super) struct BudgetGrant {
    budget: Budget,
    user: String,
    /// Memory held by this transfer.
    bytes: u64,
    short: bool,
}

impl Budget {
    /// Makes a budget with these bounds for each user name, and for all together.
    pub(super) fn new(user: Bytes, host: Bytes) -> Self {
        Self { user: user.min(ENDLESS), host: host.min(ENDLESS), held: Arc::default() }
    }

    /// Opens an empty grant for a transfer of `user`.
    pub(super) fn open(&self, user: &str) -> BudgetGrant {
        let mut held = locked(&self.held);
        held.pools(user).into_iter().for_each(|pool| pool.transfers += 1);
        BudgetGrant { budget: self.clone(), user: user.to_owned(), bytes: 0, short: false }
    }
}

impl Held {
    /// Returns the pool of the host, and that of `user`.
    fn pools(&mut self, user: &str) -> [&mut Pool; 2] {
        [&mut self.host, self.users.entry(user.to_owned()).or_default()]
    }
}

impl BudgetGrant {
    /// Grants memory, which replaces the previous grant; `buffer` is the memory that the transfer has now.
    pub(super) fn ask(&mut self, wanted: Bytes, buffer: Bytes) -> Bytes {
        let (user, host) = (self.budget.user, self.budget.host);
        let mut held = locked(&self.budget.held);
        let mut pools = held.pools(&self.user);
        for pool in &mut pools {
            pool.bytes -= self.bytes;
            pool.short -= u64::from(self.short);
        }
        let least = |of: fn(&Pool, u64) -> u64| of(pools[0], host.0).min(of(pools[1], user.0));
        let left = least(|pool, cap| cap.saturating_sub(pool.bytes));
        let part = least(|pool, cap| cap / pool.transfers.max(1));
        let others_are_short = pools.iter().any(|pool| pool.short > 0);
        let most = if others_are_short { left.min(part) } else { left };
        let granted = wanted.0.min(most.max(LEAST));
        self.bytes = granted.max(buffer.0);
        self.short = granted < wanted.0.min(part);
        for pool in &mut pools {
            pool.bytes += self.bytes;
            pool.short += u64::from(self.short);
        }
        Bytes(granted)
    }
}

impl Drop for BudgetGrant {
    fn drop(&mut self) {
        let mut held = locked(&self.budget.held);
        for pool in held.pools(&self.user) {
            pool.transfers -= 1;
            pool.bytes -= self.bytes;
            pool.short -= u64::from(self.short);
        }
        held.users.retain(|_, pool| pool.transfers > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn budget(user: u64, host: u64) -> Budget {
        Budget::new(Bytes(user * MIB), Bytes(host * MIB))
    }

    fn held(budget: &Budget) -> u64 {
        locked(&budget.held).host.bytes
    }

    /// Asks with a small buffer, in MiB.
    fn ask(grant: &mut BudgetGrant, wanted: u64) -> Bytes {
        grant.ask(Bytes(wanted * MIB), Bytes::ZERO)
    }

    #[test]
    fn what_nobody_else_wants_can_be_had_and_comes_back() {
        let budget = budget(16, 32);
        let (mut one, mut other) = (budget.open("a"), budget.open("b"));
        assert_eq!(ask(&mut one, 4), Bytes(4 * MIB));
        assert_eq!(ask(&mut one, 100), Bytes(16 * MIB), "the user's");
        assert_eq!(ask(&mut other, 100), Bytes(16 * MIB), "the host's");
        drop(one);
        assert_eq!(held(&budget), 16 * MIB);
        drop(other);
        assert_eq!(*locked(&budget.held), Held::default());
    }

    #[test]
    fn who_comes_late_has_its_part_once_the_others_have_asked_again() {
        let budget = budget(16, 32);
        let [mut greedy, mut modest, mut late] = [(); 3].map(|()| budget.open("a"));
        assert_eq!(ask(&mut modest, 1), Bytes(MIB));
        assert_eq!(ask(&mut greedy, 100), Bytes(15 * MIB));
        assert_eq!(ask(&mut late, 8), Bytes(LEAST), "never nothing");
        assert_eq!(ask(&mut greedy, 100), Bytes(16 * MIB / 3));
        assert_eq!(ask(&mut modest, 1), Bytes(MIB), "it wants less than its part");
        assert_eq!(ask(&mut late, 8), Bytes(8 * MIB), "more than its part is left");
        assert_eq!(ask(&mut greedy, 100), Bytes(7 * MIB), "no transfer is short any more");
    }

    #[test]
    fn a_buffer_is_held_until_it_has_become_smaller() {
        let budget = budget(16, 32);
        let [mut first, mut late] = [(); 2].map(|()| budget.open("a"));
        assert_eq!(ask(&mut first, 100), Bytes(16 * MIB));
        assert_eq!(ask(&mut late, 100), Bytes(LEAST));
        let buffer = Bytes(12 * MIB);
        assert_eq!(first.ask(Bytes(100 * MIB), buffer), Bytes(8 * MIB), "its part");
        assert_eq!(ask(&mut late, 100), Bytes(4 * MIB), "what is left beside the buffer");
        assert_eq!(ask(&mut first, 100), Bytes(8 * MIB));
        assert_eq!(ask(&mut late, 100), Bytes(8 * MIB));
        assert_eq!(held(&budget), 16 * MIB);
    }

    #[test]
    fn a_full_user_takes_nothing_from_others() {
        let budget = budget(4, 32);
        let mut crowd: Vec<BudgetGrant> = (0..3).map(|_| budget.open("a")).collect();
        let mut other = budget.open("b");
        let mut asked = || crowd.iter_mut().map(|grant| ask(grant, 100).0).sum::<u64>();
        for _ in 0..3 {
            asked();
        }
        assert!(asked() <= 4 * MIB);
        assert_eq!(ask(&mut other, 3), Bytes(3 * MIB));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open(usize),
        /// The upload, the memory it wants, how many hundredths of what it holds are still a buffer.
        Ask(usize, u64, u64),
        Drop(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0_usize..3).prop_map(Step::Open),
            6 => (any::<usize>(), 0..40 * MIB, 0_u64..=100).prop_map(|(at, want, part)| Step::Ask(at, want, part)),
            1 => any::<usize>().prop_map(Step::Drop),
        ]
    }

    proptest! {
        #[test]
        fn what_is_held_stays_within_the_bounds_but_for_the_least_of_each(
            steps in proptest::collection::vec(step(), 0..200)
        ) {
            let budget = budget(8, 20);
            let mut grants: Vec<(BudgetGrant, Bytes)> = Vec::new();
            for step in steps {
                match step {
                    Step::Open(user) => grants.push((budget.open(["a", "b", "c"][user]), Bytes::ZERO)),
                    Step::Ask(at, wanted, percent) if !grants.is_empty() => {
                        let at = at % grants.len();
                        let (grant, before) = (&mut grants[at].0, held(&budget));
                        let buffer = Bytes(grant.bytes / 100 * percent);
                        let others = before - grant.bytes;
                        let of_user = locked(&budget.held).users[&grant.user].bytes - grant.bytes;
                        let now = grant.ask(Bytes(wanted), buffer).0;
                        prop_assert!(now <= wanted && now >= wanted.min(LEAST));
                        prop_assert!(grant.bytes >= now.max(buffer.0));
                        // It grows only within the bounds.
                        prop_assert!(now <= LEAST || others + now <= 20 * MIB);
                        prop_assert!(now <= LEAST || of_user + now <= 8 * MIB);
                        grants[at].1 = Bytes(wanted);
                    }
                    Step::Drop(at) if !grants.is_empty() => drop(grants.swap_remove(at % grants.len())),
                    _ => {}
                }
                let uploads = grants.len() as u64;
                prop_assert!(held(&budget) <= 20 * MIB + uploads * LEAST);
            }
            // Everybody goes on asking for the same: the bounds hold, and each has what it wants or its part.
            let mut granted = Vec::new();
            for _ in 0..grants.len() + 2 {
                granted = grants.iter_mut().map(|(grant, wanted)| grant.ask(*wanted, Bytes::ZERO).0).collect();
            }
            let count = |name: &str| grants.iter().filter(|(grant, _)| grant.user == name).count() as u64;
            for user in ["a", "b", "c"] {
                let mine: u64 = grants.iter().filter(|(g, _)| g.user == user).map(|(g, _)| g.bytes).sum();
                prop_assert!(mine <= (8 * MIB).max(count(user) * LEAST));
            }
            prop_assert!(held(&budget) <= (20 * MIB).max(grants.len() as u64 * LEAST));
            for ((grant, wanted), granted) in grants.iter().zip(granted) {
                let part = (8 * MIB / count(&grant.user)).min(20 * MIB / grants.len() as u64);
                prop_assert!(granted >= wanted.0.min(part));
            }
            drop(grants);
            prop_assert_eq!(&*locked(&budget.held), &Held::default());
        }
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::server::sync::{ORDERS, threads};

    #[test]
    fn shuttle_buffers_stay_within_the_bound_and_come_back() {
        let body = || {
            let budget = Budget::new(Bytes(2 << 20), Bytes(4 << 20));
            let shared = budget.clone();
            threads(3, move |number| {
                let mut grant = shared.open(["a", "b"][usize::from(number % 2)]);
                for wanted in [1, 8, 2] {
                    let granted = grant.ask(Bytes(wanted << 20), Bytes::ZERO);
                    assert!((LEAST..=2 << 20).contains(&granted.0));
                    assert!(locked(&shared.held).host.bytes <= (4 << 20) + 3 * LEAST);
                }
            });
            assert_eq!(*locked(&budget.held), Held::default());
        };
        shuttle::check_random(body, ORDERS);
    }
}
