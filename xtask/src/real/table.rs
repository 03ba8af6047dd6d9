//! The tests of real programs: what each needs, and how long it may take.

use anyhow::Result;

use super::bed::Bed;
use super::needs::Need;
use super::{
    Options, acls, advise, backups, bad_input, branches, convert, crashlab, doctor, edges,
    failing_device, fio, full_volume, guest, leased, leased_fio, mariadb, mixed_open, modes, nbd,
    nfs, nfs_run, outside, package, pages, postgres, ratio, ratio_files, ratio_names, ratio_nbd,
    ratio_programs, ratio_redo, recovery, restricted, scale, scrubs, sqlite, suites, volumes,
};

/// One test of real programs.
pub struct Test {
    pub name: &'static str,
    pub needs: &'static [Need],
    /// How long it may take with the default options, in seconds.
    pub budget_s: u64,
    pub run: fn(&mut Bed, &Options) -> Result<()>,
}

/// Needs that several tests have.
const FUSE: &[Need] = &[Need::Fuse];
const FIO: &[Need] = &[Need::Fuse, Need::Program("fio")];
const SQLITE: &[Need] = &[Need::Fuse, Need::Program("sqlite3")];
const POSTGRES: &[Need] = &[Need::Fuse, Need::Postgres, Need::Program("setpriv")];
const GUEST: &[Need] = &[Need::Program("qemu-system-x86_64"), Need::GuestKernel];
const LOOPS: &[Need] = &[Need::Fuse, Need::Root, Need::Loop];
const ROOT_LOOPS: &[Need] = &[Need::Root, Need::Loop];

const fn test(
    name: &'static str,
    needs: &'static [Need],
    budget_s: u64,
    run: fn(&mut Bed, &Options) -> Result<()>,
) -> Test {
    Test { name, needs, budget_s, run }
}

/// Every test that the check runs.
pub const TESTS: &[Test] = &[
    test("bad-input-not-a-volume", &[], 60, bad_input::not_a_volume),
    test("bad-input-newer-format", &[], 60, bad_input::newer_format),
    test("bad-input-truncated", &[], 60, bad_input::truncated),
    test("bad-input-superblock-a", FUSE, 60, bad_input::superblock_a),
    test("bad-input-superblocks", &[], 60, bad_input::superblocks),
    test("bad-input-too-small", &[], 60, bad_input::too_small),
    test("bad-input-formatted-twice", &[], 60, bad_input::formatted_twice),
    test("bad-input-read-only-device", ROOT_LOOPS, 60, bad_input::read_only_device),
    test("bad-input-busy-device", FUSE, 60, bad_input::busy_device),
    test("bad-input-block-below-sector", ROOT_LOOPS, 60, bad_input::block_below_sector),
    test("bad-input-garbled", &[], 120, bad_input::garbled),
    test("stale-mount", FUSE, 60, recovery::stale_mount),
    test("read-only-mount", FUSE, 60, recovery::read_only_mount),
    test("replaced-file", FUSE, 60, recovery::replaced_file),
    test("separate-log", FUSE, 60, recovery::separate_log),
    test("fio-cached", FIO, 180, fio::cached),
    test("fio-direct", FIO, 180, fio::direct),
    test("fio-concurrent", FIO, 180, fio::concurrent),
    test("fio-concurrent-cache", FIO, 180, fio::concurrent_cache),
    test("fio-o-direct", FIO, 180, fio::o_direct),
    test("failing-device-write", LOOPS, 120, failing_device::write_fails),
    test(
        "failing-device-flush",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("mkfs.ext2")],
        120,
        failing_device::flush_fails,
    ),
    test("mixed-open", FUSE, 120, mixed_open::two_processes),
    test("sqlite-wal", SQLITE, 180, sqlite::wal),
    test("sqlite-rollback", SQLITE, 180, sqlite::rollback),
    test("postgres", POSTGRES, 420, postgres::killed),
    test("leased-postgres", POSTGRES, 420, leased::killed),
    test(
        "leased-mariadb",
        &[
            Need::Fuse,
            Need::Program("mariadb-install-db"),
            Need::Program("mariadbd"),
            Need::Program("mariadb"),
        ],
        300,
        mariadb::killed,
    ),
    test("leased-libaio", FIO, 240, leased_fio::libaio),
    test("checkpoint-clone-postgres", POSTGRES, 120, backups::clone_of_a_live_cluster),
    test("branch-postgres", POSTGRES, 120, branches::of_a_live_cluster),
    test("convert-postgres", POSTGRES, 420, convert::of_a_live_cluster),
    test("backup-postgres", POSTGRES, 120, backups::backups_of_a_live_cluster),
    test("outside-killed", FUSE, 180, outside::killed_in_a_loop),
    test("outside-full-host", &[Need::Fuse, Need::Root], 120, outside::full_host),
    test("outside-image-cut", FUSE, 120, outside::image_cut_short),
    test("outside-device-cut", LOOPS, 120, outside::device_cut_short),
    test("outside-device-detached", LOOPS, 120, outside::device_detached),
    test("outside-two-daemons", FUSE, 120, outside::two_daemons),
    test("crashlab-sqlite", SQLITE, 180, crashlab::sqlite),
    test("crashlab-postgres", POSTGRES, 420, crashlab::postgres),
    test("crashlab-untorn-sqlite", SQLITE, 180, crashlab::sqlite_untorn),
    test("crashlab-untorn-postgres", POSTGRES, 420, crashlab::postgres_untorn),
    test("crashlab-shrink", FIO, 300, crashlab::shrink),
    test(
        "volume-relayout",
        &[Need::Fuse, Need::Program("sqlite3"), Need::Program("fio")],
        240,
        volumes::relayout,
    ),
    test("volume-member-pulled", POSTGRES, 300, volumes::member_pulled),
    test("volume-raid5-member-pulled", POSTGRES, 300, volumes::raid5_member_pulled),
    test(
        "volume-page-checksums",
        &[Need::Program("mariadb-install-db"), Need::Program("mariadbd"), Need::Program("sqlite3")],
        240,
        pages::page_checksums,
    ),
    test("volume-scheduled-scrub", POSTGRES, 300, scrubs::on_schedule),
    test("full-volume", POSTGRES, 300, full_volume::postgres_runs_out),
    test("no-io-uring", FIO, 240, restricted::no_io_uring),
    test("no-io-uring-tests", &[], 600, restricted::no_io_uring_tests),
    test(
        "ordinary-user",
        &[Need::Fuse, Need::Root, Need::Program("setpriv"), Need::Program("fusermount3")],
        120,
        restricted::ordinary_user,
    ),
    test("path-length", &[Need::Program("valgrind")], 1200, |_, _| crate::path_length::check()),
    test(
        "doctor-devices",
        &[Need::Root, Need::Loop, Need::Program("mkfs.ext4"), Need::Program("addpart")],
        60,
        doctor::devices,
    ),
    test("doctor-postgres", &[Need::Postgres, Need::Program("setpriv")], 120, doctor::server),
    test(
        "doctor-mariadb",
        &[Need::Program("mariadb-install-db"), Need::Program("mariadbd"), Need::Program("mariadb")],
        120,
        doctor::mariadb,
    ),
    test(
        "modes-postgres",
        &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        180,
        modes::postgres,
    ),
    test(
        "modes-mariadb",
        &[
            Need::Fuse,
            Need::Program("mariadb-install-db"),
            Need::Program("mariadbd"),
            Need::Program("mariadb"),
        ],
        180,
        modes::mariadb,
    ),
    test(
        "acls",
        &[Need::Fuse, Need::Root, Need::Program("setfacl"), Need::Program("setpriv")],
        120,
        acls::tools,
    ),
    test("edge-descriptors", &[Need::Fuse, Need::Program("prlimit")], 120, edges::few_descriptors),
    test("edge-device-stalled", FUSE, 120, edges::device_stands_still),
    test("scale", FUSE, 300, scale::measure),
    test("advise-sqlite", SQLITE, 240, advise::of_sqlite),
    test(
        "package",
        &[
            Need::Fuse,
            Need::Root,
            Need::Program("dpkg-deb"),
            Need::Program("objcopy"),
            Need::Program("ldd"),
        ],
        300,
        package::in_a_small_root,
    ),
    test("nbd-tools", &[Need::Program("nbdinfo"), Need::Program("qemu-img")], 300, nbd::tools),
    test("nbd-fio", &[Need::Program("fio")], 300, nbd::fio),
    test("nbd-tls", &[Need::Program("nbdinfo")], 300, nbd::tls),
    test("nbd-killed", &[Need::Program("fio"), Need::Program("qemu-img")], 300, nbd::killed),
    test("guest-disk", GUEST, 240, guest::boots_again),
    test("nfs-tools", &[Need::Fuse, Need::Root, Need::Program("nfs-cp")], 300, nfs::tools),
    test("nfs-postgres", &[Need::Fuse, Need::Root, Need::Postgres], 300, nfs_run::postgres),
    test("nfs-killed", &[Need::Fuse, Need::Root, Need::Program("nfs-cp")], 300, nfs::killed),
];

/// Comparisons and measurements that run only when they are named.
pub const MEASUREMENTS: &[Test] = &[
    test(
        "ratio-postgres",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        ratio::postgres,
    ),
    test(
        "ratio-leased-postgres",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        ratio::leased_postgres,
    ),
    test(
        "ratio-redo",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        ratio_redo::redo,
    ),
    test(
        "ratio-nbd",
        &[
            Need::Root,
            Need::Loop,
            Need::Program("fio"),
            Need::Program("nbdkit"),
            Need::Program("qemu-nbd"),
            Need::Program("mkfs.xfs"),
        ],
        1800,
        ratio_nbd::nbd,
    ),
    test(
        "ratio-mariadb",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Program("mariadb-install-db"),
            Need::Program("sysbench"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        ratio_programs::mariadb,
    ),
    test(
        "ratio-rocksdb",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("db_bench"), Need::Program("mkfs.xfs")],
        3600,
        ratio_programs::rocksdb,
    ),
    test(
        "ratio-sqlite",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("sqlite3"), Need::Program("mkfs.xfs")],
        3600,
        ratio_files::sqlite,
    ),
    test(
        "ratio-fio",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("fio"), Need::Program("mkfs.xfs")],
        3600,
        ratio_files::fio,
    ),
    test(
        "ratio-appends",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("mkfs.xfs")],
        3600,
        ratio_files::appends,
    ),
    test(
        "ratio-names",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Program("git"),
            Need::Program("tar"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        ratio_names::names,
    ),
    test(
        "ratio-copies",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Program("mkfs.xfs")],
        3600,
        ratio_names::copies,
    ),
    test(
        "ratio-untorn-postgres",
        &[Need::Fuse, Need::Root, Need::Loop, Need::Postgres, Need::Program("setpriv")],
        3600,
        ratio::untorn_postgres,
    ),
    test(
        "ratio-branch",
        &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        3600,
        branches::against_copies,
    ),
    test(
        "debian-package",
        &[Need::Fuse, Need::Root, Need::Program("debootstrap")],
        1200,
        package::in_debian,
    ),
    test(
        "static-program",
        &[Need::Fuse, Need::Root, Need::Program("musl-gcc"), Need::Program("readelf")],
        3600,
        package::in_an_empty_root,
    ),
    Test {
        name: "suites",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Program("mkfs.xfs"),
            Need::Program("findmnt"),
        ],
        budget_s: 12 * 3600,
        run: suites::compare,
    },
];
