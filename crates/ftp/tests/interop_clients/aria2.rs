//! aria2.

use crate::stock::stock;

#[test]
fn aria2_gets_in_parts_and_resumes() {
    let Some(aria2) = stock("aria2c") else { return };
    let quiet = ["--no-conf", "--quiet", "--file-allocation=none", "--max-tries=1", "--timeout=20"];
    let get = |more: &[&str]| aria2.run(&[&quiet[..], more].concat());
    get(&["-o", "got", &aria2.url("file")]);
    aria2.has_got("got");
    get(&["-x", "4", "-s", "4", "-k", "1M", "-o", "parts", &aria2.url("file")]);
    aria2.has_got("parts");
    aria2.half_got("half");
    get(&["-c", "-o", "half", &aria2.url("file")]);
    aria2.has_got("half");
    // It counts in pieces of 16 KiB.
    aria2.resumed_at(61 * 16_384);
}
