//! Samples every connection of a host at an interval, through the kernel's socket diagnostics.
//!
//! The interval doubles whenever the samples become too many; then every second moment is dropped, so that those that stay are
//! as far apart as those that follow. Counters in a sample are since the connection's start. A peak between two moments is not seen,
//! nor is a connection that lives shorter.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_socket::diag::{Connection, Diag, DiagError, States};
use bufwise_socket::limit::{SocketSample, limited_by};
use bufwise_units::Micros;
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::clock::Clock;
use crate::host::{Host, HostError};

/// Default interval between two samples.
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(50);
/// Shortest interval: below it the sampling itself would load the machine.
pub const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// Most samples kept of one host, 200 MB: one connection for fourteen hours, or two thousand for 25 s, at the default interval.
const MAX_SAMPLES: usize = 1_000_000;

/// Why connections could not be sampled.
#[derive(Debug, Error)]
pub enum SamplerError {
    /// The host is gone.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel's socket diagnostics failed.
    #[error(transparent)]
    Diag(#[from] DiagError),
    /// No thread could be started.
    #[error("cannot start the sampler's thread: {0}")]
    Thread(io::Error),
}

/// One connection at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionSample {
    /// Seconds since the start.
    pub t: f64,
    /// The host on which it was seen: `a` or `b`.
    pub host: &'static str,
    /// Own address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Congestion control.
    #[serde(serialize_with = "as_text")]
    pub congestion_control: bufwise_socket::diag::CongestionControl,
    /// Smoothed round-trip time, us.
    pub srtt_us: u32,
    /// Smallest round-trip time, us; 0: not measured.
    pub min_rtt_us: u64,
    /// Congestion window, payload bytes.
    pub cwnd_bytes: u64,
    /// Payload sent and not yet acknowledged, bytes.
    pub flight_bytes: u64,
    /// Limit of the send buffer, bytes of memory.
    pub sndbuf: u32,
    /// Limit of the receive buffer, bytes of memory.
    pub rcvbuf: u32,
    /// Bytes of memory that hold data not yet acknowledged.
    pub wmem_queued: u32,
    /// Bytes of memory that hold data not yet read.
    pub rmem_alloc: u32,
    /// Window that the peer advertises, bytes.
    pub snd_wnd: u32,
    /// Window that is advertised to the peer, bytes.
    pub rcv_wnd: u32,
    /// The kernel's delivery rate, bit/s.
    pub delivery_rate_bps: u64,
    /// Bytes acknowledged so far.
    pub bytes_acked: u64,
    /// Bytes received so far.
    pub bytes_received: u64,
    /// Segments retransmitted so far.
    pub retrans: u32,
    /// Cause that held the sender back since the sample before, which may have been dropped later.
    pub limited_by: Option<&'static str>,
}

/// A running sampler. Dropping it stops it.
#[derive(Debug)]
pub struct Sampler {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<ConnectionSample>>>,
}

impl Sampler {
    /// Starts sampling the connections of `host` every `interval`.
    ///
    /// # Errors
    /// [`SamplerError`] when the host is gone or its kernel lists no sockets.
    pub fn start(host: &Host, clock: Clock, interval: Duration) -> Result<Self, SamplerError> {
        let mut diag = host.run(Diag::open)??;
        let name = host.name();
        let interval = interval.max(MIN_INTERVAL);
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new()
            .name(format!("samples {name}"))
            .spawn(move || {
                let mut series = Series::new(interval, MAX_SAMPLES);
                let mut next = Instant::now();
                loop {
                    series.sample(&mut diag, name, &clock);
                    next = (next + series.interval).max(Instant::now());
                    let wait = next.saturating_duration_since(Instant::now());
                    if !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                        return series.samples;
                    }
                }
            })
            .map_err(SamplerError::Thread)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Stops and returns the samples, oldest first.
    #[must_use]
    pub fn finish(mut self) -> Vec<ConnectionSample> {
        drop(self.stop.take());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _samples_unwanted = thread.join();
        }
    }
}

struct Series {
    samples: Vec<ConnectionSample>,
    /// Number of samples at which every second moment is dropped.
    most: usize,
    /// Time between two moments.
    interval: Duration,
    connections: Vec<Connection>,
    /// The last sample of each connection, by its cookie.
    last: HashMap<u64, SocketSample>,
}

impl Series {
    fn new(interval: Duration, most: usize) -> Self {
        Self { samples: Vec::new(), most, interval, connections: Vec::new(), last: HashMap::new() }
    }

    fn sample(&mut self, diag: &mut Diag, host: &'static str, clock: &Clock) {
        let t = clock.seconds();
        // A dump that fails once (the kernel was short of memory) leaves a gap, not a broken run.
        if diag.tcp_into(States::CONNECTED, &mut self.connections).is_ok() {
            self.keep(host, t);
        }
    }

    /// Keeps a sample of each of `connections`, as they were at `t`.
    fn keep(&mut self, host: &'static str, t: f64) {
        let mut last = HashMap::with_capacity(self.connections.len());
        for connection in &self.connections {
            let now = SocketSample::of(connection, Micros((t * 1e6) as u64));
            let limit = self.last.get(&connection.cookie).map(|before| limited_by(before, &now).as_str());
            self.samples.push(sample(connection, limit, t, host));
            last.insert(connection.cookie, now);
        }
        self.last = last;
        if self.samples.len() >= self.most {
            halve(&mut self.samples);
            self.interval = self.interval.saturating_mul(2);
        }
    }
}

/// Drops the samples of every second moment; those of the first one stay.
fn halve(samples: &mut Vec<ConnectionSample>) {
    let (mut moment, mut stays) = (None, false);
    samples.retain(|sample| {
        let t = Some(sample.t.to_bits());
        if moment != t {
            moment = t;
            stays = !stays;
        }
        stays
    });
}

fn sample(
    connection: &Connection,
    limited_by: Option<&'static str>,
    t: f64,
    host: &'static str,
) -> ConnectionSample {
    let Connection { info, mem, .. } = connection;
    ConnectionSample {
        t,
        host,
        local: connection.local,
        peer: connection.peer,
        congestion_control: connection.congestion,
        srtt_us: info.rtt,
        min_rtt_us: info.min_rtt().map_or(0, |rtt| rtt.0),
        cwnd_bytes: info.cwnd().0,
        flight_bytes: u64::from(info.unacked) * u64::from(info.snd_mss),
        sndbuf: mem.sndbuf,
        rcvbuf: mem.rcvbuf,
        wmem_queued: mem.wmem_queued,
        rmem_alloc: mem.rmem_alloc,
        snd_wnd: info.snd_wnd,
        rcv_wnd: info.rcv_wnd,
        delivery_rate_bps: info.delivery_rate.saturating_mul(8),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        retrans: info.total_retrans,
        limited_by,
    }
}

fn as_text<S: Serializer>(
    name: &bufwise_socket::diag::CongestionControl,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

#[cfg(test)]
mod tests {
    use bufwise_socket::diag::{CongestionControl, State};
    use bufwise_socket::info::{SkMem, TcpInfo};

    use super::*;

    fn connection(cookie: u64, bytes_acked: u64) -> Connection {
        let address = |port| SocketAddr::from(([198, 18, 0, 1], port));
        Connection {
            local: address(40_000),
            peer: address(5_201),
            state: State::Established,
            inode: 0,
            uid: 0,
            cookie,
            info: TcpInfo { bytes_acked, ..TcpInfo::default() },
            mem: SkMem::default(),
            congestion: CongestionControl::default(),
            cgroup: 0,
        }
    }

    #[test]
    fn too_many_samples_are_thinned_by_whole_moments_and_none_are_refused_later() {
        let (interval, most) = (Duration::from_millis(50), 8);
        let mut series = Series::new(interval, most);
        let mut t = 0.0;
        // Eight samples are those of four moments; two more moments follow each time.
        for _ in 0..10 {
            series.connections = vec![connection(1, (t * 1e3) as u64), connection(2, 0)];
            series.keep("a", t);
            assert!(series.samples.len() < most);
            t += series.interval.as_secs_f64();
        }
        assert_eq!(series.interval, interval * 16);
        let kept: Vec<f64> = series.samples.iter().map(|sample| sample.t).collect();
        assert!(kept.len() == 4 && kept[0] == 0.0 && kept[2] > 0.5 && kept.is_sorted(), "{kept:?}");
        for moment in series.samples.chunks(2) {
            assert_eq!(moment[0].t.to_bits(), moment[1].t.to_bits(), "both connections");
            assert_eq!([moment[0].bytes_acked, moment[1].bytes_acked], [(moment[0].t * 1e3) as u64, 0]);
        }
    }
}
