use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::wire::terminal::escape_for_terminal;
use crate::wire::{WireError, timestamp};

/// 22 November 2026, 02:30.
fn now() -> SystemTime {
    time("20261122023000")
}

fn time(text: &str) -> SystemTime {
    timestamp::parse(text.as_bytes()).expect("a time")
}

fn list(line: &str) -> Option<Entry> {
    parse_list_line(line.as_bytes(), now())
}

fn mlsx(line: &str) -> Option<Entry> {
    parse_mlsx_line(line.as_bytes())
}

/// Name, kind, size, time and mode, as one line.
fn summary(entry: &Entry) -> String {
    let size = entry.size.map_or("-".to_owned(), |size| size.to_string());
    let modified = entry.modified.map_or("-".to_owned(), timestamp::format);
    let mode = entry.mode.map_or("-".to_owned(), |mode| format!("{mode:o}"));
    format!("{}|{:?}|{size}|{modified}|{mode}", entry.name.display(), entry.kind)
}

#[test]
fn lists_of_unix_servers() {
    for (line, expected) in [
        // vsftpd, proftpd, pure-ftpd, pyftpdlib, busybox.
        (
            "-rw-r--r--    1 0        0              12 Nov 22 01:30 a file",
            "a file|File|12|20261122013000|644",
        ),
        ("drwxr-xr-x   2 ftp      ftp          4096 Jan  5  2020 pub", "pub|Dir|4096|20200105000000|755"),
        (
            "-rw-r-----    1 1000       users      5368709120 Mar 14 15:09 big.iso",
            "big.iso|File|5368709120|20260314150900|640",
        ),
        (
            "lrwxrwxrwx   1 root     root            7 Jul  1 10:00 bin -> usr/bin",
            "bin|Link|7|20260701100000|777",
        ),
        ("lrwxrwxrwx 1 u g 7 Jul  1 10:00  -> -> bin", " ->|Link|7|20260701100000|777"),
        ("-rwsr-xr-t+  1 user     group          1 Nov 21 23:59 s", "s|File|1|20261121235900|5755"),
        ("-rwSr-Sr-T.  1 user     group          1 Nov 21 23:59 s", "s|File|1|20261121235900|7644"),
        ("brw-rw----   1 root     disk        8, 0 Nov 22 02:00 sda", "sda|Other|-|20261122020000|660"),
        // Without a group, with spaces in the group, with a time of ISO, with spaces around the name.
        ("-rw-r--r--   1 user           9 Nov 22 02:00 x", "x|File|9|20261122020000|644"),
        ("-rw-r--r--   1 DOM\\me Domain Users 9 Nov 22 02:00 x", "x|File|9|20261122020000|644"),
        ("-rw-r--r-- 1 u g 9 2026-11-22 02:00 x", "x|File|9|20261122020000|644"),
        ("-rw-r--r-- 1 u g 9 Nov 22 02:00   x  ", "  x  |File|9|20261122020000|644"),
        ("-rw-r--r-- 1 u g 9 nov 22 2:00 Mar 5 2019", "Mar 5 2019|File|9|20261122020000|644"),
        ("drwxr-xr-x 2 u g 4096 Nov 22 02:00 .", ".|Current|4096|20261122020000|755"),
        ("drwxr-xr-x 2 u g 4096 Nov 22 02:00 ..\r", "..|Parent|4096|20261122020000|755"),
        // Too large, wrapped, and a date that never was: the entry is listed nevertheless.
        ("-rw-r--r-- 1 u g -2147483648 Nov 22 02:00 x", "x|File|-|20261122020000|644"),
        (
            "-rw-r--r-- 1 u g 9223372036854775807 Nov 22 02:00 x",
            "x|File|9223372036854775807|20261122020000|644",
        ),
        ("-rw-r--r-- 1 u g 9223372036854775808 Nov 22 02:00 x", "x|File|-|20261122020000|644"),
        ("-rw-r--r-- 1 u g 9 Feb 30 2020 x", "x|File|9|-|644"),
    ] {
        assert_eq!(list(line).as_ref().map(summary).as_deref(), Some(expected), "{line}");
    }
}

#[test]
fn lists_of_windows_servers() {
    for (line, expected) in [
        ("11-21-26  02:30AM       <DIR>          some folder", "some folder|Dir|-|20261121023000|-"),
        ("11-21-2026  12:05PM                 1234 a file", "a file|File|1234|20261121120500|-"),
        ("11-21-99  12:05AM                 1234  b", " b|File|1234|19991121000500|-"),
        ("2026-11-21  14:30       <JUNCTION>     there", "there|Link|-|20261121143000|-"),
        ("02-30-20  02:30AM       <DIR>          x", "x|Dir|-|-|-"),
    ] {
        assert_eq!(list(line).as_ref().map(summary).as_deref(), Some(expected), "{line}");
    }
}

#[test]
fn a_date_without_a_year_is_the_latest_not_after_tomorrow() {
    for (now, date, expected) in [
        ("20261122023000", "Nov 22 20:00", "20261122200000"),
        ("20261122023000", "Nov 24 02:29", "20251124022900"),
        ("20260105000000", "Dec 31 23:59", "20251231235900"),
        ("20261231120000", "Jan  1 10:00", "20270101100000"),
        ("20240301000000", "Feb 29 10:00", "20240229100000"),
        ("20270301000000", "Feb 29 10:00", "20240229100000"),
        ("21030301000000", "Feb 29 10:00", "20960229100000"),
    ] {
        let line = format!("-rw-r--r-- 1 u g 9 {date} x");
        let entry = parse_list_line(line.as_bytes(), time(now)).expect("an entry");
        assert_eq!(entry.modified.map(timestamp::format).as_deref(), Some(expected), "{now} {date}");
    }
}

#[test]
fn lines_that_are_no_entries() {
    for line in [
        "",
        " ",
        "total 12",
        "drwxr-xr-x",
        "-rw-r--r-- 1 u g 9 Nov 22 02:00",
        "-rw-r--r-- 1 u g 9 Nov 22 02:00 ",
        "-rw-r--r-- 1 u g x Nov 22 02:00 x",
        "-rw-r--r-- 1 u g 9 Nov 32 02:00 x",
        "-rw-r--r-- 1 u g 9 Nov 22 25 x",
        "?rw-r--r-- 1 u g 9 Nov 22 02:00 x",
        "-rw-r--q-- 1 u g 9 Nov 22 02:00 x",
        "-rw-r--r--!! 1 u g 9 Nov 22 02:00 x",
        "11-21-26  13:30AM       <DIR>          x",
        "11-21-26  02:30AM       12K x",
        "11-21-26  02:30AM       12",
        "11-21-26  02:30AM       <DIR>",
        "11-21-126  02:30AM       <DIR> x",
        "-rw-r--r-- 1 u g 9 Nov 22 02:00 a\rb",
    ] {
        assert_eq!(list(line), None, "{line:?}");
    }
}

#[test]
fn facts_of_mlsd() {
    for (line, expected) in [
        (
            "type=file;size=12;modify=20261122023000.25;UNIX.mode=0644; a;b c=d ",
            "a;b c=d |File|12|20261122023000|644",
        ),
        ("Type=Dir;Modify=20261122023000;Perm=ELcd;Unique=1;x.y=z=w; pub\r", "pub|Dir|-|20261122023000|-"),
        ("type=cdir;sizd=4096; /a", "/a|Current|-|-|-"),
        ("type=pdir; ..", "..|Parent|-|-|-"),
        ("type=OS.unix=slink:/to; l", "l|Link|-|-|-"),
        ("TYPE=OS.UNIX=symlink; l", "l|Link|-|-|-"),
        ("type=OS.unix=chr-1/3; null", "null|Other|-|-|-"),
        (" no facts", "no facts|Other|-|-|-"),
        // Values that make no sense are as if they were not there.
        ("type=file;size=9223372036854775808;modify=x;UNIX.mode=99999;perm=\u{1}; x", "x|File|-|-|-"),
        ("type=file;size=-1;UNIX.mode=+644;modify=20261301000000; x", "x|File|-|-|-"),
        ("type=file;size=9223372036854775807;; x", "x|File|9223372036854775807|-|-"),
    ] {
        assert_eq!(mlsx(line).as_ref().map(summary).as_deref(), Some(expected), "{line}");
    }
    assert_eq!(mlsx("type=file;perm=RAdfw; x").and_then(|entry| entry.perm).as_deref(), Some("radfw"));
    for line in
        ["", "type=file;", "type=file; ", "total 12", "-rw-r--r-- 1 u g 9 Nov 22 02:00 x", "type=file; a\rb"]
    {
        assert_eq!(mlsx(line), None, "{line:?}");
    }
}

#[test]
fn only_the_facts_asked_for_are_written() {
    let entry = Entry {
        size: Some(1),
        modified: Some(now()),
        mode: Some(0o644),
        perm: Some("r".into()),
        ..Entry::new("x", Kind::File)
    };
    let line = |facts| String::from_utf8(encode_mlsx(&entry, facts).unwrap()).unwrap();
    assert_eq!(line(Facts::default()), "type=file;size=1;modify=20261122023000;perm=r;UNIX.mode=0644; x");
    assert_eq!(line(Facts::decode(b"size;TYPE;unknown")), "type=file;size=1; x");
    assert_eq!(line(Facts::decode(b"")), " x");
    assert_eq!(Facts::decode(b"size;TYPE;unknown").to_string(), "type;size;");
}

#[test]
fn a_name_that_would_be_two_lines_is_not_written() {
    for name in ["a\nb", "a\r", "\0"] {
        let entry = Entry::new(name, Kind::File);
        let error = encode_mlsx(&entry, Facts::default()).unwrap_err();
        assert!(matches!(error, WireError::LineBreak { .. }));
        assert_eq!(encode_ls(&entry, now()), Err(error));
    }
    let nameless = Entry::new("", Kind::File);
    assert!(encode_mlsx(&nameless, Facts::default()).is_err() && encode_ls(&nameless, now()).is_err());
}

#[test]
fn only_a_plain_name_is_given_to_be_joined() {
    for (name, plain) in [
        ("a b", true),
        ("...", true),
        ("a\\b", true),
        ("..", false),
        (".", false),
        ("/", false),
        ("/a", false),
        ("a/b", false),
        ("a/", false),
        ("./a", false),
        ("../a", false),
        ("", false),
        ("a\0", false),
    ] {
        let entry = Entry::new(name, Kind::File);
        assert_eq!(entry.file_name(), plain.then_some(OsStr::new(name)), "{name:?}");
    }
}

#[test]
fn what_is_shown_does_nothing_to_a_terminal() {
    for (bytes, shown) in [
        (&b"plain name"[..], "plain name"),
        ("größe 文件".as_bytes(), "größe 文件"),
        (b"\x1b[2Ja\nb\tc", "\\u{1b}[2Ja\\nb\\tc"),
        (b"\x9b2J\xff", "\\x9b2J\\xff"),
        ("\u{9b}\u{202e}x\u{2066}".as_bytes(), "\\u{9b}\\u{202e}x\\u{2066}"),
    ] {
        assert_eq!(escape_for_terminal(bytes), shown);
    }
}

fn name() -> impl Strategy<Value = PathBuf> {
    let byte = any::<u8>().prop_filter("FTP cannot carry these", |byte| !matches!(byte, 0 | b'\r' | b'\n'));
    prop::collection::vec(prop_oneof![4 => byte, 1 => Just(b' '), 1 => Just(b';')], 1..30)
        .prop_map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop::sample::select(vec![Kind::File, Kind::Dir, Kind::Link, Kind::Other]);
    let time = (0_u64..4_000_000_000).prop_map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    (name(), kind, 0..=i64::MAX.unsigned_abs(), time, 0_u32..0o10000, prop::option::of("[a-z]{0,8}"))
        .prop_map(|(name, kind, size, modified, mode, perm)| Entry {
            name,
            kind,
            size: Some(size),
            modified: Some(modified),
            mode: Some(mode),
            perm,
        })
}

proptest! {
    #[test]
    fn reading_undoes_writing_of_facts(entry in entry()) {
        let line = encode_mlsx(&entry, Facts::default()).unwrap();
        prop_assert_eq!(parse_mlsx_line(&line), Some(entry));
    }

    #[test]
    fn reading_undoes_writing_of_lists(entry in entry(), age_hours in -12_i64..40_000) {
        let age = Duration::from_secs(age_hours.unsigned_abs() * 3_600);
        let modified = entry.modified.unwrap();
        let now = if age_hours < 0 { modified - age.min(Duration::from_secs(43_200)) } else { modified + age };
        let arrow = entry.name.as_os_str().as_bytes().windows(4).any(|window| window == b" -> ");
        prop_assume!(!arrow || entry.kind != Kind::Link);
        let read = parse_list_line(&encode_ls(&entry, now).unwrap(), now).unwrap();
        let unit = if age_hours > 0 && age_hours < 4_380 { 60 } else { 86_400 };
        let since = read.modified.unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let expected = modified.duration_since(UNIX_EPOCH).unwrap().as_secs();
        prop_assert_eq!(since / unit, expected / unit);
        let dots = [".", ".."].map(PathBuf::from);
        let kind = if dots.contains(&entry.name) { read.kind } else { entry.kind };
        prop_assert_eq!(Entry { modified: entry.modified, perm: entry.perm.clone(), ..read }, Entry { kind, ..entry });
    }

    #[test]
    fn any_bytes_are_an_entry_or_none(
        line in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..120),
            "[-dlbc]?[-rwxsStT]{8,10}[+.]? {1,3}[0-9 u]{0,12} ?(Nov|Feb|2026-11-22)? ?[0-9: ]{0,12} ?.{0,8}"
                .prop_map(String::into_bytes),
            "[0-9-]{6,10} {1,2}[0-9]{1,2}:[0-9]{2}(AM|PM)? *(<DIR>|<X>|[0-9]{1,22}) *.{0,8}".prop_map(String::into_bytes),
            "((type|size|modify|perm|UNIX.mode|x)=[a-z0-9.=+-]{0,20};?){0,4} ?.{0,8}".prop_map(String::into_bytes),
        ],
    ) {
        for entry in [parse_list_line(&line, now()), parse_mlsx_line(&line)].into_iter().flatten() {
            prop_assert!(entry.size.is_none_or(|size| i64::try_from(size).is_ok()));
            prop_assert!(entry.mode.is_none_or(|mode| mode <= 0o7777));
            // An entry that was read can be listed again.
            let facts = encode_mlsx(&entry, Facts::default()).unwrap();
            prop_assert_eq!(parse_mlsx_line(&facts).map(|again| again.name), Some(entry.name.clone()));
            prop_assert!(encode_ls(&entry, now()).is_ok());
        }
    }

    #[test]
    fn what_is_shown_is_printable(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert!(!escape_for_terminal(&bytes).chars().any(char::is_control));
    }
}
