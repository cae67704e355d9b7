//! Lines of LIST: what `ls -l` writes, and what Windows servers write instead.
//!
//! Problem: there is no standard. Columns differ in number and width, names have spaces at either end, users
//! and groups may be missing or have spaces, and the date has no year or no time of day.
//! So: a line of `ls` is parsed from its date, which is between the size and the name, with exactly one space before
//! the name. A date without a year is the latest such date that is not after tomorrow (servers write their local time,
//! and clocks differ).
//! Properties kept: parsing undoes writing, to the written precision (minutes within half a year, else days).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::entry::{Entry, Kind};
use super::mlsx::listable;
use crate::wire::address::decimal;
use crate::wire::error::WireError;
use crate::wire::timestamp::Civil;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
const DAY: Duration = Duration::from_secs(86_400);
/// Age up to which `ls` writes the time of day and not the year: half a mean Gregorian year.
const RECENT: Duration = Duration::from_secs(31_556_952 / 2);
/// Words after the permissions among which the date must begin: links, user, group and size are four, and names of
/// users may have spaces.
const MAX_WORDS: usize = 12;
/// Windows servers write `<DIR>` and the like left-aligned in a field of this width.
const DOS_FIELD: usize = 15;

/// Reads a line of LIST; `None` if it is no entry, such as the line `total 12`. `now` completes dates that have no year.
#[must_use]
pub fn parse_list_line(line: &[u8], now: SystemTime) -> Option<Entry> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        return None;
    }
    let mut entry = unix(line, now).or_else(|| dos(line))?;
    match entry.name.as_os_str().as_bytes() {
        b"." => entry.kind = Kind::Current,
        b".." => entry.kind = Kind::Parent,
        _ => {}
    }
    Some(entry)
}

/// A word of a line and what follows it.
struct Word<'a> {
    text: &'a [u8],
    rest: &'a [u8],
}

/// Returns the words of a line, which any number of spaces separate.
fn words(line: &[u8]) -> impl Iterator<Item = Word<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let begin = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[begin..].iter().position(|byte| *byte == b' ').map_or(rest.len(), |at| begin + at);
        let text = &rest[begin..end];
        rest = &rest[end..];
        Some(Word { text, rest })
    })
}

/// Parses `-rw-r--r-- 1 user group 12 Nov 22 02:30 name`.
fn unix(line: &[u8], now: SystemTime) -> Option<Entry> {
    let words: Vec<Word<'_>> = words(line).take(MAX_WORDS).collect();
    let (kind, mode) = permissions(words.first()?.text)?;
    let dates = words[1..].windows(2).filter(|pair| is_size(pair[0].text));
    let (size, (modified, rest)) = dates
        .filter_map(|pair| {
            let before = pair[0].rest;
            Some((pair[0].text, month_day(before, now).or_else(|| iso(before))?))
        })
        .next()?;
    let name = rest.strip_prefix(b" ").filter(|name| !name.is_empty())?;
    // No name is empty, so an arrow at its beginning belongs to it.
    let arrow = (1..).zip(name.windows(4).skip(1)).find(|(_, window)| *window == b" -> ");
    let arrow = arrow.map(|(at, _)| at).filter(|_| kind == Kind::Link);
    let name = &name[..arrow.unwrap_or(name.len())];
    // For a device, the word is the minor number and not a size.
    let size = decimal::<i64>(size).filter(|_| !matches!(line[0], b'b' | b'c'));
    Some(Entry {
        size: size.and_then(|size| u64::try_from(size).ok()),
        modified,
        mode,
        ..Entry::new(PathBuf::from(OsStr::from_bytes(name)), kind)
    })
}

/// Whether a word may be a size. Servers that count in 32 bits write a negative one for a file of 2 GiB or more.
fn is_size(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Parses `drwxr-xr-x`, with a mark for access lists after it or without.
fn permissions(word: &[u8]) -> Option<(Kind, Option<u32>)> {
    let kind = match word.first()? {
        b'-' => Kind::File,
        b'd' => Kind::Dir,
        b'l' => Kind::Link,
        b'b' | b'c' | b'p' | b's' | b'D' => Kind::Other,
        _ => return None,
    };
    let bits = word.get(1..10)?;
    let mut mode = 0;
    for (at, bit) in bits.iter().enumerate() {
        let (granted, special) = match (at % 3, bit) {
            (_, b'-') => (false, false),
            (0, b'r') | (1, b'w') | (2, b'x') => (true, false),
            (2, b's' | b't') => (true, true),
            (2, b'S' | b'T' | b'l' | b'L') => (false, true),
            _ => return None,
        };
        mode |= u32::from(granted) << (8 - at) | u32::from(special) << (11 - at / 3);
    }
    matches!(&word[10..], [] | [b'+' | b'.' | b'@']).then_some((kind, Some(mode)))
}

/// Parses `Nov 22 02:30` or `Nov 22 2026`; returns also what follows.
fn month_day(text: &[u8], now: SystemTime) -> Option<(Option<SystemTime>, &[u8])> {
    let mut words = words(text);
    let (month, day, last) = (words.next()?, words.next()?, words.next()?);
    let month = MONTHS.iter().position(|name| month.text.eq_ignore_ascii_case(*name))?;
    // Below 12 by construction.
    let month = month as u8 + 1;
    let day = decimal(day.text).filter(|day| (1..=31).contains(day))?;
    if let Some((hour, minute)) = time_of_day(last.text) {
        let at = |year| Civil { year, month, day, hour, minute, second: 0 }.to_system_time();
        return Some((latest(at, now), last.rest));
    }
    let year = decimal(last.text).filter(|_| last.text.len() == 4)?;
    let modified = Civil { year, month, day, hour: 0, minute: 0, second: 0 }.to_system_time();
    Some((modified, last.rest))
}

/// Returns the latest year in which a date exists and is not after tomorrow.
fn latest(at: impl Fn(i64) -> Option<SystemTime>, now: SystemTime) -> Option<SystemTime> {
    let this_year = Civil::of(now).year;
    let bound = now.checked_add(DAY)?;
    // 29 February comes every eighth year at worst.
    (0..=8).map(|back| this_year + 1 - back).find_map(|year| at(year).filter(|time| *time <= bound))
}

/// Parses `2026-11-22 02:30`; returns also what follows.
fn iso(text: &[u8]) -> Option<(Option<SystemTime>, &[u8])> {
    let mut words = words(text);
    let (date, time) = (words.next()?, words.next()?);
    let (year, month, day) = iso_date(date.text)?;
    let (hour, minute) = time_of_day(time.text.get(..5)?)?;
    let modified = Civil { year, month, day, hour, minute, second: 0 }.to_system_time();
    Some((modified, time.rest))
}

fn iso_date(text: &[u8]) -> Option<(i64, u8, u8)> {
    let [year @ .., b'-', m1, m2, b'-', d1, d2] = text else {
        return None;
    };
    let year = decimal(year).filter(|_| year.len() == 4)?;
    Some((year, decimal(&[*m1, *m2])?, decimal(&[*d1, *d2])?))
}

/// Parses `2:30` or `02:30`.
fn time_of_day(text: &[u8]) -> Option<(u8, u8)> {
    let [hour @ .., b':', m1, m2] = text else {
        return None;
    };
    let hour = decimal(hour).filter(|_| (1..=2).contains(&hour.len()))?;
    Some((hour, decimal(&[*m1, *m2])?))
}

/// Parses `11-22-26  02:30AM  <DIR>  name` or `11-22-2026  02:30PM  12 name`.
fn dos(line: &[u8]) -> Option<Entry> {
    let mut words = words(line);
    let (date, time, what) = (words.next()?, words.next()?, words.next()?);
    let (year, month, day) = iso_date(date.text).or_else(|| dos_date(date.text))?;
    let (hour, minute) = dos_time(time.text)?;
    let modified = Civil { year, month, day, hour, minute, second: 0 }.to_system_time();
    let (kind, size, spaces) = match what.text {
        b"<DIR>" => (Kind::Dir, None, DOS_FIELD - what.text.len()),
        [b'<', .., b'>'] => (Kind::Link, None, DOS_FIELD.saturating_sub(what.text.len()).max(1)),
        digits if digits.iter().all(u8::is_ascii_digit) => (Kind::File, decimal::<i64>(digits), 1),
        _ => return None,
    };
    let indent = what.rest.iter().take(spaces).take_while(|byte| **byte == b' ').count();
    let name = Some(&what.rest[indent..]).filter(|name| indent > 0 && !name.is_empty())?;
    Some(Entry {
        size: size.and_then(|size| u64::try_from(size).ok()),
        modified,
        ..Entry::new(PathBuf::from(OsStr::from_bytes(name)), kind)
    })
}

/// Parses `11-22-26` or `11-22-2026`.
fn dos_date(text: &[u8]) -> Option<(i64, u8, u8)> {
    let [m1, m2, b'-', d1, d2, b'-', year @ ..] = text else {
        return None;
    };
    let year = match (year.len(), decimal(year)?) {
        (2, year @ 70..) => 1_900 + year,
        (2, year) => 2_000 + year,
        (4, year) => year,
        _ => return None,
    };
    Some((year, decimal(&[*m1, *m2])?, decimal(&[*d1, *d2])?))
}

/// Parses `02:30AM`, `02:30PM` or `14:30`.
fn dos_time(text: &[u8]) -> Option<(u8, u8)> {
    let half = |text: &[u8]| time_of_day(text).filter(|(hour, _)| (1..=12).contains(hour));
    match text {
        [time @ .., b'A' | b'a', b'M' | b'm'] => half(time).map(|(hour, minute)| (hour % 12, minute)),
        [time @ .., b'P' | b'p', b'M' | b'm'] => half(time).map(|(hour, minute)| (hour % 12 + 12, minute)),
        _ => time_of_day(text),
    }
}

/// Writes an entry as `ls -l` does, without line break: user and group are `ftp`, a size that is not known
/// is 0, a time that is not known is 1970.
///
/// # Errors
/// [`WireError::LineBreak`] if the name has a CR, LF or NUL: such an entry cannot be listed;
/// [`WireError::Empty`] if there is no name.
pub fn encode_ls(entry: &Entry, now: SystemTime) -> Result<Vec<u8>, WireError> {
    let name = listable(entry)?;
    let (letter, usual_mode) = match entry.kind {
        Kind::File => ('-', 0o644),
        Kind::Dir | Kind::Current | Kind::Parent => ('d', 0o755),
        Kind::Link => ('l', 0o777),
        Kind::Other => ('p', 0o644),
    };
    let mode = mode_text(entry.mode.unwrap_or(usual_mode));
    let modified = entry.modified.unwrap_or(SystemTime::UNIX_EPOCH);
    let civil = Civil::of(modified);
    let month = String::from_utf8_lossy(MONTHS[usize::from(civil.month - 1)]);
    // Neither more than half a year ago nor ahead of the clock.
    let time = if now.duration_since(modified).is_ok_and(|age| age < RECENT) {
        format!("{:02}:{:02}", civil.hour, civil.minute)
    } else {
        format!("{:04}", civil.year)
    };
    let size = entry.size.unwrap_or(0);
    let head = format!("{letter}{mode}   1 ftp      ftp      {size:>12} {month} {:>2} {time:>5} ", civil.day);
    Ok([head.as_bytes(), name].concat())
}

fn mode_text(mode: u32) -> String {
    let letter = |at: u32| {
        let granted = mode >> (8 - at) & 1 == 1;
        let special = mode >> (11 - at / 3) & 1 == 1;
        match (at % 3, granted, special) {
            (0, true, _) => 'r',
            (1, true, _) => 'w',
            (2, true, false) => 'x',
            (2, true, true) => {
                if at == 8 {
                    't'
                } else {
                    's'
                }
            }
            (2, false, true) => {
                if at == 8 {
                    'T'
                } else {
                    'S'
                }
            }
            _ => '-',
        }
    };
    (0..9).map(letter).collect()
}
