//! Whether an upload's client is still there when its data has ended.
//!
//! Problem: in stream mode the end of the data connection is the end of the file (RFC 959, section 3.4.1), and a client that
//! is killed ends it no less. Its death ends the control connection as well, but not before: Linux closes what a killed
//! program had open in no order to rely on, mostly the latest first, and that is the data connection. Seen over
//! loopback: the control connection's end 2 to 20 us after the data's; of curl, lftp, tnftp and rclone, killed or
//! interrupted, commonly within 1 ms; of an interrupted Python 5 ms; on a host with twice the work that it can do, once in
//! 20 times more than 10 ms. Of a killed `curl --limit-rate`, 19 in 20 uploads looked finished to a server that looked
//! at once.
//! Rules: a length that was announced and came, or an end that was announced (TLS), is believed at once. Else the
//! upload waits, from its end and while it is written to the disk: [`super::Times::hangup`], or a round trip where that is
//! longer, as two packets that leave together arrive within less. A control connection that ends by then takes the
//! upload with it, unless the client said QUIT before: then it just did not wait for the reply.
//! Not covered: a control connection whose end is lost on the way and comes with a retransmission, after that time.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bufwise_socket::options;

use super::running::Link;

/// `TCP_ESTABLISHED`: neither end has closed.
const ESTABLISHED: u8 = 1;
/// Most that a long path makes an upload wait: half way around the world and back.
const MAX_RTT: Duration = Duration::from_millis(200);
/// Time for the session's thread to read the last lines before the end of the control connection. No client waits then.
const LAST_LINES_TIME: Duration = Duration::from_secs(1);

/// Sees whether the client is still there.
#[derive(Debug)]
pub(super) struct Presence(TcpStream);

impl Presence {
    /// Of the client at the other end of this control connection.
    pub(super) fn of(control: &TcpStream) -> io::Result<Self> {
        Ok(Self(control.try_clone()?))
    }

    /// How long the end of the control connection may take to follow that of the data, at least `hangup`.
    pub(super) fn timeout(&self, hangup: Duration) -> Duration {
        let rtt = options::tcp_info(&self.0).ok().and_then(|info| info.min_rtt());
        rtt.map_or(hangup, |rtt| Duration::from_micros(rtt.0).min(MAX_RTT).max(hangup))
    }

    /// Whether the client stays until `deadline`, or has said goodbye; false at once when the transfer is cancelled, as
    /// the session's thread does on reading the control connection's end.
    pub(super) fn lasts(&self, deadline: Instant, link: &Link) -> io::Result<bool> {
        link.cancel.pause(deadline)?;
        if self.has_ended() && !link.has_parted() {
            link.cancel.pause(Instant::now() + LAST_LINES_TIME)?;
        }
        Ok(!link.cancel.is_cancelled() && (link.has_parted() || !self.has_ended()))
    }

    /// Whether the client has ended the control connection, though what it said before may still be to be read.
    fn has_ended(&self) -> bool {
        options::tcp_info(&self.0).map_or(true, |info| info.state != ESTABLISHED)
    }
}
