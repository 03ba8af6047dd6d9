//! The advice as text: a table, what a run would take, and one sentence.

use std::fmt;
use std::path::Path;

use bedplate::format_size;
use bedplate_bench::{Advised, DeviceOps, FileClass, Ruling, Standing};
use serde::Serialize;

use super::Told;
use crate::render::text::{self, table};

/// The advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sentence {
    /// The sentence.
    pub sentence: String,
    /// What sets it, on the mount that the files were copied to.
    pub commands: Vec<String>,
}

impl Sentence {
    /// Says what was measured.
    pub fn of(advised: &Advised) -> Self {
        let kernel = &advised.kernel;
        let Some(best) = &advised.best else {
            let most = advised.standings.iter().skip(1).map(|one| one.run.median);
            let most = most.fold(0.0, f64::max);
            return Self {
                sentence: format!("stay on {kernel}: nothing was faster than {most:.2} times"),
                commands: Vec::new(),
            };
        };
        let run = &best.run;
        let spread = format!("{:.2} to {:.2}, {} rounds", run.min, run.max, run.n);
        match advised.ruling {
            Ruling::Move => Self {
                sentence: format!(
                    "{}: {:.2} times as fast as {kernel} ({spread})",
                    settings(advised, best),
                    run.median
                ),
                commands: commands(advised, best),
            },
            Ruling::Stay => Self {
                sentence: format!(
                    "stay on {kernel}: {}, the fastest at first, was {:.2} times as fast when it \
                     was measured again ({spread})",
                    best.label, run.median
                ),
                commands: Vec::new(),
            },
            Ruling::Unclear => Self {
                sentence: format!(
                    "unclear: {} was {:.2} times as fast as {kernel} in the middle, and the rounds \
                     lie too far apart to say more ({spread}): give more --rounds, or measure when \
                     the machine is quieter",
                    best.label, run.median
                ),
                commands: Vec::new(),
            },
        }
    }
}

/// Names that a sentence holds.
const NAMES: usize = 3;

fn settings(advised: &Advised, best: &Standing) -> String {
    let (data, log) = (best.data.as_deref().unwrap_or(""), best.log.as_deref().unwrap_or(""));
    let (datas, logs) = (names(advised, FileClass::Data), names(advised, FileClass::Log));
    let part = |names: &[String], mode: &str| format!("{} in {mode}", listed(names));
    let mut parts = Vec::new();
    if data == log {
        parts.push(part(&[datas, logs].concat(), data));
    } else {
        parts.push(part(&datas, data));
        parts.push(format!("the log {}", part(&logs, log)));
    }
    parts.extend(best.cache_bytes.map(|size| format!("{} of cache", format_size(size))));
    parts.join(", ")
}

fn listed(names: &[String]) -> String {
    match names.len() {
        0 => "the files".to_owned(),
        len if len <= NAMES => names.join(", "),
        len => format!("{} and {} more", names[..NAMES].join(", "), len - NAMES),
    }
}

/// What files of a class are called: their directories where no file of another class lies there.
fn names(advised: &Advised, class: FileClass) -> Vec<String> {
    let parent = |path: &str| Path::new(path).parent().map(Path::to_path_buf);
    let others: Vec<_> = advised
        .files
        .iter()
        .filter(|file| file.class != class)
        .map(|file| parent(&file.path))
        .collect();
    let own: Vec<&str> = advised
        .files
        .iter()
        .filter(|file| file.class == class)
        .map(|file| file.path.as_str())
        .collect();
    let is_apart = class == FileClass::Log
        && !own.is_empty()
        && own.iter().all(|path| !others.contains(&parent(path)));
    let mut names = Vec::new();
    for path in own {
        let path = if is_apart { parent(path) } else { Some(path.into()) };
        let name = path.as_deref().and_then(Path::file_name).map(text::name);
        names.extend(name.filter(|name| !names.contains(name)));
    }
    names
}

fn commands(advised: &Advised, best: &Standing) -> Vec<String> {
    let (Some(data), Some(log)) = (&best.data, &best.log) else { return Vec::new() };
    let cache = best.cache_bytes.map_or_else(String::new, |size| format!(" cache={size}"));
    let mut commands = vec![format!("bedplate tune MOUNT mode={data}{cache}")];
    if data != log {
        let logs = names(advised, FileClass::Log);
        commands.extend(logs.iter().map(|name| format!("bedplate mode -R MOUNT/{name} {log}")));
    }
    commands
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advised = &self.advised;
        let heads = [
            "", "in calls", "calls", "run", "lowest", "highest", "reads", "bytes", "writes",
            "bytes", "flushes",
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(advised.standings.iter().map(row));
        rows.extend(advised.best.iter().map(|best| {
            let mut row = row(best);
            row[0].push_str(", again");
            row
        }));
        f.write_str(&table(&rows, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]))?;
        writeln!(
            f,
            "\ntimes as fast as {}, medians of {} rounds in turns; the device's reads, writes and \
             flushes of one replay",
            advised.kernel, advised.rounds
        )?;
        predicted(advised, f)?;
        remarks(advised, f)?;
        writeln!(f, "\n{}", self.advice.sentence)?;
        for command in &self.advice.commands {
            writeln!(f, "  {command}")?;
        }
        match &self.cut {
            Some(cut) => writeln!(f, "{cut}"),
            None => Ok(()),
        }
    }
}

fn row(standing: &Standing) -> Vec<String> {
    let times = |times: f64| format!("{times:.2}");
    let mut row = vec![standing.label.clone(), format!("{:.2} s", standing.waited_s.median)];
    row.extend([&standing.calls.median, &standing.run.median].map(|value| times(*value)));
    row.extend([standing.run.min, standing.run.max].map(times));
    let told = |ops: DeviceOps| {
        [
            ops.reads.to_string(),
            format_size(ops.read_bytes),
            ops.writes.to_string(),
            format_size(ops.written_bytes),
            ops.flushes.to_string(),
        ]
    };
    row.extend(standing.device.map_or_else(|| [const { String::new() }; 5], told));
    row
}

/// What the whole run would take, and what that rests on.
fn predicted(advised: &Advised, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let run_s = advised.waits.run_ns as f64 / 1e9;
    writeln!(
        f,
        "the run of {run_s:.2} s had a read, write or sync under way in {:.0} % of its time, and \
         each of its threads in {:.0} %",
        advised.waited_share * 100.0,
        advised.thread_share * 100.0
    )?;
    if let Some(best) = &advised.best {
        writeln!(
            f,
            "predicted: {:.2} s with {}, if the run waits whenever a call is under way and all \
             else takes the time that it took",
            run_s / best.run.median.max(f64::MIN_POSITIVE),
            best.label
        )?;
    }
    Ok(())
}

fn remarks(advised: &Advised, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for missing in &advised.missing {
        writeln!(f, "{missing}")?;
    }
    if let Some(traced) = &advised.traced_on
        && *traced != advised.kernel
    {
        writeln!(f, "the traced files lie on {traced}, which was not tried")?;
    }
    let left_out = &advised.left_out;
    let all = [
        (advised.rounded, "calls of each replay were made of the whole blocks around them"),
        (left_out.failed, "calls were left out that failed in the trace"),
        (left_out.sized, "calls were left out that set a size, or copied"),
        (left_out.early, "reads were left out that came before their writes"),
    ];
    for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
        writeln!(f, "{count} {what}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bedplate_bench::{LeftOut, Sorted, Spread};
    use bedplate_trace::Waits;

    use super::*;

    fn standing(label: &str, run: &[f64]) -> Standing {
        Standing {
            label: label.into(),
            data: Some("cached".into()),
            log: Some("concurrent".into()),
            cache_bytes: Some(256 << 20),
            waited_s: Spread::of(&[1.0]),
            calls: Spread::of(run),
            run: Spread::of(run),
            device: None,
        }
    }

    fn advised(best: Option<&[f64]>, ruling: Ruling) -> Advised {
        let sorted = |path: &str, class| Sorted { path: path.into(), class };
        Advised {
            kernel: "xfs".into(),
            traced_on: Some("ext4".into()),
            waits: Waits { run_ns: 2_000_000_000, ..Waits::default() },
            waited_share: 0.5,
            thread_share: 0.25,
            standings: vec![standing("xfs", &[1.0]), standing("cached", &[0.9])],
            best: best.map(|run| standing("cached, log concurrent", run)),
            ruling,
            files: vec![
                sorted("/pg/base/1", FileClass::Data),
                sorted("/pg/wal/1", FileClass::Log),
                sorted("/pg/wal/2", FileClass::Log),
            ],
            rounds: 3,
            missing: Vec::new(),
            left_out: LeftOut::default(),
            rounded: 0,
        }
    }

    #[test]
    fn s_450_the_sentence_claims_no_more_than_the_rounds() {
        let stay = Sentence::of(&advised(None, Ruling::Stay));
        assert_eq!(stay.sentence, "stay on xfs: nothing was faster than 0.90 times");
        let moved = Sentence::of(&advised(Some(&[1.2, 1.3, 1.4]), Ruling::Move));
        assert_eq!(
            moved.sentence,
            "1 in cached, the log wal in concurrent, 256 MiB of cache: 1.30 times as fast as xfs \
             (1.20 to 1.40, 3 rounds)"
        );
        assert_eq!(
            moved.commands,
            [
                "bedplate tune MOUNT mode=cached cache=268435456",
                "bedplate mode -R MOUNT/wal concurrent"
            ]
        );
        let unclear = Sentence::of(&advised(Some(&[0.8, 1.3, 1.4]), Ruling::Unclear));
        assert!(unclear.sentence.starts_with("unclear:"), "{}", unclear.sentence);
        assert!(unclear.commands.is_empty());
        let again = Sentence::of(&advised(Some(&[0.8, 1.0, 1.4]), Ruling::Stay));
        assert!(again.sentence.starts_with("stay on xfs"), "{}", again.sentence);
    }

    #[test]
    fn s_449_a_run_is_predicted_with_what_it_rests_on() {
        let advised = advised(Some(&[1.25]), Ruling::Move);
        let advice = Sentence::of(&advised);
        let told = Told { advised, advice, cut: None }.to_string();
        assert!(told.contains("predicted: 1.60 s"), "{told}");
        assert!(told.contains("in 50 % of its time"), "{told}");
        assert!(told.contains("the traced files lie on ext4, which was not tried"), "{told}");
    }
}
