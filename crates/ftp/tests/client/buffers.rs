//! SBUF and 126: only with a server that announced them and took the offer.

use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;

use crate::scripted::{Client, Script, Server, pattern};

const DRS: &[&str] = &["SBUF", "DRS SBUF;NOTIFY;PROBE;"];

#[test]
fn the_client_opts_in_only_where_the_server_announced_it() {
    for (features, opted) in [(DRS, 1), (&["SBUF"][..], 0), (&["DRS SBUF;"][..], 0)] {
        let server = Server::start(Script { content: pattern(10), features, ..Script::default() });
        Client::of(&server).get("file").unwrap();
        let opts = server.heard().iter().filter(|line| line.starts_with("OPTS DRS NOTIFY=1")).count();
        assert_eq!(opts, opted, "{features:?}");
    }
}

#[test]
fn a_receivers_126_sizes_our_send_buffer() {
    let middle = b"126 Buffer Size (300000)\r\n";
    let server = Server::start(Script { features: DRS, middle, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.policy = PolicyKind::Drs;
    let put = client.put_with(&mut client.worker(), "up", &pattern(2_000_000)).unwrap();
    assert_eq!((put.notes.notices_received, put.notes.last_notice), (1, Some(Bytes(300_000))));
    assert!(server.stored("up").unwrap() == pattern(2_000_000));
}

#[test]
fn requests_that_nobody_answers_leave_the_session_in_step() {
    // This server reads commands only between transfers, as stock servers do, and then answers SBUF by 502 or 200.
    for answer in [&b"502 what\r\n"[..], b"200 SBUF\r\n", b"126 Buffer Size (1)\r\n"] {
        let answers = [("SBUF", answer.to_vec())].into();
        let content = pattern(20_000_000);
        let server =
            Server::start(Script { content: content.clone(), features: DRS, answers, ..Script::default() });
        let mut client = Client::of(&server);
        client.settings.policy = PolicyKind::DrsFtp;
        let mut worker = client.worker();
        for name in ["one", "two"] {
            let got = client.get_with(&mut worker, name).unwrap();
            assert!(client.got(name).unwrap() == content);
            assert!(got.notes.requests_sent > 0, "the receive buffer grew, and the sender's should");
        }
        assert_eq!(server.count("USER"), 1, "{:?}", server.heard());
    }
}

#[test]
fn a_fixed_buffer_is_announced_once_before_the_transfer() {
    let answers = [("SBUF", b"200 fine\r\n".to_vec())].into();
    let features = &["SBUF"];
    let server = Server::start(Script { content: pattern(10), features, answers, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.policy = PolicyKind::Fixed(Bytes(65_536));
    client.get("file").unwrap();
    let heard = server.heard();
    let at = |words: &str| heard.iter().position(|line| line.starts_with(words)).unwrap();
    assert!(at("SBUF 65536") < at("EPSV") && at("TYPE I") < at("EPSV"), "{heard:?}");
}
