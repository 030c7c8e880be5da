//! `flux bench ranks`: operators whose ranks are all active, each on a GPU of its own.

use super::{How, command, failed, head, progress};
use clap::Args;
use flux_bench::device;
use flux_bench::kernels::Choice;
use flux_bench::ranks::{self, CollectiveRow, Kind, RanksOptions};
use flux_bench::report::{Measured, Report};
use flux_bench::shapes::Dims;
use half::bf16;
use std::error::Error;

/// Operators over ranks on several GPUs, against NCCL and cuBLASLt.
#[derive(Debug, Args)]
pub(crate) struct Ranks {
    /// Kernels of the library, such as `ag_gemm` or `all_reduce`; all of them where none is named.
    #[arg(value_name = "OPERATOR")]
    operators: Vec<Kind>,
    /// The GPU of each rank.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    gpus: Vec<u32>,
    /// Tokens of the models' shapes, where no shape is given.
    #[arg(long, value_delimiter = ',', default_value = "8192,2048,512,64,16")]
    tokens: Vec<usize>,
    /// A shape as M,N,K: all rows, one rank's columns and reduction; may be repeated.
    #[arg(long = "shape", value_name = "M,N,K")]
    shapes: Vec<Dims>,
    /// A further way to run the kernel, measured in the same rotation; may be repeated.
    #[arg(long = "plan", value_name = "SCHEDULE[,chunk=R][,head=R/C][,tail=R/S][,order=NAME]")]
    plans: Vec<Choice>,
    /// Further ways: each schedule of the kernel.
    #[arg(long, conflicts_with = "plans")]
    members: bool,
    #[command(flatten)]
    how: How,
}

/// Measures each operator in turn, and writes what was asked for.
pub(super) fn run(options: &Ranks) -> Result<String, Box<dyn Error>> {
    let all = Kind::ALL;
    let kinds = if options.operators.is_empty() { &all[..] } else { &options.operators };
    let (mut text, mut reports) = (String::new(), Vec::new());
    for &kind in kinds {
        let wanted = options.of(kind);
        if wanted.shapes.is_empty() {
            progress(&format!("{kind}: no shape is shared evenly among the ranks"));
            continue;
        }
        if kind.is_collective() {
            let report = ranks::collectives::<bf16>(&wanted, |row: &Measured<CollectiveRow>| {
                let CollectiveRow { shape, ours, .. } = &row.row;
                progress(&format!("{kind}: {shape} {:.3}", ours[0].ratio.median));
            })?;
            text += &format!("{}{}\n", head(&report), ranks::collective_table(&report.rows));
            reports.push(serde_json::to_value(&report)?);
        } else {
            let report = ranks::ranks::<bf16>(&wanted, |row| {
                let (shape, overlap) = (row.row.shape, &row.row.overlap);
                progress(&format!("{kind}: {shape} {:.3}", overlap.none_ratio.median));
            })?;
            text += &format!("{}{}\n", head(&report), device::overlap_table(&report.rows));
            if let (Some(path), [_]) = (&options.how.svg, kinds) {
                let written = device::overlap_chart(&report).write(path);
                written.map_err(|error| failed(path, &*error))?;
            }
            reports.push(serde_json::to_value::<Report<_>>(report)?);
        }
    }
    if let Some(path) = &options.how.json {
        let json = serde_json::to_string_pretty(&reports)? + "\n";
        std::fs::write(path, json).map_err(|error| failed(path, &error))?;
    }
    Ok(text)
}

impl Ranks {
    /// What is measured of one operator.
    fn of(&self, kind: Kind) -> RanksOptions {
        let world = self.gpus.len();
        let shapes = match self.shapes.is_empty() {
            true => kind.shapes(world, &self.tokens),
            false => self.shapes.clone(),
        };
        let members = (kind.definition().schedules)().len();
        let each =
            (0..members).map(|member| Choice { schedule: Some(member), ..Choice::default() });
        RanksOptions {
            command: command(),
            gpus: self.gpus.clone(),
            kind,
            shapes,
            choice: Choice::default(),
            plans: if self.members { each.collect() } else { self.plans.clone() },
            rounds: self.how.rounds(),
            rest: self.how.rest(),
        }
    }
}
