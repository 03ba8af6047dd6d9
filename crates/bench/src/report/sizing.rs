//! The page of a trace's reuse: what a cache of each size would answer.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use bedplate_trace::{LayoutHint, ReuseCurve};

use super::plot::{self, Point, Series, Words};
use super::{STYLE, escape};
use crate::{Error, Result};

/// Writes the page.
///
/// # Errors
/// `Io`.
pub fn write_sizing_page(curve: &ReuseCurve, hints: &[LayoutHint], path: &Path) -> Result<()> {
    fs::write(path, html(curve, hints)).map_err(|e| Error::io(path.display(), "cannot write", e))
}

fn html(curve: &ReuseCurve, hints: &[LayoutHint]) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Cache sizes</title>\
         <style>{STYLE}</style></head><body><main><h1>Cache sizes</h1><p class=\"soft\">{} pages \
         read, {} of different pages; {} of them looked at</p>",
        curve.read_pages,
        bedplate::format_size(curve.working_set_bytes),
        share(curve.sampled)
    );
    let mib: Vec<f64> = curve.points.iter().map(|point| megabytes(point.bytes)).collect();
    let points = curve.points.iter();
    let points =
        points.map(|point| Point::plain(megabytes(point.bytes), point.hit_rate * 100.0)).collect();
    let words = Words { title: "hits by the size of the cache", x: "MiB", y: "% of pages" };
    if !curve.points.is_empty() {
        let curves = plot::curves(&words, &mib, &[Series { colour: 1, points }]);
        let _ = write!(page, "<div class=\"plots\"><div>{curves}</div></div>");
    }
    if let Some(knee) = curve.knee_bytes {
        let _ = write!(page, "<p>The knee is at {}.</p>", bedplate::format_size(knee));
    }
    page.push_str("<table><tr><th>cache</th><th>hits</th></tr>");
    for point in &curve.points {
        let (size, hits) = (bedplate::format_size(point.bytes), share(point.hit_rate));
        let _ = write!(page, "<tr><td>{size}</td><td>{hits}</td></tr>");
    }
    page.push_str("</table>");
    if !hints.is_empty() {
        page.push_str("<h2>Layout</h2><table>");
    }
    for hint in hints {
        let (about, choose) = (escape(hint.about), escape(&hint.choose));
        let because = escape(&hint.because);
        let _ = write!(page, "<tr><td>{about}</td><td>{choose}</td><td>{because}</td></tr>");
    }
    page.push_str(if hints.is_empty() { "" } else { "</table>" });
    page.push_str("</main></body></html>\n");
    page
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn share(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use bedplate_trace::CachePoint;

    use super::*;

    #[test]
    fn s_452_the_page_has_curve_and_table() {
        let point = |bytes, hit_rate| CachePoint { bytes, hit_rate };
        let curve = ReuseCurve {
            read_pages: 10,
            working_set_bytes: 3 << 20,
            sampled: 1.0,
            points: vec![point(1 << 20, 0.25), point(2 << 20, 0.75), point(3 << 20, 0.8)],
            knee_bytes: Some(2 << 20),
        };
        let hint = LayoutHint { about: "log", choose: "a<b".into(), because: "1 > 0".into() };
        let page = html(&curve, &[hint]);
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.contains("knee is at 2 MiB") && page.contains("75.0 %"), "{page}");
        assert!(page.contains("a&lt;b") && !page.contains("not drawn"), "{page}");
        let empty = ReuseCurve { points: Vec::new(), knee_bytes: None, ..curve };
        assert!(html(&empty, &[]).contains("</html>"));
    }
}
