//! The last words of programs that failed, for messages.

/// Beginnings of the lines that `bufwise run` prints on its tuning, after its own name. Another one begins with a number.
const OF_RUN: [&str; 4] = ["policy ", "engine: ", "note: ", "the memory of "];

/// Returns the last line that programs printed, without spaces around it. The report of `bufwise run` does not count: it follows the
/// words of the program that ran, and says nothing of a failure.
pub(crate) fn of(printed: &str) -> Option<&str> {
    let has_report = printed.lines().any(|line| line.starts_with("bufwise: policy "));
    let counts = |line: &&str| !(line.trim().is_empty() || has_report && is_of_report(line));
    printed.lines().rev().find(counts).map(str::trim)
}

/// Whether a line is of such a report, in which those on a connection are indented.
fn is_of_report(line: &str) -> bool {
    let is_counted = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    let is_own = |rest: &str| is_counted(rest) || OF_RUN.iter().any(|begin| rest.starts_with(begin));
    line.starts_with("  ") || line.strip_prefix("bufwise: ").is_some_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
bufwise: policy fit (send), kernel (receive); 0.1 s; 15 connections; send queues held at most 1 KB
bufwise: engine: in the kernel
  to 198.18.0.2:5201: 1 KB in 0.1 s
    bufwise changed nothing
bufwise: 3 more with less data: --json has all
bufwise: note: meanwhile bw0 takes 4 KB
";

    #[test]
    fn a_report_of_bufwise_run_hides_no_last_words() {
        assert_eq!(of(&format!("starting\n iperf3: bind failed \n\n{REPORT}")), Some("iperf3: bind failed"));
        let fails = "bufwise: cannot fetch from 198.18.0.2:5201";
        for told in [format!("{REPORT}{fails}\n"), format!("{fails}\n{REPORT}")] {
            assert_eq!(of(&told), Some(fails));
        }
        assert_eq!([of(REPORT), of(" \n")], [None; 2]);
        assert_eq!(of("Traceback:\n  in line 1\n"), Some("in line 1"), "there is no report");
    }
}
