//! Children of this process that have ended, whatever ended them.
//!
//! Problem: a real-time signal (signal(7)) has no name, and the library's calls answer with an error if one has ended a child. The
//! caller then does not learn which child has ended, cannot take it away, and meets the same error the next time.
//! Source: waitid(2).

#![expect(unsafe_code, reason = "the library's waitid() fails for children that real-time signals ended")]

use std::io;
use std::mem;

/// Returns the process ID of a child that has ended and has not been waited for; `None`: there is none. The child stays as it is.
///
/// # Errors
/// This process has no child.
pub fn ended() -> io::Result<Option<i32>> {
    waitid(libc::WNOHANG)
}

/// As [`ended`], but waits until there is one.
///
/// # Errors
/// This process has no child, or a signal has interrupted the wait.
pub fn wait_for_end() -> io::Result<Option<i32>> {
    waitid(0)
}

fn waitid(flags: libc::c_int) -> io::Result<Option<i32>> {
    // SAFETY: a siginfo_t of zeros is valid; its `si_pid` stays zero if no child has ended.
    let mut found: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t, which outlives the call.
    let answer =
        unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, libc::WEXITED | libc::WNOWAIT | flags) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled the fields of a child, or left the zeros.
    let pid = unsafe { found.si_pid() };
    Ok((pid != 0).then_some(pid))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// Tests run beside each other in one process, which may have other children.
    fn is_seen_to_end(child: &Child) -> bool {
        let (pid, deadline) = (Some(child.id().cast_signed()), Instant::now() + Duration::from_secs(10));
        while Instant::now() < deadline {
            if ended().unwrap() == pid {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn a_child_that_a_real_time_signal_ended_is_named_until_it_is_waited_for() {
        let mut child = Command::new("sh").args(["-c", "kill -40 $$"]).spawn().unwrap();
        let seen = [is_seen_to_end(&child), is_seen_to_end(&child)];
        child.wait().unwrap();
        assert_eq!(seen, [true; 2]);
    }
}
