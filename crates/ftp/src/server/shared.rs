//! The state that all sessions of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bufwise_mover::wake::Bell;

use super::admission::AdmissionHandle;
use super::budget::Budget;
use super::config::{DataConfig, Limits, Times, TuningConfig};
use super::event::{Event, Observer};
use super::limits::{Attempts, Ledger, Slots};
use super::store::Store;
use super::turns::Turns;

/// The state that all sessions share.
pub(super) struct Shared {
    pub(super) config: Rules,
    pub(super) admission: AdmissionHandle,
    pub(super) store: Store,
    pub(super) attempts: Attempts,
    pub(super) ledger: Ledger,
    /// Memory for the names of directories that are being listed.
    pub(super) names: Ledger,
    pub(super) receiving: Budget,
    pub(super) sending: Budget,
    /// Turns for computing sums.
    pub(super) turns: Turns,
    /// Data threads at work.
    pub(super) busy: AtomicUsize,
    pub(super) stop: Stop,
    pub(super) slots: Slots,
    pub(super) observer: Box<Observer>,
}

/// The part of [`Config`] that does not change while the server runs.
pub(super) struct Rules {
    pub(super) data: DataConfig,
    pub(super) tuning: TuningConfig,
    pub(super) limits: Limits,
    pub(super) times: Times,
}

impl Shared {
    pub(super) fn tell(&self, event: &Event) {
        (self.observer)(event);
    }
}

/// Counts a data thread until dropped.
pub(super) struct Busy(Arc<Shared>);

impl Busy {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.busy.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends a server, from any thread; clones are the same.
#[derive(Clone, Debug)]
pub struct Stop(pub(super) Arc<Bell>);

impl Stop {
    /// Ends sessions without a transfer at once, those with a transfer within [`super::Times::grace`].
    pub fn stop(&self) {
        // The bell is never silenced, so it wakes every session.
        self.0.ring();
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.0
    }
}
