//! The timeline of one rank as an SVG image: copy engines, what is on its link, and its CTAs.

use super::instant::Time;
use super::path::Path;
use super::record::{Kind, Lane, Op, Role, Timeline};
use super::trace::drawn;
use flux_ir::program::Program;
use std::collections::BTreeSet;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 150.0;
const TOP: f64 = 64.0;
const ENGINE_HEIGHT: f64 = 16.0;
const CTA_HEIGHT: f64 = 4.0;
const GAP: f64 = 8.0;

/// Draws what `rank` does in a timeline's launch; of a rank that another stands for, what that
/// one does. `title` stands above. Ops on the critical path have a dark edge.
pub fn draw(timeline: &Timeline, program: &Program, rank: u32, title: &str) -> String {
    let rank = rank % timeline.classes.max(1);
    let rows = rows(timeline, program, rank);
    let height = TOP + rows.iter().map(|row| row.height).sum::<f64>() + 3.0 * GAP + 48.0;
    let total = timeline.total().us().max(1e-9);
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{w}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
        escape(title),
        w = LEFT + WIDTH + 20.0,
    );
    legend(&mut svg);
    axis(&mut svg, total, height - 40.0);
    let path: BTreeSet<u32> = Path::of(timeline).segments.iter().map(|part| part.op).collect();
    for row in &rows {
        if let Some(name) = &row.name {
            let y = row.y + row.height.min(ENGINE_HEIGHT) * 0.75;
            let _ = writeln!(svg, "<text x=\"8\" y=\"{y:.1}\">{}</text>", escape(name));
        }
    }
    for (number, op) in (0u32..).zip(&timeline.ops) {
        if op.start < timeline.begins || timeline.rank(op) != rank {
            continue;
        }
        let Some(row) = rows.iter().find(|row| row.holds(op)) else { continue };
        bar(&mut svg, timeline, op, row, total, path.contains(&number));
    }
    svg += "</svg>\n";
    svg
}

/// A row of the drawing.
struct Row {
    name: Option<String>,
    /// Whose it is; what no actor has is that of the puts of all.
    actor: Option<u32>,
    y: f64,
    height: f64,
}

impl Row {
    fn holds(&self, op: &Op) -> bool {
        match self.actor {
            Some(actor) => op.actor == actor && op.lane != Lane::Link,
            None => op.kind == Kind::Put,
        }
    }
}

fn rows(timeline: &Timeline, program: &Program, rank: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut y = TOP;
    let mut ctas = 0;
    for (actor, name) in drawn(timeline, program, rank) {
        let is_cta = matches!(timeline.actors[actor as usize].role, Role::Cta(..));
        if is_cta && ctas == 0 {
            y += GAP;
        }
        // Every eighth CTA is named: all are too many.
        let name = (!is_cta || ctas % 8 == 0).then_some(name);
        ctas += u32::from(is_cta);
        let height = if is_cta { CTA_HEIGHT } else { ENGINE_HEIGHT };
        rows.push(Row { name, actor: Some(actor), y, height });
        y += height;
    }
    if timeline.ops.iter().any(|op| op.kind == Kind::Put && timeline.rank(op) == rank) {
        let (name, y) = (Some("puts".into()), y + GAP);
        rows.push(Row { name, actor: None, y, height: ENGINE_HEIGHT });
    }
    rows
}

fn bar(svg: &mut String, timeline: &Timeline, op: &Op, row: &Row, total: f64, critical: bool) {
    let at = |time: Time| LEFT + time.since(timeline.begins).us() / total * WIDTH;
    let (x, end) = (at(op.start), at(op.end));
    let edge = if critical { " stroke=\"#000000\" stroke-width=\"0.7\"" } else { "" };
    let about = about(timeline, op);
    // An epilogue may hide behind a mainloop: it takes the lower half of the row.
    let height = row.height - 0.5;
    let (y, height) = match op.lane {
        Lane::Epilogue(_) => (row.y + height / 2.0, height / 2.0),
        Lane::Main | Lane::Link => (row.y, height),
    };
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{height:.2}\" fill=\"{}\"{edge}>\
         <title>{about}</title></rect>",
        (end - x).max(0.2),
        color(op.kind),
    );
}

fn about(timeline: &Timeline, op: &Op) -> String {
    let rank = timeline.rank(op);
    let mut about = format!("{} {:.1} us", op.kind.name(), op.end.since(op.start).us());
    let (rows, cols) = (&op.tile.rows, &op.tile.cols);
    if !rows.is_empty() {
        let _ =
            write!(about, ", rows {}..{} cols {}..{}", rows.start, rows.end, cols.start, cols.end);
    }
    if op.peer != rank {
        let _ = write!(about, ", to rank {}", op.peer);
    }
    if op.kind == Kind::Wait
        && let Some((_, peer)) = timeline.cause(op, rank)
    {
        let _ = write!(about, ", for rank {peer}");
    }
    about
}

const fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Start => "#bab0ac",
        Kind::Wait => "#e15759",
        Kind::Mainloop => "#4e79a7",
        Kind::Epilogue => "#76b7b2",
        Kind::Put => "#59a14f",
        Kind::Sum => "#b07aa1",
        Kind::Copy => "#f28e2b",
        Kind::Signal => "#edc948",
    }
}

fn legend(svg: &mut String) {
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let x = LEFT + 90.0 * index as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.0}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"39\">{}</text>",
            color(kind),
            x + 14.0,
            kind.name()
        );
    }
}

/// Ticks at a round distance: 5 to 12 of them.
fn axis(svg: &mut String, total: f64, bottom: f64) {
    let mut step = 1e-3;
    while total / step > 12.0 {
        let digit = (step / 10f64.powf(f64::log10(step * 1.0001).floor())).round() as u32;
        step *= if digit == 2 { 2.5 } else { 2.0 };
    }
    let mut at = 0.0;
    while at <= total {
        let x = LEFT + at / total * WIDTH;
        let label =
            if total >= 1000.0 { format!("{:.2} ms", at / 1000.0) } else { format!("{at:.1} µs") };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.0}\" y2=\"{bottom:.0}\" stroke=\"#dddddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
            TOP - 4.0,
            bottom + 14.0
        );
        at += step;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
