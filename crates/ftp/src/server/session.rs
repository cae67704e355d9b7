//! One session: the state of a control connection, and the effect of each command.
//!
//! ```text
//!   connected ── USER, PASS ──> logged in ── PASV/EPSV/PORT ── RETR/STOR/LIST.. ──> transfer runs
//!       │  AUTH TLS                 ^                                                │ at once: NOOP STAT
//!       └── once, before or after ──┤                                                │ ABOR SBUF; later:
//!                                   └─────────────── 226, 4xx, 5xx ──────────────────┘ the rest, in line
//! ```
//! Source: RFC 959, section 5; section 4.2: commands during a transfer wait for its end, except those about the
//! transfer.
//! Properties kept: each command gets one completing reply, in order; a transfer gets its own, whatever else was
//! answered meanwhile; the session ends at the deadline of its state, and a transfer with it; commands that came before
//! AUTH have no effect after it.

mod agreed;
mod files;
mod info;
mod login;
mod sums;
mod transfers;
mod tuning;
mod ways;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bufwise_mover::hash::HashKind;
use bufwise_mover::tls::ServerTls;
use bufwise_mover::wake::Bell;

use self::agreed::{Probes, ReservedBuffer, Tuned};
use super::budget::BudgetGrant;
use super::control::{Control, Heard};
use super::data::Way;
use super::event::Event;
use super::limits::Slot;
use super::path::VirtualPath;
use super::running::Running;
use super::shared::Shared;
use super::users::User;
use crate::wire::listing::Facts;
use crate::wire::{Command, Reply};

/// Commands that may wait for the end of a transfer.
const MAX_QUEUED_COMMANDS: usize = 32;
/// A deadline beyond every other event.
const NO_DEADLINE: Duration = Duration::from_secs(3_600);

/// One session.
pub(super) struct ServerSession {
    server: Arc<Shared>,
    control: Control,
    slot: Slot,
    bell: Arc<Bell>,
    began: Instant,
    wrong_passwords: u32,
    bad_commands: u32,
    /// For data connections, once the control connection is encrypted.
    tls: Option<ServerTls>,
    client: ClientState,
    running: Option<Running>,
    tuned: Tuned,
    /// ABORs that wait for the transfer's own end.
    aborting: usize,
    /// The server stops: the time at which transfers are cancelled.
    stopping: Option<Instant>,
}

/// The effects of a client's commands on those that follow. AUTH puts the default in its place.
struct ClientState {
    /// The name of a USER that waits for its PASS.
    name: Option<String>,
    user: Option<User>,
    /// PBSZ has come, which must precede PROT.
    protection_sized: bool,
    /// PROT P: data connections are encrypted.
    private: bool,
    here: VirtualPath,
    facts: Facts,
    hash: HashKind,
    way: Option<Way>,
    /// TYPE A: affects only listings, whose lines end in CR LF in any case.
    text: bool,
    /// The receive buffer granted in advance.
    reserved: Option<BudgetGrant>,
    /// EPSV ALL: no other command for data connections will be accepted.
    only_epsv: bool,
    restart: u64,
    rename_from: Option<VirtualPath>,
    /// The length that ALLO announced.
    announced: Option<u64>,
    /// The client understands 126 and SBUF during transfers.
    notify: bool,
    /// SBUF before a transfer: the buffers of data connections to come.
    buffer: Option<ReservedBuffer>,
    /// The buffers of connections to the port of the last EPSV or PASV, if an SBUF for smaller ones has come since.
    port_buffer: Option<ReservedBuffer>,
    probes: Probes,
    /// Commands that wait for the end of the transfer.
    queue: VecDeque<Command>,
    /// Commands beyond the queue's limit.
    excess: u32,
}

impl Default for ClientState {
    /// Returns the state before the first command.
    fn default() -> Self {
        Self {
            name: None,
            user: None,
            protection_sized: false,
            private: false,
            here: VirtualPath::top(),
            facts: Facts::default(),
            hash: HashKind::Sha256,
            way: None,
            text: false,
            reserved: None,
            only_epsv: false,
            restart: 0,
            rename_from: None,
            announced: None,
            notify: false,
            buffer: None,
            port_buffer: None,
            probes: Probes::default(),
            queue: VecDeque::new(),
            excess: 0,
        }
    }
}

/// Whether the session continues after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Go,
    /// The session ends.
    End,
}

impl ServerSession {
    pub(super) fn new(server: Arc<Shared>, control: Control, slot: Slot) -> io::Result<Self> {
        Ok(Self {
            server,
            control,
            slot,
            bell: Arc::new(Bell::new()?),
            began: Instant::now(),
            wrong_passwords: 0,
            bad_commands: 0,
            tls: None,
            client: ClientState::default(),
            running: None,
            tuned: Tuned::default(),
            aborting: 0,
            stopping: None,
        })
    }

    /// Runs the session to its end.
    pub(super) fn run(mut self) {
        // A client that takes no reply, or has gone, ends the session.
        let _broken = self.talk();
        if let Some(running) = self.running.take() {
            running.cancel();
            self.tell_of_transfer(running.outcome().event);
        }
        self.control.end();
    }

    fn talk(&mut self) -> io::Result<()> {
        self.reply(220, "bufwise FTP server ready.")?;
        loop {
            if self.running.is_none() && self.catch_up()? == Next::End {
                return Ok(());
            }
            let deadline = self.deadline();
            let stop = self.server.stop.clone();
            let stop = self.stopping.is_none().then(|| stop.bell());
            match self.control.hear(&self.bell, stop, deadline)? {
                Heard::Line(line) => {
                    if self.line(&line)? == Next::End {
                        return Ok(());
                    }
                }
                Heard::BadLine => {
                    if self.bad_command(&Reply::single(500, "Not a command."))? == Next::End {
                        return Ok(());
                    }
                }
                Heard::Bell => self.look_at_transfer()?,
                Heard::Stop => self.stopping = Some(Instant::now() + self.server.config.times.grace),
                Heard::Late => {
                    if self.late()? == Next::End {
                        return Ok(());
                    }
                }
                Heard::Closed => {
                    if !self.outlives_client() {
                        return Ok(());
                    }
                }
                Heard::Endless => {
                    self.ended("a command line without an end");
                    return self.reply(500, "The line is too long.");
                }
            }
        }
    }

    /// Handles a client that has hung up. After QUIT a running transfer goes on to its end (RFC 959, section 4.1.1).
    fn outlives_client(&mut self) -> bool {
        let Some(running) = &self.running else { return false };
        let parted = self.client.queue.contains(&Command::Quit);
        if parted {
            running.part();
            self.control.outlive();
        }
        parted
    }

    /// Handles what has waited for the end of a transfer: commands, and the server's stop.
    fn catch_up(&mut self) -> io::Result<Next> {
        while self.running.is_none() && self.stopping.is_none() {
            let Some(command) = self.client.queue.pop_front() else { break };
            if self.obey(command)? == Next::End {
                return Ok(Next::End);
            }
        }
        if self.running.is_none() && self.client.queue.is_empty() {
            for _ in 0..std::mem::take(&mut self.client.excess) {
                self.reply(450, "Too many commands during a transfer: send this one again.")?;
            }
        }
        if self.running.is_none() && self.stopping.is_some() {
            self.reply(421, "The server stops.")?;
            return Ok(Next::End);
        }
        Ok(Next::Go)
    }

    fn deadline(&self) -> Instant {
        let (now, times) = (Instant::now(), &self.server.config.times);
        match (self.stopping, &self.running, &self.client.user) {
            (Some(stopping), Some(running), _) if !running.is_cancelled() => stopping,
            // A transfer has time limits of its own.
            (_, Some(_), _) => now + NO_DEADLINE,
            (_, None, Some(_)) => now + times.idle,
            (_, None, None) => (self.began + times.login).min(now + times.idle),
        }
    }

    fn late(&mut self) -> io::Result<Next> {
        match &self.running {
            Some(running) => {
                if self.stopping.is_some() {
                    running.cancel();
                }
                Ok(Next::Go)
            }
            None => {
                let waited = if self.client.user.is_some() { "no command came" } else { "no login came" };
                self.ended(&format!("{waited} in time"));
                self.reply(421, "Timeout, goodbye.")?;
                Ok(Next::End)
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<Next> {
        let command = match Command::parse(line) {
            Ok(command) => command,
            Err(error) => return self.bad_command(&Reply::from(&error)),
        };
        if self.running.is_some() {
            self.during_transfer(command)?;
            return Ok(Next::Go);
        }
        self.obey(command)
    }

    /// Answers a line that is no command, or a command that needs a login first.
    fn bad_command(&mut self, reply: &Reply) -> io::Result<Next> {
        self.control.reply(reply)?;
        if self.client.user.is_some() {
            return Ok(Next::Go);
        }
        self.bad_commands += 1;
        if self.bad_commands < self.server.config.limits.bad_commands {
            return Ok(Next::Go);
        }
        self.ended("too many bad commands before login");
        self.reply(421, "Too many bad commands, goodbye.")?;
        Ok(Next::End)
    }

    /// Handles a command during a transfer: answers commands about the transfer, and queues others until its end.
    fn during_transfer(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Noop => self.reply(200, "Still busy with the transfer.")?,
            Command::Stat(None) => self.status_of_transfer()?,
            // Further ones are queued like other commands.
            Command::Abor if self.aborting < MAX_QUEUED_COMMANDS => {
                self.aborting += 1;
                self.running.iter().for_each(Running::cancel);
            }
            Command::Sbuf(request) if self.takes_requests() => self.request(request)?,
            later if self.client.excess == 0 && self.client.queue.len() < MAX_QUEUED_COMMANDS => {
                self.client.queue.push_back(later);
            }
            // Answered in its turn, after those in the queue.
            _ => self.client.excess = self.client.excess.saturating_add(1),
        }
        Ok(())
    }

    /// Executes a command while no transfer runs.
    fn obey(&mut self, command: Command) -> io::Result<Next> {
        // RNTO must follow RNFR at once (RFC 959, section 5.4).
        let rename_from = self.client.rename_from.take();
        let command = match self.obey_anybody(command)? {
            Ok(next) => return Ok(next),
            Err(command) => command,
        };
        let Some(user) = self.client.user.clone() else {
            let reply = match command {
                Command::Unknown(_) => Reply::single(500, "Unknown command."),
                _ => Reply::single(530, "Log in with USER and PASS first."),
            };
            return self.bad_command(&reply);
        };
        match command {
            Command::Pasv
            | Command::Epsv(_)
            | Command::Port(_)
            | Command::Eprt(_)
            | Command::Type(_)
            | Command::Mode(_)
            | Command::Stru(_)
            | Command::Allo(_)
            | Command::Rest(_) => self.prepare_transfer(&command)?,
            Command::Sbuf(_) | Command::Prob(_) => self.tune(&command)?,
            Command::Retr(_)
            | Command::Stor(_)
            | Command::Appe(_)
            | Command::List(_)
            | Command::ListAll
            | Command::Nlst(_)
            | Command::Mlsd(_) => self.transfer(command, &user)?,
            Command::Hash(path) => self.sum(&path, &user)?,
            Command::Abor => self.reply(226, "There is no transfer to abort.")?,
            other => self.files(other, &user, rename_from)?,
        }
        Ok(Next::Go)
    }

    /// Executes commands that need no login; returns the others.
    fn obey_anybody(&mut self, command: Command) -> io::Result<Result<Next, Command>> {
        match command {
            Command::User(name) => self.user(name)?,
            Command::Pass(secret) => return self.pass(&secret).map(Ok),
            Command::Auth(kind) => return self.auth(&kind).map(Ok),
            Command::Quit => {
                self.reply(221, "Goodbye.")?;
                return Ok(Ok(Next::End));
            }
            Command::Acct => self.reply(202, "No account is needed.")?,
            Command::Rein => self.reply(502, "Connect again instead.")?,
            Command::Pbsz(_) | Command::Prot(_) | Command::Ccc => self.protect(&command)?,
            Command::Feat
            | Command::Opts(_)
            | Command::Syst
            | Command::Help(_)
            | Command::Noop
            | Command::Stat(None) => self.info(command)?,
            other => return Ok(Err(other)),
        }
        Ok(Ok(Next::Go))
    }

    fn reply(&mut self, code: u16, text: &str) -> io::Result<()> {
        self.control.reply(&Reply::single(code, text))
    }

    /// Ends the session for a reason that is logged.
    fn ended(&self, reason: &str) {
        let is_known = self.client.user.as_ref().is_some_and(|user| !user.is_guest());
        let (peer, reason) = (self.control.peer, reason.to_owned());
        self.server.tell(&Event::Ended { peer, is_known, reason });
    }
}
