//! The answer of a receiver of OTLP: what it has taken, by the status line and the body (RFC 9112; OTLP 1, "OTLP/HTTP response").
//!
//! Properties kept, each checked by the fuzz target `collector`: any bytes have an outcome, in time and memory that grow with their
//! number alone; interim responses and chunks change nothing.

use bufwise_units::counted;

/// Most bytes that are read of an answer.
pub(crate) const MAX_ANSWER: u64 = 16 << 10;

/// Judges the bytes that have arrived: `Err` says why the receiver has not taken all; `None`: there is no whole header of a response.
pub(crate) fn judge(mut answer: &[u8]) -> Option<Result<(), String>> {
    loop {
        let end = answer.windows(4).position(|some| some == b"\r\n\r\n")?;
        let (header, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
        let line = header.lines().next().unwrap_or_default();
        match status(line) {
            // The final response follows; a client has to expect that although it has not asked (RFC 9110, section 15.2).
            Some(100 | 102..=199) => answer = body,
            Some(200..=299) if is_in_chunks(&header) => return Some(accepted(&joined(body))),
            Some(200..=299) => return Some(accepted(body)),
            _ => return Some(Err(format!("it answers {line}"))),
        }
    }
}

/// Returns the status in a response's first line; `None`: it is none of HTTP/1.
fn status(line: &str) -> Option<u16> {
    let mut words = line.strip_prefix("HTTP/1.")?.split(' ').skip(1);
    let status = words.next().filter(|word| word.len() == 3)?;
    status.bytes().all(|byte| byte.is_ascii_digit()).then(|| status.parse().ok())?
}

fn is_in_chunks(header: &str) -> bool {
    let fields = header.lines().filter_map(|line| line.split_once(':'));
    let mut codings = fields.filter(|(name, _)| name.eq_ignore_ascii_case("transfer-encoding"));
    codings.any(|(_, coding)| coding.trim().eq_ignore_ascii_case("chunked"))
}

/// Returns the content of a body in chunks (RFC 9112, section 7.1), as far as it has arrived.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(end) = chunks.windows(2).position(|two| two == b"\r\n") {
        let line = std::str::from_utf8(&chunks[..end]).unwrap_or_default();
        // Extensions follow the size.
        let size = line.split(';').next().unwrap_or_default().trim();
        let Ok(size @ 1..) = usize::from_str_radix(size, 16) else { break };
        let data = &chunks[end + 2..];
        let size = size.min(data.len());
        content.extend_from_slice(&data[..size]);
        // A line end follows the data.
        chunks = data.get(size + 2..).unwrap_or_default();
    }
    content
}

/// Fails if the body reports figures that were not taken.
fn accepted(body: &[u8]) -> Result<(), String> {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let rejected = &partial["rejectedDataPoints"];
    // A 64-bit integer, which this JSON writes as a text.
    let count = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default();
    if count > 0 {
        let why = partial["errorMessage"].as_str().unwrap_or("no reason given");
        return Err(format!("it rejects {}: {why}", counted(count, "figure")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REJECTED: &str = "{\"partialSuccess\":{\"rejectedDataPoints\":\"3\",\"errorMessage\":\"old\"}}";

    fn told(answer: &str) -> Option<Result<(), String>> {
        judge(answer.as_bytes())
    }

    #[test]
    fn the_final_response_counts_whatever_precedes_it() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
        assert_eq!(told(interim), None);
        assert_eq!(told(&format!("{interim}HTTP/1.1 200 OK\r\n\r\n{{}}")), Some(Ok(())));
        let refused = Some(Err("it answers HTTP/1.1 503".to_owned()));
        assert_eq!(told(&format!("{interim}HTTP/1.1 503\r\n\r\n")), refused);
    }

    #[test]
    fn a_reason_in_chunks_is_read() {
        let (first, rest) = REJECTED.split_at(20);
        let header = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
        let sizes = [first.len(), rest.len()].map(|size| format!("{size:X}"));
        let chunks =
            |end: &str| format!("{header}{};a=b\r\n{first}\r\n{}\r\n{rest}\r\n{end}", sizes[0], sizes[1]);
        let rejected = Some(Err("it rejects 3 figures: old".to_owned()));
        assert_eq!(told(&format!("HTTP/1.1 200 OK\r\n\r\n{REJECTED}")), rejected);
        for end in ["0\r\n\r\n", "", "ffffffffffffffff\r\n"] {
            assert_eq!(told(&chunks(end)), rejected, "{end:?}");
        }
    }

    #[test]
    fn one_figure_is_one() {
        let one = REJECTED.replace("\"3\"", "1");
        let told = told(&format!("HTTP/1.1 200 OK\r\n\r\n{one}"));
        assert_eq!(told, Some(Err("it rejects 1 figure: old".to_owned())));
    }

    #[test]
    fn what_is_no_response_of_http_is_no_success() {
        for line in ["SMTP 220 ready", "HTTP/1.1 2xx OK", "HTTP/1.1 +20 OK", "HTTP/1.1  200", ""] {
            assert_eq!(told(&format!("{line}\r\n\r\n")), Some(Err(format!("it answers {line}"))));
        }
        assert_eq!((told(""), told("HTTP/1.1 200 OK\r\n")), (None, None));
    }
}
