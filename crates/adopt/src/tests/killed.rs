//! Conversions and commits whose process is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::image::{Image, alone};
use super::tree::{assert_same, fill_plainly, through_the_kernel, through_the_volume};
use crate::{ErrorKind, State, abandon, commit, make, status};

/// Names the image to the process that is killed, and what it is to do.
const IMAGE: &str = "BEDPLATE_TEST_ADOPT_IMAGE";
const COMMIT: &str = "BEDPLATE_TEST_ADOPT_COMMIT";
const KILLS: u32 = 14;

/// What the process does that is killed; a test of its own has nothing to do.
#[test]
fn work_of_the_process_that_is_killed() {
    let Some(image) = std::env::var_os(IMAGE) else { return };
    let image = Path::new(&image);
    if std::env::var_os(COMMIT).is_some() {
        commit(image).unwrap();
    } else {
        make(image, &|_, _| {}).unwrap();
    }
}

fn start(image: &Path, commits: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::killed::work_of_the_process_that_is_killed"]);
    command.env(IMAGE, image).stdout(Stdio::null()).stderr(Stdio::null());
    if commits {
        command.env(COMMIT, "1");
    }
    command.spawn().unwrap()
}

/// Lets it run for a part of the time that all of it takes, and kills it. Returns whether it had
/// ended.
fn kill_after(mut child: Child, time: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < time {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

fn wait_until_free(image: &Image) {
    crate::device::when_free(&image.path, || crate::device::open(&image.path).map(drop)).unwrap();
}

/// S-599: whenever a conversion or a commit is killed, the old file system is whole, or the volume is,
/// and the same command, or an abandonment, ends it.
#[test]
fn s_599_a_killed_conversion_is_begun_again_or_abandoned() {
    for kind in ["ext4", "xfs"] {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, &[]);
        image.mounted(false, |dir| fill_plainly(dir, 200, |number| 300 * number as usize));
        let tree = image.mounted(true, through_the_kernel);
        let started = Instant::now();
        assert!(start(&image.path, false).wait().unwrap().success());
        let whole = started.elapsed();
        abandon(&image.path).unwrap();
        let mut seen = Vec::new();
        for turn in 1..=KILLS {
            let ended = kill_after(start(&image.path, false), whole * turn / KILLS);
            wait_until_free(&image);
            let state = status(&image.path).unwrap().state;
            assert!(state == State::Made || (state == State::None && !ended), "S-599: {state:?}");
            assert_same(&tree, &image.mounted(false, through_the_kernel));
            image.check_old();
            // The mount for writing replayed what the kill left; the conversion is of before it.
            let had_volume = match abandon(&image.path) {
                Ok(abandoned) => Some(abandoned.had_volume),
                Err(error) => {
                    let is_none = error.kind == ErrorKind::NotFound && state == State::None;
                    assert!(is_none, "S-599: {error}");
                    None
                }
            };
            seen.push((state, had_volume));
            image.check_old();
        }
        println!("{kind}: {seen:?}");
        // Begun again without an abandonment.
        kill_after(start(&image.path, false), whole / 2);
        wait_until_free(&image);
        if status(&image.path).unwrap().state == State::None {
            make(&image.path, &|_, _| {}).unwrap();
        }
        kill_after(start(&image.path, true), whole / 10);
        wait_until_free(&image);
        match commit(&image.path) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind, ErrorKind::Committed, "S-599: {error}"),
        }
        let device = crate::device::open(&image.path).unwrap();
        assert_same(&tree, &through_the_volume(&device));
    }
}
