//! Buffers that clients request, and the probes that measure the path (SBUF, 126, PROB).
//!
//! Source: GridFTP (SBUF before transfers); Feng 2002, section 4 (SBUF and 126 during a transfer); Prasad 2004, section
//! IV-B (probes); [`crate::wire::dialect`] distinguishes them.
//! Properties kept: a request is bounded for its connection, its user and the host, whatever its size and timing;
//! during a transfer it is answered by 126 alone; probes are accepted from and sent to the control connection's peer
//! alone.

use std::io;
use std::net::UdpSocket;

use bufwise_mover::probe::{Limits, Prober, ProberConfig, Responder, Token};
use bufwise_mover::{BufferGrants, Progress};
use bufwise_units::Bytes;

use super::ServerSession;
use super::agreed::{ReservedBuffer, Tuned};
use crate::server::control::with_port;
use crate::server::event::Event;
use crate::wire::Command;
use crate::wire::dialect::{ProbeOffer, buffer_notice};

/// A buffer below this is refused: a mistake, or the rest of a used-up budget.
const SMALLEST_BUFFER: Bytes = Bytes(4 << 10);
/// Ports below belong to services, which a client must not cause to be probed.
const FIRST_FREE_PORT: u16 = 1_024;

impl ServerSession {
    pub(super) fn tune(&mut self, command: &Command) -> io::Result<()> {
        match command {
            Command::Sbuf(size) => self.reserve_buffer(*size),
            Command::Prob(_) if !self.server.config.tuning.probes => {
                self.reply(502, "Probes are switched off.")
            }
            Command::Prob(Some(offer)) if offer.port < FIRST_FREE_PORT => {
                self.reply(501, "Only ports from 1024.")
            }
            Command::Prob(Some(offer)) => {
                self.client.probes.offer = Some(*offer);
                self.reply(200, "The server will send probes.")
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

    /// Answers SBUF before a transfer.
    fn reserve_buffer(&mut self, size: Bytes) -> io::Result<()> {
        let user = self.client.user.as_ref().map_or("", |user| &user.name);
        let mut grant = match self.client.buffer.take() {
            // The new grant replaces the former one.
            Some(former) if self.client.way.is_none() || former.size <= size => former.grant,
            // Connections to the port that waits have larger buffers, whose memory stays granted.
            former => {
                self.client.port_buffer = self.client.port_buffer.take().or(former);
                self.server.ledger.open(user)
            }
        };
        let size = grant.ask(size);
        if size < SMALLEST_BUFFER {
            return self.reply(452, "No memory for such a buffer.");
        }
        self.client.buffer = Some(ReservedBuffer { size, grant });
        self.reply(200, &format!("Data connections have buffers of {} bytes.", size.0))
    }

    pub(super) fn buffer_size(&self) -> Option<Bytes> {
        self.client.buffer.as_ref().map(|reserved| reserved.size)
    }

    /// Answers probes on a port of its own from now on.
    fn respond(&mut self) -> io::Result<ProbeOffer> {
        self.client.probes.responder = None;
        let socket = UdpSocket::bind(with_port(self.control.local, 0))?;
        let token = Token::random()?;
        let responder = Responder::start(socket, self.control.peer.ip(), token, Limits::default())?;
        let offer = ProbeOffer { port: responder.address().port(), token };
        self.client.probes.responder = Some(responder);
        Ok(offer)
    }

    /// Takes the responder for the file that is sent now.
    pub(super) fn take_responder(&mut self) -> Option<Responder> {
        std::mem::take(&mut self.client.probes).responder
    }

    /// Starts probes for the file that is received now; `None` if they cannot be started.
    pub(super) fn take_prober(&mut self) -> Option<Prober> {
        let offer = std::mem::take(&mut self.client.probes).offer?;
        let socket = UdpSocket::bind(with_port(self.control.local, 0)).ok()?;
        let peer = with_port(self.control.peer, offer.port);
        Prober::start(socket, peer, offer.token, ProberConfig::default()).ok()
    }

    /// Accepts the client's requests before a file is sent, if the client has opted in.
    pub(super) fn tune_sending(&mut self) -> BufferGrants {
        let grants = self.sending();
        let user = self.client.user.as_ref().map_or("", |user| &user.name);
        let grant = self.server.ledger.open(user);
        self.tuned = Tuned { grants: Some((grants.clone(), grant)), ..Tuned::default() };
        grants
    }

    /// Grants for what is sent now, within the memory of all downloads.
    pub(super) fn sending(&self) -> BufferGrants {
        let user = self.client.user.as_ref().map_or("", |user| &user.name);
        let mut share = self.server.sending.open(user);
        BufferGrants::new(self.server.config.tuning.largest())
            .within(move |wanted, held| share.ask(wanted, held))
    }

    /// Sends our requests before a file is received, if the client has opted in.
    pub(super) fn tune_receiving(&mut self) {
        self.tuned = Tuned { tells: self.client.notify, ..Tuned::default() };
    }

    /// Whether SBUF now has its meaning during a transfer.
    pub(super) fn takes_requests(&self) -> bool {
        self.client.notify && self.tuned.grants.is_some()
    }

    /// Answers SBUF during a transfer.
    pub(super) fn request(&mut self, request: Bytes) -> io::Result<()> {
        let Some((grants, memory)) = &mut self.tuned.grants else { return Ok(()) };
        let before = grants.granted();
        let granted = grants.set(memory.ask(request)).unwrap_or(before.unwrap_or(SMALLEST_BUFFER));
        // The size that counts now: the old one if the request changed too little, or the larger one if it came too soon and waits.
        memory.ask(granted.max(grants.granted().unwrap_or(granted)));
        self.tuned.told = Some(granted);
        self.control.reply(&buffer_notice(granted))
    }

    /// Sends the client the size that we request for its buffer.
    pub(super) fn look_at_progress(&mut self, progress: &Progress) -> io::Result<()> {
        self.tuned.last = Some(*progress);
        let Some(request) = progress.buffer_request.filter(|_| self.tuned.tells) else { return Ok(()) };
        self.tuned.told = Some(request);
        self.control.reply(&buffer_notice(request))
    }
}
