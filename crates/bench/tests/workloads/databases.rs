//! Database servers that are not simulated.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bedplate_bench::{Engine, Results, Schedule, Server, Targets, Workload, run_workload};

use super::{SCHEDULE, specs};

fn server(engine: Engine, settings: &[(&str, &str)]) -> Workload {
    let settings =
        settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Workload::Server(Server {
        engine,
        scale: 1,
        clients: vec![2],
        ramp: Duration::from_millis(100),
        settings,
    })
}

/// A directory that a server's own account reaches.
fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

#[test]
fn a_real_database_does_the_transactions_and_leaves_nothing() {
    for (engine, setting) in [
        (Engine::Sqlite, ("synchronous", "OFF")),
        (Engine::Postgresql, ("full_page_writes", "off")),
    ] {
        let directory = open_directory();
        let target = format!("path:{}", directory.path().display());
        let workload = server(engine, &[setting]);
        // What is missing is said when the run begins.
        let targets = Targets::open(&specs(&[&target]), &mut |_| false).unwrap();
        let mut results = Results::begin(vec!["test".into()]);
        // So long that a transaction ends in it on a machine that has other work too.
        let schedule = Schedule { time: Duration::from_secs(2), ..SCHEDULE };
        let run = run_workload(
            &workload,
            &targets,
            &schedule,
            &mut results,
            &AtomicBool::new(false),
            &mut |_| {},
        );
        if let Err(missing) = &run
            && (missing.message.contains("is not installed")
                || missing.message.contains("no user 'postgres'"))
        {
            println!("skipped: {}", missing.message);
            continue;
        }
        run.unwrap();
        let found = &results.workloads[0];
        assert_eq!(found.options[setting.0], setting.1);
        assert!(found.options["database"].contains("SQL"), "{}", found.options["database"]);
        let m = &found.records[0].measurement;
        assert!(m.rate > 0.0 && m.latency["transaction"].count == m.ops && !m.timeline.is_empty());
        drop(targets);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_real_database_needs_a_directory_and_says_why_it_does_not_start() {
    let run = |workload: &Workload, target: &str| {
        let targets = Targets::open(&specs(&[target]), &mut |_| false).unwrap();
        let mut results = Results::begin(vec!["test".into()]);
        run_workload(
            workload,
            &targets,
            &SCHEDULE,
            &mut results,
            &AtomicBool::new(false),
            &mut |_| {},
        )
        .unwrap_err()
        .message
    };
    let said = run(&server(Engine::Sqlite, &[]), "raw:memory:96M");
    assert!(
        said.contains("needs a directory on a mounted file system")
            || said.contains("is not installed"),
        "{said}"
    );
    let directory = open_directory();
    let target = format!("path:{},mode=cached", directory.path().display());
    let said = run(&server(Engine::Sqlite, &[]), &target);
    assert!(
        said.contains("this is no Bedplate mount") || said.contains("is not installed"),
        "{said}"
    );
    let target = format!("path:{}", directory.path().display());
    let said = run(&server(Engine::Postgresql, &[("shared_buffers", "nonsense")]), &target);
    let absent = said.contains("is not installed") || said.contains("no user 'postgres'");
    assert!(
        absent || said.contains("PostgreSQL does not start") && said.contains("shared_buffers"),
        "{said}"
    );
}
