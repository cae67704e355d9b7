//! Common parts of the surveys of `fit`: the methods, by the end that is tuned.

use super::model::Method;

/// The policies, by the end that has `fit`.
const SENDS: &str = "fit,kernel";
const RECEIVES: &str = "kernel,fit";

/// Names of the methods that are judged, by the end that has `fit`.
pub(super) const SENDER: &str = "fit at the sender";
pub(super) const RECEIVER: &str = "fit at the receiver";
pub(super) const BOTH: &str = "fit at both";

/// The policies of the daemon, which `fit` is compared with.
pub(super) const PAIR: &str = "abt,sobas";

/// Buffer maximum that no path here reaches, bytes.
pub(super) const LARGE: u64 = 64 << 20;
/// Memory allowed besides that for the path, bytes.
pub(super) const SLACK: f64 = (256 << 10) as f64;

/// Returns the methods with `fit` at the server, which sends, at the client, and at both; otherwise like `like`.
pub(super) fn methods(like: &Method) -> [Method; 3] {
    by_end([SENDER, RECEIVER, BOTH], SENDS, RECEIVES, like)
}

/// Returns the methods with one policy at the server, which sends, another at the client, and both; otherwise like `like`.
pub(super) fn by_end(
    [sender, receiver, both]: [&'static str; 3],
    sends: &'static str,
    receives: &'static str,
    like: &Method,
) -> [Method; 3] {
    let method = |name, server, client| Method { name, server, client, ..like.clone() };
    [
        method(sender, Some(sends), None),
        method(receiver, None, Some(receives)),
        method(both, Some(sends), Some(receives)),
    ]
}
