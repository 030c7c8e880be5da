//! What the times of one overlapped operator say.

use crate::sample::{Samples, Summary};
use serde::{Deserialize, Serialize};

/// The fused operator may be slower than the best of chunked and no overlap by this factor.
pub const AGAINST_BEST: f64 = 1.005;

/// The fused operator may be slower than no overlap by this factor, at any M.
pub const AGAINST_NONE: f64 = 1.02;

/// The same operator in so many chunks of copies and products on two streams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Chunked {
    /// The number of chunks.
    pub chunks: u32,
    /// Milliseconds.
    pub ms: Summary,
}

/// The fused operator in a way of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Its schedule, chunks and order.
    pub plan: String,
    /// Milliseconds.
    pub ms: Summary,
    /// By the bound, round by round.
    pub bound_ratio: Summary,
}

/// Times of one operator and one shape, all of one rotation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// cuBLASLt's product alone, best algorithm, milliseconds.
    pub blas: Summary,
    /// Our product alone.
    pub ours: Summary,
    /// The same bytes in both directions, without a product.
    pub comm: Summary,
    /// Communication, then cuBLASLt; or the reverse and the sum.
    pub none: Summary,
    /// Chunked overlap, by the number of chunks.
    pub chunked: Vec<Chunked>,
    /// The fused kernel.
    pub fused: Summary,
    /// Fused by the bound, round by round: the bound is the larger of the two medians.
    pub bound_ratio: Summary,
    /// Fused by the best of chunked and no overlap, round by round.
    pub best_ratio: Summary,
    /// Fused by no overlap, round by round.
    pub none_ratio: Summary,
    /// The fused kernel in other ways that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<Planned>,
}

/// The samples an [`Overlap`] is made from.
#[derive(Debug)]
pub struct OverlapSamples {
    /// cuBLASLt alone.
    pub blas: Samples,
    /// Our product alone.
    pub ours: Samples,
    /// Communication alone.
    pub comm: Samples,
    /// No overlap.
    pub none: Samples,
    /// Chunked, by the number of chunks.
    pub chunked: Vec<(u32, Samples)>,
    /// Fused.
    pub fused: Samples,
    /// Fused in other ways, by their names.
    pub plans: Vec<(String, Samples)>,
}

impl OverlapSamples {
    /// Medians, spreads and ratios; `None` where one of them was not measured.
    pub fn summary(&self) -> Option<Overlap> {
        let chunked: Option<Vec<Chunked>> = self
            .chunked
            .iter()
            .map(|(chunks, samples)| Some(Chunked { chunks: *chunks, ms: samples.summary()? }))
            .collect();
        // The samples with the least median.
        let least = |of: &[&Samples]| -> Option<Samples> {
            let mut best: Option<(f64, &Samples)> = None;
            for &samples in of {
                let median = samples.summary()?.median;
                if best.is_none_or(|(least, _)| median < least) {
                    best = Some((median, samples));
                }
            }
            best.map(|(_, samples)| samples.clone())
        };
        let product = least(&[&self.blas, &self.ours])?;
        let slower = self.comm.summary()?.median > product.summary()?.median;
        let bound = if slower { &self.comm } else { &product };
        let mut others: Vec<&Samples> = self.chunked.iter().map(|(_, samples)| samples).collect();
        others.push(&self.none);
        let best = least(&others)?;
        let plans: Option<Vec<Planned>> = self
            .plans
            .iter()
            .map(|(plan, samples)| {
                let (ms, bound_ratio) = (samples.summary()?, samples.ratios(bound).summary()?);
                Some(Planned { plan: plan.clone(), ms, bound_ratio })
            })
            .collect();
        Some(Overlap {
            blas: self.blas.summary()?,
            ours: self.ours.summary()?,
            comm: self.comm.summary()?,
            none: self.none.summary()?,
            chunked: chunked?,
            fused: self.fused.summary()?,
            bound_ratio: self.fused.ratios(bound).summary()?,
            best_ratio: self.fused.ratios(&best).summary()?,
            none_ratio: self.fused.ratios(&self.none).summary()?,
            plans: plans?,
        })
    }
}

impl Overlap {
    /// The best product alone, milliseconds: cuBLASLt's or ours, whichever is faster.
    pub fn product(&self) -> f64 {
        self.blas.median.min(self.ours.median)
    }

    /// What no operator can beat: the longer of product and communication, milliseconds.
    pub fn bound(&self) -> f64 {
        self.product().max(self.comm.median)
    }

    /// Exposed communication of the fused operator, milliseconds: fused time − best product.
    pub fn exposed(&self) -> f64 {
        self.fused.median - self.product()
    }

    /// Exposed communication without overlap, milliseconds.
    pub fn exposed_none(&self) -> f64 {
        self.none.median - self.product()
    }

    /// 1 − ECT(fused) / ECT(no overlap): 1 hides all that could be hidden, 0 nothing. A
    /// communication longer than the product leaves less than 1 to reach.
    pub fn efficiency(&self) -> f64 {
        1.0 - self.exposed() / self.exposed_none()
    }

    /// The efficiency of an operator that takes no longer than the bound.
    pub fn most_efficiency(&self) -> f64 {
        1.0 - (self.bound() - self.product()) / self.exposed_none()
    }

    /// The chunked overlap with the least time.
    pub fn best_chunked(&self) -> Option<Chunked> {
        self.chunked.iter().copied().min_by(|a, b| a.ms.median.total_cmp(&b.ms.median))
    }

    /// Whether it is no slower than the best of chunked and no overlap, within
    /// [`AGAINST_BEST`].
    pub fn holds_best(&self) -> bool {
        self.best_ratio.median <= AGAINST_BEST
    }

    /// Whether it is no slower than no overlap, within [`AGAINST_NONE`].
    pub fn holds_none(&self) -> bool {
        self.none_ratio.median <= AGAINST_NONE
    }
}

#[cfg(test)]
mod tests {
    use super::{Overlap, OverlapSamples};
    use crate::sample::Samples;

    fn steady(ms: f64) -> Samples {
        [ms * 0.99, ms, ms * 1.01].into_iter().collect()
    }

    /// The first row of PCIe's all-gather with eight ranks: communication is the bound.
    fn row() -> Overlap {
        let samples = OverlapSamples {
            blas: steady(1.499),
            ours: steady(1.505),
            comm: steady(3.201),
            none: steady(4.702),
            chunked: vec![(8, steady(3.4)), (32, steady(3.321))],
            fused: steady(3.250),
            plans: vec![("3,chunk=512".into(), steady(3.3))],
        };
        samples.summary().unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
    }

    #[test]
    fn the_measures_are_those_of_their_definitions() {
        let row = row();
        close(row.bound(), 3.201);
        close(row.bound_ratio.median, 1.0153);
        close(row.plans[0].bound_ratio.median, 3.3 / 3.201);
        close(row.exposed(), 1.751);
        close(row.exposed_none(), 3.203);
        close(row.efficiency(), 1.0 - 1.751 / 3.203);
        close(row.most_efficiency(), 1.0 - 1.702 / 3.203);
        assert_eq!(row.best_chunked().unwrap().chunks, 32);
        close(row.best_ratio.median, 0.9786);
        assert!(row.holds_best() && row.holds_none());
    }

    #[test]
    fn a_product_that_takes_longer_is_the_bound_and_the_better_one_counts() {
        let samples = OverlapSamples {
            blas: steady(6.2),
            ours: steady(6.1),
            comm: steady(3.2),
            none: steady(9.4),
            chunked: vec![],
            fused: steady(6.161),
            plans: vec![],
        };
        let row = samples.summary().unwrap();
        close(row.bound(), 6.1);
        close(row.bound_ratio.median, 1.01);
        assert_eq!(row.best_chunked(), None);
    }

    #[test]
    fn a_loss_is_a_loss() {
        let mut samples = OverlapSamples {
            blas: steady(1.0),
            ours: steady(1.0),
            comm: steady(1.0),
            none: steady(2.0),
            chunked: vec![(2, steady(1.5))],
            fused: steady(1.51),
            plans: vec![],
        };
        let row = samples.summary().unwrap();
        assert!(!row.holds_best() && row.holds_none());
        samples.fused = steady(2.05);
        assert!(!samples.summary().unwrap().holds_none());
        samples.comm = Samples::default();
        assert!(samples.summary().is_none(), "what was not measured has no row");
    }
}
