//! Sends the metrics to a receiver of OTLP over HTTP, on a thread of its own.
//!
//! One request at a time, each within [`TIME`]: a receiver that is slow or gone delays nothing else. A request that was
//! not accepted is not repeated: counts are cumulative, so the next one has all of them.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bufwise_host::control::Request;
use bufwise_host::control::server::Asker;
use bufwise_host::log;
use bufwise_host::metrics::Endpoint;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::otlp::Writer;
use super::{settled, snapshot};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_secs(15);
/// Time for a whole request and its answer.
const TIME: Duration = Duration::from_secs(5);
/// Time that the daemon's loop has for a snapshot, and for the first one: at its start it clears leftovers and loads programs.
const DAEMON_TIME: Duration = Duration::from_secs(2);
const START_TIME: Duration = Duration::from_secs(60);
/// Least time between two log lines on failures.
const QUIET: Duration = Duration::from_secs(600);
/// Most bytes that are read of an answer, and most characters of it in the log.
const MAX_ANSWER: u64 = 16 << 10;
const MAX_TOLD: usize = 200;

/// The sending thread; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Pusher {
    /// Closing this end stops the thread.
    _stop: UnixStream,
}

impl Pusher {
    /// Starts to send the daemon's snapshots.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(endpoint: Endpoint, asker: Asker) -> Result<Self> {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        let mut writer = Writer::new(host.unwrap_or_default());
        let (stop, stopped) = UnixStream::pair().context("cannot send metrics")?;
        let push = move || {
            let mut failures = Failures::default();
            while !is_over(&stopped, failures.pause()) {
                let sent = send(&endpoint, &mut writer, &asker, failures.patience());
                // A daemon that is ending no longer answers; that is no failure.
                if !is_over(&stopped, Duration::ZERO) {
                    failures.tell(&endpoint, sent, Instant::now());
                }
            }
        };
        thread::Builder::new().name("otlp".to_owned()).spawn(push).context("cannot send metrics")?;
        Ok(Self { _stop: stop })
    }
}

/// Waits for `time`, or until the pusher is dropped; returns whether it was dropped.
fn is_over(stopped: &UnixStream, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
        let mut fds = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(0) if left.as_millis() <= u128::from(millis) => return false,
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

fn send(endpoint: &Endpoint, writer: &mut Writer, asker: &Asker, patience: Duration) -> Result<()> {
    let snapshot = settled(|| snapshot(asker.ask(Request::Metrics, patience)))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    post(endpoint, &writer.request(&snapshot, now_ns).to_string())
}

/// Sends a request and reads its answer, all within [`TIME`].
fn post(endpoint: &Endpoint, body: &str) -> Result<()> {
    let deadline = Instant::now() + TIME;
    let mut stream = connect(endpoint, deadline)?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: bufwise/{}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        endpoint.path(),
        endpoint.authority(),
        env!("CARGO_PKG_VERSION"),
        body.len(),
    );
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .context("it does not accept the request")?;
    let mut answer = Vec::new();
    let read = stream.take(MAX_ANSWER).read_to_end(&mut answer);
    // A receiver that keeps the connection open has still answered.
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) => judge(head, body),
        None => read.map_err(Into::into).and_then(|_| bail!("it answers nothing")),
    }
}

fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<Timed> {
    let addresses = endpoint.authority().to_socket_addrs().context("its name is not found")?;
    let mut failure = None;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(Timed { stream, deadline }),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error).context("it cannot be reached"),
        None => bail!("its name has no address"),
    }
}

/// Fails if the answer reports an error.
fn judge(head: &str, body: &str) -> Result<()> {
    let line = head.lines().next().unwrap_or_default();
    let status = line.split(' ').nth(1).unwrap_or_default();
    if !(status.len() == 3 && status.starts_with('2')) {
        bail!("it answers {line}");
    }
    let answer: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let rejected = &partial["rejectedDataPoints"];
    // A 64-bit integer, which this JSON writes as a text.
    let count = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default();
    if count > 0 {
        bail!(
            "it rejects {count} figures: {}",
            partial["errorMessage"].as_str().unwrap_or("no reason given")
        );
    }
    Ok(())
}

/// A connection whose reads and writes share one deadline.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Decides which failures are logged: the first one, and the recovery; at most one line per [`QUIET`].
#[derive(Debug, Default)]
struct Failures {
    has_tried: bool,
    /// Whether the last line was of a failure.
    is_told: bool,
    /// Failures before this time are not logged.
    quiet: Option<Instant>,
}

impl Failures {
    /// Returns the time until the next request; the first one is sent at once.
    fn pause(&self) -> Duration {
        if self.has_tried { INTERVAL } else { Duration::ZERO }
    }

    /// Returns the time that the daemon has for a snapshot. A start that takes long is no failure: its line would keep the
    /// cause of a real one out of the log.
    fn patience(&self) -> Duration {
        if self.has_tried { DAEMON_TIME } else { START_TIME }
    }

    fn tell(&mut self, endpoint: &Endpoint, sent: Result<()>, now: Instant) {
        if let Some((line, is_failure)) = self.line(sent, now) {
            log::of_metrics(format_args!("metrics to {endpoint}: {line}"), is_failure);
        }
    }

    /// Returns the log line on a request, if there should be one, and whether it reports a failure.
    fn line(&mut self, sent: Result<()>, now: Instant) -> Option<(String, bool)> {
        self.has_tried = true;
        match sent {
            Ok(()) => std::mem::take(&mut self.is_told).then(|| ("sent again".to_owned(), false)),
            Err(_) if self.is_told || self.quiet.is_some_and(|quiet| now < quiet) => None,
            Err(error) => {
                self.is_told = true;
                self.quiet = Some(now + QUIET);
                // The error may contain text from the receiver.
                let why: String = bufwise_host::in_words(error.as_ref())
                    .chars()
                    .map(|letter| if letter.is_control() { ' ' } else { letter })
                    .take(MAX_TOLD)
                    .collect();
                Some((format!("not sent, and tried anew every {} s: {why}", INTERVAL.as_secs()), true))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};

    /// Starts a receiver that answers one request with `answer`; returns its endpoint, and a thread that returns the
    /// request.
    fn receiver(answer: &'static [u8]) -> (Endpoint, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                let mut bytes = [0; 1024];
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "{request:?}");
                request.extend(&bytes[..count]);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        };
        (endpoint, thread::spawn(serve))
    }

    #[test]
    fn a_request_is_json_with_its_length_and_an_answer_is_taken() {
        let (endpoint, served) = receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        post(&endpoint, "{}").unwrap();
        let request = served.join().unwrap();
        assert!(request.starts_with("POST /v1/metrics HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
        assert!(request.contains("\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"), "{request}");
    }

    #[test]
    fn what_a_receiver_does_not_take_is_told_in_its_words() {
        for (answer, words) in [
            (&b"HTTP/1.1 503 Service Unavailable\r\n\r\nlater"[..], "503 Service Unavailable"),
            (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\n\r\n", "307"),
            (
                b"HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedDataPoints\":\"3\",\"errorMessage\":\"old\"}}",
                "rejects 3 figures: old",
            ),
            (b"\xff\xff", "nothing"),
            (b"", "nothing"),
        ] {
            let (endpoint, served) = receiver(answer);
            let error = post(&endpoint, "{}").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            served.join().unwrap();
        }
        // Bound and not listening: no other test gets the port.
        let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let nobody = silent.local_addr().unwrap().as_socket().unwrap();
        let error = post(&format!("http://{nobody}").parse().unwrap(), "{}").unwrap_err();
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }

    #[test]
    fn failures_are_a_line_in_ten_minutes_whatever_a_receiver_does() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let bad = || Err(anyhow::anyhow!("it answers \u{1b}[2J{}", "x".repeat(1_000)));
        assert_eq!(failures.patience(), START_TIME);
        let (line, is_failure) = failures.line(bad(), at(0)).unwrap();
        assert_eq!(failures.patience(), DAEMON_TIME);
        assert!(is_failure && line.contains("tried anew every 15 s: it answers  [2Jx"), "{line}");
        assert!(line.len() < 300 && !line.contains(char::is_control), "{line}");
        assert_eq!(failures.line(bad(), at(15)), None);
        assert_eq!(failures.line(Ok(()), at(30)), Some(("sent again".to_owned(), false)));
        assert_eq!(failures.line(Ok(()), at(45)), None);
        assert_eq!((failures.line(bad(), at(60)), failures.line(Ok(()), at(75))), (None, None));
        assert!(failures.line(bad(), at(600)).is_some());
    }

    #[test]
    fn it_ends_at_once_when_it_is_dropped() {
        let (stop, stopped) = UnixStream::pair().unwrap();
        assert!(!is_over(&stopped, Duration::ZERO));
        drop(stop);
        assert!(is_over(&stopped, Duration::from_secs(3_600)));
    }
}
