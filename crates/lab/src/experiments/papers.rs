//! Figures that the five papers reported, by experiment.
//!
//! Values are from the papers' texts; where a text gives none, the claim is the order of methods that it states, and a
//! condition says so. Rates are payload per second; memory is the kernel's, about twice the papers' payload. A link is
//! "full" at 95% of the payload that it can carry.

use super::model::{Claim, Quantity, Reported};

const GOODPUT: Quantity = Quantity::GoodputBps;
const HELD: Quantity = Quantity::HeldPeakBytes;
const RTT: Quantity = Quantity::RttMeanS;

/// Reason for claims about losses that a congestion control of today no longer has.
const TODAYS_START: &str =
    "CUBIC with HyStart leaves slow start before most queues are full, and grows back within seconds";
/// Reason for claims about the losses of Reno without SACK. The figures are those of docs/results/foundation.md.
const TODAYS_RENO: &str = "today's Reno repairs losses with SACK and PRR, and our queue may be deeper than theirs, which the paper does not \
     give: with a queue of an eighth of a BDP Reno gets 43 to 50 of 95 Mbit/s here";
/// The same for a difference of two socket buffers.
const TODAYS_REPAIR: &str =
    "today's Reno repairs the losses of the larger socket with SACK and PRR, within some round trips";
/// Reason for queues before sockets with fixed buffers; the windows are those of the experiment's samples.
const WIDER: &str = "today's kernel offers a window wider than the buffer that was set, 496 KB for 400 and 683 KB for 550: what \
    the path does not hold stands in the queue";
const LIVE: &str = "live traffic of others";
/// Reason for claims on congested paths.
const UNYIELDING: &str = "our other traffic gives no way, so a larger window takes nothing from it";
/// Share of a link's payload from which on it is full.
const FULL: f64 = 0.95;

/// Returns the reported figures of the paper that `experiment` is from; empty for experiments of the engine.
pub(super) fn reported(experiment: &str) -> Vec<Reported> {
    match experiment {
        "abt-fig1" => abt_band(),
        "abt-fig3-4" => abt_basic(),
        "abt-fig5-6" => abt_exhausted(),
        "abt-count" => abt_count(),
        "abt-fig7-8" => abt_two_paths(),
        "abt-many" => abt_fairness(),
        "sabt-fig2" => sabt_bottlenecks(false),
        "sabt-fig3" => sabt_bottlenecks(true),
        "sabt-fig5" => sabt_throughput(),
        "sabt-fig6" => sabt_variation(),
        "sabt-fig8" => sabt_scaling(),
        "sabt-fig10" => sabt_documents(),
        "drs-fig4" => drs_file(),
        "drs-fig5-6" => drs_windows(),
        "drs-fig7-9" => drs_modem(),
        "drsftp-fig11-12" => drs_ftp(),
        "path-fig1-3" => path_changes(),
        "sobas-fig1-4" => sobas_sizes(),
        "sobas-fig5-6" => sobas_congested(),
        "sobas-fig9-10" => sobas_gigabit(),
        "sobas-fig11-13" => sobas_trace(),
        "sobas-fig14-15" => sobas("figures 14 and 15", "limited", (574e6, 452e6), ""),
        "sobas-fig16-17" => {
            sobas("figures 16 and 17", "alone", (542e6, 445e6), "live traffic, A = 600 Mbit/s")
        }
        "sobas-fig18-19" => sobas("figures 18 and 19", "430 free", (343e6, 234e6), LIVE),
        "sobas-fig20-21" => {
            sobas("figures 20 and 21", "97 free", (87e6, 48e6), "live traffic, A = 90 Mbit/s")
        }
        "sobas-fig22-23" => sobas("figures 22 and 23", "80 free", (70e6, 57e6), LIVE),
        "sobas-fig24-25" => sobas_sweden(),
        _ => Vec::new(),
    }
}

fn times(factor: f64, other: &str) -> Claim {
    Claim::Times(factor, other.to_owned())
}

fn as_much_as(other: &str) -> Claim {
    times(1.0, other)
}

fn more_than(other: &str) -> Claim {
    Claim::MoreThan(other.to_owned())
}

fn less_than(other: &str) -> Claim {
    Claim::LessThan(other.to_owned())
}

const BY_HAND: &str = "by hand, 400 KB";
/// The threshold of Semke's pool, bytes.
const POOL: f64 = (2 << 20) as f64;

fn abt_band() -> Vec<Reported> {
    let reason = "bufwise bounds the buffer by about two products of rate and shortest round trip";
    let row =
        |quantity, claim| Reported::new("figure 1", "one connection", "abt", quantity, claim).because(reason);
    vec![
        row(Quantity::BufferWindowsP5, Claim::Between(2.0, 4.0)),
        row(Quantity::BufferWindowsP95, Claim::Between(2.0, 4.0)),
    ]
}

/// Payload of Semke's link when it is full, bit/s.
const FULL_40_MBIT: f64 = FULL * 40e6 * 1_448.0 / 1_514.0;
/// Connections that the sender has to support if it supports twice as many as one whose buffers are set by hand, which
/// exhaust its memory with twelve.
const TWICE_BY_HAND: f64 = 24.0;

fn abt_basic() -> Vec<Reported> {
    let row = |place, number: &str, method, quantity, claim| {
        let plural = if number == "1" { "" } else { "s" };
        Reported::new(place, &format!("{number} connection{plural}"), method, quantity, claim)
    };
    // The figure's curve of 16 KB reaches the others at 22 connections.
    let under_used = |number| {
        row("figure 3", number, "16 KB", GOODPUT, less_than("abt")).under("below 22 connections").because(
            "Linux lets a writer fill 64 KB at once, whatever its buffer's limit, so 16 KB hold several times as much",
        )
    };
    let mut rows: Vec<Reported> = ["1", "5", "12"].map(under_used).to_vec();
    rows.extend(["22", "30"].map(|number| {
        row("figure 3", number, "16 KB", GOODPUT, as_much_as("abt")).under("from 22 connections on")
    }));
    rows.extend(["1", "5"].map(|number| {
        row("figure 3", number, BY_HAND, GOODPUT, Claim::AtLeast(FULL_40_MBIT))
            .under("full, until the memory is exhausted near 12")
    }));
    rows.extend(["1", "5", "12", "22", "30"].map(|number| {
        row("figure 3", number, "abt", GOODPUT, Claim::AtLeast(FULL_40_MBIT)).under("full everywhere")
    }));
    rows.extend(["1", "5", "12"].map(|number| row("figure 3", number, "abt", GOODPUT, as_much_as(BY_HAND))));
    rows.push(
        row("figures 3 to 5", "12", BY_HAND, HELD, Claim::AtLeast(4e6))
            .under("the whole pool of 4 MB, exhausted near 12 connections"),
    );
    rows.extend(
        ["1", "5", "12", "22", "30"].map(|number| row("figure 4", number, "abt", HELD, Claim::AtMost(POOL))),
    );
    rows.push(
        row("section 4.1", "30", "abt", Quantity::CarriedWithin, Claim::AtLeast(TWICE_BY_HAND))
            .under("twice as many as by hand"),
    );
    rows.push(row("section 4.1", "30", "abt", Quantity::Served, Claim::AtLeast(1.0)));
    rows
}

fn abt_exhausted() -> Vec<Reported> {
    let row = |place, method, claim| Reported::new(place, "12 connections", method, HELD, claim);
    vec![
        row("figure 5", BY_HAND, Claim::AtLeast(4e6)).under("the whole pool; transfers stall at 220 s"),
        row("figure 4", "abt", Claim::AtMost(POOL)),
    ]
}

fn abt_count() -> Vec<Reported> {
    let row = |case, quantity, claim| Reported::new("section 4.1", case, "abt", quantity, claim);
    vec![
        row("30 connections", Quantity::CarriedWithin, Claim::AtLeast(TWICE_BY_HAND))
            .under("twice as many as by hand, which 12 exhaust"),
        row("30 connections", Quantity::Served, Claim::AtLeast(1.0)),
        row("30 connections", GOODPUT, as_much_as("kernel"))
            .under("\"maximum bandwidth\" whatever their number"),
    ]
}

fn abt_two_paths() -> Vec<Reported> {
    let case = "4 to each";
    let near =
        |method| Reported::new("figure 7", case, method, Quantity::GoodputPath2Bps, Claim::Number(9.3e6));
    let far = |case, method, claim| Reported::new("figure 7", case, method, Quantity::GoodputPath1Bps, claim);
    let pool = "the pool of all connections (tcp_mem) is no limit here, so near connections take no memory from far ones";
    vec![
        near("16 KB"),
        near(BY_HAND),
        near("abt"),
        far(case, "16 KB", less_than("abt")),
        far(case, BY_HAND, Claim::Number(27e6)).under("4 MB for all connections").because(pool),
        far("10 to each", "abt", Claim::AtLeast(30e6)),
        Reported::new("figure 8", "10 to each", "abt", HELD, Claim::AtMost(POOL)),
    ]
}

fn abt_fairness() -> Vec<Reported> {
    let row = |case, quantity, claim| Reported::new("section 4.2", case, "abt", quantity, claim);
    vec![
        row("12 connections", Quantity::JainIndex, Claim::AtLeast(0.9))
            .under("\"fairly\"; no figure is given"),
        row("50 connections", Quantity::Served, Claim::AtLeast(1.0)).under("up to 30 connections"),
    ]
}

/// Figures 2 and 3: the memory B suffices for all connections, or not.
fn sabt_bottlenecks(short: bool) -> Vec<Reported> {
    let (place, case) = if short { ("figure 3", "200 packets") } else { ("figure 2", "350 packets") };
    let row = |method, quantity, claim| Reported::new(place, case, method, quantity, claim);
    let mut rows = vec![
        row("sabt", Quantity::BufferVariation, less_than("abt")),
        row("sabt", Quantity::FairShareIndex, more_than("eq")),
        row("sabt", Quantity::FairShareIndex, more_than("abt")),
    ];
    let first = Quantity::GoodputPath1Bps;
    if short {
        rows.extend([row("sabt", first, more_than("eq")), row("sabt", first, more_than("abt"))]);
    } else {
        rows.extend([
            row("sabt", first, Claim::Number(1.5e6)).under("the ideal of one connection"),
            row("sabt", Quantity::GoodputPath2Bps, Claim::Number(1.5e6))
                .under("the ideal: 0.75 Mbit/s for each of two connections"),
            row("sabt", Quantity::GoodputPath3Bps, Claim::Number(1.5e6))
                .under("the ideal: 0.375 Mbit/s for each of four connections"),
            row("sabt", Quantity::FairShareIndex, Claim::Number(1.0)).under("each has its ideal rate"),
            row("abt", first, less_than("sabt")),
        ]);
    }
    rows
}

/// Rates that the three connections have with enough memory, bit/s (Matsuo, section 4.1).
const ENOUGH: [f64; 3] = [220e6, 90e6, 55e6];

/// The cases' memory is twice the payload of the paper's: 240, 200 and 170 KB are 480, 400 and 340 KiB here.
fn sabt_throughput() -> Vec<Reported> {
    let row = |case, method, quantity, claim| Reported::new("figure 5", case, method, quantity, claim);
    let enough = [Quantity::GoodputPath1Bps, Quantity::GoodputPath2Bps, Quantity::GoodputPath3Bps];
    let mut rows: Vec<Reported> = enough
        .into_iter()
        .zip(ENOUGH)
        .map(|(path, rate)| Reported::new("section 4.1", "896 KiB", "sabt", path, Claim::Number(rate)))
        .collect();
    let full = Claim::AtLeast(FULL * ENOUGH.iter().sum::<f64>());
    rows.extend([
        row("480 KiB", "eq", GOODPUT, full.clone()).under("full from 240 KB of payload on"),
        row("400 KiB", "abt", GOODPUT, full.clone()).under("full from 200 KB of payload on"),
        row("340 KiB", "sabt", GOODPUT, full).under("full from 170 KB of payload on"),
        row("400 KiB", "eq", GOODPUT, less_than("abt")),
        row("340 KiB", "abt", GOODPUT, less_than("sabt")),
        row("240 KiB", "sabt", Quantity::GoodputPath1Bps, more_than("abt")).under("around 120 KB of payload"),
        row("240 KiB", "sabt", GOODPUT, more_than("abt")).under("the most of the three, whatever the memory"),
        row("240 KiB", "sabt", GOODPUT, more_than("eq")).under("the most of the three, whatever the memory"),
    ]);
    rows
}

fn sabt_variation() -> Vec<Reported> {
    vec![Reported::new("figure 6", "512 KiB", "sabt", Quantity::BufferVariation, less_than("abt"))]
}

fn sabt_scaling() -> Vec<Reported> {
    let fast = Quantity::GoodputPath1Bps;
    let row = |case, method, quantity, claim| Reported::new("figure 8", case, method, quantity, claim);
    let mut rows = vec![
        row("4 beside", "16 KB", fast, less_than("64 KB")),
        row("4 beside", "eq", fast, as_much_as("abt")).under("it collapses beyond 4 connections"),
        // The text of section 4.2: "suddenly decreased to about 11 [Mbps]".
        row("8 beside", "eq", fast, Claim::Number(11e6)).under("beyond 4 connections"),
    ];
    rows.extend(["8 beside", "12 beside", "16 beside"].map(|case| row(case, "abt", fast, more_than("eq"))));
    rows.extend(
        ["8 beside", "12 beside"]
            .map(|case| row(case, "sabt", fast, as_much_as("abt")).under("they part beyond 12 connections")),
    );
    rows.push(row("16 beside", "sabt", fast, more_than("abt")).under("they part beyond 12 connections"));
    rows
}

fn sabt_documents() -> Vec<Reported> {
    let row = |case, quantity, claim| Reported::new("figure 10", case, "sabt, 8 KB", quantity, claim);
    let today = "today's initial window of 10 segments holds 8 KB already";
    let (all, small, large) = (Quantity::ResponseS, Quantity::ResponseSmallS, Quantity::ResponseLargeS);
    let web = "web server";
    vec![
        row("8 KB", all, less_than("window of 2")),
        row("8 KB", all, less_than("window of 10")).under("than the kernel of its time").of_then(today),
        row("30 KB", all, as_much_as("window of 10")).under("no loss for larger documents"),
        row(web, small, less_than("window of 2")),
        row(web, small, less_than("window of 10")).under("than the kernel of its time").of_then(today),
        row(web, large, as_much_as("window of 10")).under("no loss for larger documents"),
    ]
}

fn drs_file() -> Vec<Reported> {
    let rows = |place, case| {
        let row = |method, claim| Reported::new(place, case, method, GOODPUT, claim);
        [
            row("drs", times(7.0, "64 KB")),
            row("64 KB", Claim::Number(2.24e6)).under("64 MB in 240 s; half of the buffer is offered").because(
                "today's kernel offers a share of the buffer that follows the segments: more than half if they are full",
            ),
            row("drs", Claim::Number(15.8e6)).under("64 MB in 34 s").of_then(
                "SACK and CUBIC repair losses without the time-outs that ended their transfers' growth",
            ),
        ]
    };
    [rows("figure 4", "1 Gbit/s"), rows("Feng 2002, figure 5", "100 Mbit/s")].concat()
}

fn drs_windows() -> Vec<Reported> {
    let row =
        |method, quantity, claim| Reported::new("figures 5 and 6", "100 Mbit/s", method, quantity, claim);
    vec![
        row("drs", Quantity::WindowPerFlight, Claim::Number(2.0))
            .under("\"roughly twice the largest flight\"")
            .because(
                "the window follows a queue up to twice the shortest round trip, and feeds no longer one",
            ),
        row("64 KB", Quantity::WindowPerFlight, Claim::Number(1.0)),
        row("drs", Quantity::FlightMeanBytes, times(7.0, "64 KB")),
        row("drs", Quantity::ReceiveWindowLimited, Claim::AtMost(0.02))
            .under("\"only constrained by cwnd and the path\""),
    ]
}

/// The papers say that a static window is sent "roughly 20%" more segments again (Feng 2002, section 5.2), so DRS has 1/1.2
/// of them, 17% fewer; Fisk 2000 gives no number.
fn drs_modem() -> Vec<Reported> {
    let row = |place, method, quantity, claim| Reported::new(place, "56 kbit/s", method, quantity, claim);
    vec![
        row("section 8.2", "drs", GOODPUT, as_much_as("64 KB")),
        row("Feng 2002, figure 10", "drs", Quantity::Retransmits, times(1.0 / 1.2, "64 KB"))
            .under("a static window has \"roughly 20%\" more"),
        row("figure 7", "drs", Quantity::WindowPeakBytes, Claim::AtMost(13_000.0)).because(
            "bufwise feeds a queue up to twice the shortest round trip; the paper's round trip is not given",
        ),
    ]
}

/// Part of the largest static buffer's memory that is "far below" it: the paper gives no figure, and half is ours.
const FAR_BELOW: f64 = 0.5;

fn drs_ftp() -> Vec<Reported> {
    let once =
        "a program that sees only sizes of reads grows its buffer once or twice on today's kernels, by four";
    let memory = Quantity::SocketMemoryBytes;
    let (smallest, largest) = ("smallest BDP", "largest BDP");
    let of_case = |case| {
        let row = |place, method, quantity, claim| Reported::new(place, case, method, quantity, claim);
        let rate = Quantity::TransferBps;
        [
            row("figure 11", "drs-ftp", rate, times(4.0, "64 KB")),
            row("figure 11", largest, rate, times(4.0, "64 KB")),
            row("figure 11", "drs-ftp", rate, as_much_as(largest)).because(once),
            row("figure 12", "drs-ftp", memory, as_much_as(smallest)),
            row("figure 12", "drs-ftp", memory, times(FAR_BELOW, largest))
                .under("\"relatively low\" beside \"a tremendous amount\"; half is ours"),
        ]
    };
    let varies = |other| {
        Reported::new("figure 11", "12 to 100 Mbit/s", smallest, Quantity::TransferVariation, more_than(other))
            .under("\"a very large variability\"")
            .because(
                "a window of the smallest product is the limit whatever the path carries beyond it, which evens the times out",
            )
    };
    let mut rows = [of_case("100 Mbit/s"), of_case("12 to 100 Mbit/s")].concat();
    rows.extend([varies(largest), varies("drs-ftp")]);
    rows
}

fn path_changes() -> Vec<Reported> {
    let range = Quantity::BdpRangeBits;
    vec![
        Reported::new("figure 3", "five steps", "probes", range, Claim::Number(61e6))
            .under("\"as much as 61 Mb\"")
            .because("28.5 Mbit/s x 475 ms, the largest values that figures 1 and 2 are said to show, are 13.5 Mbit"),
    ]
}

const RENO: &str = "maximum, reno";
const CUBIC: &str = "maximum, cubic";

const PUBLISHED: &str = "sobas, published";
/// Reason for the published rule's rates (docs/algorithms/sobas.md, "As published").
const BY_CHANCE: &str = "where a loss ends slow start, two rates that are equal by chance decide, far below what the path carries";

/// SOBAS and maximum buffers: the goodput of each, and the gain, over the Reno of that time and today's CUBIC. SOBAS is the
/// paper's rule over Reno, and ours.
fn sobas(place: &str, case: &str, (own, maximum): (f64, f64), conditions: &str) -> Vec<Reported> {
    let row = |method, claim| Reported::new(place, case, method, GOODPUT, claim).under(conditions);
    vec![
        row(PUBLISHED, Claim::Number(own)).because(BY_CHANCE),
        row(RENO, Claim::Number(maximum)).because(TODAYS_RENO),
        row(PUBLISHED, times(own / maximum, RENO)).because(TODAYS_RENO),
        row("sobas", Claim::Number(own)),
        row("sobas", times(own / maximum, RENO)).because(TODAYS_RENO),
        row("sobas", times(own / maximum, CUBIC)).of_then(TODAYS_START),
    ]
}

fn sobas_gigabit() -> Vec<Reported> {
    let mut rows = sobas("figures 9 and 10", "alone", (918e6, 649e6), "");
    rows.extend(
        [PUBLISHED, "sobas"]
            .map(|method| Reported::new("figure 9", "alone", method, RTT, Claim::AtMost(0.023))),
    );
    rows
}

fn sobas_trace() -> Vec<Reported> {
    let mut rows = sobas("figures 11 and 12", "bursts", (521e6, 409e6), "a replayed trace");
    rows.extend(
        [PUBLISHED, "sobas"]
            .map(|method| Reported::new("figure 13", "bursts", method, RTT, Claim::AtMost(0.022))),
    );
    rows
}

fn sobas_sweden() -> Vec<Reported> {
    let mut rows = sobas("figures 24 and 25", "40 free", (33e6, 20e6), LIVE);
    rows.push(
        Reported::new("figure 24", "40 free", PUBLISHED, Quantity::Drops, Claim::AtLeast(1.0))
            .under("the first losses are not avoided"),
    );
    rows
}

fn sobas_sizes() -> Vec<Reported> {
    let row = |place, method, quantity, claim| Reported::new(place, "80 free", method, quantity, claim);
    let sizes = [
        ("figure 1", "128 KB", 25.5e6, 0.040),
        ("figure 2", "400 KB", 79e6, 0.040),
        ("figure 3", "550 KB", 90e6, 0.049),
    ];
    let of_size = |(place, method, rate, rtt)| {
        [
            row(place, method, GOODPUT, Claim::Number(rate)),
            row(place, method, RTT, Claim::Number(rtt)).because(WIDER),
        ]
    };
    let mut rows: Vec<Reported> = sizes.into_iter().flat_map(of_size).collect();
    rows.push(row("figure 3", "550 KB", Quantity::Drops, Claim::Number(0.0)));
    rows.push(row("figure 4", "900 KB", Quantity::Drops, Claim::AtLeast(1.0)));
    rows.push(row("figure 4", "900 KB", GOODPUT, less_than("550 KB")).because(TODAYS_REPAIR));
    rows
}

fn sobas_congested() -> Vec<Reported> {
    let row = |place, method, claim| {
        Reported::new(place, "3 free", method, GOODPUT, claim).under(LIVE).because(UNYIELDING)
    };
    vec![
        row("figure 5", "30 KB", Claim::Number(2.4e6)),
        row("figure 6", RENO, Claim::Number(3.1e6)),
        row("figures 5 and 6", RENO, times(3.1 / 2.4, "30 KB")),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::super::model::{Experiment, Way};
    use super::super::shard::Shard;
    use super::*;

    #[test]
    fn every_experiment_of_a_paper_has_what_the_paper_reported() {
        for experiment in catalogue() {
            let of_paper = experiment.source != "engine";
            assert_eq!(!experiment.reported().is_empty(), of_paper, "{}", experiment.id);
        }
    }

    #[test]
    fn a_users_experiment_has_a_papers_figures_only_if_it_runs_as_the_built_in_one() {
        let built_in = catalogue().into_iter().find(|one| one.id == "sabt-fig5").unwrap();
        let figures = |change: &dyn Fn(&mut Experiment)| {
            let mut own = built_in.clone();
            change(&mut own);
            own.reported().len()
        };
        let all = figures(&|_| ());
        assert!(all > 0);
        assert_eq!(figures(&|own| own.question = "Mine?"), all);
        assert_eq!(figures(&|own| own.targets.clear()), all);
        assert_eq!(figures(&|own| own.cases[0].setup.repeat = Some(1)), all);
        assert_eq!(figures(&|own| own.cases.truncate(1)), all, "as in a part");
        assert_eq!(figures(&|own| *own = "2/3".parse::<Shard>().unwrap().of(own.clone(), false)), all);
        assert_eq!(figures(&|own| own.id = "mine"), 0);
        assert_eq!(figures(&|own| own.way = Way::Download), 0);
        assert_eq!(figures(&|own| own.methods[0].rmem /= 2), 0);
        assert_eq!(figures(&|own| own.cases[0].paths[1].seed = 9), 0);
        assert_eq!(figures(&|own| own.cases[0].flows[0].connections += 1), 0);
        assert_eq!(figures(&|own| own.cases[0].memory = None), 0);
        assert_eq!(figures(&|own| own.cases[0].setup.limits = Some(1 << 20)), 0);
        assert_eq!(figures(&|own| own.quantities.clear()), 0, "nothing to compare with");
    }

    #[test]
    fn goodput_is_measured_with_slow_start_and_after_it() {
        for experiment in catalogue().iter().filter(|experiment| experiment.source != "engine") {
            let reads = |quantity| experiment.quantities.contains(&quantity);
            assert_eq!(reads(Quantity::SettledBps), reads(Quantity::GoodputBps), "{}", experiment.id);
        }
    }

    #[test]
    fn what_was_reported_is_measured() {
        for experiment in catalogue() {
            for reported in experiment.reported() {
                let at = format!("{}, {}", experiment.id, reported.place);
                assert!(experiment.quantities.contains(&reported.quantity), "{at}: {:?}", reported.quantity);
                let case = experiment.cases.iter().find(|case| case.name == reported.case);
                let case = case.unwrap_or_else(|| panic!("{at}: no case {}", reported.case));
                let there = |name: &str| experiment.methods(case, false).any(|method| method.name == name);
                for method in [Some(reported.method.as_str()), reported.claim.other()].into_iter().flatten() {
                    assert!(there(method), "{at}: no method {method} in {}", reported.case);
                }
            }
        }
    }
}
