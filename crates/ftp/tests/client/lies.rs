//! Servers whose replies contradict the bytes they send.

use std::fs;
use std::path::Path;

use bufwise_ftp::client::{ClientError, Outcome};
use bufwise_mover::Writer;
use bufwise_mover::hash::{HashKind, Hasher};

use crate::scripted::{Client, Script, Server, pattern};

#[test]
fn a_file_of_another_size_than_announced_is_no_file() {
    for (size, words) in [("213 11\r\n", "11 bytes"), ("213 9\r\n", "9 bytes")] {
        let answers = [("SIZE", size.into())].into();
        let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
        Client::of(&server).fails("file", words);
    }
}

#[test]
fn without_a_size_the_end_of_the_stream_counts() {
    for size in ["500 unknown\r\n", "213 many\r\n", "213 -1\r\n", "213 99999999999999999999999\r\n"] {
        let answers = [("SIZE", size.into())].into();
        let server = Server::start(Script { content: pattern(100_000), answers, ..Script::default() });
        let client = Client::of(&server);
        client.get("file").unwrap();
        assert!(client.got("file").unwrap() == pattern(100_000), "{size}");
    }
}

#[test]
fn without_a_size_the_bytes_that_the_beginning_announces_count() {
    let get = |begin| {
        let answers = [("SIZE", b"500 unknown\r\n".to_vec())].into();
        let server =
            Server::start(Script { content: pattern(10), answers, begin: Some(begin), ..Script::default() });
        (Client::of(&server), server)
    };
    let (client, _server) = get(b"150-Opening\r\n150 data connection for file (11 bytes).\r\n");
    client.fails("file", "11 bytes");
    for begin in
        ["150 file (10 bytes)\r\n", "150 file (many bytes)\r\n", "150 file (7)\r\n", "150 (0 bytes\r\n"]
    {
        let (client, _server) = get(begin.as_bytes());
        client.get("file").unwrap();
        assert_eq!(client.got("file").unwrap(), pattern(10), "{begin}");
    }
}

#[test]
fn a_partial_file_longer_than_the_servers_is_begun_anew() {
    let server = Server::start(Script { content: pattern(1_000), ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.resume = true;
    fs::write(client.path(".file.bufwise-part"), pattern(2_000)).unwrap();
    assert_eq!(client.get("file").unwrap().resumed_from, 0);
    assert_eq!(client.got("file").unwrap(), pattern(1_000));
}

#[test]
fn a_server_that_cannot_resume_sends_it_whole() {
    let answers = [("REST", b"502 no\r\n".to_vec())].into();
    let server = Server::start(Script { content: pattern(200_000), answers, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.resume = true;
    fs::write(client.path(".file.bufwise-part"), &pattern(200_000)[..100_000]).unwrap();
    assert_eq!(client.get("file").unwrap().resumed_from, 0);
    assert!(client.got("file").unwrap() == pattern(200_000));
}

#[test]
fn a_refusal_in_the_end_is_believed_although_the_bytes_are_there() {
    let end = Some(&b"451 I read a bad sector\r\n"[..]);
    let server = Server::start(Script { content: pattern(10), end, ..Script::default() });
    Client::of(&server).fails("file", "451 I read a bad sector");
}

#[test]
fn a_wrong_checksum_leaves_nothing_behind() {
    let zeros = "0".repeat(64);
    for start in ["213", "213-Computing\r\n213"] {
        let answer = format!("{start} SHA-256 0-9 {zeros} file\r\n").into_bytes();
        let (content, answers) = (pattern(10), [("HASH", answer)].into());
        let features = &["HASH SHA-256*"];
        let server = Server::start(Script { content, answers, features, ..Script::default() });
        let mut client = Client::of(&server);
        client.settings.checksum = true;
        client.fails("file", "SHA-256 checksums differ");
        assert_eq!(client.kept("file"), None);
    }
}

#[test]
fn a_file_that_is_there_is_compared_by_its_checksum_too() {
    let mut hasher = Hasher::new(HashKind::Sha256);
    hasher.update(&pattern(200_000));
    let answer = format!("213 SHA-256 0-199999 {} file\r\n", hasher.finish()).into_bytes();
    let (content, answers) = (pattern(200_000), [("HASH", answer)].into());
    let features = &["HASH SHA-256*"];
    let server = Server::start(Script { content, answers, features, ..Script::default() });
    let mut client = Client::of(&server);
    (client.settings.resume, client.settings.checksum) = (true, true);
    // A file with the same size and end, but another beginning.
    let mut other = pattern(200_000);
    other[0] ^= 1;
    fs::write(client.path("file"), &other).unwrap();
    let got = client.get("file").unwrap();
    assert!(got.report.is_some() && got.checksum.is_some());
    assert!(client.got("file").unwrap() == pattern(200_000));
    let again = client.get("file").unwrap();
    assert!(again.report.is_none() && again.checksum.is_some(), "it is there");
}

#[test]
fn an_upload_with_a_wrong_checksum_is_removed() {
    let answer = format!("213 SHA-256 0-9 {} up\r\n", "0".repeat(64)).into_bytes();
    let features = &["HASH SHA-256*"];
    let server = Server::start(Script { answers: [("HASH", answer)].into(), features, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.checksum = true;
    let error = client.put_with(&mut client.worker(), "up", &pattern(10)).unwrap_err();
    assert!(matches!(error, ClientError::Checksum { .. }), "{error}");
    assert!(server.heard().iter().any(|line| line == "DELE .up.bufwise-part") && server.count("RNFR") == 0);
}

#[test]
fn an_answer_without_a_checksum_is_none() {
    for answer in ["250 fine\r\n", "250 0123\r\n", "500 no\r\n", "450 busy\r\n", "150 wait\r\n250 \r\n"] {
        let (content, answers) = (pattern(10), [("HASH", answer.into())].into());
        let server =
            Server::start(Script { content, answers, features: &["HASH MD5*"], ..Script::default() });
        let mut client = Client::of(&server);
        client.settings.checksum = true;
        client.fails("file", "HASH file");
    }
}

#[test]
fn a_checksum_that_cannot_be_had_is_said() {
    let server = Server::start(Script { content: pattern(10), ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.checksum = true;
    client.fails("file", "leave out --checksum");
}

/// Gets 100,000 bytes into a pipe from a server with these features that answers HASH with `digits`; returns what came, too.
fn pipe(features: &'static [&'static str], digits: &str) -> (Result<Outcome, ClientError>, Vec<u8>) {
    let answer = format!("213 SHA-256 0-99999 {digits} file\r\n").into_bytes();
    let (content, answers) = (pattern(100_000), [("HASH", answer)].into());
    let server = Server::start(Script { content, answers, features, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.checksum = true;
    let mut into = Writer(Vec::new());
    let got = client.worker().get_into(Path::new("file"), &mut into, |_| ());
    (got, into.0)
}

#[test]
fn what_goes_into_a_pipe_is_summed_and_compared() {
    let mut hasher = Hasher::new(HashKind::Sha256);
    hasher.update(&pattern(100_000));
    let digest = hasher.finish();
    let (got, bytes) = pipe(&["HASH SHA-256*;MD5"], &digest.to_string());
    assert_eq!(got.unwrap().checksum, Some(digest));
    assert!(bytes == pattern(100_000));
    let (got, _) = pipe(&["HASH SHA-256*;MD5"], &"0".repeat(64));
    assert!(matches!(got, Err(ClientError::Checksum { .. })), "{got:?}");
    let (got, bytes) = pipe(&[], "");
    assert!(matches!(got, Err(ClientError::NoChecksum)), "{got:?}");
    assert!(bytes.is_empty(), "said before the first byte");
}

#[test]
fn an_upload_that_arrived_shorter_fails() {
    let answers = [("SIZE", b"213 5\r\n".to_vec())].into();
    let server = Server::start(Script { answers, ..Script::default() });
    let client = Client::of(&server);
    let error = client.put_with(&mut client.worker(), "up", &pattern(10)).unwrap_err();
    assert!(error.to_string().contains("should have 10 bytes and has 5"), "{error}");
    assert_eq!(server.stored("up"), None);
}

#[test]
fn an_upload_that_cannot_get_its_name_says_what_to_do() {
    let answers = [("RNFR", b"550 never\r\n".to_vec())].into();
    let server = Server::start(Script { answers, ..Script::default() });
    let client = Client::of(&server);
    let error = client.put_with(&mut client.worker(), "up", &pattern(10)).unwrap_err();
    assert!(
        matches!(error, ClientError::Rename { .. }) && error.to_string().contains("--in-place"),
        "{error}"
    );
}

#[test]
fn in_place_an_upload_has_its_name_from_the_first_byte() {
    let server = Server::start(Script::default());
    let mut client = Client::of(&server);
    client.settings.in_place = true;
    client.put_with(&mut client.worker(), "up", &pattern(10)).unwrap();
    assert_eq!(server.stored("up").unwrap(), pattern(10));
    assert!(server.heard().contains(&"STOR up".to_owned()), "{:?}", server.heard());
    assert_eq!(server.count("RNFR"), 0);
}

#[test]
fn a_full_disk_is_the_reason_given_and_not_tried_again() {
    let end = Some(&b"452 disk full\r\n"[..]);
    let server = Server::start(Script { end, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 5;
    let error = client.put_with(&mut client.worker(), "up", &pattern(100_000)).unwrap_err();
    assert!(error.to_string().contains("452 disk full"), "{error}");
    assert_eq!(server.count("STOR"), 1);
}
