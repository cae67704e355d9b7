//! Properties of the parser of HTTP requests, which the daemon's metrics and the page for browsers share.

#[expect(dead_code, reason = "this checks what reads; the servers also write")]
#[path = "../../crates/bufwise/src/http/message.rs"]
mod message;

use message::{MAX_HEADER, Parsed, parse, refusal};

/// Bytes are the beginning of a request, or a whole request that further bytes do not change, or they are refused with a valid
/// answer.
pub fn http(data: &[u8]) {
    match parse(data) {
        Parsed::Partial => assert!(data.len() < MAX_HEADER),
        Parsed::Request(request) => {
            let path = request.path();
            assert!(
                !path.contains('?')
                    && path.bytes().chain(request.query().bytes()).all(|byte| byte.is_ascii_graphic())
            );
            assert_eq!(parse(&[data, b"\r\n\r\nGET"].concat()), Parsed::Request(request));
        }
        Parsed::Refused(status) => {
            let answer = String::from_utf8(refusal(status, "", "no")).expect("it is text");
            assert!(answer.starts_with("HTTP/1.1 4") && answer.ends_with("\r\n\r\nno\n"), "{answer:?}");
        }
    }
}
