use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

use super::*;

fn folder() -> (tempfile::TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    (dir, folder)
}

fn write(partial: &Partial, bytes: &[u8]) {
    partial.file().write_all(bytes).unwrap();
}

#[test]
fn a_file_appears_whole_and_replaces_the_old_one_at_once() {
    let (dir, folder) = folder();
    fs::write(dir.path().join("file"), "old").unwrap();
    let partial = folder.target(Path::new("file")).unwrap().begin(false).unwrap();
    write(&partial, b"new and longer");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    partial.finish().unwrap();
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"new and longer");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_was_left_is_there_again_only_if_it_is_to_be_resumed() {
    let (dir, folder) = folder();
    let target = folder.target(Path::new("file")).unwrap();
    let partial = target.begin(false).unwrap();
    write(&partial, b"half");
    partial.leave();
    assert!(target.is_begun() && target.finished().is_none());
    assert_eq!(target.begin(true).unwrap().length().unwrap(), 4);
    let mut anew = target.begin(false).unwrap();
    assert_eq!(anew.length().unwrap(), 0);
    anew.cut(0).unwrap();
    anew.leave();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of nothing");
}

#[test]
fn what_replaces_a_file_has_its_permissions() {
    let (dir, folder) = folder();
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    fs::write(dir.path().join("file"), "old").unwrap();
    fs::set_permissions(dir.path().join("file"), Permissions::from_mode(0o440)).unwrap();
    let partial = folder.target(Path::new("file")).unwrap().begin(false).unwrap();
    assert_eq!(mode(".file.bufwise-part"), 0o640, "it can be resumed, and is hidden from the same users");
    partial.finish().unwrap();
    assert_eq!(mode("file"), 0o440);
}

#[test]
fn root_a_planted_file_passes_on_no_permissions_and_is_not_taken_for_whole() {
    if !bufwise_trial::root() {
        return;
    }
    let (dir, folder) = folder();
    let (file, nobody) = (dir.path().join("file"), Some(65_534));
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    fs::write(dir.path().join("new"), "").unwrap();
    let target = folder.target(Path::new("file")).unwrap();
    // The second directory is not sticky: a user who can make a file there can replace ours as well.
    for (directory, is_trusted, expected) in [(0o1777, false, mode("new")), (0o777, true, 0o666)] {
        fs::set_permissions(dir.path(), Permissions::from_mode(directory)).unwrap();
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::chown(&file, nobody, nobody).unwrap();
        assert_eq!(target.finished().is_some(), is_trusted);
        let partial = target.begin(false).unwrap();
        assert_eq!(mode(".file.bufwise-part"), expected);
        partial.finish().unwrap();
        assert_eq!((mode("file"), target.finished().is_some()), (expected, true));
    }
}

#[test]
fn directories_that_cannot_be_made_keep_no_other_from_being_made() {
    let (dir, folder) = folder();
    fs::write(dir.path().join("file"), "in the way").unwrap();
    let paths = ["a", "a/b", "file", "file/c", "d"].map(PathBuf::from);
    let refused: Vec<_> = folder.make_directories(&paths).into_iter().map(|(path, _)| path).collect();
    assert_eq!(refused, ["file", "file/c"].map(PathBuf::from));
    assert!(dir.path().join("a/b").is_dir() && dir.path().join("d").is_dir());
}

#[test]
fn a_file_has_one_writer_at_a_time() {
    let (_dir, folder) = folder();
    let target = folder.target(Path::new("file")).unwrap();
    let first = target.begin(false).unwrap();
    assert!(matches!(target.begin(true), Err(LocalError::Busy { .. })));
    first.finish().unwrap();
    target.begin(true).unwrap();
}

#[test]
fn a_link_planted_under_the_temporary_name_is_not_followed() {
    let (dir, folder) = folder();
    fs::write(dir.path().join("victim"), "precious").unwrap();
    symlink("victim", dir.path().join(".file.bufwise-part")).unwrap();
    let begun = folder.target(Path::new("file")).unwrap().begin(false);
    assert!(matches!(begun, Err(LocalError::NotAFile { .. })), "{begun:?}");
    assert_eq!(fs::read(dir.path().join("victim")).unwrap(), b"precious");
}

#[test]
fn a_temporary_name_that_always_leads_to_another_file_is_given_up() {
    let (dir, folder) = folder();
    let (victim, target) = (dir.path().join("victim"), folder.target(Path::new("file")).unwrap());
    fs::write(&victim, "precious").unwrap();
    // As through a link that comes and goes, where O_NOFOLLOW has no effect.
    let locked = target.locked(OsStr::new(".file.bufwise-part"), || File::open(&victim));
    assert!(matches!(locked, Err(LocalError::Busy { .. })), "{locked:?}");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn an_empty_file_removes_no_other_that_has_its_temporary_name() {
    let (dir, folder) = folder();
    let target = folder.target(Path::new("file")).unwrap();
    let first = target.begin(false).unwrap();
    fs::remove_file(dir.path().join(".file.bufwise-part")).unwrap();
    let second = target.begin(false).unwrap();
    write(&second, b"whole");
    first.leave();
    second.finish().unwrap();
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"whole");
}

#[test]
fn no_path_leaves_the_folder() {
    let (dir, _) = folder();
    let outside = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    symlink(outside.path(), inner.join("out")).unwrap();
    let folder = Folder::open(&inner).unwrap();
    for path in ["../file", "out/file", "/etc/file", "a/../../file"] {
        let begun = folder.target(Path::new(path)).and_then(|target| target.begin(false));
        assert!(begun.is_err(), "{path}");
    }
    assert!(folder.make_directory(Path::new("out/made")).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(folder.target(Path::new("deep/er/file")).unwrap().begin(false).is_ok());
}

#[test]
fn devices_and_directories_are_no_targets_and_a_link_means_what_it_points_to() {
    let (dir, _) = folder();
    for path in [Path::new("/dev/null"), dir.path(), Path::new("/")] {
        assert!(matches!(Target::new(path), Err(LocalError::NotAFile { .. })), "{}", path.display());
    }
    fs::write(dir.path().join("real"), "old").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let partial = Target::new(&dir.path().join("link")).unwrap().begin(false).unwrap();
    write(&partial, b"new");
    partial.finish().unwrap();
    assert_eq!(fs::read(dir.path().join("real")).unwrap(), b"new");
    assert!(dir.path().join("link").is_symlink());
}

#[test]
fn temporary_names_fit_and_differ() {
    let long = |last: &str| OsString::from("x".repeat(254) + last);
    let (one, other) = (temporary_name(&long("a")), temporary_name(&long("b")));
    assert!(one != other && one.len() <= NAME_MAX);
    assert_eq!(temporary_name(OsStr::new("a b")), ".a b.bufwise-part");
}

#[test]
fn the_tail_is_that_of_the_first_bytes() {
    let (dir, _) = folder();
    fs::write(dir.path().join("file"), b"0123456789").unwrap();
    let file = File::open(dir.path().join("file")).unwrap();
    assert_eq!(tail(&file, 8, 3).unwrap(), b"567");
    assert_eq!(tail(&file, 2, 3).unwrap(), b"01");
    assert!(tail(&file, 11, 3).is_err());
}

#[test]
fn a_file_system_without_locks_is_no_failure_of_a_lock() {
    let lacks = |errno: Errno| lacks_locks(&errno.into());
    assert!([Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::ENOLCK].into_iter().all(lacks));
    assert!(![Errno::EIO, Errno::EINTR, Errno::EWOULDBLOCK].into_iter().any(lacks));
}
