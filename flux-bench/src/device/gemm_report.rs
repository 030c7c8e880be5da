//! Rows of products as a table and as bars.

use super::GemmRow;
use crate::chart::{Bar, Chart, Group};
use crate::report::{Measured, Report, Table};
use crate::sample::geometric_mean;

/// The rows as a table for each section, with mean, least and most of its ratios below.
pub fn gemm_table(rows: &[Measured<GemmRow>]) -> String {
    let sections = rows.chunk_by(|x, y| x.row.section == y.row.section);
    let tables = sections.map(|rows| format!("{}\n{}", rows[0].row.section, section_table(rows)));
    tables.collect::<Vec<_>>().join("\n")
}

fn section_table(rows: &[Measured<GemmRow>]) -> String {
    let titles =
        ["m x n x k", "ours ms", "rival ms", "TFLOP/s", "ratio", "quartiles", "at the end"];
    let mut table = Table::new(titles);
    for Measured { row, reading } in rows {
        let reading = reading.as_ref().map_or_else(String::new, ToString::to_string);
        table.row([
            row.shape.to_string(),
            format!("{:.4}", row.ours.median),
            format!("{:.4}", row.rival.median),
            format!("{:.0}", row.tflops),
            format!("{:.3}", row.ratio.median),
            format!("{:.3} … {:.3}", row.ratio.low, row.ratio.high),
            if row.schedule.is_empty() { reading } else { row.schedule.clone() },
        ]);
    }
    let mut text = table.to_string();
    let ratios = || rows.iter().map(|measured| measured.row.ratio.median);
    if let Some(mean) = geometric_mean(ratios()) {
        let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let count = rows.len();
        text +=
            &format!("geometric mean {mean:.3}, least {least:.3}, most {most:.3}, {count} rows\n");
    }
    text
}

/// The ratios as bars.
pub fn gemm_chart(report: &Report<Measured<GemmRow>>) -> Chart {
    let groups = report.rows.iter().map(|Measured { row, .. }| {
        let (value, quartiles) = (row.ratio.median, [row.ratio.low, row.ratio.high]);
        Group { name: row.shape.to_string(), bars: vec![Some(Bar { value, quartiles })] }
    });
    Chart {
        title: format!("{} ({})", report.title, report.conditions.device),
        axis: "ratio of times".into(),
        bars: vec!["ours".into()],
        groups: groups.collect(),
        line: Some((1.0, "as fast".into())),
    }
}
