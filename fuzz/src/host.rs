//! What must hold for any bytes in the daemon's configuration file and at its control socket. Each function panics if it
//! does not.

use std::io::{Seek, Write};

use crate::control::message::parse_request;
use crate::daemon;

/// What a daemon makes of its configuration file: settings, or one line that names the file. The same at every reload.
pub fn configuration(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
    file.write_all(data).expect("memory enough");
    file.rewind().expect("it is a file");
    let read = daemon::read(file.path());
    assert_eq!(daemon::read(file.path()), read);
    if let Err(line) = read {
        assert_eq!(line.lines().count(), 1, "{line:?}");
        assert!(line.contains(&file.path().display().to_string()), "{line:?}");
    }
}

/// What a daemon makes of a client's line: a request, which is the same when it is written and read again, or an error in
/// one line.
pub fn request(data: &[u8]) {
    match parse_request(data) {
        Ok(request) => {
            let written = serde_json::to_vec(&request).expect("a request can be written");
            assert_eq!(parse_request(&written), Ok(request));
        }
        Err(line) => assert_eq!(line.lines().count(), 1, "{line:?}"),
    }
}
