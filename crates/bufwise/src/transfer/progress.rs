//! What a transfer looks like while it runs: a bar on a terminal, with rate, RTT, window and what limits it.

use std::io::IsTerminal;
use std::path::Path;

use bufwise_transfer::client::Event;
use bufwise_transfer::mover::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::{rate, size};

/// The bar; nothing where nobody looks.
pub(super) struct Show {
    bar: ProgressBar,
    quiet: bool,
}

impl Show {
    pub(super) fn new(quiet: bool) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent}% {msg} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, quiet }
    }

    pub(super) fn event(&self, local: &Path, event: &Event<'_>) {
        match event {
            Event::Begun { size, resumed_from } => {
                let name = local.file_name().unwrap_or(local.as_os_str()).to_string_lossy();
                self.bar.set_prefix(name.chars().filter(|c| !c.is_control()).collect::<String>());
                self.bar.set_length(size.unwrap_or(0).saturating_sub(*resumed_from));
                self.bar.set_position(0);
            }
            Event::Progress(progress) => {
                self.bar.set_position(progress.bytes);
                self.bar.set_message(line(progress));
            }
            Event::Retry { error, wait } => {
                self.say(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            Event::BegunAnew => self.say("what was there is of another file: beginning anew"),
        }
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            self.bar.suspend(|| eprintln!("bufwise: {text}"));
        }
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// `94.3 Mbit/s, RTT 100.2 ms, window 1.25 MB, receive-window`
fn line(progress: &Progress) -> String {
    let mut text = rate(progress.rate.bits_per_sec());
    if let Some(rtt) = progress.rtt {
        text += &format!(", RTT {:.1} ms", rtt.0 as f64 / 1e3);
    }
    text += &format!(", window {}", size(progress.window.0));
    if let Some(limit) = progress.limited_by {
        text += &format!(", {limit}");
    }
    text
}
