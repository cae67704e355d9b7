//! The terminal: pictures out, keys in, and everything put back whichever way it ends.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bufwise_host::signals::Signals;
use bufwise_host::view::Listing;
use bufwise_units::Micros;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::draw;
use super::keys::Then;
use super::source::Source;
use super::state::State;
use crate::exit::Outcome;
use crate::ls::{LsArgs, Paint};

/// The first rates come after this, as those of `ls`.
const FIRST: Duration = Duration::from_millis(300);

/// Shows connections until a key or a signal ends it.
pub(super) fn run(state: &mut State, options: LsArgs, interval: Micros) -> Outcome {
    // Before any thread, so that none of them receives a signal.
    let signals = Signals::watch()?;
    let mut source = Source::open(options)?;
    thread::sleep(FIRST);
    state.observe(source.look()?);
    let news = News::from(move |news| {
        let interval = Duration::from_micros(interval.0);
        let mut next = Instant::now();
        loop {
            // A look that took too long delays the ones that follow: they do not come in a row.
            next = (next + interval).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if !news.send(source.look()) {
                return;
            }
        }
    })?;
    let paint = Paint::of_stdout();
    let mut screen = Screen::open()?;
    while draw_and_wait(state, &mut screen, &signals, &news, paint)? == Then::GoOn {}
    Ok(0)
}

/// Draws, waits for something to happen, and lets the state know.
fn draw_and_wait(
    state: &mut State,
    screen: &mut Screen,
    signals: &Signals,
    news: &News,
    paint: Paint,
) -> Result<Then> {
    screen.0.draw(|frame| draw::draw(frame, state, paint)).context("cannot write to the terminal")?;
    let keys = io::stdin();
    let mut sources = [keys.as_fd(), signals.as_fd(), news.wake.as_fd()]
        .map(|source| PollFd::new(source, PollFlags::POLLIN));
    match poll(&mut sources, PollTimeout::NONE) {
        // A new size of the terminal.
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("cannot wait for a key"),
    }
    let is_gone =
        sources[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR));
    if is_gone || signals.stop() || signals.reload() {
        return Ok(Then::Leave);
    }
    while let Some(listing) = news.next()? {
        match listing {
            Ok(listing) => state.observe(listing),
            Err(error) => state.fail(bufwise_host::in_words(error.as_ref())),
        }
    }
    while event::poll(Duration::ZERO).context("cannot read from the terminal")? {
        if let Event::Key(key) = event::read().context("cannot read from the terminal")?
            && state.press(key) == Then::Leave
        {
            return Ok(Then::Leave);
        }
    }
    Ok(Then::GoOn)
}

/// The terminal while it is ours.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self> {
        // It also has a panic put the terminal back, before its message.
        let opened = ratatui::try_init().map(Self);
        if opened.is_err() {
            let _as_far_as_it_goes = ratatui::try_restore();
        }
        opened.context("cannot set the terminal up")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _gone = self.0.show_cursor();
        let _gone = ratatui::try_restore();
    }
}

/// What a thread found, and a descriptor that is readable when there is something.
struct News {
    listings: Receiver<Result<Listing>>,
    wake: UnixStream,
}

/// The thread's end.
struct Teller {
    listings: Sender<Result<Listing>>,
    wake: UnixStream,
}

impl News {
    /// Starts a thread that does `work`.
    fn from(work: impl FnOnce(Teller) + Send + 'static) -> Result<Self> {
        let (wake, waker) = UnixStream::pair().context("cannot make a pair of sockets")?;
        wake.set_nonblocking(true).context("cannot set a socket up")?;
        let (sender, listings) = mpsc::channel();
        let teller = Teller { listings: sender, wake: waker };
        thread::Builder::new().spawn(move || work(teller)).context("cannot start a thread")?;
        Ok(Self { listings, wake })
    }

    /// What has come and was not taken yet.
    fn next(&self) -> Result<Option<Result<Listing>>> {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
        match self.listings.try_recv() {
            Ok(listing) => Ok(Some(listing)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the thread that looks at connections ended"),
        }
    }
}

impl Teller {
    /// Whether anyone still listens.
    fn send(&self, listing: Result<Listing>) -> bool {
        self.listings.send(listing).is_ok() && (&self.wake).write_all(&[1]).is_ok()
    }
}
