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

/// Returns the lines of `text`, each broken at its blanks where it is wider than `columns`; a word that is wider is broken
/// anywhere. Continuation lines are indented as the first line is.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    text.lines().flat_map(|line| wrapped_line(line.trim_end(), columns)).collect()
}

fn wrapped_line(line: &str, columns: usize) -> Vec<String> {
    let words = line.trim_start();
    let indent = &line[..line.len() - words.len()];
    // A narrow terminal has no room for it.
    let indent = if 2 * indent.width() < columns { indent } else { "" };
    let (mut lines, mut last) = (Vec::new(), indent.to_owned());
    for word in words.split(' ') {
        if last != indent && last.width() + 1 + word.width() <= columns {
            last.push(' ');
        } else if last != indent {
            lines.push(std::mem::replace(&mut last, indent.to_owned()));
        }
        for letter in word.chars() {
            if last != indent && last.width() + letter.width().unwrap_or(0) > columns {
                lines.push(std::mem::replace(&mut last, indent.to_owned()));
            }
            last.push(letter);
        }
    }
    lines.push(last);
    lines
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
    fn a_wide_line_is_broken_at_blanks_and_a_wide_word_anywhere() {
        let text = "Limited by path.\n  Advice: a larger one.\n\na  b\n";
        assert_eq!(wrapped(text, 80), ["Limited by path.", "  Advice: a larger one.", "", "a  b"]);
        assert_eq!(
            wrapped(text, 11),
            ["Limited by", "path.", "  Advice: a", "  larger", "  one.", "", "a  b"]
        );
        assert_eq!(wrapped("to 198.18.0.2:443 and", 8), ["to", "198.18.0", ".2:443", "and"]);
        assert_eq!(wrapped(&WIDE.repeat(2), 7), [WIDE, WIDE]);
        assert_eq!(wrapped("", 7), [""; 0]);
        for columns in 2..30 {
            let lines = wrapped(&format!("    {MARKED} {WIDE}{MARKED}  {text}"), columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
        }
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
