//! Addresses of data connections: PASV, EPSV, PORT, EPRT (RFC 959 section 4.1.2, RFC 2428).
//!
//! Problem: a server's reply names the port to connect to, and for PASV an address as well, which is wrong behind
//! address translation, and may be a third party's in the reply of a hostile server. The reply's text has no fixed
//! form.
//! Properties kept: the address in a reply to PASV is never given to the caller, who connects to the peer of the
//! control connection; port 0 is no port; decoding undoes encoding.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::error::{CommandError, WireError};
use super::reply::Reply;
use super::terminal::shown;

#[cfg(test)]
mod tests;

/// The answer to a protocol that is neither IPv4 nor IPv6 (RFC 2428 section 2).
pub(super) const UNKNOWN_PROTOCOL: CommandError =
    CommandError { code: 522, text: "Network protocol not supported, use (1,2)." };
const NOT_AN_ADDRESS: CommandError =
    CommandError { code: 501, text: "An address is |protocol|address|port|." };

/// Returns the port of a 227 reply. The address in the reply is ignored.
///
/// # Errors
/// [`WireError::NoPort`] if the reply is another one or has no six numbers from 0 to 255 in its text.
pub fn parse_pasv(reply: &Reply) -> Result<u16, WireError> {
    let found = (reply.code == 227).then(|| reply.lines.iter().find_map(|line| six_numbers(line))).flatten();
    let port = found.map(|[.., high, low]| u16::from_be_bytes([high, low]));
    port.filter(|port| *port != 0).ok_or_else(|| no_port(reply))
}

/// Returns the port of a 229 reply.
///
/// # Errors
/// [`WireError::NoPort`] if the reply is another one or has no `(|||port|)`.
pub fn parse_epsv(reply: &Reply) -> Result<u16, WireError> {
    let found =
        (reply.code == 229).then(|| reply.lines.iter().find_map(|line| bars_and_port(line))).flatten();
    found.ok_or_else(|| no_port(reply))
}

/// Returns the reply to PASV.
#[must_use]
pub fn encode_pasv(at: SocketAddrV4) -> Reply {
    Reply::single(227, format!("Entering Passive Mode ({}).", encode_port(at)))
}

/// Returns the reply to EPSV.
#[must_use]
pub fn encode_epsv(port: u16) -> Reply {
    Reply::single(229, format!("Entering Extended Passive Mode (|||{port}|)"))
}

/// Returns the argument of PORT.
pub(super) fn encode_port(to: SocketAddrV4) -> String {
    let [a, b, c, d] = to.ip().octets();
    let [high, low] = to.port().to_be_bytes();
    format!("{a},{b},{c},{d},{high},{low}")
}

pub(super) fn decode_port(argument: &[u8]) -> Option<SocketAddrV4> {
    let argument = argument.trim_ascii();
    let well_formed = argument.first().is_some_and(u8::is_ascii_digit)
        && argument.iter().all(|byte| byte.is_ascii_digit() || *byte == b',')
        && argument.split(|byte| *byte == b',').count() == 6;
    let [a, b, c, d, high, low] = six_numbers(argument).filter(|_| well_formed)?;
    let port = u16::from_be_bytes([high, low]);
    (port != 0).then(|| SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port))
}

/// Returns the argument of EPRT.
pub(super) fn encode_eprt(to: SocketAddr) -> String {
    let protocol = if to.is_ipv4() { 1 } else { 2 };
    format!("|{protocol}|{}|{}|", to.ip(), to.port())
}

pub(super) fn decode_eprt(argument: &[u8]) -> Result<SocketAddr, CommandError> {
    let argument = str::from_utf8(argument.trim_ascii()).map_err(|_| NOT_AN_ADDRESS)?;
    let bar = argument.chars().next().filter(char::is_ascii_graphic).ok_or(NOT_AN_ADDRESS)?;
    let parts: Vec<&str> = argument.split(bar).take(6).collect();
    let ["", protocol, address, port, ""] = parts[..] else {
        return Err(NOT_AN_ADDRESS);
    };
    let ip = match protocol {
        "1" => address.parse().map(std::net::IpAddr::V4),
        "2" => address.parse().map(std::net::IpAddr::V6),
        _ => return Err(UNKNOWN_PROTOCOL),
    };
    let port = decimal(port.as_bytes()).filter(|port| *port != 0).ok_or(NOT_AN_ADDRESS)?;
    Ok(SocketAddr::new(ip.map_err(|_| NOT_AN_ADDRESS)?, port))
}

fn no_port(reply: &Reply) -> WireError {
    let text = reply.lines.last().map_or(&[][..], Vec::as_slice);
    WireError::NoPort { reply: format!("{} {}", reply.code, shown(text)) }
}

/// Returns the first six numbers from 0 to 255 with commas between them, wherever they stand: servers write them
/// with and without brackets.
fn six_numbers(text: &[u8]) -> Option<[u8; 6]> {
    let runs = text.split(|byte| !byte.is_ascii_digit() && *byte != b',');
    runs.filter_map(|run| {
        let numbers: Option<Vec<u8>> = run.split(|byte| *byte == b',').map(decimal).collect();
        numbers.and_then(|numbers| <[u8; 6]>::try_from(numbers).ok())
    })
    .next()
}

/// Returns the port in `(|||port|)`, where the bar may be any printable character.
fn bars_and_port(text: &[u8]) -> Option<u16> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let [bar, second, third, rest @ ..] = &text[open + 1..] else {
        return None;
    };
    if !bar.is_ascii_graphic() || bar.is_ascii_digit() || bar != second || bar != third {
        return None;
    }
    let end = rest.iter().position(|byte| byte == bar)?;
    (rest.get(end + 1) == Some(&b')')).then_some(())?;
    decimal(&rest[..end]).filter(|port| *port != 0)
}

/// Parses a decimal number without sign.
pub(super) fn decimal<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let text = str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}
