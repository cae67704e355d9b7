//! Lines of a control connection.
//!
//! Problem: bytes arrive in pieces of any size, and must be joined to whole lines. A peer that sends no line break, or
//! telnet commands (RFC 854; by RFC 959 section 2.3 the control connection is a telnet one), must neither fill the
//! memory nor hide bytes in a line.
//! Properties kept: the lines do not depend on how the bytes were cut; memory is bounded by the lines that the caller
//! has not taken and one more; doubling each 0xFF (as [`super::Command::encode`] does) undoes the stripping.

use super::error::{MAX_LINE, WireError};

#[cfg(test)]
mod tests;

/// Telnet's "interpret as command".
const IAC: u8 = 0xff;
/// Begins a subnegotiation, which ends in `IAC SE`.
const SB: u8 = 0xfa;
const SE: u8 = 0xf0;
/// The first of WILL, WONT, DO, DONT: each is followed by an option.
const WILL: u8 = 0xfb;
const DONT: u8 = 0xfe;

/// Splits a byte stream into lines that end in LF or CR LF.
#[derive(Debug)]
pub struct Lines {
    /// Bytes fed and not taken yet, without telnet commands.
    bytes: Vec<u8>,
    /// Where the line that is not taken yet begins.
    start: usize,
    /// Offset up to which there is no LF.
    scanned: usize,
    telnet: Telnet,
    limit: usize,
    /// NUL and CR within a line are passed on rather than refused.
    lenient: bool,
    too_long: bool,
}

/// Where the stream is in a telnet command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telnet {
    Text,
    /// The last byte was IAC.
    Command,
    /// The last bytes were IAC WILL or the like.
    Option,
    Subnegotiation,
    /// The last byte was IAC, within a subnegotiation.
    SubnegotiationCommand,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl Lines {
    /// Returns a reader of commands' lines: at most [`MAX_LINE`] bytes each, no NUL and no lone CR.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(MAX_LINE, false)
    }

    /// Returns a reader of replies' lines: NUL and lone CR are kept, because they do no harm in a text that is only
    /// displayed.
    pub(super) const fn lenient(limit: usize) -> Self {
        Self::with_limit(limit, true)
    }

    const fn with_limit(limit: usize, lenient: bool) -> Self {
        let telnet = Telnet::Text;
        Self { bytes: Vec::new(), start: 0, scanned: 0, telnet, limit, lenient, too_long: false }
    }

    /// Takes what was read from the connection. Bytes that belong to telnet are dropped here.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.too_long {
            return;
        }
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        for &byte in bytes {
            self.feed_byte(byte);
        }
    }

    fn feed_byte(&mut self, byte: u8) {
        self.telnet = match (self.telnet, byte) {
            (
                Telnet::Text | Telnet::Subnegotiation | Telnet::SubnegotiationCommand | Telnet::Option,
                b'\n',
            ) => {
                // A line break always ends a line: an unfinished telnet command must not swallow the lines after it.
                self.bytes.push(byte);
                Telnet::Text
            }
            (Telnet::Text, IAC) => Telnet::Command,
            (Telnet::Text, _) => {
                self.bytes.push(byte);
                Telnet::Text
            }
            (Telnet::Command, SB) => Telnet::Subnegotiation,
            (Telnet::Command, WILL..=DONT) => Telnet::Option,
            (Telnet::Command, SE..=SB) => Telnet::Text,
            (Telnet::Command, IAC) => {
                self.bytes.push(IAC);
                Telnet::Text
            }
            (Telnet::Command, _) => {
                // This is no telnet command: a peer that ignores telnet rules sent a name with 0xFF in it.
                self.bytes.extend([IAC, byte]);
                Telnet::Text
            }
            (Telnet::Option, _) | (Telnet::SubnegotiationCommand, SE) => Telnet::Text,
            (Telnet::Subnegotiation, IAC) => Telnet::SubnegotiationCommand,
            (Telnet::Subnegotiation | Telnet::SubnegotiationCommand, _) => Telnet::Subnegotiation,
        };
    }

    /// Returns the next whole line without its line break, or `None` until more is fed.
    ///
    /// # Errors
    /// [`WireError::LineTooLong`], from then on for good; [`WireError::ControlByte`] for a line with a NUL
    /// or a lone CR, after which the next line can be asked for.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let too_long = WireError::LineTooLong { limit: self.limit };
        if self.too_long {
            return Err(too_long);
        }
        let found = self.bytes[self.scanned..].iter().position(|byte| *byte == b'\n');
        let end = found.map_or(self.bytes.len(), |at| self.scanned + at);
        let line = &self.bytes[self.start..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > self.limit {
            self.clear();
            self.too_long = true;
            return Err(too_long);
        }
        if found.is_none() {
            self.scanned = end;
            return Ok(None);
        }
        let mut line = line.to_vec();
        self.start = end + 1;
        self.scanned = self.start;
        if self.lenient {
            // Some servers end a line in CR CR LF.
            line.truncate(line.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1));
        } else if line.iter().any(|byte| matches!(byte, 0 | b'\r')) {
            return Err(WireError::ControlByte);
        }
        Ok(Some(line))
    }

    /// Returns the number of bytes that were fed and not taken as lines.
    #[must_use]
    pub const fn buffered(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Discards all fed bytes. Call it when TLS begins: an attacker may have sent the clear text before.
    pub fn clear(&mut self) {
        self.bytes = Vec::new();
        (self.start, self.scanned) = (0, 0);
        self.telnet = Telnet::Text;
    }
}
