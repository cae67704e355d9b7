//! Sizes connections from user space for which the kernel calls no program.
//!
//! Problem: a connection that existed before the programs gets their callbacks only if an iterator may switch them on
//! (Linux 6.12). On older kernels user space sizes it, several times a second, by the same rules (`rules.h`): socket
//! diagnostics show what the programs would have read, pidfd_getfd(2) reaches the socket, and its options set it.
//! This module needs nothing of BPF except a place for the records ([`Records`]).
//!
//! A sample here comes later than a callback would, up to 50 round trips of a short path. So settings that need no
//! sample are left to the kernel:
//! - The send buffer stays autotuned while its share does not limit it.
//! - The receive buffer only grows, except for silent connections, whose buffers are given back as in `sweep.h`.
//!
//! Cost: a pass takes some microseconds per socket of the namespace, and comes at most once per [`REST`] times the
//! processor time of the previous one: 2% of a processor.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use bufwise_socket::diag::{Connection, Diag, State, States};
use bufwise_socket::namespace;
use bufwise_socket::options::{self, BufferLock};

use crate::abi::{bw_config, bw_control, bw_flow, bw_order};
use crate::clock::{now, processor_time};
use crate::error::{EngineError, cannot};
use crate::means::Means;
use crate::owners::Owners;
use crate::reach::SocketCopy;
use crate::record;
use crate::swept::Swept;
use crate::user::sizing::{self, Reach, Sizing};

/// Least time between two passes: `PASS`, and `REST` times the processor time of the previous pass.
const PASS: Duration = Duration::from_millis(200);
const REST: u32 = 50;
/// Least time between two searches of `/proc` for a socket's process: one takes some milliseconds on a busy host.
const SEARCH: Duration = Duration::from_secs(2);

/// The storage of the records, and of the orders that give a connection its own share.
pub(crate) trait Records {
    /// Returns the record of a connection that some engine sizes.
    fn record(&self, cookie: u64) -> Option<bw_flow>;
    /// Stores a record; returns false if there is no room for another.
    fn keep(&self, cookie: u64, flow: &bw_flow) -> Result<bool, EngineError>;
    /// Returns the order for this connection alone.
    fn order(&self, cookie: u64) -> Option<bw_order>;
}

/// The connections of one network namespace as last listed, and the socket that lists them.
#[derive(Debug)]
struct Place {
    diag: Diag,
    listed: Vec<Connection>,
}

/// The connections that are sized from user space.
#[derive(Debug)]
pub(crate) struct UserSpace {
    config: bw_config,
    places: HashMap<u64, Place>,
    sized: HashMap<u64, bw_flow>,
    /// Those of them that the last pass has not met.
    missed: HashSet<u64>,
    sockets: Sockets,
    due: Instant,
}

impl UserSpace {
    pub(crate) fn new(config: bw_config) -> Self {
        // SO_SNDBUFFORCE sets any size.
        let config = bw_config { send_cap: u32::MAX, ..config };
        let (due, sockets) = (Instant::now(), Sockets::default());
        let (sized, missed) = (HashMap::new(), HashSet::new());
        Self { config, places: HashMap::new(), sized, missed, sockets, due }
    }

    /// Lists the connections of a network namespace (its inode and a descriptor): adopts those that `is_ours` selects
    /// and that have no record, and sizes those adopted before.
    pub(crate) fn adopt(
        &mut self,
        (inode, netns): (u64, BorrowedFd<'_>),
        records: &impl Records,
        all: &bw_control,
        is_ours: impl Fn(&Connection) -> bool,
    ) -> Result<Swept, EngineError> {
        if let std::collections::hash_map::Entry::Vacant(place) = self.places.entry(inode) {
            let opened = namespace::inside(netns, Diag::open).map_err(cannot("entering"))?;
            let diag = opened.map_err(|error| cannot("listing")(std::io::Error::other(error)))?;
            place.insert(Place { diag, listed: Vec::new() });
        }
        let mut swept = self.pass(inode, records, all)?;
        let listed = self.places.get(&inode).into_iter().flat_map(|place| &place.listed);
        let is_stranger = |one: &&Connection| {
            is_open(one.state) && one.inode != 0 && !self.sized.contains_key(&one.cookie) && is_ours(one)
        };
        let strangers: Vec<Connection> = listed.filter(is_stranger).copied().collect();
        for one in &strangers {
            match records.record(one.cookie) {
                // Another engine's user space had sized it.
                Some(flow) if flow.user_space != 0 => {
                    self.sized.insert(one.cookie, flow);
                    continue;
                }
                Some(_) => continue,
                None => {}
            }
            // No process holds it any more, its process may not be inspected, or the kernel does not show its locks.
            let Some(flow) = self.take(inode, one) else { continue };
            // Beyond the bound the kernel keeps the connection.
            if !records.keep(one.cookie, &flow)? {
                break;
            }
            self.sized.insert(one.cookie, flow);
            swept.adopted += 1;
            swept.seen += 1;
        }
        self.leave_empty();
        Ok(swept)
    }

    /// Sizes its connections, if that is due.
    pub(crate) fn poll(&mut self, records: &impl Records, all: &bw_control) -> Result<(), EngineError> {
        let began = Instant::now();
        if began < self.due {
            return Ok(());
        }
        let before = processor_time();
        let inodes: Vec<u64> = self.places.keys().copied().collect();
        let mut failed = None;
        for inode in inodes {
            // The other namespaces do not wait until this one succeeds.
            if let Err(error) = self.pass(inode, records, all) {
                failed = failed.or(Some(error));
            }
        }
        self.leave_empty();
        let cost = Duration::from(processor_time().since(before));
        self.due = began + PASS.max(cost * REST);
        failed.map_or(Ok(()), Err)
    }

    /// Closes the diagnostics of namespaces without a sized connection: they would keep a namespace alive, with its devices,
    /// after its last process has ended.
    fn leave_empty(&mut self) {
        let used: HashSet<u64> = self.sized.values().map(|flow| u64::from(flow.netns)).collect();
        self.places.retain(|inode, _| used.contains(inode));
    }

    /// Stops sizing a connection.
    pub(crate) fn leave(&mut self, cookie: u64) {
        self.sized.remove(&cookie);
        self.missed.remove(&cookie);
    }

    /// Lists a namespace, and sizes its connections there. Connections that are gone are marked closed.
    fn pass(&mut self, inode: u64, records: &impl Records, all: &bw_control) -> Result<Swept, EngineError> {
        let Some(place) = self.places.get_mut(&inode) else { return Ok(Swept::default()) };
        let listed = place.diag.tcp_into(States::CONNECTED, &mut place.listed);
        listed.map_err(|error| cannot("listing")(std::io::Error::other(error)))?;
        let (at, mut swept) = (now().0, Swept::default());
        let mut met = HashSet::new();
        for one in &place.listed {
            let Some(flow) = self.sized.get_mut(&one.cookie) else { continue };
            met.insert(one.cookie);
            let mut sizing = Sizing {
                config: &self.config,
                all,
                order: records.order(one.cookie),
                flow,
                one,
                socket: &mut self.sockets,
                means: Means::Force,
                sets_buffers: true,
            };
            swept.given_back += u64::from(sizing.sample(at, BufferLock::default()));
            swept.seen += 1;
            records.keep(one.cookie, flow)?;
        }
        for cookie in self.ended(inode, &met) {
            let Some(flow) = self.sized.get_mut(&cookie) else { continue };
            record::close(flow);
            // If this fails, the next pass tries again.
            records.keep(cookie, flow)?;
            self.leave(cookie);
        }
        Ok(swept)
    }

    /// Returns the connections of a namespace that two passes in a row have not met: a list of the kernel may skip one when
    /// others end meanwhile.
    fn ended(&mut self, inode: u64, met: &HashSet<u64>) -> Vec<u64> {
        self.missed.retain(|cookie| !met.contains(cookie));
        let is_gone = |cookie: &u64, flow: &bw_flow| u64::from(flow.netns) == inode && !met.contains(cookie);
        let gone = self.sized.iter().filter(|(cookie, flow)| is_gone(cookie, flow));
        let gone = gone.map(|(cookie, _)| *cookie);
        let (ended, missed): (Vec<u64>, Vec<u64>) = gone.partition(|cookie| self.missed.contains(cookie));
        self.missed.extend(missed);
        ended
    }

    /// Makes the record of a connection that was found.
    fn take(&mut self, netns: u64, one: &Connection) -> Option<bw_flow> {
        let socket = (&mut self.sockets).reach(one)?;
        let lock = options::buffer_lock(&socket).ok()?;
        Some(sizing::take(&self.config, one, netns, lock, now().0))
    }
}

/// Returns whether a process can still move data in this state.
fn is_open(state: State) -> bool {
    matches!(state, State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait)
}

/// Access to sockets of other processes.
#[derive(Debug, Default)]
struct Sockets {
    owners: Owners,
    searched: Option<Instant>,
}

impl Reach for &mut Sockets {
    type Socket = SocketCopy;

    fn reach(&mut self, one: &Connection) -> Option<SocketCopy> {
        // The application has closed the socket while data or a FIN are outstanding: a search would find no process.
        if one.inode == 0 {
            return None;
        }
        self.owners.socket(one.inode.into(), one.cookie).or_else(|| {
            if self.searched.is_some_and(|at| at.elapsed() < SEARCH) {
                return None;
            }
            self.owners = Owners::scan();
            self.searched = Some(Instant::now());
            self.owners.socket(one.inode.into(), one.cookie)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use socket2::SockRef;

    use super::*;
    use crate::config::{Config, ReceiveRule, SendRule};
    use crate::flow::FlowState;
    use crate::user::tells_locks;

    #[derive(Default)]
    struct Kept {
        flows: RefCell<HashMap<u64, bw_flow>>,
        /// How long the thread waits for each to be kept.
        waits: Duration,
        /// Whether closed ones are refused.
        refuses_ends: Cell<bool>,
    }

    impl Records for Kept {
        fn record(&self, cookie: u64) -> Option<bw_flow> {
            self.flows.borrow().get(&cookie).copied()
        }

        fn keep(&self, cookie: u64, flow: &bw_flow) -> Result<bool, EngineError> {
            std::thread::sleep(self.waits);
            if self.refuses_ends.get() && FlowState::is_over(flow) {
                return Err(EngineError::Map { operation: "writing", reason: "no memory".to_owned() });
            }
            self.flows.borrow_mut().insert(cookie, *flow);
            Ok(true)
        }

        fn order(&self, _cookie: u64) -> Option<bw_order> {
            None
        }
    }

    /// A connection that is sized; `None` skips the test.
    fn sized(kept: &Kept) -> Option<(UserSpace, TcpListener, TcpStream)> {
        if !bufwise_trial::root() {
            return None;
        }
        if !tells_locks() {
            bufwise_trial::skip("needs Linux 5.15");
            return None;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = SockRef::from(&client).cookie().unwrap();
        // Tests run beside each other in one process: these rules set nothing.
        let (send, receive) = (SendRule::Kernel, ReceiveRule::Kernel);
        let mut user_space = UserSpace::new((&Config { send, receive, ..Config::default() }).into());
        let netns = File::open("/proc/thread-self/ns/net").unwrap();
        let place = (netns.metadata().unwrap().ino(), netns.as_fd());
        let all = bw_control::default();
        let swept = user_space.adopt(place, kept, &all, |one| one.cookie == cookie).unwrap();
        assert_eq!((swept.adopted, user_space.places.len()), (1, 1));
        Some((user_space, listener, client))
    }

    #[test]
    fn root_a_pass_during_which_the_machine_stands_still_does_not_delay_the_next() {
        let kept = Kept { waits: Duration::from_millis(200), ..Kept::default() };
        let Some((mut user_space, _listener, _client)) = sized(&kept) else { return };
        user_space.due = Instant::now();
        user_space.poll(&kept, &bw_control::default()).unwrap();
        // A rest for the time that the thread waited would be ten seconds.
        let rest = user_space.due.saturating_duration_since(Instant::now());
        assert!(rest < Duration::from_secs(5), "{rest:?}");
    }

    #[test]
    fn a_connection_that_its_application_has_closed_causes_no_search() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut sockets, closed) = (Sockets::default(), Connection::of(&client, 0).unwrap());
        assert!((&mut sockets).reach(&closed).is_none());
        assert!(sockets.searched.is_none());
    }

    #[test]
    fn a_connection_that_one_list_has_skipped_has_not_ended() {
        let mut user_space = UserSpace::new((&Config::default()).into());
        user_space.sized.insert(7, bw_flow { netns: 1, ..bw_flow::default() });
        let (skipped, listed) = (HashSet::new(), HashSet::from([7]));
        let passes = [&skipped, &listed, &skipped, &skipped].map(|met| user_space.ended(1, met).len());
        assert_eq!(passes, [0, 0, 0, 1]);
        assert_eq!(user_space.ended(2, &skipped), [0_u64; 0], "of another namespace");
    }

    #[test]
    fn root_an_end_that_could_not_be_stored_is_stored_by_the_next_pass() {
        let (kept, all) = (Kept { refuses_ends: Cell::new(true), ..Kept::default() }, bw_control::default());
        let Some((mut user_space, _listener, client)) = sized(&kept) else { return };
        let cookie = SockRef::from(&client).cookie().unwrap();
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let mut poll = || {
            let began = Instant::now();
            user_space.due = began;
            let polled = user_space.poll(&kept, &all);
            assert!(user_space.due > began, "a pass that fails is not repeated at once");
            polled
        };
        // A child that another test starts meanwhile holds a copy of it for a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while poll().is_ok() {
            assert!(Instant::now() < deadline, "not within 10 s");
        }
        kept.refuses_ends.set(false);
        poll().unwrap();
        assert!(FlowState::is_over(&kept.record(cookie).unwrap()));
    }

    #[test]
    fn root_a_namespace_is_no_longer_held_once_its_last_connection_has_ended() {
        let (kept, all) = (Kept::default(), bw_control::default());
        let Some((mut user_space, _listener, client)) = sized(&kept) else { return };
        let cookie = SockRef::from(&client).cookie().unwrap();
        // It is reset, so that nothing of it stays in the kernel's table.
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        // A child that another test starts meanwhile holds a copy of it for a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !user_space.places.is_empty() && Instant::now() < deadline {
            user_space.due = Instant::now();
            user_space.poll(&kept, &all).unwrap();
        }
        assert!(FlowState::is_over(&kept.record(cookie).unwrap()));
        assert_eq!(user_space.places.len(), 0);
    }
}
