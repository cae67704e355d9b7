//! Uploads: complete under their final name, or not visible.

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bufwise_mover::hash::{HashKind, Hasher};

use crate::support::{Served, eventually, pattern, serve};

/// Every name in the served directory, as the server's host sees it.
fn names(served: &Served) -> Vec<String> {
    let entries = fs::read_dir(served.directory.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Whether the unfinished upload of `file` has exactly `length` bytes.
fn has_come(served: &Served, length: u64) -> bool {
    fs::metadata(served.path(".file.bufwise-upload")).is_ok_and(|file| file.len() == length)
}

#[test]
fn a_file_has_its_name_only_when_all_of_it_has_come() {
    let served = serve(|_| {});
    let bytes = pattern(500_000);
    let mut client = served.client();
    let mut data = client.begin("STOR file", &bytes[..300_000]);
    eventually("some of it is there", || names(&served) == [".file.bufwise-upload"]);
    let mut other = served.client();
    assert_eq!(other.fetch("NLST"), b"", "what is unfinished is not listed");
    other.ask("RETR .file.bufwise-upload", 553);
    other.ask("DELE .file.bufwise-upload", 553);
    data.write_all(&bytes[300_000..]).unwrap();
    drop(data);
    client.expect(226);
    assert_eq!(names(&served), ["file"]);
    assert!(fs::read(served.path("file")).unwrap() == bytes);
    let received = &served.transfers()[0];
    assert!(received.failure.is_none() && received.bytes == 500_000 && received.report.is_some());
}

#[test]
fn an_interrupted_upload_is_resumed_by_restart_and_by_append() {
    let served = serve(|_| {});
    let bytes = pattern(400_000);
    for resume in ["REST", "APPE"] {
        let mut client = served.client();
        let _data = client.begin("STOR file", &bytes[..250_000]);
        eventually("it has come", || has_come(&served, 250_000));
        client.vanish();
        let mut client = served.client();
        // The name stays reserved until the server has noticed the interruption.
        eventually("the upload was given up", || {
            served.transfers().last().is_some_and(|last| last.failure.is_some())
        });
        assert!(client.ask("SIZE file", 213).contains(" 250000\r\n"));
        let mut sum = Hasher::new(HashKind::Sha256);
        sum.update(&bytes[..250_000]);
        assert!(client.ask("HASH file", 213).contains(&format!(" 0-250000 {} ", sum.finish())));
        client.passive();
        client.ask("RETR file", 550);
        assert!(!served.path("file").exists());
        if resume == "REST" {
            // A restart point before the end: the bytes after it are written anew.
            client.ask("REST 200000", 350);
            client.deliver("STOR file", &bytes[200_000..], 226);
        } else {
            client.deliver("APPE file", &bytes[250_000..], 226);
        }
        assert!(fs::read(served.path("file")).unwrap() == bytes, "{resume}");
        fs::remove_file(served.path("file")).unwrap();
    }
}

#[test]
fn a_restart_beyond_what_is_there_is_refused() {
    let served = serve(|_| {});
    served.put("file", b"12345");
    let mut client = served.client();
    client.passive();
    client.ask("REST 6", 350);
    client.ask("STOR file", 554);
    client.passive();
    client.ask("REST 1", 350);
    client.ask("STOR new", 554);
    assert_eq!(names(&served), ["file"], "nothing is left of it");
}

#[test]
fn an_interrupted_upload_over_a_file_leaves_that_as_it_was() {
    let served = serve(|_| {});
    served.put("file", b"old");
    let mut client = served.client();
    let _data = client.begin("STOR file", &pattern(100_000));
    client.vanish();
    eventually("it is given up", || !served.transfers().is_empty());
    eventually("nothing is left of it", || names(&served) == ["file"]);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"old");
    let mut client = served.client();
    assert!(client.ask("SIZE file", 213).contains(" 3\r\n"));
}

#[test]
fn a_file_that_is_there_is_replaced_resumed_and_appended_to_in_one_step() {
    let served = serve(|_| {});
    served.put("file", b"0123456789");
    fs::set_permissions(served.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut client = served.client();
    client.ask("REST 4", 350);
    let mut data = client.begin("STOR file", b"xy");
    assert_eq!(fs::read(served.path("file")).unwrap(), b"0123456789");
    data.write_all(b"z").unwrap();
    drop(data);
    client.expect(226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"0123xyz");
    client.deliver("APPE file", b"!", 226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"0123xyz!");
    client.deliver("STOR file", b"new", 226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"new");
    assert_eq!(fs::metadata(served.path("file")).unwrap().permissions().mode() & 0o777, 0o640);
    client.deliver("APPE fresh", b"made by append", 226);
    assert_eq!(names(&served), ["file", "fresh"]);
}

/// Longer than a test waits for anything.
const NEVER: Duration = Duration::from_secs(3_600);

#[test]
fn a_client_that_is_killed_leaves_nothing_under_the_name() {
    // The kernel closes a killed program's descriptors in any order, all with a clean end.
    for data_ends_first in [false, true] {
        let served = serve(|config| config.times.hangup = NEVER);
        let mut client = served.client();
        let data = client.begin("STOR file", &pattern(100_000));
        eventually("it has come", || has_come(&served, 100_000));
        if data_ends_first {
            drop(data);
            client.stream().shutdown(Shutdown::Both).unwrap();
        } else {
            client.stream().shutdown(Shutdown::Both).unwrap();
            drop(data);
        }
        eventually("it is noticed", || !served.transfers().is_empty());
        let transfer = &served.transfers()[0];
        assert!(transfer.failure.is_some() && transfer.bytes == 100_000, "{transfer:?}");
        eventually("the rest is kept", || names(&served) == [".file.bufwise-upload"]);
    }
}

#[test]
fn an_upload_that_waits_to_be_believed_can_be_aborted() {
    let served = serve(|config| config.times.hangup = NEVER);
    let mut client = served.client();
    drop(client.begin("STOR file", &pattern(100_000)));
    eventually("it has come", || has_come(&served, 100_000));
    client.ask("NOOP", 200);
    client.ask("ABOR", 426);
    client.expect(226);
    assert_eq!(names(&served), [".file.bufwise-upload"]);
}

#[test]
fn the_time_of_an_upload_ends_with_its_data() {
    let hangup = Duration::from_millis(200);
    let served = serve(|config| config.times.hangup = hangup);
    let mut client = served.client();
    let start = Instant::now();
    client.deliver("STOR file", b"some bytes", 226);
    // Between the end of the data and this reply the server has waited for an end of the control connection.
    assert!(served.transfers()[0].elapsed + hangup <= start.elapsed());
}

#[test]
fn a_length_that_was_announced_and_came_is_believed_at_once() {
    let served = serve(|config| config.times.hangup = NEVER);
    let mut client = served.client();
    client.ask("ALLO 10", 200);
    client.deliver("STOR file", b"0123456789", 226);
    // The announced length is that of the sent part, or that of the whole file.
    for announced in ["ALLO 4", "ALLO 10"] {
        client.ask("REST 6", 350);
        client.ask(announced, 200);
        client.deliver("STOR file", b"6789", 226);
    }
    assert_eq!(fs::read(served.path("file")).unwrap(), b"0123456789");
}

#[test]
fn a_client_that_says_goodbye_need_not_wait() {
    for hangs_up in [Shutdown::Write, Shutdown::Both] {
        let served = serve(|_| {});
        let mut client = served.client();
        let data = client.begin("STOR file", &pattern(100_000));
        client.say("QUIT");
        client.stream().shutdown(hangs_up).unwrap();
        // The end of the control connection does not end the upload now.
        let mut other = served.client();
        eventually("it has come", || has_come(&served, 100_000));
        other.passive();
        other.ask("STOR file", 450);
        drop(data);
        if hangs_up == Shutdown::Write {
            client.expect(226);
            client.expect(221);
            client.ends();
        }
        eventually("it has its name", || names(&served) == ["file"]);
        eventually("it is told", || served.transfers().iter().any(|one| one.failure.is_none()));
    }
}

#[test]
fn an_aborted_upload_does_not_get_its_name() {
    let served = serve(|_| {});
    let mut client = served.client();
    let _data = client.begin("STOR file", &pattern(100_000));
    eventually("it has come", || has_come(&served, 100_000));
    client.say("ABOR");
    client.expect(426);
    client.expect(226);
    assert!(!served.path("file").exists());
    client.ask("DELE file", 250);
    assert_eq!(names(&served), [""; 0], "what an interruption left goes by the file's name");
}

#[test]
fn one_upload_of_a_name_at_a_time() {
    let served = serve(|_| {});
    let mut first = served.client();
    let data = first.begin("STOR file", b"first");
    let mut second = served.client();
    second.passive();
    second.ask("STOR file", 450);
    drop(data);
    first.expect(226);
    second.deliver("STOR file", b"second", 226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"second");
}

#[test]
fn a_name_that_an_upload_holds_is_not_for_others() {
    let served = serve(|_| {});
    let mut first = served.client();
    let mut data = first.begin("STOR file", b"all of ");
    eventually("it has come", || has_come(&served, 7));
    let mut other = served.client();
    other.ask("DELE file", 450);
    other.ask("MKD file", 450);
    other.passive();
    other.ask("STOR file", 450);
    data.write_all(b"the first").unwrap();
    drop(data);
    first.expect(226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"all of the first");
    // The same while an upload replaces a file that is there, also one that cannot be written.
    fs::set_permissions(served.path("file"), fs::Permissions::from_mode(0o440)).unwrap();
    served.put("another", b"another");
    let data = first.begin("STOR file", b"second");
    other.ask("DELE file", 450);
    other.ask("RNFR file", 450);
    other.ask("RNFR another", 350);
    other.ask("RNTO file", 450);
    drop(data);
    first.expect(226);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"second");
    other.ask("RNFR another", 350);
    let data = first.begin("STOR another", b"third");
    other.ask("RNTO new", 450);
    drop(data);
    first.expect(226);
    other.ask("RNFR another", 350);
    other.ask("RNTO file", 250);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"third");
    other.ask("DELE file", 250);
    assert_eq!(names(&served), [""; 0]);
}

#[test]
fn an_upload_that_copies_a_long_beginning_is_aborted_soon() {
    let served = serve(|_| {});
    fs::File::create(served.path("file")).unwrap().set_len(1 << 40).unwrap();
    let mut client = served.client();
    client.passive();
    client.ask("APPE file", 150);
    client.ask("ABOR", 426);
    client.expect(226);
    assert_eq!(names(&served), ["file"]);
}

#[test]
fn only_its_own_file_gets_the_name_or_is_removed() {
    let served = serve(|_| {});
    served.put("file", b"old");
    let partial = served.path(".file.bufwise-upload");
    for ends_well in [true, false] {
        let mut client = served.client();
        let data = client.begin("STOR file", b"mine");
        eventually("it has come", || has_come(&served, 4));
        fs::remove_file(&partial).unwrap();
        fs::write(&partial, b"").unwrap();
        if ends_well {
            drop(data);
            client.expect(451);
        } else {
            client.ask("ABOR", 426);
            client.expect(226);
        }
        assert_eq!(names(&served), [".file.bufwise-upload", "file"], "the other's file stays as it is");
        assert_eq!(fs::read(served.path("file")).unwrap(), b"old");
    }
}

#[test]
fn what_cannot_be_a_file_is_refused() {
    let served = serve(|_| {});
    fs::create_dir(served.path("directory")).unwrap();
    let mut client = served.client();
    for (path, code) in [
        ("directory", 550),
        ("/", 550),
        ("none/file", 550),
        (".x.bufwise-upload", 553),
        (&"n".repeat(256), 553),
    ] {
        client.passive();
        client.ask(&format!("STOR {path}"), code);
    }
    client.deliver(&format!("STOR {}", "n".repeat(255)), b"12", 226);
    assert_eq!(names(&served), ["directory".to_owned(), "n".repeat(255)]);
}

#[test]
fn an_announced_length_that_does_not_come_is_an_error_for_our_own_clients() {
    let served = serve(|_| {});
    let mut client = served.client();
    client.ask("ALLO 10", 200);
    client.deliver("STOR file", b"12345", 226);
    client.ask("OPTS DRS NOTIFY=1;", 200);
    client.ask("ALLO 10", 200);
    client.deliver("STOR other", b"12345", 426);
    assert!(!served.path("other").exists());
    client.ask("ALLO 5", 200);
    client.deliver("APPE other", b"67890", 226);
    assert_eq!(fs::read(served.path("other")).unwrap(), b"1234567890");
}

#[test]
fn what_was_said_before_a_transfer_that_is_refused_is_not_for_the_next() {
    let served = serve(|_| {});
    let mut client = served.client();
    client.ask("OPTS DRS NOTIFY=1;", 200);
    client.ask("ALLO 10", 200);
    client.ask("TYPE A", 200);
    client.ask("STOR file", 504);
    client.ask("TYPE I", 200);
    client.deliver("STOR file", b"12345", 226);
    client.ask("REST 3", 350);
    client.fetch("NLST");
    assert_eq!(client.fetch("RETR file"), b"12345");
}

#[test]
fn a_directory_whose_names_may_not_be_read_takes_uploads() {
    let served = serve(|_| {});
    let incoming = served.path("incoming");
    fs::create_dir(&incoming).unwrap();
    fs::set_permissions(&incoming, fs::Permissions::from_mode(0o333)).unwrap();
    let mut client = served.client();
    client.deliver("STOR incoming/file", b"12345", 226);
    client.ask("MKD incoming/inner", 257);
    fs::set_permissions(&incoming, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read(served.path("incoming/file")).unwrap(), b"12345");
    assert_eq!(fs::read_dir(&incoming).unwrap().count(), 2, "nothing else is left");
}

/// A file system of some pages, unmounted in the end.
struct Tiny<'a>(&'a Path);

impl<'a> Tiny<'a> {
    fn mount(at: &'a Path) -> Self {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "bufwise-test"]).arg(at).status();
        assert!(mounted.unwrap().success());
        Self(at)
    }
}

impl Drop for Tiny<'_> {
    fn drop(&mut self) {
        // The server may have the directory open still: it is detached now, and unmounted with the last user.
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn root_a_full_disk_is_told_and_nothing_is_left() {
    if !bufwise_trial::root() {
        return;
    }
    let served = serve(|_| {});
    let directory = served.path("tiny");
    fs::create_dir(&directory).unwrap();
    let _tiny = Tiny::mount(&directory);
    let mut client = served.client();
    client.deliver("STOR tiny/small", b"fits", 226);
    assert!(client.deliver("STOR tiny/big", &pattern(2_000_000), 452).contains("No space left"));
    assert_eq!(client.fetch("NLST tiny"), b"tiny/small\r\n");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "the room is given back");
    client.deliver("STOR tiny/another", &pattern(300_000), 226);
    client.ask("ALLO 18446744073709551615", 452);
}

#[test]
fn root_the_room_where_the_file_goes_counts() {
    if !bufwise_trial::root() {
        return;
    }
    let served = serve(|_| {});
    let directory = served.path("tiny");
    fs::create_dir(&directory).unwrap();
    let _tiny = Tiny::mount(&directory);
    let mut client = served.client();
    client.ask("ALLO 1000000", 200);
    client.passive();
    assert!(client.ask("STOR tiny/big", 452).contains("No space left"));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    client.ask("ALLO 1000000", 200);
    client.deliver("STOR big", &pattern(1_000_000), 226);
}
