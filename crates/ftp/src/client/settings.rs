//! Settings of transfers, shared by all files of a command.

use std::time::Duration;

use bufwise_mover::probe::Prober;
use bufwise_mover::{Bounds, Cancel, Job, Sockets, Tuner};
use bufwise_policy::{BuildOptions, PolicyKind};
use bufwise_units::{Bytes, Rate};

/// Settings of transfers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The rule that sizes buffers.
    pub policy: PolicyKind,
    /// Continue what an earlier attempt left.
    pub resume: bool,
    /// Compare checksums after the transfer.
    pub checksum: bool,
    /// Upload under the final name at once.
    pub in_place: bool,
    /// Longest time without a byte moving.
    pub idle: Duration,
    /// Fewest bytes per second, as the mean over `idle`; half of `limit` at most.
    pub lowest: Option<Rate>,
    /// Most bytes per second, of one transfer.
    pub limit: Option<Rate>,
    /// How often to try again after a failure that may pass.
    pub retries: u32,
    /// Wait before the second attempt; each next one is twice as long, up to 30 s.
    pub retry_wait: Duration,
    /// Largest send buffer that a server's request can set, bytes.
    pub send_cap: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Kernel,
            resume: false,
            checksum: false,
            in_place: false,
            idle: Duration::from_secs(60),
            lowest: None,
            limit: None,
            retries: 3,
            retry_wait: Duration::from_secs(1),
            send_cap: Bytes(64 << 20),
        }
    }
}

impl Settings {
    /// Gives each of `transfers` at a time its part of both rates.
    pub fn share_rates(&mut self, transfers: u64) {
        for rate in [&mut self.lowest, &mut self.limit] {
            *rate = rate.map(|rate| rate.scaled(1, transfers));
        }
    }

    /// Returns the options with which data connections are opened.
    pub(super) fn sockets(&self) -> Sockets {
        Sockets::for_policy(self.policy)
    }

    /// Returns the tuner that sizes the receive window of one transfer.
    pub(super) fn tuner(&self, prober: Option<Prober>) -> Tuner {
        let options = BuildOptions { pacing: prober.is_some(), continuous: true, ..BuildOptions::default() };
        Tuner::new(self.policy, options, prober)
    }

    pub(super) fn job(&self, cancel: &Cancel) -> Job {
        Job { bounds: self.bounds(), limit: self.limit, cancel: cancel.clone(), ..Job::default() }
    }

    /// Returns how long the server may keep this end waiting, and how slow it may be.
    pub(super) fn bounds(&self) -> Bounds {
        let most = self.limit.map_or(Rate::MAX, |limit| limit.scaled(1, 2));
        Bounds { idle: self.idle, deadline: None, lowest: self.lowest.map(|lowest| lowest.min(most)) }
    }

    /// Whether the path is probed beside the transfer.
    pub(super) fn probes(&self) -> bool {
        self.policy.probes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_transfers_at_a_time_share_both_rates() {
        let rates = |limit| Settings { lowest: Some(Rate(300)), limit, ..Settings::default() };
        for (limit, part) in [(Some(Rate(1_000)), Some(Rate(250))), (None, None)] {
            let mut settings = rates(limit);
            settings.share_rates(4);
            assert_eq!((settings.limit, settings.bounds().lowest), (part, Some(Rate(75))));
        }
    }
}
