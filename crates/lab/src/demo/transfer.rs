//! One file over one path with one method: sender on host A, receiver on host B.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_mover::hash::HashKind;
use bufwise_mover::probe::{Limits, Prober, ProberConfig, Responder, Token};
use bufwise_mover::{
    Bounds, BufferGrants, FilePart, Job, MoveError, Received, Sockets, Source, Tuner, accept, receive, send,
};
use bufwise_policy::{BuildOptions, PolicyKind};
use bufwise_units::Bytes;

use super::{DemoError, DemoFile, DemoPath, Method};
use crate::sampler::{ConnectionSample, DEFAULT_INTERVAL, Sampler};
use crate::testbed::{Hosts, TestbedError};

const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
/// A connection takes one round trip.
const PATIENCE: Duration = Duration::from_secs(5);
/// No method is so slow that it needs longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// Measurements of one transfer at its ends.
pub(super) struct Seen {
    pub(super) received: Received,
    /// When the data began, on the testbed's clock.
    pub(super) began: f64,
    /// Samples of the sender's and of the receiver's host.
    pub(super) samples: [Vec<ConnectionSample>; 2],
}

/// Moves the first `bytes` bytes of `file` from host A to host B, or as many as go within `time`; `hear` is
/// told how many have arrived.
pub(super) fn run(
    hosts: &Hosts,
    path: &DemoPath,
    method: Method,
    file: &DemoFile,
    (bytes, time): (u64, Duration),
    hear: &(dyn Fn(u64) + Sync),
) -> Result<Seen, DemoError> {
    let on_a = Sampler::start(&hosts.a, hosts.clock, DEFAULT_INTERVAL)?;
    let on_b = Sampler::start(&hosts.b, hosts.clock, DEFAULT_INTERVAL)?;
    let transfer = Transfer { hosts, path, method, file, bytes, time };
    let (received, began) = transfer.run(hear)?;
    Ok(Seen { received, began, samples: [on_a.finish(), on_b.finish()] })
}

struct Transfer<'a> {
    hosts: &'a Hosts,
    path: &'a DemoPath,
    method: Method,
    file: &'a DemoFile,
    bytes: u64,
    time: Duration,
}

impl Transfer<'_> {
    /// Moves the file; also says when the data began, in seconds on the testbed's clock.
    fn run(&self, hear: &(dyn Fn(u64) + Sync)) -> Result<(Received, f64), DemoError> {
        let failed = |source| self.failed(source);
        let sockets = Sockets {
            send_buffer: self.method.fixed_buffers(),
            receive_buffer: self.method.fixed_buffers(),
            congestion: Some(self.method.congestion_control().to_owned()),
        };
        let listen = || sockets.listen(SocketAddr::new(SENDER, 0));
        let listener: TcpListener = self.hosts.a.run(listen).map_err(TestbedError::Host)?.map_err(failed)?;
        let to = listener.local_addr().map_err(DemoError::Probe)?;
        let (responder, mut tuner) = self.tuner()?;
        let bounds = Bounds { deadline: Some(Instant::now() + DEADLINE), ..Bounds::default() };
        let job = &Job { bounds, hash: Some(HashKind::Xxh3), ..Job::default() };
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let stream = accept(&listener, RECEIVER, DEADLINE.min(PATIENCE))?;
                let mut file = self.file.read(self.bytes, self.time);
                // No request for the sender's buffer arrives: the demo has no control connection.
                let grants = BufferGrants::new(Bytes::ZERO);
                send(Source::Reader(&mut file), stream, &grants, responder.as_ref(), job, |_| ())
            });
            tuner.prepare();
            let connect = || sockets.connect(to, PATIENCE);
            let stream = self.hosts.b.run(connect).map_err(TestbedError::Host)?.map_err(failed)?;
            let began = self.hosts.clock.seconds();
            let file = tempfile::tempfile().map_err(DemoError::File)?;
            let mut into = FilePart::new(&file, 0);
            let received = receive(stream, &mut into, &mut tuner, None, job, |seen| hear(seen.bytes));
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (received, sent) = (received.map_err(failed)?, sent.map_err(failed)?);
            if received.report.hash != sent.report.hash {
                return Err(DemoError::Changed { method: self.method.to_string(), path: self.path.name });
            }
            Ok((received, began))
        })
    }

    /// The tuner of the receiver, and the responder to its probes on the sender's host.
    fn tuner(&self) -> Result<(Option<Responder>, Tuner), DemoError> {
        if !self.method.probes() {
            return Ok((None, Tuner::untouched()));
        }
        let bind = |host: &crate::host::Host, address| {
            let socket = host.run(|| UdpSocket::bind(SocketAddr::new(address, 0)));
            socket.map_err(TestbedError::Host)?.map_err(DemoError::Probe)
        };
        let token = Token::random().map_err(DemoError::Probe)?;
        let echo = bind(&self.hosts.a, SENDER)?;
        let responder =
            Responder::start(echo, RECEIVER, token, Limits::default()).map_err(DemoError::Probe)?;
        let probes = bind(&self.hosts.b, RECEIVER)?;
        let prober = Prober::start(probes, responder.address(), token, ProberConfig::default());
        let prober = prober.map_err(DemoError::Probe)?;
        let pacing = matches!(self.method, Method::SobasPaced(_));
        let options = BuildOptions { pacing, ..BuildOptions::default() };
        Ok((Some(responder), Tuner::new(PolicyKind::Sobas, options, Some(prober))))
    }

    fn failed(&self, source: MoveError) -> DemoError {
        DemoError::Transfer { method: self.method.to_string(), path: self.path.name, source }
    }
}
