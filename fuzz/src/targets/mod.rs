//! One function a decoder: any bytes in, and nothing out but a panic where a promise is broken.

mod backup;
mod control;
mod fuse;
mod group;
mod image;
mod log;
mod metadata;
mod nbd;
mod nbd_device;
mod nfs;
mod nfs_client;
mod requests;
mod text;
mod trace;
mod vhost;

/// A decoder to be fuzzed.
pub struct Target {
    /// Its name, and that of the directory of its corpus.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 26] = [
    Target { name: "superblock", run: bedplate_fs::forge::decode_superblock },
    Target { name: "label", run: bedplate_volume::Label::decode_any },
    Target { name: "table", run: bedplate_volume::VolumeTable::decode_any },
    Target { name: "group", run: group::run },
    Target { name: "log_head", run: log::head },
    Target { name: "log_records", run: log::records },
    Target { name: "log_ring", run: log::ring },
    Target { name: "rows", run: rows },
    Target { name: "pack", run: pack },
    Target { name: "metadata", run: metadata::run },
    Target { name: "image", run: image::run },
    Target { name: "sizes", run: text::sizes },
    Target { name: "mount_options", run: text::mount_options },
    Target { name: "names", run: text::names },
    Target { name: "fuse", run: fuse::run },
    Target { name: "requests", run: requests::run },
    Target { name: "control_request", run: control::request },
    Target { name: "control_reply", run: control::reply },
    Target { name: "metrics", run: control::metrics },
    Target { name: "backup", run: backup::run },
    Target { name: "nbd", run: nbd::run },
    Target { name: "nbd_device", run: nbd_device::run },
    Target { name: "nfs", run: nfs::run },
    Target { name: "nfs_client", run: nfs_client::run },
    Target { name: "trace", run: trace::run },
    Target { name: "vhost", run: vhost::run },
];

/// Decodes one row: table, length of the key, key, value.
fn rows(data: &[u8]) {
    let mut input = crate::input::Input::new(data);
    let (table, key) = (input.u8(), input.u8());
    bedplate_fs::forge::decode_row(table, input.bytes(key.into()), input.rest());
}

/// Decodes a pack of extents, its checksum made right: which block it begins with, and what is
/// behind the checksum.
fn pack(data: &[u8]) {
    let mut input = crate::input::Input::new(data);
    let first = [0, 7, 1 << 40, u64::MAX - 700][usize::from(input.u8()) % 4];
    bedplate_fs::forge::decode_pack(5, first, input.rest());
}
