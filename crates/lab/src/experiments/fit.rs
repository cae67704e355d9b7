//! Common parts of the surveys of `fit`: the methods, by the end that is tuned.

use super::model::Method;

/// The policies, by the end that has `fit`.
const SENDS: &str = "fit,kernel";
const RECEIVES: &str = "kernel,fit";

/// Names of the methods that are judged, by the end that has `fit`.
pub(super) const SENDER: &str = "fit at the sender";
pub(super) const RECEIVER: &str = "fit at the receiver";
pub(super) const BOTH: &str = "fit at both";

/// Buffer maximum that no path here reaches, bytes.
pub(super) const LARGE: u64 = 64 << 20;
/// Memory allowed besides that for the path, bytes.
pub(super) const SLACK: f64 = (256 << 10) as f64;

/// Returns the methods with `fit` at the server, which sends, at the client, and at both; otherwise like `like`.
pub(super) fn methods(like: &Method) -> [Method; 3] {
    let method = |name, server, client| Method { name, server, client, ..like.clone() };
    [
        method(SENDER, Some(SENDS), None),
        method(RECEIVER, None, Some(RECEIVES)),
        method(BOTH, Some(SENDS), Some(RECEIVES)),
    ]
}
