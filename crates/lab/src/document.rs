//! Documents over connections of their own: a request, an answer of known size, as from a web server of 1999.
//!
//! The response time is that from the request, on an open connection, to the last byte (002, section 4.3).

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;

/// What asks for a document.
const REQUEST: &[u8] = b"GET\n";
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// A document is written and read in pieces of at most this size, bytes.
const PIECE: usize = 64 << 10;

/// What the client saw.
#[derive(Clone, Debug, Serialize)]
pub struct Responses {
    /// Bytes of the last document.
    pub bytes: u64,
    /// Each document's response time.
    pub response_s: Vec<f64>,
}

/// Answers every request on `port` with `bytes` bytes, until it is ended.
///
/// # Errors
/// When the port cannot be had. A client that goes away early is no error.
pub fn serve(port: u16, bytes: u64) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    for client in listener.incoming().flatten() {
        let _client_gone = answer(client, bytes);
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
    let mut piece = vec![0; PIECE];
    for _ in 0..count {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(server, port), PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let asked = Instant::now();
        stream.write_all(REQUEST)?;
        let mut bytes = 0;
        let mut last = asked;
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                length => bytes += length as u64,
            }
            last = Instant::now();
        }
        responses.bytes = bytes;
        responses.response_s.push((last - asked).as_secs_f64());
    }
    Ok(responses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_document_arrives_whole() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (client, _) = free.accept().unwrap();
            answer(client, 100_000).unwrap();
        });
        let seen = fetch(Ipv4Addr::LOCALHOST.into(), port, 1).unwrap();
        server.join().unwrap();
        assert_eq!((seen.bytes, seen.response_s.len()), (100_000, 1));
        assert!(seen.response_s[0] > 0.0);
    }
}
