//! Directories with all below them, to a server and back again, several files in flight.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bufwise_ftp::client::{ClientError, Folder, Item, Settings, Tree, Worker, in_parallel};

use crate::exercise::{access, content, securities};
use crate::servers::Server;

/// Files at once.
const IN_FLIGHT: usize = 3;

/// Paths below a directory: a file's bytes, nothing for a directory.
type Below = BTreeMap<PathBuf, Option<Vec<u8>>>;

pub(crate) fn trees(server: &Server) {
    for security in securities(server) {
        let settings = Settings { retries: 0, ..Settings::default() };
        let access = access(server, security);
        let workers = || (0..IN_FLIGHT).map(|_| Worker::new(&access, &settings)).collect::<Vec<_>>();
        let (here, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = make(here.path(), server);

        let _not_yet = fs::remove_dir_all(server.root.join("up"));
        put(here.path(), &tree, &server.path.join("up"), workers());
        same(&below(&server.root.join("up")), &tree, "put");

        get(&server.path.join("up"), back.path(), workers());
        same(&below(back.path()), &tree, "got");
    }
}

/// A tree that programs tend to handle wrongly: depth, empty directories and files, spaces, letters outside ASCII,
/// names that look like options or commands.
fn make(root: &Path, server: &Server) -> Below {
    let mut names = vec![
        "plain.bin",
        "empty file",
        " leads/ lead",
        "two words/and  two spaces",
        "a/b/c/d/e/deep",
        "a/b/beside",
        "-dash/-l",
        "a;b/type=dir; x",
        "per%20cent/100%",
        "quotes/it's \"so\"",
        "brackets/[a]{b}*?",
        "~tilde/~",
        "one -> two/three",
        ".hidden/.file",
    ];
    if !server.trims {
        names.push("trails /trail ");
    }
    if server.utf8 {
        names.extend(["gr\u{fc}n/\u{6771}\u{4eac} \u{1f980}", "gr\u{fc}n/e\u{301}"]);
    }
    let bytes = content();
    for (at, name) in names.iter().enumerate() {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &bytes[at..if at == 1 { 1 } else { 100_000 * at + 17 }]).unwrap();
    }
    for name in ["empty", "a/empty too"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    below(root)
}

fn below(root: &Path) -> Below {
    let mut found = Below::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(root.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                pending.push(path.clone());
                found.insert(path, None);
            } else {
                found.insert(path, Some(fs::read(entry.path()).unwrap()));
            }
        }
    }
    found
}

fn put(from: &Path, tree: &Below, to: &Path, mut workers: Vec<Worker>) {
    // The order is such that each directory comes before its contents.
    let of_kind =
        |files| tree.iter().filter(move |(_, bytes)| bytes.is_some() == files).map(|(path, _)| path);
    let directories: Vec<PathBuf> =
        std::iter::once(to.to_owned()).chain(of_kind(false).map(|path| to.join(path))).collect();
    // The second time the directories exist already.
    for _ in 0..2 {
        assert!(workers[0].make_directories(&directories).unwrap().is_empty());
    }
    let in_the_way = to.join(of_kind(true).next().unwrap());
    let files: Vec<&PathBuf> = of_kind(true).collect();
    let work = |worker: &mut Worker, path: &&PathBuf| {
        worker.put(&File::open(from.join(path)).unwrap(), &to.join(path), |_| ())
    };
    let last = workers.pop().unwrap();
    in_parallel(workers, &files, work, |path, put| {
        put.unwrap_or_else(|error| panic!("putting {}: {error}", path.display()));
    })
    .unwrap();
    let refused = { last }.make_directories(std::slice::from_ref(&in_the_way)).unwrap();
    assert!(
        matches!(&refused[..], [(path, ClientError::Refused { .. })] if *path == in_the_way),
        "{refused:?}"
    );
}

fn get(from: &Path, to: &Path, mut workers: Vec<Worker>) {
    let tree = Tree::list(&mut workers[0], from, |_| ()).unwrap();
    assert_eq!(tree.skipped, []);
    let folder = Folder::open(to).unwrap();
    tree.directories.iter().try_for_each(|path| folder.make_directory(path)).unwrap();
    let work = |worker: &mut Worker, item: &Item| {
        worker.get(&item.remote, &folder.target(&item.path).unwrap(), |_| ())
    };
    in_parallel(workers, &tree.files, work, |item, got| {
        let got = got.unwrap_or_else(|error| panic!("getting {}: {error}", item.path.display()));
        assert!(item.size.is_none_or(|size| size == got.size), "{}", item.path.display());
    })
    .unwrap();
}

fn same(found: &Below, expected: &Below, what: &str) {
    let names = |below: &Below| below.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (path, bytes) in expected {
        assert!(found[path] == *bytes, "{what}: {} has other bytes", path.display());
    }
}
