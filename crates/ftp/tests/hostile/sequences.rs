//! Our server, and commands in any order, all sent at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bufwise_ftp::wire::ReplyReader;
use proptest::prelude::*;

use crate::served::{Served, TEST_TIMEOUT, serve};

/// The codes of the final replies to these lines, up to the end of the connection.
fn codes(served: &Served, lines: &[Vec<u8>]) -> Vec<u16> {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let all: Vec<u8> = lines.iter().flat_map(|line| line.iter().chain(b"\r\n")).copied().collect();
    stream.write_all(&all).unwrap();
    let (mut bytes, mut codes, mut reader) = (Vec::new(), Vec::new(), ReplyReader::new());
    stream.read_to_end(&mut bytes).unwrap();
    reader.feed(&bytes);
    while let Some(reply) = reader.next_reply().unwrap() {
        codes.extend((!reply.is_preliminary()).then_some(reply.code));
    }
    codes
}

/// Commands that a program may send at any time; no client ever comes to a data port.
const COMMANDS: &[&str] = &[
    "NOOP",
    "PWD",
    "SYST",
    "FEAT",
    "HELP",
    "HELP RETR",
    "STAT",
    "STAT d",
    "TYPE I",
    "TYPE A",
    "TYPE E",
    "MODE S",
    "MODE Z",
    "STRU F",
    "STRU R",
    "REST 5",
    "REST -5",
    "SIZE f",
    "SIZE ../f",
    "MDTM f",
    "MLST",
    "MLST f",
    "CWD d",
    "CWD ..",
    "CDUP",
    "MKD d",
    "RMD d",
    "RNFR f",
    "RNTO g",
    "DELE g",
    "EPSV",
    "EPSV 3",
    "EPSV ALL",
    "PASV",
    "PORT 127,0,0,1,0,22",
    "EPRT |1|127.0.0.2|50000|",
    "RETR f",
    "RETR none",
    "STOR f",
    "APPE f",
    "LIST",
    "LIST -la d",
    "MLSD",
    "NLST none",
    "ABOR",
    "ALLO 5",
    "OPTS UTF8 ON",
    "OPTS MLST size;",
    "OPTS HASH SHA-256",
    "OPTS RETR x",
    "HASH f",
    "SITE HELP",
    "SBUF 65536",
    "SBUF 0",
    "PROB x",
    "MFMT 20260101000000 f",
    "ACCT x",
    "PROT P",
    "PBSZ 0",
    "CCC",
    "XYZZY",
    "xpwd",
];

fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(COMMANDS).prop_map(|command| command.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|mut line| {
            line.retain(|byte| *byte != b'\n' && *byte < 0xf0);
            // Avoid the few commands that end the session or have no reply of their own.
            line.insert(0, b'.');
            line
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_command_has_one_final_reply_and_the_session_ends_in_step(lines in prop::collection::vec(line(), 0..28)) {
        // No client will come to the data ports.
        let served = serve(|config| config.times.connect = Duration::from_millis(1));
        served.put("f", b"some bytes");
        let mut all = vec![b"USER anonymous".to_vec(), b"PASS x".to_vec()];
        all.extend(lines);
        all.push(b"QUIT".to_vec());
        let codes = codes(&served, &all);
        // The greeting is one more.
        prop_assert_eq!(codes.len(), all.len() + 1, "{:?}", codes);
        prop_assert_eq!(&codes[..3], &[220, 331, 230]);
        prop_assert_eq!(codes.last(), Some(&221));
    }
}
