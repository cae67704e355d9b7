//! Properties of the laboratory's parsers: of results, of its journal, and of the packets of the programs that it runs. Each function
//! panics where one does not hold.

use std::fs;
use std::sync::OnceLock;

use bufwise_lab::congestion::restore_from;
use bufwise_lab::csv;
use bufwise_lab::experiments::{Experiment, ExperimentResult, Samples, catalogue, join, markdown};
use bufwise_lab::page::{self, Recorded};
use bufwise_lab::segment::{Frame, MAX_HEADERS};
use bufwise_socket::vnet::VnetHeader;

/// Most bytes of a list of congestion controls.
const LONGEST_LIST: usize = 4_096;

/// Results, samples beside them and runs over paths, one a line, give a document, a page and tables, whatever names and figures they
/// have; no name is markup on the page.
pub fn results(data: &[u8]) {
    static KNOWN: OnceLock<Vec<Experiment>> = OnceLock::new();
    let (mut results, mut runs): (Vec<ExperimentResult>, Vec<Recorded>) = (Vec::new(), Vec::new());
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(run) = serde_json::from_slice::<Recorded>(line) {
            runs.push(Recorded { name: "<script>".to_owned(), ..run });
        } else if let Ok(result) = serde_json::from_slice(line) {
            results.push(result);
        } else if let (Ok(samples), Some(result)) =
            (serde_json::from_slice::<Samples>(line), results.last_mut())
        {
            samples.give(result);
        }
    }
    if results.is_empty() && runs.is_empty() {
        return;
    }
    let results = join(results, KNOWN.get_or_init(catalogue));
    let page = page::write(&results, &runs).expect("a page can be written");
    assert!(!page.contains("<script"), "{page}");
    for text in [
        markdown(&results, &runs),
        csv::runs(&results),
        csv::over_time(&results),
        csv::samples(&runs),
        csv::links(&runs),
    ] {
        assert!(text.is_ok_and(|text| text.ends_with('\n')));
    }
}

/// A journal of the list of allowed congestion controls is put back as far as it is no longer than a list, and is gone then; an empty
/// one changes nothing.
pub fn congestion(data: &[u8]) {
    const BEFORE: &str = "reno cubic bbr";
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let [journal, list] = ["journal", "list"].map(|name| directory.path().join(name));
    fs::write(&journal, data).and_then(|()| fs::write(&list, BEFORE)).expect("memory enough");
    let restored = restore_from(&journal, &list).expect("files in memory");
    let noted = String::from_utf8_lossy(&data[..data.len().min(LONGEST_LIST)]);
    assert_eq!(restored.as_deref(), Some(&*noted).filter(|noted| !noted.is_empty()));
    assert_eq!(fs::read_to_string(&list).expect("it is text"), restored.as_deref().unwrap_or(BEFORE));
    assert!(!journal.exists());
}

/// A frame of a TUN device is refused, or cut into packets that together carry what it carries; marking changes no length.
pub fn segment(data: &[u8]) {
    let Some((vnet, packet)) = VnetHeader::decode(data) else { return };
    let Ok(frame) = Frame::parse(vnet, packet) else { return };
    let packets = frame.wire_packets();
    let (mut scratch, mut marked) = ([0; MAX_HEADERS], [0; MAX_HEADERS]);
    let (whole, headers, payload) = frame.join(0..packets, false, &mut scratch);
    assert_eq!((whole, [headers, payload].concat().as_slice()), (vnet, packet));
    let at_once = 1 + usize::from(vnet.flags);
    let (mut carried, mut longest) = (0, 0);
    for first in (0..packets).step_by(at_once) {
        let range = first..packets.min(first + at_once);
        let (_, headers, payload) = frame.join(range.clone(), false, &mut scratch);
        let length = headers.len() + payload.len();
        let (_, other, rest) = frame.join(range.clone(), true, &mut marked);
        assert_eq!(other.len() + rest.len(), length);
        assert!(range.len() > 1 || frame.wire_len(first) == length);
        (carried, longest) = (carried + payload.len(), headers.len().max(longest));
    }
    // A whole frame is written as it is.
    assert!(at_once >= packets || longest + carried == packet.len());
}
