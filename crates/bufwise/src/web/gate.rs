//! Admits requests that know the token, address this page, and come from no other page.
//!
//! The script sends the token in a header field (`Authorization: Bearer`). A cookie would not be safe: browsers send a
//! cookie of 127.0.0.1 to the servers at all its ports, other users' included, with requests that other pages made (RFC
//! 6265, section 8.5). Only the page itself is requested by a URL with the token. The script removes the token from the
//! address bar, and keeps it in the tab's session storage, which belongs to this scheme, host and port, so that the
//! page can be reloaded.
//!
//! A page elsewhere whose name resolves to a loopback address (DNS rebinding) sends its own name as `Host` and is
//! refused.

use std::net::SocketAddr;

use anyhow::{Result, anyhow};
use subtle::ConstantTimeEq;

use crate::http::message::{Request, Status};

/// Port that may be missing in URLs and in `Host`.
const HTTP_PORT: u16 = 80;

/// A secret of 128 random bits.
struct Secret(u128);

impl Secret {
    fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| anyhow!("the kernel gives no random bytes: {error}"))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }

    fn text(&self) -> String {
        format!("{:032x}", self.0)
    }

    /// Compares in a time that does not depend on the secret.
    fn is(&self, text: &str) -> bool {
        let is_hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let guess = u128::from_str_radix(text, 16).ok().filter(|_| is_hexadecimal);
        guess.is_some_and(|guess| self.0.to_be_bytes()[..].ct_eq(&guess.to_be_bytes()[..]).into())
    }
}

/// Conditions that a request must meet.
pub(super) struct Gate {
    place: SocketAddr,
    token: Secret,
    /// Values of `Host` that name this server.
    hosts: Vec<String>,
}

impl Gate {
    /// Makes a gate for a server at that address, with a new token.
    ///
    /// # Errors
    /// The kernel provides no random bytes.
    pub(super) fn new(place: SocketAddr) -> Result<Self> {
        let ip = if place.is_ipv6() { format!("[{}]", place.ip()) } else { place.ip().to_string() };
        let names = ["127.0.0.1", "[::1]", "localhost", &ip];
        let with_port = names.iter().map(|name| format!("{name}:{}", place.port()));
        let without = names.iter().filter(|_| place.port() == HTTP_PORT).map(ToString::to_string);
        Ok(Self { place, token: Secret::random()?, hosts: with_port.chain(without).collect() })
    }

    /// Returns the page's URL, which contains the token.
    pub(super) fn address(&self) -> String {
        format!("http://{}/?token={}", self.place, self.token.text())
    }

    /// Admits a request, or returns why not.
    pub(super) fn admit(&self, request: &Request) -> Result<(), Refusal> {
        let mut hosts = request.values("host");
        let host = hosts.next().filter(|host| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)));
        let Some(host) = host.filter(|_| hosts.next().is_none()) else { return Err(Refusal::Host) };
        let own = format!("http://{host}");
        if request.values("origin").any(|origin| !origin.eq_ignore_ascii_case(&own)) {
            return Err(Refusal::Origin);
        }
        let bearer = request.values("authorization").find_map(|value| value.strip_prefix("Bearer "));
        let in_query = || request.query().split('&').find_map(|pair| pair.strip_prefix("token="));
        match bearer.or_else(in_query) {
            Some(token) if self.token.is(token) => Ok(()),
            _ => Err(Refusal::Token),
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is for another host, or names none.
    Host,
    /// It comes from another page.
    Origin,
    /// It has no token, or a wrong one.
    Token,
}

impl Refusal {
    pub(super) fn status(self) -> Status {
        match self {
            Self::Host => Status::Misdirected,
            Self::Origin | Self::Token => Status::Forbidden,
        }
    }

    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Host => {
                "this is bufwise web, which answers only to 127.0.0.1, [::1] and localhost with its own port"
            }
            Self::Origin => "bufwise web answers only its own page",
            Self::Token => "open the address that bufwise web printed: it holds a token",
        }
    }
}

/// Returns a random number that lets one response's own script and style run.
pub(super) fn nonce() -> Result<String> {
    Ok(Secret::random()?.text())
}

/// Returns the header fields of every response: nothing is loaded from elsewhere, or into another page. `nonce` is that
/// of a document's own script and style; without it neither runs.
pub(super) fn fields(nonce: Option<&str>) -> String {
    let inline = nonce.map_or_else(String::new, |nonce| {
        format!(
            "script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
             require-trusted-types-for 'script'; trusted-types 'none'; "
        )
    });
    format!(
        "Content-Security-Policy: default-src 'none'; {inline}base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
         Referrer-Policy: no-referrer\r\n\
         Cross-Origin-Opener-Policy: same-origin\r\n\
         Cross-Origin-Embedder-Policy: require-corp\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::message::tests::sound;

    fn gate(place: &str) -> Gate {
        Gate { token: Secret(7), ..Gate::new(place.parse().unwrap()).unwrap() }
    }

    fn outcome(gate: &Gate, fields: &str, query: &str) -> Result<(), Refusal> {
        gate.admit(&sound(&format!("GET /{query} HTTP/1.1\r\n{fields}\r\n")))
    }

    const TOKEN: &str = "00000000000000000000000000000007";

    #[test]
    fn the_token_is_asked_for_in_the_header_or_the_query() {
        let gate = gate("127.0.0.1:4000");
        assert_eq!(gate.address(), format!("http://127.0.0.1:4000/?token={TOKEN}"));
        let with = |authorization: &str, query: &str| {
            outcome(&gate, &format!("Host: 127.0.0.1:4000\r\n{authorization}"), query)
        };
        assert_eq!(with(&format!("authorization: Bearer {TOKEN}\r\n"), ""), Ok(()));
        assert_eq!(with("", &format!("?a=b&token={TOKEN}")), Ok(()));
        for (authorization, query) in [
            (String::new(), String::new()),
            (format!("Authorization: Basic {TOKEN}\r\n"), String::new()),
            (format!("Authorization: Bearer {}\r\n", &TOKEN[1..]), String::new()),
            (format!("Authorization: Bearer +{}\r\n", &TOKEN[1..]), String::new()),
            (format!("Authorization: Bearer {TOKEN}7\r\n"), String::new()),
            (String::new(), format!("?token={}8", &TOKEN[1..])),
            // The header field takes precedence over the query.
            ("Authorization: Bearer x\r\n".to_owned(), format!("?token={TOKEN}")),
            (format!("Cookie: token={TOKEN}\r\n"), String::new()),
        ] {
            assert_eq!(with(&authorization, &query), Err(Refusal::Token), "{authorization}{query}");
        }
    }

    #[test]
    fn other_hosts_are_refused_whatever_the_token() {
        let gate = gate("127.0.0.1:4000");
        let with = |fields: &str| outcome(&gate, fields, &format!("?token={TOKEN}"));
        for host in ["127.0.0.1:4000", "LOCALHOST:4000", "[::1]:4000"] {
            assert_eq!(with(&format!("Host: {host}\r\n")), Ok(()), "{host}");
        }
        for host in [
            "rebound.example:4000",
            "127.0.0.1",
            "127.0.0.1:4001",
            "localhost.example:4000",
            "",
            "127.0.0.2:4000",
        ] {
            assert_eq!(with(&format!("Host: {host}\r\n")), Err(Refusal::Host), "{host}");
        }
        assert_eq!(with(""), Err(Refusal::Host));
        assert_eq!(with("Host: localhost:4000\r\nHost: rebound.example\r\n"), Err(Refusal::Host));
    }

    #[test]
    fn browsers_leave_port_80_out_and_any_loopback_address_is_its_own_name() {
        let default = gate("127.0.0.2:80");
        for host in ["127.0.0.2", "127.0.0.2:80", "localhost"] {
            assert_eq!(outcome(&default, &format!("Host: {host}\r\n"), &format!("?token={TOKEN}")), Ok(()));
        }
    }

    #[test]
    fn other_origins_are_refused_whatever_the_token() {
        let gate = gate("[::1]:4000");
        let with = |origin: &str| {
            outcome(&gate, &format!("Host: [::1]:4000\r\nOrigin: {origin}\r\n"), &format!("?token={TOKEN}"))
        };
        assert_eq!(with("http://[::1]:4000"), Ok(()));
        for origin in
            ["null", "https://[::1]:4000", "http://[::1]:4001", "http://localhost:4000", "http://x.example"]
        {
            assert_eq!(with(origin), Err(Refusal::Origin), "{origin}");
        }
    }

    #[test]
    fn two_secrets_differ_and_have_32_digits() {
        let (one, other) = (nonce().unwrap(), nonce().unwrap());
        assert!(one != other && one.len() == 32 && other.len() == 32, "{one} {other}");
    }

    #[test]
    fn no_response_allows_anything_inline_without_its_nonce() {
        assert!(fields(Some("abc")).contains("script-src 'nonce-abc'; style-src 'nonce-abc'"));
        for fields in [fields(None), fields(Some("abc"))] {
            assert!(fields.contains("default-src 'none'") && !fields.contains("unsafe"), "{fields}");
        }
    }
}
