//! A picture as SVG: lanes from left to right, time downward.

use super::dot::color;
use super::picture::{Kind, Node, Picture};
use std::fmt::Write;

const WIDTH: u32 = 240;
const GAP: u32 = 24;
const HEIGHT: u32 = 22;
const ROW: u32 = 34;
const LEFT: u32 = 24;
const TOP: u32 = 74;
/// Above the first boxes of a launch, for its line.
const LINE: u32 = 16;
/// Characters that fit a box.
const FIT: usize = 35;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The text, cut where it does not fit a box.
fn cut(text: &str) -> String {
    if text.chars().count() <= FIT {
        return text.into();
    }
    text.chars().take(FIT - 1).chain(['…']).collect()
}

fn left(lane: usize) -> u32 {
    LEFT + lane as u32 * (WIDTH + GAP)
}

/// Where everything is.
struct Sheet<'a> {
    picture: &'a Picture,
    /// Rank, launch and first level of each launch.
    begins: Vec<(u32, u32, u32)>,
    /// First levels of launches, ascending: a line stands above each.
    lines: Vec<u32>,
}

impl<'a> Sheet<'a> {
    fn new(picture: &'a Picture) -> Self {
        let mut begins: Vec<(u32, u32, u32)> = Vec::new();
        for node in &picture.boxes {
            let (rank, launch) = (picture.lanes[node.lane].rank, node.launch);
            match begins.iter_mut().find(|(r, l, _)| (*r, *l) == (rank, launch)) {
                Some((.., level)) => *level = node.level.min(*level),
                None => begins.push((rank, launch, node.level)),
            }
        }
        let mut lines: Vec<u32> = begins.iter().map(|(.., level)| *level).collect();
        lines.sort_unstable();
        lines.dedup();
        Sheet { picture, begins, lines }
    }

    fn top(&self, level: u32) -> u32 {
        let lines = self.lines.partition_point(|&line| line <= level) as u32;
        TOP + level * ROW + lines * LINE
    }

    /// The middle of a box, from above.
    fn middle(&self, node: &Node) -> u32 {
        self.top(node.level) + HEIGHT / 2
    }
}

pub(super) fn svg(picture: &Picture) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&Sheet::new(picture), &mut text);
    text
}

fn write(sheet: &Sheet<'_>, text: &mut String) -> std::fmt::Result {
    let picture = sheet.picture;
    let levels = picture.boxes.iter().map(|b| b.level + 1).max().unwrap_or(0);
    let bottom = sheet.top(levels) + 8;
    let legend = [
        (Kind::Wait, "wait"),
        (Kind::Raise, "signal"),
        (Kind::Move, "copy, put"),
        (Kind::Compute, "mainloop, sum"),
        (Kind::Store, "store"),
    ];
    let wide = left(picture.lanes.len()).max(LEFT + 130 * legend.len() as u32);
    let wide = wide.max(8 * picture.title.chars().count() as u32 + 2 * LEFT);
    let high = bottom + 44;
    writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
         viewBox=\"0 0 {wide} {high}\" font-family=\"monospace\" font-size=\"11\">"
    )?;
    writeln!(text, "<rect width=\"{wide}\" height=\"{high}\" fill=\"white\"/>")?;
    writeln!(text, "<defs>{}{}</defs>", head("green", "#2f6f3a"), head("red", "#cc0000"))?;
    let title = escaped(&picture.title);
    writeln!(text, "<text x=\"{LEFT}\" y=\"20\" font-size=\"13\">{title}</text>")?;
    lanes(picture, bottom, text)?;
    launches(sheet, text)?;
    for &(from, to, red) in &picture.arrows {
        arrow(sheet, &picture.boxes[from], &picture.boxes[to], red, text)?;
    }
    for node in &picture.boxes {
        draw(sheet, node, text)?;
    }
    if let Some((one, other)) = picture.clash {
        clash(sheet, &picture.boxes[one], &picture.boxes[other], text)?;
    }
    for ((kind, name), x) in legend.into_iter().zip((LEFT..).step_by(130)) {
        let (y, fill) = (bottom + 12, color(kind));
        writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{fill}\" \
             stroke=\"#777777\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            x + 20,
            y + 11
        )?;
    }
    writeln!(text, "</svg>")
}

fn head(name: &str, color: &str) -> String {
    format!(
        "<marker id=\"{name}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"{color}\"/></marker>"
    )
}

/// The lanes, those of a rank on one ground.
fn lanes(picture: &Picture, bottom: u32, text: &mut String) -> std::fmt::Result {
    for (index, lane) in picture.lanes.iter().enumerate() {
        let x = left(index);
        let first = index == 0 || picture.lanes[index - 1].rank != lane.rank;
        if first {
            let count = picture.lanes.iter().filter(|other| other.rank == lane.rank).count();
            let fill = if lane.rank.is_multiple_of(2) { "#f7f7f4" } else { "#f0f3f6" };
            let wide = count as u32 * (WIDTH + GAP);
            writeln!(
                text,
                "<rect x=\"{}\" y=\"30\" width=\"{wide}\" height=\"{}\" fill=\"{fill}\"/>",
                x - GAP / 2,
                bottom - 30
            )?;
            writeln!(
                text,
                "<text x=\"{x}\" y=\"45\" font-weight=\"bold\">rank {}</text>",
                lane.rank
            )?;
        }
        let middle = x + WIDTH / 2;
        let name = escaped(&lane.name);
        writeln!(text, "<text x=\"{middle}\" y=\"62\" text-anchor=\"middle\">{name}</text>")?;
        writeln!(
            text,
            "<line x1=\"{middle}\" y1=\"68\" x2=\"{middle}\" y2=\"{bottom}\" stroke=\"#c8c8c8\"/>"
        )?;
    }
    Ok(())
}

/// A line where a launch of a rank begins.
fn launches(sheet: &Sheet<'_>, text: &mut String) -> std::fmt::Result {
    let ranks: Vec<u32> = sheet.picture.lanes.iter().map(|lane| lane.rank).collect();
    for (rank, launch, level) in &sheet.begins {
        let Some(first) = ranks.iter().position(|&other| other == *rank) else { continue };
        let count = ranks.iter().filter(|&&other| other == *rank).count() as u32;
        let (x, y) = (left(first) - GAP / 2, sheet.top(*level) - LINE);
        writeln!(
            text,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#888888\" \
             stroke-dasharray=\"6,4\"/>",
            x + count * (WIDTH + GAP)
        )?;
        writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" font-size=\"9\" fill=\"#666666\">launch {launch}</text>",
            x + 4,
            y + 10
        )?;
    }
    Ok(())
}

fn arrow(
    sheet: &Sheet<'_>,
    from: &Node,
    to: &Node,
    red: bool,
    text: &mut String,
) -> std::fmt::Result {
    let (name, color) = if red { ("red", "#cc0000") } else { ("green", "#2f6f3a") };
    let dash = if from.pending { " stroke-dasharray=\"5,3\"" } else { "" };
    let (y1, y2) = (sheet.middle(from), sheet.middle(to));
    // Out of the side that faces the other box; within a lane, around on the left.
    let (x1, x2) = match from.lane.cmp(&to.lane) {
        std::cmp::Ordering::Less => (left(from.lane) + WIDTH, left(to.lane)),
        std::cmp::Ordering::Equal => (left(from.lane), left(to.lane)),
        std::cmp::Ordering::Greater => (left(from.lane), left(to.lane) + WIDTH),
    };
    let bend = |x: u32, lane: usize| {
        let out = if x == left(lane) { -1 } else { 1 };
        i64::from(x) + out * i64::from(GAP)
    };
    writeln!(
        text,
        "<path d=\"M{x1},{y1} C{},{y1} {},{y2} {x2},{y2}\" fill=\"none\" stroke=\"{color}\"{dash} \
         marker-end=\"url(#{name})\"/>",
        bend(x1, from.lane),
        bend(x2, to.lane)
    )
}

/// Between two boxes that nothing orders.
fn clash(sheet: &Sheet<'_>, one: &Node, other: &Node, text: &mut String) -> std::fmt::Result {
    let middle = |node: &Node| left(node.lane) + WIDTH / 2;
    let (x1, y1) = (middle(one), sheet.middle(one));
    let (x2, y2) = (middle(other), sheet.middle(other));
    writeln!(
        text,
        "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#cc0000\" \
         stroke-width=\"2\" stroke-dasharray=\"2,4\"/>"
    )?;
    let (x, y) = ((x1 + x2) / 2, (y1 + y2) / 2 - 6);
    writeln!(text, "<text x=\"{x}\" y=\"{y}\" fill=\"#cc0000\">no order</text>")
}

fn draw(sheet: &Sheet<'_>, node: &Node, text: &mut String) -> std::fmt::Result {
    let (x, y, fill) = (left(node.lane), sheet.top(node.level), color(node.kind));
    let stroke = if node.red { "#cc0000\" stroke-width=\"2" } else { "#777777" };
    let dash = if node.pending { " stroke-dasharray=\"5,3\"" } else { "" };
    writeln!(
        text,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         rx=\"3\" fill=\"{fill}\" stroke=\"{stroke}\"{dash}/><text x=\"{}\" y=\"{}\">{}</text></g>",
        escaped(&node.full),
        x + 5,
        y + 15,
        escaped(&cut(&node.short))
    )
}
