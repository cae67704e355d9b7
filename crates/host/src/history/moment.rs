//! Makes a moment of a sample of all connections. Pure: the names of processes and cgroups are passed in.

use std::cmp::Reverse;
use std::collections::HashMap;

use bufwise_bpf::FlowState;
use bufwise_socket::diag::Connection;
use bufwise_socket::info::TcpInfo;
use bufwise_socket::limit::SocketSample;
use bufwise_units::{Bytes, Micros};

use super::sums::{Figures, Groups, Sum};
use super::{BY_MEMORY, BY_RATE, INTERVAL, Kept, MAX_CGROUPS, MAX_PREFIXES, Moment};
use crate::address::Prefix;
use crate::judge::{Direction, Queue, cause};
use crate::processes::Process;
use crate::tcp_memory::TcpMemory;
use crate::view::{ConnectionView, Seen, Sized, retransmitted};

/// The connections of one network namespace.
#[derive(Debug)]
pub(crate) struct Place {
    /// The namespace's name, or its inode.
    pub(crate) netns: String,
    /// Time of the list, on the clock of [`bufwise_bpf::now`].
    pub(crate) at: Micros,
    pub(crate) connections: Vec<Connection>,
}

/// The previous sample: some 350 bytes per connection.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// Time of the sample; `None`: there was none.
    at: Option<Micros>,
    samples: HashMap<u64, SocketSample>,
}

impl Before {
    /// Keeps a sample that began at that time.
    pub(crate) fn new(at: Micros, places: &[Place]) -> Self {
        let all = places.iter().flat_map(|place| {
            place
                .connections
                .iter()
                .map(|connection| (connection.cookie, SocketSample::of(connection, place.at)))
        });
        Self { at: Some(at), samples: all.collect() }
    }
}

/// Names that a sample does not contain.
pub(crate) trait Names {
    /// Returns the process that holds a socket, if known.
    fn process(&mut self, connection: &Connection) -> Option<Process>;

    /// Returns the name of the cgroup with this number, as [`crate::cgroups::Cgroups::name`].
    fn cgroup(&mut self, number: u64) -> Option<String>;
}

/// The inputs of a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    /// Time of the moment, in seconds since 1970.
    pub(crate) time_s: u64,
    /// Start of the sample, on the clock of [`bufwise_bpf::now`].
    pub(crate) at: Micros,
    pub(crate) places: &'a [Place],
    pub(crate) before: &'a Before,
    /// Connections that the daemon sizes.
    pub(crate) sized: &'a Sized,
    pub(crate) budget: Bytes,
    /// The kernel's memory for TCP, if it can be read.
    pub(crate) memory: Option<TcpMemory>,
}

/// A connection and its figures.
struct One<'a> {
    place: &'a Place,
    connection: &'a Connection,
    figures: Figures,
}

impl Scene<'_> {
    /// Returns the moment; `None` for the first sample, which has no rates and no causes.
    pub(crate) fn moment(&self, names: &mut impl Names) -> Option<Moment> {
        let interval = self.at.since(self.before.at?);
        let (mut total, mut prefixes, mut cgroups) = (Sum::default(), Groups::default(), Groups::default());
        let mut all = Vec::new();
        for place in self.places {
            for connection in &place.connections {
                let figures = self.figures(place, connection);
                total.add(&figures);
                prefixes.add(Prefix::of(connection.peer.ip()), &figures);
                if connection.cgroup != 0 {
                    cgroups.add(connection.cgroup, &figures);
                }
                all.push(One { place, connection, figures });
            }
        }
        let largest = largest(all);
        let memory_short =
            self.memory.is_some_and(|memory| largest.iter().any(|one| memory.shrinks(&one.connection.info)));
        Some(Moment {
            time_s: self.time_s,
            interval_s: interval.as_secs_f64(),
            budget_bytes: self.budget.0,
            memory_short,
            total: total.named(String::new()),
            connections: largest.iter().map(|one| self.kept(one, names)).collect(),
            prefixes: prefixes.largest(MAX_PREFIXES, |prefix| prefix.to_string()),
            cgroups: cgroups.largest(MAX_CGROUPS, |number| names.cgroup(number).unwrap_or_default()),
        })
    }

    /// Returns the connection's previous sample; for a younger connection its birth, if the daemon has seen it. An older one
    /// without a sample was missed, because its namespace could not be listed: its whole life does not tell its present rate.
    fn previous(&self, connection: &Connection) -> Option<SocketSample> {
        let born = || {
            // The namespace of a new connection may be found after a sample.
            let earliest = self.before.at? - INTERVAL;
            let is_young = |flow: &FlowState| !flow.origin.adopted && flow.opened_at >= earliest;
            let (_, flow) = self.sized.get(connection.cookie).filter(|(_, flow)| is_young(flow))?;
            let info = TcpInfo {
                bytes_acked: flow.origin.acked.0,
                bytes_received: flow.origin.received.0,
                ..TcpInfo::default()
            };
            Some(SocketSample { at: flow.opened_at, info, ..SocketSample::default() })
        };
        self.before.samples.get(&connection.cookie).copied().or_else(born)
    }

    fn figures(&self, place: &Place, connection: &Connection) -> Figures {
        let now = SocketSample::of(connection, place.at);
        let mem = connection.mem;
        let figures = Figures {
            held: u64::from(mem.wmem_queued) + u64::from(mem.rmem_alloc),
            allowed: u64::from(mem.sndbuf) + u64::from(mem.rcvbuf),
            ..Figures::default()
        };
        let Some(previous) = self.previous(connection) else { return figures };
        let elapsed = u128::from(now.at.since(previous.at).0.max(1));
        let rate = |direction: Direction| {
            let bits = u128::from(direction.moved(&previous, &now)) * 8_000_000 / elapsed;
            u64::try_from(bits).unwrap_or(u64::MAX)
        };
        let (send_bps, receive_bps) = (rate(Direction::Send), rate(Direction::Receive));
        let direction = Direction::between(Some(&previous), &now);
        let round_trip = match direction {
            Direction::Send => connection.info.srtt(),
            Direction::Receive => connection.info.rcv_rtt().or_else(|| connection.info.srtt()),
        };
        let has_moved = send_bps > 0 || receive_bps > 0;
        Figures {
            send_bps,
            receive_bps,
            retransmitted: retransmitted(&now.info).saturating_sub(retransmitted(&previous.info)),
            round_trip: round_trip
                .zip(connection.info.min_rtt())
                .filter(|_| has_moved)
                .map(|(now, least)| (now.0, least.0)),
            cause: Some(cause(direction, &previous, &now)),
            ..figures
        }
    }

    fn kept(&self, One { place, connection, figures }: &One<'_>, names: &mut impl Names) -> Kept {
        let (previous, now) = (self.previous(connection), SocketSample::of(connection, place.at));
        let process = names.process(connection);
        let cgroup = names.cgroup(connection.cgroup);
        let view = ConnectionView::new(&Seen {
            netns: &place.netns,
            cgroup: cgroup.as_deref(),
            process: process.as_ref(),
            connection,
            at: place.at,
            previous: previous.as_ref(),
            period: None,
        });
        let view = self.sized.complete(view, place.at);
        let mut queue = Queue::default();
        if let Some(previous) = &previous {
            queue.add(view.direction, previous, &now);
        }
        Kept { view, queueing_delay_s: queue.delay_s(), retransmitted: figures.retransmitted }
    }
}

/// Returns the largest connections by rate, then the others by memory held; in both, connections of the host to
/// itself rank last.
fn largest(all: Vec<One<'_>>) -> Vec<One<'_>> {
    let is_own = |one: &One<'_>| {
        let (local, peer) = (one.connection.local.ip(), one.connection.peer.ip());
        peer.is_loopback() || peer == local
    };
    let (mut moving, resting): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.figures.rate() > 0);
    moving.sort_by_key(|one| (is_own(one), Reverse(one.figures.rate()), one.connection.cookie));
    let slower = moving.split_off(moving.len().min(BY_RATE));
    let mut holding: Vec<_> = slower.into_iter().chain(resting).filter(|one| one.figures.held > 0).collect();
    holding.sort_by_key(|one| (is_own(one), Reverse(one.figures.held), one.connection.cookie));
    moving.extend(holding.into_iter().take(BY_MEMORY));
    moving
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::unnamed;
    use crate::judge::Cause;
    use crate::tuner::tests::flow;
    use crate::view::{Part, PolicyNames};
    use bufwise_socket::diag::{CongestionControl, State};
    use bufwise_socket::info::{SkMem, TcpInfo};
    use proptest::prelude::*;
    use std::net::IpAddr;

    /// Names for tests: every socket is held by a process of its own; cgroup 7 has a name.
    struct Known;

    impl Names for Known {
        fn process(&mut self, connection: &Connection) -> Option<Process> {
            Some(Process { pid: i32::try_from(connection.inode).unwrap(), name: "rsync".to_owned() })
        }

        fn cgroup(&mut self, number: u64) -> Option<String> {
            Some(if number == 7 { "/system.slice/rsync.service".to_owned() } else { unnamed(number) })
        }
    }

    fn connection(cookie: u64, peer: &str, sent: u64) -> Connection {
        let info = TcpInfo {
            rtt: 50_000,
            min_rtt: 40_000,
            snd_mss: 1_000,
            bytes_acked: sent,
            data_segs_out: 1_000,
            ..TcpInfo::default()
        };
        Connection {
            local: "198.18.0.1:40000".parse().unwrap(),
            peer: peer.parse().unwrap(),
            state: State::Established,
            inode: 3,
            uid: 0,
            cookie,
            info,
            mem: SkMem { sndbuf: 4_000_000, rcvbuf: 131_072, ..SkMem::default() },
            congestion: CongestionControl::default(),
            cgroup: 7,
        }
    }

    /// Returns the moment of a sample ten seconds after another.
    fn moment(before: Vec<Connection>, now: Vec<Connection>, flows: Vec<FlowState>) -> Option<Moment> {
        let policy = PolicyNames { send: "abt".to_owned(), receive: "drs".to_owned() };
        let place = |seconds, connections| Place {
            netns: "blue".to_owned(),
            at: Micros::from_secs(seconds),
            connections,
        };
        let before = Before::new(Micros::from_secs(100), &[place(100, before)]);
        let scene = Scene {
            time_s: 1_000,
            at: Micros::from_secs(110),
            places: &[place(110, now)],
            before: &before,
            sized: &Sized::new(vec![(Part { group: None, policy }, flows)]),
            budget: Bytes(1 << 20),
            memory: None,
        };
        scene.moment(&mut Known)
    }

    #[test]
    fn rates_repetitions_and_causes_are_those_of_the_time_between() {
        let before = vec![connection(1, "198.18.5.2:443", 1_000_000), connection(2, "[fd00:b::2]:80", 50)];
        let mut busy = connection(1, "198.18.5.2:443", 11_000_000);
        // Busy all the time, of which 6 s without a window to send into.
        busy.info = TcpInfo { busy_time: 10_000_000, rwnd_limited: 6_000_000, ..busy.info };
        (busy.info.total_retrans, busy.info.bytes_retrans) = (5, 5_000);
        let quiet = connection(2, "[fd00:b::2]:80", 50);
        let moment = moment(before, vec![busy, quiet], Vec::new()).unwrap();
        assert_eq!((moment.time_s, moment.interval_s, moment.connections.len()), (1_000, 10.0, 1));
        let one = &moment.connections[0];
        assert_eq!((one.view.goodput_bps, one.retransmitted), (Some(8_000_000), 5));
        assert_eq!((one.view.srtt_s, one.view.min_rtt_s), (Some(0.050), Some(0.040)));
        assert_eq!((one.view.process.as_deref(), one.view.netns.as_str()), (Some("rsync"), "blue"));
        assert_eq!(one.view.cgroup.as_deref(), Some("/system.slice/rsync.service"));
        // This sample has no offered window (0), so the window counts as shut.
        let cause = Some(Cause::Reader);
        assert_eq!((one.view.limited_by, moment.total.limited_by), (cause, cause));
        assert_eq!((moment.total.connections, moment.total.send_bps), (2, 8_000_000));
        let names: Vec<_> = moment.prefixes.iter().map(|one| (one.name.as_str(), one.send_bps)).collect();
        assert_eq!(names, [("198.18.5.0/24", 8_000_000), ("fd00:b::/48", 0)]);
        assert_eq!((moment.cgroups.len(), moment.cgroups[0].connections), (1, 2));
    }

    #[test]
    fn the_first_sample_is_no_moment() {
        let scene = Scene {
            time_s: 1,
            at: Micros::from_secs(1),
            places: &[],
            before: &Before::default(),
            sized: &Sized::default(),
            budget: Bytes(1),
            memory: None,
        };
        assert_eq!(scene.moment(&mut Known), None);
    }

    #[test]
    fn a_connection_that_was_born_since_counts_from_its_birth() {
        let now = vec![connection(1, "198.18.5.2:443", 1_000_000)];
        let alien = moment(Vec::new(), now.clone(), Vec::new()).unwrap();
        assert_eq!((alien.total.send_bps, alien.connections.len()), (0, 0), "since when is not known");
        let born = FlowState { opened_at: Micros::from_secs(108), ..flow(1, 0) };
        let moment = moment(Vec::new(), now, vec![born]).unwrap();
        let view = &moment.connections[0].view;
        assert_eq!((view.goodput_bps, view.age_s), (Some(4_000_000), Some(2.0)));
        assert_eq!(view.policy.as_ref().map(|policy| policy.send.as_str()), Some("abt"));
        assert!(view.tuned.is_some() && view.limited_by.is_some());
    }

    #[test]
    fn a_connection_that_the_sample_before_has_missed_has_no_rate_of_its_whole_life() {
        let now = vec![connection(1, "198.18.5.2:443", 1_000_000_000)];
        let old = FlowState { opened_at: Micros::from_secs(50), ..flow(1, 0) };
        let total = moment(Vec::new(), now, vec![old]).unwrap().total;
        assert_eq!((total.connections, total.send_bps, total.limited_by), (1, 0, None));
    }

    #[test]
    fn what_only_holds_memory_is_kept_beside_what_moves_and_talk_to_itself_comes_last() {
        let mut stuck = connection(900, "198.18.9.9:22", 0);
        stuck.mem.wmem_queued = 300_000;
        let mut own = connection(901, "127.0.0.1:80", 900_000_000);
        let mut by_its_address = connection(902, "198.18.0.1:80", 900_000_000);
        (own.cgroup, by_its_address.cgroup) = (8, 8);
        let mut now: Vec<_> =
            (1..=60).map(|cookie| connection(cookie, "198.18.5.2:443", cookie * 1_000)).collect();
        now.extend([stuck, own, by_its_address]);
        let before = now.iter().map(|one| connection(one.cookie, "198.18.5.2:443", 0)).collect();
        let moment = moment(before, now, Vec::new()).unwrap();
        let cookies: Vec<u64> = moment.connections.iter().map(|one| one.view.cookie).collect();
        assert_eq!(cookies.len(), BY_RATE + 1);
        assert_eq!((cookies[0], cookies[BY_RATE - 1], cookies[BY_RATE]), (60, 21, 900));
        assert!(!cookies.contains(&901) && !cookies.contains(&902), "others fill the places");
        assert_eq!(moment.cgroups[0].name, "unknown (8)", "but they are in the sums");
        assert_eq!(moment.total.connections, 63);
    }

    proptest! {
        #[test]
        fn a_moment_is_bounded_and_its_groups_add_up(
            all in prop::collection::vec((any::<[u8; 4]>(), 0..100_u64, 0..1_000_000_u64, 0..1_000_u32), 0..400),
        ) {
            let connections = |scale: u64| -> Vec<Connection> {
                let one = |(cookie, (ip, cgroup, sent, queued)): (usize, &([u8; 4], u64, u64, u32))| {
                    let mut one = connection(cookie as u64, "198.18.0.2:443", sent * scale);
                    one.peer.set_ip(IpAddr::from(*ip));
                    one.cgroup = cgroup + 1;
                    one.mem.wmem_queued = *queued;
                    one
                };
                all.iter().enumerate().map(one).collect()
            };
            let moment = moment(connections(0), connections(1), Vec::new()).unwrap();
            prop_assert!(moment.connections.len() <= BY_RATE + BY_MEMORY);
            prop_assert!(moment.prefixes.len() <= MAX_PREFIXES && moment.cgroups.len() <= MAX_CGROUPS);
            for groups in [&moment.prefixes, &moment.cgroups] {
                let sum = groups.iter().map(|one| one.connections).sum::<u64>();
                prop_assert_eq!(sum, moment.total.connections);
                prop_assert_eq!(groups.iter().map(|one| one.send_bps).sum::<u64>(), moment.total.send_bps);
            }
            let fastest = all.iter().filter(|(ip, ..)| ip[0] != 127).map(|(_, _, sent, _)| *sent).max();
            if let (Some(fastest @ 10..), Some(first)) = (fastest, moment.connections.first()) {
                prop_assert_eq!(first.view.bytes_acked, fastest);
            }
        }
    }
}
