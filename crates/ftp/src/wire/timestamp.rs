//! Times as FTP writes them: `YYYYMMDDHHMMSS[.fraction]`, UTC (RFC 3659 section 2.3).
//!
//! Source of the calendar: days are counted from 1 March of year 0, so that the leap day is the last of its
//! year and a month's first day is a linear function of its number (Hinnant, "chrono-compatible low-level
//! date algorithms").
//! Properties kept: parsing undoes formatting for every second of the years 1 to 9999; invalid dates are refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(test)]
mod tests;

/// Days from 1 March of year 0 to 1 January 1970.
const EPOCH_DAYS: i64 = 719_468;
const DAYS_PER_ERA: i64 = 146_097;
const SECONDS_PER_DAY: i64 = 86_400;
/// The last second of year 9999, in seconds since 1970.
const LAST_SECOND: i64 = 253_402_300_799;
/// The first second of year 1, in seconds since 1970.
const FIRST_SECOND: i64 = -62_135_596_800;

/// A moment in UTC as calendar date and time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Civil {
    /// The year, 1 to 9999.
    pub(super) year: i64,
    /// The month, 1 to 12.
    pub(super) month: u8,
    /// The day of the month, 1 to 31.
    pub(super) day: u8,
    pub(super) hour: u8,
    pub(super) minute: u8,
    /// The second, 0 to 59: a leap second counts as the one before it.
    pub(super) second: u8,
}

/// Returns the whole seconds of `time` as `YYYYMMDDHHMMSS`; times beyond the years 1 to 9999 become the nearest.
#[must_use]
pub fn format(time: SystemTime) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(time);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
}

/// Reads `YYYYMMDDHHMMSS`, with or without a fraction of any length.
#[must_use]
pub fn parse(text: &[u8]) -> Option<SystemTime> {
    let (digits, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b"0"[..]),
    };
    let all_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if digits.len() != 14 || !all_digits(digits) || !all_digits(fraction) {
        return None;
    }
    let pair = |at: usize| (digits[at] - b'0') * 10 + digits[at + 1] - b'0';
    let civil = Civil {
        year: i64::from(pair(0)) * 100 + i64::from(pair(2)),
        month: pair(4),
        day: pair(6),
        hour: pair(8),
        minute: pair(10),
        second: pair(12).min(59 + u8::from(pair(12) > 60)),
    };
    let nanos =
        (0..9).fold(0, |nanos, at| nanos * 10 + u64::from(fraction.get(at).map_or(0, |digit| digit - b'0')));
    civil.to_system_time()?.checked_add(Duration::from_nanos(nanos))
}

impl Civil {
    /// Returns the date and time of `time`, without its fraction of a second.
    pub(super) fn of(time: SystemTime) -> Self {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(LAST_SECOND),
            Err(error) => {
                let before = error.duration();
                let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                -(whole.saturating_add(i64::from(before.subsec_nanos() > 0)))
            }
        };
        let seconds = seconds.clamp(FIRST_SECOND, LAST_SECOND);
        let (year, month, day) = date(seconds.div_euclid(SECONDS_PER_DAY));
        let in_day = seconds.rem_euclid(SECONDS_PER_DAY);
        // Each is below 60 (24 for hours) by construction.
        let part = |value: i64| value as u8;
        Self {
            year,
            month,
            day,
            hour: part(in_day / 3_600),
            minute: part(in_day / 60 % 60),
            second: part(in_day % 60),
        }
    }

    /// Returns the moment, unless a part is out of its range.
    pub(super) fn to_system_time(self) -> Option<SystemTime> {
        let in_range = (1..=9_999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=days_in(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60;
        if !in_range {
            return None;
        }
        let in_day = i64::from(self.hour) * 3_600 + i64::from(self.minute) * 60 + i64::from(self.second);
        let seconds = days(self.year, self.month, self.day) * SECONDS_PER_DAY + in_day;
        let span = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) }
    }
}

const fn days_in(year: i64, month: u8) -> u8 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the number of days from 1 January 1970 to a date.
fn days(year: i64, month: u8, day: u8) -> i64 {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = if month <= 2 { year - 1 } else { year };
    let in_era = year.rem_euclid(400);
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year.div_euclid(400) * DAYS_PER_ERA + in_era * 365 + in_era / 4 - in_era / 100 + in_year - EPOCH_DAYS
}

/// Returns the date that many days after 1 January 1970.
fn date(days: i64) -> (i64, u8, u8) {
    let days = days + EPOCH_DAYS;
    let in_era = days.rem_euclid(DAYS_PER_ERA);
    let year = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + days.div_euclid(DAYS_PER_ERA) * 400 + i64::from(month <= 2);
    // 1 to 12 and 1 to 31 by construction.
    (year, month as u8, day as u8)
}
