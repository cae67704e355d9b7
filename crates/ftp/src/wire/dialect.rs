//! The dialect that only two ends of bufwise speak.
//!
//! Problem: in drsFTP (Feng 2002, section 4) the receiver tells the sender its buffer size during a transfer, and the
//! sender answers. RFC 959 forbids both, and most programs get out of step. So: the server lists `DRS` in FEAT; the
//! client opts in by `OPTS DRS NOTIFY=1;`; only then there may be a `126 Buffer Size (n)`, always a preliminary reply,
//! and `SBUF n` during a transfer. For the probes of SOBAS (Prasad 2004) the control connection carries their port and
//! token. The mover decides when to send a size.
//! Properties kept: decoding undoes encoding.

use std::fmt;

use bufwise_mover::probe::Token;
use bufwise_units::Bytes;

use super::address::decimal;
use super::error::WireError;
use super::reply::Reply;
use super::terminal::shown;

#[cfg(test)]
mod tests;

/// The code of a notice about a buffer.
pub const BUFFER_NOTICE: u16 = 126;

/// The parameters of `DRS` in FEAT. Unknown ones are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrsFeature {
    /// SBUF is understood during a transfer.
    pub sbuf: bool,
    /// 126 replies are given after OPTS DRS.
    pub notify: bool,
    /// PROB is understood.
    pub probe: bool,
}

impl DrsFeature {
    /// The name in FEAT.
    pub const NAME: &str = "DRS";

    pub(super) fn decode(parameters: &str) -> Self {
        let has = |name: &str| parameters.split(';').any(|given| given.trim().eq_ignore_ascii_case(name));
        Self { sbuf: has("SBUF"), notify: has("NOTIFY"), probe: has("PROBE") }
    }
}

impl fmt::Display for DrsFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = [(self.sbuf, "SBUF;"), (self.notify, "NOTIFY;"), (self.probe, "PROBE;")];
        parameters.iter().filter(|(has, _)| *has).try_for_each(|(_, name)| f.write_str(name))
    }
}

/// Returns the notice `126 Buffer Size (n)`.
#[must_use]
pub fn buffer_notice(size: Bytes) -> Reply {
    Reply::single(BUFFER_NOTICE, format!("Buffer Size ({})", size.0))
}

/// Returns the size in a notice; `None` if the reply is no such notice or the size is zero.
#[must_use]
pub fn parse_buffer_notice(reply: &Reply) -> Option<Bytes> {
    let [line] = reply.lines.as_slice() else {
        return None;
    };
    let size = line.strip_prefix(b"Buffer Size (")?.strip_suffix(b")")?;
    decimal(size).filter(|size| reply.code == BUFFER_NOTICE && *size > 0).map(Bytes)
}

/// Where probes are answered, and the secret that ties them to one transfer. The address is that of the
/// control connection's other end.
#[derive(Clone, Copy, Debug)]
pub struct ProbeOffer {
    /// The UDP port, not 0.
    pub port: u16,
    /// The session's token.
    pub token: Token,
}

impl PartialEq for ProbeOffer {
    fn eq(&self, other: &Self) -> bool {
        self.port == other.port && self.token.to_bytes() == other.token.to_bytes()
    }
}

impl Eq for ProbeOffer {}

impl ProbeOffer {
    pub(super) fn encode(self) -> String {
        let token: String = self.token.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("(|||{}|{token}|)", self.port)
    }

    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let inner = text.strip_prefix(b"(|||")?.strip_suffix(b"|)")?;
        let bar = inner.iter().position(|byte| *byte == b'|')?;
        let (port, hex) = (decimal(&inner[..bar]).filter(|port| *port != 0)?, &inner[bar + 1..]);
        let mut token = [0; 16];
        if hex.len() != 2 * token.len() {
            return None;
        }
        for (byte, digits) in token.iter_mut().zip(hex.chunks_exact(2)) {
            let digits = str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self { port, token: Token::from_bytes(token) })
    }

    /// Returns the reply to PROB without an offer: `200 Probe (|||port|token|)`.
    #[must_use]
    pub fn reply(self) -> Reply {
        Reply::single(200, format!("Probe {}", self.encode()))
    }

    /// Returns the offer in the reply to PROB.
    ///
    /// # Errors
    /// [`WireError::NoPort`] if the reply has none.
    pub fn from_reply(reply: &Reply) -> Result<Self, WireError> {
        let offer = match reply.lines.as_slice() {
            [line] if reply.code == 200 => line.strip_prefix(b"Probe ").and_then(Self::decode),
            _ => None,
        };
        // The text is not shown beyond its first word: the rest may hold a token.
        offer.ok_or_else(|| WireError::NoPort { reply: format!("{} {}", reply.code, shown(b"Probe")) })
    }
}
