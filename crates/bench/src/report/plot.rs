//! The few kinds of plot the report has, each one SVG. Colours belong to targets and are the same
//! everywhere; the legend is the page's.

use plotters::coord::Shift;
use plotters::prelude::*;

/// One line or one colour of bars.
pub(super) struct Series {
    /// Which colour.
    pub colour: usize,
    pub points: Vec<Point>,
}

/// A value with its ends; the ends are equal where there is one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

impl Point {
    pub(super) fn plain(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// Words around a plot.
pub(super) struct Words<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

/// Colours that people with any colour vision tell apart (Okabe and Ito, with the yellow darkened
/// for a white page).
const COLOURS: [(u8, u8, u8); 9] = [
    (60, 60, 60),
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (184, 150, 0),
    (120, 80, 30),
    (170, 170, 170),
];

/// What stands for a paper.
pub(super) const PAPER_COLOUR: usize = 8;

fn colour(index: usize) -> RGBColor {
    let (r, g, b) = COLOURS[if index == PAPER_COLOUR { index } else { index % PAPER_COLOUR }];
    RGBColor(r, g, b)
}

/// Writes a colour as a page does.
pub(super) fn css_colour(index: usize) -> String {
    let (r, g, b) = COLOURS[if index == PAPER_COLOUR { index } else { index % PAPER_COLOUR }];
    format!("#{r:02x}{g:02x}{b:02x}")
}

const TITLE: (&str, i32) = ("sans-serif", 15);
const LABEL: (&str, i32) = ("sans-serif", 12);
const SIZE: (u32, u32) = (520, 290);

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws into a string. A plot that cannot be drawn is a programming error that a reader should
/// see, not a reason to lose the report.
fn draw(size: (u32, u32), body: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        body(&area).and_then(|()| Ok(area.present()?))
    };
    match drawn {
        Ok(()) => svg
            .split_once("<svg")
            .map_or_else(String::new, |(_, rest)| format!("<svg role=\"img\"{rest}")),
        Err(e) => format!("<p class=\"missing\">plot not drawn: {e}</p>"),
    }
}

/// The top of an axis that starts at zero: a little above the largest value.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    let largest = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    if largest > 0.0 { largest * 1.08 } else { 1.0 }
}

/// Curves over a few values that stand at equal distances whatever they are: 1, 4, 16, 64 threads.
/// Thin lines show the ends.
pub(super) fn curves(words: &Words<'_>, xs: &[f64], series: &[Series]) -> String {
    let place = |x: f64| xs.iter().position(|&known| known == x).unwrap_or(0) as f64;
    debug_assert!(
        series.iter().flat_map(|one| &one.points).all(|point| xs.contains(&point.x)),
        "every point of a curve stands over a value of the axis: {xs:?}"
    );
    let y_top = top(series.iter().flat_map(|s| s.points.iter().map(|p| p.high)));
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, TITLE)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.2..(xs.len().max(1) as f64 - 0.8), 0.0..y_top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(xs.len().max(2) * 5)
            .set_tick_mark_size(LabelAreaPosition::Bottom, 0)
            .x_label_formatter(&|at| category(xs, *at))
            .y_label_formatter(&|y| short(*y))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(LABEL)
            .draw()?;
        for (i, one) in series.iter().enumerate() {
            let ink = colour(one.colour);
            // Side by side by a hair, so that ends of equal curves stay visible.
            let nudge = (i as f64 - (series.len() as f64 - 1.0) / 2.0) * 0.02;
            let at = |p: &Point| place(p.x) + nudge;
            chart.draw_series(LineSeries::new(
                one.points.iter().map(|p| (at(p), p.y)),
                ink.stroke_width(2),
            ))?;
            chart.draw_series(one.points.iter().map(|p| {
                PathElement::new(vec![(at(p), p.low), (at(p), p.high)], ink.stroke_width(1))
            }))?;
            chart.draw_series(
                one.points.iter().map(|p| Circle::new((at(p), p.y), 3, ink.filled())),
            )?;
        }
        Ok(())
    })
}

/// The label of a place on a category axis; nothing between the categories.
fn category(names: &[f64], at: f64) -> String {
    let nearest = at.round();
    if (at - nearest).abs() > 1e-6 || nearest < 0.0 {
        String::new()
    } else {
        names.get(nearest as usize).map_or_else(String::new, |x| plain(*x))
    }
}

fn plain(x: f64) -> String {
    if x >= 1024.0 && x % 1024.0 == 0.0 { bedplate::format_size(x as u64) } else { format!("{x}") }
}

/// A number short enough for an axis.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.1}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 1e3 => format!("{:.1}k", value / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Latency by quantile: the tail is stretched, each step to the right is ten times rarer.
pub(super) fn quantiles(words: &Words<'_>, series: &[Series]) -> String {
    let rarity = |q: f64| -(1.0 - q).log10();
    let values = || series.iter().flat_map(|s| s.points.iter().map(|p| p.y)).filter(|y| *y > 0.0);
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    if high <= 0.0 {
        return String::new();
    }
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, TITLE)
            .margin(8)
            .margin_right(30)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..4.0f64, ((low * 0.8)..(high * 1.3)).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(5)
            .y_labels(5)
            .x_label_formatter(&|r| {
                ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]
                    .get(r.round() as usize)
                    .map_or_else(String::new, |s| (*s).to_owned())
            })
            .y_label_formatter(&|us| crate::units::format_micros(*us))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(LABEL)
            .draw()?;
        for one in series {
            let points = one.points.iter().filter(|p| p.y > 0.0).map(|p| (rarity(p.x), p.y));
            chart.draw_series(LineSeries::new(points, colour(one.colour).stroke_width(2)))?;
        }
        Ok(())
    })
}

/// Curves over time, with vertical lines where counting began and ended.
pub(super) fn over_time(words: &Words<'_>, series: &[Series], marks: &[f64]) -> String {
    let x_top = series.iter().flat_map(|s| s.points.iter().map(|p| p.x)).fold(0.1, f64::max);
    let y_top = top(series.iter().flat_map(|s| s.points.iter().map(|p| p.y)));
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, TITLE)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x_top, 0.0..y_top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|y| short(*y))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(LABEL)
            .draw()?;
        for &mark in marks {
            let line = [(mark, 0.0), (mark, y_top)];
            chart.draw_series(DashedLineSeries::new(
                line,
                5,
                4,
                RGBColor(150, 150, 150).stroke_width(1),
            ))?;
        }
        for one in series {
            let points = one.points.iter().map(|p| (p.x, p.y));
            chart.draw_series(LineSeries::new(points, colour(one.colour).stroke_width(2)))?;
        }
        Ok(())
    })
}

/// One horizontal bar of a chart: its name and its parts, each with a colour.
pub(super) struct Bar {
    pub name: String,
    pub parts: Vec<(f64, RGBColor)>,
    /// What is written behind the bar.
    pub note: String,
}

impl Bar {
    pub(super) fn single(name: String, value: f64, colour_index: usize, note: String) -> Self {
        Self { name, parts: vec![(value, colour(colour_index))], note }
    }

    /// One of several parts, each with its colour.
    pub(super) fn parts(name: String, parts: &[(usize, u64)], note: String) -> Self {
        let parts = parts.iter().map(|(index, value)| (*value as f64, colour(*index))).collect();
        Self { name, parts, note }
    }
}

/// Horizontal bars, stacked from their parts; `full` fixes the end of the axis.
pub(super) fn bars(title: &str, bars: &[Bar], full: Option<f64>) -> String {
    const ROW: i32 = 24;
    const NAME_WIDTH: i32 = 190;
    const NOTE_WIDTH: i32 = 90;
    let total = |bar: &Bar| bar.parts.iter().map(|(value, _)| value).sum::<f64>();
    debug_assert!(
        bars.iter().flat_map(|bar| &bar.parts).all(|(value, _)| *value >= 0.0),
        "no part of a bar goes to the left"
    );
    let full = full.unwrap_or_else(|| top(bars.iter().map(total)));
    let height = 34 + ROW * bars.len() as i32;
    let width = SIZE.0 as i32 - NAME_WIDTH - NOTE_WIDTH;
    draw((SIZE.0, height as u32 + 6), |area| {
        area.draw(&Text::new(title.to_owned(), (8, 8), TITLE))?;
        for (i, bar) in bars.iter().enumerate() {
            let y = 32 + ROW * i as i32;
            area.draw(&Text::new(clip(&bar.name, 30), (8, y + 4), LABEL))?;
            let mut x = NAME_WIDTH;
            for &(value, ink) in &bar.parts {
                let end = x + (value / full * f64::from(width)).round() as i32;
                area.draw(&Rectangle::new([(x, y), (end, y + ROW - 6)], ink.filled()))?;
                x = end;
            }
            area.draw(&Text::new(bar.note.clone(), (x + 6, y + 4), LABEL))?;
        }
        Ok(())
    })
}

/// A place of a heat map.
pub(super) struct Cell {
    pub column: usize,
    pub row: usize,
    pub colour: usize,
    pub count: u64,
}

/// How often something happened, over time and place: the more, the less of the page shows through.
/// `ends` are the seconds and the bytes of the axes.
pub(super) fn heat(
    words: &Words<'_>,
    (columns, rows): (usize, usize),
    ends: (f64, u64),
    cells: &[Cell],
) -> String {
    debug_assert!(
        cells.iter().all(|cell| cell.column < columns && cell.row < rows && cell.count > 0),
        "a place of a heat map lies in it, and something happened there"
    );
    let most = cells.iter().map(|cell| cell.count).max().unwrap_or(1) as f64;
    let (width, height) = (ends.0 / columns as f64, ends.1 as f64 / rows as f64);
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, TITLE)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..ends.0, 0.0..ends.1 as f64)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .y_label_formatter(&|y| bedplate::format_size(*y as u64))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(LABEL)
            .draw()?;
        chart.draw_series(cells.iter().map(|cell| {
            let (x, y) = (cell.column as f64 * width, cell.row as f64 * height);
            let strength = 0.25 + 0.75 * (cell.count as f64).ln_1p() / most.ln_1p();
            let ink = colour(cell.colour).mix(strength).filled();
            Rectangle::new([(x, y), (x + width, y + height)], ink)
        }))?;
        Ok(())
    })
}

/// Stems that many plots have room for; of more the highest of each place are drawn.
const STEMS_MAX: usize = 600;

/// Values over time, each a line from the axis.
pub(super) fn stems(words: &Words<'_>, x_top: f64, values: &[(f64, f64)]) -> String {
    debug_assert!(
        x_top > 0.0 && values.iter().all(|(x, _)| *x >= 0.0),
        "values over time lie right of its beginning: up to {x_top}"
    );
    let y_top = top(values.iter().map(|(_, y)| *y));
    let mut highest = vec![(0.0, 0.0); STEMS_MAX];
    for (x, y) in values {
        let place = (x / x_top * STEMS_MAX as f64) as usize;
        let stem = &mut highest[place.min(STEMS_MAX - 1)];
        if *y > stem.1 {
            *stem = (*x, *y);
        }
    }
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, TITLE)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x_top, 0.0..y_top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|y| short(*y))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(LABEL)
            .draw()?;
        for (x, y) in highest.into_iter().filter(|(_, y)| *y > 0.0) {
            let line = [(x, 0.0), (x, y)];
            chart.draw_series(LineSeries::new(line, colour(3).stroke_width(1)))?;
        }
        Ok(())
    })
}

fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_owned()
    } else {
        text.chars().take(most - 1).chain(['…']).collect()
    }
}

/// User, system and idle, from dark to light.
pub(super) const CPU_COLOURS: [(RGBColor, &str); 3] = [
    (RGBColor(94, 60, 153), "user"),
    (RGBColor(178, 171, 210), "system"),
    (RGBColor(232, 232, 232), "idle or waiting"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Vec<Series> {
        vec![Series {
            colour: 0,
            points: vec![Point { x: 1.0, y: 5.0, low: 4.0, high: 6.0 }, Point::plain(64.0, 9.0)],
        }]
    }

    fn is_svg(text: &str) {
        assert!(
            text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
            "{}",
            &text[..text.len().min(200)]
        );
    }

    #[test]
    fn every_kind_draws() {
        let words = Words { title: "t", x: "threads", y: "IOPS" };
        is_svg(&curves(&words, &[1.0, 64.0], &series()));
        is_svg(&quantiles(
            &words,
            &[Series {
                colour: 1,
                points: vec![Point::plain(0.5, 10.0), Point::plain(0.999, 1000.0)],
            }],
        ));
        is_svg(&over_time(&words, &series(), &[2.0]));
        is_svg(&bars(
            "t",
            &[Bar::single("a name that is much too long to fit there".into(), 3.0, 2, "3".into())],
            None,
        ));
    }

    #[test]
    fn nothing_to_draw_breaks_nothing() {
        let words = Words { title: "t", x: "x", y: "y" };
        is_svg(&curves(&words, &[], &[]));
        assert!(quantiles(&words, &[]).is_empty());
        is_svg(&over_time(&words, &[], &[]));
        is_svg(&bars("t", &[], Some(100.0)));
    }

    #[test]
    fn categories_are_named_where_they_stand() {
        assert_eq!(category(&[1.0, 16.0, 4096.0], 1.0), "16");
        assert_eq!(category(&[1.0, 16.0, 4096.0], 2.0), "4 KiB");
        assert_eq!(category(&[1.0, 16.0], 0.5), "");
        assert_eq!(short(12_345.0), "12k");
    }
}
