//! Finds what experiments need on this machine: congestion controls, and the web server.

use std::collections::BTreeSet;
use std::env;

use super::model::{Experiment, WEB_SERVER};
use crate::congestion;

/// Returns the names of the congestion controls that `experiment` needs and the kernel has, loaded or as a module, and of the web
/// server if it is installed.
pub(super) fn available(experiment: &Experiment) -> Vec<String> {
    let of_methods = experiment.methods.iter().map(|method| method.congestion_control);
    let of_flows = experiment.cases.iter().flat_map(|case| &case.flows);
    let needed: BTreeSet<&str> =
        of_methods.chain(of_flows.filter_map(|flow| flow.congestion_control)).collect();
    let there = needed.into_iter().filter(|name| congestion::check(name).is_ok());
    let web_server = is_installed(WEB_SERVER).then_some(WEB_SERVER);
    there.chain(web_server).map(str::to_owned).collect()
}

/// Whether the shell would find the program.
fn is_installed(program: &str) -> bool {
    let directories = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&directories).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_the_shell_finds_them() {
        assert!(is_installed("sh") && !is_installed("no-such-program"));
    }
}
