//! Colours of the table, on a terminal that has them. The last column says the same in words.

use std::env;
use std::io::IsTerminal;

use bufwise_host::judge::{Cause, Roof};
use bufwise_host::view::ConnectionView;

const BOLD: &str = "1";
const DIM: &str = "2";
const YELLOW: &str = "33";
const GREEN: &str = "32";

/// The colour of a connection's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tint {
    /// A buffer or a window is too small.
    Yellow,
    /// fit limits the rate.
    Green,
    /// A program is the limit.
    Dim,
}

impl Tint {
    /// Returns the colour of a connection's line, if it has one.
    pub(crate) fn of(one: &ConnectionView) -> Option<Self> {
        match (one.roof(), one.limited_by) {
            (Roof::Limits, _) => Some(Self::Green),
            (_, Some(Cause::SendBuffer | Cause::ReceiveWindow)) => Some(Self::Yellow),
            (_, Some(Cause::Application | Cause::Reader)) => Some(Self::Dim),
            (_, Some(Cause::CongestionWindow | Cause::Path) | None) => None,
        }
    }
}

/// Whether the output is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) colours: bool,
}

impl Paint {
    /// Decides by the terminal and the environment: <https://no-color.org>, and terminals without colours.
    pub(crate) fn of_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let plain = env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        Self { colours: std::io::stdout().is_terminal() && !refused && !plain }
    }

    pub(crate) fn title(self, line: &str) -> String {
        self.painted(line, Some(BOLD))
    }

    /// Returns a connection's line in its [`Tint`].
    pub(crate) fn row(self, one: &ConnectionView, line: &str) -> String {
        let colour = Tint::of(one).map(|tint| match tint {
            Tint::Yellow => YELLOW,
            Tint::Green => GREEN,
            Tint::Dim => DIM,
        });
        self.painted(line, colour)
    }

    /// Colours a line, without its line feed.
    fn painted(self, line: &str, colour: Option<&str>) -> String {
        match colour.filter(|_| self.colours) {
            Some(colour) => format!("\x1b[{colour}m{}\x1b[0m\n", line.trim_end_matches('\n')),
            None => line.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::connection_view;
    use super::*;

    #[test]
    fn colours_come_on_request_alone_and_change_no_word() {
        let one = ConnectionView { limited_by: Some(Cause::SendBuffer), ..connection_view() };
        let painted = Paint { colours: true }.row(&one, "a line\n");
        assert_eq!(painted, "\x1b[33ma line\x1b[0m\n");
        assert_eq!(Paint { colours: false }.row(&one, "a line\n"), "a line\n");
        let path = ConnectionView { limited_by: Some(Cause::CongestionWindow), ..one };
        assert_eq!(Paint { colours: true }.row(&path, "a line\n"), "a line\n");
    }
}
