//! HTTP, as far as `GET /metrics` needs it (RFC 9112): one request a connection, without a body.

use super::text::Format;

/// Longest header, request line included.
pub(super) const MAX_HEADER: usize = 8 << 10;

/// A request's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// More has to come.
    Partial,
    /// The metrics are asked for, in this format.
    Metrics(Format),
    /// It is refused.
    Refused(Status),
}

/// A status of a response that is not the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    HeaderTooLarge,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeaderTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Reads what has come so far.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let Some(end) = end_of_header(bytes) else {
        let is_too_large = bytes.len() >= MAX_HEADER;
        return if is_too_large { Parsed::Refused(Status::HeaderTooLarge) } else { Parsed::Partial };
    };
    if end > MAX_HEADER {
        return Parsed::Refused(Status::HeaderTooLarge);
    }
    let header = std::str::from_utf8(&bytes[..end]).ok();
    header.and_then(request).unwrap_or(Parsed::Refused(Status::BadRequest))
}

/// Place behind the empty line.
fn end_of_header(bytes: &[u8]) -> Option<usize> {
    let after = |end: &[u8]| bytes.windows(end.len()).position(|some| some == end).map(|at| at + end.len());
    match (after(b"\r\n\r\n"), after(b"\n\n")) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// `None`: not HTTP/1.
fn request(header: &str) -> Option<Parsed> {
    let mut lines = header.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_token = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    if words.next().is_some() || !version.starts_with("HTTP/1.") || !is_token(method) || !is_token(target) {
        return None;
    }
    let mut format = Format::Prometheus;
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("accept") && value.contains("application/openmetrics-text") {
            format = Format::Openmetrics;
        }
    }
    let path = target.split('?').next().unwrap_or_default();
    Some(match (path, method) {
        ("/metrics", "GET") => Parsed::Metrics(format),
        ("/metrics", _) => Parsed::Refused(Status::MethodNotAllowed),
        _ => Parsed::Refused(Status::NotFound),
    })
}

/// A refusal, with its reason for people.
pub(super) fn refusal(status: Status, reason: &str) -> Vec<u8> {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
    let body = if reason.is_empty() {
        "GET /metrics is all there is here\n".to_owned()
    } else {
        format!("{reason}\n")
    };
    response(status.line(), "text/plain; charset=utf-8", allow, &body)
}

/// The metrics.
pub(super) fn metrics(format: Format, body: &str) -> Vec<u8> {
    response("200 OK", format.content_type(), "", body)
}

fn response(status: &str, content_type: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{more}\
         X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn the_metrics_are_served_in_the_format_that_is_accepted() {
        assert_eq!(parse(PLAIN.as_bytes()), Parsed::Metrics(Format::Prometheus));
        for line in [
            "accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1",
            "ACCEPT:application/openmetrics-text",
        ] {
            let request = format!("GET /metrics?a=b HTTP/1.0\n{line}\n\n");
            assert_eq!(parse(request.as_bytes()), Parsed::Metrics(Format::Openmetrics), "{request}");
        }
    }

    #[test]
    fn all_else_is_refused() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", Status::NotFound),
            ("GET /metrics/x HTTP/1.1\r\n\r\n", Status::NotFound),
            ("DELETE /etc/passwd HTTP/1.1\r\n\r\n", Status::NotFound),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET /metrics HTTP/2\r\n\r\n", Status::BadRequest),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\nno field\r\n\r\n", Status::BadRequest),
            ("\r\n\r\n", Status::BadRequest),
            ("{\"request\":\"status\"}\n\n", Status::BadRequest),
        ] {
            assert_eq!(parse(request.as_bytes()), Parsed::Refused(status), "{request:?}");
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
        let text = String::from_utf8(refusal(Status::MethodNotAllowed, "")).unwrap();
        assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("\r\nAllow: GET\r\n"), "{text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(text.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
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
