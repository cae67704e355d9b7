//! Colours of the table, on a terminal that has them. Each says what the last column says in words.

use std::env;
use std::io::IsTerminal;

use bufwise_host::judge::{Cause, Roof};
use bufwise_host::view::ConnectionView;

const BOLD: &str = "1";
const DIM: &str = "2";
const YELLOW: &str = "33";
const GREEN: &str = "32";

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) colours: bool,
}

impl Paint {
    /// By the terminal and the environment: <https://no-color.org>, and terminals without any.
    pub(super) fn of_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let plain = env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        Self { colours: std::io::stdout().is_terminal() && !refused && !plain }
    }

    pub(super) fn title(self, line: &str) -> String {
        self.painted(line, Some(BOLD))
    }

    /// A connection's line: yellow where a buffer or a window is too small, green where fit holds it, dim where a program
    /// is the limit.
    pub(super) fn row(self, one: &ConnectionView, line: &str) -> String {
        let colour = match (one.roof(), one.limited_by) {
            (Roof::Limits, _) => Some(GREEN),
            (_, Some(Cause::SendBuffer | Cause::ReceiveWindow)) => Some(YELLOW),
            (_, Some(Cause::Application | Cause::Reader)) => Some(DIM),
            (_, Some(Cause::CongestionWindow | Cause::Path) | None) => None,
        };
        self.painted(line, colour)
    }

    /// The line feed stays outside.
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
