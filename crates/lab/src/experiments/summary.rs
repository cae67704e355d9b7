//! Tables that sum up an experiment, for its report and its page; readers quote these.

use super::result::ExperimentResult;
use super::table::Table;
use super::{fit_harm, head_to_head, sobas_queues};

/// Returns the tables of a result; most experiments have none, and users' experiments never have one.
pub(crate) fn tables(result: &ExperimentResult) -> Vec<Table> {
    if result.file.is_some() {
        return Vec::new();
    }
    match result.id.as_str() {
        fit_harm::ID | fit_harm::PAIR_ID => fit_harm::quoted(result),
        sobas_queues::ID => sobas_queues::gains(result),
        head_to_head::ID => head_to_head::quoted(result),
        _ => Vec::new(),
    }
}
