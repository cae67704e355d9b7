//! Progress bar of `lab run`, by the planned time of each experiment, with the time left.

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::output;

/// The progress bar, shown only on a terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    plan: Plan,
    began: Instant,
}

/// Planned seconds, and how many of them have passed.
#[derive(Debug)]
struct Plan {
    whole: u64,
    /// Seconds of finished experiments.
    done: u64,
    /// Seconds planned for the running experiment.
    of_this: u64,
}

impl Bar {
    /// Makes a bar for `whole` seconds.
    pub(super) fn new(whole: u32) -> Self {
        let plan = Plan { whole: whole.into(), done: 0, of_this: 0 };
        let bar = ProgressBar::new(plan.whole.max(1));
        let style = ProgressStyle::with_template("{wide_bar} {percent}% {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, plan, began: Instant::now() }
    }

    /// Starts an experiment that is planned to take `seconds`.
    pub(super) fn begins(&mut self, seconds: u32) {
        self.plan.done += self.plan.of_this;
        self.plan.of_this = seconds.into();
        self.began = Instant::now();
        self.show();
    }

    /// Writes a line above the bar.
    pub(super) fn line(&self, line: &str) {
        self.bar.suspend(|| output::note(&format!("{line}\n")));
        self.show();
    }

    /// Hides the bar while `write` uses the terminal.
    pub(super) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    fn show(&self) {
        let position = self.plan.position(self.began.elapsed());
        self.bar.set_position(position);
        let left = Duration::from_secs(self.plan.whole.saturating_sub(position));
        self.bar.set_message(format!("about {} left", HumanDuration(left)));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Plan {
    /// Returns the planned seconds that have passed; an experiment that takes longer than planned stays at its end.
    fn position(&self, elapsed: Duration) -> u64 {
        self.done + elapsed.as_secs().min(self.of_this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_takes_no_more_of_the_bar_than_was_planned() {
        let plan = Plan { whole: 100, done: 40, of_this: 20 };
        let at = |seconds| plan.position(Duration::from_secs(seconds));
        assert_eq!((at(0), at(7), at(20), at(90)), (40, 47, 60, 60));
    }
}
