//! Properties of the daemon's parsers, for any bytes in its configuration file and at its control socket. Each function
//! panics where one does not hold.

use bufwise_host::control::message::parse_request;
use bufwise_host::daemon::{self, Options};

use crate::local::file;

/// A configuration file gives settings, or an error in one line that names the file. A reload gives the same.
pub fn configuration(data: &[u8]) {
    let file = file(data);
    let check = || daemon::check(Some(file.path()), &Options::default()).map_err(|error| error.to_string());
    let checked = check();
    assert_eq!(check(), checked);
    if let Err(line) = checked {
        assert_eq!(line.lines().count(), 1, "{line:?}");
        assert!(line.contains(&file.path().display().to_string()), "{line:?}");
    }
}

/// A client's line gives a request, which is the same when it is written and read again, or an error in one line.
pub fn request(data: &[u8]) {
    match parse_request(data) {
        Ok(request) => {
            let written = serde_json::to_vec(&request).expect("a request can be written");
            assert_eq!(parse_request(&written), Ok(request));
        }
        Err(line) => assert_eq!(line.lines().count(), 1, "{line:?}"),
    }
}
