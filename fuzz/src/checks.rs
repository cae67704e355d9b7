//! Properties that hold for any bytes that a peer sends. Each function panics if its property does not.
//!
//! The fuzz targets beside this file search for such bytes; a test of `bufwise` (`tests/fuzz_seeds.rs`)
//! runs the same functions over the seeds and over damaged copies of them.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bufwise_ftp::wire::address::{encode_epsv, parse_epsv, parse_pasv};
use bufwise_ftp::wire::dialect::{ProbeOffer, parse_buffer_notice};
use bufwise_ftp::wire::listing::{encode_ls, encode_mlsx, parse_list_line, parse_mlsx_line};
use bufwise_ftp::wire::question::Question;
use bufwise_ftp::wire::reply::replay;
use bufwise_ftp::wire::terminal::escape_for_terminal;
use bufwise_ftp::wire::{
    Command, Entry, Facts, Features, Kind, Lines, MAX_LINE, MAX_REPLY, Reply, ReplyReader, WireError,
};
use bufwise_mover::probe::{MAX_TRAIN_PACKET, Packet, Token};

/// The first byte says into what pieces the others are cut.
fn pieces(data: &[u8]) -> (usize, &[u8]) {
    match data {
        [first, rest @ ..] => (1 + usize::from(*first), rest),
        [] => (1, data),
    }
}

/// Reads a server's bytes as a client does. The replies do not depend on where the stream is cut, stay within bounds, and are the
/// same again after they were encoded.
pub fn reply(data: &[u8]) {
    let (piece, stream) = pieces(data);
    let whole = replay(stream, stream.len());
    assert_eq!(replay(stream, piece), whole, "cutting the stream changed the replies");
    for reply in &whole.0 {
        assert!((100..600).contains(&reply.code));
        assert!(reply.lines.iter().map(Vec::len).sum::<usize>() <= MAX_REPLY);
        // Encoding replaces control bytes in the text; encoding it once more changes nothing.
        let encoded = one_reply(reply);
        assert_eq!((encoded.code, encoded.lines.len()), (reply.code, reply.lines.len()));
        assert_eq!(one_reply(&encoded), encoded);
        assert!(!reply.to_string().chars().any(char::is_control));
        let features = Features::from_reply(reply);
        let _ = (features.drs(), features.mlst_facts(), features.hashes(), features.auth_tls());
    }
}

fn one_reply(reply: &Reply) -> Reply {
    let mut reader = ReplyReader::new();
    reader.feed(&reply.encode());
    let read = reader.next_reply().expect("a reply").expect("a whole reply");
    assert_eq!(reader.next_reply(), Ok(None), "one reply became two");
    read
}

/// Reads a client's bytes as a server does. The commands do not depend on where the stream is cut, and are the same again after
/// they were encoded; errors repeat no byte of the client.
pub fn command(data: &[u8]) {
    let (piece, stream) = pieces(data);
    let whole = lines(stream, stream.len());
    assert_eq!(lines(stream, piece), whole, "cutting the stream changed the lines");
    for line in whole.iter().flatten() {
        match Command::parse(line) {
            Ok(command) => {
                assert!(!command.shown().chars().any(char::is_control));
                let encoded = command.encode().expect("what was parsed can be sent");
                let again = lines(&encoded, encoded.len());
                let [Ok(again)] = again.as_slice() else {
                    panic!("one command became {} lines", again.len());
                };
                assert_eq!(Command::parse(again), Ok(command));
            }
            Err(error) => {
                let reply = Reply::from(&error);
                assert!(reply.is_permanent() && one_reply(&reply) == reply);
            }
        }
    }
}

fn lines(stream: &[u8], piece: usize) -> Vec<Result<Vec<u8>, WireError>> {
    let mut lines = Lines::new();
    let mut read = Vec::new();
    for bytes in stream.chunks(piece.max(1)) {
        lines.feed(bytes);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => read.push(Ok(line)),
                Ok(None) => break,
                Err(error @ WireError::ControlByte) => read.push(Err(error)),
                Err(error) => {
                    read.push(Err(error));
                    return read;
                }
            }
        }
        assert!(lines.buffered() <= MAX_LINE + 1, "more than a line is kept");
    }
    read
}

/// Reads a directory's listing as a client does. The entries stay within bounds, and can be listed again.
pub fn listing(data: &[u8]) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_314_600);
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(entry) = parse_mlsx_line(line) {
            within_bounds(&entry);
            let encoded = encode_mlsx(&entry, Facts::default()).expect("what was read can be written");
            let again = parse_mlsx_line(&encoded).expect("what was written can be read");
            // A time is written without its fraction.
            assert_eq!(Entry { modified: entry.modified, ..again }, entry);
        }
        if let Some(entry) = parse_list_line(line, now) {
            within_bounds(&entry);
            let encoded = encode_ls(&entry, now).expect("what was read can be written");
            let again = parse_list_line(&encoded, now).expect("what was written can be read");
            // `ls` writes a link's name and target with an arrow between them.
            let arrow = entry.name.as_os_str().as_encoded_bytes().windows(4).any(|four| four == b" -> ");
            let is_cut = arrow && entry.kind == Kind::Link;
            assert!(is_cut || (again.name == entry.name && again.kind == entry.kind));
        }
        assert!(!escape_for_terminal(line).chars().any(char::is_control));
    }
}

fn within_bounds(entry: &Entry) {
    assert!(entry.size.is_none_or(|size| i64::try_from(size).is_ok()));
    assert!(entry.mode.is_none_or(|mode| mode <= 0o7777));
    if let Some(name) = entry.file_name() {
        let name = name.as_encoded_bytes();
        assert!(
            !name.is_empty()
                && name != b"."
                && name != b".."
                && !name.iter().any(|byte| b"/\0".contains(byte))
        );
    }
}

/// Reads replies that name ports, buffers and features as a client does, and arguments that name them as a server does.
pub fn address(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        for code in [126, 200, 227, 229] {
            let reply = Reply::single(code, line);
            for port in [parse_pasv(&reply), parse_epsv(&reply)].into_iter().flatten() {
                assert_eq!(parse_epsv(&encode_epsv(port)), Ok(port));
                assert_ne!(port, 0);
            }
            if let Ok(offer) = ProbeOffer::from_reply(&reply) {
                assert_eq!(ProbeOffer::from_reply(&offer.reply()), Ok(offer));
            }
            assert!(parse_buffer_notice(&reply).is_none_or(|size| size.0 > 0));
        }
        for verb in ["PORT", "EPRT", "OPTS", "PROB", "SBUF", "EPSV", "MFMT"] {
            if let Ok(command) = Command::parse(&[verb.as_bytes(), b" ", line].concat()) {
                let encoded = command.encode();
                let encoded =
                    encoded.as_ref().map(|bytes| bytes.strip_suffix(b"\r\n").expect("a whole line"));
                assert!(matches!(encoded, Ok(_) | Err(WireError::ArgumentTooLong { .. })));
            }
        }
    }
    // No more lines than a reply may have.
    let lines = data.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).take(1_000);
    let features = Features::from_reply(&one_reply(&Reply::multi(211, "Features:", lines, "End")));
    assert_eq!(Features::from_reply(&one_reply(&features.to_reply())), features);
    assert!(features.hashes().len() >= usize::from(features.hash_selected().is_some()));
}

/// Reads a server's checksums as a client does. The list of algorithms leads to a request that can be sent; an answer leads to
/// the checksum that it contains, or to none.
pub fn checksum(data: &[u8]) {
    let lines: Vec<Vec<u8>> = data.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).take(1_000).collect();
    let features = Features::from_reply(&one_reply(&Reply::multi(211, "Features:", lines.clone(), "End")));
    let Some(question) = Question::best(&features) else { return };
    for command in question.preparation().into_iter().chain([question.command(Path::new("two words"))]) {
        let encoded = command.encode();
        assert!(matches!(encoded, Ok(_) | Err(WireError::ArgumentTooLong { .. })), "{encoded:?}");
    }
    for (line, code) in lines.iter().zip([213, 250].into_iter().cycle()) {
        let reply = one_reply(&Reply::single(code, line.as_slice()));
        if let Some(digest) = question.answer(&reply) {
            assert_eq!(digest.kind(), question.kind);
            assert!(reply.text().to_ascii_lowercase().contains(&digest.to_string()));
        }
    }
}

/// Reads a probe's datagram as both ends do: it is a packet that encodes to the same bytes, or it is rejected.
pub fn packet(data: &[u8]) {
    // Use the token that the datagram claims, so that the checks after that of the token are reached.
    let claimed = data.get(8..24).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).unwrap_or_default();
    if let Ok(packet) = Packet::decode(data, Token::from_bytes(claimed)) {
        let mut out = [0xff; MAX_TRAIN_PACKET];
        assert_eq!(packet.encode(Token::from_bytes(claimed), &mut out), data);
        let mut other = claimed;
        other[15] ^= 1;
        assert!(
            Packet::decode(data, Token::from_bytes(other)).is_err(),
            "another session's packet was taken"
        );
    }
}
