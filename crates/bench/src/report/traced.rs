//! The page of a trace: where its calls went over time, how large they were, what syncs took.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use bedplate_trace::{Call, Event, FileSummary, Summary, Trace};

use super::plot::{self, Bar, Cell, Words};
use super::{STYLE, escape};
use crate::units::format_micros;
use crate::{Error, Result};

/// Files that get pictures of their own.
const FILES: usize = 8;
/// Syncs in the waterfall.
const SYNCS: usize = 24;

/// Writes the page of a trace; `cut` says where the trace ends too soon.
///
/// # Errors
/// `Io`.
pub fn write_trace_page(
    trace: &Trace,
    summary: &Summary,
    cut: Option<&str>,
    path: &Path,
) -> Result<()> {
    fs::write(path, html(trace, summary, cut))
        .map_err(|e| Error::io(path.display(), "cannot write", e))
}

fn html(trace: &Trace, summary: &Summary, cut: Option<&str>) -> String {
    let mut page = String::new();
    let command = escape(&summary.about.command.join(" "));
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Bedplate trace</title>\
         <style>{STYLE}</style></head><body><main><h1>Bedplate trace</h1><p><code>{command}</code>\
         </p><p class=\"soft\">{} calls in {} · {} processes · Linux {} · Bedplate {}</p>",
        summary.calls,
        format_micros(summary.about.took_ns as f64 / 1000.0),
        summary.processes.len(),
        escape(&summary.about.kernel),
        escape(&summary.about.version)
    );
    warnings(&mut page, summary, cut);
    let _ = write!(
        page,
        "<div class=\"legend\"><span><i style=\"background:{}\"></i>reads</span><span><i \
         style=\"background:{}\"></i>writes</span></div>",
        plot::css_colour(READS),
        plot::css_colour(WRITES)
    );
    for file in summary.files.iter().take(FILES) {
        section(&mut page, trace, file);
    }
    syncs(&mut page, trace, summary);
    page.push_str("</main></body></html>\n");
    page
}

/// Colours.
const READS: usize = 1;
const WRITES: usize = 2;

fn warnings(page: &mut String, summary: &Summary, cut: Option<&str>) {
    let told = [
        (summary.maps > 0)
            .then(|| format!("{} files were mapped: what went so is not seen.", summary.maps)),
        (summary.rings > 0)
            .then(|| format!("{} rings of io_uring: what went so is not seen.", summary.rings)),
        (summary.about.lost > 0)
            .then(|| format!("{} records were lost for want of room.", summary.about.lost)),
        cut.map(|cut| format!("{cut}.")),
    ];
    for told in told.into_iter().flatten() {
        let _ = write!(page, "<p class=\"warning\">{}</p>", escape(&told));
    }
}

fn section(page: &mut String, trace: &Trace, file: &FileSummary) {
    let events: Vec<&Event> = trace
        .events
        .iter()
        .filter(|event| event.file == Some(file.number) && event.call.is_move() && event.is_done())
        .collect();
    if events.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<h3>{}</h3><p class=\"soft\">{} reads, {}; {} writes, {}; {} syncs; {}</p><div \
         class=\"plots\"><div>{}</div><div>{}</div></div>",
        escape(&file.path),
        file.reads.calls,
        bedplate::format_size(file.reads.bytes),
        file.writes.calls,
        bedplate::format_size(file.writes.bytes),
        file.syncs.calls,
        escape(&file.flags.join(" ")),
        heat(trace, &events),
        sizes(file)
    );
}

/// Columns and rows of a heat map.
const COLUMNS: usize = 96;
const ROWS: usize = 40;

fn heat(trace: &Trace, events: &[&Event]) -> String {
    let end_ns = trace.events.iter().map(Event::end_ns).max().unwrap_or(0).max(1);
    let end = events.iter().map(|e| e.offset.saturating_add(e.asked)).max().unwrap_or(0).max(1);
    let place = |part: u64, whole: u64, places: usize| {
        ((u128::from(part) * places as u128 / u128::from(whole)) as usize).min(places - 1)
    };
    let mut cells: BTreeMap<(usize, usize, bool), u64> = BTreeMap::new();
    for event in events {
        let column = place(event.begin_ns, end_ns, COLUMNS);
        let row = place(event.offset, end, ROWS);
        *cells.entry((column, row, event.call == Call::Write)).or_default() += 1;
    }
    let cells: Vec<Cell> = cells
        .into_iter()
        .map(|((column, row, writes), count)| Cell {
            column,
            row,
            colour: if writes { WRITES } else { READS },
            count,
        })
        .collect();
    let words = Words { title: "offsets over time", x: "seconds", y: "offset" };
    plot::heat(&words, (COLUMNS, ROWS), (end_ns as f64 / 1e9, end), &cells)
}

/// Sizes in powers of two: each row those up to its own.
fn sizes(file: &FileSummary) -> String {
    let mut rows: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let bucket = |size: u64| size.max(1).checked_next_power_of_two().unwrap_or(u64::MAX);
    for (size, count) in &file.reads.sizes {
        rows.entry(bucket(*size)).or_default().0 += count;
    }
    for (size, count) in &file.writes.sizes {
        rows.entry(bucket(*size)).or_default().1 += count;
    }
    let bars: Vec<Bar> = rows
        .into_iter()
        .map(|(size, (reads, writes))| {
            let name = format!("up to {}", bedplate::format_size(size));
            let parts = [(READS, reads), (WRITES, writes)];
            Bar::parts(name, &parts, (reads + writes).to_string())
        })
        .collect();
    plot::bars("calls by size", &bars, None)
}

/// When syncs came and how long they took; the longest with what they waited for.
fn syncs(page: &mut String, trace: &Trace, summary: &Summary) {
    let stems: Vec<(f64, f64)> = trace
        .events
        .iter()
        .filter(|event| event.call.is_sync() && event.errno == 0)
        .map(|event| (event.begin_ns as f64 / 1e9, event.took_ns as f64 / 1e6))
        .collect();
    if stems.is_empty() {
        return;
    }
    let mut longest: Vec<_> = summary.longest_syncs.iter().take(SYNCS).collect();
    longest.sort_by_key(|wait| wait.begin_ns);
    let end_ns = trace.events.iter().map(Event::end_ns).max().unwrap_or(0).max(1);
    let bars: Vec<Bar> = longest
        .into_iter()
        .map(|wait| {
            let path = trace.files.get(wait.file as usize).map_or("", |file| file.path.as_str());
            let name = path.rsplit('/').next().unwrap_or(path);
            let note = format!(
                "{} · {} in {}",
                format_micros(wait.took_ns as f64 / 1e3),
                bedplate::format_size(wait.bytes),
                wait.writes
            );
            let at = format!("{:.2} s {name}", wait.begin_ns as f64 / 1e9);
            Bar::single(at, wait.took_ns as f64 / 1e6, 3, note)
        })
        .collect();
    let words = Words { title: "syncs over time", x: "seconds", y: "milliseconds" };
    let _ = write!(
        page,
        "<h2>Syncs</h2><p class=\"soft\">The longest syncs in the order of time, with the bytes \
         and writes since the sync before, which they waited for.</p><div class=\"plots\">\
         <div>{}</div><div>{}</div></div>",
        plot::stems(&words, end_ns as f64 / 1e9, &stems),
        plot::bars("the longest", &bars, None)
    );
}

#[cfg(test)]
mod tests {
    use bedplate_trace::{TracedFile, summarized};

    use super::*;

    fn event(call: Call, begin_ns: u64, offset: u64) -> Event {
        Event {
            process: 0,
            thread: 1,
            call,
            how: 0,
            errno: 0,
            file: Some(0),
            flags: 0,
            begin_ns,
            took_ns: 2_000_000,
            offset,
            asked: 8192,
            moved: 8192,
            memory_align: 1,
        }
    }

    #[test]
    fn a_page_has_its_pictures_and_nothing_of_a_name_is_markup() {
        let files = vec![TracedFile { path: "/a<b>".into(), ..TracedFile::default() }];
        let events = vec![
            event(Call::Write, 0, 0),
            event(Call::Read, 5, u64::MAX - 1),
            event(Call::Sync, u64::MAX - 9, 0),
        ];
        let trace = Trace { files, events, ..Trace::default() };
        let page = html(&trace, &summarized(&trace), Some("cut <here>"));
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("/a&lt;b&gt;") && page.contains("cut &lt;here&gt;."));
        assert!(!page.contains("not drawn"), "{page}");
    }

    #[test]
    fn an_empty_trace_is_a_page_too() {
        let trace = Trace::default();
        assert!(html(&trace, &summarized(&trace), None).contains("</html>"));
    }
}
