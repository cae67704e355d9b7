//! Finds why the kernel refused a program, in one line.
//!
//! Problem: the kernel answers EINVAL and gives the reason in the verifier's log, which libbpf prints as a warning of
//! many lines. While a program is loaded these warnings are kept, and the line that names the cause is selected.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

/// libbpf's warnings since the last call of [`listen`]; loads of several threads take turns.
static WARNINGS: Mutex<String> = Mutex::new(String::new());
static TURN: Mutex<()> = Mutex::new(());

/// The verifier's log ends with its statistics; the line before is the cause.
const STATISTICS: &str = "processed ";
/// Beginnings of lines about the verifier's work rather than the program.
const NOISE: [&str; 5] = ["verification time", "stack depth", "--", "libbpf: ", "The sequence of"];
/// Marks a kernel that lacks a field or type.
const MISSING: &str = "failed to resolve CO-RE relocation";
/// Marks a kernel whose types are not described, or in whose root `/sys` is not mounted; the system call's error says ESRCH.
const NO_TYPES: &str = "failed to find valid kernel BTF";
/// Longest cause, in characters.
const LONGEST: usize = 160;

/// Keeps libbpf's warnings while it lives.
pub(crate) struct Listening(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

/// Starts keeping warnings.
pub(crate) fn listen() -> Listening {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    kept().clear();
    set_print(Some((PrintLevel::Warn, |_, text| kept().push_str(&text))));
    Listening(turn)
}

impl Listening {
    /// Returns the cause that the warnings name, or else the system call's error.
    pub(crate) fn cause(&self, answer: &libbpf_rs::Error) -> String {
        cause_in(&kept()).unwrap_or_else(|| answer.to_string())
    }
}

fn kept() -> MutexGuard<'static, String> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cause_in(log: &str) -> Option<String> {
    if log.contains(NO_TYPES) {
        return Some("there is no BTF of the kernel at /sys/kernel/btf/vmlinux".to_owned());
    }
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let field = lines.iter().rev().find(|line| line.contains(MISSING));
    let end = lines.iter().rposition(|line| line.starts_with(STATISTICS)).unwrap_or(0);
    let before = lines[..end].iter().rev().find(|line| !NOISE.iter().any(|noise| line.starts_with(noise)));
    let mut cause = (*field.or(before)?).to_owned();
    if let Some((at, _)) = cause.char_indices().nth(LONGEST) {
        cause.truncate(at);
    }
    Some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_the_verifier_stumbled_on_is_the_cause() {
        let log = "libbpf: prog 'x': BPF program load failed: EINVAL\nlibbpf: -- BEGIN PROG LOAD LOG --\n\
                   20: (85) call bpf_get_socket_cookie#46\nunknown func bpf_get_socket_cookie#46\n\
                   verification time 41763 usec\nstack depth 32+0\nprocessed 20 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        assert_eq!(cause_in(log).as_deref(), Some("unknown func bpf_get_socket_cookie#46"));
        let log = "232: <invalid CO-RE relocation>\nfailed to resolve CO-RE relocation <byte_off> [78] struct \
                   tcp_sock.scaling_ratio (0:25 @ offset 256)\nprocessed 2181 insns\n";
        assert!(cause_in(log).unwrap().contains("tcp_sock.scaling_ratio"));
        let log = "libbpf: kernel BTF is missing at '/sys/kernel/btf/vmlinux', was CONFIG_DEBUG_INFO_BTF enabled?\n\
                   libbpf: failed to find valid kernel BTF\nlibbpf: Error loading vmlinux BTF: -ESRCH\n";
        assert!(cause_in(log).unwrap().contains("no BTF of the kernel"));
        assert_eq!(cause_in("libbpf: Error in bpf_create_map_xattr\n"), None);
        assert_eq!(cause_in(""), None);
    }
}
