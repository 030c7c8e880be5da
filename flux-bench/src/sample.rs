//! Samples of one quantity, and what is told of them.

use serde::{Deserialize, Serialize};

/// Milliseconds (or ratios) measured one after another.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples(Vec<f64>);

/// The middle of samples and how far they spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// A quarter of the samples is lower.
    pub low: f64,
    /// Half of the samples are lower.
    pub median: f64,
    /// A quarter of the samples is higher.
    pub high: f64,
    /// How many samples there are.
    pub count: usize,
}

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The samples in the order in which they came.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Their median and quartiles; `None` of none.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part| quantile(&sorted, part);
        Some(Summary { low: at(0.25)?, median: at(0.5)?, high: at(0.75)?, count: sorted.len() })
    }

    /// `self / other`, sample by sample: those of one round stand beside each other, so what
    /// slowed the whole round cancels.
    pub fn ratios(&self, other: &Samples) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Samples(values.into_iter().collect())
    }
}

impl Summary {
    /// The interquartile range as a part of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// The value below which `part` of the sorted values lie, between two of them in proportion.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = part * last as f64;
    let below = sorted[at.floor() as usize];
    let above = sorted[at.ceil() as usize];
    Some(below + (above - below) * at.fract())
}

/// The geometric mean: how ratios are averaged; `None` of none.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for ratio in ratios {
        sum += ratio.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::{Samples, geometric_mean};

    #[test]
    fn the_median_and_the_quartiles_lie_between_samples_in_proportion() {
        let samples: Samples = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        let summary = samples.summary().unwrap();
        assert_eq!((summary.low, summary.median, summary.high), (1.75, 2.5, 3.25));
        assert_eq!(summary.count, 4);
        assert_eq!(summary.spread(), 0.6);
    }

    #[test]
    fn one_sample_is_its_own_median_and_none_have_none() {
        let one: Samples = [7.0].into_iter().collect();
        assert_eq!(one.summary().unwrap().median, 7.0);
        assert_eq!(one.summary().unwrap().spread(), 0.0);
        assert_eq!(Samples::default().summary(), None);
    }

    #[test]
    fn one_slow_round_moves_no_median_and_cancels_in_the_ratio() {
        let ours: Samples = [1.0, 1.0, 50.0, 1.0, 1.0].into_iter().collect();
        let theirs: Samples = [2.0, 2.0, 100.0, 2.0, 2.0].into_iter().collect();
        assert_eq!(ours.summary().unwrap().median, 1.0);
        assert_eq!(theirs.ratios(&ours).values(), [2.0; 5]);
    }

    #[test]
    fn ratios_average_so_that_twice_and_half_make_one() {
        assert!((geometric_mean([2.0, 0.5]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
    }
}
