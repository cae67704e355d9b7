//! Beginning and ending transfers: RETR, STOR, APPE, LIST, NLST, MLSD.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bufwise_mover::{Sockets, Source};

use super::ServerSession;
use crate::server::data::Way;
use crate::server::error::StoreError;
use crate::server::event::{Direction, Event, Transfer};
use crate::server::listing::{Entries, Form, Listing, fits, pattern_of};
use crate::server::path::VirtualPath;
use crate::server::running::{Link, Outcome, Running};
use crate::server::shared::Busy;
use crate::server::turns::Party;
use crate::server::upload::Start;
use crate::server::users::{Rights, User};
use crate::server::work::{self, Announced, Channel, Incoming};
use crate::wire::{Command, Kind};

impl ServerSession {
    pub(super) fn transfer(&mut self, command: Command, user: &User) -> io::Result<()> {
        // REST and ALLO count for this command alone, also if it is refused.
        let restart = std::mem::take(&mut self.client.restart);
        let announced = self.client.announced.take();
        let writes = matches!(command, Command::Stor(_) | Command::Appe(_));
        if writes && user.rights != Rights::Write {
            return self.forbid();
        }
        if self.client.text && (writes || matches!(command, Command::Retr(_))) {
            return self.reply(504, "Files are transferred in binary mode only: TYPE I first.");
        }
        let tls_required = self.server.admission.requires_tls();
        if tls_required && !self.client.private {
            return self.reply(522, "Data connections must be encrypted here: PROT P first.");
        }
        match command {
            Command::Retr(path) => self.retrieve(&path, user, restart),
            Command::Stor(path) => {
                let start = if restart == 0 { Start::New } else { Start::At(restart) };
                self.store(&path, user, start, announced)
            }
            Command::Appe(path) => self.store(&path, user, Start::Append, announced),
            Command::List(path) => self.list(path, user, Form::Long),
            Command::ListAll => self.list(None, user, Form::Long),
            Command::Nlst(path) => self.list(path, user, Form::Names),
            Command::Mlsd(path) => self.list(path, user, Form::Facts(self.client.facts)),
            _ => self.reply(502, "Unknown command."),
        }
    }

    fn retrieve(&mut self, path: &Path, user: &User, offset: u64) -> io::Result<()> {
        let opened = self.client.here.join(path).and_then(|path| {
            let (file, status) = self.server.store.read(&path)?;
            let left = status.size.checked_sub(offset).ok_or(StoreError::Beyond)?;
            Ok((path, file, left))
        });
        let (path, file, left) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.refuse(&error),
        };
        let Some(channel) = self.channel()? else { return Ok(()) };
        self.client.reserved = None;
        let responder = self.take_responder();
        let grants = self.tune_sending();
        let record = self.record(user, Direction::Sent, &path, offset);
        let text = format!("Sending the file ({left} bytes).");
        // If the file changes meanwhile, either the announced number of bytes is sent or the client gets an error. File
        // systems that do not know a file's length report 0.
        let length = (left > 0).then_some(left);
        self.start(&text, move |link| {
            let part = Source::File { file: &file, offset, length };
            work::send(channel, link, part, &grants, responder.as_ref(), record)
        })
    }

    fn store(&mut self, path: &Path, user: &User, start: Start, announced: Option<u64>) -> io::Result<()> {
        // Other clients that resume a file may have announced the length of all of it.
        let needed = announced.filter(|_| self.client.notify || start == Start::New);
        let opened = self.client.here.join(path).and_then(|path| {
            let upload = self.server.store.upload(&path, start, needed)?;
            Ok((path, upload))
        });
        let (path, upload) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.refuse(&error),
        };
        let Some(mut channel) = self.channel()? else { return Ok(()) };
        // Clients of bufwise read while they write, and need the tickets; others may do neither.
        if !self.client.notify {
            channel.tls = channel.tls.map(|tls| tls.without_tickets());
        }
        let presence = self.control.presence()?;
        let prober = self.take_prober();
        self.tune_receiving();
        let record = self.record(user, Direction::Received, &path, upload.offset());
        let length = Announced { bytes: announced, is_exact: self.client.notify };
        // Also with a size of the client's: the port may be older than that, and a policy may enlarge the buffer.
        let buffer = self.client.reserved.take().unwrap_or_else(|| self.receiving());
        let incoming = Incoming { upload, prober, length, buffer };
        self.start("Ready to receive the file.", move |link| {
            work::receive(channel, link, &presence, incoming, record)
        })
    }

    fn list(&mut self, path: Option<PathBuf>, user: &User, form: Form) -> io::Result<()> {
        let listing = match self.listing(path.unwrap_or_default(), user, form) {
            Ok(listing) => listing,
            Err(error) => return self.refuse(&error),
        };
        let Some(channel) = self.channel()? else { return Ok(()) };
        self.client.reserved = None;
        let grants = self.sending();
        self.start("Sending the listing.", move |link| work::list(channel, link, listing, &grants))
    }

    fn listing(&self, path: PathBuf, user: &User, form: Form) -> Result<Listing, StoreError> {
        let store = &self.server.store;
        let there = self.client.here.join(&path)?;
        let above = || path.parent().map(Path::to_owned).unwrap_or_default();
        let memory = self.server.names.open(&Party::new(&user.name, self.control.peer.ip()).to_string());
        let (entries, prefix): (Entries, PathBuf) = match store.status(&there, false) {
            Ok(status) if status.kind == Kind::Dir => (Box::new(store.list(&there, memory, |_| true)?), path),
            Ok(_) if matches!(form, Form::Facts(_)) => return Err(StoreError::NotADirectory),
            Ok(status) => {
                let name = there.name().ok_or(StoreError::NotFound)?.to_owned();
                (Box::new(iter::once((name, status))), above())
            }
            Err(StoreError::NotFound) => {
                let (directory, pattern) = pattern_of(&there).ok_or(StoreError::NotFound)?;
                let listed =
                    store.list(&directory, memory, |name| fits(&pattern, name.as_encoded_bytes()))?;
                if listed.left() == 0 {
                    return Err(StoreError::NotFound);
                }
                (Box::new(listed), above())
            }
            Err(error) => return Err(error),
        };
        Ok(Listing::new(entries, form, user.rights, prefix))
    }

    /// Takes the data connection for the next transfer; without one, replies with the reason.
    fn channel(&mut self) -> io::Result<Option<Channel>> {
        let Some(way) = self.take_way() else {
            self.reply(425, "EPSV or PASV first.")?;
            return Ok(None);
        };
        let own = self.control.local;
        let sockets = match way {
            // A firewall, or the client itself, takes a connection from another address for a stranger's.
            Way::Active(_) => self.sockets().with_source(own),
            Way::Passive(_) => Sockets::default(),
        };
        Ok(Some(Channel {
            server: Arc::clone(&self.server),
            way,
            sockets,
            peer: self.control.peer.ip(),
            tls: self.tls.clone().filter(|_| self.client.private),
        }))
    }

    /// Returns the record of the transfer, for the log.
    fn record(&self, user: &User, direction: Direction, path: &VirtualPath, offset: u64) -> Transfer {
        Transfer {
            peer: self.control.peer.ip(),
            user: user.name.clone(),
            is_known: !user.is_guest(),
            direction,
            path: path.to_string(),
            offset,
            bytes: 0,
            elapsed: Duration::ZERO,
            tls: self.client.private,
            failure: None,
            policy: None,
            buffer_request: None,
            report: None,
        }
    }

    /// Announces a transfer and begins it.
    fn start(&mut self, text: &str, work: impl FnOnce(&Link) -> Outcome + Send + 'static) -> io::Result<()> {
        self.reply(150, text)?;
        self.begin(work)
    }

    pub(super) fn begin(&mut self, work: impl FnOnce(&Link) -> Outcome + Send + 'static) -> io::Result<()> {
        let busy = Busy::new(&self.server);
        let work = move |link: &Link| {
            let _busy = busy;
            work(link)
        };
        match Running::start(&self.bell, work) {
            Ok(running) => {
                // The command has waited for the end of another transfer; the client has disconnected meanwhile.
                if self.control.is_outlived() {
                    running.part();
                }
                self.running = Some(running);
                self.slot.begin_transfer();
                Ok(())
            }
            Err(error) => {
                self.server.tell(&Event::Trouble { what: format!("a transfer could not begin: {error}") });
                self.reply(451, "The server cannot begin a transfer now.")
            }
        }
    }

    /// Handles news of the transfer: its progress, or its end.
    pub(super) fn look_at_transfer(&mut self) -> io::Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        if !running.has_ended() {
            return match running.progress() {
                Some(progress) => self.look_at_progress(&progress),
                None => Ok(()),
            };
        }
        let Some(outcome) = self.running.take().map(Running::outcome) else { return Ok(()) };
        self.tell_of_transfer(outcome.event);
        self.control.reply(&outcome.reply)?;
        for _ in 0..std::mem::take(&mut self.aborting) {
            self.reply(226, "The transfer is over.")?;
        }
        // The place may be lost from now on: a guest that lost it earlier would miss the reply.
        self.slot.end_transfer();
        Ok(())
    }

    /// Logs the end of the transfer.
    pub(super) fn tell_of_transfer(&mut self, event: Option<Event>) {
        let told = std::mem::take(&mut self.tuned).told;
        let event = event.map(|event| match event {
            Event::Transfer(transfer) => {
                Event::Transfer(Box::new(Transfer { buffer_request: told, ..*transfer }))
            }
            other => other,
        });
        event.iter().for_each(|event| self.server.tell(event));
    }
}
