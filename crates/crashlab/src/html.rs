//! The report as one page that fetches nothing.

use std::fmt::Write;

use crate::replay::Verdict;
use crate::report::{Report, StateResult, pattern_words, verdict_line, verdict_words};

const STYLE: &str = include_str!("style.css");

/// Makes the page.
pub fn page(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Bedplate crash lab, seed \
         {}</title><style>{}{STYLE}</style></head><body><main>",
        report.seed,
        bedplate_bench::REPORT_STYLE
    );
    head(&mut page, report);
    picture(&mut page, report);
    patterns(&mut page, report);
    failures(&mut page, report);
    circumstances(&mut page, report);
    all(&mut page, report);
    page.push_str("</main></body></html>\n");
    page
}

fn escape(text: &str) -> String {
    bedplate_bench::escape_html(text)
}

fn head(page: &mut String, report: &Report) {
    let (class, verdict) = match report.failed {
        0 => ("passed", format!("All {} states passed", report.states)),
        failed => ("failed", format!("{failed} of {} states failed", report.states)),
    };
    let took = bedplate::format_duration(std::time::Duration::from_millis(report.duration_ms));
    let _ = write!(
        page,
        "<h1>Bedplate crash lab</h1><p class=\"soft\"><code>{}</code></p><p class=\"verdict \
         {class}\">{verdict}</p><p class=\"soft\">{took}, {} states a minute · seed {} · Bedplate \
         {}</p>",
        escape(&report.circumstances.to_string()),
        report.rate_per_minute(),
        report.seed,
        report.version
    );
}

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 150.0;
/// Room for the labels.
const LEFT: f64 = 86.0;
const RIGHT: f64 = 1068.0;
/// Where the lines of the picture lie, from above.
const STATES_Y: (f64, f64) = (22.0, 96.0);
const FLUSHES_Y: (f64, f64) = (106.0, 120.0);

/// The run from left to right: every state as a dot where its power went, below it the flushes.
fn picture(page: &mut String, report: &Report) {
    debug_assert!(
        report.results.iter().all(|result| report.recorded.first <= result.after),
        "no power cut lies left of the picture"
    );
    let (first, last) = (report.recorded.first, report.recorded.last);
    let x = |at: usize| LEFT + (at - first) as f64 / (last - first).max(1) as f64 * (RIGHT - LEFT);
    page.push_str(
        "<h2>Where the power went</h2><p class=\"soft\">From left to right the device operations \
         of the command. Each dot is a state, as high as the share of the unflushed writes that \
         arrived; the strokes below are flushes.</p><div class=\"legend\"><span><i class=\"dot \
         good\"></i>passed</span><span><i class=\"dot bad\"></i>failed</span><span><i \
         class=\"stroke\"></i>flush</span></div>",
    );
    let _ = write!(
        page,
        "<div class=\"picture\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"states over device operations\">"
    );
    for (y, label) in
        [(STATES_Y.0, "all arrived"), (STATES_Y.1, "none arrived"), (FLUSHES_Y.1 - 3.0, "flushes")]
    {
        let _ = write!(page, "<text x=\"4\" y=\"{}\" class=\"label\">{label}</text>", y + 4.0);
    }
    for y in [STATES_Y.0, STATES_Y.1] {
        let _ = write!(
            page,
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y}\" y2=\"{y}\" class=\"rule\"/>"
        );
    }
    strokes(page, report, &x);
    // What failed lies on top.
    let shown = |failed: bool| {
        report.results.iter().filter(move |result| (result.verdict != Verdict::Passed) == failed)
    };
    for result in shown(false).chain(shown(true)) {
        dot(page, result, x(result.after));
    }
    let _ = write!(
        page,
        "<text x=\"{LEFT}\" y=\"{0}\" class=\"label\">operation {first}</text><text x=\"{1}\" \
         y=\"{0}\" class=\"label\" text-anchor=\"end\">{last}</text></svg></div>",
        HEIGHT - 10.0,
        RIGHT
    );
}

/// One stroke for each flush, and one for all that fall on the same place.
fn strokes(page: &mut String, report: &Report, x: &dyn Fn(usize) -> f64) {
    let mut path = String::new();
    let mut before = -1.0_f64;
    for at in report.flushes.iter().map(|at| x(*at)).filter(|at| at.is_finite()) {
        if at - before >= 0.5 {
            let _ = write!(path, "M{at:.1} {}V{}", FLUSHES_Y.0, FLUSHES_Y.1);
            before = at;
        }
    }
    let _ = write!(page, "<path d=\"{path}\" class=\"flushes\"/>");
}

fn dot(page: &mut String, result: &StateResult, x: f64) {
    let share =
        if result.unflushed == 0 { 1.0 } else { result.arrived as f64 / result.unflushed as f64 };
    debug_assert!(
        (0.0..=1.0).contains(&share),
        "of the unflushed writes no more arrive than there are: {share}"
    );
    let y = STATES_Y.1 - share * (STATES_Y.1 - STATES_Y.0);
    let (class, radius) =
        if result.verdict == Verdict::Passed { ("good", 3.0) } else { ("bad", 4.0) };
    let title = format!(
        "state {}: cut after {}, {} of {} arrived, {}",
        result.state,
        result.after,
        result.arrived,
        result.unflushed,
        verdict_words(result)
    );
    let _ = write!(
        page,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" \
         class=\"{class}\"><title>{}</title></circle>",
        escape(&title)
    );
}

fn patterns(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>What arrived</h2><p class=\"soft\">Of the writes that no flush had made durable when \
         the power went.</p><table><tr><th>what \
         arrived</th><th>states</th><th>passed</th><th>failed</th></tr>",
    );
    let mut row = |name: &str, states: usize, passed: usize, failed: usize| {
        let class = if failed > 0 { " class=\"bad\"" } else { "" };
        let _ = write!(
            page,
            "<tr><td>{name}</td><td>{states}</td><td>{passed}</td><td{class}>{failed}</td></tr>"
        );
    };
    for count in &report.patterns {
        row(pattern_words(count.pattern), count.states, count.passed, count.failed);
    }
    row("together", report.states, report.passed, report.failed);
    page.push_str("</table>");
}

/// How many failing states are told at length.
const FAILURES_MAX: usize = 50;

fn failures(page: &mut String, report: &Report) {
    if report.failed == 0 {
        return;
    }
    let _ = write!(
        page,
        "<h2>Failed states</h2><p>Again, with the number of a state: <code>{}</code></p>",
        escape(&report.again)
    );
    for (at, result) in report.failures().take(FAILURES_MAX).enumerate() {
        failure(page, result, at < 3);
    }
    if report.failed > FAILURES_MAX {
        let _ = write!(
            page,
            "<p class=\"soft\">And {} more, in the table below.</p>",
            report.failed - FAILURES_MAX
        );
    }
}

fn failure(page: &mut String, result: &StateResult, open: bool) {
    let _ = write!(
        page,
        "<details{}><summary>State {}: {}</summary><p>The power went after operation {}. Of {} \
         that no flush had covered, {} arrived{}. {}</p>",
        if open { " open" } else { "" },
        result.state,
        escape(&verdict_line(result)),
        result.after,
        count(result.unflushed, "write"),
        result.arrived,
        if result.torn == 0 { String::new() } else { format!(", and {} in part", result.torn) },
        match &result.last_acknowledged {
            Some(line) => format!(
                "{} out, the last of them <code>{}</code>.",
                lines_were(result.acknowledged),
                escape(line)
            ),
            None => "Nothing had been acknowledged.".to_owned(),
        }
    );
    if !result.said.is_empty() {
        let _ = write!(page, "<pre>{}</pre>", escape(&result.said));
    }
    if !result.missing.is_empty() {
        missing(page, result);
    }
    page.push_str("</details>");
}

/// Returns `1 write`, `2 writes`.
fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn lines_were(count: usize) -> String {
    if count == 1 { "1 line was".to_owned() } else { format!("{count} lines were") }
}

fn missing(page: &mut String, result: &StateResult) {
    page.push_str(
        "<div class=\"scroll\"><table><tr><th>operation</th><th class=\"text\">file and \
         bytes</th><th>bytes</th><th class=\"text\">what arrived of it</th></tr>",
    );
    for write in &result.missing {
        let arrived = match &*write.arrived {
            [] => "nothing".to_owned(),
            parts => parts
                .iter()
                .map(|part| format!("{}..{}", part.start, part.end))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let file = write.file.as_deref().map_or_else(
            || "<span class=\"soft\">none that the volume knows</span>".to_owned(),
            escape,
        );
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"text wrap\">{file}</td><td>{}</td><td class=\"text \
             wrap\">{arrived}</td></tr>",
            write.operation, write.len
        );
    }
    page.push_str("</table></div>");
}

fn circumstances(page: &mut String, report: &Report) {
    let (work, given) = (&report.recorded, &report.circumstances);
    let volume = match &given.image {
        Some(image) => image.path.display().to_string(),
        None => "fresh".to_owned(),
    };
    let rows = [
        ("command", given.command.join(" ")),
        ("setup", given.setup.clone().unwrap_or_else(|| "none".to_owned())),
        ("checker", report.check.clone()),
        ("volume", format!("{volume}, {}", bedplate::format_size(given.size_bytes))),
        (
            "mount options",
            if given.options.is_empty() { "none".to_owned() } else { given.options.clone() },
        ),
        ("sector, which is never torn", bedplate::format_size(u64::from(given.sector_bytes))),
        ("the command ran for", given.duration()),
        ("device operations", format!("{} to {}", work.first, work.last)),
        ("writes", format!("{}, {}", work.writes, bedplate::format_size(work.written_bytes))),
        ("flushes", work.flushes.to_string()),
        ("acknowledged lines", work.acknowledgements.to_string()),
    ];
    page.push_str("<h2>The run</h2><div class=\"scroll\"><table>");
    for (name, value) in rows {
        let _ =
            write!(page, "<tr><td>{name}</td><td class=\"text wrap\">{}</td></tr>", escape(&value));
    }
    page.push_str("</table></div>");
}

fn all(page: &mut String, report: &Report) {
    let _ = write!(
        page,
        "<h2>All states</h2><details><summary>{}</summary><div \
         class=\"scroll\"><table><tr><th>state</th><th>cut after</th><th class=\"text\">what \
         arrived</th><th>unflushed</th><th>arrived</th><th>torn</th><th>acknowledged</th><th>ms</th><th class=\"text\">checker</th></tr>",
        count(report.states, "state")
    );
    for result in &report.results {
        let class = if result.verdict == Verdict::Passed { "text" } else { "text bad" };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td \
             class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td \
             class=\"{class} wrap\">{}</td></tr>",
            result.state,
            result.after,
            pattern_words(result.pattern),
            result.unflushed,
            result.arrived,
            result.torn,
            result.acknowledged,
            result.duration_ms,
            escape(&verdict_words(result))
        );
    }
    page.push_str("</table></div></details>");
}
