//! Names that can only be found by a search through everything.
//!
//! Rule: a name is first looked up in the results of the last search. Among many connections, mostly different ones are
//! the largest in each moment, and that search has found all that existed then. If the name is not there, a new search is
//! made: at most one per moment, and after a rest.

use std::collections::{HashMap, HashSet};

use bufwise_bpf::{now, processor_time};
use bufwise_units::Micros;

/// Rest after a search, as a multiple of its processor time: half a percent of a processor.
const REST: u64 = 200;

/// Names of type `V` by number, found in the results `S` of searches.
#[derive(Debug)]
pub(crate) struct Search<S, V> {
    /// Results of searches, by key, including keys that were not found.
    known: HashMap<u64, Option<V>>,
    needed: HashSet<u64>,
    /// Result of the last search, and whether that was in this moment.
    found: Option<S>,
    is_fresh: bool,
    /// Earliest time of the next search.
    next: Micros,
}

impl<S, V> Default for Search<S, V> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            needed: HashSet::new(),
            found: None,
            is_fresh: false,
            next: Micros::ZERO,
        }
    }
}

impl<S, V: Clone> Search<S, V> {
    /// Returns the name with this number: a known one, or `of` the result of a `search`, if one is allowed in this
    /// moment.
    pub(crate) fn find(
        &mut self,
        key: u64,
        search: impl FnOnce() -> S,
        of: impl Fn(&S) -> Option<V>,
    ) -> Option<V> {
        self.needed.insert(key);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let mut name = self.found.as_ref().and_then(&of);
        let began = now();
        if name.is_none() && !self.is_fresh && began >= self.next {
            let before = processor_time();
            let found = self.found.insert(search());
            name = of(found);
            self.is_fresh = true;
            self.next = began + processor_time().since(before).times(REST);
        }
        // No search may have been allowed in this moment; one may be in the next.
        if name.is_some() || self.is_fresh {
            self.known.insert(key, name.clone());
        }
        name
    }

    /// Ends a moment: forgets names that it did not need.
    pub(crate) fn settle(&mut self) {
        self.known.retain(|key, _| self.needed.contains(key));
        self.needed.clear();
        self.is_fresh = false;
    }

    /// Forgets which keys were not found: the search has failed, and the next one may find them.
    pub(crate) fn forget_missing(&mut self) {
        self.known.retain(|_, name| name.is_some());
    }

    /// Returns how many keys are known.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    /// Allows a search now.
    #[cfg(test)]
    pub(crate) fn allow(&mut self) {
        self.next = Micros::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_serves_a_whole_moment_and_what_is_no_longer_needed_is_forgotten() {
        let mut names: Search<HashMap<u64, u32>, u32> = Search::default();
        let mut searches = 0;
        let mut find = |names: &mut Search<_, _>, key: u64| {
            let search = || {
                searches += 1;
                HashMap::from([(1, 10), (2, 20)])
            };
            names.find(key, search, |all| all.get(&key).copied())
        };
        assert_eq!([1, 2, 3, 1].map(|key| find(&mut names, key)), [Some(10), Some(20), None, Some(10)]);
        names.settle();
        assert_eq!((find(&mut names, 1), find(&mut names, 3)), (Some(10), None));
        names.settle();
        assert_eq!(names.known.len(), 2);
        names.next = Micros(u64::MAX);
        assert_eq!(find(&mut names, 2), Some(20), "the last search had found it");
        assert_eq!(find(&mut names, 4), None, "it rests");
        assert_eq!(find(&mut names, 1), Some(10), "what is known needs no search");
        names.settle();
        names.allow();
        assert_eq!([4, 5].map(|key| find(&mut names, key)), [None, None], "what is new needs one");
        assert_eq!(searches, 2);
    }
}
