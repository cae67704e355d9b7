//! The messages of the control socket: a line of JSON each way.

use serde::{Deserialize, Serialize};

use super::MAX_REQUEST;
use crate::address::Pattern;
use crate::history::{Answer, History, Query};
use crate::metrics::Snapshot;
use crate::view::{Listing, PolicyNames};

/// Most connections in one reply: four times the usual `max-connections`, half a gigabyte of text.
pub const MAX_CONNECTIONS: usize = 262_144;

/// A request to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The daemon's state.
    Status,
    /// Every connection that the daemon sees.
    List,
    /// The connections that match an address.
    Explain {
        /// Pattern that either end of a connection matches.
        address: Pattern,
    },
    /// The daemon's figures for monitoring.
    Metrics,
    /// The history of the last hour; daemons before 0.3 do not know this.
    History(Query),
    /// Put everything back, and stop tuning until SIGHUP or a restart.
    Restore,
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "content", rename_all = "snake_case")]
pub enum Reply {
    /// Reply to [`Request::Status`].
    Status(Status),
    /// Reply to [`Request::List`] and [`Request::Explain`].
    List(Box<Listing>),
    /// Reply to [`Request::Metrics`].
    Metrics(Box<Snapshot>),
    /// Reply to [`Request::History`], as a client reads it.
    History(Box<History>),
    /// The same reply, as the daemon writes it.
    #[serde(rename = "history", skip_deserializing)]
    Written(Answer),
    /// Reply to [`Request::Restore`].
    Restored(Restored),
    /// The request failed; one line.
    Error(String),
}

/// The state of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's process number, in its own process namespace.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// The daemon's policies.
    pub policy: PolicyNames,
    /// The daemon decides and logs, but changes nothing.
    pub dry_run: bool,
    /// `restore` has stopped the tuning.
    pub paused: bool,
    /// Connections that the daemon sizes: those that a list shows with its policy.
    pub connections: u64,
    /// Connections of which the daemon has changed a setting.
    pub tuned_connections: u64,
    /// Use of the memory budgets.
    pub memory: Memory,
    /// Remarks for people; one line each.
    pub notes: Vec<String>,
}

/// The budget of the send queues and the memory held, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bound of the send queues of all tuned connections together.
    pub budget_bytes: u64,
    /// Content of these send queues.
    pub held_send_bytes: u64,
    /// Content of the receive queues of all tuned connections.
    pub held_receive_bytes: u64,
    /// Memory is short; a list and the metrics say why.
    pub pressure: bool,
}

/// The settings and connections that `restore` has put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Connections that the kernel sizes again.
    pub connections: u64,
    /// Connections that could not be reached and keep their settings.
    pub failed_connections: u64,
    /// Settings with their restored values, as `net.ipv4.tcp_rmem = 4096 131072 6291456`.
    pub settings: Vec<String>,
    /// Remarks for people; one line each.
    pub notes: Vec<String>,
}

/// Parses a request from the bytes of its line, with or without the line feed; an error is one line.
pub fn parse_request(line: &[u8]) -> Result<Request, String> {
    if line.len() > MAX_REQUEST {
        return Err(format!("the request is longer than {MAX_REQUEST} bytes"));
    }
    let text = std::str::from_utf8(line).map_err(|_| "the request is not UTF-8".to_owned())?;
    serde_json::from_str(text.trim_end()).map_err(|error| {
        // The error quotes the input, line feeds included.
        let error = error.to_string().replace(char::is_control, " ");
        format!("the request is not understood: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_wrong_with_a_request_is_one_line() {
        for text in ["{\"request\":\"a\\nb\"}", "{\"request\":\"\\r\\u001b[2J\"}", "{"] {
            let wrong = parse_request(text.as_bytes()).unwrap_err();
            assert!(!wrong.contains(char::is_control), "{wrong:?}");
        }
    }

    #[test]
    fn requests_have_the_form_that_scripts_write() {
        assert_eq!(parse_request(b"{\"request\":\"status\"}\n"), Ok(Request::Status));
        assert_eq!(parse_request(b"{\"request\":\"metrics\"}\n"), Ok(Request::Metrics));
        let all = Query::default();
        assert_eq!(parse_request(b"{\"request\":\"history\"}\n"), Ok(Request::History(all)));
        assert_eq!(
            parse_request(br#"{"request":"history","since_s":7,"address":"443","most":1}"#),
            Ok(Request::History(Query { since_s: Some(7), address: "443".parse().ok(), most: 1, ..all }))
        );
        let address = "443".parse().unwrap();
        assert_eq!(
            parse_request(br#"{"request":"explain","address":"443"}"#),
            Ok(Request::Explain { address })
        );
    }

    #[test]
    fn what_is_not_a_request_is_named() {
        for (line, words) in [
            (&b"{\"request\":\"launch\"}"[..], "launch"),
            (b"{\"request\":\"explain\",\"address\":\"here\"}", "no address"),
            (b"{\"request\":\"explain\"}", "address"),
            (b"{\"request\":\"history\",\"since_s\":\"noon\"}", "noon"),
            (b"\xff\xfe", "UTF-8"),
            (b"", "not understood"),
            (&[b' '; MAX_REQUEST + 1], "4096"),
        ] {
            let error = parse_request(line).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error_in_one_line(line in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Err(error) = parse_request(&line) {
                prop_assert!(error.lines().count() == 1);
            }
        }

        #[test]
        fn a_damaged_request_never_panics(at in 0..40_usize, value: u8) {
            let mut line = br#"{"request":"explain","address":"198.18.0.2:443"}"#.to_vec();
            line[at] = value;
            let _ = parse_request(&line);
        }
    }
}
