//! The terminal: draws pictures, reads keys, and is restored however the program ends.

use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_host::signals::Signals;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::draw;
use super::keys::Then;
use super::news::{self, News, Sight};
use super::pace::{Meter, Pace};
use super::source::Source;
use super::state::State;
use crate::exit::Outcome;
use crate::ls::{AskedDaemon, LsArgs, Paint};

/// Longest wait, in ms, until keys that crossterm has not reported are dropped.
const UNREAD: u16 = 200;
/// More bytes than a terminal keeps for its reader (4,095; termios(3)). Of so many standard input keeps none in its own buffer.
const WAITING: usize = 8 << 10;

/// Shows connections until a key or a signal ends the program.
pub(super) fn run(state: &mut State, options: LsArgs, pace: Pace) -> Outcome {
    // Before any thread, so that none of them receives a signal.
    let signals = Signals::watch()?;
    let asked = options.asked.clone();
    let mut source = Source::open(options.asked)?;
    thread::sleep(news::FIRST);
    let interval = pace.interval();
    state.observe(Sight { listing: source.sample()?, interval });
    let meter = Meter::default();
    meter.set();
    let sights = news::sights(source, Duration::from_micros(interval.0), pace, meter.clone())?;
    let mut inputs = Inputs { signals, sights, explanation: None, watched: None, asked, is_unread: false };
    let paint = Paint::of_stdout();
    let mut screen = Screen::open()?;
    loop {
        let drawn = screen.0.draw(|frame| {
            state.width = frame.area().width.into();
            draw::draw(frame, state, paint);
        });
        drawn.context("cannot write to the terminal")?;
        meter.set();
        if inputs.wait(state)? == Then::Leave {
            return Ok(0);
        }
    }
}

/// All sources of changes to the state.
struct Inputs {
    signals: Signals,
    sights: News<Result<Sight>>,
    /// The connection being watched, by its cookie, with the text on it; `None`: it has ended.
    explanation: Option<News<(u64, Option<String>)>>,
    /// The connection of which a watch has begun since the last sample. A watch samples all connections often, so one that
    /// has a text is watched again once per sample at most.
    watched: Option<u64>,
    /// The daemon to ask, if any.
    asked: AskedDaemon,
    /// Whether the terminal had bytes of which crossterm reported no key: it reads a kilobyte for each arrival (EPOLLET), and
    /// leaves the rest of a longer paste there, which would end each wait at once.
    is_unread: bool,
}

impl Inputs {
    /// Waits for an event, and updates the state.
    fn wait(&mut self, state: &mut State) -> Result<Then> {
        if self.explanation.is_none()
            && let Some(opened) = state.opened().filter(|opened| !opened.is_gone)
            && (opened.explanation.is_none() || self.watched != Some(opened.view.cookie))
        {
            self.watched = Some(opened.view.cookie);
            self.explanation = Some(news::explanation(&opened.view, state.home.clone(), self.asked.clone())?);
        }
        let terminal = self.sleep()?;
        let is_gone = terminal.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        if is_gone || self.signals.request().is_some() {
            return Ok(Then::Leave);
        }
        while let Some(sight) = self.sights.next()? {
            self.watched = None;
            match sight {
                Ok(sight) => state.observe(sight),
                Err(error) => state.fail(bufwise_host::in_words(error.as_ref())),
            }
        }
        let explanation = self.explanation.as_ref().map(News::next).transpose()?;
        if let Some((cookie, text)) = explanation.flatten() {
            state.explained(cookie, text);
            self.explanation = None;
        }
        let (then, has_read) = keys(state)?;
        if self.is_unread && !has_read {
            drop_unread()?;
        }
        self.is_unread = !self.is_unread && !has_read && terminal.contains(PollFlags::POLLIN);
        Ok(then)
    }

    /// Waits for a key, a signal, news or a new size of the terminal; returns what the terminal is ready for. Keys that
    /// crossterm has not reported do not end the wait.
    fn sleep(&self) -> Result<PollFlags> {
        let (keys, time) = match self.is_unread {
            true => (PollFlags::empty(), PollTimeout::from(UNREAD)),
            false => (PollFlags::POLLIN, PollTimeout::NONE),
        };
        let terminal = io::stdin();
        let others = [self.signals.as_fd(), self.sights.as_fd()];
        let others = others.into_iter().chain(self.explanation.as_ref().map(AsFd::as_fd));
        let mut sources = vec![PollFd::new(terminal.as_fd(), keys)];
        sources.extend(others.map(|source| PollFd::new(source, PollFlags::POLLIN)));
        match poll(&mut sources, time) {
            Ok(_) => Ok(sources[0].revents().unwrap_or(PollFlags::empty())),
            // The signal of a new terminal size.
            Err(Errno::EINTR) => Ok(PollFlags::empty()),
            Err(error) => Err(error).context("cannot wait for a key"),
        }
    }
}

/// Passes the pressed keys to the state; returns also whether the terminal had any event.
fn keys(state: &mut State) -> Result<(Then, bool)> {
    let mut has_read = false;
    while event::poll(Duration::ZERO).context("cannot read from the terminal")? {
        has_read = true;
        if let Event::Key(key) = event::read().context("cannot read from the terminal")?
            && state.press(key) == Then::Leave
        {
            return Ok((Then::Leave, true));
        }
    }
    Ok((Then::GoOn, has_read))
}

/// Drops the bytes that wait at the terminal, if any.
fn drop_unread() -> Result<()> {
    let mut terminal = io::stdin().lock();
    let mut waiting = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
    if poll(&mut waiting, PollTimeout::ZERO) == Ok(1) {
        let _dropped = terminal.read(&mut [0; WAITING]).context("cannot read from the terminal")?;
    }
    Ok(())
}

/// The terminal in use. Its own destructor is disabled, because it panics if standard error is gone.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    fn open() -> Result<Self> {
        // try_init also restores the terminal on a panic, before the message.
        let opened = ratatui::try_init().map(|terminal| Self(ManuallyDrop::new(terminal)));
        if opened.is_err() {
            let _as_far_as_it_goes = ratatui::try_restore();
        }
        opened.context("cannot set the terminal up")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _gone = self.0.show_cursor();
        let _gone = ratatui::try_restore();
    }
}
