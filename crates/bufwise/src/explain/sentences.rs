//! Sentences on one connection; each states a measurement, or is left out.

use bufwise_host::judge::Direction;
use bufwise_host::view::ConnectionView;

use super::explanation::{Explanation, is_sized};
use crate::figures::{rate, size, time};

/// Excess of the round trip over its minimum below which it is not mentioned, in seconds.
const LONGER: f64 = 0.005;
/// Bandwidth-delay product below which buffers are not judged, in bytes: two segments.
const LEAST_BDP: u64 = 2_896;

/// Returns all sentences that apply.
pub(super) fn of(one: &Explanation) -> Vec<String> {
    let view = &one.view;
    let sentences = [
        Some(limit_sentence(view)),
        other_end_sentence(one),
        rate_sentence(view),
        one.moving.map(|share| {
            format!("Its data comes in bursts: some passed in {:.0}% of the time watched.", share * 100.0)
        }),
        bound_sentence(one),
        send_buffer_sentence(one),
        receive_buffer_sentence(one),
        Some(window_sentence(view)),
        loss_sentence(view, one.loss),
        queue_sentence(one),
    ];
    sentences.into_iter().flatten().collect()
}

fn limit_sentence(view: &ConnectionView) -> String {
    view.limited.map_or_else(
        || "It was seen only once: what limited it is not known.".to_owned(),
        |limited| format!("Limited by {limited} of the time watched."),
    )
}

fn other_end_sentence(one: &Explanation) -> Option<String> {
    let other = one.other_end.as_ref()?;
    let place = if other.netns == one.view.netns {
        String::new()
    } else {
        format!(", in network namespace {}", other.netns)
    };
    let program = other.program().map(|program| format!(": {program}")).unwrap_or_default();
    Some(format!("Its other end is on this host{place}{program}."))
}

fn rate_sentence(view: &ConnectionView) -> Option<String> {
    let moves = match view.goodput_bps? {
        0 => "Nothing moves now".to_owned(),
        goodput => format!("It moves {}", rate(goodput)),
    };
    let path = match (view.bdp_bytes, view.min_rtt_s, view.direction) {
        (Some(bdp @ LEAST_BDP..), Some(least), Direction::Send) => format!(
            "; the BDP is {}: a delivery rate of {} over {}",
            size(bdp),
            rate(view.delivery_rate_bps),
            time(least)
        ),
        (Some(bdp @ LEAST_BDP..), Some(least), Direction::Receive) => {
            format!("; that is {} per round trip of {} (BDP)", size(bdp), time(least))
        }
        _ => String::new(),
    };
    Some(format!("{moves}{path}."))
}

/// States the bound of a sender's rate, or why fit leaves the rate to the kernel.
fn bound_sentence(one: &Explanation) -> Option<String> {
    let view = Some(&one.view).filter(|view| view.direction == Direction::Send)?;
    let tuned = view.tuned.unwrap_or_default();
    if let Some(bound) = tuned.rate_bound_bps {
        let unsent =
            tuned.unsent_bytes.map(|unsent| format!(", and {} may be written ahead of it", size(unsent)));
        let (bound, unsent) = (rate(bound), unsent.unwrap_or_default());
        return Some(format!("Its rate is held to at most {bound} ({}){unsent}.", tuned.bound_by()));
    }
    // Fit may have set a bound since the daemon's list, so beside fit no bound counts as a program's.
    if let Some(fit) = tuned.fit {
        let why = fit.why(&view.congestion_control)?;
        return Some(format!("Fit leaves its rate to the kernel: {why}."));
    }
    let bound = rate(view.pacing_limit_bps?);
    let by = if is_sized(one.by_run, Direction::Send) { ", set by `bufwise run`" } else { "" };
    Some(format!("Its rate is held to at most {bound} (SO_MAX_PACING_RATE{by})."))
}

fn send_buffer_sentence(one: &Explanation) -> Option<String> {
    let view = &one.view;
    let (limit, need) = (view.send_buffer_bytes, view.send_need_bytes);
    let set = view.tuned.and_then(|tuned| tuned.send_buffer_bytes);
    let setter = setter(one, Direction::Send, view.application_set_send_buffer, set);
    let matters = view.direction == Direction::Send || need > limit;
    matters.then(|| buffer_sentence("send", limit, view.send_queued_bytes, need, &setter))
}

fn receive_buffer_sentence(one: &Explanation) -> Option<String> {
    let view = &one.view;
    let (limit, need) = (view.receive_buffer_bytes, view.receive_need_bytes);
    let set = view.tuned.and_then(|tuned| tuned.receive_buffer_bytes.or(tuned.receive_window_bytes));
    let setter = setter(one, Direction::Receive, view.application_set_receive_buffer, set);
    let matters = view.direction == Direction::Receive || need > limit;
    matters.then(|| buffer_sentence("receive", limit, view.receive_queued_bytes, need, &setter))
}

/// States whether the program, bufwise or the kernel set the buffer of that direction.
fn setter(
    one: &Explanation,
    side: Direction,
    by_application: Option<bool>,
    by_bufwise: Option<u64>,
) -> String {
    if let Some(run) = one.by_run.filter(|run| run.sizes(side)) {
        let is_left = one.locked.is_some_and(|lock| match side {
            Direction::Send => !lock.send,
            Direction::Receive => !lock.receive,
        });
        if run.without_root && is_left {
            return "left to the kernel by `bufwise run` without root".to_owned();
        }
        let root = if run.without_root { " without root" } else { "" };
        return format!("sized by `bufwise run`{root}, unless the program set it: its report will tell");
    }
    match (by_application, by_bufwise) {
        (Some(true), _) => "set by the program itself".to_owned(),
        (_, Some(_)) => "set by bufwise".to_owned(),
        (Some(false), None) => "sized by the kernel".to_owned(),
        (None, None) => "set by the kernel or the program".to_owned(),
    }
}

fn buffer_sentence(side: &str, limit: u64, queued: u64, need: u64, setter: &str) -> String {
    let verdict = match need {
        0 => String::new(),
        _ if limit < need => format!(", less than the {} that this rate needs", size(need)),
        _ => format!(", enough for the {} that this rate needs", size(need)),
    };
    format!("Its {side} buffer may hold {} ({setter}){verdict}; {} are in use.", size(limit), size(queued))
}

/// States the windows of a sender; of a receiver only the one that it offers, because its own congestion window applies
/// to its requests.
fn window_sentence(view: &ConnectionView) -> String {
    match view.direction {
        Direction::Send => format!(
            "Windows: congestion {}, offered by the peer {}.",
            size(view.cwnd_bytes),
            size(view.send_window_bytes)
        ),
        Direction::Receive => {
            format!("The window offered to the peer is {}.", size(view.receive_window_bytes))
        }
    }
}

fn loss_sentence(view: &ConnectionView, loss: f64) -> Option<String> {
    match (view.segments_out, view.retransmits) {
        (0, _) => None,
        (1, 0) => Some("Its only segment did not have to be repeated.".to_owned()),
        (out, 0) => Some(format!("None of its {out} segments had to be repeated.")),
        (out, retransmitted) => {
            Some(format!("{retransmitted} of its {out} segments had to be repeated ({:.2}%).", loss * 100.0))
        }
    }
}

fn queue_sentence(one: &Explanation) -> Option<String> {
    let view = &one.view;
    let (now, least) = (view.srtt_s?, view.min_rtt_s?);
    if let Some(queue) = one.queueing_delay_s {
        let (queue, now, least) = (time(queue), time(now), time(least));
        return Some(format!(
            "Its segments wait {queue} in a queue (round trip now {now}, at least {least})."
        ));
    }
    (view.goodput_bps > Some(0) && now > least + LONGER).then(|| {
        let (now, least) = (time(now), time(least));
        format!("Its round trip is {now}, at least {least}; there is no evidence of a standing queue.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;

    #[test]
    fn a_single_segment_is_told_in_the_singular() {
        let told = |segments_out, retransmits| {
            loss_sentence(&ConnectionView { segments_out, retransmits, ..connection_view() }, 0.5)
        };
        assert_eq!(told(0, 0), None);
        assert_eq!(told(1, 0).as_deref(), Some("Its only segment did not have to be repeated."));
        assert_eq!(told(2, 1).as_deref(), Some("1 of its 2 segments had to be repeated (50.00%)."));
    }
}
