//! Programs that were not written for us: mapped files, SQLite, tar, git.

use crate::harness::{Mounted, has_program, shell};

/// Maps a file shared, changes it through the mapping, and reads it back in every way.
const MMAP: &str = r#"
import mmap, os, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 65536)
m = mmap.mmap(fd, 65536)
m[0:5] = b"hello"
m[40000:40005] = b"world"
assert os.pread(fd, 5, 0) == b"hello", "a read sees the mapping"
os.pwrite(fd, b"WRITE", 100)
assert m[100:105] == b"WRITE", "the mapping sees a write"
m.flush()
os.fsync(fd)
other = os.open(path, os.O_RDONLY)
assert os.pread(other, 5, 40000) == b"world"
private = mmap.mmap(fd, 65536, flags=mmap.MAP_PRIVATE)
private[0:5] = b"nobod"
assert os.pread(fd, 5, 0) == b"hello", "a private mapping changes nothing"
"#;

#[test]
fn s_43_files_are_mapped_shared_in_every_mode() {
    if !has_program("python3") {
        return;
    }
    for options in crate::data::ALL {
        let Some(m) = Mounted::new(options) else { return };
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), MMAP).unwrap();
        shell(&m, &format!("python3 {} $M/f", script.path().display()));
        let m = m.again(options);
        let content = std::fs::read(m.path("f")).unwrap();
        assert!(
            content[..5] == *b"hello"
                && content[100..105] == *b"WRITE"
                && content[40000..40005] == *b"world",
            "{options}"
        );
        m.finish();
    }
}

#[test]
fn sqlite_lives_on_it_in_both_journal_modes() {
    if !has_program("sqlite3") {
        return;
    }
    for options in crate::data::ALL {
        for journal in ["wal", "delete"] {
            let Some(m) = Mounted::new(options) else { return };
            shell(
                &m,
                &format!(
                    "sqlite3 $M/db 'pragma journal_mode={journal}; create table t(a integer \
                     primary key, b text); with recursive n(i) as (select 1 union all select i+1 \
                     from n where i < 2000) insert into t select i, hex(randomblob(50)) from n; \
                     delete from t where a % 3 = 0; update t set b = b || b where a % 5 = 0; \
                     vacuum;'"
                ),
            );
            let m = m.again(options);
            let said = shell(&m, "sqlite3 $M/db 'pragma integrity_check; select count(*) from t'");
            assert_eq!(said, "ok\n1334\n", "{options}, {journal}");
            m.finish();
        }
    }
}

#[test]
fn archives_and_repositories_come_out_as_they_went_in() {
    if !has_program("tar") || !has_program("git") {
        return;
    }
    for options in ["", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        shell(
            &m,
            "set -e; cd $M; export HOME=$M; git init -q repo; cd repo; git config user.email \
             a@example.org; git config user.name a; for i in $(seq 50); do echo $i > file$i; done; \
             git add .; git commit -qm one; git gc -q; git fsck --strict; cd ..; git clone -q repo \
             clone; tar cf repo.tar repo; mkdir out; tar xf repo.tar -C out; diff -r repo \
             out/repo; diff -r -x .git repo clone",
        );
        let m = m.again(options);
        shell(
            &m,
            "set -e; cd $M; git -c safe.directory='*' -C clone fsck --strict; diff -r repo \
             out/repo",
        );
        m.finish();
    }
}
