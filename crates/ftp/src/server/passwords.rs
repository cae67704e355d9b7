//! Checks passwords against their hashes, within bounded memory.
//!
//! Problem: argon2 (RFC 9106) fills as much memory as the hash says, 19 MiB by default, before any login. After the
//! first such block is freed, glibc's heap keeps later ones, for each of its arenas and in pieces: hundreds of logins
//! left gigabytes behind.
//! Rules: few hashes are computed at once, in buffers that one login passes to the next; the last login frees them. A
//! buffer's capacity is above glibc's limit for heap allocations, so its pages return to the system when it is freed.
//! Properties kept: the memory is at most that of [`CONCURRENT`] hashes, and none while no login runs; every wait is
//! bounded, and the queue, too.

use std::sync::PoisonError;
use std::time::Instant;

use argon2::password_hash::phc::{Output, PasswordHash};
use argon2::{Algorithm, Argon2, Block, Params, Version};

use super::limits::locked;
use super::sync::{Condvar, Mutex};

/// Passwords checked at once: each takes a processor.
const CONCURRENT: usize = 2;
/// Logins that may wait for their turn: together some seconds of work.
const MAX_WAITING: usize = 512;
/// Least capacity of a buffer. glibc maps an allocation above 32 MiB (`DEFAULT_MMAP_THRESHOLD_MAX`) for itself; pages that
/// are not used cost nothing.
const MAPPED_BLOCKS: usize = (33 << 20) / Block::SIZE;

/// Too many logins wait for their passwords to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords wait to be checked")]
pub struct TooManyLogins;

/// Checks passwords, few at a time.
pub(super) struct Checker {
    state: Mutex<State>,
    left: Condvar,
}

struct State {
    working: usize,
    waiting: usize,
    /// Buffers of finished logins, for the next ones.
    spare: Vec<Vec<Block>>,
}

impl Checker {
    pub(super) const fn new() -> Self {
        let state = State { working: 0, waiting: 0, spare: Vec::new() };
        Self { state: Mutex::new(state), left: Condvar::new() }
    }

    /// Whether `hash` belongs to `password`; waits for its turn until `latest`.
    pub(super) fn verify(&self, password: &[u8], hash: &str, latest: Instant) -> Result<bool, TooManyLogins> {
        let mut memory = self.enter(latest)?;
        let right = is_right(password, hash, &mut memory).unwrap_or(false);
        self.leave(memory);
        Ok(right)
    }

    fn enter(&self, latest: Instant) -> Result<Vec<Block>, TooManyLogins> {
        let mut state = locked(&self.state);
        if state.waiting >= MAX_WAITING {
            return Err(TooManyLogins);
        }
        state.waiting += 1;
        let wait = latest.saturating_duration_since(Instant::now());
        let (mut state, waited) = self
            .left
            .wait_timeout_while(state, wait, |state| state.working >= CONCURRENT)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        if waited.timed_out() {
            return Err(TooManyLogins);
        }
        state.working += 1;
        Ok(state.spare.pop().unwrap_or_default())
    }

    fn leave(&self, memory: Vec<Block>) {
        let mut state = locked(&self.state);
        state.working -= 1;
        state.spare.push(memory);
        if state.working + state.waiting == 0 {
            state.spare.clear();
        }
        self.left.notify_one();
    }
}

/// Whether `password` has this hash; `None` for a hash that cannot be computed.
fn is_right(password: &[u8], hash: &str, memory: &mut Vec<Block>) -> Option<bool> {
    let hash = PasswordHash::new(hash).ok()?;
    let (salt, expected) = (hash.salt.as_ref()?, hash.hash.as_ref()?);
    let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
    let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
    let params = Params::try_from(&hash).ok()?;
    let blocks = params.block_count();
    memory.reserve_exact(blocks.max(MAPPED_BLOCKS).saturating_sub(memory.len()));
    memory.resize(blocks, Block::default());
    let mut computed = [0; Output::MAX_LENGTH];
    let computed = computed.get_mut(..expected.len())?;
    let argon2 = Argon2::new(algorithm, version, params);
    argon2.hash_password_into_with_memory(password, salt, computed, memory.as_mut_slice()).ok()?;
    // Outputs are compared in constant time.
    Some(Output::new(computed).ok()? == *expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use argon2::PasswordHasher;
    use std::time::Duration;

    /// A hash with these costs, as the library makes it.
    fn hash(memory_kib: u32, passes: u32, lanes: u32) -> String {
        let params = Params::new(memory_kib, passes, lanes, None).unwrap();
        let hash: PasswordHash =
            Argon2::from(params).hash_password_with_salt(b"secret", b"some salt").unwrap();
        hash.to_string()
    }

    #[test]
    fn hashes_of_all_costs_share_a_buffer() {
        let mut memory = Vec::new();
        for (memory_kib, passes, lanes) in [(64, 1, 1), (8, 3, 1), (256, 2, 4), (64, 1, 1)] {
            let hash = hash(memory_kib, passes, lanes);
            assert_eq!(is_right(b"secret", &hash, &mut memory), Some(true), "{hash}");
            assert_eq!(is_right(b"Secret", &hash, &mut memory), Some(false), "{hash}");
            assert!(memory.capacity() >= MAPPED_BLOCKS);
        }
        assert_eq!(is_right(b"secret", "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ", &mut memory), None);
    }

    #[test]
    fn a_turn_that_does_not_come_in_time_is_refused_and_the_last_one_frees_the_memory() {
        let checker = Checker::new();
        let now = Instant::now();
        let turns: Vec<Vec<Block>> = (0..CONCURRENT).map(|_| checker.enter(now).unwrap()).collect();
        assert_eq!(checker.verify(b"secret", "", now + Duration::from_millis(1)), Err(TooManyLogins));
        turns.into_iter().for_each(|turn| checker.leave(turn));
        assert_eq!(checker.verify(b"secret", &hash(8, 1, 1), now), Ok(true), "no wait");
        let state = locked(&checker.state);
        assert_eq!((state.working, state.waiting, state.spare.len()), (0, 0, 0));
    }

    #[test]
    fn the_queue_has_an_end() {
        let checker = Checker::new();
        locked(&checker.state).waiting = MAX_WAITING;
        assert_eq!(checker.verify(b"secret", "", Instant::now()), Err(TooManyLogins));
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::server::sync::{ORDERS, threads};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn shuttle_every_login_has_its_turn_few_at_a_time_and_the_memory_goes() {
        // Waits have no time-out here: a lost wake-up becomes a deadlock, which shuttle reports.
        let body = || {
            let checker = Arc::new(Checker::new());
            let shared = Arc::clone(&checker);
            threads(5, move |_| {
                let memory = shared.enter(Instant::now() + Duration::from_secs(3_600)).unwrap();
                assert!(locked(&shared.state).working <= CONCURRENT);
                shared.leave(memory);
            });
            let state = locked(&checker.state);
            assert_eq!((state.working, state.waiting, state.spare.len()), (0, 0, 0));
        };
        shuttle::check_pct(body, ORDERS, 3);
        shuttle::check_random(body, ORDERS);
    }
}
