//! Samples of an experiment beside its result: one run of each method in each case over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::over_time::OverTime;
use super::ran::Ran;
use super::result::{ExperimentResult, MethodResult};

/// The directory of samples inside that of the results. A file in it has the name of its result's file.
pub const SAMPLES: &str = "samples";

/// Contents of the file with the samples of a result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Samples {
    id: String,
    ran: Vec<Ran>,
    /// Runs by case and method.
    cases: BTreeMap<String, BTreeMap<String, Run>>,
}

/// A run, with its index among its method's runs, from 0.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    run: usize,
    #[serde(flatten)]
    over_time: OverTime,
}

impl Samples {
    /// Takes the samples that `result` has; `None`: it has none.
    #[must_use]
    pub fn of(result: &ExperimentResult) -> Option<Self> {
        let run = |method: &MethodResult| {
            let (run, over_time) = method.over_time()?;
            Some((method.name.clone(), Run { run, over_time: over_time.clone() }))
        };
        let cases = result.cases.iter();
        let cases: BTreeMap<_, BTreeMap<_, _>> =
            cases.map(|case| (case.name.clone(), case.methods.iter().filter_map(run).collect())).collect();
        let has_any = cases.values().any(|methods| !methods.is_empty());
        has_any.then(|| Self { id: result.id.clone(), ran: result.ran.clone(), cases })
    }

    /// Puts the samples back into `result`, if both are from the same call.
    pub fn give(mut self, result: &mut ExperimentResult) {
        if (&self.id, &self.ran) != (&result.id, &result.ran) {
            return;
        }
        for case in &mut result.cases {
            let Some(mut methods) = self.cases.remove(&case.name) else { continue };
            for method in &mut case.methods {
                let Some(Run { run, over_time }) = methods.remove(&method.name) else { continue };
                if let Some(run) = method.runs.get_mut(run) {
                    run.over_time = Some(over_time);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::over_time::Track;
    use super::*;
    use crate::page::tests::result;

    pub(crate) fn with_samples() -> ExperimentResult {
        let mut result = result();
        let track = vec![None, Some(2_000.0)];
        let over_time = OverTime { t_s: vec![0.1, 0.2], tracks: [(Track::CwndBytes, track)].into() };
        result.cases[0].methods[1].runs[1].over_time = Some(over_time);
        result
    }

    #[test]
    fn samples_go_beside_a_result_and_come_back() {
        let whole = with_samples();
        let text = serde_json::to_string(&Samples::of(&whole).unwrap()).unwrap();
        assert!(text.contains("\"cwnd_bytes\":[null,2000.0]") && text.contains("\"run\":1"), "{text}");
        let without =
            || -> ExperimentResult { serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap() };
        assert!(Samples::of(&without()).is_none());
        let read = || -> Samples { serde_json::from_str(&text).unwrap() };
        let mut again = without();
        read().give(&mut again);
        assert_eq!(again.cases[0].methods[1].over_time(), whole.cases[0].methods[1].over_time());
        // Samples of another call, or of a run that the result does not have.
        let mut other = ExperimentResult { id: "other".to_owned(), ..without() };
        read().give(&mut other);
        let mut fewer = without();
        fewer.cases[0].methods[1].runs.truncate(1);
        read().give(&mut fewer);
        assert!(Samples::of(&other).is_none() && Samples::of(&fewer).is_none());
    }
}
