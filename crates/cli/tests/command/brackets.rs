//! Checkpoints in a bracket of a database, which is always released.

use crate::harness::{Scratch, bedplate, can_mount, command, run, text};

/// S-84: the database waits while the checkpoint is made and goes on afterwards, whatever fails.
#[test]
fn s_84_a_database_is_bracketed_and_always_released() {
    let scratch = Scratch::new();
    let (image, journal) = (scratch.image("v.img"), scratch.path("journal"));
    let program = |name: &str, freeze: &str| {
        let path = scratch.file(
            name,
            format!(
                "#!/bin/sh\necho $1 >> {}\n[ $1 = thaw ] && exit 0\n{freeze}\n",
                journal.display()
            )
            .as_bytes(),
        );
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        format!("command:{}", text(&path))
    };
    let journaled = || {
        std::fs::read_to_string(&journal)
            .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
            .unwrap_or_default()
    };
    let create = |name: &str, database: &str, timeout: &str| {
        let _old = std::fs::remove_file(&journal);
        bedplate([
            "checkpoint",
            "create",
            text(&image),
            name,
            "--database",
            database,
            "--database-timeout",
            timeout,
        ])
    };
    create("one", &program("good", "exit 0"), "60s").succeeds().says("one");
    assert_eq!(journaled(), "freeze thaw");
    // Nothing waits for a checkpoint that cannot be made.
    create("one", &program("good", "exit 0"), "60s").fails(1, "exists");
    assert_eq!(journaled(), "");
    // The checkpoint fails: released all the same.
    bedplate([
        "checkpoint",
        "create",
        text(&image),
        "none",
        "/none",
        "--database",
        &program("good", "exit 0"),
    ])
    .fails(1, "'none' does not exist");
    assert_eq!(journaled(), "freeze thaw");
    create("two", &program("bad", "echo 'no such table' >&2; exit 3"), "60s")
        .fails(1, "no such table");
    assert_eq!(journaled(), "freeze thaw");
    create("two", &program("slow", "exec sleep 600"), "1s").fails(1, "--database-timeout");
    assert_eq!(journaled(), "freeze thaw", "killed, and thawed all the same");
    // The command is killed while the database waits.
    let _old = std::fs::remove_file(&journal);
    let patient = program("patient", "sleep 1");
    let mut killed =
        command(["checkpoint", "create", text(&image), "killed", "--database", &patient])
            .spawn()
            .unwrap();
    while journaled() != "freeze" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    while journaled() != "freeze thaw" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    create("two", "command:/missing", "60s").fails(1, "does not wait");
    create("two", "mysql:x", "60s").fails(2, "names no database");
    let listed = bedplate(["--json", "checkpoint", "list", text(&image)]).succeeds().json();
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 1, "{listed}");
}

/// A password in the address of a server stood in the process list, as an argument of psql and of
/// the command itself.
#[test]
fn a_password_of_a_database_is_nobodys_to_read() {
    let scratch = Scratch::new();
    let (image, seen, password) =
        (scratch.image("v.img"), scratch.path("seen"), scratch.path("password"));
    let psql = scratch.directory("bin").join("psql");
    let script = "#!/bin/sh\n{ echo \"$@\"; tr '\\0' ' ' </proc/$PPID/cmdline; } >$SEEN\nprintf %s \
                  \"$PGPASSWORD\" >$SEEN_PASSWORD\n[ $REFUSES ] && { echo refused >&2; exit 1; \
                  }\necho bedplate-ready\ncat >/dev/null\n";
    std::fs::write(&psql, script).unwrap();
    std::fs::set_permissions(&psql, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let create = |name: &str, database: &[&str], refuses: &str| {
        let mut command =
            command(["-vvv", "checkpoint", "create", text(&image), name].iter().chain(database));
        let path = format!("{}:{}", text(psql.parent().unwrap()), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .env("SEEN", &seen)
            .env("SEEN_PASSWORD", &password)
            .env("REFUSES", refuses);
        let ran = run(command);
        assert!(
            !ran.stdout().contains("s3cret") && !ran.stderr().contains("s3cret"),
            "{}{}",
            ran.stdout(),
            ran.stderr()
        );
        ran
    };
    create("one", &["--database", "postgresql://me:s3cret%21@host/app"], "").succeeds();
    create("two", &["--database=postgresql:///app?password=s3cret%21&user=me"], "").succeeds();
    assert!(
        create("no", &["--database", "postgresql://me:s3cret%21@host/app"], "1")
            .stderr()
            .contains("it says: refused")
    );
    let told = std::fs::read_to_string(&seen).unwrap();
    assert!(
        told.contains("-d postgresql://me@host/app")
            && told.contains("--database postgresql://me@host/app"),
        "{told}"
    );
    assert!(
        !told.contains("s3cret") && std::fs::read_to_string(&password).unwrap() == "s3cret!",
        "{told}"
    );
    // Neither does what is refused repeat it.
    for wrong in ["postgresql://me:s3cret@x@host", "Postgresql://me:s3cret@host"] {
        assert_eq!(create("no", &["--database", wrong], "").code(), 2);
    }
}

/// S-84: SQLite itself: no connection writes while the checkpoint is made, its log is empty then,
/// and others write afterwards.
#[test]
fn s_84_sqlite_is_bracketed() {
    let sqlite = |path: &std::path::Path, sql: &str| {
        let ran = std::process::Command::new("sqlite3").arg(path).arg(sql).output();
        ran.ok()
            .filter(|ran| ran.status.success())
            .map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
    };
    let scratch = Scratch::new();
    if sqlite(&scratch.path("probe.db"), "SELECT 1").is_none() {
        eprintln!("skipped: SQLite is bracketed: sqlite3 is not installed");
        return;
    }
    if !can_mount("SQLite on a mount") {
        return;
    }
    let (_image, dir) = scratch.mounted("mode=cached");
    let db = dir.join("app.db");
    assert!(
        sqlite(&db, "PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)")
            .is_some()
    );
    let of_sqlite = format!("sqlite:{}", text(&db));
    bedplate(["checkpoint", "create", text(&dir), "then", "--database", &of_sqlite]).succeeds();
    assert!(sqlite(&db, "INSERT INTO t VALUES (2)").is_some(), "it is released");
    let copy = scratch.path("copy.db");
    std::fs::copy(dir.join(".checkpoints/then/app.db"), &copy).unwrap();
    assert_eq!(
        sqlite(&copy, "PRAGMA integrity_check; SELECT count(*) FROM t").as_deref(),
        Some("ok\n1")
    );
    bedplate([
        "checkpoint",
        "create",
        text(&dir),
        "never",
        "--database",
        "sqlite:/missing/x.db",
        "--database-timeout",
        "20s",
    ])
    .fails(1, "no checkpoint was made");
    bedplate(["unmount", text(&dir)]).succeeds();
}
