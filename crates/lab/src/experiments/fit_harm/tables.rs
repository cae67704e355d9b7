//! Tables that sum up a survey of harm: one for each kind of case, with a row for each case and a column for each method.
//!
//! A figure is the median of the valid runs. If these are fewer than wanted, the cell says so; no target is judged by them.

use super::super::model::{Bound, Case, Experiment, Method, Quantity};
use super::super::result::{CaseResult, ExperimentResult, MethodResult};
use super::super::table::Table;

/// A kind of case, and what its table shows.
pub(super) struct Kind {
    title: &'static str,
    /// The paths and the workload, in sentences.
    about: &'static str,
    /// The figures of a cell, in order.
    shown: &'static [Quantity],
    /// Whether goodput depends so much on the moment at which a flow starts that its least and its most are shown, too.
    spread: bool,
}

/// Paths whose bandwidth-delay product is known.
pub(super) static ALONE: Kind = Kind {
    title: "A download without disturbance",
    about: "100 Mbit/s, 40 ms and a queue of one BDP where the case does not say; the initial window of 2 is before a queue of 5 ms. \
        The memory is held by the sender, and to be read by the receiver.",
    shown: &[
        Quantity::GoodputBps,
        Quantity::RttMeanS,
        Quantity::Drops,
        Quantity::HeldPeakBytes,
        Quantity::ReceiveHeldPeakBytes,
    ],
    spread: false,
};
/// Paths and writers that make measurements difficult.
pub(super) static VARYING: Kind = Kind {
    title: "A download over a path that varies, loses or marks packets",
    about: "100 Mbit/s, 40 ms (with jitter or reordering 50 ms) and a queue of one BDP where the case does not say.",
    shown: &[Quantity::GoodputBps, Quantity::RttMeanS, Quantity::Drops],
    spread: false,
};
/// A download with small requests.
pub(super) static WITH_REQUESTS: Kind = Kind {
    title: "A download, and a small request every 50 ms beside it",
    about: "Deep queue: 100 Mbit/s, 50 ms, a queue of 480 ms. Shallow queue: 100 Mbit/s, 40 ms, a queue of 5 ms. \
        500 Mbit/s: 100 ms and a queue of one BDP. Large limits: 64 MB.",
    shown: &[Quantity::GoodputBps, Quantity::ResponseMedianS, Quantity::ResponseP99S, Quantity::Drops],
    spread: false,
};
/// Requests only.
pub(super) static REQUESTS: Kind = Kind {
    title: "Documents, each over a connection of its own",
    about: "100 Mbit/s, 40 ms, a queue of one BDP. Large limits: 64 MB.",
    shown: &[Quantity::ResponseMedianS, Quantity::ResponseP99S, Quantity::Drops],
    spread: false,
};
/// A flow that starts after others.
pub(super) static BESIDE: Kind = Kind {
    title: "A download that begins 4 s after others",
    about: "80 Mbit/s, 35 ms, a queue of 350 KB; the deep queue: 100 Mbit/s, 50 ms, 480 ms. Large limits: 64 MB. The others are the \
        kernel's, and the mean RTT is the newcomer's.",
    shown: &[Quantity::GoodputBps, Quantity::OthersBps, Quantity::RttMeanS, Quantity::Drops],
    spread: true,
};
/// Flows of the same method.
pub(super) static TOGETHER: Kind = Kind {
    title: "Several downloads of the same kind together",
    about: "100 Mbit/s, 40 ms, a queue of one BDP. Large limits: 64 MB. The goodput is that of all together.",
    shown: &[Quantity::GoodputBps, Quantity::SettledJainIndex, Quantity::RttMeanS, Quantity::Drops],
    spread: false,
};

impl Kind {
    /// Returns how to read the table.
    fn note(&self) -> String {
        let shown: Vec<String> = self.shown.iter().map(ToString::to_string).collect();
        let spread = if self.spread { " After the goodput: its least and its most." } else { "" };
        format!(
            "Medians of the valid runs: {}. In brackets: % of the kernel's. Bold: a target is missed.{spread} {}",
            shown.join("; "),
            self.about
        )
    }
}

/// Returns a table for each kind that occurs in `result`, a result of `survey`; `kinds` are the cases of the survey by kind. Cases
/// that did not run have no row.
pub(super) fn by_kind(
    survey: &Experiment,
    kinds: impl Iterator<Item = (&'static Kind, Vec<Case>)>,
    result: &ExperimentResult,
) -> Vec<Table> {
    let of = Judged { survey, result };
    let mut tables: Vec<Table> = Vec::new();
    for (kind, cases) in kinds {
        let ran = |case: &Case| result.cases_that_run().find(|one| one.name == case.name);
        let rows = cases.iter().filter_map(ran).map(|case| of.row(case, kind));
        match tables.iter_mut().find(|table| table.title == kind.title) {
            Some(table) => table.rows.extend(rows),
            None => tables.push(Table {
                title: kind.title.to_owned(),
                note: kind.note(),
                of: "case",
                heads: survey.methods.iter().map(|method| method.name).collect(),
                rows: rows.collect(),
            }),
        }
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// A result, and the survey with its targets.
struct Judged<'a> {
    survey: &'a Experiment,
    result: &'a ExperimentResult,
}

impl Judged<'_> {
    fn row(&self, case: &CaseResult, kind: &Kind) -> (String, Vec<String>) {
        let cell = |method: &Method| {
            let ran = case.method(method.name);
            ran.map_or_else(|| "-".to_owned(), |ran| self.cell(case, ran, kind))
        };
        (case.name.clone(), self.survey.methods.iter().map(cell).collect())
    }

    fn cell(&self, case: &CaseResult, method: &MethodResult, kind: &Kind) -> String {
        let figure = |quantity: &Quantity| {
            let text = self.figure(case, method, *quantity)?;
            let is_spread = kind.spread && *quantity == Quantity::GoodputBps;
            Some(if is_spread { text + &spread(method, *quantity) } else { text })
        };
        let figures: Vec<Option<String>> = kind.shown.iter().map(figure).collect();
        let text = if figures.iter().all(Option::is_none) {
            "-".to_owned()
        } else {
            let shown = figures.into_iter().map(|figure| figure.unwrap_or_else(|| "-".to_owned()));
            shown.collect::<Vec<_>>().join(", ")
        };
        let valid = method.valid_runs();
        if valid < case.needed { format!("{text}; {valid} of {} runs", case.needed) } else { text }
    }

    /// Returns the median, marked if it misses a target; `None`: no valid run has the quantity.
    fn figure(&self, case: &CaseResult, method: &MethodResult, quantity: Quantity) -> Option<String> {
        let value = method.median_of_valid(quantity)?;
        let is_missed = self.result.targets.iter().any(|target| {
            target.met == Some(false)
                && target.case == case.name
                && target.method == method.name
                && target.quantity == quantity
        });
        // A miss by half a percent must not look like none.
        let decimals = usize::from(is_missed);
        let other = self.compared_with(case, method, quantity);
        let share = other.map(|other| format!(" ({:.decimals$}%)", value / other * 1e2)).unwrap_or_default();
        let text = quantity.show(value) + &share;
        Some(if is_missed { format!("**{text}**") } else { text })
    }

    /// Returns the other method's figure with which a target compares the method's; `None`: there is no such target, or no such figure
    /// above zero.
    fn compared_with(&self, case: &CaseResult, method: &MethodResult, quantity: Quantity) -> Option<f64> {
        let mut targets = self.survey.targets.iter().filter(|target| {
            target.method == method.name && target.quantity == quantity && target.names(&case.name)
        });
        let other = targets.find_map(|target| match target.bound {
            Bound::AtLeastTimes(_, other) | Bound::AtMostTimes(_, other, _) => Some(other),
            _ => None,
        })?;
        case.method(other)?.median_of_valid(quantity).filter(|figure| *figure > 0.0)
    }
}

/// Returns the least and the most of the valid runs' values; nothing if fewer than two runs have the quantity.
fn spread(method: &MethodResult, quantity: Quantity) -> String {
    let mut all: Vec<f64> = method.of_valid(quantity).collect();
    all.sort_by(f64::total_cmp);
    match all[..] {
        [least, .., most] => format!(" [{} to {}]", quantity.show(least), quantity.show(most)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::fit::{BOTH, RECEIVER, SENDER};
    use super::super::super::result::RunResult;
    use super::super::{KERNEL, experiments, quoted};
    use super::*;

    /// Values with which every target is met.
    const GOOD: [(Quantity, f64); 9] = [
        (Quantity::GoodputBps, 90e6),
        (Quantity::OthersBps, 50e6),
        (Quantity::SettledJainIndex, 0.99),
        (Quantity::ResponseMedianS, 0.1),
        (Quantity::ResponseP99S, 0.2),
        (Quantity::RttMeanS, 0.041),
        (Quantity::Drops, 3.0),
        (Quantity::HeldPeakBytes, 0.2e6),
        (Quantity::ReceiveHeldPeakBytes, 0.1e6),
    ];

    fn survey() -> Experiment {
        experiments().remove(0)
    }

    /// Returns a result of three runs, each with good values.
    fn good() -> ExperimentResult {
        let mut result = ExperimentResult::new(&survey(), false, Some(3), None);
        let run = RunResult { valid: true, values: BTreeMap::from(GOOD), ..RunResult::default() };
        for method in result.cases.iter_mut().flat_map(|case| &mut case.methods) {
            method.runs = vec![run.clone(); 3];
        }
        result.conclude(&survey());
        result
    }

    fn runs<'a>(result: &'a mut ExperimentResult, case: &str, method: &str) -> &'a mut Vec<RunResult> {
        let case = result.cases.iter_mut().find(|one| one.name == case).unwrap();
        &mut case.methods.iter_mut().find(|one| one.name == method).unwrap().runs
    }

    fn set(result: &mut ExperimentResult, case: &str, method: &str, (quantity, value): (Quantity, f64)) {
        for run in runs(result, case, method) {
            run.values.insert(quantity, value);
        }
    }

    /// A result with misses of each kind, and methods with fewer valid runs than wanted.
    fn mixed() -> ExperimentResult {
        let mut result = good();
        set(&mut result, "thin return path", SENDER, (Quantity::GoodputBps, 73.4e6));
        set(&mut result, "Wi-Fi", BOTH, (Quantity::GoodputBps, 87.2e6));
        set(&mut result, "1 KB", RECEIVER, (Quantity::ResponseP99S, 0.25));
        set(&mut result, "8 together", BOTH, (Quantity::SettledJainIndex, 0.9));
        set(&mut result, "IPv6", RECEIVER, (Quantity::ReceiveHeldPeakBytes, 2e6));
        runs(&mut result, "ECN", RECEIVER)[1].valid = false;
        runs(&mut result, "LTE", KERNEL).iter_mut().for_each(|run| run.valid = false);
        for run in runs(&mut result, "beside BBR", SENDER) {
            run.values.remove(&Quantity::OthersBps);
        }
        result.conclude(&survey());
        result
    }

    /// Returns the cells of a case, by the kernel, at the sender, at the receiver and at both ends.
    fn cells(result: &ExperimentResult, case: &str) -> Vec<String> {
        let mut rows = quoted(result).into_iter().flat_map(|table| table.rows);
        rows.find(|row| row.0 == case).unwrap().1
    }

    #[test]
    fn every_case_is_a_row_in_the_table_of_its_kind() {
        let result = good();
        assert!(result.met(), "{result}");
        let tables = quoted(&result);
        let of = tables.iter().map(|table| (table.title.as_str(), table.rows.len())).collect::<Vec<_>>();
        let wanted = [
            ("A download without disturbance", 6),
            ("A download over a path that varies, loses or marks packets", 18),
            ("A download, and a small request every 50 ms beside it", 6),
            ("Documents, each over a connection of its own", 5),
            ("A download that begins 4 s after others", 6),
            ("Several downloads of the same kind together", 6),
        ];
        assert_eq!(of, wanted);
        assert_eq!(wanted.iter().map(|one| one.1).sum::<usize>(), survey().cases.len());
        for table in &tables {
            assert_eq!(table.heads, [KERNEL, SENDER, RECEIVER, BOTH]);
            assert!(table.rows.iter().all(|row| row.1.len() == 4 && !row.1.concat().contains("**")));
        }
        let how = "Medians of the valid runs: goodput, Mbit/s; mean RTT, ms; drops, packets. In brackets: ";
        assert!(tables[1].note.starts_with(how), "{}", tables[1].note);
        assert_eq!(
            cells(&result, "IPv6")[..2],
            ["90.0, 41.0, 3, 0.20, 0.10", "90.0 (100%), 41.0, 3, 0.20, 0.10"]
        );
        let pair = ExperimentResult { id: "pair-harm".to_owned(), ..ExperimentResult::default() };
        assert!(quoted(&pair).is_empty(), "nothing ran");
    }

    #[test]
    fn a_miss_is_marked_and_its_share_has_a_decimal() {
        let result = mixed();
        assert_eq!(cells(&result, "thin return path")[1], "**73.4 (81.6%)**, 41.0, 3");
        assert_eq!(cells(&result, "Wi-Fi")[3], "**87.2 (96.9%)**, 41.0, 3", "97% is wanted");
        assert_eq!(cells(&result, "1 KB")[2], "100.0 (100%), **250.0 (125.0%)**, 3");
        assert_eq!(cells(&result, "8 together")[3], "90.0 (100%), **0.900**, 41.0, 3");
        assert_eq!(cells(&result, "IPv6")[2], "90.0 (100%), 41.0, 3, 0.20, **2.00**");
    }

    #[test]
    fn fewer_valid_runs_than_wanted_are_counted_and_miss_nothing() {
        let mut result = mixed();
        for run in &mut runs(&mut result, "ECN", RECEIVER)[..2] {
            run.values.insert(Quantity::GoodputBps, 10e6);
        }
        result.conclude(&survey());
        assert_eq!(cells(&result, "ECN")[2], "50.0 (56%), 41.0, 3, 0.20, 0.10; 2 of 3 runs");
        let lte = cells(&result, "LTE");
        assert_eq!(lte[..2], ["-; 0 of 3 runs", "90.0, 41.0, 3"], "there is nothing to compare with");
        let without = "90.0 (100%) [90.0 to 90.0], -, 41.0, 3";
        assert_eq!(cells(&result, "beside BBR")[1], without, "an older run lacks it");
    }

    #[test]
    fn beside_others_the_least_and_the_most_of_the_valid_runs_are_shown() {
        let mut result = good();
        for (run, bps) in runs(&mut result, "beside 2 CUBIC", RECEIVER).iter_mut().zip([60e6, 30e6, 90e6]) {
            run.values.insert(Quantity::GoodputBps, bps);
            run.valid = bps < 90e6;
        }
        result.conclude(&survey());
        assert_eq!(
            cells(&result, "beside 2 CUBIC")[2],
            "45.0 (50%) [30.0 to 60.0], 50.0 (100%), 41.0, 3; 2 of 3 runs"
        );
        assert_eq!(cells(&result, "2 together")[2], "90.0 (100%), 0.990, 41.0, 3");
    }

    #[test]
    fn each_way_has_its_number_of_targets_and_each_miss_is_listed() {
        let result = mixed();
        let met = "`fit at the sender` 79 of 80, `fit at the receiver` 77 of 79, `fit at both` 85 of 87";
        assert_eq!(result.met_by_method(), met);
        let text = crate::experiments::markdown(std::slice::from_ref(&result), &[]).unwrap();
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        let parts = [
            "\n## fit-harm\n",
            &format!("\nTargets met, of those that were measured: {met}.\n"),
            "\n### A download without disturbance\nMedians of the valid runs: ",
            "\n| case | kernel | fit at the sender | fit at the receiver | fit at both |\n|---|---|---|---|---|\n| LAN,",
            "\n| thin return path | 90.0, 41.0, 3 | **73.4 (81.6%)**, 41.0, 3 | 90.0 (100%), 41.0, 3 |",
            "\n### Targets\n",
            "\n| goodput of `fit at the sender` at least 97% of `kernel`'s (87.3 Mbit/s) | thin return path | 73.4 Mbit/s | NOT MET |\n",
            "| LTE | 90.0 Mbit/s | not measured |\n",
            "\n### Each case\n",
            "\n**thin return path** (",
        ];
        assert!(parts.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{text}");
        assert_eq!(text.matches("| NOT MET |").count(), 5);
        let page = crate::page::write(&[result], &[]).unwrap();
        for part in [
            "<td><span class=\"badge missed\">73.4 (81.6%)</span>, 41.0, 3</td>",
            "<dt>Targets met</dt><dd>of those that were measured: <code>fit at the sender</code> 79 of 80, ",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
