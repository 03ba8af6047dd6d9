//! Images: of checkpoints, and of what other file systems have in their place.

use std::sync::atomic::AtomicBool;

use bedplate_bench::{Images, Results, Targets, Workload, run_workload};

use super::{SCHEDULE, measure, specs};

#[test]
fn images_are_made_cloned_counted_and_removed() {
    let workload =
        Images { sizes_bytes: vec![4 << 20, 32 << 20], pieces: 16, extents: 500, many: 12 };
    let found =
        measure(&Workload::Images(workload.clone()), &["volume:memory:96M", "raw=raw:memory:96M"]);
    assert_eq!((found.cases.len(), found.skipped.len()), (4, 4), "a raw device keeps no image");
    for record in &found.records {
        let m = &record.measurement;
        let expected = if found.cases[record.case].name.starts_with("the last of 12") {
            vec![
                "all listed µs",
                "each other removed µs",
                "the first made µs",
                "the last made µs",
                "the middle one removed µs",
            ]
        } else {
            let of = ["clone", "image of everything", "image of the file"];
            of.iter()
                .flat_map(|what| [format!("{what} made µs"), format!("{what} removed µs")])
                .map(|name| &*name.leak())
                .collect()
        };
        assert_eq!(m.figures.keys().map(String::as_str).collect::<Vec<_>>(), expected);
        assert!(
            m.figures.values().all(|value| *value > 0.0) && m.latency["image"].count == m.ops,
            "{:?}",
            m.figures
        );
    }
    for refused in [
        Images { sizes_bytes: vec![1 << 20], pieces: 64, ..workload.clone() },
        Images { many: 1, ..workload.clone() },
        Images { sizes_bytes: vec![], extents: 0, many: 0, ..workload },
    ] {
        let targets = Targets::open(&specs(&["volume:memory:96M"]), &mut |_| false).unwrap();
        let mut results = Results::begin(vec![]);
        run_workload(
            &Workload::Images(refused),
            &targets,
            &SCHEDULE,
            &mut results,
            &AtomicBool::new(false),
            &mut |_| {},
        )
        .unwrap_err();
    }
}

/// A file system on a loop device that goes away with it.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Says why there is none.
    fn btrfs() -> Result<Self, String> {
        let directory = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, at) = (directory.path().join("image"), directory.path().join("at"));
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let done = std::process::Command::new(program)
                .args(arguments)
                .output()
                .map_err(|e| format!("{program} cannot run: {e}"))?;
            if done.status.success() {
                Ok(())
            } else {
                Err(format!(
                    "{program}: {}",
                    String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ")
                ))
            }
        };
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()])?;
        Ok(Self(directory))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("at")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg(self.path()).status().unwrap();
    }
}

#[test]
fn snapshots_of_btrfs_are_images_of_everything_and_go_away() {
    let mounted = match Mounted::btrfs() {
        Ok(mounted) => mounted,
        Err(reason) => {
            println!("skipped: no btrfs to make snapshots on: {reason}");
            return;
        }
    };
    let workload = Images { sizes_bytes: vec![4 << 20], pieces: 16, extents: 100, many: 5 };
    let found = measure(
        &Workload::Images(workload),
        &[&format!("path:{},buffered", mounted.path().display())],
    );
    let few = &found.records[0].measurement.figures;
    assert!(
        few["image of everything made µs"] > 0.0 && few["image of the file made µs"] > 0.0,
        "{few:?}"
    );
    assert!(found.records[2].measurement.figures["the middle one removed µs"] > 0.0);
    assert_eq!(std::fs::read_dir(mounted.path()).unwrap().count(), 0, "no subvolume is left");
}
