//! Directories, names and times: what a client sees, and may change.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use bufwise_ftp::server::{Rights, Users};
use bufwise_mover::hash::{Digest, HashKind, Hasher};

use crate::support::{Client, pattern, serve};

#[test]
fn directories_are_entered_left_and_listed() {
    let served = serve(|_| {});
    fs::create_dir_all(served.path("a/b")).unwrap();
    served.put("a/b/one file", b"12345");
    served.put("a/two", b"");
    let mut client = served.client();
    assert!(client.ask("PWD", 257).contains("\"/\""));
    client.ask("CWD a/b", 250);
    assert!(client.ask("XPWD", 257).contains("\"/a/b\""));
    assert_eq!(client.fetch("NLST"), b"one file\r\n");
    client.ask("CDUP", 250);
    assert_eq!(client.fetch("NLST"), b"b\r\ntwo\r\n");
    assert_eq!(client.fetch("NLST b"), b"b/one file\r\n");
    assert_eq!(client.fetch("NLST *o"), b"two\r\n");
    assert_eq!(client.fetch("NLST /a/b/*fi*"), b"/a/b/one file\r\n");
    let facts = String::from_utf8(client.fetch("MLSD b")).unwrap();
    assert!(facts.starts_with("type=file;size=5;modify=") && facts.ends_with("; one file\r\n"), "{facts}");
    let long = String::from_utf8(client.fetch("LIST -la b")).unwrap();
    assert!(long.starts_with("-rw") && long.ends_with(" one file\r\n"), "{long}");
    for (command, code) in
        [("CWD none", 550), ("CWD two", 550), ("SIZE b", 550), ("MDTM none", 550), ("MLST none", 550)]
    {
        client.ask(command, code);
    }
    assert!(client.ask("MLST b/one file", 250).contains("/a/b/one file"));
    assert!(client.ask("STAT two", 213).contains("two"));
    assert!(client.ask("SIZE b/one file", 213).contains(" 5\r\n"));
}

#[test]
fn an_empty_directory_and_an_unknown_one_differ() {
    let served = serve(|_| {});
    let mut client = served.client();
    assert_eq!(client.fetch("LIST"), b"");
    client.passive();
    client.ask("LIST none", 550);
    client.passive();
    client.ask("NLST none*", 550);
    client.ask("NOOP", 200);
}

#[test]
fn names_with_quotes_and_bytes_pass_and_those_that_break_lines_are_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let served = serve(|_| {});
    fs::create_dir(served.path("say \"hi\"")).unwrap();
    served.put("two\nlines", b"x");
    let bytes = std::ffi::OsStr::from_bytes(b"caf\xe9");
    fs::write(served.directory.path().join(bytes), b"x").unwrap();
    let mut client = served.client();
    assert!(client.ask("CWD say \"hi\"", 250).starts_with("250"));
    assert!(client.ask("PWD", 257).contains("\"/say \"\"hi\"\"\""));
    client.ask("CWD /", 250);
    assert_eq!(client.fetch("NLST"), b"caf\xe9\r\nsay \"hi\"\r\n");
    let facts = client.fetch("MLSD");
    assert!(
        !facts.windows(5).any(|part| part == b"lines") && facts.split(|byte| *byte == b'\n').count() == 3
    );
}

#[test]
fn whoever_may_write_changes_names_times_and_directories() {
    let served = serve(|_| {});
    served.put("old", b"x");
    let mut client = served.client();
    assert!(client.ask("MKD new", 257).contains("\"/new\""));
    client.ask("MKD new", 550);
    client.ask("RNFR old", 350);
    client.ask("RNTO new/name", 250);
    assert_eq!(fs::read(served.path("new/name")).unwrap(), b"x");
    client.ask("RMD new", 550);
    client.ask("MFMT 20200102030405 new/name", 213);
    assert!(client.ask("MDTM new/name", 213).contains("20200102030405"));
    client.ask("DELE new", 550);
    client.ask("DELE new/name", 250);
    client.ask("RMD new", 250);
    client.ask("RNFR none", 550);
    assert_eq!(fs::read_dir(served.directory.path()).unwrap().count(), 0);
    let log = served.log();
    assert!(log.contains("anonymous renamed /old") && log.contains("anonymous removed /new/name"), "{log}");
}

#[test]
fn a_new_name_must_follow_the_old_one_at_once() {
    let served = serve(|_| {});
    served.put("old", b"x");
    let mut client = served.client();
    client.ask("RNTO new", 503);
    client.ask("RNFR old", 350);
    client.ask("NOOP", 200);
    client.ask("RNTO new", 503);
    assert!(served.path("old").exists());
}

#[test]
fn whoever_may_read_changes_nothing() {
    let served = serve(|config| config.users = Users::anonymous(Rights::Read));
    served.put("file", b"kept");
    fs::create_dir(served.path("empty")).unwrap();
    let mut client = served.client();
    for command in [
        "STOR new",
        "APPE file",
        "DELE file",
        "RMD empty",
        "MKD more",
        "RNFR file",
        "MFMT 20200102030405 file",
    ] {
        client.ask(command, 550);
    }
    assert_eq!(client.fetch("RETR file"), b"kept");
    assert!(String::from_utf8(client.fetch("MLSD")).unwrap().contains("perm=el;"));
    assert_eq!(fs::read_dir(served.directory.path()).unwrap().count(), 2);
}

#[test]
fn sums_are_those_of_the_files() {
    let served = serve(|_| {});
    let bytes = pattern(300_000);
    served.put("file", &bytes);
    let mut client = served.client();
    for kind in HashKind::ALL {
        assert!(client.ask(&format!("OPTS HASH {kind}"), 200).contains(kind.name()));
        assert!(client.ask("FEAT", 211).contains(&format!("{kind}*")));
        let reply = client.ask("HASH file", 213);
        assert_eq!(reply, format!("213 {kind} 0-300000 {} /file\r\n", sum(kind, &bytes)));
    }
    client.ask("OPTS HASH CRC32", 501);
    client.ask("HASH none", 550);
}

#[test]
fn holes_are_summed_as_the_zeros_that_they_are() {
    let served = serve(|_| {});
    let mut bytes = vec![0; 3 << 20];
    bytes[1 << 20..(1 << 20) + 5_000].copy_from_slice(&pattern(5_000));
    for (name, data) in [("inside", 1 << 20..(1 << 20) + 5_000), ("none", 0..0), ("ends", 0..3 << 20)] {
        let file = File::create(served.path(name)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        file.write_all_at(&bytes[data.clone()], data.start as u64).unwrap();
        let expected = sum(HashKind::Sha256, &fs::read(served.path(name)).unwrap());
        let reply = served.client().ask(&format!("HASH {name}"), 213);
        assert_eq!(reply, format!("213 SHA-256 0-{} {expected} /{name}\r\n", bytes.len()));
    }
}

#[test]
fn sums_of_huge_files_keep_nobody_from_the_small_ones() {
    let served = serve(|_| {});
    File::create(served.path("huge")).unwrap().set_len(1 << 40).unwrap();
    served.put("small", b"123");
    let mut greedy: Vec<Client> = (0..4).map(|_| served.client()).collect();
    for client in &mut greedy {
        client.say("HASH huge");
        client.ask("NOOP", 200);
    }
    let reply = served.client().ask("HASH small", 213);
    assert!(reply.contains(&sum(HashKind::Sha256, b"123").to_string()), "{reply}");
    for client in &mut greedy {
        client.ask("ABOR", 426);
        client.expect(226);
    }
}

#[test]
fn no_more_sums_are_made_at_once_than_allowed() {
    let served = serve(|config| config.limits.hashes = 0);
    served.put("file", b"123");
    let mut client = served.client();
    client.ask("HASH file", 450);
}

fn sum(kind: HashKind, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(kind);
    hasher.update(bytes);
    hasher.finish()
}

#[test]
fn facts_are_given_as_chosen() {
    let served = serve(|_| {});
    served.put("file", b"123");
    fs::set_permissions(served.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut client = served.client();
    assert!(client.ask("OPTS MLST size;nonsense;unix.mode;", 200).contains("MLST OPTS size;UNIX.mode;"));
    assert_eq!(client.fetch("MLSD"), b"size=3;UNIX.mode=0640; file\r\n");
    client.ask("OPTS MLST", 200);
    assert_eq!(client.fetch("MLSD"), b" file\r\n");
}

#[test]
fn the_session_is_described_on_request() {
    let served = serve(|_| {});
    let mut client = served.connect();
    assert!(client.ask("STAT", 211).contains("not logged in"));
    assert!(client.ask("SYST", 215).contains("UNIX"));
    assert!(client.ask("HELP", 214).contains("EPSV"));
    let features = client.ask("FEAT", 211);
    for feature in
        [" UTF8", " EPSV", " REST STREAM", " SIZE", " MDTM", " MLST type*;", " HASH SHA-256*;", " SBUF\r"]
    {
        assert!(features.contains(feature), "{feature}: {features}");
    }
    assert!(!features.contains("AUTH"), "no TLS here");
    let mut client = served.client();
    assert!(client.ask("STAT", 211).contains("as anonymous"));
    client.ask("SITE HELP", 214);
    for (command, code) in [
        ("SITE EXEC id", 504),
        ("OPTS UTF8 ON", 200),
        ("MODE S", 200),
        ("MODE Z", 504),
        ("STRU F", 200),
        ("STRU R", 504),
        ("TYPE A", 200),
        ("TYPE I", 200),
        ("TYPE E", 504),
        ("ACCT x", 202),
        ("REIN", 502),
        ("ABOR", 226),
        ("AUTH TLS", 502),
        ("PROT P", 503),
        ("XYZZY", 502),
    ] {
        client.ask(command, code);
    }
}
