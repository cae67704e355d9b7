//! Progress of a running transfer: a bar on a terminal, with rate, RTT, window and limiting cause.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bufwise_ftp::client::{Event, Outcome};
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
    pace: Mutex<Paced>,
}

/// The pace of the bytes that move. The bar of many files counts those that were there before as well.
#[derive(Default)]
struct Paced {
    pace: Pace,
    there: u64,
}

/// One of many files on the bar.
pub(super) struct Part<'a> {
    show: &'a Show,
    /// Bytes of this file that were there when the present attempt began, and before the first one.
    resumed_from: u64,
    there: Option<u64>,
    /// Bytes of this file that the bar counts.
    counted: u64,
}

impl Part<'_> {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begun { resumed_from, .. } => {
                self.resumed_from = *resumed_from;
                let there = self.there.map_or(*resumed_from, |there| there.min(*resumed_from));
                self.count(*resumed_from, there);
            }
            Event::Progress(progress) => {
                self.count(self.resumed_from + progress.bytes, self.there.unwrap_or_default());
                self.show.tell_many();
            }
            Event::Retry { error, wait } => {
                self.show.say(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            Event::BegunAnew => self.show.say("the partial file belongs to another file: starting over"),
        }
    }

    /// Makes the bar count the whole of a file that has been moved, or that was there.
    pub(super) fn end(&mut self, outcome: &Outcome) {
        self.count(outcome.size, self.there.unwrap_or(outcome.size));
    }

    /// Makes the bar count `bytes` of this file, of which `there` were there before. The bar may go back: an attempt may begin
    /// before the point at which the last one ended.
    fn count(&mut self, bytes: u64, there: u64) {
        let mut paced = self.show.paced();
        self.show.bar.inc(bytes.saturating_sub(self.counted));
        self.show.bar.dec(self.counted.saturating_sub(bytes));
        self.counted = bytes;
        paced.there = paced.there.saturating_sub(self.there.unwrap_or_default()).saturating_add(there);
        self.there = Some(there);
    }
}

impl Show {
    pub(super) fn new(quiet: bool) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let show = Self { bar, quiet, finished: AtomicUsize::new(0), pace: Mutex::default() };
        show.expect(None);
        show
    }

    /// Sets how many bytes the bar will count; `None`: not known, so it shows neither a bar nor a share.
    fn expect(&self, bytes: Option<u64>) {
        let template = match bytes {
            Some(_) => "{prefix} {wide_bar} {decimal_bytes} of {decimal_total_bytes} {percent}% {msg}",
            None => "{prefix} {decimal_bytes} {msg}",
        };
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        match bytes {
            Some(bytes) => self.bar.set_length(bytes),
            None => self.bar.unset_length(),
        }
    }

    pub(super) fn event(&self, local: &Path, event: &Event<'_>) {
        match event {
            Event::Begun { size, resumed_from } => {
                let name = local.file_name().unwrap_or(local.as_os_str()).to_string_lossy();
                self.bar.set_prefix(name.chars().filter(|c| !c.is_control()).collect::<String>());
                self.expect(size.map(|size| size.saturating_sub(*resumed_from)));
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

    /// Makes the bar count many files, of `bytes` in total; `None`: the sizes are not all known.
    pub(super) fn many(&self, files: usize, bytes: Option<u64>) {
        self.expect(bytes);
        self.bar.set_prefix(counted(files, "file"));
    }

    /// Returns the progress of one of many files, which adds to the bar.
    pub(super) fn part(&self) -> Part<'_> {
        Part { show: self, resumed_from: 0, there: None, counted: 0 }
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
        let mut paced = self.paced();
        let counted = self.bar.position();
        let moved = counted.saturating_sub(paced.there);
        paced.pace.note(Instant::now(), moved);
        let rest = self.bar.length().and_then(|length| length.checked_sub(counted));
        (paced.pace.rate(), rest.and_then(|rest| paced.pace.left(rest)))
    }

    fn paced(&self) -> MutexGuard<'_, Paced> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn a_file_of_unknown_size_has_no_share_and_no_time_left() {
        let show = Show::new(true);
        let lengths = [(Some(100), Some(60)), (None, None), (Some(0), Some(0))];
        for (size, length) in lengths {
            let resumed_from = if size == Some(100) { 40 } else { 0 };
            show.event(Path::new("file"), &Event::Begun { size, resumed_from });
            assert_eq!(show.bar.length(), length);
        }
        show.many(3, None);
        assert_eq!((show.bar.length(), show.pace().1), (None, None));
    }

    #[test]
    fn the_bar_counts_each_byte_of_a_file_once_however_often_it_is_tried() {
        let show = Show::new(true);
        show.many(2, Some(100));
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

    #[test]
    fn bytes_that_were_there_are_on_the_bar_and_no_part_of_the_rate() {
        let show = Show::new(true);
        show.many(2, Some(200));
        let counts = || (show.bar.position(), show.paced().there);
        let mut part = show.part();
        let begun = |resumed_from| Event::Begun { size: Some(100), resumed_from };
        part.event(&begun(90));
        part.event(&Event::Progress(&Progress { bytes: 8, ..Progress::default() }));
        assert_eq!(counts(), (98, 90));
        part.event(&begun(95));
        assert_eq!(counts(), (95, 90), "five of them were moved by the first attempt");
        show.part().end(&Outcome { size: 100, resumed_from: 100, ..Outcome::default() });
        assert_eq!(counts(), (195, 190), "the other file was there, and no attempt began");
        part.event(&begun(0));
        assert_eq!(counts(), (100, 100));
    }
}
