//! The view that a page requests: the query of its stream of events.

use bufwise_host::view::ConnectionView;
use clap::ValueEnum;
use percent_encoding::percent_decode_str;

use crate::ls::{Order, is_notable, matches};
use crate::top::groups::Grouping;

/// The view of one page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) order: Order,
    /// Filter; empty: all connections.
    pub(super) filter: String,
    /// Whether loopback and idle connections are shown.
    pub(super) all: bool,
    pub(super) grouping: Grouping,
    /// The group whose connections are shown.
    pub(super) inside: Option<String>,
    /// Cookie of the connection that is shown alone.
    pub(super) opened: Option<u64>,
}

impl View {
    /// Parses `sort=waste&filter=curl&all=1&group=peer&inside=198.18.0.2&open=COOKIE`, each part optional; `None`: the
    /// query has anything else.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let mut view = Self {
            order: Order::Rate,
            filter: String::new(),
            all: false,
            grouping: Grouping::None,
            inside: None,
            opened: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value).decode_utf8().ok()?;
            match name {
                "sort" => view.order = Order::from_str(&value, false).ok()?,
                "filter" => view.filter = value.into_owned(),
                "all" => view.all = value == "1",
                "group" => view.grouping = Grouping::named(&value)?,
                "inside" => view.inside = Some(value.into_owned()),
                "open" => view.opened = Some(value.parse().ok()?),
                "token" => {}
                _ => return None,
            }
        }
        Some(view)
    }

    /// Whether its sums include that connection.
    pub(super) fn passes(&self, one: &ConnectionView) -> bool {
        matches(one, &self.filter)
    }

    /// Whether it shows that connection, which passes the filter.
    pub(super) fn shows(&self, one: &ConnectionView) -> bool {
        self.all || is_notable(one)
    }

    pub(super) fn is_inside(&self, one: &ConnectionView) -> bool {
        self.inside.as_ref().is_none_or(|name| self.grouping.name_of(one) == *name)
    }

    /// Whether groups are shown in the place of connections.
    pub(super) fn has_groups(&self) -> bool {
        self.grouping != Grouping::None && self.inside.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_wanted() {
        let view = View::parse(
            "sort=rtt-over-base&filter=a%26b%20c&all=1&group=peer&inside=::1&open=18446744073709551615",
        );
        let expected = View {
            order: Order::RttOverBase,
            filter: "a&b c".to_owned(),
            all: true,
            grouping: Grouping::Peer,
            inside: Some("::1".to_owned()),
            opened: Some(u64::MAX),
        };
        assert_eq!(view, Some(expected));
        let default = View::parse("").unwrap();
        assert_eq!((default.order, default.all, default.has_groups()), (Order::Rate, false, false));
    }

    #[test]
    fn what_no_page_asks_is_refused() {
        for query in ["sort=size", "open=-1", "group=colour", "x=y", "sort", "filter=%ff"] {
            assert_eq!(View::parse(query), None, "{query}");
        }
    }
}
