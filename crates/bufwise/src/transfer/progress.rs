//! Progress of a running transfer: a bar on a terminal, with rate, RTT, window and limiting cause.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bufwise_ftp::client::Event;
use bufwise_mover::Progress;
use bufwise_units::counted;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use super::pace::Pace;
use crate::figures::{rate, size};
use crate::output;

/// The bar; hidden unless standard error is a terminal.
pub(super) struct Show {
    bar: ProgressBar,
    quiet: bool,
    finished: AtomicUsize,
    pace: Mutex<Pace>,
}

/// One of many files on the bar.
pub(super) struct Part<'a> {
    show: &'a Show,
    /// Bytes of this file that were there when the present attempt began.
    resumed_from: u64,
    /// Bytes of this file that the bar counts.
    counted: u64,
}

impl Part<'_> {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begun { resumed_from, .. } => {
                self.resumed_from = *resumed_from;
                self.count(*resumed_from);
            }
            Event::Progress(progress) => {
                self.count(self.resumed_from + progress.bytes);
                self.show.tell_many();
            }
            Event::Retry { error, wait } => {
                self.show.say(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            Event::BegunAnew => self.show.say("the partial file belongs to another file: starting over"),
        }
    }

    /// Makes the bar count `bytes` of this file. The bar may go back: an attempt may begin before the point at which the last one ended.
    fn count(&mut self, bytes: u64) {
        self.show.bar.inc(bytes.saturating_sub(self.counted));
        self.show.bar.dec(self.counted.saturating_sub(bytes));
        self.counted = bytes;
    }
}

impl Show {
    pub(super) fn new(quiet: bool) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let template = "{prefix} {wide_bar} {decimal_bytes} of {decimal_total_bytes} {percent}% {msg}";
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, quiet, finished: AtomicUsize::new(0), pace: Mutex::default() }
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
                let (rate, left) = self.pace();
                self.bar.set_message(line(progress, rate, left));
            }
            Event::Retry { error, wait } => {
                self.say(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            Event::BegunAnew => self.say("the partial file belongs to another file: starting over"),
        }
    }

    /// Shows how many files and directories of a tree have been listed.
    pub(super) fn counted(&self, files: usize, directories: usize) {
        let (files, directories) = (counted(files, "file"), counted(directories, "directory"));
        self.bar.set_message(format!("listing: {files}, {directories}"));
    }

    /// Makes the bar count many files, of `bytes` in total.
    pub(super) fn many(&self, files: usize, bytes: u64) {
        self.bar.set_length(bytes);
        self.bar.set_prefix(counted(files, "file"));
    }

    /// Returns the progress of one of many files, which adds to the bar.
    pub(super) fn part(&self) -> Part<'_> {
        Part { show: self, resumed_from: 0, counted: 0 }
    }

    /// Counts one of many files as finished.
    pub(super) fn done(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.tell_many();
    }

    /// Shows a message like `7 done, 94.3 Mbit/s, 12 s left`.
    fn tell_many(&self) {
        let (now, left) = self.pace();
        let mut text = format!("{} done", self.finished.load(Ordering::Relaxed));
        text += &now.map(|now| format!(", {}", rate(bits(now)))).unwrap_or_default();
        self.bar.set_message(text + &time_left(left));
    }

    /// Returns the rate (bytes per second), and the time left if the length is known.
    fn pace(&self) -> (Option<f64>, Option<Duration>) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = self.bar.position();
        pace.note(Instant::now(), moved);
        let rest = self.bar.length().and_then(|length| length.checked_sub(moved));
        (pace.rate(), rest.and_then(|rest| pace.left(rest)))
    }

    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            self.bar.suspend(|| output::note(&format!("bufwise: {text}\n")));
        }
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns a message like `94.3 Mbit/s, RTT 100.2 ms, window 1.25 MB, receive-window, 12 s left`.
fn line(progress: &Progress, mean: Option<f64>, left: Option<Duration>) -> String {
    let mut text = rate(mean.map_or(progress.rate.bits_per_sec(), bits));
    if let Some(rtt) = progress.rtt {
        text += &format!(", RTT {:.1} ms", rtt.0 as f64 / 1e3);
    }
    text += &format!(", window {}", size(progress.window.0));
    if let Some(limit) = progress.limited_by {
        text += &format!(", {limit}");
    }
    text + &time_left(left)
}

fn time_left(left: Option<Duration>) -> String {
    left.map(|left| format!(", {} left", HumanDuration(left))).unwrap_or_default()
}

fn bits(bytes: f64) -> u64 {
    (bytes * 8.0) as u64
}

#[cfg(test)]
mod tests {
    use bufwise_ftp::client::ClientError;

    use super::*;

    #[test]
    fn the_bar_counts_each_byte_of_a_file_once_however_often_it_is_tried() {
        let show = Show::new(true);
        show.many(2, 100);
        let mut part = show.part();
        let mut after = |event: &Event<'_>| {
            part.event(event);
            show.bar.position()
        };
        let begun = |resumed_from| Event::Begun { size: Some(100), resumed_from };
        let moved = |bytes| Progress { bytes, ..Progress::default() };
        let (error, wait) = (ClientError::NoChecksum, Duration::ZERO);
        assert_eq!(after(&begun(10)), 10);
        assert_eq!(after(&Event::Progress(&moved(50))), 60);
        assert_eq!(after(&Event::Retry { error: &error, wait }), 60);
        assert_eq!(after(&begun(55)), 55, "the last bytes did not reach the file");
        assert_eq!(after(&Event::Progress(&moved(45))), 100);
        assert_eq!(after(&Event::BegunAnew), 100);
        assert_eq!(after(&begun(0)), 0);
        assert_eq!(after(&Event::Progress(&moved(100))), 100);
        show.part().event(&begun(7));
        assert_eq!(show.bar.position(), 107, "another file");
    }
}
