//! Manifests of backups that say anything, with a hash that fits: listed, verified and restored.
//!
//! What must hold: what is restored lies where it was asked for and nowhere else, and is what the
//! manifest says; of what is refused the reason is told.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bedplate_cli::forge::Backups;
use tempfile::TempDir;

/// A directory of backups with chunks that stand in an input as `$0` to `$5`: a whole one, a short
/// one, and a damaged one, as they are; a whole one of 4096 bytes, one of 512 whose file holds the
/// frame of that, and one whose file is no frame, compressed.
struct Ground {
    dir: TempDir,
    backups: Backups,
    names: Vec<String>,
}

fn ground() -> Ground {
    let dir = directory();
    let mut whole = vec![7; 1 << 20];
    whole[4096..90_000].fill(0);
    let (backups, names) = Backups::new(
        &dir.path().join("backups"),
        &[
            (&whole, None),
            (b"short", None),
            (b"damaged", None),
            (&[1; 4096], Some(3)),
            (&[2; 512], Some(3)),
            (&[3; 512], Some(3)),
        ],
    );
    let chunks = dir.path().join("backups/chunks");
    let file = |index: usize, ending: &str| {
        let name: &String = &names[index];
        chunks.join(&name[..2]).join(format!("{name}{ending}"))
    };
    fs::write(file(2, ""), b"changed").expect("it is there");
    fs::copy(file(3, ".zst"), file(4, ".zst")).expect("both are there");
    fs::write(file(5, ".zst"), b"no frame").expect("it is there");
    Ground { dir, backups, names }
}

/// A directory in memory where the system has one: everything is synced.
fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("the system has a place for temporary files")
}

/// Takes an input for the lines of a manifest.
pub fn run(data: &[u8]) {
    let ground = ground();
    let lines = with_names(data, &ground.names);
    let around = tempfile::tempdir_in(&ground.dir).expect("there is room");
    let target = around.path().join("target");
    match ground.backups.exercise(&lines, &target) {
        Ok(restored) => {
            assert_eq!(
                fs::read_dir(&around).expect("it is there").count(),
                1,
                "something was restored beside the target"
            );
            let mut seen = HashMap::new();
            for path in &restored.paths {
                let inside = path.is_empty()
                    || path
                        .split(|byte| *byte == b'/')
                        .all(|part| !matches!(part, b"" | b"." | b".."));
                assert!(inside && seen.insert(path, ()).is_none(), "{}", path.escape_ascii());
                let there = fs::symlink_metadata(target.join(std::ffi::OsStr::from_bytes(path)));
                assert!(
                    !restored.whole || there.is_ok(),
                    "{} was restored: {there:?}",
                    path.escape_ascii()
                );
            }
        }
        Err(why) => {
            assert!(why.len() > 10, "{why} explains nothing");
            assert!(!target.exists(), "it was refused and yet restored: {why}");
        }
    }
}

fn with_names(data: &[u8], names: &[String]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(data.len());
    let mut rest = data;
    while let Some((&byte, behind)) = rest.split_first() {
        let number =
            behind.first().map_or(usize::MAX, |digit| usize::from(digit.wrapping_sub(b'0')));
        match names.get(number).filter(|_| byte == b'$') {
            Some(name) => {
                lines.extend_from_slice(name.as_bytes());
                rest = &behind[1..];
            }
            None => {
                lines.push(byte);
                rest = behind;
            }
        }
    }
    lines
}
