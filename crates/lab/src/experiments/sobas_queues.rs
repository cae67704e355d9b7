//! Gain of SOBAS over maximum buffers, by the size of the tight link's queue: a survey over the paper's paths.
//!
//! Prasad 2004 reports the gain on each path, over Reno, but not the path's queue. A shallow queue drops what a window
//! that is too large adds; a deep one only delays it, and from one BDP on Reno's window fills the path even after it is
//! halved (Appenzeller 2004). So the gain should fall with the queue. The survey shows from which queue on there is no gain, and
//! at which queue the gain is the paper's.

use bufwise_link::{CrossPattern, CrossTraffic, QueueSize};

use super::model::{Amount, Bound, Case, Claim, Experiment, Flow, Method, Quantity, Setup, Target, path};
use super::papers;
use super::result::ExperimentResult;
use super::sobas::{
    BBR, CUBIC, LIMIT_500_MBIT, PUBLISHED, RENO, SOBAS, aggregate, beside_a_limited_flow, file, movers,
    unresponsive, with_file,
};
use super::sobas_fixed::{congested_file, congested_path};
use super::table::Table;
use crate::spec::PathSpec;

pub(super) const ID: &str = "sobas-queues";
/// Seconds that a file takes at the free rate.
const SECONDS: u64 = 8;

/// Name and size of a queue, in bandwidth-delay products.
type Queue = (&'static str, f64);
/// The queues, from the shallowest on.
const QUEUES: [Queue; 6] = [
    ("BDP/32", 1.0 / 32.0),
    ("BDP/16", 1.0 / 16.0),
    ("BDP/8", 0.125),
    ("BDP/4", 0.25),
    ("BDP/2", 0.5),
    ("BDP", 1.0),
];
/// Queue that `--quick` runs.
const QUICK: &str = "BDP/8";

/// The gains that are shown: the goodput of the first method over that of the second.
const GAINS: [(&str, &str); 4] = [(PUBLISHED, RENO), (SOBAS, RENO), (SOBAS, CUBIC), (SOBAS, BBR)];

/// Least factor between the last two gains of a curve that is still steep at that end, so that it is expected to go on beyond it.
const STEEP: f64 = 1.05;

/// How to read a table of gains.
const NOTE: &str =
    "Quotients of medians of the valid runs. `-`: one of the two is missing, or the survey lacks the queue.";
/// How to read the queues at which the gain is the paper's.
const NOTE_OF_PAPER: &str = "The queue at which the curve of gains has the paper's gain. `below` and `beyond`: the curve does not reach \
    it, but is steep towards it at that end; `nowhere`: at neither end. `-`: fewer than two gains were measured, or the paper has none.";

/// One of the paper's paths.
struct PaperPath {
    name: String,
    spec: PathSpec,
    flows: Vec<Flow>,
    queues: Vec<Queue>,
    /// The experiment that has the paper's figures of this path.
    experiment: &'static str,
}

pub(super) fn experiments() -> Vec<Experiment> {
    let cases: Vec<Case> = paths().iter().flat_map(PaperPath::cases).collect();
    let is_compared = |name| GAINS.iter().any(|(own, other)| [*own, *other].contains(&name));
    let methods = movers().into_iter().filter(|method| is_compared(method.name));
    // A survey leaves out by itself the methods that the kernel lacks.
    let methods = methods.map(|method| Method { beside: false, ..method }).collect();
    let steady = cases.iter().filter(|case| is_steady(case)).map(|case| case.name.clone()).collect();
    let first = cases[0].clone();
    vec![Experiment {
        cases,
        methods,
        survey: true,
        ..with_file(
            ID,
            "engine",
            "Over queues of BDP/32 to BDP: at which one is SOBAS's gain that of the paper, and from which on is there none?",
            "Files of 8 s, over the congested path of 16 s; medians of three valid runs; the congested path has two of the queues, \
             the one with another TCP flow three.",
            first,
            vec![
                Target::new(SOBAS, Quantity::GoodputBps, Bound::AtLeastTimes(1.0, CUBIC)),
                Target { cases: steady, ..Target::new(SOBAS, Quantity::SettledDrops, Bound::AtMost(0.0)) },
            ],
        )
    }]
}

/// Whether the free rate is the same all the time; elsewhere others cause drops as well.
fn is_steady(case: &Case) -> bool {
    let is_constant = |cross: CrossTraffic| cross.pattern == CrossPattern::Constant;
    case.flows.len() == 1 && case.paths.iter().all(|path| path.cross_b_to_a.is_none_or(is_constant))
}

fn paths() -> Vec<PaperPath> {
    let steady = |mbit| unresponsive(mbit, CrossPattern::Constant);
    vec![
        beside("sobas-fig9-10", (970, 20, 0), None),
        beside("sobas-fig11-13", (970, 20, 400), aggregate(400)),
        PaperPath {
            name: "970 Mbit/s x 20 ms, another TCP flow".to_owned(),
            flows: beside_a_limited_flow(file(450, SECONDS), LIMIT_500_MBIT),
            queues: every_second(0),
            ..beside("sobas-fig14-15", (970, 20, 0), None)
        },
        beside("sobas-fig16-17", (620, 10, 0), None),
        beside("sobas-fig18-19", (620, 60, 190), aggregate(190)),
        beside("sobas-fig20-21", (97, 40, 0), None),
        beside("sobas-fig22-23", (97, 40, 17), steady(17)),
        beside("sobas-fig24-25", (97, 155, 57), steady(57)),
        PaperPath {
            name: "9.7 Mbit/s x 78 ms, 3 free".to_owned(),
            spec: congested_path(),
            flows: vec![congested_file()],
            // Shallower queues hold at most three packets there.
            queues: every_second(2),
            experiment: "sobas-fig5-6",
        },
    ]
}

/// Returns the seconds by which a file may take longer than over deeper queues: Reno and SOBAS as published get a seventh of
/// the free rate at BDP/32, and less than a third at BDP/16.
fn longer_over(products: f64) -> u32 {
    match products {
        products if products < 0.05 => 24,
        products if products < 0.1 => 10,
        _ => 0,
    }
}

/// Returns the flow with this many seconds more, in the whole form.
fn longer(flow: &Flow, seconds: u32) -> Flow {
    let amount = match flow.amount {
        Amount::File(bytes, most, quick_bytes, quick_most) => {
            Amount::File(bytes, most + seconds, quick_bytes, quick_most)
        }
        Amount::Seconds(whole, quick) => Amount::Seconds(whole + seconds, quick),
        other => other,
    };
    Flow { amount, ..flow.clone() }
}

/// Returns every second queue, beginning with the one at `first`.
fn every_second(first: usize) -> Vec<Queue> {
    QUEUES.into_iter().skip(first).step_by(2).collect()
}

/// Returns a path of this rate (Mbit/s) and RTT (ms), with other traffic that takes `taken` Mbit/s on average.
fn beside(
    experiment: &'static str,
    (rate, rtt, taken): (u64, u64, u64),
    cross_b_to_a: Option<CrossTraffic>,
) -> PaperPath {
    let others = if taken > 0 { format!(", {} free", rate - taken) } else { String::new() };
    PaperPath {
        name: format!("{rate} Mbit/s x {rtt} ms{others}"),
        spec: PathSpec { cross_b_to_a, ..path(rate, rtt) },
        flows: vec![file(rate - taken, SECONDS)],
        queues: QUEUES.to_vec(),
        experiment,
    }
}

impl PaperPath {
    fn cases(&self) -> Vec<Case> {
        let case = |&(queue, products): &Queue| Case {
            name: self.case(queue),
            paths: vec![PathSpec { queue: Some(QueueSize::Bdp(products)), ..self.spec.clone() }],
            flows: self.flows.iter().map(|flow| longer(flow, longer_over(products))).collect(),
            memory: None,
            quick: queue == QUICK,
            setup: Setup::default(),
        };
        self.queues.iter().map(case).collect()
    }

    /// Returns the name of the case with this queue.
    fn case(&self, queue: &str) -> String {
        format!("{}, {queue}", self.name)
    }

    /// Returns where the paper has SOBAS's gain over maximum buffers, and the gain; `None`: the paper has none.
    fn published(&self) -> Option<(String, f64)> {
        papers::reported(self.experiment).into_iter().find_map(|reported| match reported.claim {
            Claim::Times(gain, _) if reported.method == PUBLISHED => Some((reported.place, gain)),
            _ => None,
        })
    }

    /// Returns the goodput of the method `own` over that of `other` with this queue.
    fn gain(&self, result: &ExperimentResult, queue: &str, (own, other): (&str, &str)) -> Option<f64> {
        let name = self.case(queue);
        let case = result.cases.iter().find(|case| case.name == name)?;
        let goodput = |method| case.median(method, Quantity::GoodputBps);
        Some(goodput(own)? / goodput(other).filter(|rate| *rate > 0.0)?)
    }
}

/// Returns a table of each gain by path and queue, and one of the paper's gains.
pub(super) fn gains(result: &ExperimentResult) -> Vec<Table> {
    let paths = paths();
    let table = |pair: (&str, &str)| {
        let shown = |gain: Option<f64>| gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}"));
        let cells = |path: &PaperPath| {
            QUEUES.iter().map(|(queue, _)| shown(path.gain(result, queue, pair))).collect()
        };
        Table {
            title: format!("Goodput of `{}` over that of `{}`", pair.0, pair.1),
            note: NOTE.to_owned(),
            of: "path",
            heads: QUEUES.iter().map(|(queue, _)| *queue).collect(),
            rows: paths.iter().map(|path| (path.name.clone(), cells(path))).collect(),
        }
    };
    GAINS.into_iter().map(table).chain([of_paper(result, &paths)]).collect()
}

/// Returns the paper's gain on each path, and the queue at which SOBAS, as published and ours, has it here.
fn of_paper(result: &ExperimentResult, paths: &[PaperPath]) -> Table {
    let cells = |path: &PaperPath| {
        let Some((place, gain)) = path.published() else { return vec!["-".to_owned(); 4] };
        let queue = |method| {
            let here = |(queue, _): &Queue| Some((*queue, path.gain(result, queue, (method, RENO))?));
            queue_of(gain, &path.queues.iter().filter_map(here).collect::<Vec<_>>())
        };
        vec![place, format!("{gain:.2}"), queue(PUBLISHED), queue(SOBAS)]
    };
    Table {
        title: format!("The paper's gain over `{RENO}`, and the queue at which each method has it here"),
        note: NOTE_OF_PAPER.to_owned(),
        of: "path",
        heads: vec!["in the paper", "gain", PUBLISHED, SOBAS],
        rows: paths.iter().map(|path| (path.name.clone(), cells(path))).collect(),
    }
}

/// Returns in words at which queue `curve`, the gains from the shallowest queue on, has the gain `wanted`; `-` if the
/// curve has fewer than two points and none of that gain.
///
/// Gains are equal if they have the same two decimals. A curve that has the gain nowhere may still be steep at an end and
/// approach it there: the gain is then expected beyond that end.
fn queue_of(wanted: f64, curve: &[(&str, f64)]) -> String {
    let hundredths = |gain: f64| (gain * 100.0).round() as i64;
    let order = |gain: f64| hundredths(gain).cmp(&hundredths(wanted));
    let mut places = Vec::new();
    for (index, &(queue, gain)) in curve.iter().enumerate() {
        let order_here = order(gain);
        if order_here.is_eq() {
            places.push(queue.to_owned());
        } else if let Some(&(next, other)) = curve.get(index + 1)
            && order(other) == order_here.reverse()
        {
            places.push(format!("between {queue} and {next}"));
        }
    }
    if !places.is_empty() {
        return places.join(", ");
    }
    let approaches =
        |end: f64, before: f64| if end < wanted { end > before * STEEP } else { end * STEEP < before };
    match *curve {
        [(shallowest, end), (_, before), ..] if approaches(end, before) => format!("below {shallowest}"),
        [.., (_, before), (deepest, end)] if approaches(end, before) => format!("beyond {deepest}"),
        [_, _, ..] => "nowhere".to_owned(),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::summary::tables;
    use super::*;

    fn survey() -> Experiment {
        experiments().remove(0)
    }

    #[test]
    fn every_path_of_the_paper_has_cases_and_the_methods_of_every_gain() {
        let survey = survey();
        let of_paper = |id: &str| id.starts_with("sobas-fig") && id != "sobas-fig1-4";
        let catalogue = super::super::catalogue();
        let mut wanted: Vec<_> = catalogue.iter().map(|one| one.id).filter(|id| of_paper(id)).collect();
        let mut there: Vec<_> = paths().iter().map(|path| path.experiment).collect();
        wanted.sort_unstable();
        there.sort_unstable();
        assert_eq!(there, wanted);
        assert_eq!(survey.cases.len(), 7 * QUEUES.len() + 3 + 2);
        let methods: Vec<_> = survey.methods.iter().map(|method| method.name).collect();
        assert_eq!(methods, [RENO, CUBIC, BBR, PUBLISHED, SOBAS]);
        assert_eq!(survey.cases.iter().filter(|case| is_steady(case)).count(), 5 * QUEUES.len());
        assert!(survey.seconds(false, None) < 16_600, "{} s", survey.seconds(false, None));
    }

    #[test]
    fn a_path_is_that_of_the_experiment_with_the_papers_figures() {
        let catalogue = super::super::catalogue();
        for path in paths() {
            let of = catalogue.iter().find(|one| one.id == path.experiment).unwrap();
            let [case] = &of.cases[..] else { panic!("{}", of.id) };
            let without_queue = |spec: &PathSpec| PathSpec { queue: None, ..spec.clone() };
            assert_eq!(without_queue(&path.spec), without_queue(&case.paths[0]), "{}", path.name);
            assert_eq!(path.flows[1..], case.flows[1..], "{}", path.name);
        }
    }

    #[test]
    fn the_papers_gains_are_those_of_its_figures() {
        let gains: Vec<_> = paths().iter().map(|path| path.published().map(|(_, gain)| gain)).collect();
        let shown = gains.iter().map(|gain| gain.map(|gain| (gain * 100.0).round() / 100.0));
        let wanted = [1.41, 1.27, 1.27, 1.22, 1.47, 1.81, 1.23, 1.65].map(Some);
        assert_eq!(shown.collect::<Vec<_>>(), [&wanted[..], &[None][..]].concat());
    }

    #[test]
    fn a_gain_is_found_on_the_curve_or_beyond_its_ends() {
        let falls = [("BDP/32", 1.8), ("BDP/16", 1.5), ("BDP/8", 1.2), ("BDP/4", 1.0)];
        for (wanted, place) in [
            (1.5, "BDP/16"),
            (1.504, "BDP/16"),
            (1.41, "between BDP/16 and BDP/8"),
            (1.81, "below BDP/32"),
            (0.9, "beyond BDP/4"),
        ] {
            assert_eq!(queue_of(wanted, &falls), place, "{wanted}");
        }
        let waves = [("BDP/32", 1.3), ("BDP/16", 1.1), ("BDP/8", 1.3), ("BDP/4", 1.2)];
        assert_eq!(
            queue_of(1.2, &waves),
            "between BDP/32 and BDP/16, between BDP/16 and BDP/8, BDP/4",
            "it crosses more than once"
        );
        let flat = [("BDP/32", 1.03), ("BDP/16", 1.0), ("BDP/8", 1.01)];
        assert_eq!([queue_of(1.81, &flat), queue_of(0.5, &flat)], ["nowhere", "nowhere"]);
        assert_eq!(queue_of(1.81, &[("BDP/8", 1.2)]), "-");
        assert_eq!(queue_of(1.2, &[("BDP/8", 1.2)]), "BDP/8");
        assert_eq!(queue_of(1.2, &[]), "-");
    }

    #[test]
    fn gains_stand_by_path_and_queue_and_beside_the_papers() {
        let mut result = ExperimentResult::new(&survey(), false, None, None);
        let goodput = |name: &str, published| match name {
            PUBLISHED => published,
            SOBAS => 9e8,
            _ => 6e8,
        };
        for (case, published) in [(0, 12e8), (1, 6e8)] {
            for method in &mut result.cases[case].methods {
                let median = goodput(&method.name, published);
                method.medians = BTreeMap::from([(Quantity::GoodputBps, median)]);
            }
        }
        let [published, over_reno, over_cubic, over_bbr, of_paper] =
            <[Table; 5]>::try_from(tables(&result)).ok().unwrap();
        assert_eq!(published.rows[0].0, "970 Mbit/s x 20 ms");
        assert_eq!(published.rows[0].1, ["2.00", "1.00", "-", "-", "-", "-"]);
        for table in [over_reno, over_cubic, over_bbr] {
            assert_eq!(table.rows[0].1, ["1.50", "1.50", "-", "-", "-", "-"], "{}", table.title);
            assert_eq!(table.rows[1].0, "970 Mbit/s x 20 ms, 570 free");
            assert!(table.rows[1].1.iter().all(|cell| cell == "-"));
        }
        assert_eq!(of_paper.rows[0].1, ["figures 9 and 10", "1.41", "between BDP/32 and BDP/16", "nowhere"]);
        assert_eq!(of_paper.rows[1].1, ["figures 11 and 12", "1.27", "-", "-"]);
        assert_eq!(of_paper.rows[8].1, ["-"; 4], "the paper's congested path is without SOBAS");
        result.file = Some("mine.toml".to_owned());
        assert!(tables(&result).is_empty());
        (result.file, result.id) = (None, "other".to_owned());
        assert!(tables(&result).is_empty());
    }
}
