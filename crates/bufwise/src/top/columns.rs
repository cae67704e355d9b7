//! The columns of a line: those of `ls`, more of its own, and the last minute; as many as fit into the terminal.

use bufwise_host::view::ConnectionView;

use crate::figures::narrow;
use crate::ls::{self, GROUP_WIDTH, Order, PEER_WIDTH, PROCESS_WIDTH, beyond_base, milliseconds};
use crate::terminal::shortened;

/// Characters between two columns.
pub(super) const GAP: usize = 2;
/// Widest name of a network namespace.
const NAMESPACE_WIDTH: usize = 12;
/// Widest name of a cgroup.
const CGROUP_WIDTH: usize = 24;
/// Number of samples that the last minute shows: fewer have no shape, and a minute has sixty.
const SPARK: std::ops::RangeInclusive<usize> = 10..=60;

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// A column of `ls`, by its index there.
    Ls(usize),
    Namespace,
    Cgroup,
    /// The daemon's group.
    Group,
    /// Excess of the round trip over its minimum.
    Beyond,
    Waste,
    /// The last minute of the rate, drawn and not text.
    Spark,
}

const PEER: Column = Column::Ls(0);
const PROCESS: Column = Column::Ls(1);
const WAY: Column = Column::Ls(2);
const RATE: Column = Column::Ls(3);
const RTT: Column = Column::Ls(4);
const BDP: Column = Column::Ls(5);
const SEND: Column = Column::Ls(6);
const RECEIVE: Column = Column::Ls(7);
const LIMIT: Column = Column::Ls(8);

/// All columns from left to right.
const PLACES: [Column; 15] = [
    PEER,
    PROCESS,
    Column::Group,
    Column::Namespace,
    Column::Cgroup,
    WAY,
    RATE,
    RTT,
    Column::Beyond,
    BDP,
    SEND,
    RECEIVE,
    Column::Waste,
    LIMIT,
    Column::Spark,
];
/// Columns by importance: in a narrow terminal the last of these are left out first.
const RANKS: [Column; 15] = [
    PEER,
    RATE,
    LIMIT,
    PROCESS,
    Column::Spark,
    RTT,
    SEND,
    RECEIVE,
    Column::Group,
    Column::Namespace,
    Column::Beyond,
    Column::Waste,
    BDP,
    WAY,
    Column::Cgroup,
];

/// Returns all columns with their least widths; namespaces, cgroups and groups only if they are among `optional`.
pub(crate) fn all(optional: &[Column]) -> Vec<(Column, usize)> {
    let shown = PLACES.into_iter().filter(|one| one.is_among(optional));
    shown.map(|column| (column, column.width())).collect()
}

/// Returns the columns that fit into a line of `width`, with their widths; the column of the order is among the first.
/// Namespaces, cgroups and groups are included only if they are among `optional`.
pub(super) fn fitting(width: usize, order: Order, optional: &[Column]) -> Vec<(Column, usize)> {
    let mut left = (width + GAP).saturating_sub(GAP + PEER.width());
    let mut chosen = vec![PEER];
    let sorted = Column::of(order);
    let ranked = sorted.into_iter().chain(RANKS.into_iter().filter(|one| Some(*one) != sorted));
    for column in ranked.filter(|one| *one != PEER && one.is_among(optional)) {
        if let Some(rest) = left.checked_sub(GAP + column.width()) {
            left = rest;
            chosen.push(column);
        }
    }
    let width = |column: Column| match column {
        Column::Spark => (column.width() + left).min(*SPARK.end()),
        column => column.width(),
    };
    let places = PLACES.into_iter().filter(|column| chosen.contains(column));
    places.map(|column| (column, width(column))).collect()
}

impl Column {
    pub(crate) const PEER: Self = PEER;
    pub(crate) const PROCESS: Self = PROCESS;
    pub(crate) const SEND: Self = SEND;
    pub(crate) const RECEIVE: Self = RECEIVE;

    /// Whether a line has the column: some columns only if they are among `optional`.
    fn is_among(self, optional: &[Self]) -> bool {
        !matches!(self, Self::Namespace | Self::Cgroup | Self::Group) || optional.contains(&self)
    }

    /// Returns the column of an order; the memory of both queues has none.
    pub(crate) fn of(order: Order) -> Option<Self> {
        match order {
            Order::Rate => Some(RATE),
            Order::Rtt => Some(RTT),
            Order::RttOverBase => Some(Self::Beyond),
            Order::Memory => None,
            Order::Waste => Some(Self::Waste),
            Order::Limit => Some(LIMIT),
            Order::Process => Some(PROCESS),
            Order::Peer => Some(PEER),
        }
    }

    /// Returns its rank: in a narrow window columns with larger ranks are left out first.
    pub(crate) fn rank(self) -> usize {
        RANKS.iter().position(|column| *column == self).unwrap_or(RANKS.len())
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Ls(number) => ls::TITLES[number],
            Self::Namespace => "NAMESPACE",
            Self::Cgroup => "CGROUP",
            Self::Group => "GROUP",
            Self::Beyond => "+BASE",
            Self::Waste => "WASTE",
            Self::Spark => "LAST MINUTE",
        }
    }

    /// Returns the least width, in characters.
    const fn width(self) -> usize {
        match self {
            Self::Ls(0) => PEER_WIDTH,
            Self::Ls(1) => PROCESS_WIDTH,
            Self::Ls(2 | 3 | 5) => 4,
            Self::Ls(4) => 6,
            Self::Ls(6 | 7) => 9,
            Self::Ls(_) => 11,
            Self::Namespace => NAMESPACE_WIDTH,
            Self::Cgroup => CGROUP_WIDTH,
            Self::Group => GROUP_WIDTH,
            Self::Beyond | Self::Waste => 5,
            Self::Spark => *SPARK.start(),
        }
    }

    /// Whether the column is aligned to the right.
    pub(crate) fn is_figure(self) -> bool {
        match self {
            Self::Ls(number) => ls::RIGHT.contains(&number),
            Self::Beyond | Self::Waste => true,
            Self::Namespace | Self::Cgroup | Self::Group | Self::Spark => false,
        }
    }
}

/// Returns the texts of a connection's line.
pub(crate) fn cells(one: &ConnectionView, columns: &[(Column, usize)]) -> Vec<String> {
    let mut row = ls::row(one);
    let text = |column: Column| match column {
        Column::Ls(number) => std::mem::take(&mut row[number]),
        Column::Namespace => shortened(&one.netns, NAMESPACE_WIDTH),
        Column::Cgroup => shortened(one.cgroup_label().as_deref().unwrap_or("-"), CGROUP_WIDTH),
        Column::Group => ls::group(one, GROUP_WIDTH),
        Column::Beyond => {
            beyond_base(one).map_or_else(|| "-".to_owned(), |seconds| milliseconds(seconds * 1e3))
        }
        Column::Waste => narrow(one.waste_bytes),
        Column::Spark => String::new(),
    };
    columns.iter().map(|(column, _)| *column).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(columns: &[(Column, usize)]) -> usize {
        columns.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP
    }

    #[test]
    fn columns_fit_every_width_and_the_sorted_one_stays() {
        for width in 22..300 {
            let all = [Column::Namespace, Column::Cgroup, Column::Group];
            for optional in [&[][..], &[Column::Namespace], &all] {
                let columns = fitting(width, Order::Waste, optional);
                assert!(total(&columns) <= width, "{width}: {columns:?}");
                let shows = |one| columns.iter().any(|(column, _)| *column == one);
                assert!(width < 29 || shows(Column::Waste), "{width}: {columns:?}");
                for one in all {
                    assert!(optional.contains(&one) || !shows(one));
                }
            }
        }
    }

    #[test]
    fn eighty_columns_have_peer_process_rate_rtt_limit_and_the_last_minute() {
        let columns: Vec<Column> = fitting(80, Order::Rate, &[]).into_iter().map(|(one, _)| one).collect();
        assert_eq!(columns, [PEER, PROCESS, RATE, RTT, LIMIT, Column::Spark]);
    }

    #[test]
    fn a_wide_terminal_shows_a_whole_minute() {
        let columns = fitting(240, Order::Rate, &[Column::Namespace, Column::Cgroup, Column::Group]);
        assert_eq!((columns.len(), columns[14]), (15, (Column::Spark, 60)));
    }
}
