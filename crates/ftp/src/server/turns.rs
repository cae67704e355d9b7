//! Turns for computing sums (HASH).
//!
//! Problem: a sum takes a processor in proportion to the file's length, many minutes for a terabyte, and a file with
//! holes can have any length. Sums of such files in all places would keep other users from sums of small files.
//! Terms: a *party* is a user name at one origin, so that anonymous users of different origins are different parties.
//! Rules: a turn covers some bytes, after which the sum queues again. Few turns run at once, at most one of each party;
//! the next turn goes to the party that has waited longest since its last.
//! Properties kept: the number of processors in use is bounded for any number of sums; one party takes at most one turn
//! at a time, however many sums it requests; the queue is bounded.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bufwise_mover::Cancel;
use bufwise_mover::wake::Bell;

use super::limits::{locked, origin};
use super::sync::{Mutex, wait_for};

/// Queued sums, for each sum that may be computed at once.
const WAITING: usize = 128;
/// A wait beyond every other event; it starts again if it ends.
const LONG: Duration = Duration::from_secs(3_600);

/// A user name at one origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Party {
    user: String,
    origin: IpAddr,
}

impl Party {
    pub(super) fn new(user: &str, address: IpAddr) -> Self {
        Self { user: user.to_owned(), origin: origin(address) }
    }
}

impl fmt::Display for Party {
    /// Writes a text that no other party has: names of users have no spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.user, self.origin)
    }
}

/// All turns; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Turns that may run at once.
    most: usize,
    line: Arc<Mutex<Line>>,
}

#[derive(Debug, Default)]
struct Line {
    working: Vec<Party>,
    waiting: Vec<(Party, Arc<Bell>)>,
    /// Turns that have ended.
    count: u64,
    /// For each party in the queue or at work: the count of ended turns when its last turn ended, or when it came.
    last: HashMap<Party, u64>,
}

/// A turn; given back when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    party: Party,
    turns: Turns,
}

impl Turns {
    pub(super) fn new(most: usize) -> Self {
        Self { most, line: Arc::default() }
    }

    /// Whether the queue is full.
    pub(super) fn are_full(&self) -> bool {
        locked(&self.line).waiting.len() >= self.most * WAITING
    }

    /// Waits for a turn of `party`; `None` once cancelled.
    pub(super) fn take(&self, party: &Party, cancel: &Cancel) -> io::Result<Option<Turn>> {
        let bell = Arc::new(Bell::new()?);
        locked(&self.line).join(party, &bell, self.most);
        let deadline = || Instant::now() + LONG;
        let mut ended = Ok(false);
        while matches!(ended, Ok(false)) && !cancel.is_cancelled() {
            ended = wait_for(&bell, cancel, deadline());
        }
        let turn =
            locked(&self.line).leave_line(&bell).then(|| Turn { party: party.clone(), turns: self.clone() });
        ended.map(|_| turn.filter(|_| !cancel.is_cancelled()))
    }
}

impl Line {
    fn join(&mut self, party: &Party, bell: &Arc<Bell>, most: usize) {
        self.last.entry(party.clone()).or_insert(self.count);
        self.waiting.push((party.clone(), Arc::clone(bell)));
        self.call(most);
    }

    /// Gives free turns to the next parties.
    fn call(&mut self, most: usize) {
        while self.working.len() < most {
            let free =
                self.waiting.iter().enumerate().filter(|(_, (party, _))| !self.working.contains(party));
            let Some((at, _)) = free.min_by_key(|(_, (party, _))| self.last.get(party)) else { return };
            let (party, bell) = self.waiting.remove(at);
            self.working.push(party);
            bell.ring();
        }
    }

    /// Whether the sum with this `bell` has got its turn; if not, removes it from the queue.
    fn leave_line(&mut self, bell: &Arc<Bell>) -> bool {
        let waiting = self.waiting.iter().position(|(_, other)| Arc::ptr_eq(other, bell));
        if let Some(at) = waiting {
            let (party, _) = self.waiting.remove(at);
            self.forget(&party);
        }
        waiting.is_none()
    }

    fn end(&mut self, party: &Party, most: usize) {
        if let Some(at) = self.working.iter().position(|other| other == party) {
            self.working.swap_remove(at);
        }
        self.count += 1;
        self.last.insert(party.clone(), self.count);
        self.call(most);
        self.forget(party);
    }

    fn forget(&mut self, party: &Party) {
        if !self.working.contains(party) && self.waiting.iter().all(|(other, _)| other != party) {
            self.last.remove(party);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        locked(&self.turns.line).end(&self.party, self.turns.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(user: &str) -> Party {
        Party::new(user, [198, 18, 0, 1].into())
    }

    /// A line, and those in it by their bells.
    struct Waiting(Line, Vec<(&'static str, Arc<Bell>)>);

    impl Waiting {
        fn join(&mut self, user: &'static str) {
            let bell = Arc::new(Bell::new().unwrap());
            self.0.join(&party(user), &bell, 2);
            self.1.push((user, bell));
        }

        fn working(&self) -> Vec<&str> {
            self.0.working.iter().map(|party| party.user.as_str()).collect()
        }
    }

    #[test]
    fn one_party_leaves_the_others_all_turns_but_one_and_they_take_turns() {
        let mut line = Waiting(Line::default(), Vec::new());
        for user in ["greedy", "greedy", "greedy", "a", "b"] {
            line.join(user);
        }
        assert_eq!(line.working(), ["greedy", "a"]);
        let mut turns = Vec::new();
        for user in ["a", "b", "greedy", "a", "greedy", "b"] {
            line.0.end(&party(user), 2);
            line.join(user);
            turns.push(line.working().join(" "));
        }
        assert_eq!(turns, ["greedy b", "greedy a", "a b", "b greedy", "b a", "a greedy"]);
    }

    #[test]
    fn cancelled_in_line_or_called_the_line_goes_on() {
        let turns = Turns::new(1);
        let first = turns.take(&party("a"), &Cancel::default()).unwrap().unwrap();
        let cancel = Cancel::new().unwrap();
        cancel.cancel();
        assert!(turns.take(&party("b"), &cancel).unwrap().is_none());
        drop(first);
        assert!(turns.take(&party("b"), &cancel).unwrap().is_none(), "called, and cancelled");
        let again = turns.take(&party("b"), &Cancel::default()).unwrap();
        assert!(again.is_some() && !turns.are_full());
        drop(again);
        let line = locked(&turns.line);
        assert_eq!((line.working.len(), line.waiting.len(), line.last.len()), (0, 0, 0));
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::server::sync::{ORDERS, threads};

    #[test]
    fn shuttle_turns_are_few_one_of_a_party_and_all_have_theirs_but_the_cancelled() {
        let body = || {
            let turns = Turns::new(2);
            let cancels: Vec<Cancel> = (0..4).map(|_| Cancel::new().unwrap()).collect();
            let (shared, ends) = (turns.clone(), cancels[0].clone());
            threads(5, move |number| {
                let number = usize::from(number);
                // The last one ends the first, whose client has hung up: in line, called, or at work.
                let Some(cancel) = cancels.get(number) else { return ends.cancel() };
                let party = Party::new(["a", "a", "b", "c"][number], [198, 18, 0, 1].into());
                let turn = shared.take(&party, cancel).unwrap();
                assert!(turn.is_some() || number == 0, "a turn was lost");
                let working = locked(&shared.line).working.clone();
                let own = working.iter().filter(|other| **other == party).count();
                assert!(working.len() <= 2 && own <= 1, "{working:?}");
                assert!(turn.is_none() || own == 1, "the turn is another's, too");
            });
            let line = locked(&turns.line);
            assert_eq!((line.working.len(), line.waiting.len(), line.last.len()), (0, 0, 0));
        };
        shuttle::check_pct(body, ORDERS, 3);
        shuttle::check_random(body, ORDERS);
    }
}
