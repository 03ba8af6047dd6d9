//! The tests of real programs: what each needs, and how long it may take.

use anyhow::Result;

use super::bed::Bed;
use super::needs::Need;
use super::{
    Options, backups, bad_input, branches, crashlab, doctor, edges, failing_device, fio,
    full_volume, leased, leased_fio, mariadb, mixed_open, nbd, outside, package, pages, postgres,
    ratio, ratio_programs, recovery, restricted, scale, scrubs, sqlite, suites, volumes,
};

/// One test of real programs.
pub struct Test {
    pub name: &'static str,
    pub needs: &'static [Need],
    /// How long it may take with the default options, in seconds.
    pub budget_s: u64,
    pub run: fn(&mut Bed, &Options) -> Result<()>,
}

/// Every test that the check runs.
pub const TESTS: &[Test] = &[
    Test { name: "bad-input-not-a-volume", needs: &[], budget_s: 60, run: bad_input::not_a_volume },
    Test { name: "bad-input-newer-format", needs: &[], budget_s: 60, run: bad_input::newer_format },
    Test { name: "bad-input-truncated", needs: &[], budget_s: 60, run: bad_input::truncated },
    Test {
        name: "bad-input-superblock-a",
        needs: &[Need::Fuse],
        budget_s: 60,
        run: bad_input::superblock_a,
    },
    Test { name: "bad-input-superblocks", needs: &[], budget_s: 60, run: bad_input::superblocks },
    Test { name: "bad-input-too-small", needs: &[], budget_s: 60, run: bad_input::too_small },
    Test {
        name: "bad-input-formatted-twice",
        needs: &[],
        budget_s: 60,
        run: bad_input::formatted_twice,
    },
    Test {
        name: "bad-input-read-only-device",
        needs: &[Need::Root, Need::Loop],
        budget_s: 60,
        run: bad_input::read_only_device,
    },
    Test {
        name: "bad-input-busy-device",
        needs: &[Need::Fuse],
        budget_s: 60,
        run: bad_input::busy_device,
    },
    Test {
        name: "bad-input-block-below-sector",
        needs: &[Need::Root, Need::Loop],
        budget_s: 60,
        run: bad_input::block_below_sector,
    },
    Test { name: "bad-input-garbled", needs: &[], budget_s: 120, run: bad_input::garbled },
    Test { name: "stale-mount", needs: &[Need::Fuse], budget_s: 60, run: recovery::stale_mount },
    Test {
        name: "read-only-mount",
        needs: &[Need::Fuse],
        budget_s: 60,
        run: recovery::read_only_mount,
    },
    Test {
        name: "replaced-file",
        needs: &[Need::Fuse],
        budget_s: 60,
        run: recovery::replaced_file,
    },
    Test { name: "separate-log", needs: &[Need::Fuse], budget_s: 60, run: recovery::separate_log },
    Test {
        name: "fio-cached",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 180,
        run: fio::cached,
    },
    Test {
        name: "fio-direct",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 180,
        run: fio::direct,
    },
    Test {
        name: "fio-concurrent",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 180,
        run: fio::concurrent,
    },
    Test {
        name: "fio-concurrent-cache",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 180,
        run: fio::concurrent_cache,
    },
    Test {
        name: "fio-o-direct",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 180,
        run: fio::o_direct,
    },
    Test {
        name: "failing-device-write",
        needs: &[Need::Fuse, Need::Root, Need::Loop],
        budget_s: 120,
        run: failing_device::write_fails,
    },
    Test {
        name: "failing-device-flush",
        needs: &[Need::Fuse, Need::Root, Need::Loop, Need::Program("mkfs.ext2")],
        budget_s: 120,
        run: failing_device::flush_fails,
    },
    Test {
        name: "mixed-open",
        needs: &[Need::Fuse],
        budget_s: 120,
        run: mixed_open::two_processes,
    },
    Test {
        name: "sqlite-wal",
        needs: &[Need::Fuse, Need::Program("sqlite3")],
        budget_s: 180,
        run: sqlite::wal,
    },
    Test {
        name: "sqlite-rollback",
        needs: &[Need::Fuse, Need::Program("sqlite3")],
        budget_s: 180,
        run: sqlite::rollback,
    },
    Test {
        name: "postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 420,
        run: postgres::killed,
    },
    Test {
        name: "leased-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 420,
        run: leased::killed,
    },
    Test {
        name: "leased-mariadb",
        needs: &[
            Need::Fuse,
            Need::Program("mariadb-install-db"),
            Need::Program("mariadbd"),
            Need::Program("mariadb"),
        ],
        budget_s: 300,
        run: mariadb::killed,
    },
    Test {
        name: "leased-libaio",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 240,
        run: leased_fio::libaio,
    },
    Test {
        name: "checkpoint-clone-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 120,
        run: backups::clone_of_a_live_cluster,
    },
    Test {
        name: "branch-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 120,
        run: branches::of_a_live_cluster,
    },
    Test {
        name: "backup-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 120,
        run: backups::backups_of_a_live_cluster,
    },
    Test {
        name: "outside-killed",
        needs: &[Need::Fuse],
        budget_s: 180,
        run: outside::killed_in_a_loop,
    },
    Test {
        name: "outside-full-host",
        needs: &[Need::Fuse, Need::Root],
        budget_s: 120,
        run: outside::full_host,
    },
    Test {
        name: "outside-image-cut",
        needs: &[Need::Fuse],
        budget_s: 120,
        run: outside::image_cut_short,
    },
    Test {
        name: "outside-device-cut",
        needs: &[Need::Fuse, Need::Root, Need::Loop],
        budget_s: 120,
        run: outside::device_cut_short,
    },
    Test {
        name: "outside-device-detached",
        needs: &[Need::Fuse, Need::Root, Need::Loop],
        budget_s: 120,
        run: outside::device_detached,
    },
    Test {
        name: "outside-two-daemons",
        needs: &[Need::Fuse],
        budget_s: 120,
        run: outside::two_daemons,
    },
    Test {
        name: "crashlab-sqlite",
        needs: &[Need::Fuse, Need::Program("sqlite3")],
        budget_s: 180,
        run: crashlab::sqlite,
    },
    Test {
        name: "crashlab-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 420,
        run: crashlab::postgres,
    },
    Test {
        name: "crashlab-untorn-sqlite",
        needs: &[Need::Fuse, Need::Program("sqlite3")],
        budget_s: 180,
        run: crashlab::sqlite_untorn,
    },
    Test {
        name: "crashlab-untorn-postgres",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 420,
        run: crashlab::postgres_untorn,
    },
    Test {
        name: "volume-relayout",
        needs: &[Need::Fuse, Need::Program("sqlite3"), Need::Program("fio")],
        budget_s: 240,
        run: volumes::relayout,
    },
    Test {
        name: "volume-member-pulled",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 300,
        run: volumes::member_pulled,
    },
    Test {
        name: "volume-raid5-member-pulled",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 300,
        run: volumes::raid5_member_pulled,
    },
    Test {
        name: "volume-page-checksums",
        needs: &[
            Need::Program("mariadb-install-db"),
            Need::Program("mariadbd"),
            Need::Program("sqlite3"),
        ],
        budget_s: 240,
        run: pages::page_checksums,
    },
    Test {
        name: "volume-scheduled-scrub",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 300,
        run: scrubs::on_schedule,
    },
    Test {
        name: "full-volume",
        needs: &[Need::Fuse, Need::Postgres, Need::Program("setpriv")],
        budget_s: 300,
        run: full_volume::postgres_runs_out,
    },
    Test {
        name: "no-io-uring",
        needs: &[Need::Fuse, Need::Program("fio")],
        budget_s: 240,
        run: restricted::no_io_uring,
    },
    Test {
        name: "no-io-uring-tests",
        needs: &[],
        budget_s: 600,
        run: restricted::no_io_uring_tests,
    },
    Test {
        name: "ordinary-user",
        needs: &[Need::Fuse, Need::Root, Need::Program("setpriv"), Need::Program("fusermount3")],
        budget_s: 120,
        run: restricted::ordinary_user,
    },
    Test {
        name: "path-length",
        needs: &[Need::Program("valgrind")],
        budget_s: 1200,
        run: |_, _| crate::path_length::check(),
    },
    Test {
        name: "doctor-devices",
        needs: &[Need::Root, Need::Loop, Need::Program("mkfs.ext4"), Need::Program("addpart")],
        budget_s: 60,
        run: doctor::devices,
    },
    Test {
        name: "doctor-postgres",
        needs: &[Need::Postgres, Need::Program("setpriv")],
        budget_s: 120,
        run: doctor::server,
    },
    Test {
        name: "doctor-mariadb",
        needs: &[
            Need::Program("mariadb-install-db"),
            Need::Program("mariadbd"),
            Need::Program("mariadb"),
        ],
        budget_s: 120,
        run: doctor::mariadb,
    },
    Test {
        name: "edge-descriptors",
        needs: &[Need::Fuse, Need::Program("prlimit")],
        budget_s: 120,
        run: edges::few_descriptors,
    },
    Test {
        name: "edge-device-stalled",
        needs: &[Need::Fuse],
        budget_s: 120,
        run: edges::device_stands_still,
    },
    Test { name: "scale", needs: &[Need::Fuse], budget_s: 300, run: scale::measure },
    Test {
        name: "package",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Program("dpkg-deb"),
            Need::Program("objcopy"),
            Need::Program("ldd"),
        ],
        budget_s: 300,
        run: package::in_a_small_root,
    },
    Test {
        name: "nbd-tools",
        needs: &[Need::Program("nbdinfo"), Need::Program("qemu-img")],
        budget_s: 300,
        run: nbd::tools,
    },
    Test { name: "nbd-fio", needs: &[Need::Program("fio")], budget_s: 300, run: nbd::fio },
    Test { name: "nbd-tls", needs: &[Need::Program("nbdinfo")], budget_s: 300, run: nbd::tls },
    Test {
        name: "nbd-killed",
        needs: &[Need::Program("fio"), Need::Program("qemu-img")],
        budget_s: 300,
        run: nbd::killed,
    },
];

/// Comparisons and measurements that run only when they are named.
pub const MEASUREMENTS: &[Test] = &[
    Test {
        name: "ratio-postgres",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        budget_s: 3600,
        run: ratio::postgres,
    },
    Test {
        name: "ratio-leased-postgres",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Postgres,
            Need::Program("setpriv"),
            Need::Program("mkfs.xfs"),
        ],
        budget_s: 3600,
        run: ratio::leased_postgres,
    },
    Test {
        name: "ratio-mariadb",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Program("mariadb-install-db"),
            Need::Program("sysbench"),
            Need::Program("mkfs.xfs"),
        ],
        budget_s: 3600,
        run: ratio_programs::mariadb,
    },
    Test {
        name: "ratio-rocksdb",
        needs: &[
            Need::Fuse,
            Need::Root,
            Need::Loop,
            Need::Program("db_bench"),
            Need::Program("mkfs.xfs"),
        ],
        budget_s: 3600,
        run: ratio_programs::rocksdb,
    },
    Test {
        name: "ratio-untorn-postgres",
        needs: &[Need::Fuse, Need::Root, Need::Loop, Need::Postgres, Need::Program("setpriv")],
        budget_s: 3600,
        run: ratio::untorn_postgres,
    },
    Test {
        name: "debian-package",
        needs: &[Need::Fuse, Need::Root, Need::Program("debootstrap")],
        budget_s: 1200,
        run: package::in_debian,
    },
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
