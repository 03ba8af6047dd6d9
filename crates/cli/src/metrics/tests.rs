//! The text that is served: its form, and that the dashboard asks for nothing that is not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate::{BlockDevice, FileSystem, FormatOptions, MemoryDevice, MountOptions, OpenOptions};

use super::*;

/// Where the volume is said to be mounted.
const MOUNT: &str = "/mnt/\"db\"";
/// The label of that, as it is written.
const LABEL: &str = r#"mount="/mnt/\"db\"""#;

/// The text of a volume with two files, one of them with an odd name.
fn told(files: usize) -> String {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { latency_sample: 1, ..MountOptions::default() },
    )
    .unwrap();
    for (name, times) in [("/odd \"name\"\n\\", 9), ("/f", 3)] {
        let file = fs.open(name, &OpenOptions::create()).unwrap();
        (0..times).try_for_each(|at| file.write_at(&[1; 4096], at * 4096).map(drop)).unwrap();
        file.read_at(&mut [0; 4096], 0).unwrap();
        file.sync_data().unwrap();
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(
        &mut text,
        &families::registry(Source::new(fs, None, files, MOUNT.to_owned())),
    )
    .unwrap();
    text
}

/// A sample: its name, its labels as written, its value.
type Sample = (String, String, f64);

/// Reads the text as strictly as `promtool check metrics` does; returns the types and the samples.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let (mut types, mut samples, mut family) = (BTreeMap::new(), Vec::new(), String::new());
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help has words");
            assert!(is_name(name) && name.starts_with("bedplate_") && !words.is_empty(), "{line}");
            family = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, family, "the type follows the help");
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} is told once"
            );
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series
                .split_once('{')
                .map_or((series, ""), |(name, labels)| (name, labels.strip_suffix('}').unwrap()));
            let suffixes: &[&str] = match types[&family].as_str() {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                "gauge" => &[""],
                other => panic!("{family} is a {other}"),
            };
            assert!(
                suffixes.iter().any(|suffix| name == format!("{family}{suffix}")),
                "{line} is not of the family {family}"
            );
            assert!(seen.insert(series.to_owned()), "{series} is told twice");
            let labels = labels.strip_prefix(LABEL).unwrap_or_else(|| panic!("no mount: {line}"));
            let labels = labels.trim_start_matches(',');
            samples.push((name.to_owned(), labels.to_owned(), value.parse().unwrap()));
        }
    }
    (types, samples)
}

fn value(samples: &[Sample], name: &str, labels: &str) -> f64 {
    samples
        .iter()
        .find(|(n, l, _)| n == name && l == labels)
        .unwrap_or_else(|| panic!("no {name} {{{labels}}}"))
        .2
}

#[test]
fn the_text_is_well_formed_and_tells_what_was_done() {
    let (types, samples) = parse(&told(0));
    assert!((value(&samples, "bedplate_writes_total", "") - 12.0).abs() < 0.5);
    assert!((value(&samples, "bedplate_syncs_total", "") - 2.0).abs() < 0.5);
    assert_eq!(types["bedplate_operation_seconds"], "histogram");
    for operation in ["read", "write", "sync"] {
        let of = |name: &str| value(&samples, name, &format!("operation=\"{operation}\""));
        let label = format!("operation=\"{operation}\"");
        let buckets: Vec<f64> = samples
            .iter()
            .filter(|(name, labels, _)| {
                name.ends_with("_seconds_bucket") && labels.contains(&label)
            })
            .map(|sample| sample.2)
            .collect();
        assert!(buckets.len() == 25 && buckets.is_sorted(), "{buckets:?}");
        assert!(
            (buckets[24] - of("bedplate_operation_seconds_count")).abs() < 0.5
                && of("bedplate_operation_seconds_sum") > 0.0
        );
    }
    assert!(!types.contains_key("bedplate_file_reads"), "files only where asked for");
}

#[test]
fn only_the_busiest_files_are_told_of_and_their_names_escaped() {
    let (_, samples) = parse(&told(1));
    let files: Vec<_> =
        samples.iter().filter(|(name, ..)| name == "bedplate_file_writes_total").collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(files[0].1, r#"file="/odd \"name\"\n\\""#);
    assert!((files[0].2 - 9.0).abs() < 0.5);
}

/// Names in a PromQL expression that are ours.
fn names_in(expression: &str) -> impl Iterator<Item = &str> {
    expression
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("bedplate_"))
}

/// What is told of groups only.
fn of_groups() -> impl Iterator<Item = String> {
    [
        "member_operations_total",
        "member_bytes_total",
        "member_errors_total",
        "member_corrected_total",
        "member_active",
        "member_queue_depth",
        "member_busy_seconds_total",
        "member_queued_seconds_total",
        "member_operation_p99_seconds",
        "group_health",
        "group_whole",
        "scrub_period_seconds",
        "scrub_last_timestamp_seconds",
        "scrub_differences_left",
    ]
    .into_iter()
    .map(|name| format!("bedplate_{name}"))
}

/// The alert rules, which are told as they are.
const RULES: &str = include_str!("../../../../contrib/prometheus/bedplate.rules.yml");

#[test]
fn the_alerts_ask_for_nothing_that_is_not_told() {
    let mut known: BTreeSet<String> = parse(&told(0))
        .0
        .into_iter()
        .flat_map(
            |(name, kind)| {
                if kind == "counter" { vec![format!("{name}_total")] } else { vec![name] }
            },
        )
        .collect();
    known.extend(of_groups());
    let mut asked = 0;
    for line in RULES.lines().filter(|line| line.trim_start().starts_with("expr:")) {
        for name in names_in(line) {
            assert!(known.contains(name), "an alert asks for {name}");
            asked += 1;
        }
    }
    assert!(asked > 12, "{asked} names were looked at");
}

/// Runs promtool with a text on its input; `None` where there is none here.
fn promtool(arguments: &[&str], text: &str) -> Option<(bool, String)> {
    let mut child = std::process::Command::new("promtool")
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .ok()?;
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = [ended.stdout, ended.stderr].concat();
    Some((ended.status.success(), String::from_utf8_lossy(&told).into_owned()))
}

#[test]
fn promtool_has_nothing_to_say_of_metrics_and_alerts() {
    let (text, counters) = (told(2), parse(&told(2)).0);
    // It reads the older form, in which a family of counters has the name of its samples.
    let older: Vec<String> = text
        .lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            ["#", word, name, ..] if counters.get(name).is_some_and(|kind| kind == "counter") => {
                line.replacen(&format!("{word} {name}"), &format!("{word} {name}_total"), 1)
            }
            _ => line.to_owned(),
        })
        .collect();
    let Some((clean, said)) = promtool(&["check", "metrics"], &(older.join("\n") + "\n")) else {
        eprintln!("skipped: promtool on metrics: it is not installed (Debian: package prometheus)");
        return;
    };
    assert!(clean && said.is_empty(), "{said}");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus/bedplate.rules.yml");
    let (clean, said) = promtool(&["check", "rules", rules], "").unwrap();
    assert!(clean && said.contains("10 rules found"), "{said}");
}

#[test]
fn the_dashboard_asks_for_nothing_that_is_not_told() {
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../../contrib/grafana/bedplate.json")).unwrap();
    let mut known: BTreeSet<String> =
        parse(&told(2)).1.into_iter().map(|(name, ..)| name).collect();
    known.extend(of_groups());
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            for name in names_in(target["expr"].as_str().unwrap()) {
                assert!(known.contains(name), "the panel '{}' asks for {name}", panel["title"]);
                asked += 1;
            }
        }
    }
    assert!(asked > 20, "{asked} names were looked at");
    for name in dashboard["templating"]["list"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|variable| variable["query"].as_str())
        .flat_map(names_in)
    {
        assert!(known.contains(name), "a variable asks for {name}");
    }
}

#[test]
fn addresses_that_others_could_reach_are_refused() {
    for text in ["0.0.0.0:9180", "192.168.1.1:9180", "[::]:9180"] {
        let failure = text.parse::<MetricsAddress>().unwrap_err();
        assert!(failure.message.contains("others could reach that address"), "{}", failure.message);
    }
    for text in ["9180", "localhost", "unix", ""] {
        assert!(
            text.parse::<MetricsAddress>()
                .unwrap_err()
                .message
                .contains("write unix:PATH or an address"),
            "{text}"
        );
    }
    assert_eq!("127.0.0.1:9180".parse::<MetricsAddress>().unwrap().to_string(), "127.0.0.1:9180");
    assert_eq!(
        "unix:/run/x".parse::<MetricsAddress>().unwrap(),
        MetricsAddress::Unix("/run/x".into())
    );
}
