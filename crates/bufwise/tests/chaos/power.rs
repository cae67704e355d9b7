//! Loss of power: an upload that `serve` has answered with 226 is on the disk, whole and under its name, and so is a
//! download once `get` has ended.
//!
//! strace records the order of the calls. If power fails at any point of that order, the worst disk holds only
//! the contents synchronised before, and any subset of the names. Therefore the contents must be synchronised before a
//! name refers to them, and the directory of the name before the reply, or the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::scene::{PROGRAM, ended, silent};
use crate::uploads::Server;

const CALLS: &str = "trace=write,pwrite64,splice,ftruncate,fsync,fdatasync,renameat,renameat2,rename,linkat,?mkdir,mkdirat,sendto";

/// The state of the disk that is certain.
#[derive(Default)]
struct Disk {
    /// Files whose contents are not synchronised.
    dirty: BTreeSet<String>,
    /// Names whose directory is not synchronised.
    unsettled: BTreeSet<String>,
    renamed: usize,
    made: usize,
    answered: usize,
}

impl Disk {
    /// Applies the calls of a program to an empty disk.
    fn after(trace: &Path) -> Self {
        let mut disk = Self::default();
        for (call, rest) in calls(&fs::read_to_string(trace).unwrap()) {
            disk.replay(&call, &rest);
        }
        disk
    }

    /// Applies a successful call.
    fn replay(&mut self, call: &str, rest: &str) {
        let paths: Vec<&str> =
            rest.split('<').skip(1).filter_map(|part| part.split_once('>')).map(|(path, _)| path).collect();
        let names: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
        match (call, &paths[..], &names[..]) {
            ("write" | "pwrite64" | "ftruncate", [path, ..], _) | ("splice", [.., path], _)
                if path.starts_with('/') =>
            {
                self.dirty.insert((*path).to_owned());
            }
            ("fsync" | "fdatasync", [path], _) => {
                self.dirty.remove(*path);
                self.unsettled
                    .retain(|name| name.rsplit_once('/').is_none_or(|(directory, _)| directory != *path));
            }
            ("renameat" | "renameat2", [from, to], [old, new, ..]) => {
                let (old, new) = (format!("{from}/{old}"), format!("{to}/{new}"));
                assert!(!self.dirty.contains(&old), "{new} may stand for contents that are not on the disk");
                self.unsettled.insert(new);
                self.renamed += 1;
            }
            ("mkdir", _, [name]) => self.make((*name).to_owned()),
            ("mkdirat", _, [name]) if name.starts_with('/') => self.make((*name).to_owned()),
            ("mkdirat", [directory], [name]) => self.make(format!("{directory}/{name}")),
            ("rename" | "linkat", ..) => panic!("{call}{rest} is not understood"),
            ("sendto", _, [reply, ..]) if reply.starts_with("226 ") => {
                assert!(self.unsettled.is_empty(), "226 was said, but {:?} may be lost", self.unsettled);
                self.answered += 1;
            }
            _ => {}
        }
    }

    fn make(&mut self, directory: String) {
        self.unsettled.insert(directory);
        self.made += 1;
    }
}

/// Returns a command that runs the program, to which arguments are added, and records its calls.
fn recorded(strace: &Path, trace: &Path) -> Command {
    let mut command = Command::new(strace);
    command.args(["-f", "-y", "-qq", "-s", "64", "-e", CALLS, "-o"]).arg(trace).arg(PROGRAM);
    command
}

/// Returns the calls in the order of their ends: the name of the call, the rest of the line.
fn calls(trace: &str) -> Vec<(String, String)> {
    let (mut begun, mut all) = (BTreeMap::new(), Vec::new());
    for line in trace.lines() {
        let Some((thread, text)) = line.split_once(' ') else { continue };
        let text = text.trim_start();
        let whole = if let Some(text) = text.strip_suffix(" <unfinished ...>") {
            begun.insert(thread.to_owned(), text.to_owned());
            continue;
        } else if text.starts_with("<... ") {
            let (_, end) = text.split_once("resumed>").expect("a call goes on");
            begun.remove(thread).expect("the call has begun") + end
        } else {
            text.to_owned()
        };
        if let Some((call, rest)) = whole.split_once('(').filter(|_| !whole.contains(" = -1 ")) {
            all.push((call.to_owned(), rest.to_owned()));
        }
    }
    all
}

#[test]
fn power_lost_at_any_call_loses_no_upload_that_was_answered() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let (served, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trace = place.path().join("trace");
    let mut server = Server::launch(recorded(&strace, &trace), served.path()).expect("the server starts");
    let mut client = server.client().unwrap();
    let bytes = vec![7; 300_000];
    client.store("new", &bytes).unwrap();
    client.store("new", &bytes[..100_000]).unwrap();
    client.send("APPE new", &bytes).unwrap();
    client.ask("REST 1000", "350").unwrap();
    client.store("new", &bytes).unwrap();
    client.ask("MKD inner", "257").unwrap();
    client.store("inner/file", &bytes).unwrap();
    client.store("empty", b"").unwrap();
    // After this reply the calls before it have ended in the trace, too.
    client.ask("NOOP", "200").unwrap();
    server.kill();
    server.wait();
    let disk = Disk::after(&trace);
    assert_eq!((disk.renamed, disk.answered), (6, 6));
}

#[test]
fn power_lost_at_any_call_loses_no_download_that_has_ended() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let (served, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(served.path().join("file"), vec![7; 300_000]).unwrap();
    let server = Server::start(served.path());
    let trace = place.path().join("trace");
    let mut command = recorded(&strace, &trace);
    command.args(["get", &format!("ftp://{}/file", server.address()), "-o"]).arg(place.path().join("file"));
    assert!(ended(silent(&mut command)).status.success());
    let disk = Disk::after(&trace);
    assert_eq!(disk.renamed, 1);
    assert!(disk.unsettled.is_empty(), "{:?} may be lost", disk.unsettled);
}

#[test]
fn power_lost_at_any_call_loses_no_tree_that_has_come() {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let (served, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in ["a/b", "empty"] {
        fs::create_dir_all(served.path().join(directory)).unwrap();
    }
    fs::write(served.path().join("a/b/file"), vec![7; 300_000]).unwrap();
    let server = Server::start(served.path());
    // As strace names it.
    let place = place.path().canonicalize().unwrap();
    let trace = place.join("trace");
    let mut command = recorded(&strace, &trace);
    command.args(["get", "-r", &format!("ftp://{}/", server.address()), "-o"]).arg(place.join("new/root"));
    assert!(ended(silent(&mut command)).status.success());
    let disk = Disk::after(&trace);
    assert_eq!((disk.renamed, disk.made), (1, 5));
    assert!(disk.unsettled.is_empty(), "{:?} may be lost", disk.unsettled);
}
