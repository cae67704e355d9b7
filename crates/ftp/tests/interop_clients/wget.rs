//! wget.

use crate::stock::stock;

#[test]
fn wget_gets_resumes_and_walks() {
    let Some(wget) = stock("wget") else { return };
    wget.run(&["-nv", "-t1", "-O", "got", &wget.url("file")]);
    wget.has_got("got");
    wget.half_got("file");
    wget.run(&["-nv", "-t1", "-c", &wget.url("file")]);
    wget.has_got("file");
    wget.resumed_at(1_000_000);
    wget.run(&["-nv", "-t1", "-r", "-nH", &wget.url("tree/")]);
    assert_eq!(std::fs::read(wget.local("tree/below/two words")).unwrap(), b"two");
    wget.run(&["-nv", "-t1", "--no-glob", "-O", "passive", &wget.url("file")]);
    wget.has_got("passive");
    wget.run(&["-nv", "-t1", "-nd", "-P", "globbed", &wget.url("tree/o*")]);
    assert_eq!(std::fs::read(wget.local("globbed/one")).unwrap(), b"one");
    wget.all_went_well();
}
