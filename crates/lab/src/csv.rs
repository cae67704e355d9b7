//! Writes results as comma-separated values (RFC 4180): the first line names the columns, each with its unit.

use std::fmt::{self, Display, Write};

use serde::Serialize;

use crate::experiments::{ExperimentResult, MethodResult, OverTime, Quantity, RunResult, Track};
use crate::page::{Recorded, distinct};

/// Names of the columns of [`samples`].
const SAMPLE: &str = "run,t_s,host,local,peer,congestion_control,srtt_us,min_rtt_us,cwnd_bytes,flight_bytes,sndbuf_bytes,\
rcvbuf_bytes,wmem_queued_bytes,rmem_alloc_bytes,snd_wnd_bytes,rcv_wnd_bytes,delivery_rate_bps,bytes_acked,bytes_received,\
retrans_segments,limited_by";

/// A text field, quoted if it contains a comma, a quotation mark or the end of a line.
struct Field<'a>(&'a str);

impl Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains([',', '"', '\n', '\r']) {
            write!(f, "\"{}\"", self.0.replace('"', "\"\""))
        } else {
            f.write_str(self.0)
        }
    }
}

/// Writes every run of every method: `experiment,case,method,run,valid,attempts,problem`, and a column for each
/// quantity of the experiments, empty where a run lacks it. `run` counts from 1; `valid` is `true` or `false`. The second result of an
/// experiment, from another directory, is named `ID-2`.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn runs(results: &[ExperimentResult]) -> Result<String, fmt::Error> {
    let mut quantities: Vec<Quantity> = results.iter().flat_map(|result| result.quantities.clone()).collect();
    quantities.sort_unstable();
    quantities.dedup();
    let mut text = String::from("experiment,case,method,run,valid,attempts,problem");
    quantities.iter().try_for_each(|quantity| write!(text, ",{}", column(*quantity)))?;
    text.push('\n');
    for (result, id) in results.iter().zip(ids(results)) {
        for case in &result.cases {
            for MethodResult { name, runs, .. } in &case.methods {
                for (number, run) in (1..).zip(runs) {
                    let RunResult { valid, problem, attempts, values, .. } = run;
                    let (id, case, method) = (Field(&id), Field(&case.name), Field(name));
                    let problem = Field(problem.as_deref().unwrap_or_default());
                    write!(text, "{id},{case},{method},{number},{valid},{attempts},{problem}")?;
                    for quantity in &quantities {
                        match values.get(quantity) {
                            Some(value) => write!(text, ",{value}")?,
                            None => text.push(','),
                        }
                    }
                    text.push('\n');
                }
            }
        }
    }
    Ok(text)
}

/// Returns a name for each result.
fn ids(results: &[ExperimentResult]) -> Vec<String> {
    distinct(results.iter().map(|result| result.id.clone()))
}

/// Returns a name for each run over a path.
fn names(runs: &[Recorded]) -> Vec<String> {
    distinct(runs.iter().map(|run| run.name.clone()))
}

/// Returns the name as it is in JSON.
fn written(name: impl Serialize) -> String {
    let value = serde_json::to_value(name).ok();
    value.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the quantity's name with its unit.
fn column(quantity: Quantity) -> String {
    let name = written(quantity);
    let unit = match quantity.shown().unit {
        unit @ ("packets" | "segments" | "connections") => unit,
        unit if unit.starts_with('%') && !name.ends_with("_share") => "share",
        _ => return name,
    };
    format!("{name}_{unit}")
}

/// Writes one run of each method in each case over time, where that was kept: `experiment,case,method,run,t_s` and the
/// tracks, empty where there was no sample. `run` counts from 1, as in [`runs`]; `t_s` from the start of the first
/// measured connection.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn over_time(results: &[ExperimentResult]) -> Result<String, fmt::Error> {
    let mut text = String::from("experiment,case,method,run,t_s");
    Track::ALL.iter().try_for_each(|track| write!(text, ",{}", written(track)))?;
    text.push('\n');
    for (result, id) in results.iter().zip(ids(results)) {
        for case in &result.cases {
            for method in &case.methods {
                let Some((run, OverTime { t_s, tracks })) = method.over_time() else { continue };
                let (id, case, method) = (Field(&id), Field(&case.name), Field(&method.name));
                for (step, t) in t_s.iter().enumerate() {
                    write!(text, "{id},{case},{method},{},{t}", run + 1)?;
                    for track in Track::ALL {
                        let value = tracks.get(&track).and_then(|values| *values.get(step)?);
                        match value {
                            Some(value) => write!(text, ",{value}")?,
                            None => text.push(','),
                        }
                    }
                    text.push('\n');
                }
            }
        }
    }
    Ok(text)
}

/// Writes every sample of every connection of the runs over paths: the fields of `bufwise lab path --json`; fields
/// without a unit in their name get one. `t_s` counts from the start of the run.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn samples(runs: &[Recorded]) -> Result<String, fmt::Error> {
    let mut text = format!("{SAMPLE}\n");
    for (run, name) in runs.iter().zip(names(runs)) {
        for sample in &run.samples {
            let texts = [&sample.host, &sample.local, &sample.peer, &sample.congestion_control];
            write!(text, "{},{}", Field(&name), sample.t)?;
            texts.iter().try_for_each(|value| write!(text, ",{}", Field(value)))?;
            let numbers = [
                sample.srtt_us,
                sample.min_rtt_us,
                sample.cwnd_bytes,
                sample.flight_bytes,
                sample.sndbuf,
                sample.rcvbuf,
                sample.wmem_queued,
                sample.rmem_alloc,
                sample.snd_wnd,
                sample.rcv_wnd,
                sample.delivery_rate_bps,
                sample.bytes_acked,
                sample.bytes_received,
                sample.retrans,
            ];
            numbers.iter().try_for_each(|value| write!(text, ",{value}"))?;
            writeln!(text, ",{}", Field(&sample.limited_by))?;
        }
    }
    Ok(text)
}

/// Writes every sample of the tight link of the runs over paths; counters are since the start of the run, and queues without emulated
/// cross traffic.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn links(runs: &[Recorded]) -> Result<String, fmt::Error> {
    let mut text = String::from("run,t_s");
    for way in ["a_to_b", "b_to_a"] {
        write!(text, ",{way}_bytes,{way}_drops_packets,{way}_queue_bytes")?;
    }
    text.push('\n');
    for (run, name) in runs.iter().zip(names(runs)) {
        for point in &run.link_samples {
            write!(text, "{},{}", Field(&name), point.t)?;
            for way in [point.a_to_b, point.b_to_a] {
                write!(text, ",{},{},{}", way.bytes, way.drops, way.queue_bytes)?;
            }
            text.push('\n');
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::with_samples;
    use crate::page::tests::{recorded, result};

    #[test]
    fn each_run_is_a_line_and_each_column_has_its_unit() {
        let text = runs(&[result()]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "experiment,case,method,run,valid,attempts,problem,goodput_bps,held_peak_bytes,rtt_mean_s,drops_packets"
        );
        assert_eq!(lines[1], "made-up,one,kernel,1,true,1,,9000000,2000000,,0");
        assert_eq!(lines[2], "made-up,one,kernel,2,false,3,\"it \"\"stalled\"\", <twice>\",5000000,,,");
        assert_eq!(lines.len(), 6, "{text}");
    }

    #[test]
    fn results_and_runs_of_several_directories_are_told_apart() {
        let text = runs(&[result(), result()]).unwrap();
        assert_eq!(text.matches("\nmade-up,").count(), 5, "{text}");
        assert_eq!(text.matches("\nmade-up-2,").count(), 5, "{text}");
        assert!(over_time(&[with_samples(), with_samples()]).unwrap().contains("\nmade-up-2,one,"));
        for text in [samples(&[recorded(), recorded()]).unwrap(), links(&[recorded(), recorded()]).unwrap()] {
            assert!(text.contains("\nby hand,") && text.contains("\nby hand-2,"));
        }
    }

    #[test]
    fn what_is_kept_over_time_is_a_line_for_each_step() {
        let text = over_time(&[with_samples()]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("experiment,case,method,run,t_s,rate_bps,queue_bytes,cwnd_bytes,"));
        assert!(lines[0].ends_with(",rtt_s"), "{}", lines[0]);
        assert_eq!(
            lines[1..],
            ["made-up,one,abt & <b>,2,0.1,,,,,,,,,,", "made-up,one,abt & <b>,2,0.2,,,2000,,,,,,,"]
        );
        assert_eq!(over_time(&[result()]).unwrap().lines().count(), 1);
    }

    #[test]
    fn shares_packets_and_segments_are_named() {
        for (quantity, wanted) in [
            (Quantity::Retransmits, "retransmits_segments"),
            (Quantity::RetransmitShare, "retransmit_share"),
            (Quantity::ReceiveWindowLimited, "receive_window_limited_share"),
            (Quantity::CarriedWithin, "carried_within_connections"),
            (Quantity::JainIndex, "jain_index"),
            (Quantity::TransferS, "transfer_s"),
        ] {
            assert_eq!(column(quantity), wanted);
        }
    }

    #[test]
    fn samples_have_as_many_fields_as_their_first_line() {
        let runs = [recorded()];
        for (text, lines) in [(samples(&runs).unwrap(), 63), (links(&runs).unwrap(), 32)] {
            let columns = text.lines().next().unwrap().split(',').count();
            assert_eq!(text.lines().count(), lines);
            assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
        }
        let text = samples(&runs).unwrap();
        assert!(
            text.contains("\nby hand,3,a,198.18.0.1:40000,198.18.0.2:5201,cubic,43000,40000,44480,"),
            "{text}"
        );
    }
}
