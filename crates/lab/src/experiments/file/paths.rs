//! Reads the paths of a file, and the links in a row that they pass and share.

use bufwise_units::Nanos;
use toml::Spanned;

use super::format::{self, TraceBegins, Word};
use super::read::{Fault, kept, known, name, parsed_if, plain, whole};
use crate::spec::{CrossSpec, LossSpec, MIN_MTU, PathSpec, SharedLink};

/// Most paths and shared links that the hosts of one testbed and its emulator can carry.
const MOST_PATHS: usize = 16;
const MOST_LINKS: usize = 16;

type Written = [Spanned<format::Path>];

/// Returns the paths with the links that they name, and the paths' names.
pub(super) fn read(
    (paths, links): (&Written, &Written),
) -> Result<(Vec<PathSpec>, Vec<&'static str>), Fault> {
    if paths.is_empty() {
        return Err(Fault::of_file("path: no path: add [[path]] with a `rate` and an `rtt`"));
    }
    if let Some(beyond) = paths.get(MOST_PATHS) {
        return Err(Fault::at(beyond, format!("at most {MOST_PATHS} paths")));
    }
    let shared = shared(links)?;
    let mut names: Vec<&'static str> = Vec::new();
    let mut specs: Vec<PathSpec> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let own = path.get_ref().name.as_ref();
        let path_name = own.map_or_else(|| Ok(kept(&format!("path {}", index + 1))), name)?;
        if names.contains(&path_name) {
            return Err(Fault::at(path, format!("name: `{path_name}` is already the name of a path")));
        }
        names.push(path_name);
        specs.push(one(path, &shared)?);
    }
    Ok((specs, names))
}

/// Checks that one of `paths` passes each of `links`.
///
/// # Errors
/// [`Fault`] at the first link that no path passes.
pub(super) fn check_passed<'a>(
    links: &Written,
    paths: impl Iterator<Item = &'a PathSpec>,
) -> Result<(), Fault> {
    let passed: Vec<&str> = paths.flat_map(|path| &path.links).map(|link| link.name.as_str()).collect();
    let unused = links.iter().find_map(|link| {
        let name = link.get_ref().name.as_ref()?.get_ref();
        (!passed.contains(&name.as_str())).then_some((link, name))
    });
    match unused {
        Some((link, name)) => {
            let what =
                format!("link: `{name}`: no path passes it; write `links = [\"{name}\"]` in a [[path]]");
            Err(Fault::at(link, what))
        }
        None => Ok(()),
    }
}

/// Returns the shared links, each with its name.
fn shared(links: &Written) -> Result<Vec<SharedLink>, Fault> {
    if let Some(beyond) = links.get(MOST_LINKS) {
        return Err(Fault::at(beyond, format!("at most {MOST_LINKS} links")));
    }
    let mut shared: Vec<SharedLink> = Vec::new();
    for written in links {
        let link = written.get_ref();
        let Some(word) = &link.name else {
            return Err(Fault::at(written, "link: name: missing; the `links` of paths refer to it"));
        };
        let name = name(word)?.to_owned();
        if shared.iter().any(|other| other.name == name) {
            return Err(Fault::at(written, format!("link: name: `{name}` is already the name of a link")));
        }
        let of_path =
            [("from", link.from.is_some()), ("links", !link.links.is_empty()), ("mtu", link.mtu.is_some())];
        if let Some((key, _)) = of_path.iter().find(|(_, is_given)| *is_given) {
            return Err(Fault::at(written, format!("link: {key}: that is a key of a path, not of a link")));
        }
        shared.push(SharedLink { name, spec: spec(written, "link")? });
    }
    Ok(shared)
}

fn one(written: &Spanned<format::Path>, shared: &[SharedLink]) -> Result<PathSpec, Fault> {
    let path = written.get_ref();
    let names: Vec<&'static str> = shared.iter().map(|link| kept(&link.name)).collect();
    let mut links: Vec<SharedLink> = Vec::new();
    for word in &path.links {
        let name = known(word, "link", &names)?;
        if links.iter().any(|link| link.name == name) {
            return Err(Fault::at(word, format!("a path may pass `{name}` only once")));
        }
        links.extend(shared.iter().find(|link| link.name == name).cloned());
    }
    let from = path.from.as_ref().map(plain).transpose()?;
    // Host A may also be named.
    let from = from.filter(|from| *from != "A").map(str::to_owned);
    let spec = PathSpec { from, links, ..spec(written, "path")? };
    spec.directions().map_err(|error| Fault::at(written, format!("path: {error}")))?;
    // A link has been checked with packets of the usual size.
    for SharedLink { name, spec: link } in &spec.links {
        let passed = PathSpec { mtu: spec.mtu, ..link.clone() };
        if let Err(error) = passed.queue_limit() {
            return Err(Fault::at(written, format!("path: mtu: link `{name}`: {error}")));
        }
    }
    Ok(spec)
}

/// Reads the link itself; `what` names it in errors.
fn spec(written: &Spanned<format::Path>, what: &str) -> Result<PathSpec, Fault> {
    let path = written.get_ref();
    let cross = |word: &Option<Word>| Ok(parsed_if::<CrossSpec>(word.as_ref())?.map(|cross| cross.0));
    let usual = PathSpec::default();
    let mtu = |number| whole(number, (MIN_MTU, u16::MAX), format!("from {MIN_MTU} to {} bytes", u16::MAX));
    let spec = PathSpec {
        rate: parsed_if(path.rate.as_ref())?,
        rtt: parsed_if(path.rtt.as_ref())?.unwrap_or(usual.rtt),
        queue: parsed_if(path.queue.as_ref())?,
        policer: path.policer.unwrap_or(false),
        mark: parsed_if(path.mark.as_ref())?,
        loss: parsed_if::<LossSpec>(path.loss.as_ref())?.unwrap_or_default().0,
        jitter: parsed_if::<Nanos>(path.jitter.as_ref())?.unwrap_or(usual.jitter),
        reorder: path.reorder.unwrap_or(false),
        trace: parsed_if(path.trace.as_ref())?,
        rate_a_to_b: parsed_if(path.rate_a_to_b.as_ref())?,
        trace_a_to_b: parsed_if(path.trace_a_to_b.as_ref())?,
        trace_begins_with_data: path.trace_begins == Some(TraceBegins::Data),
        cross_a_to_b: cross(&path.cross_a_to_b)?,
        cross_b_to_a: cross(&path.cross_b_to_a)?,
        mtu: path.mtu.as_ref().map_or(Ok(usual.mtu), mtu)?,
        seed: path.seed.unwrap_or(usual.seed),
        ..usual
    };
    if path.trace_begins.is_some() && spec.trace.is_none() && spec.trace_a_to_b.is_none() {
        let what = format!("{what}: trace-begins: there is no trace; add `trace` or `trace-a-to-b`");
        return Err(Fault::at(written, what));
    }
    spec.directions().map_err(|error| Fault::at(written, format!("{what}: {error}")))?;
    Ok(spec)
}
