//! Bytes of a peer as text that can be shown to people.

/// Bytes of a line that an error repeats.
const SHOWN: usize = 80;

/// Returns the bytes from a peer as text that does nothing to a terminal: control characters, those that turn the
/// direction of writing, and bytes that are no UTF-8 are escaped.
#[must_use]
pub fn escape_for_terminal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || turns_direction(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

const fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns the beginning of what the peer sent, for an error message.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut text = escape_for_terminal(&bytes[..bytes.len().min(SHOWN)]);
    if bytes.len() > SHOWN {
        text.push_str("...");
    }
    text
}
