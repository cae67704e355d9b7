//! Reads the workloads of a file: the keys of each kind, and the flows that they describe.

use bufwise_units::{Bytes, Nanos};
use toml::Spanned;

use super::super::model::{Amount, Case, Flow, MAX_CONNECTIONS, Program, Quantity, WEB_SERVER, Way};
use super::super::probe_grid::PROBED;
use super::format::{Kind, Word, Workload};
use super::read::{Fault, bytes, kept, known, parsed, plain, whole};

/// Most workloads: each has a port of its own.
const MOST_WORKLOADS: usize = 64;
/// Longest workload, in seconds: a day.
const LONGEST: u32 = 86_400;
/// Seconds that a workload runs, and that it may take, if the file gives none.
const USUAL_TIME: u32 = 10;
const USUAL_PATIENCE: u32 = 60;
/// Seconds that a probe takes: ten, and its connections over a path with a long RTT.
const PROBE_TIME: u32 = 12;
/// Number of documents if the file gives none.
const USUAL_COUNT: u32 = 20;
/// Most documents, and most sizes of documents.
const MOST_DOCUMENTS: u32 = 10_000;
const MOST_SIZES: usize = 1_000;

/// Returns the flows of `workloads`; `paths` are the names of the paths.
///
/// # Errors
/// [`Fault`] if a workload is wrong, or if documents are all that is measured of an upload.
pub(super) fn flows(
    workloads: &[Spanned<Workload>],
    paths: &[&'static str],
    way: Way,
) -> Result<Vec<Flow>, Fault> {
    if let Some(beyond) = workloads.get(MOST_WORKLOADS) {
        return Err(Fault::at(beyond, format!("at most {MOST_WORKLOADS} workloads")));
    }
    let flows: Vec<Flow> =
        workloads.iter().map(|workload| flow(workload, paths, way)).collect::<Result<_, _>>()?;
    if flows.iter().all(|flow| flow.cross) {
        let what = "workload: no workload that is measured: add [[workload]]; one with `cross = true` is only background load";
        return Err(workloads.first().map_or_else(|| Fault::of_file(what), |first| Fault::at(first, what)));
    }
    let measured = || flows.iter().zip(workloads).filter(|(flow, _)| !flow.cross);
    let is_fetched = |flow: &Flow| matches!(kind(flow.amount), Kind::Documents | Kind::Requests);
    let is_sent = |flow: &Flow| matches!(kind(flow.amount), Kind::Bulk | Kind::Program);
    // RTT, drops and memory of an upload are those of the clients, and documents come from the servers.
    if way == Way::Upload
        && !measured().any(|(flow, _)| is_sent(flow))
        && let Some((_, documents)) = measured().find(|(flow, _)| is_fetched(flow))
    {
        let what = "workload: kind: documents are fetched: write `way = \"download\"`, or measure an upload";
        return Err(Fault::at(documents, what));
    }
    Ok(flows)
}

/// Returns the quantities that are read if the file names none.
pub(super) fn usual_quantities(cases: &[Case]) -> Vec<Quantity> {
    let flows = || cases.iter().flat_map(|case| &case.flows);
    let any = |of: fn(&Flow) -> bool| flows().any(of);
    let mut quantities = vec![
        Quantity::GoodputBps,
        Quantity::RttMeanS,
        Quantity::Drops,
        Quantity::HeldPeakBytes,
        Quantity::ReceiveHeldPeakBytes,
    ];
    if any(|flow| matches!(flow.amount, Amount::Documents(..) | Amount::Requests(..))) {
        quantities.extend([Quantity::ResponseMedianS, Quantity::ResponseP99S]);
    }
    if any(|flow| matches!(flow.amount, Amount::File(..) | Amount::Program(..))) {
        quantities.push(Quantity::TransferS);
    }
    if any(|flow| matches!(flow.amount, Amount::Probe(..))) {
        quantities.extend(PROBED);
    }
    if any(|flow| flow.cross) {
        quantities.push(Quantity::OthersBps);
    }
    quantities
}

/// Returns the keys of a kind besides `kind`, `path`, `start` and `cross`.
fn keys(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Bulk => {
            &["connections", "time", "quick-time", "size", "buffer", "congestion-control", "writes", "stops"]
        }
        Kind::Documents => &["size", "sizes", "count", "quick-count", "server"],
        Kind::Requests => &["size", "sizes", "time", "quick-time", "server"],
        Kind::File => &["size", "quick-size", "time", "quick-time"],
        Kind::Program => &["server", "client", "time", "quick-time"],
        Kind::Probe => &["time", "quick-time"],
    }
}

/// Checks that the workload has only keys of its kind.
fn check_keys(written: &Spanned<Workload>) -> Result<(), Fault> {
    let workload = written.get_ref();
    let given = [
        ("connections", workload.connections.is_some()),
        ("time", workload.time.is_some()),
        ("quick-time", workload.quick_time.is_some()),
        ("size", workload.size.is_some()),
        ("quick-size", workload.quick_size.is_some()),
        ("sizes", workload.sizes.is_some()),
        ("count", workload.count.is_some()),
        ("quick-count", workload.quick_count.is_some()),
        ("buffer", workload.buffer.is_some()),
        ("congestion-control", workload.congestion_control.is_some()),
        ("writes", workload.writes.is_some()),
        ("stops", workload.stops.is_some()),
        ("server", workload.server.is_some()),
        ("client", workload.client.is_some()),
    ];
    let kind = workload.kind.unwrap_or_default();
    let allowed = keys(kind);
    match given.iter().find(|(key, is_given)| *is_given && !allowed.contains(key)) {
        Some((key, _)) => Err(Fault::at(
            written,
            format!(
                "workload: {key}: a workload of kind {kind:?} has kind, path, start, cross, {}",
                allowed.join(", ")
            )
            .to_lowercase(),
        )),
        None => Ok(()),
    }
}

fn flow(written: &Spanned<Workload>, paths: &[&'static str], way: Way) -> Result<Flow, Fault> {
    check_keys(written)?;
    let workload = written.get_ref();
    let path = workload.path.as_ref().map(|word| known(word, "path", paths)).transpose()?;
    let index = path.and_then(|name| paths.iter().position(|one| *one == name)).unwrap_or(0);
    let connections = workload.connections.as_ref().map_or(Ok(1), |number| {
        let allowed = format!("from 1 to {MAX_CONNECTIONS}; for more, add a workload");
        whole(number, (1, MAX_CONNECTIONS), allowed)
    })?;
    if workload.kind == Some(Kind::File) && way == Way::Upload {
        return Err(Fault::at(written, "workload: kind: a file is fetched: write `way = \"download\"`"));
    }
    let (amount, sizes) = amount(written)?;
    Ok(Flow {
        path: u8::try_from(index).unwrap_or(u8::MAX),
        connections,
        amount,
        sizes,
        web: web(written)?,
        delay: workload.start.as_ref().map_or(Ok(Nanos(0)), start)?,
        cross: workload.cross.unwrap_or(false),
        buffer: workload.buffer.as_ref().map(bytes).transpose()?,
        congestion_control: workload.congestion_control.as_ref().map(plain).transpose()?,
        writes: workload.writes.as_deref().map(kept),
        stops: workload.stops.unwrap_or(false),
    })
}

/// Returns the kind of a workload that moves this.
pub(super) fn kind(amount: Amount) -> Kind {
    match amount {
        Amount::Seconds(..) | Amount::Bytes(..) => Kind::Bulk,
        Amount::Documents(..) => Kind::Documents,
        Amount::Requests(..) => Kind::Requests,
        Amount::File(..) => Kind::File,
        Amount::Program(..) => Kind::Program,
        Amount::Probe(..) => Kind::Probe,
    }
}

/// Returns whether documents come from the web server.
fn web(written: &Spanned<Workload>) -> Result<bool, Fault> {
    let workload = written.get_ref();
    match (workload.kind.unwrap_or_default(), workload.server.as_deref()) {
        (Kind::Documents | Kind::Requests, Some(WEB_SERVER)) => Ok(true),
        (Kind::Documents | Kind::Requests, Some(other)) => Err(Fault::at(
            written,
            format!("workload: server: `{other}`: write `{WEB_SERVER}`, or leave it out for bufwise's own"),
        )),
        _ => Ok(false),
    }
}

/// Returns the amount with which a method replaces the case's.
pub(super) fn amount_of_method(written: &Spanned<Workload>) -> Result<Amount, Fault> {
    check_keys(written)?;
    let workload = written.get_ref();
    let other = workload.connections.is_some()
        || workload.path.is_some()
        || workload.start.is_some()
        || workload.cross.is_some()
        || workload.buffer.is_some()
        || workload.congestion_control.is_some()
        || workload.writes.is_some()
        || workload.stops.is_some()
        || workload.sizes.is_some();
    if other || !matches!(workload.kind.unwrap_or_default(), Kind::Bulk | Kind::File) {
        return Err(Fault::at(
            written,
            "workload: a method has kind (bulk or file), size, quick-size, time and quick-time",
        ));
    }
    Ok(amount(written)?.0)
}

/// Returns how much the workload moves, and the sizes of its documents if there are several.
fn amount(written: &Spanned<Workload>) -> Result<(Amount, Vec<u64>), Fault> {
    let workload = written.get_ref();
    let time = |usual| workload.time.as_ref().map_or(Ok(usual), |word| seconds(word, 1));
    let quick_time = |time| workload.quick_time.as_ref().map_or(Ok(time), |word| seconds(word, 1));
    let amount = match workload.kind.unwrap_or_default() {
        Kind::Bulk => {
            let time = time(USUAL_TIME)?;
            match &workload.size {
                None => Amount::Seconds(time, quick_time(time)?),
                Some(size) => Amount::Bytes(size_of(size)?, time, quick_time(time)?),
            }
        }
        Kind::Documents => {
            let (mean, sizes) = sizes(written)?;
            let count = workload.count.as_ref().map_or(Ok(USUAL_COUNT), count)?;
            let quick = workload.quick_count.as_ref().map_or(Ok(count), self::count)?;
            return Ok((Amount::Documents(mean, count, quick), sizes));
        }
        Kind::Requests => {
            let (mean, sizes) = sizes(written)?;
            let time = time(USUAL_TIME)?;
            return Ok((Amount::Requests(mean, time, quick_time(time)?), sizes));
        }
        Kind::File => {
            let whole = size_of(required(written, "size", workload.size.as_ref())?)?;
            let part = workload.quick_size.as_ref().map_or(Ok(whole), size_of)?;
            let time = time(USUAL_PATIENCE)?;
            Amount::File(whole, time, part, quick_time(time)?)
        }
        Kind::Program => {
            let server = kept(required(written, "server", workload.server.as_deref())?);
            let client = kept(required(written, "client", workload.client.as_deref())?);
            let time = time(USUAL_PATIENCE)?;
            Amount::Program(Program { server, client }, time, quick_time(time)?)
        }
        Kind::Probe => {
            let time = time(PROBE_TIME)?;
            Amount::Probe(time, quick_time(time)?)
        }
    };
    Ok((amount, Vec::new()))
}

fn required<T>(written: &Spanned<Workload>, key: &str, value: Option<T>) -> Result<T, Fault> {
    let kind = format!("{:?}", written.get_ref().kind.unwrap_or_default()).to_lowercase();
    value.ok_or_else(|| Fault::at(written, format!("workload: {key}: kind `{kind}` needs it")))
}

/// Returns the mean of the documents' sizes, and all sizes if there are several.
fn sizes(written: &Spanned<Workload>) -> Result<(u64, Vec<u64>), Fault> {
    let workload = written.get_ref();
    match (&workload.size, &workload.sizes) {
        (Some(size), None) => Ok((size_of(size)?, Vec::new())),
        (None, Some(words)) if (1..=MOST_SIZES).contains(&words.len()) => {
            let sizes: Vec<u64> = words.iter().map(size_of).collect::<Result<_, _>>()?;
            Ok((sizes.iter().sum::<u64>() / sizes.len() as u64, sizes))
        }
        _ => Err(Fault::at(
            written,
            format!("workload: size: give `size`, or `sizes` with 1 to {MOST_SIZES} of them"),
        )),
    }
}

/// Reads a size above zero, small enough that a sum of many does not overflow.
fn size_of(word: &Word) -> Result<u64, Fault> {
    let Bytes(value) = parsed(word)?;
    let allowed = (1..=1 << 40).contains(&value);
    if allowed { Ok(value) } else { Err(Fault::at(word, "from 1 byte to 1TiB")) }
}

fn count(number: &Spanned<i64>) -> Result<u32, Fault> {
    whole(number, (1, MOST_DOCUMENTS), format!("from 1 to {MOST_DOCUMENTS}"))
}

/// Reads a start time of at most a day.
fn start(word: &Word) -> Result<Nanos, Fault> {
    let start: Nanos = parsed(word)?;
    let allowed = start <= Nanos::from_secs(LONGEST.into());
    if allowed { Ok(start) } else { Err(Fault::at(word, format!("at most {LONGEST}s"))) }
}

/// Reads whole seconds, at least `least`.
fn seconds(word: &Word, least: u32) -> Result<u32, Fault> {
    let Nanos(nanos) = parsed(word)?;
    let whole = u32::try_from(nanos / 1_000_000_000).unwrap_or(u32::MAX);
    if nanos % 1_000_000_000 == 0 && (least..=LONGEST).contains(&whole) {
        return Ok(whole);
    }
    Err(Fault::at(word, format!("whole seconds from {least}s to {LONGEST}s")))
}
