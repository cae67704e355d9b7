//! Finds what experiments need on this machine: congestion controls, and the web server.

use std::env;

use super::model::WEB_SERVER;
use crate::congestion;

/// Returns the names of the congestion controls of the kernel, and of the web server if it is installed.
pub(super) fn available() -> Vec<String> {
    let web_server = is_installed(WEB_SERVER).then(|| WEB_SERVER.to_owned());
    congestion::available().into_iter().chain(web_server).collect()
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
