use proptest::prelude::*;

use super::*;

fn pasv(text: &str) -> Option<u16> {
    parse_pasv(&Reply::single(227, text)).ok()
}

fn epsv(text: &str) -> Option<u16> {
    parse_epsv(&Reply::single(229, text)).ok()
}

#[test]
fn the_port_of_a_reply_to_pasv_as_servers_write_it() {
    for (text, port) in [
        ("Entering Passive Mode (127,0,0,1,195,80).", Some(50_000)),
        ("Entering Passive Mode 127,0,0,1,195,80", Some(50_000)),
        ("=127,0,0,1,195,80", Some(50_000)),
        ("Passive mode 2: (127,0,0,1,195,80)", Some(50_000)),
        ("Entering Passive Mode (10,0,0,1,0,21)", Some(21)),
        ("Entering Passive Mode (127,0,0,1,0,0)", None),
        ("Entering Passive Mode (127,0,0,1,256,1)", None),
        ("Entering Passive Mode (127,0,0,1,195)", None),
        ("Entering Passive Mode (127,0,0,1,195,80,1)", None),
        ("Entering Passive Mode (127,0,0,1,-1,80)", None),
        ("Entering Passive Mode (127,0,0,1,99999999999999999999,80)", None),
        ("Entering Passive Mode", None),
    ] {
        assert_eq!(pasv(text), port, "{text}");
    }
    assert!(parse_pasv(&Reply::single(500, "(127,0,0,1,195,80)")).is_err());
}

#[test]
fn the_port_of_a_reply_to_epsv_as_servers_write_it() {
    for (text, port) in [
        ("Entering Extended Passive Mode (|||50000|)", Some(50_000)),
        ("Entering Extended Passive Mode (|||50000|).", Some(50_000)),
        ("ok (!!!21!)", Some(21)),
        ("ok (|||0|)", None),
        ("ok (|||65536|)", None),
        ("ok (|||+1|)", None),
        ("ok (|||1)", None),
        ("ok (||1|)", None),
        ("ok (11121)", None),
        ("ok (|2|::1|50000|)", None),
        ("ok |||50000|", None),
        ("ok (", None),
    ] {
        assert_eq!(epsv(text), port, "{text}");
    }
    assert!(parse_epsv(&Reply::single(227, "(|||50000|)")).is_err());
}

#[test]
fn an_error_shows_the_reply_safely() {
    let error = parse_epsv(&Reply::single(229, "\x1b[2J")).unwrap_err().to_string();
    assert_eq!(error, "the peer's reply `229 \\u{1b}[2J` names no port");
    assert!(parse_pasv(&Reply { code: 227, lines: vec![] }).is_err());
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(ip: u32, port in 1_u16..) {
        let at = SocketAddrV4::new(ip.into(), port);
        prop_assert_eq!(parse_pasv(&encode_pasv(at)), Ok(port));
        prop_assert_eq!(parse_epsv(&encode_epsv(port)), Ok(port));
    }

    #[test]
    fn any_text_has_a_port_or_none(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "[(|,0-9)!]{0,40}".prop_map(String::into_bytes),
    ]) {
        for reply in [Reply::single(227, text.clone()), Reply::single(229, text.clone())] {
            for port in [parse_pasv(&reply), parse_epsv(&reply)].into_iter().flatten() {
                prop_assert_ne!(port, 0);
            }
        }
        let _ = (decode_port(&text), decode_eprt(&text));
    }
}
