//! Tunables, of a mount and of a volume that is not mounted.

use serde_json::Value;

use crate::harness::{Scratch, bedplate, can_mount, text};

fn tunable(document: &Value, name: &str) -> Value {
    document["tunables"]
        .as_array()
        .unwrap()
        .iter()
        .find(|tunable| tunable["name"] == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .clone()
}

#[test]
fn tunables_are_set_live_and_kept_by_the_volume() {
    if !can_mount("tunables") {
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = scratch.mounted("latency-sample=7");
    let all = || bedplate(["--json", "tune", text(&dir)]).succeeds().json();
    let sample = tunable(&all(), "latency-sample");
    assert_eq!((&sample["value"], &sample["by"]), (&7.into(), &"mount_option".into()), "{sample}");
    bedplate(["tune", text(&dir), "cache=16M", "mode=concurrent"])
        .succeeds()
        .says("cache is 16 MiB (volume), now and at every later mount");
    std::fs::write(dir.join("f"), b"text").unwrap();
    bedplate(["mode", text(&dir.join("f"))]).succeeds().says("served as concurrent");
    bedplate(["tune", text(&dir), "cache=32M", "--live"])
        .succeeds()
        .says("cache is 32 MiB (set live), until the unmount; the volume holds 16 MiB");
    bedplate(["tune", text(&dir), "threads=3"])
        .succeeds()
        .says("threads is 3 (volume), now and at every later mount");
    bedplate(["unmount", text(&dir)]).succeeds();
    bedplate(["tune", text(&image), "sync=1s"]).succeeds();
    bedplate(["mount", text(&image), text(&dir)]).succeeds().says("mode concurrent");
    let later = all();
    for (name, value) in [("cache", 16 << 20), ("threads", 3), ("sync", 1_000_000_000_u64)] {
        let found = tunable(&later, name);
        assert_eq!((&found["value"], &found["by"]), (&value.into(), &"volume".into()), "{found}");
    }
    bedplate(["tune", text(&dir)]).succeeds().says("fixed by format").says("volume");
    bedplate(["tune", text(&dir), "cache", "--reset"]).succeeds().says(" MiB (default)");
    bedplate(["tune", text(&dir), "--reset"]).succeeds().says("mode is cached (default)");
    assert!(
        all()["tunables"].as_array().unwrap().iter().all(|tunable| tunable["stored"].is_null())
    );
}

#[test]
fn wrong_tunables_are_refused_in_a_sentence_and_change_nothing() {
    let scratch = Scratch::new();
    let image = scratch.image("volume.img");
    let image = text(&image);
    bedplate(["tune", image, "speed=11"])
        .fails(1, "there is no tunable 'speed': known are mode, cache");
    bedplate(["tune", image, "chace=1M"]).fails(1, "(is 'cache' meant?)");
    bedplate(["tune", image, "cache=1M", "sync=0s"]).fails(1, "sync: 0s is not from 10ms to 1d");
    bedplate(["tune", image, "extent-size=3000"]).fails(1, "a multiple of the block size 4096");
    bedplate(["tune", image, "cache=lots"]).fails(1, "'lots' is not a size");
    bedplate(["tune", image, "read-ahead-min=1G"]).fails(1, "set both");
    bedplate(["tune", image, "log-size=1M"]).fails(1, "cannot be changed");
    bedplate(["tune", image, "cache=1M", "--live"])
        .fails(2, "--live is for a volume that is mounted");
    bedplate(["tune", image, "cache=1M", "cache=2M"]).fails(2, "given twice");
    bedplate(["tune", image, "cache=1M", "sync"]).fails(2, "give a value");
    let told = bedplate(["--json", "tune", image]).succeeds().json();
    assert!(
        told["tunables"].as_array().unwrap().iter().all(|tunable| tunable["stored"].is_null()),
        "{told}"
    );
}
