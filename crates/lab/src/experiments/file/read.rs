//! Turns a file's keys into an experiment: parses each text, resolves each name, checks each bound.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use bufwise_units::Bytes;
use toml::Spanned;

use super::super::model::{
    Case, Experiment, Flow, Ftp, Method, Quantity, Setup, Target, USUAL_RMEM, USUAL_WMEM, Way,
};
use super::Policies;
use super::format::{self, File, Kind, WayKey, Word};
use super::{bounds, machine, paths, workloads};
use crate::spec::PathSpec;

/// Most cases, methods and repetitions, so that a screen can show the results.
const MOST_CASES: usize = 200;
const MOST_METHODS: usize = 50;
const MOST_REPEATS: u32 = 1_000;
/// Largest buffer limit, in bytes: the kernel's settings are signed 32-bit numbers.
const LARGEST_LIMIT: u64 = i32::MAX as u64;
/// Smallest buffer limit, in bytes: a page.
const SMALLEST_LIMIT: u64 = 4_096;
/// Largest initial window, in segments: the kernel's checks of the window take it for a signed 32-bit number.
const LARGEST_WINDOW: u32 = i32::MAX as u32;
/// Longest name, in bytes.
const LONGEST_NAME: usize = 60;

/// A fault, with its position in the file; without one, `what` begins with the key that the file lacks.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Option<Range<usize>>,
    pub(super) what: String,
}

impl Fault {
    pub(super) fn at<T>(place: &Spanned<T>, what: impl Display) -> Self {
        Self { at: Some(place.span()), what: what.to_string() }
    }

    pub(super) fn of_file(what: impl Display) -> Self {
        Self { at: None, what: what.to_string() }
    }

    /// Returns the fault with the position of `place` if it has none of its own.
    fn or_at<T>(self, place: &Spanned<T>) -> Self {
        Self { at: self.at.or_else(|| Some(place.span())), what: self.what }
    }
}

/// Returns the same text with the lifetime of the process (leaked once per text): an experiment's names are few, and
/// copied often.
pub(super) fn kept(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let new: &'static str = text.to_owned().leak();
    texts.insert(new);
    new
}

/// Parses `word` as on the command line.
pub(super) fn parsed<T: FromStr<Err: Display>>(word: &Word) -> Result<T, Fault> {
    word.get_ref().parse().map_err(|error| Fault::at(word, error))
}

pub(super) fn parsed_if<T: FromStr<Err: Display>>(word: Option<&Word>) -> Result<Option<T>, Fault> {
    word.map(parsed).transpose()
}

pub(super) fn bytes(word: &Word) -> Result<u64, Fault> {
    parsed::<Bytes>(word).map(|bytes| bytes.0)
}

/// Reads a size for an option of `bufwise run`, which `check` knows.
fn size_for_run(word: &Word, check: fn(&str) -> Result<(), String>) -> Result<u64, Fault> {
    let size = bytes(word)?;
    check(&format!("{size}B")).map_err(|what| Fault::at(word, what))?;
    Ok(size)
}

/// Reads a whole number within bounds, which the error states as `allowed`.
pub(super) fn whole<T: TryFrom<i64> + PartialOrd + Copy>(
    written: &Spanned<i64>,
    (least, most): (T, T),
    allowed: impl Display,
) -> Result<T, Fault> {
    let value = T::try_from(*written.get_ref()).ok().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| Fault::at(written, allowed))
}

/// Reads one word of letters, digits and the characters that names of policies, sizes and congestion controls contain.
pub(super) fn plain(word: &Word) -> Result<&'static str, Fault> {
    let text = word.get_ref();
    let usual = |letter: char| letter.is_ascii_alphanumeric() || "-_:.,".contains(letter);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(usual) {
        return Err(Fault::at(word, "write one word of letters, digits and - _ : . ,"));
    }
    Ok(kept(text))
}

/// Reads a name for people, in one line.
pub(super) fn name(word: &Word) -> Result<&'static str, Fault> {
    let text = word.get_ref();
    if text.trim().is_empty() || text.len() > LONGEST_NAME || text.chars().any(char::is_control) {
        return Err(Fault::at(word, format!("a name has 1 to {LONGEST_NAME} bytes in one line")));
    }
    Ok(kept(text))
}

/// Returns `word` if it is one of `known`; `what` names the kind in the error.
pub(super) fn known(word: &Word, what: &str, known: &[&'static str]) -> Result<&'static str, Fault> {
    let found = known.iter().find(|one| **one == *word.get_ref());
    found.copied().ok_or_else(|| {
        let known = match known {
            [] => format!("none: add [[{what}]]"),
            _ => known.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", "),
        };
        Fault::at(word, format!("`{}` is no {what} of this file: there is {known}", word.get_ref()))
    })
}

/// Builds the experiment; `id` is its name if the file gives none.
pub(super) fn experiment(file: &File, id: &str, policies: &Policies) -> Result<Experiment, Fault> {
    let way = match file.way {
        Some(WayKey::Download) => Way::Download,
        Some(WayKey::Upload) | None => Way::Upload,
    };
    let id = file.id.as_ref().map_or(Ok(kept(id)), identifier)?;
    let mut cases = cases(file, id, way, policies)?;
    paths::check_passed(&file.link, cases.iter().flat_map(|case| &case.paths))?;
    let methods = methods(file, policies)?;
    let method_names: Vec<&str> = methods.iter().map(|method| method.name).collect();
    for (case, written) in cases.iter_mut().zip(&file.case) {
        let of = |word| known(word, "method", &method_names);
        case.setup.methods = written.get_ref().methods.iter().map(of).collect::<Result<_, _>>()?;
    }
    for (method, written) in methods.iter().zip(&file.method) {
        check_kind(method, written.get_ref(), &cases)?;
    }
    let case_names: Vec<&str> = cases.iter().map(|case| kept(&case.name)).collect();
    let targets = file.expect.iter().map(|expect| bounds::target(expect, &method_names, &case_names));
    let targets: Vec<Target> = targets.collect::<Result<_, _>>()?;
    for (expect, target) in file.expect.iter().zip(&targets) {
        bounds::check(expect, target, &cases, way)?;
    }
    machine::check(file, policies)?;
    Ok(Experiment {
        id,
        source: file.source.as_deref().map_or("file", kept),
        question: file.question.as_deref().map_or("How do the methods compare?", kept),
        scale: file.scale.as_deref().map_or("As the file says.", kept),
        way,
        quantities: quantities(file, &cases, &targets),
        cases,
        methods,
        targets,
        ..Experiment::default()
    })
}

/// Checks that a method's own workload is of the kind of all workloads that it replaces.
fn check_kind(method: &Method, written: &format::Method, cases: &[Case]) -> Result<(), Fault> {
    let Some((amount, place)) = method.amount.zip(written.workload.as_ref()) else { return Ok(()) };
    for case in cases.iter().filter(|case| case.runs(method.name)) {
        let own = case.flows.iter().filter(|flow| !flow.cross).map(|flow| workloads::kind(flow.amount));
        if let Some(other) = own.into_iter().find(|kind| *kind != workloads::kind(amount)) {
            let [own, other] =
                [workloads::kind(amount), other].map(|kind| format!("{kind:?}").to_lowercase());
            let case = &case.name;
            return Err(Fault::at(
                place,
                format!("kind: `{own}` cannot replace the workload of kind `{other}` in case `{case}`"),
            ));
        }
    }
    Ok(())
}

/// Reads a name that is also valid as the name of a file.
fn identifier(word: &Word) -> Result<&'static str, Fault> {
    let text = word.get_ref();
    let usual = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if text.is_empty() || text.len() > LONGEST_NAME || text.starts_with('-') || !text.chars().all(usual) {
        return Err(Fault::at(word, "an id has small letters, digits and hyphens"));
    }
    Ok(kept(text))
}

/// Returns the quantities of the file, else the usual ones; and all quantities that have an expectation. Each occurs once.
fn quantities(file: &File, cases: &[Case], targets: &[Target]) -> Vec<Quantity> {
    let named = file.quantities.clone().filter(|list| !list.is_empty());
    let named = named.unwrap_or_else(|| workloads::usual_quantities(cases));
    let mut quantities = Vec::new();
    for quantity in named.into_iter().chain(targets.iter().map(|target| target.quantity)) {
        if !quantities.contains(&quantity) {
            quantities.push(quantity);
        }
    }
    quantities
}

fn cases(file: &File, id: &str, way: Way, policies: &Policies) -> Result<Vec<Case>, Fault> {
    let own_memory =
        |word: &Option<Word>| word.as_ref().map(|word| size_for_run(word, policies.memory)).transpose();
    let memory = own_memory(&file.memory)?;
    let file_repeat = file.repeat.as_ref().map(repeat).transpose()?;
    if file.case.is_empty() {
        let setup = Setup { repeat: file_repeat, ..Setup::default() };
        let (paths, flows) = paths_and_flows((&file.path, &file.link), &file.workload, way)?;
        return Ok(vec![Case { name: id.to_owned(), paths, flows, memory, quick: true, setup }]);
    }
    if let Some(beyond) = file.case.get(MOST_CASES) {
        return Err(Fault::at(beyond, format!("at most {MOST_CASES} cases")));
    }
    let mut names = BTreeSet::new();
    let mut cases = Vec::new();
    for case in &file.case {
        let written = case.get_ref();
        let own_name = name(&written.name)?;
        if !names.insert(own_name) {
            return Err(Fault::at(&written.name, format!("`{own_name}` is already the name of a case")));
        }
        let paths = if written.path.is_empty() { &file.path } else { &written.path };
        let links = if written.link.is_empty() { &file.link } else { &written.link };
        let workloads = if written.workload.is_empty() { &file.workload } else { &written.workload };
        let load = paths_and_flows((paths, links), workloads, way);
        let (paths, flows) = load.map_err(|fault| fault.or_at(case))?;
        paths::check_passed(&written.link, paths.iter())?;
        let is_over_ipv4 = |flow: &Flow| flow.web || workloads::kind(flow.amount) == Kind::File;
        if let Some(ipv6) = written.ipv6.as_ref().filter(|ipv6| *ipv6.get_ref())
            && flows.iter().any(is_over_ipv4)
        {
            return Err(Fault::at(ipv6, "files, and documents of a web server, go over IPv4 only"));
        }
        cases.push(Case {
            name: own_name.to_owned(),
            paths,
            flows,
            memory: own_memory(&written.memory)?.or(memory),
            quick: written.quick.as_ref().is_none_or(|quick| *quick.get_ref()),
            setup: Setup { repeat: None, ..setup(written)? },
        });
        if let (Some(last), own) = (cases.last_mut(), written.repeat.as_ref()) {
            last.setup.repeat = own.map(repeat).transpose()?.or(file_repeat);
        }
    }
    let not_quick =
        file.case.iter().map(|case| case.get_ref().quick.as_ref().filter(|quick| !quick.get_ref()));
    match not_quick.collect::<Option<Vec<_>>>().as_deref() {
        Some(&[first, ..]) => {
            Err(Fault::at(first, "no case is quick: let --quick run one, by leaving out its `quick = false`"))
        }
        _ => Ok(cases),
    }
}

fn repeat(number: &Spanned<i64>) -> Result<u32, Fault> {
    whole(number, (1, MOST_REPEATS), format!("from 1 to {MOST_REPEATS}"))
}

fn setup(case: &format::Case) -> Result<Setup, Fault> {
    Ok(Setup {
        limits: case.limits.as_ref().map(limit).transpose()?,
        settings: settings(&case.settings)?,
        initial_window: case.initial_window.as_ref().map(initial_window).transpose()?,
        ipv6: case.ipv6.as_ref().is_some_and(|ipv6| *ipv6.get_ref()),
        ..Setup::default()
    })
}

type Load = (Vec<PathSpec>, Vec<Flow>);

fn paths_and_flows(
    network: (&[Spanned<format::Path>], &[Spanned<format::Path>]),
    workloads: &[Spanned<format::Workload>],
    way: Way,
) -> Result<Load, Fault> {
    let (specs, names) = paths::read(network)?;
    Ok((specs, workloads::flows(workloads, &names, way)?))
}

fn methods(file: &File, policies: &Policies) -> Result<Vec<Method>, Fault> {
    if file.method.is_empty() {
        return Err(Fault::of_file(
            "method: no method: add [[method]] with a `name`, and a policy as `client` or `server`",
        ));
    }
    if let Some(beyond) = file.method.get(MOST_METHODS) {
        return Err(Fault::at(beyond, format!("at most {MOST_METHODS} methods")));
    }
    let all = file.case.iter().flat_map(|case| &case.get_ref().workload).chain(&file.workload);
    let has_files = all.into_iter().any(|workload| workload.get_ref().kind == Some(Kind::File));
    let mut methods: Vec<Method> = Vec::new();
    for written in file.method.iter().map(Spanned::get_ref) {
        let method = method(written, has_files, policies)?;
        if methods.iter().any(|before| before.name == method.name) {
            let what = format!("`{}` is already the name of a method", method.name);
            return Err(Fault::at(&written.name, what));
        }
        methods.push(method);
    }
    Ok(methods)
}

fn method(written: &format::Method, has_files: bool, policies: &Policies) -> Result<Method, Fault> {
    let checked = |word: &Word, check: fn(&str) -> Result<(), String>| {
        check(word.get_ref()).map_err(|what| Fault::at(word, what))?;
        plain(word)
    };
    let policy = |word: &Option<Word>| word.as_ref().map(|word| checked(word, policies.run)).transpose();
    let ftp = match &written.ftp {
        None if !has_files => Ftp::default(),
        None => Ftp { client: Some("kernel"), server: Some("") },
        Some(ftp) => Ftp {
            client: match &ftp.client {
                None => Some("kernel"),
                Some(word) if word.get_ref() == "curl" => None,
                Some(word) => Some(checked(word, policies.get)?),
            },
            server: match ftp.server.as_deref() {
                Some("vsftpd") => None,
                options => Some(kept(options.unwrap_or_default())),
            },
        },
    };
    let limit_or = |word: &Option<Word>, usual| word.as_ref().map_or(Ok(usual), limit);
    Ok(Method {
        name: name(&written.name)?,
        client: policy(&written.client)?,
        server: policy(&written.server)?,
        only_called: false,
        small_documents: written
            .small_documents
            .as_ref()
            .map(|word| size_for_run(word, policies.small_documents))
            .transpose()?,
        rmem: limit_or(&written.rmem, USUAL_RMEM)?,
        wmem: limit_or(&written.wmem, USUAL_WMEM)?,
        congestion_control: written.congestion_control.as_ref().map_or(Ok("cubic"), plain)?,
        sender: settings(&written.sender)?,
        receiver: settings(&written.receiver)?,
        initial_window: written.initial_window.as_ref().map(initial_window).transpose()?,
        at_once: written
            .gso_max_size
            .as_ref()
            .map(|word| checked(word, policies.gso_max_size))
            .transpose()?,
        amount: written.workload.as_ref().map(workloads::amount_of_method).transpose()?,
        ftp,
        beside: written.beside.unwrap_or(false),
    })
}

fn limit(word: &Word) -> Result<u64, Fault> {
    let value = bytes(word)?;
    if (SMALLEST_LIMIT..=LARGEST_LIMIT).contains(&value) {
        return Ok(value);
    }
    Err(Fault::at(word, "write a size from 4KiB to 2147483647B, the kernel's range"))
}

/// Reads an initial window, in segments; 0 would be the kernel's own.
fn initial_window(number: &Spanned<i64>) -> Result<u32, Fault> {
    let allowed = format!("from 1 to {LARGEST_WINDOW} segments; leave it out for the kernel's own");
    whole(number, (1, LARGEST_WINDOW), allowed)
}

/// Reads settings of a host's own network namespace; others would apply to the whole machine.
fn settings(written: &BTreeMap<Word, String>) -> Result<Vec<(&'static str, &'static str)>, Fault> {
    let usual = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let one = |(key, value): (&Word, &String)| {
        if key.get_ref().starts_with("net.") && key.get_ref().chars().all(usual) {
            return Ok((kept(key.get_ref()), kept(value)));
        }
        Err(Fault::at(key, "a setting of the hosts begins with `net.`, as net.ipv4.tcp_wmem"))
    };
    written.iter().map(one).collect()
}
