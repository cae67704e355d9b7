//! Names that only a search through everything finds: once for all that is shown at a time, and not too often.

use std::collections::{HashMap, HashSet};

use bufwise_bpf::now;
use bufwise_units::Micros;

/// Rest after a search, in times of what it took.
const REST: u64 = 100;

/// Names of type `V` by number, found in the results `S` of searches.
#[derive(Debug)]
pub(crate) struct Search<S, V> {
    /// Results of searches, by key; also of those in vain.
    known: HashMap<u64, Option<V>>,
    needed: HashSet<u64>,
    /// The result of this moment's search.
    fresh: Option<S>,
    /// The next search is not before that.
    next: Micros,
}

impl<S, V> Default for Search<S, V> {
    fn default() -> Self {
        Self { known: HashMap::new(), needed: HashSet::new(), fresh: None, next: Micros::ZERO }
    }
}

impl<S, V: Clone> Search<S, V> {
    /// The name with this number: known, or `of` the result of a `search` if one may be made in this moment.
    pub(crate) fn find(
        &mut self,
        key: u64,
        search: impl FnOnce() -> S,
        of: impl FnOnce(&S) -> Option<V>,
    ) -> Option<V> {
        self.needed.insert(key);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let began = now();
        if self.fresh.is_none() && began >= self.next {
            self.fresh = Some(search());
            self.next = began + now().since(began).times(REST);
        }
        // Not in this moment, perhaps in the next.
        let found = of(self.fresh.as_ref()?);
        self.known.insert(key, found.clone());
        found
    }

    /// A moment is over: what it did not need is forgotten.
    pub(crate) fn settle(&mut self) {
        self.known.retain(|key, _| self.needed.contains(key));
        self.needed.clear();
        self.fresh = None;
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
        assert_eq!(find(&mut names, 2), None, "it rests");
        assert_eq!(find(&mut names, 1), Some(10), "what is known needs no search");
        assert_eq!(searches, 1);
    }
}
