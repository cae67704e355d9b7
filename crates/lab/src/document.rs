//! Documents over connections of their own: a request, and an answer of known size, as from an HTTP/1.0 server.
//!
//! The response time is from the request, on an open connection, to the last byte (Matsuo, section 4.3). For requests
//! beside other traffic ([`request`]) it is the user's whole wait, the connection setup included.
//!
//! The answers come from [`serve`] here, or from a web server that has a file for each size, named by its bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
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
    /// Bytes of each document.
    pub document_bytes: Vec<u64>,
}

/// A client's requests to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// [`serve`]: a document whose size the server chooses.
    Any,
    /// A web server (HTTP/1.0): the file `/BYTES` for one of these sizes, each equally likely, in an order that is the
    /// same every time.
    Web(&'a [u64]),
}

/// Answers every request on `port` with a document, until the process ends. Its size is one of `sizes` (bytes), each
/// equally likely, in an order that is the same every time.
///
/// # Errors
/// When the port cannot be bound. A client that goes away early is no error.
pub fn serve(port: u16, sizes: &[u64]) -> io::Result<()> {
    // Some kernels have no IPv6.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
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
/// When a connection cannot be made or ends in an error, or a web server does not have a document.
pub fn fetch(server: IpAddr, port: u16, count: u32, ask: Ask<'_>) -> io::Result<Responses> {
    let mut client = Client::new(server, port, ask);
    for _ in 0..count {
        let Waited { from_request, .. } = client.one()?;
        client.responses.response_s.push(from_request.as_secs_f64());
    }
    Ok(client.responses)
}

/// Requests documents for `duration`, one after the other, at most one every 50 ms; the response time includes the
/// connection setup.
///
/// # Errors
/// When a connection cannot be made or ends in an error, or a web server does not have a document.
pub fn request(server: IpAddr, port: u16, duration: Duration, ask: Ask<'_>) -> io::Result<Responses> {
    let mut client = Client::new(server, port, ask);
    let begin = Instant::now();
    while begin.elapsed() < duration {
        let Waited { whole, .. } = client.one()?;
        client.responses.response_s.push(whole.as_secs_f64());
        thread::sleep(EVERY.saturating_sub(whole));
    }
    Ok(client.responses)
}

/// The time that one document took.
struct Waited {
    /// Time with the setup of its connection.
    whole: Duration,
    /// Time from the request to the last byte.
    from_request: Duration,
}

struct Client<'a> {
    server: SocketAddr,
    ask: Ask<'a>,
    draw: Draw,
    responses: Responses,
}

impl<'a> Client<'a> {
    fn new(server: IpAddr, port: u16, ask: Ask<'a>) -> Self {
        let responses = Responses { bytes: 0, response_s: Vec::new(), document_bytes: Vec::new() };
        Self { server: SocketAddr::new(server, port), ask, draw: Draw(1), responses }
    }

    /// Returns the next document's size, if the client chooses it.
    fn next(&mut self) -> Option<u64> {
        let Ask::Web(sizes) = self.ask else { return None };
        let drawn = self.draw.between(0, (sizes.len() as u64).saturating_sub(1));
        usize::try_from(drawn).ok().and_then(|place| sizes.get(place)).copied()
    }

    /// Fetches one document and notes its size.
    fn one(&mut self) -> io::Result<Waited> {
        let size = self.next();
        let request =
            size.map_or(REQUEST.to_vec(), |size| format!("GET /{size} HTTP/1.0\r\n\r\n").into_bytes());
        let began = Instant::now();
        let mut stream = TcpStream::connect_timeout(&self.server, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let asked = Instant::now();
        stream.write_all(&request)?;
        let (mut bytes, mut last, mut piece) = (0, asked, vec![0; PIECE]);
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                length => bytes += length as u64,
            }
            last = Instant::now();
        }
        // An error's answer is short; a document's has a header before it.
        if let Some(size) = size.filter(|size| bytes < *size) {
            return Err(io::Error::other(format!("the web server answered with {bytes} bytes for /{size}")));
        }
        self.responses.bytes = size.unwrap_or(bytes);
        self.responses.document_bytes.push(self.responses.bytes);
        Ok(Waited { whole: last - began, from_request: last - asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_arrives_whole() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (client, _) = free.accept().unwrap();
            answer(client, 100_000).unwrap();
        });
        let seen = fetch(Ipv4Addr::LOCALHOST.into(), port, 1, Ask::Any).unwrap();
        server.join().unwrap();
        assert_eq!((seen.bytes, seen.response_s.len()), (100_000, 1));
        assert_eq!(seen.document_bytes, [100_000]);
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
        let seen = request(Ipv4Addr::LOCALHOST.into(), port, EVERY * 2, Ask::Any).unwrap();
        assert!((1..=2).contains(&seen.response_s.len()), "{seen:?}");
    }

    /// Answers `GET /N` with a header and N bytes, but for more than 9,000 as if there were no such file.
    fn web(listener: &TcpListener) {
        for mut client in listener.incoming().flatten() {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.strip_prefix("GET /").unwrap().strip_suffix(" HTTP/1.0\r\n\r\n").unwrap();
            let bytes: usize = path.parse().unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            client.write_all(&vec![0; if bytes > 9_000 { 0 } else { bytes }]).unwrap();
        }
    }

    #[test]
    fn a_web_server_is_asked_for_each_of_the_sizes() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        thread::spawn(move || web(&free));
        let ask = |sizes: &[u64]| fetch(Ipv4Addr::LOCALHOST.into(), port, 30, Ask::Web(sizes));
        let seen = ask(&[1_000, 8_000]).unwrap();
        assert_eq!(seen.response_s.len(), 30);
        assert!(seen.document_bytes.iter().all(|bytes| [1_000, 8_000].contains(bytes)));
        assert!(seen.document_bytes.contains(&1_000) && seen.document_bytes.contains(&8_000));
        assert_eq!(ask(&[1_000, 8_000]).unwrap().document_bytes, seen.document_bytes, "the same every time");
        assert!(ask(&[10_000]).unwrap_err().to_string().contains("for /10000"));
    }
}
