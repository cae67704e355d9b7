//! The terminal: pictures out, keys in, and everything put back whichever way it ends.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bufwise_host::address::Pattern;
use bufwise_host::signals::Signals;
use bufwise_host::view::{ConnectionView, Listing};
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
use crate::explain;
use crate::ls::{LsArgs, Paint};

/// The first rates come after this, as those of `ls`.
const FIRST: Duration = Duration::from_millis(300);

/// Shows connections until a key or a signal ends it.
pub(super) fn run(state: &mut State, options: LsArgs, interval: Micros) -> Outcome {
    // Before any thread, so that none of them receives a signal.
    let signals = Signals::watch()?;
    let daemon = options.daemon();
    let mut source = Source::open(options)?;
    thread::sleep(FIRST);
    state.observe(source.look()?);
    let listings = News::from(move |news| look_again(source, Duration::from_micros(interval.0), news))?;
    let mut inputs = Inputs { signals, listings, explanation: None, daemon };
    let paint = Paint::of_stdout();
    let mut screen = Screen::open()?;
    loop {
        screen.0.draw(|frame| draw::draw(frame, state, paint)).context("cannot write to the terminal")?;
        if inputs.wait(state)? == Then::Leave {
            return Ok(0);
        }
    }
}

/// Looks once per interval, as long as anyone listens.
fn look_again(mut source: Source, interval: Duration, news: &Teller<Result<Listing>>) {
    let mut next = Instant::now();
    loop {
        // A look that took too long delays the ones that follow: they do not come in a row.
        next = (next + interval).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        if !news.send(source.look()) {
            return;
        }
    }
}

/// Everything that changes the state.
struct Inputs {
    signals: Signals,
    listings: News<Result<Listing>>,
    /// The connection that is being watched, by its cookie, and what there is to say of it.
    explanation: Option<News<(u64, String)>>,
    /// Where the daemon listens, if it is asked.
    daemon: Option<PathBuf>,
}

impl Inputs {
    /// Waits for something to happen, and lets the state know.
    fn wait(&mut self, state: &mut State) -> Result<Then> {
        if self.explanation.is_none()
            && let Some(opened) = state.opened().filter(|opened| !opened.is_gone)
        {
            self.explanation = Some(explain(&opened.view, state.home.clone(), self.daemon.clone())?);
        }
        let is_gone = self.sleep()?;
        if is_gone || self.signals.stop() || self.signals.reload() {
            return Ok(Then::Leave);
        }
        while let Some(listing) = self.listings.next()? {
            match listing {
                Ok(listing) => state.observe(listing),
                Err(error) => state.fail(bufwise_host::in_words(error.as_ref())),
            }
        }
        let explanation = self.explanation.as_ref().map(News::next).transpose()?;
        if let Some((cookie, text)) = explanation.flatten() {
            state.explained(cookie, text);
            self.explanation = None;
        }
        keys(state)
    }

    /// Waits for a key, a signal, news or a new size of the terminal; tells whether the terminal is gone.
    fn sleep(&self) -> Result<bool> {
        let keys = io::stdin();
        let sources = [keys.as_fd(), self.signals.as_fd(), self.listings.wake.as_fd()];
        let sources = sources.into_iter().chain(self.explanation.as_ref().map(|news| news.wake.as_fd()));
        let mut sources: Vec<_> = sources.map(|source| PollFd::new(source, PollFlags::POLLIN)).collect();
        match poll(&mut sources, PollTimeout::NONE) {
            Ok(_) => {
                let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
                Ok(sources[0].revents().is_some_and(|events| events.intersects(gone)))
            }
            // The signal of a new size.
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error).context("cannot wait for a key"),
        }
    }
}

/// Lets the state know of the keys that were pressed.
fn keys(state: &mut State) -> Result<Then> {
    while event::poll(Duration::ZERO).context("cannot read from the terminal")? {
        if let Event::Key(key) = event::read().context("cannot read from the terminal")?
            && state.press(key) == Then::Leave
        {
            return Ok(Then::Leave);
        }
    }
    Ok(Then::GoOn)
}

/// Watches a connection as `explain` does; the text is for people in the network namespace `home`.
fn explain(view: &ConnectionView, home: String, daemon: Option<PathBuf>) -> Result<News<(u64, String)>> {
    let cookie = view.cookie;
    // The larger port is mostly its own, the smaller one that of a service, which many connections share.
    let end = if view.local.port() > view.peer.port() { view.local } else { view.peer };
    let address: Pattern = end.to_string().parse().map_err(anyhow::Error::msg)?;
    News::from(move |news| {
        let text = match explain::report(address, daemon.as_deref()) {
            Ok(report) => report.text_of(cookie, &home).unwrap_or_else(|| "It ended.".to_owned()),
            Err(failure) => failure.to_string(),
        };
        let _unheard = news.send((cookie, text));
    })
}

/// The terminal while it is ours. Its own destructor is left out: that panics where standard error is gone, too.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    fn open() -> Result<Self> {
        // It also has a panic put the terminal back, before its message.
        let opened = ratatui::try_init().map(|terminal| Self(ManuallyDrop::new(terminal)));
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

/// What a thread finds, and a descriptor that is readable when there is something.
struct News<T> {
    found: Receiver<T>,
    wake: UnixStream,
}

/// The thread's end.
struct Teller<T> {
    found: Sender<T>,
    wake: UnixStream,
}

impl<T: Send + 'static> News<T> {
    /// Starts a thread that does `work`.
    fn from(work: impl FnOnce(&Teller<T>) + Send + 'static) -> Result<Self> {
        let (wake, waker) = UnixStream::pair().context("cannot make a pair of sockets")?;
        wake.set_nonblocking(true).context("cannot set a socket up")?;
        let (sender, found) = mpsc::channel();
        let teller = Teller { found: sender, wake: waker };
        thread::Builder::new().spawn(move || work(&teller)).context("cannot start a thread")?;
        Ok(Self { found, wake })
    }

    /// What has come and was not taken yet.
    fn next(&self) -> Result<Option<T>> {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
        match self.found.try_recv() {
            Ok(found) => Ok(Some(found)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the thread that looks at connections ended"),
        }
    }
}

impl<T> Teller<T> {
    /// Whether anyone still listens.
    fn send(&self, found: T) -> bool {
        self.found.send(found).is_ok() && (&self.wake).write_all(&[1]).is_ok()
    }
}
