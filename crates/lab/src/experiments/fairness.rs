//! Fairness between connections: Jain's index over the time in which all of them are present.

use std::collections::HashMap;

use bufwise_units::BitRate;

use super::ends::FIRST_PORT;
use super::model::{Case, Way};
use super::reading::{Key, all_present, key};
use crate::sampler::ConnectionSample;
use crate::spec::SharedLink;

/// Seconds after the last connection's start in which connections may become equal.
const EQUAL_AFTER: f64 = 10.0;
/// Seconds after the last connection's start in which shares of paths may settle: that takes some round trips.
const SHARED_AFTER: f64 = 2.0;

/// Returns Jain's index over the bytes that each connection moved once all have settled; connections that moved next to
/// nothing count as well.
pub(super) fn settled(case: &Case, data: &[&ConnectionSample]) -> Option<f64> {
    let moved = moved_by_all(data, EQUAL_AFTER)?;
    let mut shares: Vec<f64> = moved.into_values().map(|(_, bytes)| bytes).collect();
    let wanted = connections(case, |_| true);
    shares.resize(wanted.max(shares.len()), 0.0);
    (wanted > 1).then(|| jain_index(&shares))?
}

/// Returns, in bit/s, an equal share for one connection of the path at the link where that share is smallest.
fn equal_share(case: &Case, way: Way, path: u8) -> Option<f64> {
    let spec = way.of(case.paths.get(usize::from(path))?);
    let share = |rate: Option<BitRate>, connections: usize| Some(rate?.0 as f64 / connections as f64);
    let own = share(spec.rate, connections(case, |other| other == path));
    let passes = |other: u8, name: &str| {
        case.paths.get(usize::from(other)).is_some_and(|one| one.links.iter().any(|link| link.name == name))
    };
    let of_link =
        |link: &SharedLink| share(link.spec.rate, connections(case, |other| passes(other, &link.name)));
    spec.links.iter().filter_map(of_link).chain(own).reduce(f64::min)
}

/// Returns Jain's index over each connection's rate relative to its equal share of its path.
pub(super) fn of_shares(way: Way, case: &Case, data: &[&ConnectionSample]) -> Option<f64> {
    let share = |(sample, bytes): (&ConnectionSample, f64)| {
        let port = if way == Way::Upload { sample.peer.port() } else { sample.local.port() };
        let path = case.flows.get(usize::from(port.checked_sub(FIRST_PORT)?))?.path;
        Some(bytes / equal_share(case, way, path)?)
    };
    let mut shares: Vec<f64> =
        moved_by_all(data, SHARED_AFTER)?.into_values().map(share).collect::<Option<_>>()?;
    shares.resize(connections(case, |_| true).max(shares.len()), 0.0);
    jain_index(&shares)
}

/// Returns the number of measured connections that load the paths that `on` selects: a user's requests have no share.
fn connections(case: &Case, on: impl Fn(u8) -> bool) -> usize {
    let flows = case.flows.iter().filter(|flow| !flow.cross && flow.amount.is_load() && on(flow.path));
    flows.map(|flow| usize::from(flow.connections)).sum()
}

/// Returns a sample of each connection, with the bytes that it moved from `after` seconds after the last connection's
/// start until the first one's end.
fn moved_by_all<'a>(
    data: &[&'a ConnectionSample],
    after: f64,
) -> Option<HashMap<Key, (&'a ConnectionSample, f64)>> {
    let present = all_present(data, after)?;
    let mut moved: HashMap<Key, (&ConnectionSample, f64)> = HashMap::new();
    for sample in data.iter().filter(|sample| present.contains(&sample.t)) {
        let (first, bytes) = moved.entry(key(sample)).or_insert((sample, 0.0));
        *bytes = sample.bytes_acked.saturating_sub(first.bytes_acked) as f64;
    }
    Some(moved)
}

/// Returns Jain's index (Jain, Chiu and Hawe 1984): the square of the sum, over n times the sum of the squares.
pub(super) fn jain_index(rates: &[f64]) -> Option<f64> {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::super::model::{Amount, Flow, path};
    use super::super::reading::tests::sample;
    use super::*;
    use crate::spec::PathSpec;

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_who_takes_all() {
        assert_eq!(jain_index(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain_index(&[8.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain_index(&[0.0]), None);
    }

    /// A connection's samples once per second: own port, flow, kB/s, and the times between which it moves data.
    fn line(port: u16, flow: u16, rate: u64, from: u64, to: u64) -> impl Iterator<Item = ConnectionSample> {
        (from..=to).map(move |t| sample(t as f64, port, flow, (t + 1) * 1_000 * rate, 20))
    }

    fn in_order(mut samples: Vec<ConnectionSample>) -> Vec<ConnectionSample> {
        samples.sort_by(|one, other| one.t.total_cmp(&other.t));
        samples
    }

    fn case(flows: Vec<Flow>) -> Case {
        Case {
            name: String::new(),
            paths: vec![path(3, 40), path(6, 40)],
            flows,
            memory: None,
            quick: true,
            setup: Default::default(),
        }
    }

    #[test]
    fn shares_are_of_the_time_in_which_all_are_there_and_settled() {
        // The second connection begins at 2 s; the first one ends at 20 s.
        let samples = in_order(line(1, 0, 3, 0, 20).chain(line(2, 0, 1, 2, 30)).collect());
        let data: Vec<_> = samples.iter().collect();
        let moved = moved_by_all(&data, EQUAL_AFTER).unwrap();
        let mut bytes: Vec<f64> = moved.into_values().map(|(_, bytes)| bytes).collect();
        bytes.sort_by(f64::total_cmp);
        assert_eq!(bytes, [8_000.0, 24_000.0]);
        // The third connection is never seen.
        let three = case(vec![Flow { connections: 3, ..Flow::default() }]);
        assert_eq!(settled(&three, &data), jain_index(&[8.0, 24.0, 0.0]));
        assert_eq!(settled(&case(vec![Flow::default()]), &data[..1]), None, "not equal with itself");
        let requests = || Flow { amount: Amount::Requests(1_000, 12, 5), ..Flow::default() };
        let one = case(vec![Flow::default(), requests()]);
        let alone: Vec<_> = data.iter().copied().filter(|sample| sample.local.port() == 1).collect();
        assert_eq!(settled(&one, &alone), None, "a user's requests are no competitor");
        let three_and_a_user = case([&three.flows[..], &[requests()]].concat());
        assert_eq!(settled(&three_and_a_user, &data), settled(&three, &data));
        let early: Vec<_> = data.into_iter().filter(|sample| sample.t < 12.0).collect();
        assert_eq!(settled(&three, &early), None, "not yet settled");
    }

    #[test]
    fn a_connection_between_the_addresses_of_an_earlier_one_moves_no_less_than_nothing() {
        let samples: Vec<_> = line(1, 0, 3, 0, 15).chain([sample(16.0, 1, 0, 500, 20)]).collect();
        let moved = moved_by_all(&samples.iter().collect::<Vec<_>>(), EQUAL_AFTER).unwrap();
        assert_eq!(moved.into_values().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [0.0]);
    }

    #[test]
    fn a_share_is_of_the_connections_own_path() {
        let two = case(vec![Flow { connections: 2, ..Flow::default() }, Flow { path: 1, ..Flow::default() }]);
        let index = |rates: [u64; 3]| {
            let lines = [line(1, 0, rates[0], 0, 9), line(2, 0, rates[1], 0, 9), line(3, 1, rates[2], 0, 9)];
            let samples = in_order(lines.into_iter().flatten().collect());
            of_shares(Way::Upload, &two, &samples.iter().collect::<Vec<_>>()).unwrap()
        };
        // Two connections share 3 Mbit/s, the third has 6 alone.
        assert!((index([1, 1, 4]) - 1.0).abs() < 1e-9);
        assert!(index([2, 2, 2]) < 0.9);
        assert!(index([2, 1, 4]) < 0.99);
    }

    #[test]
    fn a_share_is_that_of_the_link_with_the_least_for_each() {
        let link = |name: &str, rate| SharedLink { name: name.to_owned(), spec: path(rate, 10) };
        let over = |links: &[SharedLink]| PathSpec { links: links.to_vec(), ..PathSpec::default() };
        let (left, right) = (link("left", 4), link("right", 9));
        let paths = vec![over(&[left.clone(), right.clone()]), over(&[left]), over(&[right])];
        let flows = (0..3).map(|path| Flow { path, ..Flow::default() }).collect();
        let case = Case { paths, ..case(flows) };
        assert_eq!(
            [0, 1, 2].map(|path| equal_share(&case, Way::Upload, path)),
            [Some(2e6), Some(2e6), Some(4.5e6)]
        );
        // The shared links are numbered after the paths' own links; this path's is the second of them.
        assert_eq!(
            [0, 2].map(|path| case.tight_link(path, Way::Upload)),
            [Some((3, BitRate(4_000_000))), Some((4, BitRate(9_000_000)))]
        );
    }
}
