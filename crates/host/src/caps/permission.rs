//! Settings that this process may not write, and journals that others could write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::error::in_words;

/// One number, which even root may only read.
const ONLY_READ: &str = "/proc/sys/kernel/ngroups_max";

#[test]
fn a_value_that_may_not_be_put_back_is_told_and_stays_in_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let caps = Caps::below(directory.path());
    let setting = caps.settings.join("net/core/rmem_max");
    fs::create_dir_all(setting.parent().unwrap()).unwrap();
    symlink(ONLY_READ, &setting).unwrap();
    let ours = fs::read_to_string(ONLY_READ).unwrap();
    drop(Directory::lock(&caps.journals).unwrap());
    let journal = caps.journals.join("caps-7");
    let is = |ours: &str| format!("net.core.rmem_max\t7\t{}\n", ours.trim());
    fs::write(&journal, is(&ours)).unwrap();
    let error = in_words(&caps.put_back(7).unwrap_err());
    assert!(error.starts_with("cannot put net.core.rmem_max back to 7: "), "{error}");
    assert_eq!(fs::read_to_string(&journal).unwrap(), is(&ours), "the next start tries it again");

    // It is not ours to raise either, and its owner can leave.
    let raised = caps.raise_in(7, &[Wanted::Maximum(Setting::RmemMax, 1 << 40)]).unwrap();
    assert!(raised.raised().is_empty());
    assert_eq!(raised.release().unwrap(), []);
    assert_eq!(fs::read_to_string(&journal).unwrap(), is(&ours));

    // A value that is not ours needs no change.
    fs::write(&journal, is("8")).unwrap();
    assert_eq!(caps.put_back(7).unwrap(), []);
    assert!(!journal.exists());
}

#[test]
fn journals_are_neither_kept_nor_believed_where_others_can_write() {
    let directory = tempfile::tempdir().unwrap();
    let caps = Caps::below(directory.path());
    drop(caps.raise_in(7, &[]).unwrap());
    for mode in [0o775, 0o757, 0o1777] {
        fs::set_permissions(&caps.journals, Permissions::from_mode(mode)).unwrap();
        let error = in_words(&caps.ownerless().unwrap_err());
        assert!(error.contains(": others than its owner can write to it"), "{error}");
        assert!(caps.raise_in(7, &[Wanted::Maximum(Setting::RmemMax, 1)]).is_err());
    }
    fs::set_permissions(&caps.journals, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(caps.ownerless().unwrap(), [0; 0]);
}
