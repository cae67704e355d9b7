//! Adds the kernel alone beside each of the papers' methods: CUBIC, Reno and BBR, with its own autotuning.

use super::model::{Experiment, Ftp, Method, USUAL_RMEM, USUAL_WMEM};

/// Longest time of an experiment with one repetition, seconds; cases that would exceed it do without these methods.
pub(super) const LONGEST: u32 = 300;

/// The experiment that has only probes.
const WITHOUT: &str = "path-fig1-3";

/// The congestion controls, with the names of the methods.
const KERNELS: [(&str, &str); 3] =
    [("cubic", "kernel, cubic"), ("reno", "kernel, reno"), ("bbr", "kernel, bbr")];

/// Adds to `experiment` the kernel's methods that it lacks, beginning with its last case, as long as there is time. An
/// experiment of the engine stays unchanged.
pub(super) fn with_kernels(mut experiment: Experiment) -> Experiment {
    if experiment.source == "engine" || experiment.id == WITHOUT {
        return experiment;
    }
    let own: Vec<&'static str> = experiment.methods.iter().map(|method| method.name).collect();
    let added: Vec<Method> = missing(&experiment.methods);
    let names: Vec<&'static str> = added.iter().map(|method| method.name).collect();
    experiment.methods.extend(added);
    for case in &mut experiment.cases {
        if case.setup.methods.is_empty() {
            case.setup.methods.clone_from(&own);
        }
    }
    for case in (0..experiment.cases.len()).rev() {
        let before = experiment.cases[case].setup.methods.len();
        experiment.cases[case].setup.methods.extend(&names);
        if experiment.seconds(false, Some(1)) > LONGEST {
            experiment.cases[case].setup.methods.truncate(before);
        }
    }
    let used = |name| experiment.cases.iter().any(|case| case.setup.methods.contains(&name));
    experiment.methods.retain(|method| used(method.name));
    experiment
}

/// Returns the kernel's methods that are not among `methods`, with the same programs and buffers as large.
fn missing(methods: &[Method]) -> Vec<Method> {
    let there = |name: &str| methods.iter().any(|one| is_plain(one) && one.congestion_control == name);
    let Some(like) = methods.iter().find(|one| is_plain(one)).or(methods.first()) else { return Vec::new() };
    let ftp = Ftp { client: like.ftp.client.map(|_| "kernel"), server: like.ftp.server.map(|_| "") };
    let kernel = |(congestion_control, name)| Method {
        name,
        congestion_control,
        rmem: like.rmem.max(USUAL_RMEM),
        wmem: like.wmem.max(USUAL_WMEM),
        ftp,
        beside: true,
        ..Method::default()
    };
    KERNELS.into_iter().filter(|(name, _)| !there(name)).map(kernel).collect()
}

/// Whether the kernel alone sizes the buffers, with its usual settings.
fn is_plain(method: &Method) -> bool {
    let policies = [method.client, method.server, method.ftp.client];
    let by_kernel = policies.into_iter().flatten().all(|policy| policy == "kernel");
    by_kernel && method.sender.is_empty() && method.receiver.is_empty() && method.initial_window.is_none()
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    #[test]
    fn papers_have_every_kernel_beside_them_where_there_is_time() {
        for experiment in catalogue().iter().filter(|experiment| experiment.source != "engine") {
            let complete = missing(&experiment.methods).is_empty();
            assert_eq!(complete, experiment.id != WITHOUT, "{}", experiment.id);
            let in_a_case = |method: &Method| {
                experiment
                    .cases
                    .iter()
                    .any(|case| experiment.methods(case, false).any(|one| one.name == method.name))
            };
            assert!(experiment.methods.iter().all(in_a_case), "{}", experiment.id);
        }
    }

    #[test]
    fn the_quick_form_goes_without() {
        for experiment in catalogue() {
            for case in experiment.cases(true) {
                assert!(experiment.methods(case, true).all(|method| !method.beside), "{}", experiment.id);
            }
        }
    }
}
