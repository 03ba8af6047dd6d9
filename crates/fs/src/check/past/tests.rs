//! What contradicts itself in a checkpoint is named, and mended where one answer is right; what is
//! right there stays.

use crate::check::tests::{Forged, delete, put};
use crate::forge::RowImage;
use crate::{
    BlockNo, CheckpointOptions, CheckpointScope, Epoch, FileBlock, FileKind, FileSystem,
    FindingKind, InodeNo, OpenOptions, SetAttr,
};
use bedplate_store::{
    CheckpointRow, DentryRow, ExtentRow, Table, before_key, encode_image, extent_key, inode_key,
    pair_key, scope_key,
};

const PAST: Epoch = Epoch(1);

impl Forged {
    /// A volume with a checkpoint `past`, made before `change`.
    fn with_past(scope: CheckpointScope, change: impl FnOnce(&Self, &FileSystem)) -> Self {
        let v = Self::new();
        let fs = v.mount().unwrap();
        fs.create_checkpoint("past", &CheckpointOptions { scope, ..CheckpointOptions::default() })
            .unwrap();
        change(&v, &fs);
        fs.unmount().unwrap();
        v.finds(&[], true);
        v
    }

    fn of_everything() -> Self {
        Self::with_past(CheckpointScope::Everything, |_, _| {})
    }

    /// Puts what the checkpoint keeps of a row.
    fn keep(&self, table: Table, key: &[u8], row: Option<&[u8]>) {
        self.put(&[put(Table::Before, before_key(PAST, table, key), encode_image(row))]);
    }

    fn past_names(&self, dir: &str) -> Vec<String> {
        let fs = self.mount().unwrap();
        let dir = fs.resolve(format!("/.checkpoints/past/{dir}")).unwrap();
        fs.read_dir(dir.ino, None, 100)
            .unwrap()
            .into_iter()
            .map(|entry| String::from_utf8(entry.name).unwrap())
            .collect()
    }
}

fn chmod(v: &Forged, fs: &FileSystem) {
    fs.set_attr(v.one, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
}

const PLACE: FindingKind = FindingKind::Checkpoint;

#[test]
fn counts_and_values_that_an_image_has_wrong_are_set_right_there() {
    let v = Forged::with_past(CheckpointScope::Everything, chmod);
    let mut row = v.inode(v.one);
    (row.mode, row.nlink, row.blocks) = (0o100_644, 5, 1);
    v.keep(Table::Inode, &inode_key(v.one), Some(&row.encode()));
    v.finds(
        &[
            (PLACE, "in checkpoint 'past' inode"),
            (PLACE, "counts 5 links, 1 were found"),
            (PLACE, "counts 1 allocated"),
        ],
        true,
    );
    let fs = v.mount().unwrap();
    let (then, now) =
        (fs.resolve("/.checkpoints/past/d/one").unwrap(), fs.resolve("/d/one").unwrap());
    assert_eq!((then.mode, then.nlink, then.allocated_bytes), (0o644, 1, 3 * 4096));
    assert_eq!(now.mode, 0o600, "the present is what it was");
}

/// One row that two moments show is told once, and right in both afterwards.
#[test]
fn a_row_that_the_present_shares_with_a_checkpoint_is_told_once_and_mended_in_both() {
    let v = Forged::of_everything();
    v.with_inode(v.one, |row| row.nlink = 5);
    v.put(&[put(
        Table::Dentry,
        pair_key(v.d, b"gone"),
        DentryRow { ino: InodeNo(99), kind: FileKind::File }.encode(),
    )]);
    v.finds(
        &[
            (FindingKind::LinkCount, "counts 5 links"),
            (FindingKind::DanglingName, "'gone' in directory"),
        ],
        true,
    );
    let fs = v.mount().unwrap();
    assert_eq!(fs.resolve("/.checkpoints/past/d/one").unwrap().nlink, 1);
    drop(fs);
    assert_eq!(v.past_names("d"), ["e", "link", "one", "two"]);
}

/// I-CHK-3: a file that lost its name after the checkpoint was made is found under `/lost+found`,
/// and the checkpoint has it where it was.
#[test]
fn i_chk_3_a_repair_of_the_present_leaves_alone_what_a_checkpoint_shows() {
    let v = Forged::of_everything();
    let name = pair_key(v.d, b"one");
    v.keep(Table::Dentry, &name, Some(&v.value(Table::Dentry, &name)));
    v.put(&[delete(Table::Dentry, name)]);
    v.finds(&[(FindingKind::Unreachable, "has no name")], true);
    assert_eq!(
        (v.past_names(""), v.past_names("d")),
        (vec!["d".to_owned()], ["e", "link", "one", "two"].map(str::to_owned).to_vec())
    );
    let fs = v.mount().unwrap();
    let saved = fs.resolve(format!("/lost+found/inode-{}", v.one.0)).unwrap();
    assert_eq!(fs.resolve("/.checkpoints/past/d/one").unwrap().size, saved.size);
}

/// Numbers below its end belong to a checkpoint of everything, whether something has them or not.
#[test]
fn a_repair_gives_no_number_that_a_checkpoint_knows() {
    let v =
        Forged::with_past(CheckpointScope::Everything, |v, fs| fs.unlink(v.d, b"link").unwrap());
    v.put(&[delete(Table::Dentry, pair_key(v.d, b"two"))]);
    v.keep(
        Table::Dentry,
        &pair_key(v.d, b"two"),
        Some(&DentryRow { ino: v.two, kind: FileKind::File }.encode()),
    );
    v.finds(&[(FindingKind::Unreachable, "has no name")], true);
    let fs = v.mount().unwrap();
    assert!(fs.resolve("/lost+found").unwrap().ino > v.link);
    let then = fs.resolve("/.checkpoints/past/d").unwrap();
    assert_eq!(fs.lookup(then.ino, b"link").unwrap().kind, FileKind::Symlink);
}

#[test]
fn rows_that_a_checkpoint_misses_or_has_too_many_are_refused() {
    let v = Forged::of_everything();
    v.keep(Table::Inode, &inode_key(v.two), None);
    v.finds(
        &[(PLACE, "'two' in directory"), (PLACE, "an extent of 3 blocks belongs to inode")],
        false,
    );

    let v = Forged::of_everything();
    v.keep(Table::Dentry, &pair_key(v.d, b"two"), None);
    v.finds(&[(PLACE, "has no name")], false);

    let v = Forged::of_everything();
    v.keep(Table::Inode, &inode_key(InodeNo::ROOT), None);
    v.finds(
        &[(PLACE, "root directory"), (PLACE, "'d' stands in inode 1"), (PLACE, "has no name")],
        false,
    );

    let v = Forged::of_everything();
    let row = DentryRow { ino: v.d, kind: FileKind::Directory };
    v.keep(Table::Dentry, &pair_key(v.e, b"up"), Some(&row.encode()));
    v.finds(
        &[
            (PLACE, "has a second name"),
            (PLACE, "reachable from itself"),
            (PLACE, "counts 2 links, 3 were found"),
        ],
        false,
    );
}

#[test]
fn extents_that_a_checkpoint_cannot_have_are_refused() {
    let v = Forged::of_everything();
    let row = ExtentRow {
        start: BlockNo(5000),
        len: 1,
        state: bedplate_store::ExtentState::Written,
        birth: PAST,
    };
    v.keep(Table::Extent, &extent_key(v.two, FileBlock(1)), Some(&row.encode()));
    v.finds(
        &[
            (PLACE, "two extents over its block 1"),
            (PLACE, "counts 3 allocated blocks, its extents have 4"),
        ],
        false,
    );
}

/// A write in place to an extent that is older than it says would change what the checkpoint shows.
#[test]
fn an_extent_of_the_future_is_taken_for_an_old_one() {
    let v = Forged::new();
    let key = extent_key(v.one, FileBlock(0));
    v.put(&[put(
        Table::Extent,
        key.clone(),
        ExtentRow { birth: Epoch(7), ..v.extent(v.one) }.encode(),
    )]);
    v.finds(&[(FindingKind::Birth, "born in epoch 7, and now is epoch 1")], true);
    let fs = v.mount().unwrap();
    fs.create_checkpoint("past", &CheckpointOptions::default()).unwrap();
    fs.open("/d/one", &OpenOptions::read_write()).unwrap().write_at(&[9; 4096], 0).unwrap();
    let mut buf = [0; 4096];
    fs.open("/.checkpoints/past/d/one", &OpenOptions::read_only())
        .unwrap()
        .read_at(&mut buf, 0)
        .unwrap();
    assert_eq!(buf, [7; 4096]);
    fs.unmount().unwrap();
    v.finds(&[], true);

    // Born after the checkpoint, and yet there is no image of what was there before: nothing tells
    // what it showed.
    let v = Forged::of_everything();
    v.put(&[put(Table::Extent, key, ExtentRow { birth: Epoch(2), ..v.extent(v.one) }.encode())]);
    v.finds(&[(PLACE, "born in epoch 2, after epoch 1 had ended")], false);
}

#[test]
fn what_does_not_belong_to_a_checkpoint_is_named() {
    let v = Forged::of_everything();
    let row = v.inode(v.one);
    v.keep(Table::Inode, &inode_key(InodeNo(5000)), Some(&row.encode()));
    v.finds(
        &[
            (PLACE, "keeps a row of inode 5000"),
            (PLACE, "in checkpoint 'past' inode 5000 (12288"),
            (PLACE, "counts 3 allocated"),
        ],
        false,
    );

    let v = Forged::of_everything();
    v.put(&[put(Table::Scope, scope_key(PAST, v.one), Vec::new())]);
    v.finds(
        &[(FindingKind::Leftover, "is listed for checkpoint 'past', which is of everything")],
        true,
    );

    let v = Forged::of_everything();
    v.with_end(InodeNo(1 << 40));
    v.finds(&[(FindingKind::Setting, "exist or existed")], true);
    let v = Forged::of_everything();
    v.with_end(InodeNo(u64::MAX));
    v.finds(&[(PLACE, "no number of an inode")], false);
}

#[test]
fn a_checkpoint_of_named_files_shows_some_names_and_is_sound() {
    let one = || CheckpointScope::Paths(vec!["/d/one".into(), "/d/e".into()]);
    let v = Forged::with_past(one(), |v, fs| {
        fs.link(v.one, InodeNo::ROOT, b"another name").unwrap();
        chmod(v, fs);
        fs.create_dir_all("/d/e/later").unwrap();
        fs.unlink(v.d, b"one").unwrap();
    });
    assert_eq!(v.past_names("d"), ["e", "one"]);
    v.put(&[put(Table::Scope, scope_key(PAST, InodeNo(77)), Vec::new())]);
    v.finds(&[(PLACE, "there is no inode 77")], false);

    let v = Forged::with_past(one(), |_, _| {});
    v.keep(Table::Extent, &extent_key(v.two, FileBlock(0)), Some(&v.extent(v.two).encode()));
    v.finds(
        &[(PLACE, "keeps a row of inode"), (PLACE, "an extent of 3 blocks belongs to inode")],
        false,
    );

    let v = Forged::with_past(one(), |_, _| {});
    v.put(&[delete(
        Table::Before,
        before_key(PAST, Table::Dentry, &pair_key(InodeNo::ROOT, b"d")),
    )]);
    v.finds(&[(PLACE, "has no name")], false);
}

impl Forged {
    fn with_end(&self, ino_end: InodeNo) {
        let key = PAST.0.to_be_bytes().to_vec();
        let row = CheckpointRow::decode(&self.value(Table::Checkpoint, &key)).unwrap();
        self.put(&[RowImage {
            table: Table::Checkpoint as u8,
            key,
            value: Some(CheckpointRow { ino_end, ..row }.encode()),
        }]);
    }
}
