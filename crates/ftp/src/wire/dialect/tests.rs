use proptest::prelude::*;

use super::*;

#[test]
fn a_notice_is_read_strictly() {
    assert_eq!(buffer_notice(Bytes(65_536)).encode(), b"126 Buffer Size (65536)\r\n");
    for (code, text) in [
        (126, "Buffer Size (0)"),
        (126, "Buffer Size (-1)"),
        (126, "Buffer Size (18446744073709551616)"),
        (126, "Buffer Size 65536"),
        (126, "2 data connections"),
        (200, "Buffer Size (65536)"),
    ] {
        assert_eq!(parse_buffer_notice(&Reply::single(code, text)), None, "{code} {text}");
    }
    let two = Reply { code: 126, lines: vec![b"Buffer Size (1)".to_vec(), b"Buffer Size (1)".to_vec()] };
    assert_eq!(parse_buffer_notice(&two), None);
}

#[test]
fn features_that_are_unknown_are_skipped() {
    let feature = DrsFeature::decode("notify;x=1; PROBE ;;");
    assert_eq!(feature, DrsFeature { sbuf: false, notify: true, probe: true });
    assert_eq!(feature.to_string(), "NOTIFY;PROBE;");
}

#[test]
fn an_offer_that_is_none_shows_no_token() {
    let token = "00112233445566778899aabbccddeeff";
    for text in [
        "Probe",
        "Probe (|||0|00112233445566778899aabbccddeeff|)",
        "Probe (|||9|00112233445566778899aabbccddeeff)",
    ] {
        let error = ProbeOffer::from_reply(&Reply::single(200, text)).unwrap_err().to_string();
        assert!(!error.contains(token), "{error}");
    }
    assert!(ProbeOffer::from_reply(&Reply::single(502, format!("Probe (|||9|{token}|)"))).is_err());
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(size in 1_u64.., port in 1_u16.., token: [u8; 16], drs: [bool; 3]) {
        prop_assert_eq!(parse_buffer_notice(&buffer_notice(Bytes(size))), Some(Bytes(size)));
        let offer = ProbeOffer { port, token: Token::from_bytes(token) };
        prop_assert_eq!(ProbeOffer::from_reply(&offer.reply()), Ok(offer));
        let [sbuf, notify, probe] = drs;
        let feature = DrsFeature { sbuf, notify, probe };
        prop_assert_eq!(DrsFeature::decode(&feature.to_string()), feature);
    }

    #[test]
    fn any_text_is_an_offer_or_none(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "\\(\\|\\|\\|[0-9]{1,6}\\|[0-9a-g+]{30,34}\\|\\)".prop_map(String::into_bytes),
    ]) {
        let reply = Reply::single(200, [b"Probe ", &text[..]].concat());
        if let Ok(offer) = ProbeOffer::from_reply(&reply) {
            prop_assert_eq!(ProbeOffer::from_reply(&offer.reply()), Ok(offer));
        }
        let _ = parse_buffer_notice(&Reply::single(126, text));
    }
}
