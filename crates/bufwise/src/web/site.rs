//! The page, its stream of events, and the threads that sample connections while a page is open.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::gate::{self, Gate, Refusal};
use super::model::Model;
use super::view::View;
use crate::http::message::{self, Request, Status};
use crate::http::server::{Answer, Server};
use crate::ls::AskedDaemon;
use crate::top::news::{self, News, Sight};
use crate::top::pace::{Meter, Pace};
use crate::top::source::Source;

/// The page, in one file; `@NONCE@` stands for each response's own nonce.
const PAGE: &str = include_str!("page.html");
/// The page for requests without a token.
const CLOSED: &str = include_str!("closed.html");
const HTML: &str = "text/html; charset=utf-8";
/// Time for which connections are sampled after the last page was closed: it may come back.
const AFTER: Duration = Duration::from_secs(60);

/// The server's content, and the threads from which it gets results.
pub(super) struct Site {
    gate: Gate,
    model: Model,
    asked: AskedDaemon,
    pace: Pace,
    /// Processor time that this thread has used.
    meter: Meter,
    /// `None` while no page is open.
    sights: Option<News<Result<Sight>>>,
    /// When the last page was closed.
    deserted: Option<Instant>,
    /// The connection being watched, by its cookie, with the text on it; `None`: it has ended.
    explanation: Option<News<(u64, Option<String>)>>,
}

impl Site {
    /// Returns the site before the first page is open.
    pub(super) fn new(gate: Gate, model: Model, asked: AskedDaemon, pace: Pace) -> Self {
        let meter = Meter::default();
        Self { gate, model, asked, pace, meter, sights: None, deserted: None, explanation: None }
    }

    /// Returns the descriptors that are readable when [`Site::go_on`] has something to do.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sights = self.sights.as_ref().map(AsFd::as_fd);
        sights.into_iter().chain(self.explanation.as_ref().map(AsFd::as_fd))
    }

    /// Answers a request.
    pub(super) fn answer(&self, request: Result<Request, Status>) -> Answer<View> {
        let refused =
            |status: Status, reason| Answer::Whole(message::refusal(status, &gate::fields(None), reason));
        let request = match request {
            Ok(request) => request,
            Err(status) => return refused(status, "not a request that bufwise web understands"),
        };
        match self.gate.admit(&request) {
            Ok(()) => {}
            Err(Refusal::Token) if request.path() == "/" && request.is_get() => {
                return document(Refusal::Token.status().line(), CLOSED);
            }
            Err(refusal) => return refused(refusal.status(), refusal.reason()),
        }
        match (request.path(), request.is_get()) {
            ("/", true) => document("200 OK", PAGE),
            ("/events", true) => View::parse(request.query()).map_or_else(
                || refused(Status::BadRequest, "there is no such view"),
                |view| self.stream(view),
            ),
            ("/" | "/events", false) => refused(Status::MethodNotAllowed, "only GET is allowed"),
            _ => refused(Status::NotFound, "there are only / and /events"),
        }
    }

    /// Begins a stream of events with the present sample, if there is one.
    fn stream(&self, view: View) -> Answer<View> {
        let mut head = message::head("200 OK", "text/event-stream; charset=utf-8", &gate::fields(None));
        if self.model.is_known() {
            head.extend(self.model.event(&view));
        }
        Answer::Stream(head, view)
    }

    /// Takes the results of the threads, sends them to the pages, and starts or stops threads as pages come and go.
    ///
    /// # Errors
    /// A thread has ended, or cannot be started.
    pub(super) fn go_on(&mut self, server: &mut Server<View>) -> Result<()> {
        let mut has_looked = false;
        while let Some(sight) = self.sights.as_ref().map(News::next).transpose()?.flatten() {
            has_looked = true;
            match sight {
                Ok(sight) => self.model.observe(sight),
                Err(error) => self.model.fail(bufwise_host::in_words(error.as_ref())),
            }
        }
        if let Some((cookie, text)) = self.explanation.as_ref().map(News::next).transpose()?.flatten() {
            self.model.explained(cookie, text.as_deref().unwrap_or(news::ENDED));
            self.explanation = None;
        }
        if has_looked {
            server.publish(|view| self.model.event(view));
            self.explain(server)?;
        }
        self.meter.set();
        self.follow_audience(server)
    }

    /// Has one of the open connections explained, unless another is being explained; at most once per sample.
    fn explain(&mut self, server: &Server<View>) -> Result<()> {
        let opened: Vec<u64> = server.streams().filter_map(|view| view.opened).collect();
        let home = self.model.home().to_owned();
        if let Some(view) = self.model.next_to_explain(&opened).filter(|_| self.explanation.is_none()) {
            self.explanation = Some(news::explanation(view, home, self.asked.clone())?);
        }
        Ok(())
    }

    /// Starts sampling when the first page comes, and stops some time after the last one has gone.
    fn follow_audience(&mut self, server: &Server<View>) -> Result<()> {
        if server.streams().next().is_some() {
            self.deserted = None;
            if self.sights.is_none() {
                let source = Source::open(self.asked.clone())?;
                self.meter.set();
                self.sights = Some(news::sights(source, news::FIRST, self.pace, self.meter.clone())?);
            }
        } else if self.sights.is_some() {
            // Each sample wakes this thread, so no timer is needed.
            let since = *self.deserted.get_or_insert_with(Instant::now);
            if since.elapsed() >= AFTER {
                self.sights = None;
                self.model.forget();
            }
        }
        Ok(())
    }
}

/// Returns a document whose own script and style may run.
fn document(status: &str, text: &str) -> Answer<View> {
    Answer::Whole(match gate::nonce() {
        Ok(nonce) => {
            message::response(status, HTML, &gate::fields(Some(&nonce)), &text.replace("@NONCE@", &nonce))
        }
        Err(error) => message::refusal(Status::Unavailable, &gate::fields(None), &error.to_string()),
    })
}
