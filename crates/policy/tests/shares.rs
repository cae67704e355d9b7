//! Shares of a budget: worked examples, properties, and comparisons with the papers' step-by-step rules.

use bufwise_policy::share::{AbtRounds, Share, equal, in_packets, max_min, proportional};
use bufwise_units::Bytes;
use proptest::prelude::*;

fn bytes(sizes: &[u64]) -> Vec<Bytes> {
    sizes.iter().copied().map(Bytes).collect()
}

fn parts(share: Share, demands: &[Bytes]) -> Vec<u64> {
    demands.iter().map(|&demand| share.of(demand).0).collect()
}

fn sum(parts: &[u64]) -> u128 {
    parts.iter().map(|&part| u128::from(part)).sum()
}

/// Runs rounds until the share is unchanged twice in a row; returns the share and the number of rounds.
fn settled(rounds: &mut AbtRounds, demands: &[Bytes]) -> (Share, usize) {
    for round in 1..=demands.len() + 3 {
        let before = rounds.share();
        if rounds.round(demands.iter().copied()) == before && round > 1 && {
            let again = rounds.round(demands.iter().copied());
            again == before
        } {
            return (before, round);
        }
    }
    panic!("no fixed point within one round per connection and three");
}

/// Matsuo, section 2.2, literally and in floating point: each gets `B/n`, then the excess is shared by demand until
/// none is left.
fn proportional_by_rounds(demands: &[u64], budget: u64) -> Vec<f64> {
    let mut parts = vec![budget as f64 / demands.len() as f64; demands.len()];
    for _ in 0..10_000 {
        let mut excess = 0.0;
        for (part, &demand) in parts.iter_mut().zip(demands) {
            excess += (*part - demand as f64).max(0.0);
            *part = part.min(demand as f64);
        }
        let needy = |part: f64, demand: u64| part < demand as f64;
        let wanted: f64 =
            parts.iter().zip(demands).filter(|&(&p, &d)| needy(p, d)).map(|(_, &d)| d as f64).sum();
        if excess < 1e-6 || wanted == 0.0 {
            break;
        }
        for (part, &demand) in parts.iter_mut().zip(demands) {
            if needy(*part, demand) {
                *part += excess * demand as f64 / wanted;
            }
        }
    }
    parts
}

#[test]
fn matsuos_example_gives_20_140_140_and_20_116_164() {
    let demands = bytes(&[20, 200, 800]);
    assert_eq!(parts(max_min(&demands, Bytes(300)), &demands), [20, 140, 140]);
    let (share, _) = settled(&mut AbtRounds::new(Bytes(300)), &demands);
    assert_eq!(parts(share, &demands), [20, 140, 140]);
    assert_eq!(parts(proportional(&demands, Bytes(300)), &demands), [20, 116, 164]);
    assert_eq!(parts(equal(3, Bytes(300)), &demands), [100, 100, 100]);
    let kilobytes = bytes(&[20_000, 200_000, 800_000]);
    assert_eq!(parts(proportional(&kilobytes, Bytes(300_000)), &kilobytes), [20_000, 116_000, 164_000]);
}

#[test]
fn abt_s_rounds_are_those_of_the_appendix() {
    let demands = bytes(&[20, 200, 800]);
    let mut rounds = AbtRounds::new(Bytes(300));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(rounds.round(demands.iter().copied()));
    }
    // At first all count as small, and their demands exceed the budget: 300 / 3. Then only 20 is small: (300 - 20) / 2
    // for the others.
    let [first, later] = [Share::Level(Bytes(100)), Share::Level(Bytes(140))];
    assert_eq!(seen, [first, later, later, later]);
}

#[test]
fn abt_s_fair_share_has_a_limit_once_small_demands_reach_the_threshold() {
    let round = |sizes: &[u64]| AbtRounds::new(Bytes(300)).round(bytes(sizes));
    assert_eq!(round(&[100, 100, 100]), Share::Level(Bytes(100)), "M >= threshold");
    assert_eq!(round(&[100, 100, 99]), Share::Unlimited, "no connection is large");
}

#[test]
fn no_connection_has_no_limit() {
    assert_eq!(max_min(&[], Bytes(5)), Share::Unlimited);
    assert_eq!(proportional(&[], Bytes(5)), Share::Unlimited);
    assert_eq!(AbtRounds::new(Bytes(5)).round([]), Share::Unlimited);
    assert_eq!(AbtRounds::new(Bytes(0)).round([]), Share::Unlimited);
    assert_eq!(equal(0, Bytes(5)), Share::Equal(Bytes(5)));
}

#[test]
fn one_connection_gets_its_demand_or_the_budget() {
    for (demand, budget, part) in [(10, 100, 10), (100, 10, 10), (10, 10, 10)] {
        let demands = bytes(&[demand]);
        assert_eq!(parts(max_min(&demands, Bytes(budget)), &demands), [part]);
        assert_eq!(parts(proportional(&demands, Bytes(budget)), &demands), [part]);
        let (share, _) = settled(&mut AbtRounds::new(Bytes(budget)), &demands);
        assert_eq!(parts(share, &demands), [part]);
    }
}

#[test]
fn a_budget_of_nothing_gives_nothing() {
    let demands = bytes(&[0, 1, u64::MAX]);
    assert_eq!(parts(max_min(&demands, Bytes::ZERO), &demands), [0, 0, 0]);
    assert_eq!(parts(proportional(&demands, Bytes::ZERO), &demands), [0, 0, 0]);
    assert_eq!(parts(settled(&mut AbtRounds::new(Bytes::ZERO), &demands).0, &demands), [0, 0, 0]);
}

#[test]
fn equal_demands_get_equal_parts() {
    let demands = vec![Bytes(1_000); 7];
    for share in [max_min(&demands, Bytes(700)), proportional(&demands, Bytes(700)), equal(7, Bytes(700))] {
        assert_eq!(parts(share, &demands), [100; 7]);
    }
}

#[test]
fn a_million_connections_use_the_budget_up() {
    // Demands over six orders of magnitude, as in Semke 1998, unsorted.
    let demands: Vec<Bytes> = (0..1_000_000_u64).map(|i| Bytes(1_000 << (i * 7_919 % 20))).collect();
    let budget = Bytes(4 << 30);
    for share in [max_min(&demands, budget), proportional(&demands, budget)] {
        let given = sum(&parts(share, &demands));
        assert!(given <= u128::from(budget.0), "{given}");
        // Shares are whole bytes: at most one byte per connection is lost.
        assert!(given + 1_000_000 >= u128::from(budget.0), "{given}");
    }
    let mut rounds = AbtRounds::new(budget);
    for _ in 0..23 {
        rounds.round(demands.iter().copied());
    }
    assert_eq!(rounds.share(), max_min(&demands, budget));
}

#[test]
fn whole_bytes_do_not_stop_abt_s_rounds_short() {
    let demands = bytes(&[5, 5, 5, 100]);
    assert_eq!(settled(&mut AbtRounds::new(Bytes(22)), &demands).0, Share::Level(Bytes(7)));
    assert_eq!(max_min(&demands, Bytes(22)), Share::Level(Bytes(7)));
}

#[test]
fn a_share_in_packets_is_one_at_least_unless_it_is_nothing() {
    let of = |share, packet| in_packets(Bytes(share), Bytes(packet)).0;
    assert_eq!([of(116_400, 1_000), of(999, 1_000), of(0, 1_000), of(999, 0)], [116_000, 1_000, 0, 999]);
}

fn demands() -> impl Strategy<Value = Vec<u64>> {
    let demand = prop_oneof![0_u64..20, 1_000_u64..100_000_000, Just(65_536), any::<u64>()];
    proptest::collection::vec(demand, 0..60)
}

fn budget() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..100, 0_u64..4_000_000_000, any::<u64>()]
}

proptest! {
    #[test]
    fn parts_stay_within_demands_and_budget(sizes in demands(), budget in budget()) {
        let demands = bytes(&sizes);
        for share in [max_min(&demands, Bytes(budget)), proportional(&demands, Bytes(budget))] {
            let given = parts(share, &demands);
            prop_assert!(given.iter().zip(&sizes).all(|(part, demand)| part <= demand));
            prop_assert!(sum(&given) <= u128::from(budget));
            // Unless all demands are met, at most one byte per connection is left over: shares are whole bytes.
            let slack = sizes.len() as u128;
            prop_assert!(given == sizes || sum(&given) + slack >= u128::from(budget), "{:?}", given);
        }
        let fixed = parts(equal(sizes.len(), Bytes(budget)), &demands);
        prop_assert!(sum(&fixed) <= u128::from(budget));
    }

    #[test]
    fn a_demand_below_the_fair_share_is_met(sizes in demands(), budget in budget()) {
        let demands = bytes(&sizes);
        let base = budget / (sizes.len() as u64).max(1);
        for share in [max_min(&demands, Bytes(budget)), proportional(&demands, Bytes(budget))] {
            for &demand in &demands {
                let content = demand.0 <= base || matches!(share, Share::Level(level) if demand <= level);
                prop_assert!(!content || share.of(demand) == demand);
            }
        }
    }

    #[test]
    fn max_min_is_the_limit_of_abt_s_rounds(sizes in demands(), budget in budget()) {
        let demands = bytes(&sizes);
        let mut distinct = sizes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut rounds = AbtRounds::new(Bytes(budget));
        for _ in 0..distinct.len() + 2 {
            rounds.round(demands.iter().copied());
        }
        let limit = rounds.share();
        prop_assert_eq!(parts(limit, &demands), parts(max_min(&demands, Bytes(budget)), &demands));
        prop_assert_eq!(rounds.round(demands.iter().copied()), limit, "a fixed point");
    }

    #[test]
    fn abt_s_rounds_reach_it_from_any_share(sizes in demands(), budget in budget(), earlier in demands()) {
        let mut rounds = AbtRounds::new(Bytes(budget));
        rounds.round(bytes(&earlier));
        rounds.round(bytes(&earlier));
        let demands = bytes(&sizes);
        for _ in 0..sizes.len() + 4 {
            rounds.round(demands.iter().copied());
        }
        prop_assert_eq!(parts(rounds.share(), &demands), parts(max_min(&demands, Bytes(budget)), &demands));
    }

    #[test]
    fn the_order_of_connections_does_not_matter(sizes in demands(), budget in budget(), turn in any::<usize>()) {
        let mut turned = sizes.clone();
        turned.rotate_left(turn % sizes.len().max(1));
        turned.reverse();
        let (one, other) = (bytes(&sizes), bytes(&turned));
        prop_assert_eq!(max_min(&one, Bytes(budget)), max_min(&other, Bytes(budget)));
        prop_assert_eq!(proportional(&one, Bytes(budget)), proportional(&other, Bytes(budget)));
        let round = |demands: Vec<Bytes>| {
            let mut rounds = AbtRounds::new(Bytes(budget));
            rounds.round(demands.clone());
            rounds.round(demands)
        };
        prop_assert_eq!(round(one), round(other));
    }

    #[test]
    fn proportional_is_the_end_of_matsuos_rounds(
        sizes in proptest::collection::vec(1_u64..10_000_000, 1..40), budget in 1_u64..100_000_000,
    ) {
        let demands = bytes(&sizes);
        let given = parts(proportional(&demands, Bytes(budget)), &demands);
        for (part, by_rounds) in given.iter().zip(proportional_by_rounds(&sizes, budget)) {
            // Both the quotient and the product are rounded to whole bytes.
            prop_assert!((*part as f64 - by_rounds).abs() <= 2.0, "{} against {}", part, by_rounds);
        }
    }

    #[test]
    fn max_min_takes_from_the_large_only(sizes in demands(), budget in budget()) {
        // The definition: a connection that gets less than its demand gets no less than any other.
        let demands = bytes(&sizes);
        let given = parts(max_min(&demands, Bytes(budget)), &demands);
        let largest = given.iter().max().copied().unwrap_or(0);
        for (part, demand) in given.iter().zip(&sizes) {
            prop_assert!(part == demand || *part == largest);
        }
    }

    #[test]
    fn a_larger_demand_never_gets_less(sizes in demands(), budget in budget()) {
        let mut sorted = sizes;
        sorted.sort_unstable();
        let demands = bytes(&sorted);
        for share in [max_min(&demands, Bytes(budget)), proportional(&demands, Bytes(budget))] {
            prop_assert!(parts(share, &demands).is_sorted());
        }
    }
}
