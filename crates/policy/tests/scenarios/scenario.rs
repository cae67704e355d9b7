//! A scenario: one path, every policy under Reno and under CUBIC; its golden and its picture.

use std::path::Path as FilePath;

use bufwise_link::{DirectionConfig, Path, PathBuilder, Trace};
use bufwise_units::Nanos;

use crate::congestion::Algorithm;
use crate::outcome::{self, Outcome};
use crate::subject::Subject;
use crate::svg;
use crate::world::World;

const SEED: u64 = 1;

/// A path, and how long data flow over it.
pub(crate) struct Scenario {
    /// Name of the golden and of the picture.
    pub(crate) name: &'static str,
    /// Description of the path in one line, for the golden.
    pub(crate) path: &'static str,
    pub(crate) builder: PathBuilder,
    pub(crate) rtt: Nanos,
    /// Changes the forward direction alone.
    pub(crate) forward: fn(DirectionConfig) -> DirectionConfig,
    pub(crate) seconds: u64,
    pub(crate) subjects: Vec<Subject>,
    /// Whether the path is fast enough for SOBAS's probes.
    pub(crate) probing: bool,
    /// Unit of goodput in the golden.
    pub(crate) unit: (u64, &'static str),
}

/// Parses the trace of a direction ([`DirectionConfig::trace`]). A trace with a fault fails the test: without it the path would not
/// change.
pub(crate) fn trace(text: &str) -> Option<Trace> {
    match text.parse::<Trace>() {
        Ok(trace) => Some(trace),
        Err(error) => panic!("{text:?}: {error}"),
    }
}

/// The runs of a scenario.
pub(crate) struct Runs(Vec<(Subject, Algorithm, Outcome)>);

impl Scenario {
    /// Runs all subjects, and draws the picture if `BUFWISE_SVG` is set.
    pub(crate) fn run(&self) -> Runs {
        let mut runs = Vec::new();
        for &subject in &self.subjects {
            for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
                let (forward, backward) = self.builder.configs();
                let path = Path::new((self.forward)(forward), backward, SEED).expect("a valid path");
                let world = World::new(path, self.rtt, subject, algorithm, self.probing);
                let run = world.run(self.seconds);
                // The sender repairs each loss once, unless its timer mistakes a delay for a loss.
                let name = subject.name();
                assert!(
                    run.timeouts > 0 || run.retransmissions <= run.drops,
                    "{name}, {}: spurious",
                    algorithm.name()
                );
                runs.push((subject, algorithm, run));
            }
        }
        let runs = Runs(runs);
        if let Some(folder) = std::env::var_os("BUFWISE_SVG") {
            svg::draw(self, &runs.named(), FilePath::new(&folder));
        }
        runs
    }

    /// Compares the table with the golden.
    pub(crate) fn assert_golden(&self, runs: &Runs) {
        let table = outcome::table(&runs.named(), self.unit);
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../goldens");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_description(self.path);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(self.name, table));
    }
}

impl Runs {
    /// Returns the run of a subject under one congestion control.
    pub(crate) fn of(&self, subject: Subject, algorithm: Algorithm) -> &Outcome {
        let run = self.0.iter().find(|run| (run.0, run.1) == (subject, algorithm));
        &run.expect("the scenario ran it").2
    }

    /// Returns the runs of a subject under Reno and CUBIC, with their names for messages.
    pub(crate) fn both(&self, subject: Subject) -> [(&'static str, &Outcome); 2] {
        [Algorithm::Reno, Algorithm::Cubic].map(|rule| (rule.name(), self.of(subject, rule)))
    }

    fn named(&self) -> Vec<(String, Outcome)> {
        let label = |subject: &Subject, rule: &Algorithm| format!("{}, {}", subject.name(), rule.name());
        self.0.iter().map(|(subject, rule, run)| (label(subject, rule), run.clone())).collect()
    }
}
