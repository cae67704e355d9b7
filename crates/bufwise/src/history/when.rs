//! Reads and writes times, in the time zone of the user.

use std::str::FromStr;

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, NaiveTime, TimeDelta, TimeZone};

/// A time as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// This many seconds ago.
    Ago(u32),
    /// A time of day: its last occurrence.
    Daytime(NaiveTime),
    /// A day and a time.
    Date(NaiveDateTime),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let daytimes = ["%H:%M", "%H:%M:%S"].map(|form| NaiveTime::parse_from_str(text, form).ok());
        if let Some(time) = daytimes.into_iter().flatten().next() {
            return Ok(Self::Daytime(time));
        }
        let dates = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"];
        let dates = dates.map(|form| NaiveDateTime::parse_from_str(text, form).ok());
        if let Some(date) = dates.into_iter().flatten().next() {
            return Ok(Self::Date(date));
        }
        ago(text).map(Self::Ago).ok_or_else(|| {
            format!("`{text}` is no time: write 30m for so long ago, 14:05, or 2026-11-23T14:05")
        })
    }
}

/// Parses a span as `90s`, `30m`, `1h`; returns seconds.
fn ago(text: &str) -> Option<u32> {
    let seconds = |unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3_600),
        _ => None,
    };
    let unit = text.chars().last()?;
    let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
    number.checked_mul(seconds(unit)?)
}

impl When {
    /// Returns seconds since 1970, relative to `now`; an error if the zone has no such local time.
    pub(super) fn seconds<Z: TimeZone>(self, now: &DateTime<Z>) -> Result<u64, String> {
        let zone = now.timezone();
        let local = |time: NaiveDateTime| last(zone.from_local_datetime(&time), now);
        let time = match self {
            Self::Ago(seconds) => Some(now.clone() - TimeDelta::seconds(seconds.into())),
            Self::Date(date) => local(date),
            Self::Daytime(time) => {
                let today = now.date_naive();
                local(today.and_time(time))
                    .filter(|time| time <= now)
                    .or_else(|| local(today.pred_opt()?.and_time(time)))
            }
        };
        let time = time.ok_or("the clock here has skipped that time: name another one")?;
        Ok(u64::try_from(time.timestamp()).unwrap_or(0))
    }
}

/// Returns the time that a local time stands for: where clocks that were turned back show it twice, the last one before
/// `now`.
fn last<Z: TimeZone>(local: MappedLocalTime<DateTime<Z>>, now: &DateTime<Z>) -> Option<DateTime<Z>> {
    match local {
        MappedLocalTime::Ambiguous(_, second) if second <= *now => Some(second),
        local => local.earliest(),
    }
}

/// Formats a time in the zone of `now`, with the date if it is not today.
pub(super) fn readable<Z: TimeZone>(time_s: u64, now: &DateTime<Z>) -> String {
    let time = i64::try_from(time_s).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let Some(time) = time.map(|time| time.with_timezone(&now.timezone()).naive_local()) else {
        return time_s.to_string();
    };
    let form = if time.date() == now.date_naive() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.format(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::FixedOffset;
    use proptest::prelude::*;

    /// Returns 14:30, one hour east of Greenwich.
    fn now() -> DateTime<FixedOffset> {
        "2026-11-23T14:30:00+01:00".parse().unwrap()
    }

    fn read(text: &str) -> String {
        let time = text.parse::<When>().unwrap().seconds(&now()).unwrap();
        readable(time, &now())
    }

    #[test]
    fn times_are_those_of_the_clock_here() {
        for (text, time) in [
            ("30m", "14:00:00"),
            ("90s", "14:28:30"),
            ("1h", "13:30:00"),
            ("14:05", "14:05:00"),
            ("14:05:07", "14:05:07"),
            ("14:31", "2026-11-22 14:31:00"),
            ("23:59", "2026-11-22 23:59:00"),
            ("2026-11-23T09:00", "09:00:00"),
            ("2026-11-01 09:00:01", "2026-11-01 09:00:01"),
        ] {
            assert_eq!(read(text), time, "{text}");
        }
        assert_eq!("14:05".parse::<When>().unwrap().seconds(&now()), Ok(1_795_439_100));
    }

    #[test]
    fn of_a_time_that_the_clock_shows_twice_the_last_one_that_has_passed_is_meant() {
        let first: DateTime<FixedOffset> = "2026-10-25T02:20:00+02:00".parse().unwrap();
        let second = first + TimeDelta::hours(1);
        for (now, time) in [(-600, first), (600, first), (3_600, second), (7_200, second)] {
            let now = first + TimeDelta::seconds(now);
            assert_eq!(last(MappedLocalTime::Ambiguous(first, second), &now), Some(time), "{now}");
        }
        assert_eq!(last(MappedLocalTime::None, &first), None);
    }

    #[test]
    fn what_is_no_time_is_refused_with_the_forms_that_are() {
        for text in
            ["", "m", "30", "30x", "-5m", "24:00", "14:5x", "14:05:61", "noon", "99999999999h", "2026-11-23"]
        {
            let error = text.parse::<When>().unwrap_err();
            assert!(error.contains("30m") && error.contains("14:05"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_time_or_an_error(text in "[0-9a-z: TZ-]{0,12}", any in any::<String>()) {
            for text in [text, any] {
                if let Ok(when) = text.parse::<When>() {
                    let _ = when.seconds(&now());
                }
            }
        }
    }
}
