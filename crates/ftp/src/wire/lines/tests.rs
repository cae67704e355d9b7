use proptest::prelude::*;

use super::*;

/// The lines of a stream that is fed in pieces cut at `cuts`, up to the first error that lasts.
fn read(mut lines: Lines, stream: &[u8], cuts: &[usize]) -> Vec<Result<Vec<u8>, WireError>> {
    let mut out = Vec::new();
    let mut rest = stream;
    for cut in cuts.iter().copied().chain([stream.len()]) {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        rest = after;
        lines.feed(piece);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => out.push(Ok(line)),
                Ok(None) => break,
                Err(error @ WireError::ControlByte) => out.push(Err(error)),
                Err(error) => {
                    out.push(Err(error));
                    return out;
                }
            }
        }
        assert!(lines.buffered() <= MAX_LINE + 1, "more than a line is kept");
    }
    out
}

fn strict(stream: &[u8]) -> Vec<Result<Vec<u8>, WireError>> {
    read(Lines::new(), stream, &[])
}

fn line(text: &[u8]) -> Result<Vec<u8>, WireError> {
    Ok(text.to_vec())
}

#[test]
fn lines_end_in_lf_with_or_without_cr() {
    assert_eq!(strict(b"USER a\r\nPASS b\n\r\nQUI"), [line(b"USER a"), line(b"PASS b"), line(b"")]);
}

#[test]
fn a_line_with_nul_or_lone_cr_is_refused_and_the_next_one_read() {
    let wrong = || Err(WireError::ControlByte);
    assert_eq!(strict(b"RETR a\0b\r\nNOOP\r\n"), [wrong(), line(b"NOOP")]);
    assert_eq!(strict(b"RETR a\rDELE b\r\nNOOP\r\n"), [wrong(), line(b"NOOP")]);
    assert_eq!(strict(b"RETR a\r\r\nNOOP\r\n"), [wrong(), line(b"NOOP")]);
    let lenient = read(Lines::lenient(MAX_LINE), b"220 a\rb\0c\r\r\r\n", &[]);
    assert_eq!(lenient, [line(b"220 a\rb\0c")]);
}

#[test]
fn a_line_at_the_limit_is_read_and_one_beyond_ends_the_stream() {
    let longest = vec![b'x'; MAX_LINE];
    assert_eq!(strict(&[&longest[..], b"\r\n"].concat()), [line(&longest)]);
    let too_long = WireError::LineTooLong { limit: MAX_LINE };
    let mut lines = Lines::new();
    lines.feed(&longest);
    assert_eq!(lines.next_line(), Ok(None));
    lines.feed(b"xx");
    assert_eq!(lines.next_line(), Err(too_long.clone()));
    lines.feed(b"\r\nQUIT\r\n");
    assert_eq!((lines.next_line(), lines.buffered()), (Err(too_long.clone()), 0));
    lines.clear();
    assert_eq!(lines.next_line(), Err(too_long.clone()));
    assert_eq!(strict(&[b'\r'; MAX_LINE + 2]), [Err(too_long)]);
}

#[test]
fn telnet_commands_are_dropped_wherever_they_stand() {
    for (stream, out) in [
        (&b"\xff\xfd\x03USER\xff\xf1 a\r\n"[..], &b"USER a"[..]),
        (b"\xff\xf4\xff\xf2ABOR\r\n", b"ABOR"),
        (b"RETR \xff\xff\r\n", b"RETR \xff"),
        (b"RETR \xff\xfa\x01data\xff\xff\xff\xf0x\r\n", b"RETR x"),
        // This is no telnet command, but a name with 0xFF from a peer that does not double it.
        (b"RETR \xffx\r\n", b"RETR \xffx"),
        // A command that never ends does not swallow the line break.
        (b"RETR \xff\xfadata\r\n", b"RETR "),
        (b"RETR x\xff\xfb\n", b"RETR x"),
    ] {
        assert_eq!(strict(stream), [line(out)], "{}", stream.escape_ascii());
    }
}

#[test]
fn clear_forgets_what_came_before_tls() {
    let mut lines = Lines::new();
    lines.feed(b"USER victim\r\nPASS\xff");
    lines.clear();
    assert_eq!((lines.buffered(), lines.next_line()), (0, Ok(None)));
    lines.feed(b"\xf4NOOP\r\n");
    let next = lines.next_line().unwrap().unwrap();
    assert_eq!(next, b"\xf4NOOP");
}

/// Bytes that matter to the parser more often than by chance.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        3 => prop::sample::select(&b"\r\n\0\xff\xf0\xf4\xfa\xfb\xfe "[..]),
        5 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..300)
}

proptest! {
    #[test]
    fn where_the_bytes_are_cut_does_not_matter(
        stream in stream(),
        cuts in prop::collection::vec(0_usize..40, 0..20),
    ) {
        prop_assert_eq!(read(Lines::new(), &stream, &cuts), strict(&stream));
        let lenient = || Lines::lenient(64);
        prop_assert_eq!(read(lenient(), &stream, &cuts), read(lenient(), &stream, &[]));
    }

    #[test]
    fn no_line_has_a_line_break_or_a_nul(stream in stream()) {
        for line in strict(&stream).into_iter().flatten() {
            prop_assert!(!line.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')));
        }
    }

    #[test]
    fn doubling_0xff_undoes_the_stripping(text in prop::collection::vec(any::<u8>(), 0..100)) {
        let text: Vec<u8> = text.into_iter().filter(|byte| !matches!(byte, 0 | b'\r' | b'\n')).collect();
        let doubled: Vec<u8> =
            text.iter().flat_map(|byte| vec![*byte; 1 + usize::from(*byte == IAC)]).chain(*b"\r\n").collect();
        prop_assert_eq!(strict(&doubled), [line(&text)]);
    }
}
