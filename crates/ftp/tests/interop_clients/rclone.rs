//! rclone.

use crate::stock::{Stock, stock, stock_with_tls};

fn work(rclone: &Stock, options: &str) {
    let obscured = rclone.run(&["obscure", "x"]);
    let password = obscured.lines().nth(1).unwrap().trim().to_owned();
    let remote = |path: &str| {
        format!(":ftp,host=127.0.0.1,port={},user=anonymous,pass={password}{options}:{path}", rclone.port())
    };
    let common =
        ["--config", "none.conf", "--retries", "1", "--low-level-retries", "1", "--contimeout", "20s"];
    let run = |more: &[&str]| rclone.run(&[&common[..], more].concat());
    run(&["copyto", &remote("file"), "got"]);
    rclone.has_got("got");
    run(&["copyto", "upload", &remote("put")]);
    rclone.has_put("put");
    run(&["copy", &remote("tree"), "tree"]);
    assert_eq!(std::fs::read(rclone.local("tree/below/two words")).unwrap(), b"two");
    run(&["sync", "tree", &remote("back")]);
    assert_eq!(std::fs::read(rclone.served.path("back/below/two words")).unwrap(), b"two");
    run(&["check", "--download", "tree", &remote("back")]);
    let listed = run(&["lsl", &remote("tree")]);
    assert!(listed.contains("one") && listed.contains("below/two words"), "{listed}");
    run(&["purge", &remote("back")]);
    assert!(!rclone.served.path("back").exists());
    rclone.all_went_well();
}

#[test]
fn rclone_copies_lists_and_checks() {
    let Some(rclone) = stock("rclone") else { return };
    work(&rclone, "");
}

#[test]
fn rclone_does_so_over_tls() {
    let Some(rclone) = stock_with_tls("rclone") else { return };
    work(&rclone, ",explicit_tls=true,no_check_certificate=true");
}
