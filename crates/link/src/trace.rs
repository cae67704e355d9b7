//! A trace: rate and delay of a path over time.
//!
//! The text form has one step per line, `SECONDS RATE [DELAY]`: from that moment on the rate (and, if given, the
//! one-way delay) holds:
//!
//! ```text
//! # a satellite pass: seconds, rate, one-way delay
//! 0     28.5mbit  20ms
//! 20    6mbit     119ms
//! 25    0                 # outage: nothing leaves until the next step
//! 25.5  -         20ms    # "-": the rate stays as it was
//! 26    28.5mbit
//! 40    repeat            # from here it begins anew
//! ```
//!
//! Properties: each step is strictly later than the one before; a trace never ends in an outage, so a queue always
//! empties in the end; text and number of steps are bounded; each error is one line that names the line of the text.

use std::str::FromStr;

use bufwise_units::{BitRate, Nanos, ParseError};

/// Largest number of steps of a trace.
pub const MAX_STEPS: usize = 100_000;
/// Longest text that a trace is read from, in bytes.
pub const MAX_TEXT: usize = 8 << 20;
/// Shortest period of a repeating trace: below it, stepping would cost more than forwarding.
const MIN_PERIOD: Nanos = Nanos::from_millis(1);

/// One step: the rate and the delay from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time since the link's clock was zero, or since the trace began anew.
    pub at: Nanos,
    /// Rate from here on; zero is an outage, `None` leaves it as it was.
    pub rate: Option<BitRate>,
    /// One-way delay from here on; `None` leaves it as it was.
    pub delay: Option<Nanos>,
}

/// A checked list of steps. Before the first step the direction's own rate and delay hold.
///
/// ```
/// use bufwise_link::{DirectionConfig, Trace};
///
/// let trace: Trace = "0 20mbit 10ms\n60 2mbit 80ms\n90 repeat".parse()?;
/// assert_eq!(trace.steps().len(), 2);
/// let config = DirectionConfig { trace: Some(trace), ..Default::default() };
/// assert_eq!("0 20mbit\n60 0".parse::<Trace>().unwrap_err().to_string(),
///     "trace: ends in an outage (rate 0); add a step with a rate, or a repeat");
/// # Ok::<(), bufwise_link::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    steps: Vec<Step>,
    period: Option<Nanos>,
}

/// Why a text or a list of steps is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// There is no step.
    #[error("trace: no step in it")]
    Empty,
    /// There are more than [`MAX_STEPS`].
    #[error("trace: more than {MAX_STEPS} steps")]
    TooManySteps,
    /// The text is longer than [`MAX_TEXT`].
    #[error("trace: longer than {MAX_TEXT} bytes")]
    TooLong,
    /// A line of the text cannot be read.
    #[error("trace line {line}: {why}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The fault in it.
        why: String,
    },
    /// A step is not later than the one before it.
    #[error("trace: the step at {at} is not later than the one before it")]
    Order {
        /// The time of the step.
        at: Nanos,
    },
    /// The period ends at or before the last step, or is below 1 ms.
    #[error("trace: repeats at {period}, which must be later than its last step and at least 1ms")]
    Period {
        /// The time at which it would begin anew.
        period: Nanos,
    },
    /// The trace ends in an outage: no packet would ever leave the link again.
    #[error("trace: ends in an outage (rate 0); add a step with a rate, or a repeat")]
    EndlessOutage,
}

impl Trace {
    /// Checks a list of steps; with a `period` the trace begins anew after it.
    ///
    /// # Errors
    /// [`TraceError`] when the list is empty, too long or out of order, when the period ends at or before the last step
    /// or is below 1 ms, or when the link would stay in an outage for ever.
    pub fn new(steps: Vec<Step>, period: Option<Nanos>) -> Result<Self, TraceError> {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Err(TraceError::Empty) };
        if steps.len() > MAX_STEPS {
            return Err(TraceError::TooManySteps);
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[1].at <= pair[0].at) {
            return Err(TraceError::Order { at: pair[1].at });
        }
        let mut rates = steps.iter().filter_map(|step| step.rate);
        let endless = match period {
            Some(period) if period <= last.at || period < MIN_PERIOD => {
                return Err(TraceError::Period { period });
            }
            // The direction's own rate, never zero, holds until the first step that sets one.
            Some(_) => first.at == Nanos::ZERO && first.rate.is_some() && rates.all(|rate| rate.0 == 0),
            None => rates.next_back() == Some(BitRate(0)),
        };
        if endless { Err(TraceError::EndlessOutage) } else { Ok(Self { steps, period }) }
    }

    /// Returns the steps, in order of time.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the time after which the trace begins anew; `None`: its last step holds for ever.
    #[must_use]
    pub const fn period(&self) -> Option<Nanos> {
        self.period
    }

    /// Whether any step sets a rate.
    pub(crate) fn has_rates(&self) -> bool {
        self.steps.iter().any(|step| step.rate.is_some())
    }

    /// Whether the trace sets a rate at time zero, so that the direction needs none of its own.
    pub(crate) fn starts_with_a_rate(&self) -> bool {
        self.steps.first().is_some_and(|step| step.at == Nanos::ZERO && step.rate.is_some())
    }

    /// Whether the trace sets a delay at time zero, so that the direction's own never holds.
    pub(crate) fn starts_with_a_delay(&self) -> bool {
        self.steps.first().is_some_and(|step| step.at == Nanos::ZERO && step.delay.is_some())
    }

    /// Returns the shortest delay that any step sets.
    pub(crate) fn shortest_delay(&self) -> Option<Nanos> {
        self.steps.iter().filter_map(|step| step.delay).min()
    }
}

impl FromStr for Trace {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        if text.len() > MAX_TEXT {
            return Err(TraceError::TooLong);
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut period = None;
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().take(4).collect();
            if words.is_empty() {
                continue;
            }
            let at_line = |why: String| TraceError::Line { line: index + 1, why };
            if period.is_some() {
                return Err(at_line("nothing may follow the repeat".into()));
            }
            if steps.len() == MAX_STEPS {
                return Err(TraceError::TooManySteps);
            }
            let (at, entry) = read_line(&words).map_err(at_line)?;
            if steps.last().is_some_and(|before| at <= before.at) {
                return Err(at_line(format!("{at} is not later than the line before")));
            }
            match entry {
                Some((rate, delay)) => steps.push(Step { at, rate, delay }),
                None => period = Some(at),
            }
        }
        Self::new(steps, period)
    }
}

type Change = (Option<BitRate>, Option<Nanos>);

/// Reads one line: its time, and what changes then; `None`: the trace begins anew.
fn read_line(words: &[&str]) -> Result<(Nanos, Option<Change>), String> {
    let text = |error: ParseError| error.to_string();
    match *words {
        [at, "repeat"] => Ok((Nanos::from_seconds(at).map_err(text)?, None)),
        [at, rate, ref rest @ ..] if rest.len() < 2 => {
            let at = Nanos::from_seconds(at).map_err(text)?;
            let rate = if rate == "-" { None } else { Some(rate.parse().map_err(text)?) };
            let delay = rest.first().map(|delay| delay.parse()).transpose().map_err(text)?;
            Ok((at, Some((rate, delay))))
        }
        _ => Err("a line reads SECONDS RATE [DELAY], or SECONDS repeat".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(secs: u64, rate: Option<u64>, delay: Option<u64>) -> Step {
        Step { at: Nanos::from_secs(secs), rate: rate.map(BitRate), delay: delay.map(Nanos::from_millis) }
    }

    #[test]
    fn a_trace_reads_line_by_line() {
        let text =
            "# a pass\n0 28.5mbit 20ms\n\n20 6mbit 119ms # slow\n 25\t0\n26 - 20ms\n27 10mbit\n40 repeat\n";
        let trace: Trace = text.parse().unwrap();
        assert_eq!(
            trace.steps(),
            [
                step(0, Some(28_500_000), Some(20)),
                step(20, Some(6_000_000), Some(119)),
                step(25, Some(0), None),
                step(26, None, Some(20)),
                step(27, Some(10_000_000), None),
            ]
        );
        assert_eq!(trace.period(), Some(Nanos::from_secs(40)));
    }

    #[test]
    fn an_error_is_one_line_and_names_the_line() {
        for (text, wanted) in [
            ("0 1mbit\nnonsense", "trace line 2: a line reads"),
            ("0 1mbit\n\n1 1mb", "trace line 3: `1mb` is not a rate"),
            ("0 1mbit 5", "trace line 1: `5` is not a time"),
            ("0 1mbit 5ms x", "trace line 1: a line reads"),
            ("1s 1mbit", "trace line 1: `1s` is not a time"),
            ("1 1mbit\n1 2mbit", "trace line 2: 1s is not later"),
            ("1 1mbit\n1 repeat", "trace line 2: 1s is not later"),
            ("1 1mbit\n2 repeat\n3 1mbit", "trace line 3: nothing may follow"),
            ("# nothing\n", "no step"),
            ("5 repeat", "no step"),
            ("0 1mbit\n3 0", "ends in an outage"),
            ("0 1mbit\n3 0\n4 - 9ms", "ends in an outage"),
            ("0 0\n3 0\n4 repeat", "ends in an outage"),
        ] {
            let error = text.parse::<Trace>().expect_err(text).to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_outage_that_ends_is_a_trace() {
        for text in ["0 0\n3 1mbit", "0 1mbit\n3 0\n4 repeat", "1 0\n3 repeat", "0 - 3ms\n1 0\n2 repeat"] {
            assert!(text.parse::<Trace>().is_ok(), "{text}");
        }
    }

    #[test]
    fn size_is_bounded() {
        let many = |count| (0..count).map(|n| step(n, Some(1), None)).collect::<Vec<_>>();
        assert!(Trace::new(many(MAX_STEPS as u64), None).is_ok());
        assert_eq!(Trace::new(many(MAX_STEPS as u64 + 1), None), Err(TraceError::TooManySteps));
        assert_eq!(" ".repeat(MAX_TEXT + 1).parse::<Trace>(), Err(TraceError::TooLong));
        assert!(matches!(
            Trace::new(many(1), Some(Nanos(999_999))),
            Err(TraceError::Period { period: Nanos(999_999) })
        ));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([0-9.]{1,4} ([0-9]{1,3}(mbit|kbit)?|-|repeat)( [0-9]{1,3}ms)?[#\n ]){0,6}.{0,10}") {
            let _: Result<Trace, _> = text.parse();
        }
    }
}
