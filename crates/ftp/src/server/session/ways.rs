//! Commands that precede a transfer: PASV, EPSV, PORT, EPRT, TYPE, MODE, STRU, ALLO, REST.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, SocketAddrV4};

use bufwise_mover::Sockets;
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;
use socket2::SockRef;

use super::ServerSession;
use crate::server::budget::BudgetGrant;
use crate::server::data::{self, Way};
use crate::server::event::Event;
use crate::wire::address::{encode_epsv, encode_pasv};
use crate::wire::{Command, EpsvArgument, Structure, TransferType};

impl ServerSession {
    pub(super) fn prepare_transfer(&mut self, command: &Command) -> io::Result<()> {
        match command {
            Command::Pasv | Command::Port(_) | Command::Eprt(_) if self.client.only_epsv => {
                self.reply(503, "After EPSV ALL only EPSV is allowed.")
            }
            Command::Pasv => self.pasv(),
            Command::Epsv(argument) => self.epsv(*argument),
            Command::Port(target) => self.active(SocketAddr::V4(*target)),
            Command::Eprt(target) => self.active(*target),
            Command::Type(TransferType::Image) => {
                self.client.text = false;
                self.reply(200, "Files are transferred as they are.")
            }
            Command::Type(TransferType::Ascii) => {
                self.client.text = true;
                self.reply(200, "Listings are text; files need TYPE I.")
            }
            Command::Mode('S') => self.reply(200, "Stream mode."),
            Command::Stru(Structure::File) => self.reply(200, "File structure."),
            Command::Allo(bytes) => self.allocate(*bytes),
            Command::Rest(offset) => {
                self.client.restart = *offset;
                self.reply(350, &format!("The next transfer begins at byte {offset}."))
            }
            _ => self.reply(504, "Only stream mode and file structure are supported."),
        }
    }

    fn pasv(&mut self) -> io::Result<()> {
        let IpAddr::V4(local) = self.control.local.ip() else {
            return self.reply(425, "PASV is for IPv4: use EPSV.");
        };
        let announced = self.server.config.data.announced.unwrap_or(local);
        match self.listen()? {
            Some(port) => self.control.reply(&encode_pasv(SocketAddrV4::new(announced, port))),
            None => Ok(()),
        }
    }

    fn epsv(&mut self, argument: EpsvArgument) -> io::Result<()> {
        match (argument, self.control.local.ip()) {
            (EpsvArgument::All, _) => {
                self.client.only_epsv = true;
                self.reply(200, "EPSV only from now on.")
            }
            (EpsvArgument::V4, IpAddr::V6(_)) => self.reply(522, "Network protocol not supported, use (2)."),
            (EpsvArgument::V6, IpAddr::V4(_)) => self.reply(522, "Network protocol not supported, use (1)."),
            _ => match self.listen()? {
                Some(port) => self.control.reply(&encode_epsv(port)),
                None => Ok(()),
            },
        }
    }

    /// Listens on a port for the next transfer; an earlier port is closed. If all are taken, a guest that only waits on
    /// one may have to give it up.
    fn listen(&mut self) -> io::Result<Option<u16>> {
        self.close_port();
        let sockets = self.sockets();
        let ports = self.server.config.data.ports.as_ref();
        let listen = || data::listen(&sockets, self.control.local, ports);
        let mut listened = listen();
        while data::is_taken(&listened) && self.server.slots.free_port(self.control.peer.ip()) {
            listened = listen();
        }
        if let Some(ports) = ports.filter(|_| data::is_taken(&listened)) {
            let reason = format!("all from {} to {} are taken", ports.start(), ports.end());
            return self.no_port(&reason);
        }
        match listened.map(|listener| (listener.local_addr(), listener)) {
            Ok((Ok(local), listener)) => {
                // Without a descriptor for it, the port cannot be given up.
                if let Ok(port) = listener.try_clone() {
                    let give_up = move || {
                        let _closed = SockRef::from(&port).shutdown(Shutdown::Both);
                    };
                    self.slot.wait_on_port(Some(Box::new(give_up)));
                }
                self.client.way = Some(Way::Passive(listener));
                Ok(Some(local.port()))
            }
            Ok((Err(error), _)) => self.no_port(&error.to_string()),
            Err(error) => self.no_port(&error.to_string()),
        }
    }

    /// Takes the way of the next data connection; the session no longer waits on a port.
    pub(super) fn take_way(&mut self) -> Option<Way> {
        self.slot.wait_on_port(None);
        self.client.way.take()
    }

    /// Closes the port of an earlier command, and gives the memory of its connections' buffers back.
    fn close_port(&mut self) {
        self.take_way();
        self.client.port_buffer = None;
    }

    fn no_port(&mut self, reason: &str) -> io::Result<Option<u16>> {
        self.server.tell(&Event::Trouble { what: format!("no port for a data connection: {reason}") });
        self.reply(425, "No port is free for a data connection.")?;
        Ok(None)
    }

    fn active(&mut self, target: SocketAddr) -> io::Result<()> {
        if !self.server.config.data.active {
            return self.reply(502, "This server does not connect to clients: use EPSV or PASV.");
        }
        let Some(target) = data::own_port(target, self.control.peer) else {
            let reason = "it requested a data connection to another host";
            self.server.tell(&Event::Refused { peer: self.control.peer, reason });
            return self.reply(501, "Only your own address, and ports from 1024.");
        };
        self.close_port();
        self.client.way = Some(Way::Active(target));
        self.reply(200, "The server will connect.")
    }

    fn allocate(&mut self, bytes: u64) -> io::Result<()> {
        // No file can be longer. The room is checked once the directory is known: it may be on another disk.
        self.client.announced = Some(bytes).filter(|bytes| i64::try_from(*bytes).is_ok());
        match self.client.announced {
            None => self.reply(452, "Not enough space."),
            Some(_) => self.reply(200, "Noted: STOR or APPE will tell if there is no space."),
        }
    }

    /// Returns the options of the next data connection.
    pub(super) fn sockets(&mut self) -> Sockets {
        self.client.reserved = None;
        match (self.buffer_size(), self.server.config.tuning.policy) {
            (Some(size), _) => Sockets::fixed(size),
            // The whole buffer is offered with the connection's first packet, so it must be granted before.
            (None, PolicyKind::Fixed(size)) => {
                let mut grant = self.receiving();
                let room = grant.ask(size.times(2), Bytes::ZERO);
                self.client.reserved = Some(grant);
                Sockets { receive_buffer: Some(room.scaled(1, 2)), ..Sockets::fixed(size) }
            }
            (None, policy) => Sockets::for_policy(policy),
        }
    }

    /// Returns the share of memory for the receive buffer of one upload.
    pub(super) fn receiving(&self) -> BudgetGrant {
        self.server.receiving.open(self.client.user.as_ref().map_or("", |user| &user.name))
    }
}
