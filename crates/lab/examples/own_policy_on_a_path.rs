//! An own policy with real sockets: two hosts of this kernel, joined by an emulated path. It needs root.
//!
//! `cargo build -p bufwise-lab --example own_policy_on_a_path && sudo target/debug/examples/own_policy_on_a_path`
//!
//! `crates/policy/examples/own_policy.rs` does the same in virtual time, without root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_lab::spec::PathSpec;
use bufwise_lab::testbed::Testbed;
use bufwise_policy::{Policy, kernel::Untouched};
use bufwise_socket::options;
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The policy: a send buffer of one and a half times what the path delivers in its shortest round trip.
#[derive(Default)]
struct Delivered {
    rate: Rate,
}

impl Policy for Delivered {
    fn observe(&mut self, sample: &Sample, _now: Micros) -> Decision {
        self.rate = self.rate.max(sample.delivery_rate);
        // At least two initial windows (RFC 6928), enough for the start.
        let buffer = self.rate.over(sample.min_rtt).scaled(3, 2).max(sample.mss_or_default().times(20));
        Decision { send_buffer: Some(buffer), ..Decision::NONE }
    }
}

/// Duration of each transfer.
const DURATION: Duration = Duration::from_secs(10);
/// Time between two samples: a round trip.
const INTERVAL: Duration = Duration::from_millis(40);

/// Sends zeros for the duration of the transfer, and sets the buffer that the policy decides.
fn send(policy: &mut (dyn Policy + Send)) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(("198.18.0.2", 5_000))?;
    let (start, mut next_sample) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < DURATION {
        stream.write_all(&[0; 16_384])?;
        if start.elapsed() < next_sample {
            continue;
        }
        next_sample = start.elapsed() + INTERVAL;
        let now = Micros(u64::try_from(start.elapsed().as_micros())?);
        let sample = options::tcp_info(&stream)?.to_sample(&options::memory(&stream)?);
        if let Some(size) = policy.observe(&sample, now).send_buffer {
            // The kernel doubles the size that is set, and up to four fifths of that memory hold payload: 1.6 times the
            // size. So 2.4 bandwidth-delay products are under way here, and 1.4 of them stand in the queue.
            options::force_send_buffer(&stream, size)?;
        }
    }
    Ok(())
}

/// Accepts one connection, reads it to its end and counts its bytes.
fn receive(listener: &TcpListener) -> Result<Bytes, Failure> {
    let (mut stream, _) = listener.accept()?;
    let (mut total, mut buffer) = (0, vec![0; 1 << 18]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(Bytes(total)),
            read => total += read as u64,
        }
    }
}

fn main() -> Result<(), Failure> {
    let (rate, rtt, queue) = (Some("100mbit".parse()?), "40ms".parse()?, Some("2bdp".parse()?));
    let policies: [(&str, Box<dyn Policy + Send>); 2] =
        [("kernel", Box::new(Untouched)), ("one's own", Box::new(Delivered::default()))];
    println!("{:<10} {:>13} {:>10} {:>6}", "policy", "goodput", "queue", "drops");
    for (name, mut policy) in policies {
        let testbed = Testbed::start(&[PathSpec { rate, rtt, queue, ..PathSpec::default() }])?;
        let hosts = &testbed.hosts[0];
        // A socket stays in the network in which it was made, whichever thread uses it.
        let listener = hosts.b.run(|| TcpListener::bind("198.18.0.2:5000"))??;
        let start = Instant::now();
        let received = thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&listener));
            hosts.a.run(|| send(policy.as_mut()))??;
            receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let goodput = received.per(Micros(u64::try_from(start.elapsed().as_micros())?));
        let path = testbed.finish()?.remove(0);
        let link = path.link.last.a_to_b;
        let (mbit, queue) = (goodput.bits_per_sec() as f64 / 1e6, Bytes(link.queue_mean_bytes).readable());
        println!("{name:<10} {mbit:>6.1} Mbit/s {queue:>10} {:>6}", link.drops_queue_packets);
        if let Some(why) = path.invalid {
            println!("{:<10} do not trust this row: {why}", "");
        }
    }
    Ok(())
}
