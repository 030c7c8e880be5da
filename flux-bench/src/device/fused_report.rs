//! Rows of operators over ranks, to read and to look at.

use super::fused::OverlapRow;
use crate::chart::{Bar, Chart, Group};
use crate::overlap::{AGAINST_BEST, AGAINST_NONE};
use crate::report::{Measured, Report, Table};
use crate::sample::Summary;

/// The rows as a table: milliseconds, then ratios, each with what it has to be.
pub fn overlap_table(rows: &[Measured<OverlapRow>]) -> String {
    let mut table = Table::new([
        "m x n x k",
        "cuBLASLt",
        "ours",
        "comm",
        "none",
        "best chunked",
        "fused",
        "± %",
        "ECT",
        "efficiency",
        "of",
        "bound ratio",
        "by best",
        "by none",
        "holds",
    ]);
    for Measured { row, .. } in rows {
        let overlap = &row.overlap;
        let ms = |summary: &Summary| format!("{:.3}", summary.median);
        let chunked = overlap.best_chunked().map_or_else(
            || "-".to_owned(),
            |best| format!("{:.3} ({})", best.ms.median, best.chunks),
        );
        let holds = match (overlap.holds_best(), overlap.holds_none()) {
            (true, true) => "yes".to_owned(),
            (false, true) => format!("not {AGAINST_BEST}"),
            (_, false) => format!("not {AGAINST_NONE}"),
        };
        table.row([
            row.shape.to_string(),
            ms(&overlap.blas),
            ms(&overlap.ours),
            ms(&overlap.comm),
            ms(&overlap.none),
            chunked,
            ms(&overlap.fused),
            format!("{:.1}", 50.0 * overlap.fused.spread()),
            format!("{:.3}", overlap.exposed()),
            format!("{:.2}", overlap.efficiency()),
            format!("{:.2}", overlap.most_efficiency()),
            format!("{:.3}", overlap.bound_ratio.median),
            format!("{:.3}", overlap.best_ratio.median),
            format!("{:.3}", overlap.none_ratio.median),
            holds,
        ]);
    }
    let plans = plans_table(rows);
    let count = |holds: &dyn Fn(&OverlapRow) -> bool| {
        rows.iter().filter(|measured| holds(&measured.row)).count()
    };
    format!(
        "{table}milliseconds; {} of {} rows are within {AGAINST_BEST} of the best of chunked and no \
         overlap, {} within {AGAINST_NONE} of no overlap\n{plans}",
        count(&|row| row.overlap.holds_best()),
        rows.len(),
        count(&|row| row.overlap.holds_none()),
    )
}

/// The fused kernel in other ways, where some were asked for.
fn plans_table(rows: &[Measured<OverlapRow>]) -> String {
    let mut table = Table::new(["m x n x k", "plan", "fused", "± %", "bound ratio"]);
    let mut any = false;
    for Measured { row, .. } in rows {
        for plan in &row.overlap.plans {
            any = true;
            table.row([
                row.shape.to_string(),
                plan.plan.clone(),
                format!("{:.3}", plan.ms.median),
                format!("{:.1}", 50.0 * plan.ms.spread()),
                format!("{:.3}", plan.bound_ratio.median),
            ]);
        }
    }
    if any { format!("\n{table}") } else { String::new() }
}

/// Times by the bound, as bars.
pub fn overlap_chart(report: &Report<Measured<OverlapRow>>) -> Chart {
    let groups = report.rows.iter().map(|Measured { row, .. }| {
        let overlap = &row.overlap;
        let bound = overlap.bound();
        let bar = |summary: Summary| {
            let [value, low, high] =
                [summary.median, summary.low, summary.high].map(|ms| ms / bound);
            Some(Bar { value, quartiles: [low, high] })
        };
        let chunked = overlap.best_chunked().and_then(|best| bar(best.ms));
        let bars = vec![
            bar(overlap.blas),
            bar(overlap.comm),
            bar(overlap.none),
            chunked,
            bar(overlap.fused),
        ];
        Group { name: row.shape.to_string(), bars }
    });
    let bars = ["cuBLASLt alone", "communication alone", "no overlap", "best chunked", "fused"];
    Chart {
        title: format!("{} ({})", report.title, report.conditions.device),
        axis: "time / max(product, communication)".into(),
        bars: bars.map(str::to_owned).to_vec(),
        groups: groups.collect(),
        line: Some((1.0, "bound".into())),
    }
}
