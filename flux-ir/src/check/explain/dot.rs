//! A picture in the language of Graphviz.

use super::picture::{Kind, Node, Picture};
use std::fmt::Write;

/// A quoted text.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(super) fn dot(picture: &Picture) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(picture, &mut text);
    text
}

fn write(picture: &Picture, text: &mut String) -> std::fmt::Result {
    writeln!(text, "digraph launch {{")?;
    writeln!(text, "  label={}; labelloc=t; newrank=true;", quoted(&picture.title))?;
    writeln!(text, "  node [shape=box, style=filled, fontname=monospace, fontsize=10];")?;
    for (index, lane) in picture.lanes.iter().enumerate() {
        let boxes: Vec<(usize, &Node)> =
            picture.boxes.iter().enumerate().filter(|(_, b)| b.lane == index).collect();
        writeln!(text, "  subgraph cluster_{index} {{")?;
        writeln!(text, "    label={};", quoted(&format!("rank {} {}", lane.rank, lane.name)))?;
        let mut launches: Vec<u32> = boxes.iter().map(|(_, b)| b.launch).collect();
        launches.sort_unstable();
        launches.dedup();
        for launch in launches {
            writeln!(text, "    subgraph cluster_{index}_{launch} {{")?;
            writeln!(text, "      label={}; style=dashed;", quoted(&format!("launch {launch}")))?;
            for (node, b) in boxes.iter().filter(|(_, b)| b.launch == launch) {
                let (short, full) = (quoted(&b.short), quoted(&b.full));
                let style = if b.pending { ", style=\"filled,dashed\"" } else { "" };
                let red = if b.red { ", color=red, penwidth=2" } else { "" };
                let color = color(b.kind);
                writeln!(
                    text,
                    "      n{node} [label={short}, tooltip={full}, fillcolor=\"{color}\"{red}{style}];"
                )?;
            }
            writeln!(text, "    }}")?;
        }
        let mut chain = boxes;
        chain.sort_by_key(|(node, b)| (b.level, *node));
        for pair in chain.windows(2) {
            writeln!(text, "    n{} -> n{} [color=gray];", pair[0].0, pair[1].0)?;
        }
        writeln!(text, "  }}")?;
    }
    for &(from, to, red) in &picture.arrows {
        let back =
            if picture.boxes[from].pending { ", style=dashed, constraint=false" } else { "" };
        let color = if red { "red" } else { "\"#2f6f3a\"" };
        writeln!(text, "  n{from} -> n{to} [color={color}{back}];")?;
    }
    if let Some((one, other)) = picture.clash {
        writeln!(
            text,
            "  n{one} -> n{other} [color=red, style=dashed, dir=none, constraint=false, label=\"no order\"];"
        )?;
    }
    writeln!(text, "}}")
}

/// What boxes of a kind are filled with.
pub(super) fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Wait => "#fdebc8",
        Kind::Raise => "#d8efd3",
        Kind::Move => "#d5e4f7",
        Kind::Compute => "#e6e2f3",
        Kind::Store => "#f2f2f2",
    }
}
