//! How busy the threads are that serve: in `info`, `explain`, `top` and metrics; their number, live.

use std::os::unix::net::UnixStream;

use crate::harness::{Scratch, bedplate, can_mount, text};
use crate::metrics::ask;

/// Returns the value of a metric of a mount.
fn value(body: &str, name: &str) -> f64 {
    let line = body.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let (_, value) = line.unwrap_or_else(|| panic!("no {name}: {body}")).rsplit_once(' ').unwrap();
    value.parse().unwrap()
}

/// S-507, S-509: every place tells of the same threads, and what they did is counted.
#[test]
fn s_509_threads_are_told_of_everywhere_and_set_live() {
    if !can_mount("the threads of a mount") {
        return;
    }
    let scratch = Scratch::new();
    let socket = scratch.path("metrics.sock");
    let (_, dir) = scratch.mounted(&format!("threads=3,metrics=unix:{}", text(&socket)));
    super::watching::work(&dir.join("busy"), 7);
    let threads = || bedplate(["--json", "info", text(&dir)]).succeeds().json()["threads"].clone();
    let told = threads();
    assert_eq!((&told["threads"], &told["transport"]), (&3.into(), &"device".into()), "{told}");
    let requests = told["total"]["requests"].as_u64().unwrap();
    assert!(requests >= 7 && told["total"]["busy_max"].as_u64().unwrap() >= 1, "S-507: {told}");
    bedplate(["info", text(&dir)]).succeeds().says("threads       3, ");
    bedplate(["tune", text(&dir), "threads=5", "--live"])
        .succeeds()
        .says("threads is 5 (set live), until the unmount");
    assert_eq!(threads()["threads"], 5, "S-508");
    bedplate(["mount", text(&dir), text(&dir), "-o", "remount,threads=6"])
        .succeeds()
        .says("threads=6");
    assert_eq!(threads()["threads"], 6, "S-508");
    bedplate(["tune", text(&dir), "threads=0"]).fails(1, "threads");
    bedplate(["tune", text(&dir), "threads=many"]).fails(1, "threads");
    let (_, body) = ask(UnixStream::connect(&socket).unwrap(), "GET /metrics");
    for (name, least) in [
        ("bedplate_serving_threads", 6.0),
        ("bedplate_serving_threads_busy", 0.0),
        ("bedplate_serving_threads_busy_max", 1.0),
        ("bedplate_serving_threads_all_busy_seconds_total", 0.0),
        ("bedplate_serving_threads_requests_total", requests as f64),
    ] {
        assert!(value(&body, name) >= least, "S-509: {name} in {body}");
    }
    let judged = bedplate(["--json", "explain", text(&dir)]).succeeds().json()["threads"].clone();
    assert_eq!(judged["report"]["threads"], 6, "S-509: {judged}");
    assert!(judged["why"].as_str().unwrap().contains("busy"), "S-509: {judged}");
    bedplate(["explain", text(&dir)]).succeeds().says("threads       ");
    bedplate(["top", text(&dir), "-i", "20ms"])
        .succeeds()
        .says(&format!("threads of {}: 6, ", text(&dir)));
    let report = bedplate(["--json", "top", text(&dir), "-i", "20ms"]).succeeds().json();
    assert_eq!(report["threads"][0]["threads"], 6, "S-509: {report}");
    let report = bedplate(["--json", "iostat", text(&dir)]).succeeds().json();
    let since_mount = report["threads"][0]["requests"].as_u64().unwrap();
    assert!(since_mount >= requests, "S-509: {report}");
}
