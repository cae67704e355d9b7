//! Replies of a server.
//!
//! Problem: a reply has one or more lines (RFC 959 section 4.2), and servers write the lines between the first and the
//! last in different ways: bare, indented, with the code and a dash, beginning with other codes. A client that misreads
//! a reply is out of step for the rest of the session.
//! Properties kept: decoding undoes encoding; replies do not depend on how the bytes are cut; memory is bounded by
//! [`MAX_REPLY`]; a text never becomes a second reply.

use std::borrow::Cow;
use std::fmt;

use super::error::{CommandError, MAX_REPLY, WireError};
use super::lines::Lines;
use super::terminal::{escape_for_terminal, shown};

#[cfg(test)]
mod tests;

/// Least bytes that a line counts against [`MAX_REPLY`]: about what keeping an empty one costs.
const LINE_COST: usize = 32;

/// One reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The code, 100 to 599.
    pub code: u16,
    /// The text of each line, at least one, without code, separator and line break. Of lines between the
    /// first and the last, one leading space is taken off (RFC 2389 and 3659 have them indented).
    pub lines: Vec<Vec<u8>>,
}

impl Reply {
    /// Makes a reply of one line.
    #[must_use]
    pub fn single(code: u16, text: impl Into<Vec<u8>>) -> Self {
        Self { code, lines: vec![text.into()] }
    }

    /// Makes a reply of several lines: `first`, those `between`, and `last`.
    #[must_use]
    pub fn multi(
        code: u16,
        first: impl Into<Vec<u8>>,
        between: impl IntoIterator<Item = Vec<u8>>,
        last: impl Into<Vec<u8>>,
    ) -> Self {
        let lines = std::iter::once(first.into()).chain(between).chain(std::iter::once(last.into()));
        Self { code, lines: lines.collect() }
    }

    /// Whether the code is 1yz: more replies to the same command will follow.
    #[must_use]
    pub const fn is_preliminary(&self) -> bool {
        self.code / 100 == 1
    }

    /// Whether the code is 2yz: the command is done.
    #[must_use]
    pub const fn is_completion(&self) -> bool {
        self.code / 100 == 2
    }

    /// Whether the code is 3yz: the next command of a sequence is wanted.
    #[must_use]
    pub const fn is_intermediate(&self) -> bool {
        self.code / 100 == 3
    }

    /// Whether the code is 4yz: the command failed, but may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.code / 100 == 4
    }

    /// Whether the code is 5yz: the command failed for good.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.code / 100 == 5
    }

    /// Returns line `index` as text, empty if there is none; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn line(&self, index: usize) -> Cow<'_, str> {
        self.lines.get(index).map_or(Cow::Borrowed(""), |line| String::from_utf8_lossy(line))
    }

    /// Returns the last line as text, in which servers put the result; bytes that are not UTF-8 are replaced. Not safe
    /// for a terminal: use [`Reply`]'s `Display` for that.
    #[must_use]
    pub fn text(&self) -> String {
        self.line(self.lines.len().saturating_sub(1)).into_owned()
    }

    /// Returns the file's length in bytes if the beginning of a transfer announces it, as most servers do:
    /// `150 .. for FILE (1234 bytes).`
    #[must_use]
    pub fn announced(&self) -> Option<u64> {
        let text = self.text();
        let (number, _) = text.rsplit_once('(')?.1.split_once(" bytes)")?;
        number.parse().ok()
    }

    /// Returns the bytes to send. Line breaks and NULs in the text become `?`, so that no text can be taken for
    /// another reply; a code outside 100 to 599 becomes the nearest one inside.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let code = self.code.clamp(100, 599);
        let mut bytes = Vec::new();
        let last = self.lines.len().saturating_sub(1);
        for (index, line) in self.lines.iter().enumerate() {
            match index {
                _ if index == last => bytes.extend(format!("{code} ").bytes()),
                0 => bytes.extend(format!("{code}-").bytes()),
                _ => bytes.push(b' '),
            }
            for &byte in line {
                match byte {
                    0 | b'\r' | b'\n' => bytes.push(b'?'),
                    0xff => bytes.extend([0xff, 0xff]),
                    _ => bytes.push(byte),
                }
            }
            bytes.extend(b"\r\n");
        }
        if self.lines.is_empty() {
            bytes.extend(format!("{code} \r\n").bytes());
        }
        bytes
    }
}

impl From<&CommandError> for Reply {
    fn from(error: &CommandError) -> Self {
        Self::single(error.code, error.text)
    }
}

impl fmt::Display for Reply {
    /// Shows code and text on one line, safe for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        self.lines.iter().try_for_each(|line| write!(f, " {}", escape_for_terminal(line)))
    }
}

/// Reads replies from a byte stream.
#[derive(Debug)]
pub struct ReplyReader {
    lines: Lines,
    /// A reply of several lines whose last has not come.
    unfinished: Option<Reply>,
    /// Bytes that the unfinished reply counts against [`MAX_REPLY`].
    cost: usize,
    /// The stream cannot be trusted any more.
    failed: Option<WireError>,
}

impl Default for ReplyReader {
    fn default() -> Self {
        Self::new()
    }
}

/// Meaning of the first four bytes of a line.
enum Head<'a> {
    /// `123 text`, or `123` alone.
    Last(u16, &'a [u8]),
    /// `123-text`.
    More(u16, &'a [u8]),
    Text,
}

impl ReplyReader {
    /// Makes a reader at the start of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { lines: Lines::lenient(MAX_REPLY), unfinished: None, cost: 0, failed: None }
    }

    /// Takes what was read from the connection.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.lines.feed(bytes);
    }

    /// Returns the next whole reply, or `None` until more is fed.
    ///
    /// # Errors
    /// [`WireError::NotAReply`], [`WireError::LineTooLong`] or [`WireError::ReplyTooLong`] when the stream is not one
    /// of replies; later calls return the same error.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.read();
        if let Err(error) = &next {
            self.clear();
            self.failed = Some(error.clone());
        }
        next
    }

    fn read(&mut self) -> Result<Option<Reply>, WireError> {
        while let Some(line) = self.lines.next_line()? {
            self.cost += line.len().max(LINE_COST);
            if self.cost > MAX_REPLY {
                return Err(WireError::ReplyTooLong);
            }
            if let Some(reply) = self.take(&line)? {
                self.cost = 0;
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    fn take(&mut self, line: &[u8]) -> Result<Option<Reply>, WireError> {
        let head = head(line);
        let Some(mut reply) = self.unfinished.take() else {
            return match head {
                Head::Last(code, text) => Ok(Some(Reply::single(code, text))),
                Head::More(code, text) => {
                    self.unfinished = Some(Reply::single(code, text));
                    Ok(None)
                }
                // Some servers leave an empty line after a banner.
                Head::Text if line.is_empty() => Ok(None),
                Head::Text => Err(WireError::NotAReply { line: shown(line) }),
            };
        };
        match head {
            Head::Last(code, text) if code == reply.code => {
                reply.lines.push(text.to_vec());
                return Ok(Some(reply));
            }
            Head::More(code, text) if code == reply.code => reply.lines.push(text.to_vec()),
            _ => reply.lines.push(line.strip_prefix(b" ").unwrap_or(line).to_vec()),
        }
        self.unfinished = Some(reply);
        Ok(None)
    }

    /// Discards all fed bytes. Call it when TLS begins: an attacker may have sent the clear text before.
    pub fn clear(&mut self) {
        self.lines.clear();
        self.unfinished = None;
        self.cost = 0;
    }
}

/// Returns all replies of a recorded `stream` that is fed in pieces of `piece` bytes, at least one each; and the error
/// that ended it, if it is not one of replies.
#[must_use]
pub fn replay(stream: &[u8], piece: usize) -> (Vec<Reply>, Option<WireError>) {
    let mut reader = ReplyReader::new();
    let mut replies = Vec::new();
    for bytes in stream.chunks(piece.max(1)) {
        reader.feed(bytes);
        loop {
            match reader.next_reply() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

fn head(line: &[u8]) -> Head<'_> {
    let [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] = line else {
        return Head::Text;
    };
    let code = [a, b, c].iter().fold(0, |code, digit| code * 10 + u16::from(**digit - b'0'));
    match rest {
        [] => Head::Last(code, rest),
        [b' ', text @ ..] => Head::Last(code, text),
        [b'-', text @ ..] => Head::More(code, text),
        _ => Head::Text,
    }
}
