//! Directories as a hostile server lists them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bufwise_ftp::client::{ClientError, Tree, in_parallel};

use crate::scripted::{Client, Script, Server, pattern};

const MLST: &[&str] = &["MLST type*;size*;"];

#[test]
fn what_leaves_the_directory_is_left_out() {
    let listings = [
        (
            "pub",
            "type=cdir; pub\r\ntype=pdir; /\r\ntype=file;size=1000; ok\r\ntype=file; ..\r\ntype=file; ../up\r\n\
             type=file; /etc/passwd\r\ntype=dir; sub\r\ntype=dir; ..\r\ntype=OS.unix=symlink; link\r\ngarbage\r\n",
        ),
        ("pub/sub", "type=file;size=1000; deep\r\n"),
    ]
    .into();
    let script = Script { content: pattern(1_000), listings, features: MLST, ..Script::default() };
    let server = Server::start(script);
    let client = Client::of(&server);
    let tree = Tree::list(&mut client.worker(), Path::new("pub"), |_| ()).unwrap();
    let paths: Vec<_> = tree.files.iter().map(|item| item.path.clone()).collect();
    assert_eq!(paths, [PathBuf::from("ok"), PathBuf::from("sub/deep")]);
    assert_eq!(tree.directories, [PathBuf::from("sub")]);
    assert_eq!(tree.skipped_count, 5, "{:?}", tree.skipped);

    let workers = (0..2).map(|_| client.worker()).collect();
    let mut got = Vec::new();
    let get = |worker: &mut _, item: &bufwise_ftp::client::Item| {
        bufwise_ftp::client::Worker::get(
            worker,
            &item.remote,
            &client.target(item.path.to_str().unwrap()),
            |_| (),
        )
    };
    in_parallel(workers, &tree.files, get, |item, result| {
        result.unwrap();
        got.push(item.path.clone());
    })
    .unwrap();
    got.sort();
    assert_eq!(got, paths);
    assert_eq!(
        (client.got("ok").unwrap(), client.got("sub/deep").unwrap()),
        (pattern(1_000), pattern(1_000))
    );
}

#[test]
fn a_circle_of_directories_ends() {
    // Every directory contains itself.
    let mut paths = vec!["a".to_owned()];
    while paths.len() < 70 {
        paths.push(format!("{}/a", paths[paths.len() - 1]));
    }
    let listings = paths.into_iter().map(|path| (&*path.leak(), "type=dir; a\r\n")).collect();
    let server = Server::start(Script { listings, features: MLST, ..Script::default() });
    let mut counted = Vec::new();
    let count = |tree: &Tree| counted.push(tree.directories.len());
    let tree = Tree::list(&mut Client::of(&server).worker(), Path::new("a"), count).unwrap();
    assert_eq!(counted, (1..=64).chain([64]).collect::<Vec<_>>(), "after each directory");
    assert_eq!((tree.files.len(), tree.directories.len(), tree.skipped_count), (0, 64, 1));
}

/// A LIST of a directory, one with `-a`, and the files that are got by them.
fn listed(plain: &'static str, all: Option<&'static str>) -> Vec<PathBuf> {
    let listings = std::iter::once(("", plain)).chain(all.map(|all| ("-a", all))).collect();
    let server = Server::start(Script { listings, ..Script::default() });
    let mut worker = Client::of(&server).worker();
    let tree = Tree::list(&mut worker, Path::new("/pub"), |_| ()).unwrap();
    assert!(server.count("CWD") >= 1 && server.count("MLSD") == 0);
    tree.files.into_iter().map(|item| item.path).collect()
}

#[test]
fn hidden_files_come_too_where_list_can_show_them() {
    let plain = "total 1\r\n-rw-r--r-- 1 ftp ftp 3 Nov 22 02:30 seen\r\n";
    let all = "drwxr-xr-x 1 ftp ftp 3 Nov 22 02:30 .\r\n-rw-r--r-- 1 ftp ftp 3 Nov 22 02:30 .hidden\r\n\
               -rw-r--r-- 1 ftp ftp 3 Nov 22 02:30 seen\r\n";
    assert_eq!(listed(plain, Some(all)), [PathBuf::from(".hidden"), PathBuf::from("seen")]);
    let a_file = "-rw-r--r-- 1 ftp ftp 3 Nov 22 02:30 -a\r\n";
    for taken_for_a_name in [None, Some(""), Some("total 0\r\n"), Some(a_file)] {
        assert_eq!(listed(plain, taken_for_a_name), [PathBuf::from("seen")]);
    }
}

#[test]
fn files_that_uploads_of_others_would_replace_are_known() {
    let server = Server::start(Script::default());
    let mut client = Client::of(&server);
    let paths = ["ok", ".ok.bufwise-part", ".other.bufwise-part", "sub/.ok.bufwise-part"].map(PathBuf::from);
    let clashing = client.worker().clashing(&paths).unwrap();
    assert_eq!(clashing, BTreeSet::from([PathBuf::from(".ok.bufwise-part")]));
    client.settings.in_place = true;
    assert!(client.worker().clashing(&paths).unwrap().is_empty(), "they have their names at once");
}

#[test]
fn a_directory_whose_name_cannot_be_sent_keeps_no_other_from_being_made() {
    let answers = [("MKD", b"257 made\r\n".to_vec())].into();
    let server = Server::start(Script { answers, ..Script::default() });
    let client = Client::of(&server);
    let paths = ["one", "odd\nname", "two"].map(PathBuf::from);
    let refused = client.worker().make_directories(&paths).unwrap();
    assert_eq!((refused.len(), server.count("MKD")), (1, 2));
    let error = refused[0].1.to_string();
    assert!(error.starts_with("MKD `") && error.contains("line break"), "{error}");
}

#[test]
fn a_directory_that_the_server_refuses_to_list_keeps_nothing_else_from_coming() {
    let listings = [
        ("pub", "type=dir; closed\r\ntype=dir; open\r\ntype=file;size=1; ok\r\n"),
        ("pub/open", "type=file;size=1; deep\r\n"),
    ]
    .into();
    let server = Server::start(Script { listings, features: MLST, ..Script::default() });
    let tree = Tree::list(&mut Client::of(&server).worker(), Path::new("pub"), |_| ()).unwrap();
    let paths: Vec<_> = tree.files.iter().map(|item| item.path.clone()).collect();
    assert_eq!(paths, [PathBuf::from("ok"), PathBuf::from("open/deep")]);
    let [refused] = &tree.refused[..] else { panic!("{:?}", tree.refused) };
    assert_eq!((&*refused.remote, &*refused.path), (Path::new("pub/closed"), Path::new("closed")));
    assert!(refused.error.to_string().contains("550"), "{}", refused.error);
}

#[test]
fn a_directory_that_is_not_there_is_said() {
    let server = Server::start(Script { features: MLST, ..Script::default() });
    let error = Tree::list(&mut Client::of(&server).worker(), Path::new("none"), |_| ()).unwrap_err();
    assert!(matches!(&error, ClientError::Refused { reply, .. } if reply.code == 550), "{error}");
}
