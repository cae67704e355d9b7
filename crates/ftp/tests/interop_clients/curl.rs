//! curl.

use std::fs;
use std::io::Write;

use crate::stock::{stock, stock_with_patience, stock_with_tls};
use crate::support::eventually;

#[test]
fn curl_gets_puts_resumes_and_lists() {
    let Some(curl) = stock("curl") else { return };
    curl.run(&["-sS", "-o", "got", &curl.url("file")]);
    curl.has_got("got");
    curl.half_got("half");
    curl.run(&["-sS", "-C", "-", "-o", "half", &curl.url("file")]);
    curl.has_got("half");
    curl.resumed_at(1_000_000);
    curl.run(&["-sS", "-T", "upload", &curl.url("put")]);
    curl.has_put("put");
    curl.half_put("resumed");
    curl.run(&["-sS", "-C", "-", "-T", "upload", &curl.url("resumed")]);
    curl.has_put("resumed");
    curl.run(&["-sS", "--ftp-create-dirs", "-T", "upload", &curl.url("made/below/put")]);
    curl.has_put("made/below/put");
    let listed = curl.run(&["-sS", &curl.url("tree/")]);
    assert!(listed.contains(" one") && listed.contains(" below"), "{listed}");
    let names = curl.run(&["-sS", "--list-only", &curl.url("tree/below/")]);
    assert!(names.contains("two words"), "{names}");
    // One session for all of it: a reply too many or too few would show.
    let both = [curl.url("file"), curl.url("tree/one"), curl.url("file")];
    curl.run(&[
        "-sS", "-o", "a", &both[0], "-o", "b", &both[1], "-o", "c", &both[2], "-Q", "-NOOP", "-Q", "PWD",
    ]);
    curl.has_got("a");
    curl.has_got("c");
    curl.run(&["-sS", "--head", &curl.url("file")]);
    curl.all_went_well();
}

#[test]
fn curl_gets_and_puts_over_tls() {
    let Some(curl) = stock_with_tls("curl") else { return };
    curl.run(&["-sS", "--ssl-reqd", "-k", "-o", "got", &curl.url("file")]);
    curl.has_got("got");
    curl.run(&["-sS", "--ssl-reqd", "-k", "-T", "upload", &curl.url("put")]);
    curl.has_put("put");
    let listed = curl.run(&["-sS", "--ssl-reqd", "-k", &curl.url("tree/")]);
    assert!(listed.contains(" one"), "{listed}");
    curl.all_went_well();
}

#[test]
fn a_curl_that_is_killed_between_its_data_and_the_reply_leaves_nothing_under_the_name() {
    let Some(curl) = stock_with_patience("curl") else { return };
    let mut program = curl.start(&["-sS", "-T", "-", &curl.url("put")]);
    program.stdin.as_mut().unwrap().write_all(&curl.bytes[..300_000]).unwrap();
    let partial = curl.served.path(".put.bufwise-upload");
    eventually("it has come", || fs::metadata(&partial).is_ok_and(|file| file.len() == 300_000));
    // SIGKILL: the kernel ends both connections, and neither with a reset.
    program.kill().unwrap();
    program.wait().unwrap();
    eventually("it is noticed", || !curl.served.transfers().is_empty());
    assert!(curl.served.transfers()[0].failure.is_some(), "{}", curl.served.log());
    assert!(!curl.served.path("put").exists() && partial.exists());
}
