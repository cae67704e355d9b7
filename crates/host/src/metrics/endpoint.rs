//! The receiver to which metrics are sent: OTLP over HTTP.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bufwise_units::{Micros, ParseError};

/// The path at which receivers take metrics (OpenTelemetry Protocol Specification, *OTLP/HTTP Request*).
const PATH: &str = "/v1/metrics";

/// The URL of a receiver of OTLP over HTTP without encryption, mostly a collector on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address, and port: `127.0.0.1:4318`, `[::1]:4318`.
    authority: String,
    /// Path from the first slash on.
    path: String,
}

impl Endpoint {
    /// Returns name or address with the port, as used in the `Host` header and in name lookups.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the requested path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "`{text}` is no receiver of OTLP: {why}; written as http://127.0.0.1:4318 or http://HOST:PORT/PATH"
            )
        };
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(wrong(if text.starts_with("https://") {
                "bufwise sends without encryption, so send to a collector on this host, which encrypts"
            } else {
                "it does not begin with http://"
            }));
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // Other characters are not allowed in the head of a request.
        if !rest.chars().all(|letter| letter.is_ascii_graphic()) || rest.contains(['@', '#', '?', '\\']) {
            return Err(wrong("a name or address, a port and a path are all that it has"));
        }
        let Some((host, port)) = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
            return Err(wrong("it has no port"));
        };
        if port.parse::<u16>().is_ok_and(|port| port > 0) && (!host.contains(':') || host.ends_with(']')) {
            let path = if path.len() > 1 { path } else { PATH };
            return Ok(Self { authority: authority.to_owned(), path: path.to_owned() });
        }
        Err(wrong("its port is no number from 1 to 65535"))
    }
}

/// Time between two requests to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(Micros);

impl Interval {
    const LEAST: Micros = Micros::from_secs(1);
    const MOST: Micros = Micros::from_secs(3_600);
}

impl Default for Interval {
    fn default() -> Self {
        Self(Micros::from_secs(15))
    }
}

impl From<Interval> for Duration {
    fn from(Interval(time): Interval) -> Self {
        Self::from_micros(time.0)
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time: Micros = text.parse().map_err(|error: ParseError| error.to_string())?;
        let is_sane = (Self::LEAST..=Self::MOST).contains(&time);
        is_sane.then_some(Self(time)).ok_or_else(|| "metrics are sent every 1s to 3600s".to_owned())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_a_name_or_an_address_a_port_and_the_usual_path() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/metrics"),
            ("http://collector:80/x/v1/metrics", "http://collector:80/x/v1/metrics"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn an_interval_is_a_second_to_an_hour() {
        for (text, seconds) in [("1s", 1), ("15s", 15), ("3600s", 3_600)] {
            assert_eq!(text.parse::<Interval>().map(Duration::from), Ok(Duration::from_secs(seconds)));
        }
        assert_eq!("15s".parse(), Ok(Interval::default()));
        for (text, words) in
            [("999ms", "1s to 3600s"), ("3601s", "1s to 3600s"), ("60", "`ms` or `s`"), ("", "1.5s")]
        {
            let error = text.parse::<Interval>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_in_one_line() {
        for (text, words) in [
            ("127.0.0.1:4318", "http://"),
            ("https://127.0.0.1:4318", "encrypts"),
            ("http://127.0.0.1", "no port"),
            ("http://:4318", "no port"),
            ("http://[::1]", "65535"),
            ("http://::1:4318", "65535"),
            ("http://a:0", "65535"),
            ("http://a:70000", "65535"),
            ("http://me:secret@a:4318", "all that it has"),
            ("http://a:4318/x\r\nX: y", "all that it has"),
            ("http://a b:4318", "all that it has"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
