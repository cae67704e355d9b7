//! Stock FTP clients with our server, over loopback: bytes identical, sessions in step, also through resumed
//! transfers and TLS.
//!
//! Versions that these were seen with: curl 7.88.1, lftp 4.9.2, wget 1.21.3, ncftp 3.2.6, tnftp 20210827, Python 3.11's
//! ftplib, aria2 1.36, rclone 1.60.1 (Debian 12).

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod aria2;
mod curl;
mod lftp;
mod ncftp;
mod python;
mod rclone;
mod stock;
#[path = "../server/support.rs"]
#[expect(dead_code, reason = "stock programs do the talking here; the server's own tests need more")]
mod support;
mod tnftp;
mod wget;
