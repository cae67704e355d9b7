//! Holds signals back while something is done that must not end in the middle, and reads passwords so.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Does `work`. Those of `signals` that come meanwhile act after it, as they act otherwise: mostly they end this process.
pub(crate) fn hold_back<T>(signals: &[Signal], work: impl FnOnce() -> T) -> T {
    let before = signals.iter().copied().collect::<SigSet>().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let done = work();
    if let Ok(before) = before {
        let _valid = before.thread_set_mask();
    }
    done
}

/// Asks for a password at the terminal, which shows nothing of it. Ctrl-C ends this process once the terminal is as before: while it
/// reads, `rpassword` takes the key itself and raises SIGINT, and the terminal has neither echo nor lines nor signals.
///
/// # Errors
/// There is no terminal, or it ends; or Ctrl-C was pressed, and SIGINT does not end this process.
pub(crate) fn ask_password(prompt: &str) -> io::Result<String> {
    hold_back(&[Signal::SIGINT], || rpassword::prompt_password(prompt))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn a_signal_that_comes_meanwhile_acts_after_the_work() {
        let has_come = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR2, Arc::clone(&has_come)).unwrap();
        let meanwhile = hold_back(&[Signal::SIGUSR2], || {
            raise(Signal::SIGUSR2).unwrap();
            has_come.load(Ordering::SeqCst)
        });
        assert!(!meanwhile && has_come.load(Ordering::SeqCst));
    }
}
