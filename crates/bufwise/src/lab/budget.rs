//! `lab run --budget`: chooses the experiments that fit into a time.
//!
//! The shortest are chosen first, so that as many questions as possible get an answer; they run in their usual order.
//! The time of each is its own estimate; the emulator is judged before them. Repeated runs take longer, so the clock is
//! checked again before each start.

use std::str::FromStr;
use std::time::{Duration, Instant};

use bufwise_lab::check::BEFORE_SECONDS;
use bufwise_lab::experiments::Experiment;
use bufwise_units::Nanos;

use super::experiments::duration;
use crate::exit::Failure;
use crate::output;

/// Time for all experiments together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget(Duration);

impl FromStr for Budget {
    type Err = String;

    /// Parses `30min`, `2h`, `1.5h`, and the units of all other options.
    fn from_str(text: &str) -> Result<Self, String> {
        let long = [("min", 60.0), ("h", 3_600.0)].into_iter().find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            Duration::try_from_secs_f64(number * seconds).ok()
        });
        let time =
            long.or_else(|| text.parse::<Nanos>().ok().map(|Nanos(nanos)| Duration::from_nanos(nanos)));
        time.filter(|time| !time.is_zero())
            .map(Self)
            .ok_or_else(|| "give a time, as 90s, 30min or 2h".to_owned())
    }
}

/// The time that is left; without a budget everything fits.
pub(super) struct Rest {
    ends: Option<Instant>,
}

impl Rest {
    /// Starts the clock, and keeps those of `experiments` that fit; the names of the others are printed. `seconds`
    /// returns the time of one.
    ///
    /// # Errors
    /// Wrong usage if not even the shortest fits.
    pub(super) fn of(
        budget: Option<Budget>,
        experiments: &mut Vec<Experiment>,
        seconds: impl Fn(&Experiment) -> u32,
    ) -> Result<Self, Failure> {
        let Some(Budget(budget)) = budget else { return Ok(Self { ends: None }) };
        let times: Vec<u32> = experiments.iter().map(&seconds).collect();
        let chosen = chosen(&times, budget.as_secs().saturating_sub(BEFORE_SECONDS));
        let line = |one: &Experiment| format!("{} ({})", one.id, duration(seconds(one)));
        if let (Some(shortest), false) =
            (experiments.iter().min_by_key(|one| seconds(one)), chosen.contains(&true))
        {
            return Err(Failure::usage(format!(
                "--budget: nothing fits: the emulator is judged for {BEFORE_SECONDS} s, and the shortest is {}; give more, or \
                 --quick, or a smaller --repeat",
                line(shortest)
            )));
        }
        let out: Vec<String> = experiments
            .iter()
            .zip(&chosen)
            .filter(|(_, is_chosen)| !**is_chosen)
            .map(|(one, _)| line(one))
            .collect();
        let mut is_chosen = chosen.iter();
        experiments.retain(|_| is_chosen.next() == Some(&true));
        if !out.is_empty() {
            let whole = experiments.iter().map(&seconds).fold(0, u32::saturating_add);
            output::note(&format!(
                "{} of {} experiments fit, in about {}; left out: {}\n",
                experiments.len(),
                times.len(),
                duration(whole),
                out.join(", ")
            ));
        }
        Ok(Self { ends: Instant::now().checked_add(budget) })
    }

    /// Whether something that takes `seconds` still ends in time.
    pub(super) fn allows(&self, seconds: u32) -> bool {
        let end = Instant::now().checked_add(Duration::from_secs(seconds.into()));
        self.ends.is_none_or(|ends| end.is_some_and(|end| end <= ends))
    }
}

/// Returns for each of the times whether it fits into `budget`, taking the shortest first.
fn chosen(times: &[u32], budget: u64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..times.len()).collect();
    order.sort_by_key(|index| times[*index]);
    let (mut left, mut chosen) = (budget, vec![false; times.len()]);
    for index in order {
        let Some(rest) = left.checked_sub(times[index].into()) else { break };
        (left, chosen[index]) = (rest, true);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_reads_as_people_write_it() {
        let seconds = |text: &str| text.parse::<Budget>().map(|Budget(time)| time.as_secs());
        for (text, wanted) in [("30min", 1_800), ("2h", 7_200), ("1.5h", 5_400), ("90s", 90)] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for text in ["", "30", "0min", "-1h", "min", "NaNh", "1e300h", "soon"] {
            assert!(seconds(text).unwrap_err().contains("30min"), "{text}");
        }
    }

    #[test]
    fn the_shortest_fit_first_and_keep_their_order() {
        assert_eq!(chosen(&[50, 10, 40, 20], 75), [false, true, true, true]);
        assert_eq!(chosen(&[50, 10, 40, 20], 120), [true; 4]);
        assert_eq!(chosen(&[50, 10], 9), [false; 2]);
    }

    #[test]
    fn what_does_not_fit_goes_and_without_a_budget_all_stays() {
        let catalogue = bufwise_lab::experiments::catalogue;
        let seconds = |experiment: &Experiment| experiment.seconds(true, Some(1));
        let mut all = catalogue();
        assert!(Rest::of(None, &mut all, seconds).is_ok_and(|rest| rest.allows(u32::MAX)));
        assert_eq!(all.len(), catalogue().len());
        let rest = Rest::of("10min".parse().ok(), &mut all, seconds).unwrap_or_else(|_| panic!("some fit"));
        assert!(rest.allows(590) && !rest.allows(601));
        assert!(
            all.iter().map(seconds).sum::<u32>() <= 600 && all.len() > 10 && all.len() < catalogue().len()
        );
        assert!(Rest::of("1s".parse().ok(), &mut all, seconds).is_err());
    }
}
