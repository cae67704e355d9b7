//! Buffers that clients wish for, and the probes that measure the path (SBUF, 126, PROB).
//!
//! Source: GridFTP (SBUF before transfers), 001 section 4 (SBUF and 126 during one), 000 section IV-B (probes);
//! [`crate::wire::dialect`] says when which is meant.
//! Properties kept: a wish is bounded for its connection, its user and the host, whatever number it has and however soon
//! it comes; during a transfer it is answered by 126 alone; probes are answered to the control connection's peer
//! alone, and sent to it alone.

use std::io;
use std::net::UdpSocket;

use bufwise_mover::probe::{Limits, Prober, ProberConfig, Responder, Token};
use bufwise_mover::{Progress, Wishes};
use bufwise_units::Bytes;

use super::Session;
use super::agreed::{Probes, Tuned, Wished};
use crate::server::control::with_port;
use crate::server::event::Event;
use crate::server::limits::Grant;
use crate::wire::Command;
use crate::wire::dialect::{ProbeOffer, buffer_notice};

/// A buffer below this is no wish but a mistake, or a share of a budget that is used up.
const SMALLEST: Bytes = Bytes(4 << 10);
/// Ports below belong to services, which nobody should have probed.
const FIRST_FREE_PORT: u16 = 1_024;

impl Session {
    pub(super) fn tune(&mut self, command: &Command) -> io::Result<()> {
        match command {
            Command::Sbuf(size) => self.wish_for_later(*size),
            Command::Prob(_) if !self.server.config.tuning.probes => {
                self.reply(502, "Probes are switched off.")
            }
            Command::Prob(Some(offer)) if offer.port < FIRST_FREE_PORT => {
                self.reply(501, "Only ports from 1024.")
            }
            Command::Prob(Some(offer)) => {
                self.probes.offer = Some(*offer);
                self.reply(200, "Probes will come.")
            }
            _ => match self.respond() {
                Ok(offer) => self.control.reply(&offer.reply()),
                Err(error) => {
                    self.server.tell(&Event::Trouble { what: format!("no port for probes: {error}") });
                    self.reply(451, "No port is free for probes.")
                }
            },
        }
    }

    /// SBUF before a transfer.
    fn wish_for_later(&mut self, size: Bytes) -> io::Result<()> {
        // What was granted before is given back first.
        self.buffer = None;
        let user = self.user.as_ref().map_or("", |user| &user.name);
        let mut grant = self.server.ledger.open(user);
        let size = grant.ask(size);
        if size < SMALLEST {
            return self.reply(452, "No memory for such a buffer.");
        }
        self.buffer = Some(Wished { size, _grant: grant });
        self.reply(200, &format!("Data connections have buffers of {} bytes.", size.0))
    }

    pub(super) fn buffer_size(&self) -> Option<Bytes> {
        self.buffer.as_ref().map(|wished| wished.size)
    }

    /// Answers probes on a port of its own from now on.
    fn respond(&mut self) -> io::Result<ProbeOffer> {
        self.probes.responder = None;
        let socket = UdpSocket::bind(with_port(self.control.local, 0))?;
        let token = Token::random()?;
        let responder = Responder::start(socket, self.control.peer.ip(), token, Limits::default())?;
        let offer = ProbeOffer { port: responder.address().port(), token };
        self.probes.responder = Some(responder);
        Ok(offer)
    }

    /// For the file that we send now.
    pub(super) fn take_responder(&mut self) -> Option<Responder> {
        std::mem::take(&mut self.probes).responder
    }

    /// For the file that we receive now; that probes cannot be had is no obstacle.
    pub(super) fn take_prober(&mut self) -> Option<Prober> {
        let offer = std::mem::take(&mut self.probes).offer?;
        let socket = UdpSocket::bind(with_port(self.control.local, 0)).ok()?;
        let peer = with_port(self.control.peer, offer.port);
        Prober::start(socket, peer, offer.token, ProberConfig::default()).ok()
    }

    /// A file will be sent: the client's wishes count, if it knows how.
    pub(super) fn tune_sending(&mut self) -> Wishes {
        let wishes = Wishes::new(self.server.config.tuning.largest());
        let user = self.user.as_ref().map_or("", |user| &user.name);
        let grant = self.server.ledger.open(user);
        self.tuned = Tuned { wishes: Some((wishes.clone(), grant)), ..Tuned::default() };
        wishes
    }

    /// A file will be received: our wishes are told, if the client knows how.
    pub(super) fn tune_receiving(&mut self) {
        self.tuned = Tuned { tells: self.notify, ..Tuned::default() };
    }

    /// Whether SBUF has its meaning during a transfer now.
    pub(super) fn takes_wishes(&self) -> bool {
        self.notify && self.tuned.wishes.is_some()
    }

    /// SBUF during a transfer.
    pub(super) fn wish(&mut self, wish: Bytes) -> io::Result<()> {
        let Some((wishes, grant)) = &mut self.tuned.wishes else { return Ok(()) };
        let before = wishes.granted();
        let granted = wishes.set(grant.ask(wish)).unwrap_or(before.unwrap_or(SMALLEST));
        // What counts now, which is the old size if the wish came too soon or changed too little.
        grant.ask(granted);
        self.tuned.told = Some(granted);
        self.control.reply(&buffer_notice(granted))
    }

    /// Tells the client of the size that we wish for its buffer.
    pub(super) fn look_at_progress(&mut self, progress: &Progress) -> io::Result<()> {
        self.tuned.last = Some(*progress);
        let Some(wish) = progress.wish_of_sender.filter(|_| self.tuned.tells) else { return Ok(()) };
        self.tuned.told = Some(wish);
        self.control.reply(&buffer_notice(wish))
    }
}
