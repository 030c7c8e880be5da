//! The fused kernel in all the ways that are measured of it.

use super::fused::Context;
use super::link::Boxes;
use crate::error::Error;
use crate::kernels::{Choice, PlainKernel};
use crate::stage::stage;
use flux::Outbox;

/// The fused kernel as it was asked for, then under each further plan; each with what its peers send.
pub(crate) struct Family<T>(Vec<(PlainKernel<T>, Boxes)>);

impl<T> Family<T> {
    /// Loads each with `load` and gives it to `launch`: the first launches load and allocate, and what
    /// peers send is known from then on.
    pub(crate) fn new(
        context: &Context<'_>,
        load: impl Fn(&Choice) -> Result<PlainKernel<T>, flux::Error>,
        mut launch: impl FnMut(&PlainKernel<T>) -> Result<(), flux::Error>,
    ) -> Result<Family<T>, Error> {
        let Context { rank, choice, plans, .. } = context;
        let kernels = std::iter::once(*choice).chain(*plans).map(|choice| {
            stage(format_args!("first launch of the fused kernel, {choice}"));
            let kernel = load(choice)?;
            launch(&kernel)?;
            rank.synchronize()?;
            Ok((kernel, Boxes::of(rank)?))
        });
        Ok(Family(kernels.collect::<Result<_, Error>>()?))
    }

    /// Each with its name.
    pub(crate) fn names(&self, context: &Context<'_>) -> Vec<String> {
        let plans = context.plans.iter().map(|plan| format!("the fused kernel, {plan}"));
        std::iter::once("the fused kernel".to_owned()).chain(plans).collect()
    }

    /// The first, or the one under plan `which - 1`.
    pub(crate) fn kernel(&self, which: usize) -> &PlainKernel<T> {
        &self.0[which].0
    }

    /// What peers send to the first.
    pub(crate) fn boxes(&self) -> &Boxes {
        &self.0[0].1
    }

    /// What peers send to any of them.
    pub(crate) fn all_boxes(&self) -> impl Iterator<Item = &Outbox> {
        self.0.iter().flat_map(|(_, boxes)| boxes.iter())
    }
}
