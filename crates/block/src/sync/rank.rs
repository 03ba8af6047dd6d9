//! The locks that have a rank, as `docs/locks.md` lists them; `cargo xtask tidy` compares the two.

#![expect(missing_docs, reason = "each constant is a lock whose name stands in the table below")]

/// What one row of the table says.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank {
    /// The constant whose row this is.
    pub(super) lock: usize,
    /// A thread takes locks of a rising order.
    pub(super) order: u32,
    /// The rank as the documents and the fields' comments write it.
    pub(super) rank: &'static str,
    /// What the documents call the lock.
    pub(super) name: &'static str,
}

#[cfg(debug_assertions)]
const fn row(lock: usize, order: u32, rank: &'static str, name: &'static str) -> Rank {
    Rank { lock, order, rank, name }
}

/// The order of leaf locks, under which nothing is taken.
#[cfg(debug_assertions)]
const LEAF: u32 = u32::MAX;

pub const SIZE: usize = 0;
pub const SCHEDULES: usize = 1;
pub const CLONING: usize = 2;
pub const ROOM: usize = 3;
pub const TUNABLES: usize = 4;
pub const CHANGE: usize = 5;
pub const NAMES: usize = 6;
pub const OPENS: usize = 7;
pub const ORDER: usize = 8;
pub const CACHE_SHARD: usize = 9;
pub const CACHED_FILE: usize = 10;
pub const FILES_TO_FLUSH: usize = 11;
pub const INODE: usize = 12;
pub const RANGE: usize = 13;
pub const FILL_CLAIMS: usize = 14;
pub const EXTENT_MAP: usize = 15;
pub const RESERVATIONS: usize = 16;
pub const ATTRIBUTES: usize = 17;
pub const METADATA_COMMIT: usize = 18;
pub const METADATA_STORE: usize = 19;
pub const LOG_LEADER: usize = 20;
pub const LOG_BUFFER: usize = 21;
pub const LOG_RING: usize = 22;
pub const MAINTENANCE: usize = 23;
pub const BATCH: usize = 24;
pub const ROWS: usize = 25;
pub const DIRTY_REGION_LOG: usize = 26;
pub const GATE: usize = 27;
pub const CONFIGURATION: usize = 28;
pub const ALLOCATOR: usize = 29;
pub const DEFERRED_FREES: usize = 30;
pub const VIEWS: usize = 31;
pub const IMAGED_ROWS: usize = 32;
pub const INODE_LISTS: usize = 33;
pub const DEFRAGMENTER: usize = 34;
pub const TRIALS: usize = 35;
pub const HOLDS: usize = 36;
pub const CACHE_LEAF: usize = 37;
pub const LAYOUT_EPOCH: usize = 38;
pub const MEMBER_LABEL: usize = 39;
pub const VOLUME_LEAF: usize = 40;
pub const PARK: usize = 41;
pub const PINNED_EPOCHS: usize = 42;
pub const HELD_SECTORS: usize = 43;
pub const HELD_WRITE: usize = 44;
pub const FILE_LEASE: usize = 45;
pub const LEASE_TABLE: usize = 46;
pub const LEASE_LISTS: usize = 47;
pub const DELAYED: usize = 48;
pub const TRIM: usize = 49;
pub const DIRECTORY: usize = 50;
pub const INODE_NUMBERS: usize = 51;
pub const READ_WINDOWS: usize = 52;
pub const FLUSH: usize = 53;
pub const ALLOCATION_GROUP: usize = 54;
pub const SPARE_MEMORY: usize = 55;
pub const COMBINING: usize = 56;
pub const HOME_WRITER: usize = 57;
pub const HOME_WRITES: usize = 58;
pub const PLACEMENT: usize = 59;

#[cfg(debug_assertions)]
pub(super) const TABLE: [Rank; 60] = [
    row(SIZE, 20, "0.2", "size"),
    row(SCHEDULES, 30, "0.3", "schedules"),
    row(CLONING, 40, "0.4", "cloning mutex"),
    row(ROOM, 50, "0.5", "room"),
    row(TUNABLES, 50, "0.5", "tunables"),
    row(CHANGE, 90, "0.9", "change lock"),
    row(NAMES, 100, "1", "names lock"),
    row(OPENS, 150, "1.5", "opens"),
    row(ORDER, 170, "1.7", "order lock"),
    row(CACHE_SHARD, 900, "9", "cache shard"),
    row(CACHED_FILE, 910, "9.1", "cached file"),
    row(FILES_TO_FLUSH, 920, "9.2", "files to flush"),
    row(INODE, 200, "2", "inode lock"),
    row(RANGE, 210, "2a", "range lock"),
    row(FILL_CLAIMS, 220, "2b", "fill claims"),
    row(EXTENT_MAP, 300, "3", "extent map"),
    row(RESERVATIONS, 350, "3.5", "reservations"),
    row(ATTRIBUTES, 400, "4", "attribute mutex"),
    row(METADATA_COMMIT, 450, "4.5", "metadata commit mutex"),
    row(METADATA_STORE, 500, "5", "metadata store mutex"),
    row(LOG_LEADER, 510, "5a", "log leader's hands"),
    row(LOG_BUFFER, 600, "6", "log buffer mutex"),
    row(LOG_RING, 700, "7", "log ring mutex"),
    row(MAINTENANCE, 1000, "G0", "maintenance mutex"),
    row(BATCH, 1040, "G0.4", "batch in flight"),
    row(ROWS, 1050, "G0.5", "rows"),
    row(DIRTY_REGION_LOG, 1100, "G1", "dirty region log"),
    row(GATE, 1150, "G1.5", "gate"),
    row(CONFIGURATION, 1200, "G2", "configuration mutex"),
    row(ALLOCATOR, LEAF, "leaf", "allocator mutex"),
    row(DEFERRED_FREES, LEAF, "leaf", "deferred frees"),
    row(VIEWS, LEAF, "leaf", "views"),
    row(IMAGED_ROWS, 320, "3.2", "imaged rows"),
    row(INODE_LISTS, LEAF, "leaf", "lists of inodes"),
    row(DEFRAGMENTER, LEAF, "leaf", "the defragmenter's report and bounds"),
    row(TRIALS, LEAF, "leaf", "trials"),
    row(HOLDS, LEAF, "leaf", "holds"),
    row(CACHE_LEAF, LEAF, "leaf", "the cache's small locks"),
    row(LAYOUT_EPOCH, LEAF, "leaf", "a volume's layout epoch"),
    row(MEMBER_LABEL, LEAF, "leaf", "what a member's label held last"),
    row(VOLUME_LEAF, LEAF, "leaf", "pace of the work in the background"),
    row(PARK, 800, "8", "group commit's park lock"),
    row(PINNED_EPOCHS, 1300, "G3", "pinned epochs"),
    row(HELD_SECTORS, LEAF, "leaf", "held sectors"),
    row(HELD_WRITE, LEAF, "leaf", "held write"),
    row(FILE_LEASE, 410, "4.1", "lease of a file"),
    row(LEASE_TABLE, LEAF, "leaf", "table of leases"),
    row(LEASE_LISTS, LEAF, "leaf", "clients of leases"),
    row(DELAYED, 250, "2.5", "delayed writes"),
    row(TRIM, 50, "0.5", "trim"),
    row(DIRECTORY, 110, "1.1", "directory lock"),
    row(INODE_NUMBERS, 440, "4.4", "inode numbers"),
    row(READ_WINDOWS, LEAF, "leaf", "read windows"),
    row(FLUSH, 750, "7.5", "flush"),
    row(ALLOCATION_GROUP, 990, "9.9", "allocation group"),
    row(SPARE_MEMORY, LEAF, "leaf", "spare memory"),
    row(COMBINING, LEAF, "leaf", "combined writes"),
    row(HOME_WRITER, 520, "5b", "home writer"),
    row(HOME_WRITES, 650, "6.5", "home writes"),
    row(PLACEMENT, LEAF, "leaf", "placement"),
];

/// Locks of which a thread holds several, and the lock under which alone it does: what holds that
/// lock takes them in an order of its own, which docs/locks.md gives.
#[cfg(debug_assertions)]
pub(super) const TOGETHER: [(usize, usize); 1] = [(ATTRIBUTES, NAMES)];

// Each constant is the index of its row.
#[cfg(debug_assertions)]
const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].lock == at, "the rows stand in the order of the constants");
        at += 1;
    }
};
