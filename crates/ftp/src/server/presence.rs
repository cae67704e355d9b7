//! Whether an upload's client is still connected when its data has ended.
//!
//! Problem: in stream mode the end of the data connection is the end of the file (RFC 959, section 3.4.1), and a killed
//! client ends that connection, too. Its control connection also ends, but not earlier: Linux closes the descriptors of
//! a killed program in no guaranteed order, mostly the latest first, which is the data connection. Measured over
//! loopback, the control connection ended 2 to 20 us after the data; for curl, lftp, tnftp and rclone, killed or
//! interrupted, commonly within 1 ms; for an interrupted Python 5 ms; on a host with twice the work that it can do,
//! more than 10 ms once in 20 times. For a killed `curl --limit-rate`, 19 of 20 uploads looked finished to a server
//! that checked at once.
//! Rules: an upload of the announced length, or with an announced end (TLS), is accepted at once. Otherwise the upload
//! waits, from its end and while it is written to the disk, for [`super::Times::hangup`], or for a round trip if that
//! is longer: two packets that leave together arrive within less. If the control connection ends by then, the upload
//! fails, unless the client sent QUIT before: then it just did not wait for the reply. Not covered: an end of the
//! control connection that is lost on the path and retransmitted after that time.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bufwise_socket::options;

use super::running::Link;

/// `TCP_ESTABLISHED`: neither end has closed.
const ESTABLISHED: u8 = 1;
/// Longest wait that a long path causes: half way around the world and back.
const MAX_RTT: Duration = Duration::from_millis(200);
/// Time for the session's thread to read the last lines before the end of the control connection. No client waits then.
const LAST_LINES_TIME: Duration = Duration::from_secs(1);

/// Watches whether the client is still connected.
#[derive(Debug)]
pub(super) struct Presence(TcpStream);

impl Presence {
    /// Watches the client of this control connection.
    pub(super) fn of(control: &TcpStream) -> io::Result<Self> {
        Ok(Self(control.try_clone()?))
    }

    /// Returns how long the end of the control connection may take to follow that of the data, at least `hangup`.
    pub(super) fn timeout(&self, hangup: Duration) -> Duration {
        let rtt = options::tcp_info(&self.0).ok().and_then(|info| info.min_rtt());
        rtt.map_or(hangup, |rtt| Duration::from_micros(rtt.0).min(MAX_RTT).max(hangup))
    }

    /// Whether the client stays connected until `deadline`, or has sent QUIT; false at once when the transfer is
    /// cancelled, which the session's thread does when it reads the control connection's end.
    pub(super) fn lasts(&self, deadline: Instant, link: &Link) -> io::Result<bool> {
        link.cancel.pause(deadline)?;
        if self.has_ended() && !link.has_parted() {
            link.cancel.pause(Instant::now() + LAST_LINES_TIME)?;
        }
        Ok(!link.cancel.is_cancelled() && (link.has_parted() || !self.has_ended()))
    }

    /// Whether the client has ended the control connection; its last lines may still be unread.
    fn has_ended(&self) -> bool {
        options::tcp_info(&self.0).map_or(true, |info| info.state != ESTABLISHED)
    }
}
