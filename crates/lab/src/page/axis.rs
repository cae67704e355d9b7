//! Axes that begin at zero and end at a round number.

/// Most intervals between ticks.
const INTERVALS: f64 = 4.0;
/// Bounds of the values that an axis shows: between them steps are exact enough, and no experiment has values beyond
/// them.
const LARGEST: f64 = 1e15;
const SMALLEST: f64 = 1e-9;

/// An axis that begins at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Distance between ticks: 1, 2 or 5 times a power of ten.
    step: f64,
    intervals: u32,
}

impl Axis {
    /// Returns the shortest axis with values up to `largest`; up to 1 if that is not positive.
    pub(super) fn up_to(largest: f64) -> Self {
        let largest = if largest > 0.0 { largest.clamp(SMALLEST, LARGEST) } else { 1.0 };
        let rough = largest / INTERVALS;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(steps[3]);
        // A largest value of 0.3 needs three steps of 0.1, not four.
        let intervals = (largest / step - 1e-9).ceil().clamp(1.0, INTERVALS) as u32;
        Self { step, intervals }
    }

    /// Returns the value at the end of the axis.
    pub(super) fn top(self) -> f64 {
        self.step * f64::from(self.intervals)
    }

    /// Returns the position of a value: 0 at the beginning, 1 at the end; values beyond are clamped.
    pub(super) fn place(self, value: f64) -> f64 {
        if value.is_nan() { 0.0 } else { (value / self.top()).clamp(0.0, 1.0) }
    }

    /// Returns each tick's value and label.
    pub(super) fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        (0..=self.intervals).map(move |tick| {
            let value = self.step * f64::from(tick);
            (value, format!("{value:.decimals$}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(largest: f64) -> String {
        Axis::up_to(largest).ticks().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        for (largest, wanted) in [
            (94.1, "0 50 100"),
            (80.0, "0 20 40 60 80"),
            (80.1, "0 50 100"),
            (0.3, "0.0 0.1 0.2 0.3"),
            (1.0, "0.0 0.5 1.0"),
            (0.0123, "0.000 0.005 0.010 0.015"),
            (31_234.0, "0 10000 20000 30000 40000"),
        ] {
            assert_eq!(labels(largest), wanted, "{largest}");
        }
    }

    #[test]
    fn every_number_has_an_axis() {
        for largest in [0.0, -3.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324] {
            let axis = Axis::up_to(largest);
            assert!((2..=5).contains(&axis.ticks().count()), "{largest}");
            assert!(axis.top() > 0.0 && axis.top().is_finite(), "{largest}");
            for value in [largest, 0.0, 1.0] {
                assert!((0.0..=1.0).contains(&axis.place(value)), "{value} of {largest}");
            }
        }
        assert_eq!(labels(f64::NAN), "0.0 0.5 1.0");
        let mut largest = 1e-9;
        while largest < 1e15 {
            let axis = Axis::up_to(largest);
            assert!(axis.top() >= largest * (1.0 - 1e-8), "{largest}: {axis:?}");
            assert!(axis.top() <= largest * 2.51, "{largest}: {axis:?}");
            largest *= 1.37;
        }
    }
}
