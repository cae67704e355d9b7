//! Properties of the parsers of what people write: traces of links, experiments, users' files, netrc files, addresses. Each
//! function panics where one does not hold.

use std::io::{Seek, Write};
use std::path::Path;

use bufwise_ftp::client::{Netrc, Url, UrlError};
use bufwise_ftp::server::Users;
use bufwise_lab::experiments::{Policies, parse, show};
use bufwise_link::{Direction, DirectionConfig, Fate, Trace};
use bufwise_units::{BitRate, Nanos};

/// Longest time on a link: a trace may begin anew each millisecond.
const LONGEST: Nanos = Nanos(2_000_000_000);

/// A trace's steps are in order, and no packet arrives before it was sent; or it gives an error in one line.
pub fn trace(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let trace: Trace = match text.parse() {
        Ok(trace) => trace,
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1),
    };
    let steps = trace.steps();
    assert!(!steps.is_empty() && steps.windows(2).all(|pair| pair[0].at < pair[1].at));
    let mut times: Vec<Nanos> =
        steps.iter().map(|step| step.at).filter(|at| *at <= LONGEST).take(64).collect();
    times.push(LONGEST);
    let rate = Some(BitRate(1_000_000));
    let config = DirectionConfig { rate, trace: Some(trace), ..DirectionConfig::default() };
    let mut direction = Direction::new(config, 1).expect("a trace that was read fits any link");
    for now in times {
        if let Fate::Deliver { at } = direction.offer(now, 1_500) {
            assert!(at >= now);
        }
    }
}

/// An experiment's file gives an experiment that takes some time, and that is the same after it was written and read again; or it
/// gives an error in one line.
pub fn experiment(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text, "fuzzed", &Policies::ANY) {
        Ok(experiment) => {
            assert!(experiment.seconds(true, None) > 0 && experiment.seconds(false, Some(u32::MAX)) > 0);
            // Writing it compares what is read again.
            assert!(show(&experiment).is_some(), "{experiment:?}");
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
}

/// A file in memory that only its owner may read.
pub(crate) fn file(data: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
    file.write_all(data).expect("memory enough");
    file.rewind().expect("it is a file");
    file
}

fn is_one_line(error: &dyn std::error::Error, path: &Path) {
    let line = error.to_string();
    assert!(line.lines().count() == 1 && line.contains(&path.display().to_string()), "{line:?}");
}

/// A users' file gives users with names that a log can show, or an error in one line, which repeats no hash.
pub fn users(data: &[u8]) {
    let file = file(data);
    match Users::from_file(file.path()) {
        Ok(users) => {
            assert!(!format!("{users:?}").contains('$'), "a hash is shown");
            let count = users.names().inspect(|(name, _)| assert!(users.contains(name))).count();
            assert!(users.names().all(|(name, _)| !name.is_empty() && !name.chars().any(char::is_control)));
            assert!(count <= data.split(|byte| *byte == b'\n').count());
        }
        Err(error) => {
            is_one_line(&error, file.path());
            assert!(!error.to_string().contains('$'), "{error}");
        }
    }
}

/// A netrc file gives logins whose words fit into a command, for any host that it may be asked for.
pub fn netrc(data: &[u8]) {
    let file = file(data);
    let netrc = match Netrc::read(file.path()) {
        Ok(netrc) => netrc.expect("it is there"),
        Err(error) => return is_one_line(&error, file.path()),
    };
    let text = String::from_utf8_lossy(data);
    for host in text.split_whitespace().take(8).chain(["localhost"]) {
        if let Ok(Some(login)) = netrc.find(host, None) {
            assert!(!login.user.chars().any(char::is_control));
            assert!(!format!("{login:?}").contains("password: Some(\""), "a password is shown");
        }
    }
}

/// An address names one host and one path, is the same again when it is written and read, and shows no password.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Url>() {
        Ok(url) => {
            let shown = url.to_string();
            assert!(shown.is_ascii() && !shown.chars().any(|c| c.is_control() || c == ' '), "{shown:?}");
            match shown.parse::<Url>() {
                // Characters that stand for themselves in what was read may be encoded in what is written.
                Err(UrlError::TooLong) => {}
                again => assert_eq!(again, Ok(url), "{shown}"),
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}
