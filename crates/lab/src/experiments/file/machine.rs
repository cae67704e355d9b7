//! Checks that this machine has the congestion controls and the network settings that a file names, so that a run does not
//! fail after minutes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use toml::Spanned;

use super::Policies;
use super::format::{File, Word};
use super::read::Fault;
use crate::congestion;

impl Policies {
    /// Returns the same checks of policies, with those of this machine's congestion controls and settings.
    #[must_use]
    pub fn on_this_machine(self) -> Self {
        Self {
            congestion_control: |name| congestion::check(name).map_err(|error| error.to_string()),
            setting,
            ..self
        }
    }
}

/// Checks the congestion controls and the settings of the whole file.
pub(super) fn check(file: &File, policies: &Policies) -> Result<(), Fault> {
    let checked = |word: &Word, check: fn(&str) -> Result<(), String>| {
        check(word.get_ref()).map_err(|what| Fault::at(word, what))
    };
    let methods = || file.method.iter().map(Spanned::get_ref);
    // A method that is only for comparison is left out if the kernel lacks its congestion control, so it is not checked.
    let needed = methods().filter(|method| method.beside != Some(true));
    let of_methods = needed.filter_map(|method| method.congestion_control.as_ref());
    let workloads = file.case.iter().flat_map(|case| &case.get_ref().workload).chain(&file.workload);
    let of_workloads = workloads.filter_map(|workload| workload.get_ref().congestion_control.as_ref());
    of_methods.chain(of_workloads).try_for_each(|word| checked(word, policies.congestion_control))?;
    let of_hosts = methods().flat_map(|method| [&method.sender, &method.receiver]);
    let settings = of_hosts.chain(file.case.iter().map(|case| &case.get_ref().settings));
    settings.flat_map(BTreeMap::keys).try_for_each(|key| checked(key, policies.setting))
}

/// Checks that the hosts have a network setting of their own.
fn setting(key: &str) -> Result<(), String> {
    // The interfaces of the hosts, bw0 and on, are made with each run; they have the settings of the default.
    let is_of_run = |part: &str| part.strip_prefix("bw").is_some_and(|number| number.parse::<u8>().is_ok());
    let file: PathBuf = key.split('.').map(|part| if is_of_run(part) { "default" } else { part }).collect();
    let file = Path::new("/proc/sys").join(file);
    if in_new_network(|| is_settable(&file)) {
        return Ok(());
    }
    Err(if file.is_file() {
        format!(
            "the hosts cannot set `{key}`: it is of the whole machine or of one of its interfaces, or only to be read"
        )
    } else {
        format!(
            "this kernel has no setting `{key}`: `sysctl -a` lists those that it has, of which net.* are allowed"
        )
    })
}

/// Whether root can set it; for another user, who can set nothing, whether it is there.
fn is_settable(file: &Path) -> bool {
    // Opening alone changes no setting.
    let is_writable = || fs::File::options().write(true).open(file).is_ok();
    file.is_file() && (!geteuid().is_root() || is_writable())
}

/// Runs `work` in a new network namespace, which has the settings that hosts have; without the privilege to make one, in the present
/// one.
fn in_new_network<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _without_privilege = unshare(CloneFlags::CLONE_NEWNET);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_this_kernel_and_of_the_hosts_interfaces() {
        for key in ["net.ipv4.tcp_rmem", "net.ipv4.conf.lo.forwarding", "net.ipv4.conf.bw12.forwarding"] {
            assert_eq!(setting(key), Ok(()));
        }
        for key in ["net.ipv4.tcp_no_such", "net.ipv4", "net.ipv4.conf.bw.forwarding"] {
            let error = setting(key).expect_err(key);
            assert!(error.contains(&format!("`{key}`")) && error.contains("sysctl -a"), "{error}");
        }
    }

    #[test]
    fn root_settings_of_the_whole_machine_are_none_of_the_hosts() {
        for key in ["net.ipv4.tcp_mem", "net.core.rmem_max"] {
            let error = setting(key).expect_err(key);
            // A container may not show it either.
            let is_shown = Path::new("/proc/sys").join(key.replace('.', "/")).is_file();
            assert_eq!(error.contains(&format!("the hosts cannot set `{key}`")), is_shown, "{error}");
        }
    }
}
