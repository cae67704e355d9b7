//! The user's own programs as a flow: their commands, and what is known of them after they have ended.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::ends::{flow_report, port};
use super::model::{Flow, Program, Way};
use super::reading::{Key, key, sends};
use super::script::{one_word, wait};
use crate::sampler::ConnectionSample;

/// Returns the server of flow `number`.
pub(super) fn server(program: Program, number: usize) -> String {
    format!("PORT={} sh -c {}", port(number), one_word(program.server))
}

/// Returns the client of flow `number`, which may take `most` seconds; if it succeeds the report has its time.
pub(super) fn client(program: Program, number: usize, host: &str, flow: &Flow, most: u32) -> String {
    let (wait, port, report) = (wait(flow), port(number), flow_report(number));
    let command = one_word(program.client);
    let milliseconds = "$((($(date +%s%N)-begin)/1000000))";
    format!(
        "{wait}begin=$(date +%s%N); SERVER={host} PORT={port} timeout {most} sh -c {command} >/dev/null && \
         echo \"{{\\\"seconds\\\":{milliseconds}e-3}}\" >{report}"
    )
}

/// Converts the report into iperf3's form. The bytes are those of the connections to the flow's port in the samples, so
/// bytes of the last 50 ms may be missing.
pub(super) fn end(report: &Value, way: Way, number: usize, samples: &[ConnectionSample]) -> Option<Value> {
    // They are negative if the wall clock was set back meanwhile.
    let seconds = report.get("seconds")?.as_f64().filter(|seconds| *seconds >= 0.0)?;
    let mut moved: HashMap<Key, u64> = HashMap::new();
    for sample in samples.iter().filter(|sample| sends(way, sample, |one| one == port(number))) {
        let most = moved.entry(key(sample)).or_default();
        *most = sample.bytes_acked.max(*most);
    }
    let bytes: u64 = moved.into_values().sum();
    let rate = bytes as f64 * 8.0 / seconds.max(1e-3);
    Some(json!({ "seconds": seconds, "sum_received": { "bytes": bytes, "bits_per_second": rate } }))
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::sample;
    use super::*;

    #[test]
    fn a_programs_rate_is_what_its_connections_moved_in_its_time() {
        let samples = [
            sample(0.0, 1, 0, 400_000, 20),
            sample(1.0, 1, 0, 1_000_000, 20),
            sample(1.0, 2, 0, 500_000, 20),
            sample(1.0, 3, 1, 9_000_000, 20),
        ];
        let rate = |way| {
            let end = end(&json!({ "seconds": 2.0 }), way, 0, &samples).unwrap();
            end.pointer("/sum_received/bits_per_second").and_then(Value::as_f64)
        };
        assert_eq!((rate(Way::Upload), rate(Way::Download)), (Some(6e6), Some(0.0)));
        for wrong in [json!({}), json!({ "seconds": -1.0 })] {
            assert!(end(&wrong, Way::Upload, 0, &samples).is_none(), "{wrong}");
        }
    }
}
