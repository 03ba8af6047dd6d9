//! Prepared machines with one mistake each.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::facts::memory::HALT_POLL_NS;
use crate::facts::sqlite::header;
use crate::prepared::{DIR, Prepared, found, told};
use crate::report::{Mend, Setting, Sure};
use crate::system::{Copy, System};
use crate::{
    Database, Found, Mysql, Place, Postgres, Promise, Question, Report, apply, examine, rules,
};

/// Asserts that a check, and no other, found something, once.
fn only<'a>(report: &'a Report, name: &str) -> &'a Found {
    assert_eq!(found(report), [name], "{}", told(report));
    &report.findings[0]
}

/// S-350: nothing is found on a machine without mistakes, and every part of it was looked at.
#[test]
fn s_350_a_clean_machine_has_no_findings_and_nothing_unseen() {
    let machine = Prepared::clean();
    for measure in [false, true] {
        let report = examine(&machine, Question { measure, ..Prepared::question() });
        assert!(report.findings.is_empty() && report.unseen.is_empty(), "{}", told(&report));
        assert!(report.fine.len() >= 15, "{}", told(&report));
    }
    let device = examine(&machine, Question::new(Place::Device("/dev/sda1".into())));
    assert!(device.findings.is_empty(), "{}", told(&device));
    assert!(device.unseen.iter().all(|told| told.told.contains("name a directory")));
}

#[test]
fn s_351_a_misaligned_partition_is_found() {
    let machine = Prepared::clean();
    machine.partition("sda", 1, "8:1", 63);
    let report = machine.examine();
    let found = only(&report, "alignment");
    assert_eq!(
        (found.finding.sure, found.finding.at.as_str()),
        (Sure::Certain, "sda1 (partition)")
    );
    assert!(found.finding.measured.contains("3584 bytes behind"), "{found:?}");
    assert!(found.finding.costs.contains("touches 3 physical blocks of 4 KiB instead of 2"));
    assert!(
        found.finding.mend.commands()[0].contains("'2048,' | sfdisk --move-data /dev/sda -N 1"),
        "{found:?}"
    );
    // And what the kernel works out of layers above.
    let machine = Prepared::clean();
    machine.over(
        "dm-0",
        "253:0",
        &["sda1"],
        &[("dm/uuid", "CRYPT-LUKS2-x"), ("alignment_offset", "512\n")],
    );
    machine.mount("253:0", "xfs", "/dev/mapper/data", "rw", "rw");
    machine.superblock_of_xfs("dm-0", 4096);
    let report = machine.examine();
    assert_eq!(only(&report, "alignment").finding.at, "dm-0 (LUKS)");
}

#[test]
fn s_351_log_blocks_below_a_physical_block_are_found() {
    let machine = Prepared::clean();
    machine.mount("8:1", "xfs", "/dev/sda1", "rw", "rw");
    machine.superblock_of_xfs("sda1", 512);
    let report = machine.examine();
    let found = only(&report, "log-block");
    assert!(found.finding.costs.contains("8 times the bytes"), "{found:?}");
    machine.superblock_of_xfs("sda1", 4096);
    assert!(machine.examine().findings.is_empty());
}

#[test]
fn s_351_a_stripe_unit_below_a_page_is_found() {
    let striped = |chunk: &str| {
        let machine = Prepared::clean();
        machine.disk("sdb", "8:16");
        machine.over(
            "md0",
            "9:0",
            &["sda", "sdb"],
            &[("md/level", "raid0\n"), ("md/chunk_size", chunk)],
        );
        machine.mount("9:0", "ext4", "/dev/md0", "rw", "rw");
        machine.superblock_of_ext4("md0", 4096, 0);
        machine
    };
    let report = striped("4096\n").examine();
    let found = only(&report, "stripe-unit");
    assert_eq!(found.finding.at, "md0 (raid0)");
    assert!(found.finding.costs.contains("waits for 2 members"), "{found:?}");
    let good = striped("65536\n");
    assert!(good.examine().findings.is_empty(), "{}", told(&good.examine()));
    // Members on one disk meet there again.
    let machine = striped("65536\n");
    machine.partition("sdb", 1, "8:17", 2048);
    machine.partition("sdb", 2, "8:18", 1 << 20);
    machine.over(
        "md1",
        "9:1",
        &["sdb1", "sdb2"],
        &[("md/level", "raid1\n"), ("md/chunk_size", "0\n")],
    );
    machine.mount("9:1", "ext4", "/dev/md1", "rw", "rw");
    machine.superblock_of_ext4("md1", 4096, 0);
    let report = machine.examine();
    assert!(report.findings.is_empty() && report.unseen.is_empty(), "{}", told(&report));
    // What the file system believes of the RAID.
    good.superblock_of_ext4("md0", 4096, 4);
    let report = good.examine();
    assert!(only(&report, "stripe-hint").finding.mend.commands()[0].contains("stride=16"));
}

#[test]
fn s_351_far_read_ahead_is_found_and_measured_for_certain() {
    let mut machine = Prepared::clean();
    machine.set("sda", "read_ahead_kb", "4096");
    let report = machine.examine();
    let found = only(&report, "read-ahead");
    assert_eq!(found.finding.sure, Sure::Possible);
    assert!(found.finding.costs.contains("up to 4 MiB"), "{found:?}");
    // A file system with a read-ahead of its own is asked for that.
    machine.mount("0:48", "btrfs", "/dev/sda1", "rw", "rw");
    machine.write("/sys/class/bdi/0:48/read_ahead_kb", "128\n");
    assert!(machine.examine().findings.is_empty(), "{}", told(&machine.examine()));
    machine.write("/sys/class/bdi/0:48/read_ahead_kb", "8192\n");
    let report = machine.examine();
    let commands = only(&report, "read-ahead").finding.mend.commands();
    assert_eq!(commands, ["echo 128 > /sys/class/bdi/0:48/read_ahead_kb"]);
    machine.mount("8:1", "ext4", "/dev/sda1", "rw", "rw");
    machine.reads.as_mut().unwrap().random_device_bytes = 100_000.0;
    let report = examine(&machine, Question { measure: true, ..Prepared::question() });
    let found = only(&report, "read-ahead");
    assert_eq!(found.finding.sure, Sure::Certain);
    assert!(found.finding.measured.contains("97.7 KiB each"), "{found:?}");
}

#[test]
fn s_351_large_dirty_limits_are_found() {
    let machine = Prepared::clean();
    machine.counts(12 << 30, 6 << 30, 0, 0);
    machine.write("/proc/sys/vm/dirty_ratio", "20\n");
    machine.write("/proc/sys/vm/dirty_background_ratio", "10\n");
    for name in ["dirty_bytes", "dirty_background_bytes"] {
        machine.write(&format!("/proc/sys/vm/{name}"), "0\n");
    }
    let report = machine.examine();
    let found = only(&report, "dirty-ratio");
    assert!(found.finding.costs.contains("6 GiB"), "{found:?}");
    let Mend::Settings { undo, .. } = &found.finding.mend else { panic!("it is a setting") };
    assert_eq!(
        undo[..],
        [
            Setting::new("/proc/sys/vm/dirty_ratio", &20),
            Setting::new("/proc/sys/vm/dirty_background_ratio", &10)
        ]
    );
}

#[test]
fn s_351_a_cache_that_the_kernel_does_not_flush_is_found() {
    let machine = Prepared::clean();
    machine.set("sda", "write_cache", "write through");
    let report = machine.examine();
    let found = only(&report, "write-cache");
    assert_eq!(found.finding.sure, Sure::Certain);
}

#[test]
fn s_351_a_cache_whose_flush_does_nothing_is_found() {
    let mut machine = Prepared::clean();
    let flush = machine.flush.as_mut().unwrap();
    (flush.dsync_us, flush.fdatasync_us) = (61.0, 66.0);
    let report = machine.examine();
    let found = only(&report, "flush");
    assert_eq!((found.finding.sure, found.finding.at.as_str()), (Sure::Possible, "sda (disk)"));
    machine.set("sda", "rotational", "1");
    assert_eq!(only(&machine.examine(), "flush").finding.sure, Sure::Likely);
    // A device without a volatile cache has nothing to flush.
    machine.set("sda", "write_cache", "write through");
    let dir = "/sys/devices/pci0/block/sda/device/scsi_disk/0:0:0:0";
    machine.write(&format!("{dir}/cache_type"), "write through\n");
    assert!(machine.examine().findings.is_empty(), "{}", told(&machine.examine()));
    let mut machine = Prepared::clean();
    machine.flush.as_mut().unwrap().dsync_flushes = Some(2.0);
    let report = machine.examine();
    let found = only(&report, "flushes");
    assert!(found.finding.mend.commands()[0].contains("wal_sync_method"), "{found:?}");
}

/// What a server of PostgreSQL 15 answers that has nothing to find.
fn answers(sql: &str) -> &'static str {
    match sql {
        sql if sql.contains("pg_settings") => {
            "block_size=8192\nfsync=on\nfull_page_writes=on\nmax_connections=100\n\
             max_wal_size=1024\nserver_version_num=150018\nshared_buffers=16384\n\
             wal_sync_method=fdatasync\n"
        }
        sql if sql.contains("pg_stat_bgwriter") || sql.contains("checkpointer") => "50|3",
        sql if sql.contains("pg_stat_database") => "1000000|1000",
        sql if sql.contains("pg_database_size") => "100000000|0",
        sql if sql.contains("pg_stat_wal") => "100|5000000|0|700",
        sql if sql.contains("pg_extension") => "public\n",
        sql if sql.contains("public.pg_buffercache") => "1663|5|16384|0|0\n1663|5|16384|0|1\n",
        _ => panic!("it is not known what {sql} asks"),
    }
}

/// Asks of a server that answers with other words in places.
fn server(others: &[(&str, &str)]) -> Question {
    let ask = |sql: &str| {
        let other = others.iter().fold(answers(sql).to_owned(), |all, (from, to)| {
            if sql.contains(from) { (*to).to_owned() } else { all.replace(from, to) }
        });
        Ok(other)
    };
    let server = Postgres::ask(&ask).unwrap();
    let database = Some(Database::Postgres(Box::new(server)));
    Question { database, ..Prepared::question() }
}

#[test]
fn s_350_a_clean_server_has_no_findings() {
    let report = examine(&Prepared::clean(), server(&[]));
    assert!(report.findings.is_empty() && report.unseen.is_empty(), "{}", told(&report));
    let looked = ["double-cache", "full-page-writes", "checkpoints", "shared-buffers"];
    let fine = |name: &&str| report.fine.iter().any(|told| told.check == *name);
    assert!(looked.iter().all(fine), "{}", told(&report));
}

#[test]
fn s_351_a_second_copy_in_the_page_cache_is_found_and_counted() {
    let mut machine = Prepared::clean();
    let rows: String = (0..16384).map(|at| format!("1663|5|16384|0|{at}\n")).collect();
    let question = server(&[("pg_buffercache WHERE", &rows)]);
    assert!(examine(&machine, question.clone()).findings.is_empty(), "none is cached");
    // 96 MiB of the file, of 128 MiB in the buffers.
    machine.cached_pages = (96 << 20) / rustix::param::page_size();
    let report = examine(&machine, question);
    let found = only(&report, "double-cache");
    assert!(found.finding.measured.contains("128 MiB") && found.finding.measured.contains("75 %"));
    assert!(found.finding.costs.starts_with("96 MiB of memory, 0.1 %"), "{found:?}");
    assert_eq!(found.finding.sure, Sure::Certain);
    // Without the extension it is told what is missing.
    let report = examine(&machine, server(&[("pg_extension", "")]));
    assert!(report.unseen.iter().any(|told| told.told.contains("CREATE EXTENSION")));
}

#[test]
fn s_351_pages_without_a_guard_are_found_where_nothing_keeps_them_whole() {
    let machine = Prepared::clean();
    let off = || server(&[("full_page_writes=on", "full_page_writes=off")]);
    let report = examine(&machine, off());
    let found = only(&report, "full-page-writes");
    assert_eq!(found.finding.sure, Sure::Certain);
    let promise = |untorn_bytes, is_cached| {
        let mode = if is_cached { "cached" } else { "concurrent" }.to_owned();
        Some(Promise { mode, untorn_bytes, is_cached, integrity: false })
    };
    let with = |question, promise| examine(&machine, Question { promise, ..question });
    assert!(with(off(), promise(8192, false)).findings.is_empty());
    for weak in [promise(4096, false), promise(8192, true)] {
        only(&with(off(), weak), "full-page-writes");
    }
    let images = server(&[("pg_stat_wal", "500|5000000|0|700")]);
    let report = with(images, promise(8192, false));
    assert!(only(&report, "full-page-writes").finding.costs.contains("81 %"));
    machine.set("sda", "atomic_write_unit_max_bytes", "16384");
    let report = examine(&machine, off());
    assert_eq!(only(&report, "full-page-writes").finding.sure, Sure::Likely);
    machine.mount("0:55", "zfs", "tank/db", "rw", "rw");
    let report = examine(&machine, off());
    assert!(report.unseen.iter().any(|told| told.told.contains("recordsize")));
}

#[test]
fn settings_of_a_server_are_found_by_what_it_counted() {
    let huge = "server_version_num=150018\nshared_buffers=1048576";
    for (name, from, to) in [
        ("fsync", "fsync=on", "fsync=off"),
        ("fsync", "fsync=on", "fsync=on\nsynchronous_commit=off"),
        ("checkpoints", "pg_stat_bgwriter", "5|300"),
        ("wal-buffers", "pg_stat_wal", "100|5000000|2000|7000"),
        ("buffer-pages", "server_version_num=150018\nshared_buffers=16384", huge),
        ("io-method", "fsync=on", "fsync=on\nio_method=sync"),
    ] {
        only(&examine(&Prepared::clean(), server(&[(from, to)])), name);
    }
    let machine = Prepared::clean();
    let recycled = [("fsync=on", "fsync=on\nwal_init_zero=on\nwal_recycle=on")];
    assert!(examine(&machine, server(&recycled)).findings.is_empty());
    machine.mount("0:48", "btrfs", "/dev/sda1", "rw", "rw");
    let report = examine(&machine, server(&recycled));
    assert_eq!(only(&report, "wal-files").finding.at, "wal_init_zero, wal_recycle");
    let small = [("pg_stat_database", "1000000|500000"), ("pg_database_size", "9000000000|0")];
    let report = examine(&Prepared::clean(), server(&small));
    assert!(only(&report, "shared-buffers").finding.mend.commands()[0].contains("'8583MB'"));
    // A later version counts elsewhere, and may answer what is not known.
    let later = server(&[
        ("server_version_num=150018", "server_version_num=180001"),
        ("pg_stat_bgwriter", "5|300"),
    ]);
    let report = examine(&Prepared::clean(), later);
    assert!(report.findings.is_empty(), "{}", told(&report));
}

/// Asks of a server of MariaDB that answers with other words in places.
fn mariadb(others: &[(&str, &str)]) -> Question {
    let ask = |sql: &str| {
        let rows = if sql.contains("VARIABLES") {
            "datadir\t/var/lib/db/\ninnodb_buffer_pool_size\t134217728\ninnodb_doublewrite\tON\n\
             innodb_flush_log_at_trx_commit\t1\ninnodb_flush_method\tO_DIRECT\n\
             innodb_log_file_size\t100663296\ninnodb_log_write_ahead_size\t4096\n\
             innodb_page_size\t16384\nversion\t10.11.19-MariaDB"
        } else {
            "Innodb_buffer_pool_pages_free\t7816\nInnodb_buffer_pool_read_requests\t1000000\n\
             Innodb_buffer_pool_reads\t1650\nInnodb_os_log_written\t100000\nUptime\t7200"
        };
        Ok(others.iter().fold(rows.to_owned(), |rows, (from, to)| rows.replace(from, to)))
    };
    let database = Some(Database::Mysql(Box::new(Mysql::ask(&ask).unwrap())));
    Question { database, ..Prepared::question() }
}

#[test]
fn s_351_settings_of_innodb_are_found() {
    let mut machine = Prepared::clean();
    let report = examine(&machine, mariadb(&[]));
    assert!(report.findings.is_empty() && report.unseen.is_empty(), "{}", told(&report));
    for (name, others) in [
        ("innodb-doublewrite", &[("doublewrite\tON", "doublewrite\tOFF")][..]),
        ("innodb-log-block", &[("ahead_size\t4096", "ahead_size\t512")]),
        ("innodb-log-size", &[("log_written\t100000", "log_written\t100000000000")]),
        ("innodb-commit", &[("trx_commit\t1", "trx_commit\t2")]),
        (
            "innodb-buffers",
            &[("pages_free\t7816", "pages_free\t1"), ("pool_reads\t1650", "pool_reads\t500000")],
        ),
    ] {
        only(&examine(&machine, mariadb(others)), name);
    }
    let buffered = || mariadb(&[("O_DIRECT", "fsync")]);
    assert!(examine(&machine, buffered()).findings.is_empty(), "nothing is cached");
    machine.write("/var/lib/db/test/t.ibd", "");
    machine.write("/var/lib/db/ib_logfile0", "");
    machine.cached_pages = (96 << 20) / rustix::param::page_size();
    let report = examine(&machine, buffered());
    let found = only(&report, "innodb-direct");
    assert!(found.finding.measured.contains("96 MiB"), "{found:?}");
    let promise = Some(Promise {
        mode: "concurrent".into(),
        untorn_bytes: 16384,
        is_cached: false,
        integrity: false,
    });
    let off = mariadb(&[("doublewrite\tON", "doublewrite\tOFF")]);
    assert!(examine(&machine, Question { promise, ..off }).findings.is_empty());
}

#[test]
fn a_file_of_sqlite_is_judged_by_its_header() {
    let question = Question {
        database: Some(Database::Sqlite("/var/lib/db/a.db".into())),
        ..Prepared::question()
    };
    let machine = Prepared::clean();
    let examine_file = |bytes: Vec<u8>| {
        machine.write("/var/lib/db/a.db", bytes);
        examine(&machine, question.clone())
    };
    let report = examine_file(header(4096, true, 100_000, 10));
    assert!(report.findings.is_empty() && report.unseen.is_empty(), "{}", told(&report));
    only(&examine_file(header(1024, true, 100_000, 10)), "sqlite-page");
    let report = examine_file(header(4096, false, 100_000, 10));
    let found = only(&report, "sqlite-journal");
    assert!(found.finding.costs.contains("here 2.9 ms or more"), "{found:?}");
    only(&examine_file(header(4096, true, 100_000, 90_000)), "sqlite-free");
    let log = std::fs::File::create(machine.at(Path::new("/var/lib/db/a.db-wal"))).unwrap();
    log.set_len(1 << 30).unwrap();
    only(&examine_file(header(4096, true, 1000, 0)), "sqlite-log");
    let report = examine_file(vec![0; 4096]);
    assert!(report.unseen.iter().any(|told| told.told.contains("is no database of SQLite")));
}

/// Changes a machine.
type Plant = fn(&mut Prepared);

#[test]
fn the_other_checks_find_what_they_are_for() {
    let plants: [(&str, Plant); 10] = [
        ("mount-options", |m| m.mount("8:1", "ext4", "/dev/sda1", "rw", "rw,barrier=0")),
        ("mount-options", |m| m.mount("8:1", "ext4", "/dev/sda1", "rw,sync", "rw")),
        ("file-system-block", |m| m.superblock_of_ext4("sda1", 1024, 0)),
        ("file-system-block", |m| m.superblock_of_ext4("sda1", 16384, 0)),
        ("scheduler", |m| m.set("sda", "scheduler", "none mq-deadline [bfq]")),
        ("nr-requests", |m| m.set("sda", "nr_requests", "4")),
        ("zone-reclaim", |m| m.write("/proc/sys/vm/zone_reclaim_mode", "1")),
        ("io-uring", |m| m.write("/proc/sys/kernel/io_uring_disabled", "2")),
        ("swappiness", |m| {
            m.write("/proc/swaps", "Filename Type\n/dev/sdb partition\n");
            m.counts(1 << 30, 256 << 20, 1000, 0);
        }),
        ("huge-pages", |m| {
            m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never");
            m.write("/sys/kernel/mm/transparent_hugepage/defrag", "[always] defer never");
            m.counts(1 << 30, 256 << 20, 0, 1000);
        }),
    ];
    for (name, plant) in plants {
        let mut machine = Prepared::clean();
        plant(&mut machine);
        only(&machine.examine(), name);
    }
    let mut machine = Prepared::clean();
    machine.write("/proc/cpuinfo", "flags : fpu hypervisor\n");
    assert!(machine.examine().findings.is_empty(), "it wakes fast");
    machine.wake = Ok(Duration::from_micros(90));
    only(&machine.examine(), "vcpu-halt");
    machine.write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
    assert!(machine.examine().findings.is_empty(), "it polls, and is slow for another reason");
    machine.write(HALT_POLL_NS, "0\n");
    only(&machine.examine(), "vcpu-halt");
    machine.write(HALT_POLL_NS, "200000\n");
    assert!(machine.examine().findings.is_empty(), "it polls");
}

/// S-352: a part that is not there, or may not be read, is told with the reason.
#[test]
fn s_352_what_cannot_be_looked_at_is_told_and_not_good() {
    let machine = Prepared::clean();
    std::fs::remove_file(machine.at(Path::new("/proc/vmstat"))).unwrap();
    std::fs::remove_file(machine.at(Path::new("/sys/class/block/sda/queue/nr_requests"))).unwrap();
    std::fs::remove_file(machine.at(Path::new("/dev/sda1"))).unwrap();
    machine.mount("8:1", "xfs", "/dev/sda1", "rw", "rw");
    let report = machine.examine();
    let unseen: Vec<_> = report.unseen.iter().map(|told| (told.check, &*told.told)).collect();
    assert_eq!(
        unseen,
        [
            ("log-block", "the log of XFS: there is no /dev/sda1"),
            ("nr-requests", "there is no /sys/devices/pci0/block/sda/queue/nr_requests"),
            ("dirty-ratio", "there is no /proc/vmstat"),
            ("huge-pages", "there is no /proc/vmstat"),
        ],
        "{}",
        told(&report)
    );
    // A file system without a device that can be found.
    let machine = Prepared::clean();
    machine.mount("0:55", "zfs", "tank/db", "rw", "rw");
    let report = machine.examine();
    let told_of = |name: &str| report.unseen.iter().any(|told| told.check == name);
    assert!(["alignment", "stripe-unit", "read-ahead"].iter().all(|name| told_of(name)));
    assert!(report.unseen[0].told.contains("zfs on tank/db shows no block device"));
    // A copy of a machine is judged by what it holds, and nothing is measured.
    let machine = Prepared::clean();
    machine.partition("sda", 1, "8:1", 63);
    machine.write("/proc/cpuinfo", "flags : fpu hypervisor\n");
    let report = examine(&Copy::new(machine.root()), Prepared::question());
    only(&report, "alignment");
    assert!(report.unseen.iter().any(|told| told.check == "vcpu-halt"), "{}", told(&report));
}

#[test]
fn btrfs_and_what_lies_on_loop_devices_are_followed_to_their_disks() {
    let machine = Prepared::clean();
    machine.mount("0:48", "btrfs", "/dev/sda1", "rw", "rw");
    machine.partition("sda", 1, "8:1", 63);
    only(&machine.examine(), "alignment");
    let machine = Prepared::clean();
    let list = format!(
        "30 20 8:1 / /srv rw - ext4 /dev/sda1 rw\n31 20 7:0 / {DIR} rw - ext4 /dev/loop0 rw\n"
    );
    machine.over(
        "loop0",
        "7:0",
        &[],
        &[
            ("loop/backing_file", "/srv/a.img\n"),
            ("loop/offset", "0\n"),
            ("queue/physical_block_size", "512\n"),
        ],
    );
    machine.write("/proc/self/mountinfo", list);
    machine.superblock_of_ext4("loop0", 4096, 0);
    let report = machine.examine();
    let found = only(&report, "log-block");
    assert_eq!((found.finding.at.as_str(), found.finding.sure), ("loop0 (loop)", Sure::Likely));
}

/// S-353: a fix writes settings that can be taken back, and nothing else.
#[test]
fn s_353_a_fix_writes_settings_and_is_taken_back() {
    let machine = Prepared::clean();
    machine.set("sda", "read_ahead_kb", "4096");
    machine.partition("sda", 1, "8:1", 63);
    let report = machine.examine();
    assert_eq!(found(&report), ["alignment", "read-ahead"]);
    assert_eq!(apply(&machine, &report.findings[0].finding.mend), []);
    let mend = &report.findings[1].finding.mend;
    let fixed = apply(&machine, mend);
    assert!(fixed.len() == 1 && fixed[0].refused.is_none(), "{fixed:?}");
    only(&machine.examine(), "alignment");
    let Mend::Settings { undo, .. } = mend.clone() else { panic!("it is a setting") };
    let keep = String::new();
    let back = Mend::Settings { set: undo.clone(), undo, keep };
    assert!(apply(&machine, &back)[0].refused.is_none());
    assert_eq!(found(&machine.examine()), ["alignment", "read-ahead"]);
    // A file that is not there is not made.
    std::fs::remove_file(machine.at(&fixed[0].setting.path)).unwrap();
    assert!(apply(&machine, mend)[0].refused.is_some());
    assert!(!machine.at(&fixed[0].setting.path).exists());
}

#[test]
fn a_bedplate_mount_is_told_by_its_promises() {
    let machine = Prepared::clean();
    let promise = Promise {
        mode: "concurrent".into(),
        untorn_bytes: 8192,
        is_cached: false,
        integrity: true,
    };
    let report = examine(&machine, Question { promise: Some(promise), ..Prepared::question() });
    let told = report.fine.iter().find(|told| told.check == "bedplate").unwrap();
    assert_eq!(told.told, "mode concurrent, 8 KiB are written untorn, with checksums");
}

#[test]
fn every_rule_has_a_name_of_its_own_and_says_where_it_stands() {
    let rules = rules();
    let names: BTreeSet<_> = rules.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), rules.len());
    assert!(
        rules.iter().all(|rule| ![rule.looks_at, rule.finding_when, rule.source].contains(&""))
    );
}

/// The guide's table is the program's.
#[test]
fn the_guide_has_the_table_of_the_checks() {
    let guide = include_str!("../../../docs/guide/doctor.md");
    let (_, table) = guide.split_once("## The checks").unwrap();
    let listed: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    let rows: Vec<String> = rules()
        .iter()
        .map(|rule| {
            format!(
                "| `{}` | {} | {} | {} |",
                rule.name, rule.looks_at, rule.finding_when, rule.source
            )
        })
        .collect();
    assert_eq!(listed, rows, "the table is:\n{}", rows.join("\n"));
}
