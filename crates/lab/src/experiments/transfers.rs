//! Times and rates of files, programs and documents, from the reports of their clients.

use serde_json::Value;

use super::reading::{mean, variation};
use super::reports::Report;

/// Largest small document, bytes (Matsuo, 2.2.2).
const SMALL: f64 = 8_192.0;

/// Returns the numbers at `pointer` of the reports of files and programs.
fn of_transfers<'a>(reports: &'a [Report<'_>], pointer: &'static str) -> impl Iterator<Item = f64> + 'a {
    let ends = reports.iter().filter_map(|report| report.end.as_ref());
    ends.filter(|end| end.get("seconds").is_some()).filter_map(move |end| end.pointer(pointer)?.as_f64())
}

/// Returns the mean time of the transfers, seconds.
pub(super) fn seconds(reports: &[Report<'_>]) -> Option<f64> {
    mean(of_transfers(reports, "/seconds"))
}

/// Returns the mean rate of the transfers, bit/s: transfers one after the other do not add up.
pub(super) fn rate(reports: &[Report<'_>]) -> Option<f64> {
    mean(of_transfers(reports, "/sum_received/bits_per_second"))
}

/// Returns standard deviation over mean of the transfers' times; `None` unless there are several.
pub(super) fn scatter(reports: &[Report<'_>]) -> Option<f64> {
    let times: Vec<f64> = of_transfers(reports, "/seconds").collect();
    if times.len() > 1 { variation(&times) } else { None }
}

/// Returns the mean response time of the documents that are small, or of those that are not.
pub(super) fn response(reports: &[Report<'_>], small: bool) -> Option<f64> {
    let numbers = |end: &Value, key: &str| -> Option<Vec<f64>> {
        end.get(key)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    let ends = reports.iter().filter_map(|report| report.end.as_ref());
    let each = ends.filter_map(|end| Some((numbers(end, "response_s")?, numbers(end, "document_bytes")?)));
    let each = each.flat_map(|(times, sizes)| times.into_iter().zip(sizes));
    mean(each.filter(|(_, bytes)| (*bytes <= SMALL) == small).map(|(time, _)| time))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::model::{Amount, Flow};
    use super::*;

    fn file(flow: &Flow, bytes: u64, seconds: f64) -> Report<'_> {
        let written = json!({ "files": [{ "bytes": bytes, "seconds": seconds, "error": null }] });
        Report::new(flow, Some(written), |_| None)
    }

    #[test]
    fn files_one_after_the_other_have_a_mean_and_a_scatter() {
        let flow = Flow { amount: Amount::File(1, 1, 1, 1), ..Flow::default() };
        let reports = [file(&flow, 1_000_000, 1.0), file(&flow, 1_000_000, 3.0)];
        assert_eq!(seconds(&reports), Some(2.0));
        assert!((rate(&reports).unwrap() - (8e6 + 8e6 / 3.0) / 2.0).abs() < 1.0);
        assert_eq!((scatter(&reports), scatter(&reports[..1])), (Some(0.5), None));
        assert_eq!((seconds(&[]), rate(&[])), (None, None));
        // iperf3's report is none of a transfer.
        let flow = Flow::default();
        let written = json!({ "end": { "sum_received": { "bits_per_second": 1e6, "seconds": 1.0 } } });
        let bulk = [Report::new(&flow, Some(written), |_| None)];
        assert_eq!((seconds(&bulk), rate(&bulk)), (None, None));
    }

    #[test]
    fn documents_are_small_up_to_eight_kilobytes() {
        let flow = Flow { amount: Amount::Requests(1, 1, 1), ..Flow::default() };
        let written = json!({ "response_s": [1.0, 3.0, 7.0], "document_bytes": [100, 8_192, 8_193] });
        let reports = [Report::new(&flow, Some(written), |_| None)];
        assert_eq!((response(&reports, true), response(&reports, false)), (Some(2.0), Some(7.0)));
        let without = [Report::new(&flow, Some(json!({ "response_s": [1.0] })), |_| None)];
        assert_eq!(response(&without, true), None);
    }
}
