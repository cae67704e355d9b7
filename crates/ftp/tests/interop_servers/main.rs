//! Our client with stock servers: bytes identical, sessions in step, resumed, listed, encrypted where they can.
//!
//! The servers come from the distribution (`scripts/install-ftp-servers`); one that is not there is skipped.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

mod exercise;
mod servers;
mod sums;
mod trees;

use bufwise_mover::hash::HashKind;
use exercise::exercise;
use servers::Server;
use sums::sums;
use trees::trees;

#[test]
fn pyftpdlib() {
    let Some(server) = Server::pyftpdlib() else { return };
    exercise(&server);
}

#[test]
fn pyftpdlib_trees() {
    let Some(server) = Server::pyftpdlib() else { return };
    trees(&server);
}

#[test]
fn root_vsftpd() {
    let Some(server) = Server::vsftpd() else { return };
    exercise(&server);
}

#[test]
fn root_vsftpd_trees() {
    let Some(server) = Server::vsftpd() else { return };
    trees(&server);
}

#[test]
fn root_proftpd() {
    let Some(server) = Server::proftpd() else { return };
    exercise(&server);
}

#[test]
fn root_proftpd_trees() {
    let Some(server) = Server::proftpd() else { return };
    trees(&server);
}

#[test]
fn root_pure_ftpd() {
    let Some(server) = Server::pure_ftpd() else { return };
    exercise(&server);
}

#[test]
fn root_pure_ftpd_trees() {
    let Some(server) = Server::pure_ftpd() else { return };
    trees(&server);
}

#[test]
fn root_globus_gridftp_server() {
    let Some(server) = Server::globus() else { return };
    exercise(&server);
}

#[test]
fn root_globus_gridftp_server_trees() {
    let Some(server) = Server::globus() else { return };
    trees(&server);
}

#[test]
fn root_proftpd_sums() {
    let Some(server) = Server::proftpd() else { return };
    if server.sum.is_none() {
        return bufwise_trial::skip("proftpd's mod_digest is not installed (make peers)");
    }
    sums(&server, Some(HashKind::Sha256));
}

#[test]
fn pyftpdlib_has_no_sums() {
    let Some(server) = Server::pyftpdlib() else { return };
    sums(&server, None);
}
