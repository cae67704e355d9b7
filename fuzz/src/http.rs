//! Properties of the parsers of HTTP: of requests, which the daemon's metrics and the page for browsers share, and of the answers of a
//! receiver of metrics.

#[path = "../../crates/bufwise/src/metrics/answer.rs"]
mod answer;
#[expect(dead_code, reason = "this checks what reads; the servers also write")]
#[path = "../../crates/bufwise/src/http/message.rs"]
mod message;

use answer::{MAX_ANSWER, judge};
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

/// A receiver's bytes say what it has taken, and further ones do not change a refusal. An interim response before them changes nothing;
/// nor do chunks, of the length that the first byte says.
pub fn collector(data: &[u8]) {
    let data = &data[..data.len().min(MAX_ANSWER as usize)];
    let judged = judge(data);
    for end in [data.len() / 3, data.len() / 2] {
        match judge(&data[..end]) {
            Some(Err(told)) if told.starts_with("it answers ") => assert_eq!(judged, Some(Err(told))),
            Some(_) => assert!(judged.is_some()),
            None => {}
        }
    }
    assert_eq!(judge(&[&b"HTTP/1.1 103 Early Hints\r\n\r\n"[..], data].concat()), judged);
    let [first, body @ ..] = data else { return };
    let plain = judge(&[&b"HTTP/1.1 200 OK\r\n\r\n"[..], body].concat());
    let mut chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding:chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(1 + usize::from(*first)) {
        chunks.extend_from_slice(&[format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    }
    assert_eq!(judge(&chunks), plain);
    assert!(plain.is_some(), "a body cannot take the answer back");
}
