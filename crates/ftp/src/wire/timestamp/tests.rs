use proptest::prelude::*;

use super::*;

fn at(seconds: i64) -> SystemTime {
    let span = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span }
}

#[test]
fn known_dates() {
    // From `date -u -d @N +%Y%m%d%H%M%S`.
    for (seconds, text) in [
        (0, "19700101000000"),
        (951_782_400, "20000229000000"),
        (1_795_314_600, "20261122023000"),
        (4_107_542_399, "21000228235959"),
        (4_107_542_400, "21000301000000"),
        (-1, "19691231235959"),
        (FIRST_SECOND, "00010101000000"),
        (LAST_SECOND, "99991231235959"),
    ] {
        assert_eq!(format(at(seconds)), text);
        assert_eq!(parse(text.as_bytes()), Some(at(seconds)), "{text}");
    }
}

#[test]
fn a_fraction_may_have_any_length() {
    let half = at(0) + Duration::from_millis(500);
    for (text, time) in [
        ("19700101000000.5", half),
        ("19700101000000.500", half),
        ("19700101000000.0000000019", at(0) + Duration::from_nanos(1)),
        ("19700101000060", at(59)),
    ] {
        assert_eq!(parse(text.as_bytes()), Some(time), "{text}");
    }
}

#[test]
fn what_is_no_date_is_refused() {
    for text in [
        "",
        "2026",
        "20261322000000",
        "20260229000000",
        "20260431000000",
        "20261100000000",
        "20261122240000",
        "20261122006000",
        "20261122000061",
        "20261122000099",
        "00000101000000",
        "191001011200000",
        "20261122000000.",
        "20261122000000.x",
        "+0261122000000",
        "2026112200000٠",
    ] {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn times_beyond_the_years_become_the_nearest() {
    assert_eq!(format(at(FIRST_SECOND - 1)), "00010101000000");
    assert_eq!(format(at(LAST_SECOND + 1)), "99991231235959");
    assert_eq!(format(UNIX_EPOCH - Duration::from_nanos(1)), "19691231235959");
}

proptest! {
    #[test]
    fn parsing_undoes_formatting(seconds in FIRST_SECOND..=LAST_SECOND) {
        prop_assert_eq!(parse(format(at(seconds)).as_bytes()), Some(at(seconds)));
    }

    #[test]
    fn later_is_greater(seconds in FIRST_SECOND..LAST_SECOND) {
        prop_assert!(format(at(seconds)) < format(at(seconds + 1)));
        prop_assert!(Civil::of(at(seconds)) < Civil::of(at(seconds + 1)));
    }

    #[test]
    fn any_text_is_a_date_or_none(text in "[0-9]{10,18}(\\.[0-9]{0,12})?") {
        if let Some(time) = parse(text.as_bytes()) {
            prop_assert_eq!(parse(format(time).as_bytes()).map(Civil::of), Some(Civil::of(time)));
        }
    }
}
