//! Grouped bars as SVG: one group per shape, one bar per way of running it.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

/// Ink that prints: distinct in gray as well as in color (Okabe and Ito's palette).
const INKS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];

/// Pixels at the right for the names of the bars.
const KEY_WIDTH: u32 = 190;

const FONT: &str = "Helvetica, Arial, sans-serif";
const HEIGHT: u32 = 420;

/// Bars to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above the drawing.
    pub title: String,
    /// What the vertical axis counts.
    pub axis: String,
    /// Names of the bars of a group, at most six.
    pub bars: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
    /// Where a line is drawn from left to right, and what it says.
    pub line: Option<(f64, String)>,
}

/// The bars of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The shape.
    pub name: String,
    /// A value and its quartiles for each bar; `None` leaves a gap.
    pub bars: Vec<Option<Bar>>,
}

/// One bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Its height.
    pub value: f64,
    /// The quartiles of what it stands for.
    pub quartiles: [f64; 2],
}

impl Chart {
    /// Draws the chart as SVG.
    ///
    /// # Errors
    /// What the drawing library refuses.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        let width = (140 + self.groups.len() as u32 * (24 + 15 * self.bars.len() as u32)).max(560);
        {
            let root =
                SVGBackend::with_string(&mut text, (width + KEY_WIDTH, HEIGHT)).into_drawing_area();
            root.fill(&WHITE).map_err(drawing)?;
            let (left, right) = root.split_horizontally(width);
            self.draw(&left)?;
            self.draw_key(&right)?;
            root.present().map_err(drawing)?;
        }
        Ok(text)
    }

    /// Writes the chart to a file.
    ///
    /// # Errors
    /// As [`Chart::svg`], and a file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        Ok(std::fs::write(path, self.svg()?)?)
    }

    fn draw(&self, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let values = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let highest = values.map(|bar| bar.value.max(bar.quartiles[1])).fold(0.0, f64::max);
        let top = (highest * 1.08).max(self.line.as_ref().map_or(0.0, |(at, _)| at * 1.08));
        let groups = self.groups.len() as f64;
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .caption(&self.title, (FONT, 16))
            .x_label_area_size(96)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..groups.max(1.0), 0.0..top.max(1e-9))
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .y_desc(&self.axis)
            .y_labels(8)
            .axis_desc_style((FONT, 13))
            .label_style((FONT, 12))
            .draw()
            .map_err(drawing)?;
        // A group is as wide as 1; its bars share four fifths of it.
        let bar_width = 0.8 / self.bars.len().max(1) as f64;
        for index in 0..self.bars.len() {
            let ink = INKS[index % INKS.len()];
            let left = move |group: usize| group as f64 + 0.1 + bar_width * index as f64;
            let bars = self.groups.iter().enumerate().filter_map(|(group, bars)| {
                let bar = bars.bars.get(index).copied().flatten()?;
                let corners = [(left(group), 0.0), (left(group) + bar_width * 0.92, bar.value)];
                Some(Rectangle::new(corners, ink.filled()))
            });
            chart.draw_series(bars).map_err(drawing)?;
            let whiskers = self.groups.iter().enumerate().filter_map(|(group, bars)| {
                let [low, high] = bars.bars.get(index).copied().flatten()?.quartiles;
                let middle = left(group) + bar_width * 0.46;
                Some(PathElement::new(vec![(middle, low), (middle, high)], BLACK))
            });
            chart.draw_series(whiskers).map_err(drawing)?;
        }
        if let Some((at, _)) = &self.line {
            let ends = vec![(0.0, *at), (groups, *at)];
            let line = PathElement::new(ends, BLACK.stroke_width(1));
            chart.draw_series([line]).map_err(drawing)?;
        }
        let names = self.groups.iter().enumerate().map(|(group, bars)| {
            let style = TextStyle::from((FONT, 11).into_font().transform(FontTransform::Rotate270))
                .pos(Pos::new(HPos::Right, VPos::Center));
            EmptyElement::at((group as f64 + 0.5, 0.0))
                + Text::new(bars.name.clone(), (0, 6), style)
        });
        chart.draw_series(names).map_err(drawing)?;
        Ok(())
    }

    /// Names the bars and the line, beside the drawing so that nothing is hidden.
    fn draw_key(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let text = |name: &str, y: i32| {
            let style = TextStyle::from((FONT, 12).into_font());
            Text::new(name.to_owned(), (22, y), style.pos(Pos::new(HPos::Left, VPos::Center)))
        };
        let mut y = 52;
        for (index, name) in self.bars.iter().enumerate() {
            let ink = INKS[index % INKS.len()].filled();
            area.draw(&Rectangle::new([(2, y - 5), (14, y + 5)], ink)).map_err(drawing)?;
            area.draw(&text(name, y)).map_err(drawing)?;
            y += 18;
        }
        if let Some((_, name)) = &self.line {
            area.draw(&PathElement::new(vec![(2, y), (14, y)], BLACK)).map_err(drawing)?;
            area.draw(&text(name, y)).map_err(drawing)?;
        }
        Ok(())
    }
}

/// The library's errors borrow what is drawn on.
fn drawing(error: impl std::fmt::Display) -> Box<dyn Error> {
    error.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::{Bar, Chart, Group};

    fn bar(value: f64) -> Option<Bar> {
        Some(Bar { value, quartiles: [value * 0.99, value * 1.01] })
    }

    #[test]
    fn every_bar_every_shape_and_the_line_are_drawn() {
        let chart = Chart {
            title: "AG-GEMM <8 ranks>".into(),
            axis: "time / bound".into(),
            bars: vec!["no overlap".into(), "fused".into()],
            groups: vec![
                Group { name: "8192 x 6144".into(), bars: vec![bar(1.5), bar(1.02)] },
                Group { name: "512 x 6144".into(), bars: vec![None, bar(1.2)] },
            ],
            line: Some((1.0, "bound".into())),
        };
        let svg = chart.svg().unwrap();
        for text in ["no overlap", "fused", "8192 x 6144", "512 x 6144", "bound", "&lt;8 ranks&gt;"]
        {
            assert!(svg.contains(text), "{text}");
        }
        // Each bar's ink once more in the key.
        let bars = |ink: &str| svg.matches(&format!("fill=\"{ink}\"")).count();
        assert_eq!(bars("#0072B2"), 2, "one bar and its key");
        assert_eq!(bars("#E69F00"), 3, "two bars and their key");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_chart_of_nothing_is_a_chart() {
        let (title, axis) = ("nothing".to_owned(), "ms".to_owned());
        let chart = Chart { title, axis, bars: vec![], groups: vec![], line: None };
        assert!(chart.svg().unwrap().contains("nothing"));
    }
}
