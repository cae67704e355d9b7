//! Remarks on runs that `bufwise run` tuned from user space.
//!
//! It does so by itself where it may not load its programs into the kernel, as in a container without the privilege. The rules are the
//! same, but see the connections less often and set less, so such a run must not be taken for one of the programs in the kernel.

use serde_json::Value;

/// Returns the remarks on the reports of `bufwise run` around the clients and around the servers, each once.
pub(super) fn notes(clients: &[Value], servers: Option<&Value>) -> Vec<String> {
    let mut notes: Vec<String> = clients.iter().filter_map(|report| note("clients", report)).collect();
    notes.extend(servers.and_then(|report| note("servers", report)));
    notes.dedup();
    notes
}

/// Returns the remark on the report of `bufwise run` around the programs `around`; `None`: the kernel's programs tuned.
fn note(around: &str, report: &Value) -> Option<String> {
    let text = |key: &str| report.get(key).and_then(Value::as_str);
    let reason = text("engine_reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    let is_from_user_space = text("engine") == Some("user");
    is_from_user_space
        .then(|| format!("`bufwise run` tuned the {around} from user space, not in the kernel{reason}"))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_engine_in_user_space_is_noted_once_for_each_end_with_its_reason() {
        let kernel = json!({ "engine": "kernel", "engine_reason": null });
        let user = json!({ "engine": "user", "engine_reason": "cannot load: EPERM" });
        assert!(notes(&[], None).is_empty() && notes(from_ref(&kernel), Some(&kernel)).is_empty());
        let of = |end: &str| {
            format!("`bufwise run` tuned the {end} from user space, not in the kernel (cannot load: EPERM)")
        };
        assert_eq!(notes(&[user.clone(), user.clone()], Some(&kernel)), [of("clients")]);
        assert_eq!(notes(from_ref(&user), Some(&user)), [of("clients"), of("servers")]);
        let asked_for = json!({ "engine": "user", "engine_reason": null });
        assert!(notes(&[asked_for], None)[0].ends_with(" not in the kernel"));
    }
}
