use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, UNIX_EPOCH};

use bufwise_mover::probe::Token;
use proptest::prelude::*;

use super::*;
use crate::wire::Lines;
use crate::wire::error::{CommandError, MAX_LINE, WireError};
use crate::wire::reply::Reply;

fn parse(line: &str) -> Result<Command, CommandError> {
    Command::parse(line.as_bytes())
}

fn code(line: &str) -> u16 {
    parse(line).expect_err(line).code
}

#[test]
fn what_programs_send_is_understood() {
    let path = PathBuf::from;
    for (line, command) in [
        ("user anonymous", Command::User("anonymous".into())),
        ("PASS", Command::Pass(Secret::new(""))),
        ("PASS a b ", Command::Pass(Secret::new("a b "))),
        ("AUTH tls-c", Command::Auth(AuthKind::Tls)),
        ("AUTH SSL", Command::Auth(AuthKind::Other("SSL".into()))),
        ("PBSZ 0", Command::Pbsz(0)),
        ("prot p", Command::Prot(Protection::Private)),
        ("TYPE L 8", Command::Type(TransferType::Image)),
        ("TYPE a n", Command::Type(TransferType::Ascii)),
        ("MODE s", Command::Mode('S')),
        ("STRU R", Command::Stru(Structure::Other('R'))),
        ("ALLO 100 R 200", Command::Allo(100)),
        ("REST 9223372036854775808", Command::Rest(1 << 63)),
        ("EPSV", Command::Epsv(EpsvArgument::Any)),
        ("EPSV all", Command::Epsv(EpsvArgument::All)),
        ("PORT 127,0,0,1,4,1", Command::Port("127.0.0.1:1025".parse().unwrap())),
        ("EPRT |2|::1|1025|", Command::Eprt("[::1]:1025".parse().unwrap())),
        ("LIST", Command::List(None)),
        ("LIST -l", Command::List(None)),
        ("LIST -la", Command::ListAll),
        ("LIST -a -l some dir", Command::List(Some(path("some dir")))),
        ("NLST", Command::Nlst(None)),
        ("STAT -l x", Command::Stat(Some(path("x")))),
        ("XPWD", Command::Pwd),
        ("XCUP", Command::Cdup),
        ("RETR  two spaces ", Command::Retr(path(" two spaces "))),
        ("MLSD", Command::Mlsd(None)),
        ("OPTS utf8 on", Command::Opts(Opts::Utf8(true))),
        ("OPTS UTF8", Command::Opts(Opts::Utf8(true))),
        ("OPTS MLST", Command::Opts(Opts::Mlst(Facts::decode(b"")))),
        ("OPTS MLST Type;SIZE;x.y;", Command::Opts(Opts::Mlst(Facts::decode(b"type;size")))),
        ("OPTS HASH sha-256", Command::Opts(Opts::Hash(Some("SHA-256".into())))),
        ("OPTS DRS NOTIFY=1;", Command::Opts(Opts::Drs { notify: true })),
        ("OPTS RETR Parallelism=1,1,1;", Command::Opts(Opts::Other("RETR".into()))),
        ("SBUF 65536", Command::Sbuf(Bytes(65_536))),
        ("PROB", Command::Prob(None)),
        ("CLNT some client", Command::Unknown("CLNT".into())),
        ("verbwithoutanyendthatcanbeseen", Command::Unknown("VERBWITHOUTANYEN".into())),
    ] {
        assert_eq!(parse(line), Ok(command), "{line}");
    }
}

#[test]
fn telnet_bytes_before_abor_are_read_over() {
    for line in [&b"ABOR"[..], b"\xf2ABOR", b"\xff\xf4\xff\xf2ABOR", b"\xff\xf4\xf2abor"] {
        assert_eq!(Command::parse(line), Ok(Command::Abor));
    }
}

#[test]
fn a_wrong_argument_has_its_code() {
    for line in ["", " ", " USER x", "123", "US\0ER", "GET / HTTP/1.1\rX", "\u{fff0}", "US-ER x"] {
        assert_eq!(code(line), 500, "{line:?}");
    }
    for line in
        ["USER", "RETR", "RETR ", "CWD", "SIZE", "HASH", "MFMT 20260101000000", "MFMT 2026 x", "MFMT x"]
    {
        assert_eq!(code(line), 501, "{line:?}");
    }
    for line in [
        "REST -1",
        "REST +1",
        "REST 18446744073709551616",
        "REST x",
        "REST 1 2",
        "ALLO",
        "PBSZ 4294967296",
        "SBUF",
        "SBUF 0",
        "SBUF -65536",
        "SBUF 1e9",
        "SBUF 99999999999999999999",
        "SBUF 65536 65536",
        "SBUF ٦",
        "PORT 1,2,3,4,5",
        "PORT 1,2,3,4,5,256",
        "PORT 1,2,3,4,0,0",
        "PORT 1,2,3,4,5,6,7",
        "PORT ,1,2,3,4,5,6",
        "PORT (1,2,3,4,5,6)",
        "PORT x",
        "EPRT |1|::1|1025|",
        "EPRT |1|127.0.0.1|0|",
        "EPRT |1|127.0.0.1|65536|",
        "EPRT |",
        "EPRT |1|127.0.0.1|1025",
        "EPRT |1|127.0.0.1|1025|x|",
        "PROB x",
        "PROB (|||0|00112233445566778899aabbccddeeff|)",
        "PROB (|||1|0011|)",
        "PROB (|||1|+0112233445566778899aabbccddeeff|)",
        "OPTS",
        "OPTS UTF8 MAYBE",
        "OPTS DRS",
        "OPTS DRS NOTIFY=2;",
    ] {
        assert_eq!(code(line), 501, "{line:?}");
    }
    assert_eq!(code("TYPE E"), 504);
    assert_eq!(code("PROT X"), 504);
    assert_eq!(code("EPSV 3"), 522);
    assert_eq!(code("EPRT |3|127.0.0.1|1025|"), 522);
    assert_eq!(Command::parse(b"USER \xff\xfe").unwrap_err().code, 501);
}

#[test]
fn an_error_repeats_nothing_of_what_came() {
    for line in [
        "XYZZY\x01 227 Entering Passive Mode (10,0,0,1,0,21)",
        "REST 227 XYZZY",
        "PORT XYZZY",
        "OPTS DRS XYZZY",
    ] {
        let reply = Reply::from(&parse(line).expect_err(line));
        assert!(!reply.text().contains("XYZZY") && !reply.text().contains("227"), "{reply}");
    }
}

#[test]
fn a_line_break_in_an_argument_is_never_sent() {
    for hostile in ["a\r\nDELE b", "a\nb", "a\rb", "a\0b"] {
        let path = PathBuf::from(hostile);
        for command in [
            Command::Retr(path.clone()),
            Command::List(Some(path.clone())),
            Command::Mfmt { modified: UNIX_EPOCH, path },
            Command::User(hostile.into()),
            Command::Pass(Secret::new(hostile)),
            Command::Site(hostile.into()),
            Command::Help(Some(hostile.into())),
            Command::Opts(Opts::Other(hostile.into())),
            Command::Opts(Opts::Hash(Some(hostile.into()))),
            Command::Auth(AuthKind::Other(hostile.into())),
            Command::Unknown(hostile.into()),
        ] {
            let error = command.encode().unwrap_err();
            assert!(matches!(error, WireError::LineBreak { .. }), "{command:?}: {error}");
            assert!(!error.to_string().contains(['\r', '\n', '\0']), "{error:?}");
        }
    }
    let secret = Command::Pass(Secret::new("hunter2\n")).encode().unwrap_err();
    assert!(!secret.to_string().contains("hunter2"));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let empty = |what| Err(WireError::Empty { what });
    assert_eq!(Command::Retr(PathBuf::new()).encode(), empty("RETR"));
    assert_eq!(Command::Mfmt { modified: UNIX_EPOCH, path: PathBuf::new() }.encode(), empty("MFMT"));
    assert_eq!(Command::User(String::new()).encode(), empty("USER"));
    assert_eq!(Command::Pass(Secret::new("")).encode(), Ok(b"PASS \r\n".to_vec()));
    let longest = |len| Command::Retr(PathBuf::from("x".repeat(len))).encode();
    assert!(longest(MAX_LINE - 5).is_ok());
    assert_eq!(longest(MAX_LINE - 4), Err(WireError::ArgumentTooLong { what: "RETR" }));
    // A dash would be an option.
    assert_eq!(Command::List(Some("-rf".into())).encode(), Ok(b"LIST ./-rf\r\n".to_vec()));
}

#[test]
fn a_log_shows_no_password_and_no_control_character() {
    let pass = Command::Pass(Secret::new("hunter2"));
    let offer = ProbeOffer { port: 9, token: Token::from_bytes([0xab; 16]) };
    for text in [pass.shown(), format!("{pass:?}"), Command::Prob(Some(offer)).shown(), format!("{offer:?}")]
    {
        assert!(!text.contains("hunter2") && !text.contains("abab"), "{text}");
    }
    assert_eq!(Command::User("a\x1b[2J".into()).shown(), "USER a\\u{1b}[2J");
    assert_eq!(Command::Noop.shown(), "NOOP");
}

fn path() -> impl Strategy<Value = PathBuf> {
    let byte = any::<u8>().prop_filter("FTP cannot carry these", |byte| !matches!(byte, 0 | b'\r' | b'\n'));
    prop::collection::vec(byte, 1..40).prop_map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
}

/// A path that is no option of `ls`.
fn listed() -> impl Strategy<Value = Option<PathBuf>> {
    let no_dash = path().prop_filter("servers take it for an option", |path| {
        !path.as_os_str().as_encoded_bytes().starts_with(b"-")
    });
    prop::option::of(no_dash)
}

fn text() -> impl Strategy<Value = String> {
    "[^\r\n\0]{1,30}"
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let v6 = any::<u128>().prop_map(|ip| Ipv6Addr::from(ip).into());
    let ip = prop_oneof![any::<u32>().prop_map(|ip| std::net::Ipv4Addr::from(ip).into()), v6];
    (ip, 1_u16..).prop_map(|(ip, port): (std::net::IpAddr, u16)| SocketAddr::new(ip, port))
}

fn session() -> impl Strategy<Value = Command> {
    let facts = any::<[bool; 5]>().prop_map(|[kind, size, modify, perm, mode]| Facts {
        kind,
        size,
        modify,
        perm,
        mode,
    });
    let opts = prop_oneof![
        any::<bool>().prop_map(Opts::Utf8),
        any::<bool>().prop_map(|notify| Opts::Drs { notify }),
        facts.prop_map(Opts::Mlst),
        prop::option::of("[A-Z0-9-]{1,16}").prop_map(Opts::Hash),
    ];
    prop_oneof![
        text().prop_map(Command::User),
        prop::collection::vec(1_u8.., 0..20)
            .prop_filter("a line break", |bytes| !bytes.contains(&b'\r') && !bytes.contains(&b'\n'))
            .prop_map(|bytes| Command::Pass(Secret::new(bytes))),
        text().prop_map(Command::Site),
        prop::option::of(text()).prop_map(Command::Help),
        any::<u32>().prop_map(Command::Pbsz),
        opts.prop_map(Command::Opts),
        prop::sample::select(vec![
            Command::Noop,
            Command::Acct,
            Command::Rein,
            Command::Quit,
            Command::Ccc,
            Command::Feat,
            Command::Syst,
            Command::Auth(AuthKind::Tls),
            Command::Prot(Protection::Clear),
            Command::Prot(Protection::Safe),
            Command::Prot(Protection::Confidential),
            Command::Prot(Protection::Private),
        ]),
    ]
}

fn transfer() -> impl Strategy<Value = Command> {
    let offer = (1_u16.., any::<[u8; 16]>())
        .prop_map(|(port, token)| ProbeOffer { port, token: Token::from_bytes(token) });
    prop_oneof![
        any::<u64>().prop_map(Command::Allo),
        any::<u64>().prop_map(Command::Rest),
        (1..u64::MAX).prop_map(|size| Command::Sbuf(Bytes(size))),
        address().prop_map(Command::Eprt),
        (any::<u32>(), 1_u16..).prop_map(|(ip, port)| Command::Port(SocketAddrV4::new(ip.into(), port))),
        prop::option::of(offer).prop_map(Command::Prob),
        prop::char::range('A', 'Z').prop_map(Command::Mode),
        prop::sample::select(vec![
            Command::Abor,
            Command::Pasv,
            Command::Epsv(EpsvArgument::Any),
            Command::Epsv(EpsvArgument::V4),
            Command::Epsv(EpsvArgument::V6),
            Command::Epsv(EpsvArgument::All),
            Command::Type(TransferType::Ascii),
            Command::Type(TransferType::Image),
            Command::Stru(Structure::File),
            Command::Stru(Structure::Other('P')),
        ]),
    ]
}

fn files() -> impl Strategy<Value = Command> {
    let of_path = prop::sample::select(vec![
        Command::Size as fn(PathBuf) -> Command,
        Command::Mdtm,
        Command::Retr,
        Command::Stor,
        Command::Appe,
        Command::Dele,
        Command::Rmd,
        Command::Mkd,
        Command::Rnfr,
        Command::Rnto,
        Command::Cwd,
        Command::Hash,
    ]);
    let of_listed = prop::sample::select(vec![
        Command::Stat as fn(Option<PathBuf>) -> Command,
        Command::List,
        Command::Nlst,
        Command::Mlst,
        Command::Mlsd,
    ]);
    prop_oneof![
        (of_path, path()).prop_map(|(command, path)| command(path)),
        (of_listed, listed()).prop_map(|(command, path)| command(path)),
        (0_u64..253_402_300_800, path()).prop_map(|(seconds, path)| Command::Mfmt {
            modified: UNIX_EPOCH + Duration::from_secs(seconds),
            path,
        }),
        Just(Command::ListAll),
        Just(Command::Cdup),
        Just(Command::Pwd),
    ]
}

fn through_the_wire(bytes: &[u8]) -> Result<Command, CommandError> {
    let mut lines = Lines::new();
    lines.feed(bytes);
    let line = lines.next_line().unwrap().unwrap();
    assert_eq!(lines.buffered(), 0, "one command is one line");
    Command::parse(&line)
}

proptest! {
    #[test]
    fn parsing_undoes_encoding(command in prop_oneof![session(), transfer(), files()]) {
        let bytes = command.encode().unwrap();
        prop_assert!(bytes.starts_with(command.verb().as_bytes()));
        prop_assert_eq!(through_the_wire(&bytes), Ok(command));
    }

    #[test]
    fn whatever_is_parsed_can_be_encoded(
        verb in prop::sample::select(&["USER", "auth", "OPTS", "HELP", "LIST", "STAT", "PROB", "EPRT", "MODE", "X", ""][..]),
        rest in prop_oneof![prop::collection::vec(any::<u8>(), 0..60), " [-|A-Z0-9 ;=]{0,30}".prop_map(String::into_bytes)],
    ) {
        let line = [verb.as_bytes(), &rest].concat();
        if let Ok(command) = Command::parse(&line) {
            let again = through_the_wire(&command.encode().unwrap());
            prop_assert_eq!(again, Ok(command));
        }
    }
}
