//! Steps of an experiment. Each has random numbers of its own, so that it can be repeated alone.

use std::env;
use std::time::{Duration, Instant};

use bufwise_link::Draw;

/// Steps of an experiment in the long form.
const RUNS: u32 = 500;

/// Random numbers of one step.
pub(crate) struct Random(Draw);

impl Random {
    pub(crate) fn of(seed: u64, step: u32) -> Self {
        Self(Draw(Draw(seed).between(0, u64::MAX) ^ u64::from(step)))
    }

    /// Draws a number, uniform in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.between(0, bound - 1)
    }

    /// Returns independent random numbers for a part of the step.
    pub(crate) fn fork(&mut self) -> Self {
        Self(Draw(self.0.between(0, u64::MAX)))
    }

    /// Draws an instant within `whole`, or a little after it.
    pub(crate) fn instant(&mut self, whole: Duration) -> Duration {
        let micros = u64::try_from(whole.as_micros()).unwrap() * 5 / 4;
        Duration::from_micros(self.below(micros + 1))
    }
}

/// Prints how to repeat a step, if it fails.
struct Step {
    name: &'static str,
    seed: u64,
    step: u32,
}

impl Drop for Step {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed, step } = self;
            eprintln!(
                "chaos: {name} failed at step {step} of seed {seed}; again: CHAOS_SEED={seed} CHAOS_STEP={step} make chaos NAME={name}"
            );
        }
    }
}

/// Returns `CHAOS_SEED`.
pub(crate) fn seed() -> u64 {
    number("CHAOS_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Whether this is the suite's short form: neither a number of steps nor a step is requested.
pub(crate) fn is_short() -> bool {
    number("CHAOS_RUNS").or(number("CHAOS_STEP")).is_none()
}

/// Runs the steps of an experiment: `CHAOS_RUNS` of them, [`RUNS`] for 0, or `CHAOS_STEP` alone; in the suite `short`.
pub(crate) fn steps(name: &'static str, short: u32, mut run: impl FnMut(u32, &mut Random)) {
    let seed = seed();
    let count = match number("CHAOS_RUNS") {
        None => short,
        Some(0) => RUNS,
        Some(count) => u32::try_from(count).unwrap(),
    };
    let steps = match number("CHAOS_STEP") {
        Some(step) => u32::try_from(step).unwrap()..u32::try_from(step).unwrap() + 1,
        None => 0..count,
    };
    let (began, count) = (Instant::now(), steps.len());
    for step in steps {
        let says = Step { name, seed, step };
        run(step, &mut Random::of(seed, step));
        std::mem::forget(says);
    }
    eprintln!("chaos: {name}: {count} steps of seed {seed} in {} s", began.elapsed().as_secs());
}
