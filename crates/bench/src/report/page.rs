//! The page around the sections: what was measured, where, with what, and the ratios that matter
//! first.

use std::fmt::Write;

use super::section::section;
use super::{STYLE, escape};
use crate::papers::paper;
use crate::results::{Results, WorkloadResults};
use crate::summary::summarize;
use crate::target::{Role, TargetInfo};

pub(super) fn html(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Bedplate bench, \
         {}</title><style>{STYLE}</style></head><body><main>",
        escape(&results.started)
    );
    head(&mut page, results);
    glance(&mut page, results);
    results.workloads.iter().for_each(|workload| section(&mut page, workload));
    circumstances(&mut page, results);
    page.push_str("</main></body></html>\n");
    page
}

fn head(page: &mut String, results: &Results) {
    let machine = &results.machine;
    let _ = write!(
        page,
        "<h1>Bedplate bench</h1><p class=\"soft\">{} · {} × {} · {} · Linux {} · Bedplate {}</p>",
        escape(&results.started),
        machine.cpus,
        escape(if machine.cpu_model.is_empty() {
            &machine.architecture
        } else {
            &machine.cpu_model
        }),
        bedplate::format_size(machine.memory_bytes),
        escape(&machine.kernel),
        escape(&results.version)
    );
    if results.interrupted {
        page.push_str(
            "<p class=\"warning\">The run was interrupted; the rounds that were finished are \
             shown.</p>",
        );
    }
    page.push_str("<nav>");
    for workload in &results.workloads {
        let _ = write!(page, "<a href=\"#{0}\">{0}</a>", escape(&workload.name));
    }
    page.push_str("<a href=\"#circumstances\">machine and targets</a></nav>");
}

/// The ratios to the first target, and the papers' beside ours: what most readers came for.
fn glance(page: &mut String, results: &Results) {
    let lines: Vec<String> = results.workloads.iter().filter_map(glance_lines).collect();
    if lines.is_empty() {
        return;
    }
    page.push_str(
        "<h3>The papers beside this machine</h3><p class=\"soft\">Ratios of rates; the machines \
         lie twenty years apart, so nothing else compares. “Here” is the median of the ratios \
         taken within each round.</p><div class=\"scroll\"><table><tr><th>workload</th><th \
         class=\"text\">ratio</th><th>paper</th><th>here</th><th class=\"text\">case</th><th \
         class=\"text\">targets here</th></tr>",
    );
    lines.iter().for_each(|line| page.push_str(line));
    page.push_str("</table></div>");
}

fn glance_lines(workload: &WorkloadResults) -> Option<String> {
    let paper = paper(workload, &summarize(workload))?;
    let line = |line: &crate::papers::PaperLine| {
        format!(
            "<tr><td><a href=\"#{0}\">{0}</a></td><td class=\"text\">{1}</td><td>{2:.2}</td><td \
             class=\"best\">{3:.2}</td><td class=\"text\">{4}</td><td class=\"text\">{5}</td></tr>",
            escape(&workload.name),
            escape(&line.what),
            line.paper,
            line.here,
            escape(&line.case),
            escape(&line.targets)
        )
    };
    Some(paper.lines.iter().map(line).collect::<String>()).filter(|text| !text.is_empty())
}

fn circumstances(page: &mut String, results: &Results) {
    let machine = &results.machine;
    page.push_str("<h2 id=\"circumstances\">Machine and targets</h2>");
    let _ = write!(page, "<p>Command: <code>{}</code></p>", escape(&results.command.join(" ")));
    let yes = |b: bool| if b { "yes" } else { "no" };
    let rows = [
        ("kernel", format!("{} {}", machine.kernel, machine.architecture)),
        ("processors", format!("{} × {}", machine.cpus, machine.cpu_model)),
        ("memory", bedplate::format_size(machine.memory_bytes)),
        ("virtual machine", yes(machine.hypervisor).into()),
        (
            "frequency governor",
            if machine.governor.is_empty() { "none".into() } else { machine.governor.clone() },
        ),
        ("kernel.io_uring_disabled", machine.io_uring_disabled.clone()),
        ("load when it began", machine.load.clone()),
    ];
    page.push_str("<table>");
    for (name, value) in rows {
        let _ = write!(page, "<tr><td>{name}</td><td class=\"text\">{}</td></tr>", escape(&value));
    }
    page.push_str("</table>");
    let mut known: Vec<&TargetInfo> = Vec::new();
    for target in results.workloads.iter().flat_map(|w| &w.targets) {
        if !known.iter().any(|other| other.label == target.label && other.spec == target.spec) {
            known.push(target);
        }
    }
    page.push_str(
        "<div class=\"scroll\"><table><tr><th>target</th><th class=\"text\">part</th><th \
         class=\"text\">given as</th><th class=\"text\">engine</th><th class=\"text\">file \
         system</th><th class=\"text\">device</th><th class=\"text\">operations counted \
         by</th></tr>",
    );
    known.iter().for_each(|target| target_row(page, target));
    page.push_str("</table></div>");
}

fn target_row(page: &mut String, target: &TargetInfo) {
    let places: Vec<String> = target
        .places
        .iter()
        .map(|place| {
            let mut text = vec![place.path.clone()];
            let facts = [&place.device, &place.model, &place.scheduler];
            text.extend(facts.into_iter().filter(|s| !s.is_empty()).cloned());
            if place.logical_block_size > 0 {
                text.push(format!(
                    "sectors {}/{}",
                    place.logical_block_size, place.physical_block_size
                ));
            }
            text.extend(place.volatile_cache.map(|cache| {
                if cache { "volatile cache".into() } else { "no volatile cache".to_owned() }
            }));
            if place.added_latency_us > 0 {
                text.push(format!("{} µs added", place.added_latency_us));
            }
            text.join(", ")
        })
        .collect();
    let _ = write!(
        page,
        "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\"><code>{}</code></td><td \
         class=\"text\">{}</td><td class=\"text wrap\">{}</td><td class=\"text wrap\">{}</td><td \
         class=\"text\">{}</td></tr>",
        escape(&target.label),
        role_words(target.role),
        escape(&target.spec),
        escape(&target.engine),
        escape(target.file_system.as_deref().unwrap_or("none")),
        escape(&places.join("; ")),
        escape(&target.counted_by)
    );
}

fn role_words(role: Role) -> &'static str {
    match role {
        Role::Raw => "raw",
        Role::Buffered => "cached",
        Role::Direct => "direct",
        Role::DirectWhole => "direct, whole-file lock",
        Role::Concurrent => "concurrent",
        Role::ConcurrentCache => "concurrent + cache",
    }
}
