//! Reports of the flows' clients: what each flow moved, and whether it reached its end.

use serde_json::Value;

use super::ftp;
use super::model::{Amount, Flow};

/// One flow's own report.
pub(super) struct Report<'a> {
    pub(super) flow: &'a Flow,
    /// `end` of iperf3's JSON, or the whole report of the documents' client; `None`: the flow did not reach its end.
    pub(super) end: Option<Value>,
    /// The error that iperf3 reported.
    error: Option<String>,
}

impl<'a> Report<'a> {
    /// Reads what the client of `flow` wrote; `of_program` converts the report of a user's own program.
    pub(super) fn new(
        flow: &'a Flow,
        written: Option<Value>,
        of_program: impl Fn(&Value) -> Option<Value>,
    ) -> Self {
        let mut error = None;
        let (end, proof) = match flow.amount {
            Amount::Documents(..) | Amount::Requests(..) => (written, "/response_s"),
            Amount::Probe(..) => (written, "/round_trip/least_s"),
            Amount::Program(..) => (written.and_then(|report| of_program(&report)), "/seconds"),
            Amount::File(..) => {
                (written.and_then(|report| ftp::end(&report)), "/sum_received/bits_per_second")
            }
            Amount::Seconds(..) | Amount::Bytes(..) => {
                error = written.as_ref().and_then(|report| Some(report.get("error")?.as_str()?.to_owned()));
                // Beside an error the sums are those of a part of the flow.
                let whole = written.filter(|_| error.is_none());
                (whole.and_then(|report| report.get("end").cloned()), "/sum_received/bits_per_second")
            }
        };
        Self { flow, end: end.filter(|end| end.pointer(proof).is_some()), error }
    }

    /// Returns why the flow did not reach its end; `None`: it did.
    pub(super) fn incomplete(&self) -> Option<String> {
        if self.end.is_some() {
            return None;
        }
        let flow = if self.flow.cross { "a background flow" } else { "a flow" };
        Some(match &self.error {
            Some(error) => format!("{flow} failed: {error}"),
            None => format!("{flow} has no report"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::ends::flow_report;
    use super::super::reading::Reading;
    use super::*;
    use crate::commands::Outcome;
    use crate::path::Observed;

    /// Returns why a run is incomplete whose flow and background flow left these reports.
    fn incomplete(own: &str, background: &str) -> Option<String> {
        let catalogue = super::super::catalogue();
        let mut experiment = catalogue.into_iter().find(|one| one.id == "sobas-cross").unwrap();
        let flow = Flow::default();
        experiment.cases[0].flows = vec![Flow { cross: true, ..flow.clone() }, flow];
        let directory = tempfile::tempdir().unwrap();
        for (number, text) in [(0, background), (1, own)] {
            fs::write(directory.path().join(flow_report(number)), text).unwrap();
        }
        let outcome = Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
        let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
        Reading::new(&experiment, &experiment.cases[0], &seen, directory.path()).incomplete()
    }

    #[test]
    fn a_run_needs_the_end_of_each_flow_and_of_each_background_flow() {
        let whole = r#"{"end":{"sum_received":{"bits_per_second":1e6}}}"#;
        let refused = r#"{"end":{},"error":"unable to connect to server"}"#;
        // timeout(1) ended it; the sums are those of the time before.
        let part = r#"{"end":{"sum_received":{"bits_per_second":1e6}},"error":"the client has terminated"}"#;
        for (own, background, wanted) in [
            (whole, whole, None),
            (whole, refused, Some("a background flow failed: unable to connect to server")),
            (whole, part, Some("a background flow failed: the client has terminated")),
            (whole, "", Some("a background flow has no report")),
            (part, whole, Some("a flow failed: the client has terminated")),
            ("{", refused, Some("a flow has no report")),
        ] {
            assert_eq!(incomplete(own, background).as_deref(), wanted, "{own} {background}");
        }
    }
}
