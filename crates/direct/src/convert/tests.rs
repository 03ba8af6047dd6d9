//! Conversions of directories, stopped after every step and gone on with or given up.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::journal::{Journal, Phase, Place, Stopping, Switch, Verify};
use super::*;
use crate::{Error, ErrorKind, Result};

/// A database that notes what it is told, and writes to its file while it runs.
struct Database {
    file: PathBuf,
    is_running: bool,
    passes: usize,
    expected: Duration,
    /// The order that fails.
    fails: Option<&'static str>,
    told: Vec<&'static str>,
}

impl Database {
    fn new(directory: &Path) -> Self {
        let file = directory.join("base/1");
        let told = Vec::new();
        Self { file, is_running: true, passes: 0, expected: Duration::ZERO, fails: None, told }
    }

    fn write(&self, at: u64) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(b"written while it runs", at).unwrap();
    }

    fn order(&mut self, order: &'static str) -> Result<()> {
        self.told.push(order);
        if self.fails == Some(order) {
            let message = format!("the command that is to {order} failed");
            return Err(Error::new(ErrorKind::Failed, message));
        }
        self.is_running = order == "start";
        Ok(())
    }
}

impl Operator for Database {
    fn stop(&mut self, _: &Stopping, expected: Duration) -> Result<()> {
        self.write(77_777);
        self.expected = expected;
        self.order("stop")
    }

    fn start(&mut self, _: &Stopping) -> Result<()> {
        self.order("start")
    }

    fn passed(&mut self, number: usize, _: &Pass) {
        self.passes = number;
        self.write(number as u64 * 1_000_000);
    }
}

const PACE: Pace<'static> = Pace { workers: 3, rate: None };

fn none(_: u64) {}

/// Makes a directory with everything that a copy keeps.
fn filled() -> (TempDir, PathBuf, PathBuf) {
    let scratch = tempfile::Builder::new().prefix("bedplate-convert-").tempdir().unwrap();
    let root = scratch.path().canonicalize().unwrap();
    let source = root.join("main");
    fs::create_dir_all(source.join("base")).unwrap();
    fs::create_dir(source.join("empty")).unwrap();
    fs::write(source.join("base/1"), vec![7; 20_000_001]).unwrap();
    fs::write(source.join("conf"), "port = 1").unwrap();
    fs::hard_link(source.join("conf"), source.join("base/conf.too")).unwrap();
    symlink("../elsewhere", source.join("link")).unwrap();
    fs::set_permissions(source.join("empty"), fs::Permissions::from_mode(0o710)).unwrap();
    let holes = fs::File::create(source.join("holes")).unwrap();
    holes.set_len(1 << 40).unwrap();
    holes.write_all_at(b"end", (1 << 40) - 3).unwrap();
    (scratch, source, root.join("copy"))
}

fn how() -> How {
    let (stop, start) = ("stop".to_owned(), "start".to_owned());
    let stopping = Stopping::Commands { stop, start };
    How { switch: Switch::Link, verify: Verify::All, stopping }
}

fn begun(source: &Path, target: &Path, how: &How) -> (Place, Journal) {
    prepare(source, target, how).unwrap().begin().unwrap()
}

fn carried_out(place: Place, journal: &mut Journal, database: &mut Database) -> Result<Converted> {
    let mut source = Plain(journal.source.clone());
    run(place, journal, &mut source, database, PACE, &none)
}

fn ids(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// Asserts that a directory holds what [`filled`] made and the database wrote.
fn assert_whole(directory: &Path) {
    assert_eq!(fs::read_to_string(directory.join("conf")).unwrap(), "port = 1");
    assert_eq!(ids(&directory.join("conf")), ids(&directory.join("base/conf.too")));
    assert_eq!(fs::read_link(directory.join("link")).unwrap(), Path::new("../elsewhere"));
    let holes = fs::metadata(directory.join("holes")).unwrap();
    assert!(holes.len() == 1 << 40 && holes.blocks() < 1024, "{} blocks", holes.blocks());
    let empty = fs::metadata(directory.join("empty")).unwrap();
    assert_eq!(empty.permissions().mode() & 0o7777, 0o710);
    let database = fs::read(directory.join("base/1")).unwrap();
    assert_eq!(database.len(), 20_000_001);
    assert_eq!(&database[77_777..77_784], b"written");
}

/// S-458: a directory that is written to is copied in passes, and its name leads to the copy only
/// when that is equal; what it was stays beside it; `back` brings what was written since.
#[test]
fn s_458_a_directory_in_use_is_converted_and_back() {
    let (_scratch, source, target) = filled();
    let was = ids(&source);
    let mut database = Database::new(&source);
    let (place, mut journal) = begun(&source, &target, &how());
    let done = carried_out(place, &mut journal, &mut database).unwrap();
    assert_eq!(database.told, ["stop", "start"]);
    assert!(database.passes >= 2 && done.passes.len() == database.passes);
    assert!(database.expected > Duration::ZERO && done.compared > 20_000_000);
    let later: u64 = done.passes[1..].iter().map(|pass| pass.written).sum();
    assert!(later + done.last.written < 1 << 20, "{done:?}");
    assert_eq!(done.leading_out, [Path::new("link")]);
    assert_eq!(fs::read_link(&source).unwrap(), target);
    assert_eq!(ids(&journal.before()), was, "the directory itself lies beside it");
    assert_whole(&source);
    assert_whole(&journal.before());

    let refused = prepare(&source, &target.with_extension("2"), &how()).unwrap_err();
    assert!(refused.message.contains("--back' undoes it"), "{refused}");

    fs::write(target.join("later"), "since").unwrap();
    fs::remove_dir(target.join("empty")).unwrap();
    let (place, mut journal) = prepare_back(&source, &how()).unwrap().begin().unwrap();
    let mut database = Database::new(&target);
    carried_out(place, &mut journal, &mut database).unwrap();
    assert_eq!(ids(&source), was, "the directory has its name again");
    assert!(!source.is_symlink() && !journal.before().exists());
    assert_eq!(fs::read_to_string(source.join("later")).unwrap(), "since");
    assert!(!source.join("empty").exists() && target.join("later").exists());
    assert!(Place::take(&source, false).is_err(), "nothing is left of the journal");
}

/// S-459: a database that does not stop, that does not let go, or whose copy differs is started
/// again where it was, and the name stays.
#[test]
fn s_459_a_failure_before_the_change_of_names_leaves_everything() {
    let (_scratch, source, target) = filled();
    let was = ids(&source);
    let mut database = Database { fails: Some("stop"), ..Database::new(&source) };
    let (place, mut journal) = begun(&source, &target, &how());
    let failed = carried_out(place, &mut journal, &mut database).unwrap_err();
    assert!(failed.message.contains("--continue"), "{failed}");
    assert!(database.told == ["stop"] && ids(&source) == was && !source.is_symlink());
    // What the file system of the copy cannot hold: a name in its way that only the end sees.
    let place = Place::take(&source, false).unwrap();
    let mut journal = place.read().unwrap().unwrap();
    assert_eq!(journal.phase, Phase::Copying);
    fs::create_dir(journal.before()).unwrap();
    fs::write(journal.before().join("mine"), "").unwrap();
    let mut database = Database::new(&source);
    let failed = carried_out(place, &mut journal, &mut database).unwrap_err();
    assert_eq!(database.told, ["stop"], "{failed}");
    assert!(ids(&source) == was && journal.before().join("mine").exists());
    fs::remove_dir_all(journal.before()).unwrap();
    let place = Place::take(&source, false).unwrap();
    let mut journal = place.read().unwrap().unwrap();
    carried_out(place, &mut journal, &mut Database::new(&source)).unwrap();
    assert_whole(&source);
}

/// The journal as a kill at each step leaves it, with the names exchanged or not.
fn killed_at(phase: Phase, is_exchanged: bool) -> (TempDir, PathBuf, PathBuf) {
    let (scratch, source, target) = filled();
    let database = Database::new(&source);
    database.write(77_777);
    let (place, mut journal) = begun(&source, &target, &how());
    if phase >= Phase::Stopped {
        let mut source = Plain(source.clone());
        let mut mirror = mirror::Mirror::new(target.clone(), 2, None);
        mirror.pass(&mut source, &none).unwrap();
    } else {
        fs::write(target.join("half"), "a copy").unwrap();
    }
    journal.phase = phase;
    place.write(&journal).unwrap();
    if is_exchanged {
        switch::change(&journal).unwrap();
    } else if phase == Phase::Switching {
        // Killed between the link and the exchange.
        symlink(&target, journal.before()).unwrap();
    }
    (scratch, source, target)
}

const KILLS: [(Phase, bool); 6] = [
    (Phase::Copying, false),
    (Phase::Stopped, false),
    (Phase::Switching, false),
    (Phase::Switching, true),
    (Phase::Switched, true),
    (Phase::Started, true),
];

/// S-460: killed at any step, the name leads to one whole side, `continue` ends the conversion, and
/// the database is started exactly on what the name leads to.
#[test]
fn s_460_a_conversion_that_was_killed_is_gone_on_with() {
    for (phase, is_exchanged) in KILLS {
        let (_scratch, source, target) = killed_at(phase, is_exchanged);
        assert_whole(&source);
        let place = Place::take(&source, false).unwrap();
        let running = Place::take(&source, false).unwrap_err();
        assert_eq!(running.kind, ErrorKind::Busy, "{running}");
        let mut journal = place.read().unwrap().unwrap();
        let mut database = Database::new(&source);
        carried_out(place, &mut journal, &mut database).unwrap();
        assert_eq!(fs::read_link(&source).unwrap(), target, "{phase:?}");
        assert_eq!(database.told.last(), Some(&"start"), "{phase:?}");
        assert!(!target.join("half").exists());
        assert_whole(&source);
        assert_whole(&journal.before());
    }
}

/// S-460: given up, the directory is what it was and nothing of the copy is left; once the database
/// was started on the copy, it is refused.
#[test]
fn s_460_a_conversion_that_was_killed_is_given_up() {
    for (phase, is_exchanged) in KILLS {
        let (_scratch, source, target) = killed_at(phase, is_exchanged);
        let place = Place::take(&source, false).unwrap();
        let mut journal = place.read().unwrap().unwrap();
        let mut database = Database::new(&source);
        let given_up = abandon(place, &mut journal, &mut database);
        if phase == Phase::Started {
            assert!(given_up.unwrap_err().message.contains("--continue"));
            assert_whole(&source);
            continue;
        }
        given_up.unwrap();
        assert!(!source.is_symlink() && !target.exists() && !journal.before().exists());
        let expected: &[&str] = if phase == Phase::Copying { &[] } else { &["start"] };
        assert_eq!(database.told, expected, "{phase:?}");
        assert_whole(&source);
        assert!(Place::take(&source, false).is_err(), "nothing is left of the journal");
    }
}

/// S-460: a way back that was killed ends on either side, too.
#[test]
fn s_460_a_way_back_that_was_killed_is_ended_or_given_up() {
    let kills = [
        (Phase::Copying, false),
        (Phase::Switching, false),
        (Phase::Switching, true),
        (Phase::Switched, true),
        (Phase::Started, true),
    ];
    for (at, is_given_up) in kills.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let (phase, is_exchanged) = at;
        let (_scratch, source, target) = filled();
        let (place, mut journal) = begun(&source, &target, &how());
        carried_out(place, &mut journal, &mut Database::new(&source)).unwrap();
        let (place, mut journal) = prepare_back(&source, &how()).unwrap().begin().unwrap();
        journal.phase = phase;
        place.write(&journal).unwrap();
        if is_exchanged {
            switch::change(&journal).unwrap();
        }
        drop(place);
        assert_whole(&source);
        let place = Place::take(&source, false).unwrap();
        let mut database = Database::new(&target);
        if is_given_up {
            let given_up = abandon(place, &mut journal, &mut database);
            assert_eq!(given_up.is_ok(), !is_exchanged, "{given_up:?}");
            assert_eq!(source.is_symlink(), !is_exchanged);
            let place = Place::take(&source, false).unwrap();
            let after = place.read().unwrap().unwrap().phase;
            assert_eq!(after, if is_exchanged { phase } else { Phase::Done });
        } else {
            carried_out(place, &mut journal, &mut database).unwrap();
            assert!(!source.is_symlink() && !journal.before().exists());
        }
        assert_whole(&source);
    }
}

/// S-461: what cannot be converted is refused in one sentence before anything is made.
#[test]
fn s_461_what_cannot_be_converted_is_refused() {
    let (scratch, source, target) = filled();
    let refused = |source: &Path, target: &Path, how: &How, words: &str| {
        let error = prepare(source, target, how).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(error.message.lines().count(), 1);
    };
    refused(&source, &source.join("base/in"), &how(), "lies in");
    refused(&source.join("base"), &source.with_file_name(""), &how(), "is not empty");
    refused(&source, &source, &how(), "is not empty");
    refused(&source.join("conf"), &target, &how(), "is not a directory");
    refused(&source.join("missing"), &target, &how(), "missing");
    refused(&source, &scratch.path().join("no/such"), &how(), "no");
    let held = fs::File::options().append(true).open(source.join("conf")).unwrap();
    let alone = How { stopping: Stopping::None, ..how() };
    assert!(prepare(&source, &target, &alone).unwrap().give_up().is_ok(), "its own files");
    drop(held);
    fs::write(source.with_file_name("main.before-convert"), "").unwrap();
    refused(&source, &target, &how(), "is there already");
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// S-459: what another process has open for writing is not taken for stopped.
#[test]
fn s_459_a_process_that_has_a_file_open_is_named() {
    let (_scratch, source, target) = filled();
    let script = "exec 3>>\"$0\"; echo open; read line";
    let mut child = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .arg(source.join("conf"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut told = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut told, &mut line).unwrap();
    let alone = How { stopping: Stopping::None, ..how() };
    let refused = prepare(&source, &target, &alone);
    drop(child.stdin.take());
    child.wait().unwrap();
    let error = refused.unwrap_err();
    assert!(error.message.contains(&format!("({})", child.id())), "{error}");
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(prepare(&source, &target, &alone).is_ok());
}

/// A journal is read from a directory that others may write.
#[test]
fn a_journal_that_makes_no_sense_is_refused() {
    let (_scratch, source, _) = filled();
    let place = Place::take(&source, true).unwrap();
    let path = source.with_file_name(".main.convert").join("journal");
    for text in ["", "{}", "[1]", "\u{0}"] {
        fs::write(&path, text).unwrap();
        let error = place.read().unwrap_err();
        assert!(error.message.contains("makes no sense"), "{error}");
    }
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    assert!(place.read().unwrap_err().message.contains("1073741824 bytes"));
    drop(place);
    let directory = source.with_file_name(".main.convert");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Place::take(&source, false).unwrap_err();
    assert!(error.message.contains("written by others"), "{error}");
}
