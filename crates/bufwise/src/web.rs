//! `bufwise web`: the connections of `top` as pictures, on a page for a browser on this host.
//!
//! - [`gate`]: admits requests, and sets the security header fields of every response.
//! - [`view`]: the query of a page; [`model`]: connections and their last minute, from which it makes [`event`]s;
//!   [`samples`]: values over time.
//! - [`site`]: the page and its stream of events.
//!
//! One thread serves; the threads of `top` sample connections while a page is open, and for a minute after.

mod event;
mod gate;
mod model;
mod samples;
mod site;
mod view;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use anyhow::Context;
use bufwise_host::netns;
use bufwise_host::signals::{Request, Signals};
use bufwise_socket::signals::Ignored;
use bufwise_units::Micros;
use clap::Args;
use signal_hook::consts::SIGHUP;

use crate::exit::Outcome;
use crate::http::server::{Door, Server};
use crate::ls::AskedDaemon;
use crate::output;
use crate::top;
use crate::top::pace::Pace;
use crate::top::source::Source;
use gate::Gate;
use model::Model;
use site::Site;

/// Most connections to browsers, and most open pages.
const MAX_CLIENTS: usize = 32;
const MAX_PAGES: usize = 8;

/// Watch connections live in a browser: what top shows, as graphs
///
/// It prints the page's address, which holds a secret, and serves the page until Ctrl-C. Only this host can reach it. A click opens
/// one connection over time. It changes nothing. Without root it shows this network namespace, with root every one. Programs get
/// the same figures from ls --json.
#[derive(Debug, Args)]
#[command(
    after_help = "From another host: ssh -t -L 8080:127.0.0.1:8080 HOST bufwise web --listen 127.0.0.1:8080

Example: bufwise web --interval 2s"
)]
pub(crate) struct WebArgs {
    /// Where to listen: a loopback address and a port; port 0 is any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = loopback)]
    listen: SocketAddr,
    /// Time between two samples, 1s to 60s; default 1s, and more where samples of many connections would take more than 1% of a
    /// processor
    #[arg(long, value_name = "TIME", value_parser = top::interval)]
    interval: Option<Micros>,
    #[command(flatten)]
    asked: AskedDaemon,
}

impl WebArgs {
    pub(crate) fn run(self) -> Outcome {
        // Before any thread, so that none of them receives a signal.
        let signals = Signals::watch()?;
        // A signal that is blocked is received even if it is ignored, as by nohup.
        let outlives_terminal = Ignored::by_this_process().has(SIGHUP);
        // A failure to sample is reported here, before there is a page to show it.
        Source::open(self.asked.clone())?.sample()?;
        let cannot_listen = || format!("cannot listen at {}", self.listen);
        let listener = TcpListener::bind(self.listen).with_context(cannot_listen)?;
        let place = listener.local_addr().with_context(cannot_listen)?;
        let door = Door::tcp(listener).with_context(cannot_listen)?;
        let gate = Gate::new(place)?;
        output::line(&format!("{}\n", gate.address()))?;
        let mut server = Server::new(door, MAX_CLIENTS, MAX_PAGES);
        let model = Model::new(netns::own()?.label());
        let mut site = Site::new(gate, model, self.asked, Pace::new(self.interval));
        let goes_on = || match signals.request() {
            Some(Request::Stop) => false,
            Some(Request::Reload) => outlives_terminal,
            None => true,
        };
        while goes_on() {
            let mut others = vec![signals.as_fd()];
            others.extend(site.descriptors());
            server.turn(&others, |request| site.answer(request)).context("cannot wait for a request")?;
            site.go_on(&mut server)?;
        }
        Ok(0)
    }
}

/// Parses an address that only this host can reach, because the page has no encryption.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "an address is written as 127.0.0.1:0 or [::1]:0")?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("it listens only at loopback addresses, as 127.0.0.1:0 or [::1]:0; from elsewhere use ssh -L"
            .to_owned())
    }
}
