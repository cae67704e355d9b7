//! Encodes commands as bytes, for the client.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{AuthKind, Command, EpsvArgument, Opts, Protection, Structure, TransferType};
use crate::wire::error::{MAX_LINE, WireError};
use crate::wire::terminal::{escape_for_terminal, shown};
use crate::wire::{address, timestamp};

impl Command {
    /// Returns the bytes to send, ending in CR LF. 0xFF is doubled, as telnet wants it.
    ///
    /// # Errors
    /// [`WireError::LineBreak`] if an argument has a CR, LF or NUL, [`WireError::Empty`] if one that must
    /// not be empty is, [`WireError::ArgumentTooLong`] if the line would exceed [`MAX_LINE`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let what = self.known_verb();
        let mut line = self.verb().as_bytes().to_vec();
        if let Some(argument) = self.argument() {
            if argument.is_empty() && !matches!(self, Self::Pass(_)) {
                return Err(WireError::Empty { what });
            }
            line.push(b' ');
            line.extend(argument);
        }
        if line.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            let shown = if matches!(self, Self::Pass(_)) { "***".to_owned() } else { shown(&line) };
            return Err(WireError::LineBreak { what, shown });
        }
        if line.len() > MAX_LINE {
            return Err(WireError::ArgumentTooLong { what });
        }
        let mut bytes = Vec::with_capacity(line.len() + 2);
        for byte in line {
            bytes.push(byte);
            if byte == 0xff {
                bytes.push(byte);
            }
        }
        bytes.extend(b"\r\n");
        Ok(bytes)
    }

    /// Returns the command as one line of a log: without the password, control characters escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Pass(_) => "PASS ***".to_owned(),
            // The token is a secret while the transfer runs.
            Self::Prob(Some(_)) => "PROB ***".to_owned(),
            _ => match self.argument() {
                Some(argument) => format!("{} {}", self.verb(), escape_for_terminal(&argument)),
                None => self.verb().to_owned(),
            },
        }
    }

    fn argument(&self) -> Option<Vec<u8>> {
        match self {
            Self::User(text) | Self::Site(text) => Some(text.clone().into_bytes()),
            Self::Pass(secret) => Some(secret.expose().to_vec()),
            Self::Help(text) => text.clone().map(String::into_bytes),
            Self::Auth(AuthKind::Tls) => Some(b"TLS".to_vec()),
            Self::Auth(AuthKind::Other(name)) => Some(name.clone().into_bytes()),
            Self::Prot(level) => Some(vec![level.letter()]),
            Self::Opts(opts) => Some(opts.argument().into_bytes()),
            Self::Type(TransferType::Ascii) => Some(b"A".to_vec()),
            Self::Type(TransferType::Image) => Some(b"I".to_vec()),
            Self::Mode(letter) | Self::Stru(Structure::Other(letter)) => {
                Some(letter.to_string().into_bytes())
            }
            Self::Stru(Structure::File) => Some(b"F".to_vec()),
            Self::Pbsz(number) => Some(number.to_string().into_bytes()),
            Self::Allo(number) | Self::Rest(number) => Some(number.to_string().into_bytes()),
            Self::Sbuf(size) => Some(size.0.to_string().into_bytes()),
            Self::Epsv(argument) => argument.text().map(|text| text.as_bytes().to_vec()),
            Self::Port(to) => Some(address::encode_port(*to).into_bytes()),
            Self::Eprt(to) => Some(address::encode_eprt(*to).into_bytes()),
            // No argument without a path: `encode` refuses an empty one.
            Self::Mfmt { path, .. } if path.as_os_str().is_empty() => Some(Vec::new()),
            Self::Mfmt { modified, path } => {
                let time = timestamp::format(*modified);
                Some([time.as_bytes(), b" ", path.as_os_str().as_bytes()].concat())
            }
            Self::ListAll => Some(b"-a".to_vec()),
            Self::List(path) | Self::Nlst(path) | Self::Stat(path) => path.as_deref().map(not_an_option),
            Self::Prob(offer) => offer.map(|offer| offer.encode().into_bytes()),
            _ => self.path().map(|path| path.as_os_str().as_bytes().to_vec()),
        }
    }

    fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Mlst(path) | Self::Mlsd(path) => path.as_ref(),
            Self::Size(path)
            | Self::Mdtm(path)
            | Self::Retr(path)
            | Self::Stor(path)
            | Self::Appe(path)
            | Self::Dele(path)
            | Self::Rmd(path)
            | Self::Mkd(path)
            | Self::Rnfr(path)
            | Self::Rnto(path)
            | Self::Cwd(path)
            | Self::Hash(path) => Some(path),
            _ => None,
        }
    }
}

/// Protects a path that begins with a dash, which servers take for options of `ls`.
fn not_an_option(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.starts_with(b"-") { [b"./", bytes].concat() } else { bytes.to_vec() }
}

impl Protection {
    const fn letter(self) -> u8 {
        match self {
            Self::Clear => b'C',
            Self::Safe => b'S',
            Self::Confidential => b'E',
            Self::Private => b'P',
        }
    }
}

impl EpsvArgument {
    const fn text(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::V4 => Some("1"),
            Self::V6 => Some("2"),
            Self::All => Some("ALL"),
        }
    }
}

impl Opts {
    fn argument(&self) -> String {
        match self {
            Self::Utf8(on) => format!("UTF8 {}", if *on { "ON" } else { "OFF" }),
            Self::Mlst(facts) => format!("MLST {facts}"),
            Self::Hash(Some(name)) => format!("HASH {name}"),
            Self::Hash(None) => "HASH".to_owned(),
            Self::Drs { notify } => format!("DRS NOTIFY={};", u8::from(*notify)),
            Self::Other(name) => name.clone(),
        }
    }
}
