//! Rows of collectives.

use super::kind::Kind;
use crate::kernels::Choice;
use crate::report::{Measured, Table};
use crate::sample::{Samples, Summary};
use crate::shapes::Dims;
use serde::{Deserialize, Serialize};

/// One collective of one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Which.
    pub kind: Kind,
    /// M and N of the whole tensor.
    pub shape: Dims,
    /// NCCL's, with the copies that bring it into the same form, milliseconds.
    pub nccl: Summary,
    /// Ours: as the library chooses or as was asked for, then under each further plan.
    pub ours: Vec<Ours>,
}

/// Our collective under one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ours {
    /// The plan.
    pub plan: String,
    /// Milliseconds.
    pub ms: Summary,
    /// By NCCL, round by round.
    pub ratio: Summary,
}

impl CollectiveRow {
    /// `samples` are NCCL's, then ours; `None` where one of them was not measured.
    pub(super) fn new(
        kind: Kind,
        shape: Dims,
        samples: &[Samples],
        plans: &[Choice],
    ) -> Option<CollectiveRow> {
        let (nccl, ours) = samples.split_first()?;
        let names = std::iter::once("chosen".to_owned()).chain(plans.iter().map(Choice::to_string));
        let ours = names.zip(ours).map(|(plan, samples)| {
            Some(Ours { plan, ms: samples.summary()?, ratio: samples.ratios(nccl).summary()? })
        });
        Some(CollectiveRow {
            kind,
            shape,
            nccl: nccl.summary()?,
            ours: ours.collect::<Option<_>>()?,
        })
    }
}

/// The rows as a table.
pub fn collective_table(rows: &[Measured<CollectiveRow>]) -> String {
    let mut table = Table::new(["collective", "m x n", "NCCL", "plan", "ours", "± %", "by NCCL"]);
    for Measured { row, .. } in rows {
        for ours in &row.ours {
            table.row([
                row.kind.to_string(),
                format!("{} x {}", row.shape.m, row.shape.n),
                format!("{:.4}", row.nccl.median),
                ours.plan.clone(),
                format!("{:.4}", ours.ms.median),
                format!("{:.1}", 50.0 * ours.ms.spread()),
                format!("{:.3}", ours.ratio.median),
            ]);
        }
    }
    table.to_string()
}
