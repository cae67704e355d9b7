//! A session: connected, encrypted if asked, logged in, with the server's features known.
//!
//! Source: RFC 959, RFC 4217 (AUTH TLS, PBSZ, PROT), RFC 2389 (FEAT), RFC 2428 (EPSV), RFC 3659 (SIZE, REST).
//! Rules: where TLS is required, no user name is sent before it; `PROT P` is required once TLS is on; `TYPE I` is sent
//! before the first EPSV or PASV, because some servers fix the type there and convert line ends silently; EPSV first,
//! PASV where EPSV is refused. Of PASV's answer only the port is used: the address is that of the control connection's
//! peer, or a server could direct us to other hosts.
//! Properties kept: a session that is or may be out of step is `spent` and never used again.

use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use bufwise_mover::probe::{Limits, Prober, ProberConfig, Responder, Token};
use bufwise_mover::stream::Stream;
use bufwise_mover::{MoveError, Sockets};
use bufwise_policy::PolicyKind;

use super::access::{Access, Security, Server};
use super::control::{CLOSING, Control};
use super::error::ClientError;
use super::login::Login;
use super::settings::Settings;
use super::url::Scheme;
use crate::wire::address::{parse_epsv, parse_pasv};
use crate::wire::dialect::ProbeOffer;
use crate::wire::{AuthKind, Command, EpsvArgument, Features, Opts, Protection, Reply, Secret, TransferType};

/// A session, logged in, in binary mode.
#[derive(Debug)]
pub struct ClientSession {
    control: Control,
    access: Access,
    server: Server,
    /// SBUF was refused: not asked again.
    without_sbuf: bool,
    /// EPSV was refused: PASV from now on.
    without_epsv: bool,
    spent: bool,
}

impl ClientSession {
    /// Connects, encrypts if asked, logs in, asks for features and sets binary mode.
    ///
    /// # Errors
    /// [`ClientError`], each naming the step.
    pub fn open(access: &Access) -> Result<Self, ClientError> {
        let access = &Access { security: access.security.for_session(), ..access.clone() };
        let (mut control, greeting) = greet(access)?;
        let mut tls = access.scheme == Scheme::Ftps;
        if let (Scheme::Ftp, Some(with)) = (access.scheme, access.security.tls()) {
            let command = Command::Auth(AuthKind::Tls);
            let reply = control.ask(&command)?;
            tls = reply.code == 234;
            match &access.security {
                _ if tls => control = control.begin_tls(with, &access.host)?,
                Security::Required(_) => return Err(ClientError::NoTls { host: access.host.clone() }),
                Security::Plain | Security::Offered(_) => {}
            }
        }
        log_in(&mut control, &access.login)?;
        if tls {
            expect(&mut control, &Command::Pbsz(0), Reply::is_completion)?;
            expect(&mut control, &Command::Prot(Protection::Private), Reply::is_completion)?;
        }
        let feat = control.ask(&Command::Feat)?;
        let features = if feat.is_completion() { Features::from_reply(&feat) } else { Features::default() };
        expect(&mut control, &Command::Type(TransferType::Image), Reply::is_completion)?;
        let dialect = features.drs().is_some_and(|drs| drs.notify)
            && control.ask(&Command::Opts(Opts::Drs { notify: true }))?.is_completion();
        let address = Some(control.peer()?);
        let server = Server { features, greeting, tls, dialect, address };
        Ok(Self {
            control,
            access: access.clone(),
            server,
            without_sbuf: false,
            without_epsv: false,
            spent: false,
        })
    }

    /// Returns the server's abilities.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the destination and the login with which it was opened.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Whether the next transfer needs another session.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    pub(super) fn spend(&mut self) {
        self.spent = true;
    }

    pub(super) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Sends a command and gives its final reply; any failure but a reply spends the session.
    pub(super) fn ask(&mut self, command: &Command) -> Result<Reply, ClientError> {
        let reply = self.control.ask(command);
        self.spent |= reply.is_err();
        reply
    }

    /// Sends a command whose final reply must be a 2yz.
    pub(super) fn order(&mut self, command: &Command) -> Result<Reply, ClientError> {
        let reply = self.ask(command)?;
        if reply.is_completion() { Ok(reply) } else { Err(ClientError::refused(command, &reply)) }
    }

    /// As [`Self::ask`], for a command that takes the server long: the answer may take as long as a silent transfer.
    pub(super) fn ask_slowly(&mut self, command: &Command, timeout: Duration) -> Result<Reply, ClientError> {
        let usual = self.control.be_patient(timeout);
        let reply = self.ask(command);
        self.control.be_patient(usual);
        reply
    }

    /// Returns the size of a remote file; `None` where the server does not say.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn size(&mut self, path: &Path) -> Result<Option<u64>, ClientError> {
        let reply = self.ask(&Command::Size(path.to_owned()))?;
        Ok((reply.code == 213).then(|| reply.text().trim().parse().ok()).flatten())
    }

    /// Opens a data connection as `sockets` says. It is encrypted only after the transfer has been ordered.
    pub(super) fn data(&mut self, sockets: &Sockets) -> Result<TcpStream, ClientError> {
        let port = self.passive_port()?;
        let mut peer = self.control.peer()?;
        peer.set_port(port);
        // Servers take a connection from another address than the control connection's for a stranger's.
        let sockets = sockets.clone().with_source(self.control.local()?);
        let connected = sockets.connect_unless(peer, self.control.timeout(), &self.access.cancel);
        // The server now waits for this connection, and would answer the next EPSV only afterwards.
        connected.map_err(|error| match error {
            MoveError::Cancelled { .. } => self.doubt(ClientError::Interrupted),
            other => self.doubt(other.into()),
        })
    }

    fn passive_port(&mut self) -> Result<u16, ClientError> {
        if !self.without_epsv {
            let command = Command::Epsv(EpsvArgument::Any);
            let reply = self.ask(&command)?;
            if reply.code == 229 {
                return parse_epsv(&reply).map_err(|error| self.doubt(error.into()));
            }
            if !reply.is_permanent() {
                return Err(ClientError::refused(&command, &reply));
            }
            self.without_epsv = true;
        }
        let reply = self.ask(&Command::Pasv)?;
        if reply.code != 227 {
            return Err(ClientError::refused(&Command::Pasv, &reply));
        }
        parse_pasv(&reply).map_err(|error| self.doubt(error.into()))
    }

    fn doubt(&mut self, error: ClientError) -> ClientError {
        self.spent = true;
        error
    }

    /// Encrypts a data connection, where the session is: with its TLS session resumed.
    pub(super) fn protect(&mut self, data: TcpStream) -> Result<Stream, ClientError> {
        match self.access.security.tls() {
            Some(tls) if self.server.tls => {
                let (host, cancel) = (&self.access.host, &self.access.cancel);
                let stream = tls.connect(data, host, self.control.timeout(), cancel);
                stream.map(Stream::from).map_err(|error| self.doubt(error.into()))
            }
            _ => Ok(Stream::from(data)),
        }
    }

    /// Makes the next transfer begin at `offset`, in bytes (REST).
    pub(super) fn restart(&mut self, offset: u64) -> Result<(), ClientError> {
        if offset == 0 {
            return Ok(());
        }
        let reply = self.ask(&Command::Rest(offset))?;
        if reply.is_intermediate() {
            return Ok(());
        }
        self.spent = true;
        Err(ClientError::CannotResume { reply: (&reply).into() })
    }

    /// Orders a transfer, for which the data connection is open, and waits until the server begins it.
    ///
    /// Some servers complete an empty transfer without a preliminary reply: then this returns the final reply.
    pub(super) fn begin(&mut self, order: &Command) -> Result<Reply, ClientError> {
        let begun = self.await_beginning(order);
        let goes_on = match &begun {
            Ok(_) => true,
            Err(ClientError::Refused { reply, .. }) => reply.code != CLOSING,
            Err(_) => false,
        };
        self.spent |= !goes_on;
        begun
    }

    fn await_beginning(&mut self, order: &Command) -> Result<Reply, ClientError> {
        let during = order.shown();
        let deadline = Instant::now() + self.control.timeout();
        self.control.send(order)?;
        loop {
            match self.control.next(&during, deadline, None)? {
                Some(reply) if matches!(reply.code, 125 | 150) || reply.is_completion() => return Ok(reply),
                Some(reply) if !reply.is_preliminary() => return Err(ClientError::refused(order, &reply)),
                _ if Instant::now() < deadline => {}
                _ => return Err(self.control.silent(&during)),
            }
        }
    }

    /// Tells the server the buffer size of both ends, before the data connection is made.
    pub(super) fn announce_buffer(&mut self, settings: &Settings) -> Result<(), ClientError> {
        if let (PolicyKind::Fixed(size), false) = (settings.policy, self.without_sbuf) {
            // GridFTP's server knows SBUF without listing it; a server that refuses keeps its own size.
            self.without_sbuf = !self.ask(&Command::Sbuf(size))?.is_completion();
        }
        Ok(())
    }

    /// Starts probes to the server that will send, where policy and server want them; `None` if it does not answer.
    pub(super) fn prober(&mut self, settings: &Settings) -> Result<Option<Prober>, ClientError> {
        if !self.can_probe(settings) {
            return Ok(None);
        }
        let reply = self.ask(&Command::Prob(None))?;
        let Ok(offer) = ProbeOffer::from_reply(&reply) else { return Ok(None) };
        let mut peer = self.control.peer()?;
        peer.set_port(offer.port);
        let socket = UdpSocket::bind(self.control.local()?);
        let prober =
            socket.and_then(|socket| Prober::start(socket, peer, offer.token, ProberConfig::default()));
        // Probes are optional.
        Ok(prober.ok())
    }

    /// Answers the probes of the server that will receive.
    pub(super) fn responder(&mut self, settings: &Settings) -> Result<Option<Responder>, ClientError> {
        if !self.can_probe(settings) {
            return Ok(None);
        }
        let (local, peer) = (self.control.local()?, self.control.peer()?.ip());
        let responder = Token::random().and_then(|token| {
            let responder = Responder::start(UdpSocket::bind(local)?, peer, token, Limits::default())?;
            Ok((responder, token))
        });
        let Ok((responder, token)) = responder else { return Ok(None) };
        let offer = ProbeOffer { port: responder.address().port(), token };
        let taken = self.ask(&Command::Prob(Some(offer)))?.is_completion();
        Ok(taken.then_some(responder))
    }

    fn can_probe(&self, settings: &Settings) -> bool {
        settings.probes() && self.server.features.drs().is_some_and(|drs| drs.probe)
    }

    /// Sends QUIT; errors no longer matter.
    pub fn close(mut self) {
        self.control.clean_up();
        if !self.spent {
            let _gone = self.control.ask(&Command::Quit);
        }
    }

    /// Ends a session in the middle of a transfer, so that the server can stop at once.
    pub fn abort(mut self) {
        self.control.clean_up();
        let told = self.control.send(&Command::Abor).and_then(|()| self.control.send(&Command::Quit));
        if told.is_ok() {
            let _gone = self.control.answer("ABOR");
        }
    }
}

/// Connects and reads the greeting, encrypted from the first byte for `ftps`.
fn greet(access: &Access) -> Result<(Control, String), ClientError> {
    let tcp = connect(access)?;
    let stream = match (access.scheme, access.security.tls()) {
        (Scheme::Ftp, _) => Stream::from(tcp),
        (Scheme::Ftps, Some(tls)) => tls.connect(tcp, &access.host, access.timeout, &access.cancel)?.into(),
        (Scheme::Ftps, None) => return Err(ClientError::NoTls { host: access.host.clone() }),
    };
    let mut control = Control::new(stream, access.timeout, access.cancel.clone())?;
    let greeting = control.answer("the greeting")?;
    if greeting.code != 220 {
        let reply = (&greeting).into();
        return Err(ClientError::Refused { command: "the connection".to_owned(), reply });
    }
    Ok((control, greeting.line(0).into_owned()))
}

/// Connects to the first of the host's addresses that answers.
fn connect(access: &Access) -> Result<TcpStream, ClientError> {
    let host = access.host.as_str();
    let unresolved = |source| ClientError::Resolve { host: host.to_owned(), source };
    let mut failure = unresolved(std::io::ErrorKind::NotFound.into());
    for address in (host, access.port).to_socket_addrs().map_err(unresolved)? {
        if access.cancel.is_cancelled() {
            return Err(ClientError::Interrupted);
        }
        match Sockets::default().connect_unless(address, access.timeout, &access.cancel) {
            Ok(stream) => {
                // Commands are small, and each waits for its answer.
                let _slower = stream.set_nodelay(true);
                let _not_watched = socket2::SockRef::from(&stream).set_keepalive(true);
                return Ok(stream);
            }
            Err(MoveError::Cancelled { .. }) => return Err(ClientError::Interrupted),
            Err(MoveError::Connect { source, .. }) => failure = ClientError::Connect { address, source },
            Err(other) => failure = other.into(),
        }
    }
    Err(failure)
}

fn log_in(control: &mut Control, login: &Login) -> Result<(), ClientError> {
    let user = Command::User(login.user.clone());
    let mut reply = control.ask(&user)?;
    if reply.code == 331 {
        let password = login.password.clone().unwrap_or_else(|| Secret::new(""));
        let pass = Command::Pass(password);
        reply = control.ask(&pass)?;
    }
    if reply.is_completion() {
        return Ok(());
    }
    Err(ClientError::Login { user: login.user.clone(), reply: (&reply).into() })
}

fn expect(
    control: &mut Control,
    command: &Command,
    fits: impl Fn(&Reply) -> bool,
) -> Result<Reply, ClientError> {
    let reply = control.ask(command)?;
    if fits(&reply) { Ok(reply) } else { Err(ClientError::refused(command, &reply)) }
}
