//! A table of results, for a report and a page.

/// A title, the heads of the columns, and rows, each with its head.
pub(crate) struct Table {
    pub(crate) title: String,
    /// Sentences between the title and the rows; may be empty.
    pub(crate) note: String,
    /// Head of the column with the rows' heads.
    pub(crate) of: &'static str,
    /// Heads of the other columns.
    pub(crate) heads: Vec<&'static str>,
    /// Parts of a value between two `**` miss a target.
    pub(crate) rows: Vec<(String, Vec<String>)>,
}
