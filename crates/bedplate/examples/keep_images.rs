//! Keeps a volume of every kind that this version writes, for the tests of later versions; files
//! that are there are not replaced.
//!
//! ```sh
//! cargo run --package bedplate --example keep_images
//! ```
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "it runs by hand, in the repository")]

#[path = "../tests/kept/making.rs"]
mod making;
#[path = "../tests/kept/packing.rs"]
mod packing;

use std::path::Path;
use std::sync::Arc;

use bedplate::{FileSystem, Group, ImportOptions, MountOptions, Role};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/images");
    std::fs::create_dir_all(&folder).unwrap();
    for (kind, make) in making::KINDS {
        let devices = make();
        let versions = devices.iter().filter_map(|(_, device)| making::version_of(device));
        let version = versions.map(|(_, version)| version).max().unwrap();
        let path = folder.join(format!("{kind}-v{version}.kept"));
        if path.exists() {
            println!("{}: there", path.display());
            continue;
        }
        let packed = packing::pack(&devices);
        std::fs::write(path.with_extension("txt"), read(&devices)).unwrap();
        std::fs::write(&path, &packed).unwrap();
        println!("{}: {} bytes", path.display(), packed.len());
    }
}

/// Reads all that a volume holds, without writing to it.
fn read(devices: &[packing::Named]) -> String {
    let is_label = making::version_of(&devices[0].1).is_some_and(|(kind, _)| kind == "label");
    let all: Vec<_> = match is_label {
        true => making::members_of(devices),
        false => devices.iter().map(|(_, device)| Arc::clone(device)).collect(),
    };
    let read_only = ImportOptions { read_only: true, ..making::IDLE };
    let group = is_label.then(|| Group::import(&all, &read_only).unwrap());
    let device = group.as_ref().map_or_else(|| all[0].clone(), |g| g.volume(Role::Data).unwrap());
    let log = if is_label { None } else { all.get(1).cloned() };
    let options = MountOptions { read_only: true, ..making::quiet() };
    let fs = FileSystem::mount(device, log, options).unwrap();
    let manifest = making::manifest(&fs);
    fs.unmount().unwrap();
    manifest
}
