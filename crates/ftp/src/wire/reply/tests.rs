use proptest::prelude::*;

use super::*;

fn all(stream: &[u8]) -> Vec<Reply> {
    let (replies, error) = replay(stream, stream.len());
    assert_eq!(error, None, "{}", stream.escape_ascii());
    replies
}

fn reply(code: u16, lines: &[&str]) -> Reply {
    Reply { code, lines: lines.iter().map(|line| line.as_bytes().to_vec()).collect() }
}

#[test]
fn one_line_replies() {
    assert_eq!(all(b"220 ready\r\n"), [reply(220, &["ready"])]);
    assert_eq!(
        all(b"150 ok\r\n126 Buffer Size (65536)\r\n226 done\r\n"),
        [reply(150, &["ok"]), reply(126, &["Buffer Size (65536)"]), reply(226, &["done"])]
    );
    // Without a text, without CR, and after the empty line that some banners end in.
    assert_eq!(
        all(b"226\r\n200 \n\r\n331 x\r\n"),
        [reply(226, &[""]), reply(200, &[""]), reply(331, &["x"])]
    );
}

#[test]
fn replies_of_several_lines_as_servers_write_them() {
    for (server, stream, lines) in [
        (
            "RFC 959",
            "123-First line\r\nSecond line\r\n  234 A line\r\n123 The last\r\n",
            &["First line", "Second line", " 234 A line", "The last"][..],
        ),
        (
            "vsftpd",
            "123-Features:\r\n EPRT\r\n REST STREAM\r\n123 End\r\n",
            &["Features:", "EPRT", "REST STREAM", "End"],
        ),
        (
            "proftpd",
            "123-Features:\r\n123-EPRT\r\n123-REST STREAM\r\n123 End\r\n",
            &["Features:", "EPRT", "REST STREAM", "End"],
        ),
        (
            "banner",
            "123-\r\n\r\n220-is not ours\r\n220 nor this\r\n1234 nor this\r\n123- x\r\n123 \r\n",
            &["", "", "220-is not ours", "220 nor this", "1234 nor this", " x", ""],
        ),
        ("last line is a code alone", "123-a\r\n123\r\n", &["a", ""]),
    ] {
        assert_eq!(all(stream.as_bytes()), [reply(123, lines)], "{server}");
    }
}

#[test]
fn what_is_no_reply_ends_the_stream() {
    for stream in [
        "hello\r\n",
        "1000 x\r\n",
        "099 x\r\n",
        "600 x\r\n",
        "99999999999 x\r\n",
        "22 x\r\n",
        "220x\r\n",
        " 220 x\r\n",
        "HTTP/1.1 400 Bad Request\r\n",
        "+20 x\r\n",
        "٢٢٠ x\r\n",
    ] {
        let mut reader = ReplyReader::new();
        reader.feed(stream.as_bytes());
        let error = reader.next_reply().unwrap_err();
        assert!(matches!(&error, WireError::NotAReply { line } if stream.contains(line.as_str())), "{error}");
        reader.feed(b"220 fine\r\n");
        assert_eq!(reader.next_reply(), Err(error));
    }
    let (_, error) = replay(b"\x1b[2J\x07\r\n", 99);
    assert_eq!(error.unwrap().to_string(), "the peer sent `\\u{1b}[2J\\u{7}`, which is no FTP reply");
}

#[test]
fn a_reply_without_end_is_cut_off() {
    let endless_line = vec![b'2'; MAX_REPLY + 2];
    assert_eq!(replay(&endless_line, 1_000).1, Some(WireError::LineTooLong { limit: MAX_REPLY }));
    let endless_lines = b"211-\r\n".iter().chain(b"\n".iter().cycle().take(MAX_REPLY)).copied();
    assert_eq!(replay(&endless_lines.collect::<Vec<u8>>(), 1_000).1, Some(WireError::ReplyTooLong));
    let empty_lines_before = vec![b'\n'; MAX_REPLY];
    assert_eq!(replay(&empty_lines_before, 1_000).1, Some(WireError::ReplyTooLong));
    let long_lines = [&b"211-\r\n"[..], &[&[b'x'; 1_000][..], b"\r\n"].concat().repeat(64)].concat();
    assert_eq!(replay(&long_lines, 1_000), (vec![], None));
    assert_eq!(
        replay(&[&long_lines[..], &[b'x'; 3_000], b"\n"].concat(), 1_000).1,
        Some(WireError::ReplyTooLong)
    );
    // Each reply counts for itself.
    let many = b"200 ok\r\n".repeat(3_000);
    assert_eq!(all(&many).len(), 3_000);
}

#[test]
fn a_text_never_becomes_another_reply() {
    let hostile = Reply::multi(
        257,
        "a\r\n227 Entering Passive Mode (10,0,0,1,0,21)",
        [b"257 end".to_vec(), b"257-x".to_vec(), b"x\0\n".to_vec(), b"".to_vec()],
        "b\n500 c",
    );
    let read = all(&hostile.encode());
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].code, 257);
    assert_eq!(read[0].lines[0], b"a??227 Entering Passive Mode (10,0,0,1,0,21)");
    assert_eq!(read[0].lines[1..5], [&b"257 end"[..], b"257-x", b"x??", b""]);
    assert_eq!(read[0].text(), "b?500 c");
}

#[test]
fn what_cannot_be_a_reply_is_still_encoded_as_one() {
    let none = Reply { code: 0, lines: vec![] };
    assert_eq!(all(&none.encode()), [reply(100, &[""])]);
    let huge = Reply::single(u16::MAX, "x");
    assert_eq!(all(&huge.encode()), [reply(599, &["x"])]);
}

#[test]
fn a_reply_knows_its_kind_and_shows_itself_safely() {
    let kinds = |code| {
        let reply = Reply::single(code, "");
        [
            reply.is_preliminary(),
            reply.is_completion(),
            reply.is_intermediate(),
            reply.is_transient(),
            reply.is_permanent(),
        ]
    };
    for (code, kind) in [(126, 0), (226, 1), (331, 2), (425, 3), (550, 4)] {
        assert_eq!(kinds(code), std::array::from_fn(|at| at == kind), "{code}");
    }
    let shown = Reply::multi(220, "a\x1b[31m", [b"\xff".to_vec()], "c").to_string();
    assert_eq!(shown, "220 a\\u{1b}[31m \\xff c");
}

#[test]
fn clear_forgets_what_came_before_tls() {
    let mut reader = ReplyReader::new();
    reader.feed(b"234-go on\r\n230 you are logged in\r\n331");
    assert_eq!(reader.next_reply(), Ok(None));
    reader.clear();
    reader.feed(b"220 fresh\r\n");
    assert_eq!(reader.next_reply(), Ok(Some(reply(220, &["fresh"]))));
}

/// Lines of every sort that a text can have.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("FTP cannot carry these", |byte| !matches!(byte, 0 | b'\r' | b'\n'));
    prop_oneof![
        prop::collection::vec(byte, 0..40),
        "[ -]?[1-6][0-9]{2,3}[ -]?[^\r\n\0]{0,5}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn a_reply_is_read_as_it_was_encoded(
        codes in prop::collection::vec((100_u16..600, prop::collection::vec(text(), 1..6)), 1..4),
        piece in 1_usize..50,
    ) {
        let replies: Vec<Reply> = codes.into_iter().map(|(code, lines)| Reply { code, lines }).collect();
        let bytes: Vec<u8> = replies.iter().flat_map(Reply::encode).collect();
        prop_assert_eq!(replay(&bytes, piece), (replies, None));
    }

    #[test]
    fn where_the_bytes_are_cut_does_not_matter(
        stream in "([1-5][0-9]{2}[ -]?|[ \\PC]|\r?\n|\u{ff}){0,60}",
        piece in 1_usize..50,
    ) {
        prop_assert_eq!(replay(stream.as_bytes(), piece), replay(stream.as_bytes(), usize::MAX));
    }

    #[test]
    fn any_bytes_are_replies_or_an_error(stream in prop::collection::vec(any::<u8>(), 0..500)) {
        for reply in replay(&stream, 7).0 {
            prop_assert!((100..600).contains(&reply.code) && !reply.lines.is_empty());
        }
    }
}
