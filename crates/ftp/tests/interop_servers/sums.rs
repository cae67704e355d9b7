//! Checksums, where the server has them.

use std::fs::{self, File};
use std::path::Path;

use bufwise_ftp::client::{ClientError, Folder, Security, Settings, Worker};
use bufwise_mover::hash::{Digest, HashKind};

use crate::exercise::{access, content};
use crate::servers::Server;

/// Checks that the server makes checksums of this kind; `None`: that it makes none.
pub(crate) fn sums(server: &Server, kind: Option<HashKind>) {
    let settings = Settings { retries: 0, checksum: true, ..Settings::default() };
    let mut worker = Worker::new(&access(server, Security::Plain), &settings);
    for file in ["plain", "two words 0 3"] {
        match there_and_back(server, &mut worker, file) {
            Ok(compared) => assert_eq!(compared, kind),
            Err(error) => assert!(kind.is_none() && matches!(error, ClientError::NoChecksum), "{error}"),
        }
    }
}

/// Puts a file and gets it again; returns the checksums that were compared.
fn there_and_back(server: &Server, worker: &mut Worker, name: &str) -> Result<Option<HashKind>, ClientError> {
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("source"), content()).unwrap();
    let file = File::open(files.path().join("source")).unwrap();
    let remote = server.path.join(name);
    let put = worker.put(&file, &remote, |_| ())?;
    let target = Folder::open(files.path()).unwrap().target(Path::new("got")).unwrap();
    let got = worker.get(&remote, &target, |_| ())?;
    assert!(fs::read(files.path().join("got")).unwrap() == content());
    assert_eq!(put.checksum, got.checksum);
    Ok(got.checksum.map(Digest::kind))
}
