//! How much of a model's step is communication that nothing hides, before and after fusing.

use super::fused::{Context, Kind, OverlapOptions, open, row};
use super::operands::{normal, span};
use super::{LIMIT, Number, Timer, conditions};
use crate::error::Error;
use crate::kernels::{Fused, Plain};
use crate::overlap::Overlap;
use crate::report::{Report, Table};
use crate::rotation::{Contestant, rotate};
use crate::shapes::Dims;
use crate::workload::{Step, StepKind};
use flux::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A step and its times in milliseconds, medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareRow {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// cuBLASLt's product alone.
    pub product: f64,
    /// Communication alone.
    pub comm: f64,
    /// One after the other.
    pub none: f64,
    /// Fused; where there is nothing to fuse, as before.
    pub fused: f64,
}

impl ShareRow {
    /// What no product hides before fusing: all of it but the product.
    fn exposed(&self) -> f64 {
        self.none - self.product
    }

    /// What no product hides after fusing.
    fn exposed_fused(&self) -> f64 {
        (self.fused - self.product).max(0.0)
    }
}

/// Measures the steps of a layer. The options' shapes and kind are not used.
///
/// # Errors
/// As [`super::overlap`].
pub fn share<T: Number + Plain + Fused>(
    options: &OverlapOptions,
    steps: &[Step],
    mut tell: impl FnMut(&ShareRow),
) -> Result<Report<ShareRow>, Error> {
    let world = open(options)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let context = Context::new::<T>(rank, options, &[])?;
    let timer = Timer::new(context.link.main.clone())?;
    let mut known: HashMap<(StepKind, Dims), [f64; 4]> = HashMap::new();
    let mut gathers: HashMap<usize, f64> = HashMap::new();
    let mut rows: Vec<ShareRow> = Vec::new();
    for step in steps {
        let times = match (known.get(&(step.kind, step.shape)), step.kind) {
            (Some(&times), _) => times,
            (None, StepKind::Gather) => {
                times(&row::<T>(&context, &timer, options, Kind::Gather, step.shape)?.overlap)
            }
            (None, StepKind::Scatter) => {
                times(&row::<T>(&context, &timer, options, Kind::Scatter, step.shape)?.overlap)
            }
            (None, StepKind::Product) => {
                let ms = product::<T>(&context, &timer, options, step.shape)?;
                [ms, 0.0, ms, ms]
            }
            (None, StepKind::Communication) => {
                // Every layer begins with an all-gather of the same activations.
                let ms = gathers.get(&step.shape.n).copied().ok_or(Error::NoSamples)?;
                [0.0, ms, ms, ms]
            }
        };
        known.insert((step.kind, step.shape), times);
        if step.kind == StepKind::Gather {
            gathers.insert(step.shape.k, times[1]);
        }
        let [product, comm, none, fused] = times;
        let row = ShareRow { step: step.clone(), product, comm, none, fused };
        tell(&row);
        rows.push(row);
        std::thread::sleep(options.rest);
    }
    let title = format!("exposed communication, {}, {} ranks", T::NAME, options.world);
    let conditions = conditions(&context.device, &options.command, options.rounds);
    Ok(Report { title, conditions, rows })
}

fn times(overlap: &Overlap) -> [f64; 4] {
    let Overlap { blas, comm, none, fused, .. } = overlap;
    [blas, comm, none, fused].map(|summary| summary.median)
}

/// cuBLASLt's product alone.
fn product<T: Number>(
    context: &Context<'_>,
    timer: &Timer,
    options: &OverlapOptions,
    shape: Dims,
) -> Result<f64, Error> {
    let Dims { m, n, k } = shape;
    let main = &context.link.main;
    let sets = context.sets(size_of::<T>() * (m * k + n * k + m * n));
    let draw = |rows, cols, seed| normal(context.rank, &context.numbers, main, [rows, cols], seed);
    let sets = (0..sets as u64)
        .map(|set| Ok([draw(m, k, 400 + set)?, draw(n, k, 500 + set)?, draw(m, n, 0)?]))
        .collect::<Result<Vec<[Tensor<T>; 3]>, Error>>()?;
    let products = context.products(shape, T::ELEMENT)?;
    main.synchronize(LIMIT)?;
    let spans = |set: usize| -> Result<_, Error> {
        let [a, b, c] = &sets[set % sets.len()];
        Ok((span(a)?, span(b)?, span(c)?))
    };
    products.tune(main, |_| spans(0))?;
    let run = |round: u32| {
        timer.time(|| {
            let (a, b, c) = spans(round as usize)?;
            products.run(1, 0, main, a, b, c)
        })
    };
    let samples = rotate(options.rounds, &mut [Contestant::new("cuBLASLt", run)])?;
    Ok(samples[0].summary().ok_or(Error::NoSamples)?.median)
}

/// The steps as a table, with the sums of `layers` layers and the shares below.
pub fn share_table(rows: &[ShareRow], layers: usize) -> String {
    let titles =
        ["step", "what", "m x n x k", "product", "comm", "none", "exposed", "fused", "exposed"];
    let mut table = Table::new(titles);
    for row in rows {
        let ms = |value: f64| format!("{value:.3}");
        table.row([
            row.step.name.clone(),
            row.step.kind.to_string(),
            row.step.shape.to_string(),
            ms(row.product),
            ms(row.comm),
            ms(row.none),
            ms(row.exposed()),
            ms(row.fused),
            ms(row.exposed_fused()),
        ]);
    }
    let sum = |of: fn(&ShareRow) -> f64| rows.iter().map(of).sum::<f64>();
    let part = |of: f64, all: f64| if all > 0.0 { 100.0 * of / all } else { 0.0 };
    let (none, fused) = (sum(|row| row.none), sum(|row| row.fused));
    let (before, after) = (sum(ShareRow::exposed), sum(ShareRow::exposed_fused));
    let all = layers as f64;
    format!(
        "{table}{layers} layers, products and collectives alone: {:.1} ms before fusing, {:.1} % of \
         it exposed communication; {:.1} ms fused, {:.1} % exposed\n",
        none * all,
        part(before, none),
        fused * all,
        part(after, fused),
    )
}

#[cfg(test)]
mod tests {
    use super::{ShareRow, share_table};
    use crate::shapes::Dims;
    use crate::workload::{Step, StepKind};

    #[test]
    fn shares_are_parts_of_sums() {
        let row = |product, comm, none, fused| {
            let (name, shape) = ("step".to_owned(), Dims::new(1, 2, 3));
            let step = Step { name, kind: StepKind::Gather, shape };
            ShareRow { step, product, comm, none, fused }
        };
        // One hidden entirely, one better than the library's product.
        let rows = [row(1.0, 1.0, 2.0, 1.5), row(2.0, 0.0, 2.0, 1.9)];
        let text = share_table(&rows, 10);
        assert!(text.contains("40.0 ms before fusing, 25.0 % of"), "{text}");
        assert!(text.contains("34.0 ms fused, 14.7 % exposed"), "{text}");
        assert!(share_table(&[], 3).contains("0.0 ms before fusing, 0.0 %"));
    }
}
