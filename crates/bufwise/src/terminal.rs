//! Measures, aligns and shortens text by the columns that it takes in a terminal: a Chinese, Japanese or Korean letter takes two
//! columns, a combining mark takes none.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns the number of columns that `text` takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Returns `text` at the left of `columns` columns; a wider text stays as it is.
pub(crate) fn left(text: &str, columns: usize) -> String {
    format!("{text}{}", rest(text, columns))
}

/// Returns `text` at the right of `columns` columns; a wider text stays as it is.
pub(crate) fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", rest(text, columns))
}

/// Returns the blanks that fill up `columns` columns.
fn rest(text: &str, columns: usize) -> String {
    " ".repeat(columns.saturating_sub(text.width()))
}

/// Returns `text` in at most `columns` columns, which must be one or more: a wider text loses its middle.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let (head, tail) = ((columns - 1) / 2, columns / 2);
    let starts = text.char_indices().map(|(at, _)| &text[..at]);
    let ends = text.char_indices().rev().map(|(at, _)| &text[at..]);
    let start = starts.take_while(|start| start.width() <= head).last().unwrap_or_default();
    let end = ends.take_while(|end| end.width() <= tail).last().unwrap_or_default();
    // A mark belongs to the letter before it.
    let end = end.trim_start_matches(|letter: char| letter.width() == Some(0));
    format!("{start}~{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three letters of two columns each.
    const WIDE: &str = "\u{65e5}\u{672c}\u{8a9e}";
    /// Four letters, the last of which has a combining mark.
    const MARKED: &str = "cafe\u{301}";

    #[test]
    fn wide_letters_take_two_columns_and_marks_none() {
        assert_eq!([width("rsync"), width(WIDE), width(MARKED), width("")], [5, 6, 4, 0]);
        assert_eq!((left(WIDE, 8), right(WIDE, 8)), (format!("{WIDE}  "), format!("  {WIDE}")));
        assert_eq!((left(MARKED, 5), right(MARKED, 5)), (format!("{MARKED} "), format!(" {MARKED}")));
        assert_eq!((left(WIDE, 5), right(WIDE, 6)), (WIDE.to_owned(), WIDE.to_owned()));
    }

    #[test]
    fn a_text_that_is_too_wide_loses_its_middle() {
        assert_eq!(shortened("a-database", 10), "a-database");
        assert_eq!(shortened("a-database-with-a-name", 12), "a-dat~a-name");
        assert_eq!(shortened(&WIDE.repeat(3), 7), "\u{65e5}~\u{8a9e}");
        assert_eq!(shortened(&MARKED.repeat(3), 9), format!("{MARKED}~{MARKED}"));
        for columns in 1..30 {
            for text in [WIDE.repeat(5), MARKED.repeat(8), format!("{WIDE}{MARKED}/4194304")] {
                let short = shortened(&text, columns);
                assert!(width(&short) <= columns, "{columns}: {short}");
                assert!(width(&text) > columns || short == text, "{columns}: {short}");
            }
        }
    }
}
