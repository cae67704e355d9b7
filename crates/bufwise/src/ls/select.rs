//! Selects and sorts the connections of a list.

use std::cmp::Ordering;

use bufwise_host::address::Pattern;
use bufwise_host::judge::Cause;
use bufwise_host::view::{ConnectionView, Listing, Summary};
use clap::ValueEnum;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use super::subject::Subject;

/// The figure that a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Present rate
    Rate,
    /// Round-trip time
    Rtt,
    /// Round-trip time beyond its smallest
    RttOverBase,
    /// Memory that both queues hold
    Memory,
    /// Memory that the limits allow beyond need
    Waste,
    /// Name of the limit
    Limit,
    /// Name of the program
    Process,
    /// Address of the peer
    Peer,
}

impl Order {
    pub(crate) fn sort(self, all: &mut [ConnectionView]) {
        all.sort_by(|a, b| self.compare(a, b));
    }

    /// Returns the order of groups, which have no round trip and no limit: they are sorted by rate then.
    pub(crate) fn of_groups(self) -> Self {
        match self {
            Self::Rtt | Self::RttOverBase | Self::Limit => Self::Rate,
            Self::Rate | Self::Memory | Self::Waste | Self::Process | Self::Peer => self,
        }
    }

    /// Compares two connections; equal ones are compared by rate.
    pub(crate) fn compare(self, a: &ConnectionView, b: &ConnectionView) -> Ordering {
        let held = |one: &ConnectionView| one.send_queued_bytes + one.receive_queued_bytes;
        let beyond = |one: &ConnectionView| beyond_base(one).unwrap_or(0.0);
        // Connections without a cause, or without a known process, come last.
        let limit = |one: &ConnectionView| (one.limited_by.is_none(), one.limited_by.map(Cause::as_str));
        let unnamed = |one: &ConnectionView| one.process.is_none();
        let order = match self {
            Self::Rate => Ordering::Equal,
            Self::Rtt => b.srtt_s.unwrap_or(0.0).total_cmp(&a.srtt_s.unwrap_or(0.0)),
            Self::RttOverBase => beyond(b).total_cmp(&beyond(a)),
            Self::Memory => held(b).cmp(&held(a)),
            Self::Waste => b.waste_bytes.cmp(&a.waste_bytes),
            Self::Limit => limit(a).cmp(&limit(b)),
            Self::Process => unnamed(a).cmp(&unnamed(b)).then_with(|| a.process.cmp(&b.process)),
            Self::Peer => a.peer.cmp(&b.peer),
        };
        order.then_with(|| (b.goodput_bps, b.bytes()).cmp(&(a.goodput_bps, a.bytes())))
    }
}

/// Whether a connection matches: by address or port, network of the peer, program, limit, cgroup (or a cgroup above its own),
/// container, pod or Kubernetes' namespace, or daemon's group. An empty filter matches every connection.
pub(crate) fn matches(one: &ConnectionView, filter: &str) -> bool {
    let by_subject = || Subject::read(filter).is_some_and(|subject| subject.has(one));
    let by_program = || one.process.as_ref().is_some_and(|name| name.contains(filter));
    let by_limit = || one.limited_by.is_some() && one.limited_by == limit(&filter.replace(' ', "-"));
    let by_container = || one.container.as_ref().is_some_and(|container| container.matches(filter));
    let by_group = || one.group.as_deref() == Some(filter);
    filter.is_empty() || by_program() || by_limit() || by_container() || by_group() || by_subject()
}

/// Whether a word is certainly a filter: the name of a limit, an address or a port.
pub(super) fn is_filter(word: &str) -> bool {
    limit(word).is_some() || word.parse::<Pattern>().is_ok()
}

/// Returns the limit with this name in JSON.
fn limit(name: &str) -> Option<Cause> {
    let name: StrDeserializer<Error> = name.into_deserializer();
    Cause::deserialize(name).ok()
}

/// Returns by how many seconds the round trip exceeds its minimum.
pub(crate) fn beyond_base(one: &ConnectionView) -> Option<f64> {
    Some((one.srtt_s? - one.min_rtt_s?).max(0.0))
}

/// Whether a connection is worth a line: it is not within this host, and moves, holds or wastes something.
pub(crate) fn is_notable(one: &ConnectionView) -> bool {
    let busy = one.goodput_bps.is_some_and(|rate| rate > 0);
    let waiting = one.send_queued_bytes > 0 || one.receive_queued_bytes > 0;
    !one.peer.ip().is_loopback() && (busy || waiting || one.waste_bytes > 0)
}

/// Returns the connections that a filter leaves, with their sums.
pub(crate) fn filtered(mut listing: Listing, filter: &str) -> Listing {
    listing.connections.retain(|one| matches(one, filter));
    listing.summary = sums_of(listing.summary, &listing.connections);
    listing
}

/// Returns the sums of some of the connections; the daemon's totals stay those of `whole`.
pub(crate) fn sums_of<'a>(whole: Summary, some: impl IntoIterator<Item = &'a ConnectionView>) -> Summary {
    let Summary { budget_bytes, pressure, sized_connections, .. } = whole;
    Summary { budget_bytes, pressure, sized_connections, ..Summary::of(some) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::connection_view;
    use super::*;
    use bufwise_host::containers::Container;

    #[test]
    fn a_filter_is_an_address_a_program_a_limit_a_prefix_or_a_cgroup() {
        let cgroup = Some("/system.slice/rsync.service".to_owned());
        let one = ConnectionView { cgroup, group: Some("backup".to_owned()), ..connection_view() };
        assert!(matches(&one, "backup") && !matches(&one, "back"));
        for filter in ["198.18.0.2", "443", "198.18.0.1:40000", "rsync", "sync", "application"] {
            assert!(matches(&one, filter), "{filter}");
        }
        for filter in ["/", "/system.slice", "/system.slice/", "/system.slice/rsync.service"] {
            assert!(matches(&one, filter), "{filter}");
            assert!(matches(&one, &format!("/sys/fs/cgroup{filter}")), "{filter}");
        }
        assert!(!matches(&connection_view(), "/"), "its cgroup is not known");
        let unknown = ConnectionView { process: None, ..connection_view() };
        assert!(matches(&unknown, "") && !matches(&unknown, "rsync"), "no filter leaves nothing out");
        let name = |name: &str| Some(name.to_owned());
        let (namespace, pod, container) = (name("shop"), name("web-7d9f"), name("nginx"));
        let container = Container { namespace, pod, container, id: "a".repeat(64), ..Container::default() };
        let inside = ConnectionView { container: Some(Box::new(container)), ..one.clone() };
        for filter in ["shop", "shop/web-7d9f/nginx", "/system.slice", "aaaaaaaaaaaa"] {
            assert!(matches(&inside, filter), "{filter}");
        }
        assert!(!matches(&inside, "web-7d9f") && !matches(&one, "shop"));
        for filter in ["/system", "/system.slice/rsync", "/user.slice"] {
            assert!(!matches(&one, filter), "{filter}");
        }
        for filter in ["198.18.0.3", "80", "curl", "send buffer", "send-buffer"] {
            assert!(!matches(&one, filter), "{filter}");
        }
    }

    #[test]
    fn a_network_has_any_length_and_any_spelling() {
        for filter in ["198.18.0.0/24", "198.18.0.0/15", "198.18.0.2/32", "0.0.0.0/0"] {
            assert!(matches(&connection_view(), filter), "{filter}");
        }
        for filter in ["198.18.1.0/24", "198.18.0.128/25", "198.18.0.0/33", "::/0"] {
            assert!(!matches(&connection_view(), filter), "{filter}");
        }
        let peer = "[2001:db8:1:2::3]:443".parse().unwrap();
        let one = ConnectionView { peer, ..connection_view() };
        for filter in ["2001:db8:1::/48", "2001:DB8:1::/48", "2001:0db8:0001:0:0:0:0:0/48", "2000::/3"] {
            assert!(matches(&one, filter), "{filter}");
        }
        for filter in ["2001:db8:2::/48", "2001:db8:1::/64", "2001:db8:1::", "2001:db8:1::/"] {
            assert!(!matches(&one, filter), "{filter}");
        }
    }

    #[test]
    fn a_filter_has_a_limits_name_as_json_has_it() {
        for cause in Cause::ALL {
            let one = ConnectionView { limited_by: Some(cause), ..connection_view() };
            let name = serde_json::to_value(cause).unwrap();
            let name = name.as_str().unwrap();
            assert!(matches(&one, name) && matches(&one, &name.replace('-', " ")), "{name}");
            assert_eq!(limit(name), Some(cause), "{name}");
            let others = Cause::ALL.into_iter().filter(|other| *other != cause);
            for other in others.map(|other| ConnectionView { limited_by: Some(other), ..connection_view() }) {
                assert!(!matches(&other, name), "{name}");
            }
        }
    }

    #[test]
    fn the_largest_comes_first_and_names_in_their_order() {
        let one = |process: &str, goodput: u64, queued: u64, srtt_s: f64| ConnectionView {
            process: Some(process.to_owned()),
            goodput_bps: Some(goodput),
            send_queued_bytes: queued,
            waste_bytes: 100 - queued,
            srtt_s: Some(srtt_s),
            ..connection_view()
        };
        let all = [one("b", 1, 30, 0.2), one("a", 2, 20, 0.1), one("c", 3, 10, 0.3)];
        for (order, names) in [
            (Order::Rate, "cab"),
            (Order::Rtt, "cba"),
            (Order::RttOverBase, "cba"),
            (Order::Limit, "cab"),
            (Order::Memory, "bac"),
            (Order::Waste, "cab"),
            (Order::Process, "abc"),
            (Order::Peer, "cab"),
        ] {
            let mut sorted = all.clone();
            order.sort(&mut sorted);
            let found: String = sorted.iter().filter_map(|one| one.process.clone()).collect();
            assert_eq!(found, names, "{order:?}");
        }
        let mut sorted = [ConnectionView { process: None, ..connection_view() }, connection_view()];
        Order::Process.sort(&mut sorted);
        assert!(sorted[1].process.is_none(), "what has no known process comes last");
    }
}
