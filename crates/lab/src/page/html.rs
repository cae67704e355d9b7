//! Writes text in HTML, and in SVG inside it.

use std::fmt;

/// Text of a file, escaped so that none of its characters is markup, between tags or in a quoted attribute.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => fmt::Write::write_char(f, letter)?,
                _ if letter.is_control() => f.write_str("\u{fffd}")?,
                _ => fmt::Write::write_char(f, letter)?,
            }
        }
        Ok(())
    }
}

/// The same, with text between backticks as code. A backtick without a partner stays.
pub(super) struct Ticked<'a>(pub(super) &'a str);

impl fmt::Display for Ticked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        between(f, self.0, "`", ["<code>", "</code>"])
    }
}

/// The same, with text between two `**` as a value that misses a target.
pub(super) struct Marked<'a>(pub(super) &'a str);

impl fmt::Display for Marked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        between(f, self.0, "**", ["<span class=\"badge missed\">", "</span>"])
    }
}

/// Writes `text` with an element around each part between two of `mark`.
fn between(f: &mut fmt::Formatter<'_>, text: &str, mark: &str, [begin, end]: [&str; 2]) -> fmt::Result {
    let mut rest = text;
    while let Some((before, (inside, after))) =
        rest.split_once(mark).and_then(|(before, rest)| Some((before, rest.split_once(mark)?)))
    {
        write!(f, "{}{begin}{}{end}", Escaped(before), Escaped(inside))?;
        rest = after;
    }
    fmt::Display::fmt(&Escaped(rest), f)
}

/// Returns `text`, or its beginning and an ellipsis if it has more than `most` characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_markup() {
        let hostile = "</style><img src=x onerror=\"a('b')\">&amp;\u{0}\u{1b}[2J";
        assert_eq!(
            Escaped(hostile).to_string(),
            "&lt;/style&gt;&lt;img src=x onerror=&quot;a(&#39;b&#39;)&quot;&gt;&amp;amp;\u{fffd}\u{fffd}[2J"
        );
        assert_eq!(Ticked("`<b>` & `c").to_string(), "<code>&lt;b&gt;</code> &amp; `c");
        assert_eq!(
            Marked("**<b>**, 3 * 2; **c").to_string(),
            "<span class=\"badge missed\">&lt;b&gt;</span>, 3 * 2; **c"
        );
        assert_eq!(Ticked("at least 90% of `abt`'s").to_string(), "at least 90% of <code>abt</code>&#39;s");
    }

    #[test]
    fn long_names_end_in_an_ellipsis() {
        assert_eq!(shortened("größer", 6), "größer");
        assert_eq!(shortened("größere", 6), "größe\u{2026}");
    }
}
