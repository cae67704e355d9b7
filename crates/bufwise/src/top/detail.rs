//! One connection: its values, its last minute, and the text of `explain` on it.

use bufwise_host::view::ConnectionView;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::lines::{Lines, MINUTE, spark};
use super::state::Opened;
use crate::figures::{rate, size, time};
use crate::ls::{beyond_base, process};
use crate::run::Treated;
use crate::terminal::{shortened, wrapped};

/// Widest path of a cgroup.
const CGROUP_WIDTH: usize = 200;
/// Width of the label before a picture of the last minute.
const LABEL: usize = 26;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, opened: &Opened) {
    let view = &opened.view;
    let mut lines = Lines::new(buffer, area);
    lines.last("Esc back  q leave  arrows scroll", Modifier::DIM);
    lines.first(&title(view, opened.is_gone), Modifier::BOLD);
    for line in figures(view) {
        lines.first(&line, Modifier::empty());
    }
    let largest = |samples: &[Option<u64>]| samples.iter().flatten().copied().max().unwrap_or_default();
    let label = format!("rate, at most {}", rate(largest(&opened.rates)));
    minute(&mut lines, &label, &opened.rates);
    let label = format!("RTT, at most {}", time(largest(&opened.rtts) as f64 / 1e6));
    minute(&mut lines, &label, &opened.rtts);
    lines.first("", Modifier::empty());
    let text = opened.explanation.as_deref().unwrap_or("It is being watched, for a second or more.");
    let text = wrapped(text, area.width.into());
    // The text may be shorter than when it was scrolled.
    let first = opened.scroll.min(text.len().saturating_sub(1));
    for line in &text[first..] {
        lines.first(line, Modifier::empty());
    }
}

/// Draws a label and the samples of the last minute.
fn minute(lines: &mut Lines<'_>, label: &str, samples: &[Option<u64>]) {
    if let Some(place) = lines.first(&format!("{label:<LABEL$}"), Modifier::empty()) {
        let before = (LABEL as u16).min(place.width);
        let width = (place.width - before).min(MINUTE);
        spark(lines.buffer(), Rect { x: place.x + before, width, ..place }, samples, Style::new());
    }
}

/// Returns both ends, the program and the state.
pub(crate) fn title(view: &ConnectionView, is_gone: bool) -> String {
    let state = if is_gone { "gone" } else { &view.state };
    format!("{} to {}: {}, {state}, {}", view.local, view.peer, process(view), view.congestion_control)
}

/// Returns the values of `ls`, in full.
pub(crate) fn figures(view: &ConnectionView) -> Vec<String> {
    let or_unknown = |figure: Option<String>| figure.unwrap_or_else(|| "not known".to_owned());
    let mut lines = vec![
        format!(
            "rate {}, BDP {}, limited by: {}",
            or_unknown(view.goodput_bps.map(rate)),
            or_unknown(view.bdp_bytes.map(size)),
            or_unknown(view.limited_by.map(|cause| cause.to_string())),
        ),
        format!(
            "RTT {}, base {}, {} over base",
            or_unknown(view.srtt_s.map(time)),
            or_unknown(view.min_rtt_s.map(time)),
            or_unknown(beyond_base(view).map(time)),
        ),
        format!(
            "windows: congestion {}, offered by the peer {}, offered to it {}",
            size(view.cwnd_bytes),
            size(view.send_window_bytes),
            size(view.receive_window_bytes),
        ),
        format!(
            "send queue {} of {}, receive queue {} of {}, {} beyond need",
            size(view.send_queued_bytes),
            size(view.send_buffer_bytes),
            size(view.receive_queued_bytes),
            size(view.receive_buffer_bytes),
            size(view.waste_bytes),
        ),
    ];
    lines.extend(place(view));
    lines.extend(settings(view));
    lines
}

/// Returns the container or cgroup, and the daemon's group, if they are known.
pub(crate) fn place(view: &ConnectionView) -> Option<String> {
    let kind = if view.container.is_some() { "container" } else { "cgroup" };
    let cgroup = view.cgroup_label().map(|name| format!("{kind} {}", shortened(&name, CGROUP_WIDTH)));
    let group = view.group.as_deref().map(|name| format!("group {name}"));
    let known: Vec<String> = cgroup.into_iter().chain(group).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// Returns the sizes that the daemon has set, by which policies, and why fit left something unchanged.
fn settings(view: &ConnectionView) -> Vec<String> {
    let (Some(policy), Some(tuned)) = (&view.policy, view.tuned) else {
        return vec!["no daemon sizes it".to_owned()];
    };
    let treated = Treated {
        tuned,
        application_set_send_buffer: view.application_set_send_buffer == Some(true),
        application_set_receive_buffer: view.application_set_receive_buffer == Some(true),
    };
    let mut lines = vec![format!("policies {}, {}: {treated}", policy.send, policy.receive)];
    lines.extend(tuned.fit.and_then(|fit| fit.left_to_kernel(&view.congestion_control)));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::draw::tests::picture;
    use super::super::keys::tests::press;
    use super::super::state::State;
    use super::super::state::tests::{connection, listing, state};
    use bufwise_host::view::{ConnectionView, PolicyNames, Tuned};
    use ratatui::crossterm::event::KeyCode;

    #[test]
    fn one_connection_with_its_figures_its_minute_and_its_sentences() {
        let mut state = state();
        press(&mut state, &[KeyCode::Enter]);
        state.explained(2, Some("Limited by send buffer.\n  Advice: a larger one.\n".to_owned()));
        let lines = picture(&state, 80, 14);
        assert_eq!(
            lines,
            [
                "198.18.0.1:40000 to 198.18.0.2:443: curl/7, established, cubic",
                "rate 9.0 Mbit/s, BDP 50.0 KB, limited by: application",
                "RTT 50.0 ms, base 40.0 ms, 10.0 ms over base",
                "windows: congestion 0 B, offered by the peer 0 B, offered to it 0 B",
                "send queue 100.0 KB of 4.00 MB, receive queue 0 B of 131.1 KB, 3.75 MB beyond ne",
                "no daemon sizes it",
                &format!("rate, at most 9.0 Mbit/s  {:>54}", '█'),
                &format!("RTT, at most 50.0 ms      {:>54}", '█'),
                "",
                "Limited by send buffer.",
                "  Advice: a larger one.",
                "",
                "",
                "Esc back  q leave  arrows scroll",
            ]
        );
    }

    #[test]
    fn the_end_of_long_sentences_is_in_reach_on_a_narrow_terminal() {
        let mut state = state();
        state.width = 40;
        press(&mut state, &[KeyCode::Enter]);
        let sentence = "  Its segments wait in a queue on the path, which a smaller window would avoid.\n";
        state.explained(2, Some(sentence.repeat(4) + "  This is the end.\n"));
        let lines = |state: &State| picture(state, 40, 14)[9..13].to_vec();
        let first = "  Its segments wait in a queue on the";
        let whole = [first, "  path, which a smaller window would", "  avoid."];
        assert_eq!(lines(&state)[..3], whole);
        press(&mut state, &[KeyCode::Down; 3]);
        assert_eq!(lines(&state)[..3], whole, "the next sentence");
        press(&mut state, &[KeyCode::Down; 30]);
        assert_eq!(lines(&state), ["  This is the end.", "", "", ""]);
        press(&mut state, &[KeyCode::Up]);
        assert_eq!(lines(&state), ["  avoid.", "  This is the end.", "", ""]);
        let wider = picture(&state, 120, 14);
        assert_eq!(wider[9], "  This is the end.", "fewer lines than were scrolled");
    }

    #[test]
    fn a_connection_that_ended_before_it_was_watched_again_keeps_its_last_sentences() {
        let mut state = state();
        press(&mut state, &[KeyCode::Enter]);
        let line = |state: &State| picture(state, 80, 14)[9].clone();
        state.explained(2, None);
        assert_eq!(line(&state), "It ended.");
        for text in [Some("Limited by path.\n".to_owned()), None] {
            state.explained(2, text);
            assert_eq!(line(&state), "Limited by path.");
        }
    }

    #[test]
    fn what_a_daemon_set_is_told_as_in_the_report_of_run() {
        let mut state = state();
        let policy = PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() };
        let tuned = Tuned { send_buffer_bytes: Some(1_200_000), send_changes: 3, ..Tuned::default() };
        let cgroup = Some("/system.slice/curl.service".to_owned());
        let group = Some("web".to_owned());
        let (policy, tuned) = (Some(policy), Some(tuned));
        let one = ConnectionView { cgroup, group, policy, tuned, ..connection(1, 9, "curl") };
        state.observe(listing(vec![one]));
        press(&mut state, &[KeyCode::Enter]);
        let line = "policies abt, sobas: bufwise set: send buffer 1.20 MB (3 changes)";
        assert_eq!(picture(&state, 90, 14)[5..7], ["cgroup /system.slice/curl.service, group web", line]);
    }
}
