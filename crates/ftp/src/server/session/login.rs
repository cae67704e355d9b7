//! Login and encryption: USER, PASS, AUTH, PBSZ, PROT, CCC.
//!
//! Source: RFC 959 (USER, PASS), RFC 4217 (TLS), RFC 2577 (guessing of passwords).
//! Properties kept: a wrong name and a wrong password look alike; where TLS is required, no password is accepted in
//! clear text; AUTH resets the session: commands sent in clear text have no effect afterwards.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_mover::wake;
use nix::poll::PollFlags;

use super::{ClientState, Next, ServerSession};
use crate::server::event::Event;
use crate::server::users::Rights;
use crate::wire::terminal::escape_for_terminal;
use crate::wire::{ALPN, AuthKind, Command, Protection, Secret};

/// How much of a name that failed to log in is logged.
const SHOWN_NAME: usize = 64;

impl ServerSession {
    pub(super) fn user(&mut self, name: String) -> io::Result<()> {
        if self.client.user.is_some() {
            return self.reply(503, "You are logged in already.");
        }
        if self.must_encrypt_first() {
            return self.reply(530, "This server wants TLS: AUTH TLS first.");
        }
        let anonymous = self.server.admission.now().users.is_anonymous(&name);
        self.client.name = Some(name);
        if anonymous {
            self.reply(331, "Any password will do.")
        } else {
            self.reply(331, "Password, please.")
        }
    }

    fn must_encrypt_first(&self) -> bool {
        !self.control.is_tls() && self.server.admission.requires_tls()
    }

    pub(super) fn pass(&mut self, password: &Secret) -> io::Result<Next> {
        if self.client.user.is_some() {
            self.reply(503, "You are logged in already.")?;
            return Ok(Next::Go);
        }
        let Some(name) = self.client.name.take() else {
            self.reply(503, "USER comes first.")?;
            return Ok(Next::Go);
        };
        let latest = self.began + self.server.config.times.login;
        if !self.server.admission.now().users.is_anonymous(&name) {
            let admitted = self.server.attempts.admit(self.control.peer.ip(), &name, Instant::now(), latest);
            if !admitted.map_or(Ok(false), |moment| self.wait_until(moment))? {
                return self.no_time();
            }
        }
        let user = match self.server.admission.now().users.check(&name, password.expose(), latest) {
            Ok(Some(user)) => user,
            Ok(None) => return self.wrong_password(&name),
            Err(crowded) => {
                self.ended(&crowded.to_string());
                self.reply(421, "Too many logins at once, try again later.")?;
                return Ok(Next::End);
            }
        };
        let (peer, is_known, tls) = (self.control.peer, !user.is_guest(), self.control.is_tls());
        self.server.tell(&Event::LoggedIn { peer, user: user.name.clone(), is_known, tls });
        let text = match user.rights {
            Rights::Read => "Logged in, for reading.",
            Rights::Write => "Logged in, for reading and writing.",
        };
        if is_known {
            self.slot.keep();
        }
        self.client.user = Some(user);
        self.reply(230, text)?;
        Ok(Next::Go)
    }

    fn wrong_password(&mut self, name: &str) -> io::Result<Next> {
        let peer = self.control.peer;
        let shown: String = escape_for_terminal(name.as_bytes()).chars().take(SHOWN_NAME).collect();
        self.server.tell(&Event::LoginFailed { peer, name: shown });
        let next = self.server.attempts.failed(peer.ip(), name, Instant::now());
        self.wrong_passwords += 1;
        if !self.wait_until(next)? {
            return self.no_time();
        }
        self.reply(530, "Wrong name or password.")?;
        if self.wrong_passwords < self.server.config.limits.passwords {
            return Ok(Next::Go);
        }
        self.ended("too many wrong passwords");
        self.reply(421, "Too many wrong passwords, goodbye.")?;
        Ok(Next::End)
    }

    fn no_time(&mut self) -> io::Result<Next> {
        self.ended("no login came in time");
        self.reply(421, "Too many attempts from your address, try again later.")?;
        Ok(Next::End)
    }

    /// Sleeps until `moment`; false if the time for logging in ends before, the server stops, or the session has lost
    /// its place.
    fn wait_until(&self, moment: Instant) -> io::Result<bool> {
        if moment > self.began + self.server.config.times.login {
            return Ok(false);
        }
        if moment <= Instant::now() {
            return Ok(true);
        }
        let stop = self.server.stop.bell().as_fd();
        let watched = [(stop, PollFlags::POLLIN), (self.control.as_fd()?, PollFlags::empty())];
        let [stopped, shut] = wake::until(watched, moment)?;
        if shut { Err(io::ErrorKind::NotConnected.into()) } else { Ok(!stopped) }
    }

    pub(super) fn auth(&mut self, kind: &AuthKind) -> io::Result<Next> {
        let Some(tls) = self.server.admission.now().tls.clone() else {
            self.reply(502, "This server has no TLS.")?;
            return Ok(Next::Go);
        };
        if self.control.is_tls() {
            self.reply(503, "The connection is encrypted already.")?;
            return Ok(Next::Go);
        }
        if *kind != AuthKind::Tls {
            self.reply(504, "Only AUTH TLS is supported.")?;
            return Ok(Next::Go);
        }
        self.reply(234, "Begin TLS now.")?;
        // A login in clear text ends when TLS begins (RFC 4217, section 4), and so does all else that an attacker on the
        // path may have sent. No transfer runs.
        self.take_way();
        self.client = ClientState::default();
        self.slot.release();
        let server = tls.server.for_session(ALPN);
        if let Err(error) = self.control.begin_tls(&server) {
            self.ended(&error.to_string());
            return Ok(Next::End);
        }
        self.tls = Some(server);
        Ok(Next::Go)
    }

    pub(super) fn protect(&mut self, command: &Command) -> io::Result<()> {
        if self.tls.is_none() {
            return self.reply(503, "AUTH TLS comes first.");
        }
        match command {
            Command::Pbsz(_) => {
                self.client.protection_sized = true;
                self.reply(200, "PBSZ=0")
            }
            Command::Ccc => self.reply(534, "The control connection stays encrypted."),
            Command::Prot(_) if !self.client.protection_sized => self.reply(503, "PBSZ comes first."),
            Command::Prot(Protection::Private) => {
                self.client.private = true;
                self.reply(200, "Data connections are encrypted from now on.")
            }
            Command::Prot(Protection::Clear) if self.server.admission.requires_tls() => {
                self.reply(534, "Data connections must be encrypted here.")
            }
            Command::Prot(Protection::Clear) => {
                self.client.private = false;
                self.reply(200, "Data connections are not encrypted from now on.")
            }
            _ => self.reply(536, "Only the levels C and P are supported."),
        }
    }

    /// Returns the time since the session began, for STAT.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}
