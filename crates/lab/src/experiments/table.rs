//! A table of results, for a report and a page.

/// A title, the heads of the columns, and rows, each with its head.
pub(crate) struct Table {
    pub(crate) title: String,
    /// Head of the column with the rows' heads.
    pub(crate) of: &'static str,
    /// Heads of the other columns.
    pub(crate) heads: Vec<&'static str>,
    pub(crate) rows: Vec<(String, Vec<String>)>,
}
