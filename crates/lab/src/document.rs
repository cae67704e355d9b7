//! Documents over connections of their own: a request, and an answer of known size, as from a web server of 1999.
//!
//! The response time is from the request, on an open connection, to the last byte (Matsuo, section 4.3). For requests
//! beside other traffic ([`request`]) it is the user's whole wait, the connection setup included.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_link::Draw;
use serde::Serialize;

/// The request for a document.
const REQUEST: &[u8] = b"GET\n";
/// Time after which a silent peer counts as gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// Least time between two requests beside other traffic.
const EVERY: Duration = Duration::from_millis(50);
/// Largest piece in which a document is written and read, bytes.
const PIECE: usize = 64 << 10;

/// The documents that a client received.
#[derive(Clone, Debug, Serialize)]
pub struct Responses {
    /// Bytes of the last document.
    pub bytes: u64,
    /// Response time of each document, seconds.
    pub response_s: Vec<f64>,
}

/// Answers every request on `port` with a document, until the process ends. Its size is one of `sizes` (bytes), each
/// equally likely, in an order that is the same every time.
///
/// # Errors
/// When the port cannot be bound. A client that goes away early is no error.
pub fn serve(port: u16, sizes: &[u64]) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let mut draw = Draw(1);
    for client in listener.incoming().flatten() {
        let drawn = draw.between(0, (sizes.len() as u64).saturating_sub(1));
        let bytes = usize::try_from(drawn).ok().and_then(|place| sizes.get(place));
        let _client_gone = answer(client, bytes.copied().unwrap_or(0));
    }
    Ok(())
}

fn answer(mut client: TcpStream, bytes: u64) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST.len()];
    client.read_exact(&mut request)?;
    let piece = vec![b'x'; PIECE];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        client.write_all(&piece[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Fetches `count` documents, one after the other.
///
/// # Errors
/// When a connection cannot be made or ends in an error.
pub fn fetch(server: IpAddr, port: u16, count: u32) -> io::Result<Responses> {
    let mut responses = Responses { bytes: 0, response_s: Vec::new() };
    for _ in 0..count {
        let (_, from_request, bytes) = one(SocketAddr::new(server, port))?;
        responses.bytes = bytes;
        responses.response_s.push(from_request.as_secs_f64());
    }
    Ok(responses)
}

/// Requests documents for `duration`, one after the other, at most one every 50 ms; the response time includes the
/// connection setup.
///
/// # Errors
/// When a connection cannot be made or ends in an error.
pub fn request(server: IpAddr, port: u16, duration: Duration) -> io::Result<Responses> {
    let mut responses = Responses { bytes: 0, response_s: Vec::new() };
    let begin = Instant::now();
    while begin.elapsed() < duration {
        let (whole, _, bytes) = one(SocketAddr::new(server, port))?;
        responses.bytes = bytes;
        responses.response_s.push(whole.as_secs_f64());
        thread::sleep(EVERY.saturating_sub(whole));
    }
    Ok(responses)
}

/// Fetches one document; returns the time with its connection, the time from the request on, and its bytes.
fn one(server: SocketAddr) -> io::Result<(Duration, Duration, u64)> {
    let began = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let asked = Instant::now();
    stream.write_all(REQUEST)?;
    let (mut bytes, mut last, mut piece) = (0, asked, vec![0; PIECE]);
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok((last - began, last - asked, bytes)),
            length => bytes += length as u64,
        }
        last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_document_arrives_whole() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (client, _) = free.accept().unwrap();
            answer(client, 100_000).unwrap();
        });
        let seen = fetch(Ipv4Addr::LOCALHOST.into(), port, 1).unwrap();
        server.join().unwrap();
        assert_eq!((seen.bytes, seen.response_s.len()), (100_000, 1));
        assert!(seen.response_s[0] > 0.0);
    }

    #[test]
    fn requests_come_no_more_often_than_they_should() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        thread::spawn(move || {
            for client in free.incoming().flatten() {
                answer(client, 10).unwrap();
            }
        });
        let seen = request(Ipv4Addr::LOCALHOST.into(), port, EVERY * 2).unwrap();
        assert!((1..=2).contains(&seen.response_s.len()), "{seen:?}");
    }
}
