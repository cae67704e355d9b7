//! SIGPIPE as the process was started with it.
//!
//! Problem: Rust's runtime ignores SIGPIPE before `main`, and `Command` gives a command the default action, which ends it when it
//! writes to a connection that its peer has closed. Service managers start services with SIGPIPE ignored, and many servers rely on
//! that.
//! Rule: a function that the loader calls before the runtime notes the action, and a command gets the same.
//! Source: signal(7), `IgnoreSIGPIPE=` in systemd.exec(5).

#![expect(
    unsafe_code,
    reason = "no library in use tells the action before the runtime's, or sets it between fork and exec"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section is a list of addresses of such functions.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = note;

extern "C" fn note() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one to `action`, of which all zeroes are a valid value.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Lets the command start with SIGPIPE ignored if this process was started so; otherwise `Command` gives it the default action.
pub fn inherit(command: &mut Command) {
    if WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: between fork and exec `ignore` makes one call that is async-signal-safe, and allocates nothing.
        unsafe { command.pre_exec(ignore) };
    }
}

fn ignore() -> io::Result<()> {
    // SAFETY: SIGPIPE may be ignored.
    match unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
