//! Properties of the daemon's parsers, for any bytes in its configuration file, at both ends of its control socket, in what it keeps
//! on disk, and in the names of containers. Each function panics where one does not hold.

use std::mem::discriminant;

use bufwise_host::caps::rewritten_journal;
use bufwise_host::containers::described;
use bufwise_host::control::Reply;
use bufwise_host::control::message::parse_request;
use bufwise_host::daemon::{self, Options};
use bufwise_host::history::{LENGTH, MAX_TEXT, Moment, rewritten_file};
use bufwise_host::view::Listing;

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

/// A daemon's answer is one that can be written and read again, and its list completes another one whatever its figures are.
pub fn answer(data: &[u8]) {
    let Ok(reply) = serde_json::from_slice::<Reply>(data) else { return };
    let written = serde_json::to_vec(&reply).expect("a reply can be written");
    let again: Reply = serde_json::from_slice(&written).expect("what was written can be read");
    // A number with a fraction may come back with another last digit.
    assert_eq!(discriminant(&again), discriminant(&reply));
    match reply {
        Reply::List(list) => {
            let most = list.connections.len();
            let listing = Listing::default().with_daemon(*list);
            assert!(listing.connections.len() <= most && listing.summary.connections <= most as u64);
            for one in &listing.connections {
                let _ = (one.roof(), one.cgroup_label());
            }
        }
        Reply::Metrics(snapshot) => {
            let all = &snapshot.distributions;
            for histogram in [&all.round_trip, &all.window, &all.waste] {
                assert!(histogram.cumulative().map(|(_, count)| count).is_sorted());
            }
        }
        _ => {}
    }
}

/// A history's file is another one's, or it is as it was after a second start: bounded, with the same moments, and without
/// malformed lines.
pub fn history(data: &[u8]) {
    let Some((once, _)) = rewritten_file(data) else { return };
    let moments = moments(&once);
    // The first line and the line ends.
    assert!(moments.len() <= LENGTH && once.len() <= MAX_TEXT + LENGTH + 64);
    let (twice, wrong) = rewritten_file(&once).expect("what was written is a history");
    assert_eq!((wrong, self::moments(&twice)), (0, moments));
}

/// Returns the time of each moment, and how many connections and groups it has. Numbers with a fraction may come back with another
/// last digit.
fn moments(file: &[u8]) -> Vec<(u64, [usize; 3])> {
    let lines = file.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty());
    let moment = |line| {
        let moment: Moment = serde_json::from_slice(line).expect("what was written can be read");
        (moment.time_s, [moment.connections.len(), moment.prefixes.len(), moment.cgroups.len()])
    };
    lines.map(moment).collect()
}

/// A journal of changed settings has lines that stay the same when they are read and written again.
pub fn journal(data: &[u8]) {
    let once = rewritten_journal(data);
    assert_eq!(rewritten_journal(once.as_bytes()), once);
    assert!(once.lines().count() <= data.split(|byte| *byte == b'\n').count());
}

/// The first line is a cgroup's path, the rest the specification of its container: names are bounded and hold no markup, and no
/// cgroup inside has another container.
pub fn container(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (path, specification) = (String::from_utf8_lossy(&data[..end]), &data[end..]);
    let Some(container) = described(&path, specification) else { return };
    let is_hexadecimal =
        |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    assert!(container.id.len() == 64 && is_hexadecimal(&container.id));
    assert!(container.pod_uid.as_ref().is_none_or(|uid| uid.len() <= 36 && is_hexadecimal(uid)));
    for name in [&container.namespace, &container.pod, &container.container].into_iter().flatten() {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.?".contains(&byte);
        assert!((1..=253).contains(&name.len()) && name.bytes().all(is_allowed), "{name:?}");
    }
    let label = container.label();
    assert!(container.matches(&label) && container.matches(&container.id), "{label:?}");
    let inside = format!("{path}/docker-{}.scope", "f".repeat(64));
    assert_eq!(described(&inside, specification), Some(container));
}
