//! `bufwise probe --serve`: answers with echoes and trains.

use std::net::SocketAddr;

use anyhow::Context;
use bufwise_host::signals::{Request, Signals};
use bufwise_mover::probe::{PathServer, Session, SessionLimits};

use crate::confine::{Confinement, filter_calls};
use crate::exit::Outcome;
use crate::figures::size;
use crate::output;

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(address: SocketAddr) -> Outcome {
    // Before any client can connect, so that a signal always ends the server in order.
    let signals = Signals::watch()?;
    let server = PathServer::bind(address, SessionLimits::default());
    let server = server.with_context(|| format!("cannot listen on {address}"))?;
    let confined = Confinement::complete(false).and_then(Confinement::begin);
    let filtered = filter_calls();
    output::note(&format!("bufwise: probe server listens on {}, by TCP and UDP\n", server.address()?));
    for (what, failed) in
        [("not confined by Landlock", confined.err()), ("system calls are not filtered", filtered.err())]
    {
        if let Some(error) = failed {
            output::note(&format!("bufwise: {what}: {}\n", bufwise_host::in_words(error.as_ref())));
        }
    }
    // A request to reload has no effect.
    while signals.request() != Some(Request::Stop) {
        server.run(&signals, say).context("the server cannot go on")?;
    }
    output::note("bufwise: stopped\n");
    Ok(0)
}

fn say(session: Session) {
    let Session { peer, lasted, echoes, trains, sent } = session;
    let (seconds, sent) = (lasted.as_secs_f64(), size(sent.0));
    output::note(&format!(
        "bufwise: {peer}: {seconds:.1} s, {echoes} echoes, {trains} trains of {sent} sent\n"
    ));
}
