//! Gathers rows from what is left of the metadata, best first.
//!
//! 1. The present commit, page by page: a page with the right checksum is taken as it is, whatever
//!    its neighbours look like.
//! 2. For keys that are lost there, the commit before: its pages are often still whole. What it
//!    says may be older.
//! 3. For keys that are lost there too, every page of the region that looks like a leaf. Nothing
//!    tells how old it is.
//! 4. The intent log over all of it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};

use super::pages::{self, Gap, PAGE, Slot, TreeFile, Walked};
use crate::{FileBlock, InodeNo};
use bedplate_store::{
    DentryRow, ExtentRow, HomeWrites, InodeRow, LogParts, LogPosition, POSITION, Region, Table,
    extent_key, replay, split_extent_key, split_key, table_name, unpack,
};

/// Rows of one table.
pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What was gathered.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    tables: BTreeMap<Table, Rows>,
    /// Rows that may be older than the volume was.
    pub(super) doubtful: HashSet<(Table, Vec<u8>)>,
    /// What is missing or doubtful, one sentence each.
    pub(super) losses: Vec<String>,
    /// Data that the log has and its place may not have.
    pub(super) homes: HomeWrites,
}

impl Gathered {
    pub(super) fn table(&self, table: Table) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.tables
            .get(&table)
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<&[u8]> {
        self.tables.get(&table)?.get(key).map(Vec::as_slice)
    }

    pub(super) fn range(
        &self,
        table: Table,
        range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.tables
            .get(&table)
            .into_iter()
            .flat_map(move |rows| rows.range(range.clone()))
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    fn rows(&mut self, table: Table) -> &mut Rows {
        self.tables.entry(table).or_default()
    }
}

/// Gathers from a volume whose superblock is known.
pub(super) fn from_volume(region: &Region, log: Option<&LogParts>) -> Gathered {
    let mut gathered = Gathered::default();
    let mut gaps = from_tree(region, &mut gathered);
    if gaps.values().any(|gaps| !gaps.is_empty()) {
        let superblock = region.superblock();
        let mut at = 0;
        let mut next = || {
            let mut page = vec![0; PAGE];
            let more = at + PAGE as u64 <= superblock.metadata_len;
            let read = more && region.read(at, &mut page).is_ok();
            at += PAGE as u64;
            more.then_some(if read { page } else { Vec::new() })
        };
        from_leaves(&mut next, &mut gaps, &mut gathered);
    }
    from_log(log, &mut gathered);
    gathered
}

/// Gathers from a device of which nothing is known, every page that looks like a leaf.
pub(super) fn from_device(device: &Arc<dyn BlockDevice>) -> Gathered {
    let mut gathered = Gathered::default();
    let everything =
        |_| vec![Gap { after: None, upto: None, reason: "both superblocks are lost".to_owned() }];
    let mut gaps = Table::ALL.into_iter().map(|table| (table, everything(table))).collect();
    let mut at = 0;
    let mut buf = AlignedBuf::zeroed(PAGE.max(device.geometry().logical_block_size as usize));
    let mut next = || {
        let more = at + buf.len() as u64 <= device.size_bytes();
        let read = more && device.read_at(&mut buf, at).is_ok();
        at += buf.len() as u64;
        more.then(|| if read { buf[..PAGE].to_vec() } else { Vec::new() })
    };
    from_leaves(&mut next, &mut gaps, &mut gathered);
    gathered.losses.push(
        "both superblocks are lost: files are put together from every page that looks like \
         metadata, some of it may be old"
            .to_owned(),
    );
    gathered
}

type Gaps = BTreeMap<Table, Vec<Gap>>;

/// Steps 1 and 2; returns what is still missing.
fn from_tree(region: &Region, gathered: &mut Gathered) -> Gaps {
    let whole = |reason: &str| {
        Table::ALL
            .into_iter()
            .map(|table| (table, vec![Gap { after: None, upto: None, reason: reason.to_owned() }]))
            .collect()
    };
    let Some((file, slots)) = TreeFile::open(region) else {
        gathered.losses.push("the head of the metadata tree cannot be read".to_owned());
        return whole("the head of the metadata tree cannot be read");
    };
    let mut gaps: Gaps = whole("no commit of the metadata tree can be read");
    for (number, slot) in slots.iter().enumerate() {
        if gaps.values().all(Vec::is_empty) {
            break;
        }
        let older = number > 0;
        for table in Table::ALL {
            let missing = std::mem::take(gaps.entry(table).or_default());
            gaps.insert(table, fill(&file, slot, table, missing, older, gathered));
        }
    }
    gaps
}

/// Fills the gaps of a table from one commit; returns what is still missing.
fn fill(
    file: &TreeFile<'_>,
    slot: &Slot,
    table: Table,
    missing: Vec<Gap>,
    older: bool,
    gathered: &mut Gathered,
) -> Vec<Gap> {
    if missing.is_empty() {
        return missing;
    }
    let (tables, lost) = file.tables(slot);
    let Some((_, root)) = tables.into_iter().find(|(name, _)| name == table_name(table).as_bytes())
    else {
        // Not in the list: the part of the list that would hold it is lost, or the commit has no
        // such table.
        return if lost.is_empty() && slot.intact && !older { Vec::new() } else { missing };
    };
    let Some(root) = root else { return Vec::new() };
    let mut walked = file.walk(root);
    if table == Table::Extent {
        take_apart(&mut walked, gathered);
    }
    for (key, value) in walked.rows {
        if missing.iter().any(|gap| gap.holds(&key)) {
            if older {
                gathered.doubtful.insert((table, key.clone()));
            }
            gathered.rows(table).entry(key).or_insert(value);
        }
    }
    for gap in &walked.gaps {
        let commit = if older { "an older commit" } else { "the present commit" };
        gathered.losses.push(format!(
            "{} of the table '{}' are lost in {commit} ({})",
            "rows",
            table_name(table),
            gap.reason
        ));
    }
    // What neither knows is missing still: the gaps of this commit within the gaps before.
    if older {
        missing
            .into_iter()
            .filter(|before| walked.gaps.iter().any(|gap| overlaps(gap, before)))
            .collect()
    } else {
        walked.gaps
    }
}

/// Makes single extents of packs; what a gap begins behind is the last one of its pack.
fn take_apart(walked: &mut Walked, gathered: &mut Gathered) {
    let mut rows = Vec::with_capacity(walked.rows.len());
    for (key, value) in std::mem::take(&mut walked.rows) {
        match unpack(&key, &value) {
            None => rows.push((key, value)),
            Some(Err(error)) => gathered.losses.push(error.message),
            Some(Ok(extents)) => {
                let of_pack = single_rows(&key, extents);
                let last = of_pack.last().map(|(key, _)| key.clone());
                let behind = walked.gaps.iter_mut().filter(|gap| gap.after.as_ref() == Some(&key));
                behind.for_each(|gap| gap.after.clone_from(&last));
                rows.extend(of_pack);
            }
        }
    }
    walked.rows = rows;
}

/// The rows of the extents of a pack.
fn single_rows(key: &[u8], extents: Vec<(FileBlock, ExtentRow)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let ino = split_key(key).map_or(InodeNo(0), |(ino, _)| ino);
    let row =
        |(at, row): (FileBlock, ExtentRow)| (extent_key(ino, at).to_vec(), row.encode().to_vec());
    extents.into_iter().map(row).collect()
}

fn overlaps(a: &Gap, b: &Gap) -> bool {
    let apart = |low: &Gap, high: &Gap| matches!((&low.upto, &high.after), (Some(upto), Some(after)) if upto <= after);
    !apart(a, b) && !apart(b, a)
}

/// Step 3: fills gaps from whatever looks like a leaf.
fn from_leaves(
    next: &mut dyn FnMut() -> Option<Vec<u8>>,
    gaps: &mut Gaps,
    gathered: &mut Gathered,
) {
    let mut found = 0_u64;
    while let Some(page) = next() {
        let Some(rows) = pages::leaf(&page) else { continue };
        let Some(table) = Table::ALL
            .into_iter()
            .find(|table| rows.iter().all(|(key, value)| looks_like(*table, key, value)))
        else {
            continue;
        };
        let apart = |(key, value): (Vec<u8>, Vec<u8>)| match unpack(&key, &value) {
            Some(Ok(extents)) if table == Table::Extent => single_rows(&key, extents),
            _ => vec![(key, value)],
        };
        for (key, value) in rows.into_iter().flat_map(apart) {
            if gaps.get(&table).is_some_and(|gaps| gaps.iter().any(|gap| gap.holds(&key)))
                && gathered.get(table, &key).is_none()
            {
                gathered.doubtful.insert((table, key.clone()));
                gathered.rows(table).insert(key, value);
                found += 1;
            }
        }
    }
    if found > 0 {
        gathered.losses.push(format!(
            "{found} rows were found in pages that are damaged or old: they may be wrong"
        ));
    }
}

/// Whether a row can be one of this table. A page holds rows of one table, so one row that cannot
/// be decides.
fn looks_like(table: Table, key: &[u8], value: &[u8]) -> bool {
    let Ok((ino, rest)) = split_key(key) else {
        return table == Table::Setting && key.is_ascii() && !key.is_empty() && value.len() <= 64;
    };
    match table {
        Table::Inode => rest.is_empty() && ino.is_possible() && InodeRow::decode(value).is_ok(),
        Table::Extent => {
            let is_extent = || split_extent_key(key).is_ok() && ExtentRow::decode(value).is_ok();
            ino.is_possible() && unpack(key, value).map_or_else(is_extent, |pack| pack.is_ok())
        }
        Table::Dentry => {
            ino.is_possible()
                && bedplate_store::check_name(rest).is_ok()
                && DentryRow::decode(value).is_ok_and(|row| row.ino.is_possible())
        }
        Table::Setting => {
            key.is_ascii()
                && key.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_')
                && value.len() <= 64
        }
        Table::Orphan => rest.is_empty() && value.is_empty(),
        _ => ino.is_possible() && !rest.is_empty() && rest.contains(&b'.') && rest.is_ascii(),
    }
}

/// Step 4: the log, as far as it can be replayed.
fn from_log(log: Option<&LogParts>, gathered: &mut Gathered) {
    let position =
        gathered.get(Table::Setting, POSITION).and_then(|bytes| LogPosition::decode(bytes).ok());
    let (Some(parts), Some(position)) = (log, position) else {
        return gathered.losses.push(
            "the intent log is not replayed, because its place is lost: the last changes are \
             missing"
                .to_owned(),
        );
    };
    let mut records = Vec::new();
    let replayed = replay(parts, position, |_, record| {
        records.push(record.rows);
        Ok(())
    });
    for row in records.into_iter().flatten() {
        gathered.doubtful.remove(&(row.table, row.key.to_vec()));
        match row.value {
            Some(value) => drop(gathered.rows(row.table).insert(row.key.to_vec(), value.to_vec())),
            None => drop(gathered.rows(row.table).remove(row.key.as_slice())),
        }
    }
    match replayed {
        Ok(report) => {
            gathered.homes = HomeWrites::of(&report);
            gathered.losses.extend(report.damaged);
        }
        Err(error) => gathered.losses.push(format!("the intent log ends early: {error}")),
    }
}
