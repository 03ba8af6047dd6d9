//! An intent log whose device is gone: it comes home to the volume, with nothing in it.
//!
//! ```text
//!   read the volume, an empty log beside it ─► a free run ─► zeros ─► metadata commit: the next incarnation ─► superblocks
//!                                                                      └ a cut before it: as if nothing had been done
//! ```
//!
//! After an unmount the tree holds everything and the lost log nothing. Else the log may have held
//! what programs were told is durable, and only force gives that up.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use uuid::Uuid;

use super::{LogMove, LogMoveOptions, LogSpot, home_len};
use crate::format::GRAIN;
use crate::mount::{Loaded, build_allocator, let_grow, load_with};
use crate::{Error, ErrorKind, Result, format_size};
use bedplate_store::{ByteRun, LogParts, LogPlace, Superblock};

/// How much of the tree is kept in memory meanwhile.
const CACHE_BYTES: u64 = 64 << 20;

/// Gives a volume its log back, on itself; the volume is not mounted, and its log's device not
/// there.
pub(crate) fn bring_home(
    device: Arc<dyn BlockDevice>,
    options: &LogMoveOptions,
) -> Result<LogMove> {
    let found = Superblock::read(&device)?;
    let superblock = found.superblock.clone();
    refuse(&device, &superblock, options.force)?;
    let len = home_len(&superblock, options.size_bytes)?;
    let name = device.name().to_owned();
    // Nothing is written to it: what is read of it is an empty log.
    let gone: Arc<dyn BlockDevice> = MemoryDevice::new(superblock.log.end());
    let parts = LogParts {
        data: Arc::clone(&device),
        log: Some(gone),
        volume: Uuid::from_bytes(superblock.uuid),
        place: LogPlace {
            separate: true,
            start_byte: superblock.log.start,
            len_bytes: superblock.log.len,
        },
    };
    let loaded = load_with(device, found, parts, options.dry_run, CACHE_BYTES)?;
    let start = place_home(&loaded, len, &name)?;
    let from =
        LogSpot { device: None, start_byte: superblock.log.start, size_bytes: superblock.log.len };
    let to = LogSpot { device: None, start_byte: start, size_bytes: len };
    if !options.dry_run {
        switch(&loaded, start, len)?;
    }
    Ok(LogMove { from, to, left: None })
}

fn refuse(device: &Arc<dyn BlockDevice>, superblock: &Superblock, is_forced: bool) -> Result<()> {
    let name = device.name();
    if !superblock.log_separate {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{name} has its intent log on itself already: mount it"),
        ));
    }
    if device.geometry().read_only {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{name} is read-only")));
    }
    if superblock.clean || is_forced {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "{name} was not unmounted, and its lost log of up to {} held what was written since the \
             last commit of the metadata: bring the device back and mount with it (-o log=PATH), or \
             add --force to lose those changes, also acknowledged ones; files changed since may then \
             show old sizes and blocks that others wrote, so run 'bedplate check --data' after it",
            format_size(superblock.log.len)
        ),
    ))
}

/// Finds a free run and makes it zero.
fn place_home(loaded: &Loaded, len: u64, name: &str) -> Result<u64> {
    let block = u64::from(loaded.found.superblock.block_size);
    let (allocator, _) = build_allocator(loaded)?;
    let_grow(loaded, &allocator);
    let run = allocator.allocate_run((len + GRAIN) / block).ok_or_else(|| {
        Error::no_space(
            len / block,
            format!(
                "{name} has no free run of {} for an intent log: ask for a smaller one (--size), or \
                 bring the log's device back",
                format_size(len)
            ),
        )
    })?;
    Ok((run.start.0 * block).next_multiple_of(GRAIN))
}

fn switch(loaded: &Loaded, start: u64, len: u64) -> Result<()> {
    let place = LogPlace { separate: false, start_byte: start, len_bytes: len };
    let home = LogParts { log: None, place, ..loaded.log_parts.clone() };
    home.suit()?;
    home.prepare(&[(start, len)])?;
    loaded.meta.start(home, &loaded.replayed)?;
    loaded.meta.close();
    loaded.meta.region().update_superblock(|superblock| {
        superblock.log_separate = false;
        superblock.log = ByteRun { start, len };
    })
}
