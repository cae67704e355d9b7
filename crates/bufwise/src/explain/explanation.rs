//! One connection explained: what was seen of it, at both ends if they are on this host, and what follows.

use bufwise_host::history::Kept;
use bufwise_host::judge::{BufferOwner, Case, Direction, Limited, Outlook, Roof};
use bufwise_host::view::{ConnectionView, PolicyNames};
use bufwise_socket::options::BufferLock;
use serde::Serialize;

use super::by_run::{self, ByRun};
use super::ends::OtherEnd;
use super::sentences;
use super::watch::Watched;
use crate::top::detail;

/// Share of the time from which on a slow reader at the other end explains the limit by the receive window.
const READS_SLOWLY: f64 = 0.2;

/// One connection explained.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    #[serde(flatten)]
    pub(super) view: ConnectionView,
    /// Share of the segments that were retransmitted.
    pub(super) loss: f64,
    /// Seconds that segments spend in a queue; `null` without evidence of one.
    pub(super) queueing_delay_s: Option<f64>,
    /// Share of the time in which data passed, if it came in bursts.
    pub(super) moving: Option<f64>,
    /// Whether a `bufwise run` tunes it.
    pub(super) tuned_by_run: bool,
    /// The `bufwise run` in which it is.
    #[serde(skip)]
    pub(super) by_run: Option<ByRun>,
    /// Which buffers were set explicitly; `None` if the socket cannot be reached.
    #[serde(skip)]
    pub(super) locked: Option<BufferLock>,
    /// Its other end, if that is on this host.
    pub(super) other_end: Option<OtherEnd>,
    pub(super) sentences: Vec<String>,
    pub(super) advice: String,
    /// The change that `fit` would make, at either end.
    pub(super) fit_would: Outlook,
}

impl Explanation {
    pub(super) fn new(
        watched: Watched,
        known: Option<&ConnectionView>,
        other: Option<OtherEnd>,
        memory_short: bool,
    ) -> Self {
        let Watched { mut view, locked, by_run, queue_s, moving, retransmitted_now } = watched;
        if let Some(known) = known {
            view.take_over(known);
        }
        // A daemon knows the owners of the buffers only of connections that it sizes.
        if let Some(lock) = locked.filter(|_| view.policy.is_none()) {
            // A lock of a buffer that `run` sizes may be its own.
            let by_program = |side, is_set: bool| (!is_sized(by_run, side)).then_some(is_set);
            view.application_set_send_buffer = by_program(Direction::Send, lock.send);
            view.application_set_receive_buffer = by_program(Direction::Receive, lock.receive);
        }
        if let Some(limited) = view.limited.as_mut().filter(|_| view.direction == Direction::Send) {
            hear_reader(limited, other.as_ref());
            view.limited_by = Some(limited.by_cause()[0].0);
        }
        // The other end shows a slow reader: acknowledgements wait for it, which looks like a queue to the sender.
        let queue_s = queue_s.filter(|_| view.limited.is_none_or(|limited| limited.reader < READS_SLOWLY));
        let case = case(&view, by_run, locked);
        let case = Case { queue_s, retransmitted_now: Some(retransmitted_now), memory_short, ..case };
        let mut explanation = Self {
            loss: case.loss(),
            queueing_delay_s: queue_s,
            moving,
            tuned_by_run: is_sized(by_run, Direction::Send) || is_sized(by_run, Direction::Receive),
            by_run,
            locked,
            other_end: other,
            sentences: Vec::new(),
            advice: case.advice(),
            fit_would: case.outlook(),
            view,
        };
        explanation.sentences = sentences::of(&explanation);
        explanation
    }

    /// Explains a past connection, which was judged once over an interval of `seconds`.
    pub(crate) fn of_the_past(one: Kept, seconds: f64, memory_short: bool) -> Self {
        let Kept { mut view, queueing_delay_s, retransmitted } = one;
        view.limited = view.limited_by.map(Limited::by);
        let watched = Watched {
            locked: None,
            by_run: view.cgroup.as_deref().and_then(by_run::of_cgroup),
            queue_s: queueing_delay_s,
            moving: None,
            retransmitted_now: retransmitted,
            view,
        };
        let mut explanation = Self::new(watched, None, None, memory_short);
        // A single judgement is not a share of the time.
        explanation.view.limited = None;
        explanation.sentences[0] = match explanation.view.limited_by {
            Some(cause) => format!("Limited by {cause}, over {seconds:.0} s."),
            None => "It was new then: what limited it is not known.".to_owned(),
        };
        explanation
    }

    /// Returns the text for a reader in the network namespace `home`.
    pub(crate) fn to_text(&self, home: &str) -> String {
        let view = &self.view;
        let (way, preposition) = match view.direction {
            Direction::Send => ("sending", "to"),
            Direction::Receive => ("receiving", "from"),
        };
        let process = match (&view.process, view.pid) {
            (Some(name), Some(pid)) => format!("{name} ({pid}), "),
            _ => String::new(),
        };
        let place = match view.netns.as_str() {
            netns if netns == home => String::new(),
            netns => format!(", in network namespace {netns}"),
        };
        let head = format!(
            "{}, {way} {preposition} {}: {process}{}, {}{place}",
            view.local, view.peer, view.state, view.congestion_control
        );
        let place = detail::place(view).map(|place| format!("  In {place}.\n")).unwrap_or_default();
        let body: String = self.sentences.iter().map(|sentence| format!("  {sentence}\n")).collect();
        let (advice, fit) = (&self.advice, &self.fit_would.sentence);
        format!("{head}\n{body}{place}  Advice: {advice}\n  Would fit help? {fit}\n")
    }
}

/// Attributes a limit by the receive window to the reader, if the other end shows that the reader is slow.
fn hear_reader(limited: &mut Limited, other: Option<&OtherEnd>) {
    let reads_slowly =
        other.and_then(|other| other.limited).is_some_and(|other| other.reader >= READS_SLOWLY);
    if reads_slowly {
        limited.reader += std::mem::take(&mut limited.receive_window);
    }
}

/// Returns whether a `bufwise run` sizes the connection's buffer of that direction.
pub(super) fn is_sized(by_run: Option<ByRun>, side: Direction) -> bool {
    by_run.is_some_and(|run| run.sizes(side))
}

/// Returns whether a `bufwise run` without root sizes the connection and has left its send buffer to the kernel, because
/// its size exceeds the host's maxima or no share binds.
fn is_left(by_run: Option<ByRun>, locked: Option<BufferLock>) -> bool {
    by_run.is_some_and(|run| run.without_root) && locked.is_some_and(|lock| !lock.send)
}

fn case(view: &ConnectionView, by_run: Option<ByRun>, locked: Option<BufferLock>) -> Case {
    let of_run = by_run.and_then(|run| run.choice).map(PolicyNames::from);
    let policy = view.policy.as_ref().or(of_run.as_ref());
    let is_quiet = |name: &str| matches!(name, "sobas" | "fit");
    let owner = |by_application: Option<bool>, by_bufwise: bool, policy: Option<&str>| {
        if by_application == Some(true) {
            BufferOwner::Application
        } else if by_run.is_some() && policy == Some("kernel") {
            BufferOwner::Kernel
        } else if by_run.is_some() || by_bufwise {
            if policy.is_some_and(is_quiet) { BufferOwner::Sobas } else { BufferOwner::Policy }
        } else {
            BufferOwner::Kernel
        }
    };
    let tuned = view.tuned.unwrap_or_default();
    let is_tuned = view.tuned.is_some() || by_run.is_some();
    let is_fit =
        |name: fn(&PolicyNames) -> &String| is_tuned && policy.is_some_and(|policy| name(policy) == "fit");
    let (fit_sends, fit_receives) = (is_fit(|policy| &policy.send), is_fit(|policy| &policy.receive));
    let send = owner(
        view.application_set_send_buffer,
        tuned.send_buffer_bytes.is_some(),
        policy.map(|policy| policy.send.as_str()),
    );
    Case {
        direction: view.direction,
        limited: view.limited,
        send: match send {
            BufferOwner::Sobas | BufferOwner::Policy if is_left(by_run, locked) => BufferOwner::Unprivileged,
            send => send,
        },
        receive: owner(
            view.application_set_receive_buffer,
            tuned.receive_window_bytes.is_some() || tuned.receive_buffer_bytes.is_some(),
            policy.map(|policy| policy.receive.as_str()),
        ),
        roof: match view.roof() {
            // Apart from its shares, which seldom bind, `run` with fit sets no other bound of the rate.
            Roof::Bound if fit_sends => Roof::Limits,
            roof => roof,
        },
        segments_out: view.segments_out,
        retransmits: view.retransmits,
        retransmitted_now: None,
        min_rtt_s: view.min_rtt_s.unwrap_or_default(),
        queue_s: None,
        goodput_bps: view.goodput_bps.unwrap_or_default(),
        paces_itself: !matches!(view.congestion_control.as_str(), "cubic" | "reno"),
        has_fit: match view.direction {
            Direction::Send => fit_sends,
            Direction::Receive => fit_receives,
        },
        memory_short: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;
    use bufwise_host::judge::Cause;
    use bufwise_host::view::Tuned;

    #[test]
    fn without_root_a_send_buffer_that_is_left_to_the_kernel_meets_the_hosts_maxima() {
        let explained = |policy: &str, without_root, set| {
            let view = ConnectionView { limited: Some(Limited::by(Cause::SendBuffer)), ..connection_view() };
            let locked = Some(BufferLock { send: set, receive: false });
            let by_run = Some(ByRun { choice: policy.parse().ok(), without_root });
            let watched = Watched { view, locked, by_run, queue_s: None, moving: None, retransmitted_now: 0 };
            Explanation::new(watched, None, None, false)
        };
        let left = explained("abt,sobas", true, false);
        assert!(left.advice.ends_with("or raise tcp_wmem."), "{}", left.advice);
        let setter = "(left to the kernel by `bufwise run` without root)";
        assert!(left.sentences.iter().any(|one| one.contains(setter)), "{:?}", left.sentences);
        for (without_root, set) in [(true, true), (false, false)] {
            let sized = explained("abt,sobas", without_root, set);
            assert!(sized.advice.contains("--memory"), "{}", sized.advice);
            assert!(!sized.sentences.concat().contains("left to the kernel"), "{:?}", sized.sentences);
        }
        let unsized_side = explained("kernel,fit", true, false);
        assert!(unsized_side.advice.contains("--policy abt"), "{}", unsized_side.advice);
    }

    #[test]
    fn a_daemon_that_does_not_size_a_connection_hides_nothing_that_the_socket_shows() {
        let view = ConnectionView { limited: Some(Limited::by(Cause::SendBuffer)), ..connection_view() };
        let locked = Some(BufferLock { send: true, receive: false });
        let watched =
            Watched { view, locked, by_run: None, queue_s: None, moving: None, retransmitted_now: 0 };
        let seen = Explanation::new(watched, Some(&connection_view()), None, false);
        assert_eq!(seen.view.application_set_send_buffer, Some(true));
        assert!(seen.sentences.concat().contains("(set by the program itself)"), "{:?}", seen.sentences);
        assert!(seen.advice.contains("The program's own SO_SNDBUF"), "{}", seen.advice);
    }

    #[test]
    fn the_programs_own_bound_of_its_rate_is_named_beside_a_daemon_too() {
        let view = ConnectionView { pacing_limit_bps: Some(10_000_000), ..connection_view() };
        let explained = |tuned: Option<Tuned>| {
            let view = view.clone();
            let (locked, by_run, queue_s, moving) = (None, None, None, None);
            let watched = Watched { view, locked, by_run, queue_s, moving, retransmitted_now: 0 };
            let known = ConnectionView { tuned, ..connection_view() };
            Explanation::new(watched, Some(&known), None, false).sentences.concat()
        };
        let own = "Its rate is held to at most 10.0 Mbit/s (SO_MAX_PACING_RATE).";
        for tuned in [None, Some(Tuned::default())] {
            assert!(explained(tuned).contains(own), "{}", explained(tuned));
        }
        let share = Tuned { rate_bound_bps: Some(9_000_000), ..Tuned::default() };
        let told = explained(Some(share));
        assert!(told.contains("9.0 Mbit/s (its share of the memory)") && !told.contains(own), "{told}");
    }

    #[test]
    fn a_buffer_that_a_run_leaves_alone_is_not_said_to_be_its() {
        let explained = |policy: &str, without_root, set| {
            let locked = Some(BufferLock { send: set, receive: false });
            let by_run = Some(ByRun { choice: policy.parse().ok(), without_root });
            let view = connection_view();
            let watched = Watched { view, locked, by_run, queue_s: None, moving: None, retransmitted_now: 0 };
            Explanation::new(watched, None, None, false)
        };
        for without_root in [true, false] {
            let kernels = explained("kernel,fit", without_root, false);
            assert!(kernels.sentences.concat().contains("(sized by the kernel)"), "{:?}", kernels.sentences);
            let programs = explained("kernel,fit", without_root, true);
            let set = "(set by the program itself)";
            assert!(programs.sentences.concat().contains(set), "{:?}", programs.sentences);
            let either = explained("fit", without_root, true).sentences.concat();
            assert!(either.contains("unless the program set it"), "{either}");
            assert!(programs.tuned_by_run && !explained("kernel", without_root, false).tuned_by_run);
        }
    }
}
