//! Requests and responses (RFC 9112): one request per connection, without a body.

/// Longest header, request line included, in bytes.
pub(crate) const MAX_HEADER: usize = 8 << 10;

/// Result of parsing the bytes received so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The beginning of a request.
    Partial,
    /// A whole request.
    Request(Request),
    /// A request that is refused, and the status to answer with.
    Refused(Status),
}

/// Request line and header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
}

impl Request {
    /// Whether the method is GET.
    pub(crate) fn is_get(&self) -> bool {
        self.method == "GET"
    }

    /// Returns the target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Returns the query, still encoded.
    pub(crate) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// Returns the values of all header fields of that name, in any case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = move |(one, _): &&(String, String)| one.eq_ignore_ascii_case(name);
        self.fields.iter().filter(named).map(|(_, value)| value.as_str())
    }
}

/// Status of a response that refuses the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Misdirected,
    HeaderTooLarge,
    Unavailable,
}

impl Status {
    /// Returns its number and its name.
    pub(crate) fn line(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::Misdirected => "421 Misdirected Request",
            Self::HeaderTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Parses the bytes received so far.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    let Some(end) = end_of_header(bytes) else {
        let is_too_large = bytes.len() >= MAX_HEADER;
        return if is_too_large { Parsed::Refused(Status::HeaderTooLarge) } else { Parsed::Partial };
    };
    if end > MAX_HEADER {
        return Parsed::Refused(Status::HeaderTooLarge);
    }
    let header = std::str::from_utf8(&bytes[..end]).ok();
    header.and_then(request).map_or(Parsed::Refused(Status::BadRequest), Parsed::Request)
}

/// Returns whether the bytes can be parsed, now that those from `known` on have come: a header ends there, or is too large. It
/// searches no other bytes, so that a client that sends single bytes costs no more than others.
pub(crate) fn is_due(bytes: &[u8], known: usize) -> bool {
    // The end of a header has four bytes at most, of which one is new.
    bytes.len() >= MAX_HEADER || end_of_header(&bytes[known.saturating_sub(3)..]).is_some()
}

/// Returns the index after the empty line.
fn end_of_header(bytes: &[u8]) -> Option<usize> {
    let after = |end: &[u8]| bytes.windows(end.len()).position(|some| some == end).map(|at| at + end.len());
    match (after(b"\r\n\r\n"), after(b"\n\n")) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Parses a request; `None`: not HTTP/1.
fn request(header: &str) -> Option<Request> {
    let mut lines = header.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_token = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    if words.next().is_some() || !version.starts_with("HTTP/1.") || !is_token(method) || !is_token(target) {
        return None;
    }
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
    };
    let fields = lines.take_while(|line| !line.is_empty()).map(field).collect::<Option<_>>()?;
    Some(Request { method: method.to_owned(), target: target.to_owned(), fields })
}

/// Returns a refusal, with its reason as text. `more` are further header fields, each with its line end.
pub(crate) fn refusal(status: Status, more: &str, reason: &str) -> Vec<u8> {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
    response(status.line(), "text/plain; charset=utf-8", &format!("{allow}{more}"), &format!("{reason}\n"))
}

/// Returns a whole response.
pub(crate) fn response(status: &str, content_type: &str, more: &str, body: &str) -> Vec<u8> {
    let length = format!("Content-Length: {}\r\n{more}", body.len());
    let mut response = head(status, content_type, &length);
    response.extend_from_slice(body.as_bytes());
    response
}

/// Returns the head of a response whose body ends with the connection.
pub(crate) fn head(status: &str, content_type: &str, more: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}\
         X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Returns the request in `text`, which must be complete and valid.
    pub(crate) fn sound(text: &str) -> Request {
        match parse(text.as_bytes()) {
            Parsed::Request(request) => request,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_request_has_a_path_a_query_and_fields_of_any_case() {
        let request = sound("GET /a/b?c=d?e HTTP/1.0\nHOST:  x \nAccept: 1\naccept:\t2\n\n");
        assert_eq!((request.is_get(), request.path(), request.query()), (true, "/a/b", "c=d?e"));
        assert_eq!(request.values("host").collect::<Vec<_>>(), ["x"]);
        assert_eq!(request.values("Accept").collect::<Vec<_>>(), ["1", "2"]);
        let request = sound("DELETE / HTTP/1.1\r\n\r\n");
        assert_eq!((request.is_get(), request.query(), request.values("Host").count()), (false, "", 0));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for request in [
            "GET /metrics HTTP/2\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\n\r\n",
            "GET /metrics HTTP/1.1 x\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nno field\r\n\r\n",
            "\r\n\r\n",
            "{\"request\":\"status\"}\n\n",
        ] {
            assert_eq!(parse(request.as_bytes()), Parsed::Refused(Status::BadRequest), "{request:?}");
        }
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nA: \xff\r\n\r\n"), Parsed::Refused(Status::BadRequest));
    }

    #[test]
    fn a_header_without_an_end_is_refused_at_its_bound() {
        let mut request = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        request.resize(MAX_HEADER - 1, b'x');
        assert_eq!(parse(&request), Parsed::Partial);
        request.push(b'x');
        assert_eq!(parse(&request), Parsed::Refused(Status::HeaderTooLarge));
        request.extend(b"\r\n\r\n");
        assert_eq!(parse(&request), Parsed::Refused(Status::HeaderTooLarge));
    }

    #[test]
    fn a_refusal_says_what_there_is() {
        let text = String::from_utf8(refusal(Status::MethodNotAllowed, "A: b\r\n", "only this")).unwrap();
        assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("\r\nAllow: GET\r\nA: b\r\n"), "{text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(body == "only this\n" && text.contains("\r\nContent-Length: 10\r\n"), "{text}");
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_outcome_and_only_a_short_header_waits(
            bytes in prop::collection::vec(any::<u8>(), 0..MAX_HEADER + 99),
        ) {
            if parse(&bytes) == Parsed::Partial {
                prop_assert!(bytes.len() < MAX_HEADER);
            }
        }

        #[test]
        fn a_header_is_due_when_it_ends_however_its_bytes_come(
            text in "[\r\nG:]{1,30}",
            pieces in prop::collection::vec(1..4_usize, 30),
        ) {
            let (bytes, mut known) = (text.as_bytes(), 0);
            for piece in pieces {
                let now = &bytes[..bytes.len().min(known + piece)];
                prop_assert_eq!(is_due(now, known), parse(now) != Parsed::Partial, "{:?}", now);
                if is_due(now, known) {
                    break;
                }
                known = now.len();
            }
        }

        #[test]
        fn a_request_means_the_same_however_it_is_cut(at in 0..PLAIN.len()) {
            prop_assert_eq!(parse(&PLAIN.as_bytes()[..at]), Parsed::Partial);
        }

        #[test]
        fn a_damaged_request_never_panics(
            at in 0..PLAIN.len(),
            value: u8,
            more in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = PLAIN.as_bytes().to_vec();
            bytes[at] = value;
            bytes.splice(at..at, more);
            let _ = parse(&bytes);
        }
    }
}
