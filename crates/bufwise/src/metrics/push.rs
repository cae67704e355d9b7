//! Sends the metrics to a receiver of OTLP over HTTP, on a thread of its own.
//!
//! One request at a time, each within [`TIME`] once the receiver's name is resolved: a receiver that is slow or gone delays
//! nothing else. A request that was not accepted is not repeated: counts are cumulative, so the next one has all of them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Error, Result, bail};
use bufwise_host::control::Request;
use bufwise_host::control::server::Asker;
use bufwise_host::log;
use bufwise_host::metrics::Endpoint;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::answer::{MAX_ANSWER, judge};
use super::otlp::Writer;
use super::{settled, snapshot};

/// Time for a whole request and its answer.
const TIME: Duration = Duration::from_secs(5);
/// Time that the daemon's loop has for a snapshot, and for the first one: at its start it clears leftovers and loads programs.
const DAEMON_TIME: Duration = Duration::from_secs(2);
const START_TIME: Duration = Duration::from_secs(60);
/// Most characters of an answer in the log.
const MAX_TOLD: usize = 200;

/// The sending thread; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Pusher {
    /// Closing this end stops the thread.
    _stop: UnixStream,
}

impl Pusher {
    /// Starts to send the daemon's snapshots, with this time between two requests.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(endpoint: Endpoint, interval: Duration, asker: Asker) -> Result<Self> {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        let mut writer = Writer::new(host.unwrap_or_default());
        let (stop, stopped) = UnixStream::pair().context("cannot send metrics")?;
        let push = move || {
            let mut failures = Failures::every(interval);
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

/// Sends a request and reads its answer, all within [`TIME`] once the receiver's name is resolved.
fn post(endpoint: &Endpoint, body: &str) -> Result<()> {
    let addresses = endpoint.authority().to_socket_addrs().context("its name is not found")?;
    let deadline = Instant::now() + TIME;
    let mut stream = connect(&addresses.collect::<Vec<_>>(), deadline)?;
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
    match judge(&answer) {
        Some(taken) => taken.map_err(Error::msg),
        None => read.context("it does not answer").and_then(|_| bail!("it answers nothing")),
    }
}

/// Connects to the first of the addresses that answers; one that is silent leaves each of the others its part of the time.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<Timed> {
    let mut failure = None;
    for (address, others) in addresses.iter().zip((0..addresses.len()).rev()) {
        let left = deadline.saturating_duration_since(Instant::now());
        let part = left / u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
        match TcpStream::connect_timeout(address, part.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(Timed { stream, deadline }),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error).context("it cannot be reached"),
        None => bail!("its name has no address"),
    }
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
        self.stream.read(buffer).map_err(as_timeout)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(as_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Names the end of the time, which the kernel reports as a resource that is unavailable (EAGAIN; socket(7), SO_RCVTIMEO).
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// The requests so far, and which of their failures are logged.
#[derive(Debug)]
struct Failures {
    interval: Duration,
    has_tried: bool,
    log: log::Failures,
}

impl Failures {
    /// Returns the state before the first request, where the others follow at this interval.
    fn every(interval: Duration) -> Self {
        Self { interval, has_tried: false, log: log::Failures::default() }
    }

    /// Returns the time until the next request; the first one is sent at once.
    fn pause(&self) -> Duration {
        if self.has_tried { self.interval } else { Duration::ZERO }
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
        let Err(error) = sent else {
            return self.log.succeeded().then(|| ("sent again".to_owned(), false));
        };
        // The error may contain text from the receiver.
        let why: String = bufwise_host::in_words(error.as_ref())
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .take(MAX_TOLD)
            .collect();
        let is_told = self.log.failed(&why, now);
        let seconds = self.interval.as_secs_f64();
        is_told.then(|| (format!("not sent, and tried anew every {seconds} s: {why}"), true))
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
    fn a_receiver_that_takes_too_long_is_told_as_one() {
        // The kernel accepts the connection; no program answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let deadline = Instant::now() + Duration::from_millis(100);
        let mut stream = connect(&[silent.local_addr().unwrap()], deadline).unwrap();
        // The second call finds no time left.
        for _ in 0..2 {
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(error.to_string(), "timed out");
        }
    }

    #[test]
    fn failures_are_a_line_in_ten_minutes_whatever_a_receiver_does() {
        let (mut failures, start) = (Failures::every(Duration::from_secs(15)), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let bad = || Err(anyhow::anyhow!("it answers \u{1b}[2J{}", "x".repeat(1_000)));
        assert_eq!((failures.patience(), failures.pause()), (START_TIME, Duration::ZERO));
        let (line, is_failure) = failures.line(bad(), at(0)).unwrap();
        assert_eq!((failures.patience(), failures.pause()), (DAEMON_TIME, Duration::from_secs(15)));
        assert!(is_failure && line.contains("tried anew every 15 s: it answers  [2Jx"), "{line}");
        assert!(line.len() < 300 && !line.contains(char::is_control), "{line}");
        assert_eq!(failures.line(bad(), at(15)), None);
        assert_eq!(failures.line(Ok(()), at(30)), Some(("sent again".to_owned(), false)));
        assert_eq!(failures.line(Ok(()), at(45)), None);
        assert_eq!((failures.line(bad(), at(60)), failures.line(Ok(()), at(75))), (None, None));
        assert!(failures.line(bad(), at(600)).is_some());
        let other = || Err(anyhow::anyhow!("it cannot be reached"));
        assert_eq!(failures.line(other(), at(615)), None);
        let (line, _) = failures.line(other(), at(1_200)).expect("another cause");
        assert!(line.ends_with(": it cannot be reached"), "{line}");
    }

    #[test]
    fn it_ends_at_once_when_it_is_dropped() {
        let (stop, stopped) = UnixStream::pair().unwrap();
        assert!(!is_over(&stopped, Duration::ZERO));
        drop(stop);
        assert!(is_over(&stopped, Duration::from_secs(3_600)));
    }
}
