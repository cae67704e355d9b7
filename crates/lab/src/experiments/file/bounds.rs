//! Reads an expectation of a file: one bound for the median of a quantity of a method.

use bufwise_units::{BitRate, Bytes, Nanos};
use toml::Spanned;

use super::super::model::{Bound, Case, Quantity, Target, Way};
use super::super::verdict::product;
use super::format::{Expect, Value};
use super::read::{Fault, known};

const ALLOWED: &str = "give one of at-least, at-most, at-least-times (with `of`), at-most-times (with `of`, `plus`), \
    at-most-bdp (with `plus`, `of`), within-memory = true, reaches (with `before`)";

/// Returns the bound of `expect`, whose names must be among `methods` and `cases`.
pub(super) fn target(
    expect: &Spanned<Expect>,
    methods: &[&'static str],
    cases: &[&'static str],
) -> Result<Target, Fault> {
    let Expect { method, quantity, cases: only, .. } = expect.get_ref();
    let of_cases = only.iter().map(|word| known(word, "case", cases).map(str::to_owned));
    Ok(Target {
        method: known(method, "method", methods)?,
        quantity: *quantity,
        bound: bound(expect, methods)?,
        cases: of_cases.collect::<Result<_, _>>()?,
    })
}

fn bound(written: &Spanned<Expect>, methods: &[&'static str]) -> Result<Bound, Fault> {
    let expect = written.get_ref();
    let name = |word: &Option<_>| word.as_ref().map(|word| known(word, "method", methods)).transpose();
    let value = |value: &Option<_>| value.as_ref().map(|value| number(value, expect.quantity)).transpose();
    let (of, before, plus) = (name(&expect.of)?, name(&expect.before)?, value(&expect.plus)?);
    check_keys(written)?;
    let bounds = [
        value(&expect.at_least)?.map(Bound::AtLeast),
        value(&expect.at_most)?.map(Bound::AtMost),
        expect.at_least_times.zip(of).map(|(times, of)| Bound::AtLeastTimes(times, of)),
        expect.at_most_times.zip(of).map(|(times, of)| Bound::AtMostTimes(times, of, plus.unwrap_or(0.0))),
        expect.at_most_bdp.map(|times| match of {
            Some(of) => Bound::WithinProducts(times, plus.unwrap_or(0.0), of),
            None => Bound::WithinOwnProducts(times, plus.unwrap_or(0.0)),
        }),
        expect.within_memory.filter(|is| *is).map(|_| Bound::WithinMemory),
        expect.reaches.zip(before).map(|(share, before)| Bound::EarlierThan(share, before)),
    ];
    let mut given = bounds.into_iter().flatten();
    let (Some(bound), None) = (given.next(), given.next()) else {
        return Err(Fault::at(written, format!("expect: {ALLOWED}")));
    };
    let uses_of = !matches!(
        bound,
        Bound::AtLeast(_)
            | Bound::AtMost(_)
            | Bound::WithinMemory
            | Bound::WithinOwnProducts(..)
            | Bound::EarlierThan(..)
    );
    let uses_plus =
        matches!(bound, Bound::AtMostTimes(..) | Bound::WithinProducts(..) | Bound::WithinOwnProducts(..));
    let is_earlier = matches!(bound, Bound::EarlierThan(..));
    if (of.is_some() && !uses_of)
        || (plus.is_some() && !uses_plus)
        || (before.is_some() && !is_earlier)
        || [expect.at_least_times, expect.at_most_times, expect.at_most_bdp, expect.reaches]
            .into_iter()
            .flatten()
            .any(|times| !(times.is_finite() && times >= 0.0))
    {
        return Err(Fault::at(written, format!("expect: {ALLOWED}; numbers are 0 or more")));
    }
    if [of, before].into_iter().flatten().any(|other| other == expect.method.get_ref()) {
        return Err(Fault::at(written, "expect: of: compare with another method"));
    }
    Ok(bound)
}

/// Checks that there is one bound, with the other method that it needs.
fn check_keys(written: &Spanned<Expect>) -> Result<(), Fault> {
    let expect = written.get_ref();
    let given = [
        ("at-least", expect.at_least.is_some(), None),
        ("at-most", expect.at_most.is_some(), None),
        ("at-least-times", expect.at_least_times.is_some(), Some(("of", &expect.of))),
        ("at-most-times", expect.at_most_times.is_some(), Some(("of", &expect.of))),
        ("at-most-bdp", expect.at_most_bdp.is_some(), None),
        ("within-memory", expect.within_memory == Some(true), None),
        ("reaches", expect.reaches.is_some(), Some(("before", &expect.before))),
    ];
    let mut given = given.into_iter().filter(|(_, is_given, _)| *is_given);
    let Some((key, _, needs)) = given.next() else { return Ok(()) };
    if let Some((second, ..)) = given.next() {
        let what = format!("expect: {second}: it has {key} already; write another [[expect]] for {second}");
        return Err(Fault::at(written, what));
    }
    match needs {
        Some((other, None)) => {
            Err(Fault::at(written, format!("expect: {key}: needs `{other}`, the name of another method")))
        }
        _ => Ok(()),
    }
}

/// Checks that the expectation can be measured in the cases that it concerns.
pub(super) fn check(
    written: &Spanned<Expect>,
    target: &Target,
    cases: &[Case],
    way: Way,
) -> Result<(), Fault> {
    let concerned = || cases.iter().filter(move |case| target.concerns(case));
    let method = target.method;
    let lacks = |name: &&String| concerned().all(|case| case.name != **name);
    let what = if let Some(name) = target.cases.iter().find(lacks) {
        Some(format!("cases: `{method}` does not run in case `{name}`"))
    } else if concerned().next().is_none() {
        Some(format!("method: `{method}` runs in no case"))
    } else if let Bound::EarlierThan(_, other) = target.bound {
        why_not_over_all(target, other, cases)
    } else {
        let of_case = |case| why_not_measured(target.bound, case, way);
        concerned().find_map(of_case).or_else(|| why_not_in_bytes(target))
    };
    what.map_or(Ok(()), |what| Err(Fault::at(written, format!("expect: {what}"))))
}

/// Returns why `target` cannot be judged over all cases, against the method `other`; `None`: it can.
fn why_not_over_all(target: &Target, other: &str, cases: &[Case]) -> Option<String> {
    if !target.cases.is_empty() {
        return Some("cases: `reaches` is judged over all cases: leave `cases` out".to_owned());
    }
    let runs_in_none = cases.iter().all(|case| !case.runs(other));
    runs_in_none.then(|| format!("before: `{other}` runs in no case"))
}

/// Returns why a bound in bytes says nothing on the quantity; `None`: the quantity is in bytes, too, or the bound is another one.
fn why_not_in_bytes(target: &Target) -> Option<String> {
    let key = match target.bound {
        Bound::WithinMemory => "within-memory",
        Bound::WithinProducts(..) | Bound::WithinOwnProducts(..) => "at-most-bdp",
        _ => return None,
    };
    let is_in_bytes = target.quantity.unit() == "B";
    (!is_in_bytes).then(|| format!("{key}: compare a quantity in bytes with it, as held_peak_bytes"))
}

/// Returns why `bound` is never measured in `case`; `None`: it is.
fn why_not_measured(bound: Bound, case: &Case, way: Way) -> Option<String> {
    let name = &case.name;
    let of = |other: &'static str| {
        let text = || format!("of: `{other}` does not run in case `{name}`: name the others as `cases`");
        (!case.runs(other)).then(text)
    };
    let rate = || {
        let lacks = product(case, way).is_none();
        lacks.then(|| format!("at-most-bdp: give the first path of case `{name}` a `rate`"))
    };
    match bound {
        Bound::AtLeastTimes(_, other) | Bound::AtMostTimes(_, other, _) => of(other),
        Bound::WithinProducts(_, _, other) => of(other).or_else(rate),
        Bound::WithinOwnProducts(..) => rate(),
        Bound::WithinMemory => {
            case.memory.is_none().then(|| format!("within-memory: give case `{name}` a `memory`"))
        }
        // A file has no other bounds.
        Bound::AtLeast(_)
        | Bound::AtMost(_)
        | Bound::EarlierThan(..)
        | Bound::AtLeastOfCeiling(_)
        | Bound::AtLeastTimesBest(..)
        | Bound::NearRtt(..) => None,
    }
}

/// Returns the value in the quantity's own unit: bit/s, bytes, seconds, or a plain number.
fn number(value: &Spanned<Value>, quantity: Quantity) -> Result<f64, Fault> {
    let text = match value.get_ref() {
        Value::Number(number) if number.is_finite() && *number >= 0.0 => return Ok(*number),
        Value::Number(_) => return Err(Fault::at(value, "a number is 0 or more")),
        Value::Text(text) => text,
    };
    let fault = |error: bufwise_units::ParseError| Fault::at(value, error);
    match quantity.unit() {
        "bit/s" => text.parse::<BitRate>().map(|BitRate(bits)| bits as f64).map_err(fault),
        "B" => text.parse::<Bytes>().map(|Bytes(bytes)| bytes as f64).map_err(fault),
        "s" => text.parse::<Nanos>().map(|Nanos(nanos)| nanos as f64 / 1e9).map_err(fault),
        _ => Err(Fault::at(value, "this quantity has no unit: write a number without quotes, as 0.97")),
    }
}
