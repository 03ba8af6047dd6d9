//! Metadata and logs that move on the volume, and records that say where blocks moved.

use super::region::{MovedRegion, PlaceRegion};
use super::store::{Committed, MetaStore};
use crate::images::Others;
use crate::log::{LogParts, Record};
use crate::planted::{PlantedBug, planted};
use crate::superblock::{ByteRun, Superblock};
use crate::{Error, Result};

impl MetaStore {
    /// Moves what of the metadata lies beyond byte `limit` of the volume to where `place` says;
    /// `give_back` takes what is not used. Metadata commits wait, and what reads goes on.
    ///
    /// # Errors
    /// Those of `place` and of reads, and nothing has changed; others latch.
    pub fn move_region(
        &self,
        limit: u64,
        place: PlaceRegion<'_>,
        give_back: &dyn Fn(&[ByteRun]),
    ) -> Result<MovedRegion> {
        let superblock = self.region.superblock();
        let beyond = superblock.metadata_beyond(limit);
        if beyond == 0 {
            return Ok(MovedRegion::default());
        }
        self.prepare_blocks(2 * beyond.div_ceil(u64::from(superblock.block_size)));
        self.alone(|| self.region.move_chunks(limit, place, give_back))
    }

    /// Lets the log go on in another place, which is prepared ([`LogParts::prepare`]): moves all
    /// records into the tree, and has the superblock name that place, and the volume's identity as
    /// the log's has it. What waits for the log waits for the switch, a commit of the tree; one
    /// before it takes nearly all. `place` finds room for lists of chunks of a volume with another
    /// identity; returned is what they leave.
    ///
    /// # Errors
    /// `NoSpace` where the tree has no room for what the log holds, and nothing has changed; others
    /// latch.
    pub fn move_log(&self, parts: &LogParts, place: PlaceRegion<'_>) -> Result<Vec<ByteRun>> {
        if !planted(PlantedBug::LogSwitchedFirst) {
            self.metadata_commit()?;
        }
        self.alone(|| self.log().alone(|| self.switch_log(parts, place)))
    }

    fn switch_log(&self, parts: &LogParts, place: PlaceRegion<'_>) -> Result<Vec<ByteRun>> {
        let log = self.log();
        if let Some(failure) = log.failed() {
            return Err(failure);
        }
        if planted(PlantedBug::LogSwitchedFirst) {
            self.region().update_superblock(|superblock| superblock.set_log(parts))?;
        }
        let (frozen, lsn) = self.freeze();
        let position = log.next_life(lsn);
        self.region.note_sealed(log.sealed_lsn());
        let committed = self
            .write_homes()
            .and_then(|()| self.device.flush().map_err(Error::from))
            .and_then(|()| self.write_frozen(&frozen, &position));
        if let Some(refusal) = self.take_back_refused(&committed) {
            return Err(refusal);
        }
        // I-LOG-9: the tree holds everything from here on, and nothing replays the old incarnation.
        let switched = committed
            .and_then(|()| {
                self.region().renew_superblock(place, |superblock| superblock.set_log(parts))
            })
            .and_then(|left| log.go_on(parts.clone(), position).map(|()| left));
        switched.map_err(|error| {
            let error = error.latching("the intent log");
            self.latch(error.clone());
            log.fail(error.clone());
            error
        })
    }

    /// Commits a record that says where blocks are from then on, for all rows that have them.
    ///
    /// # Errors
    /// `Corrupt` where the rows contradict each other, and nothing has changed.
    pub fn commit_moved(&self, record: Record) -> Result<Committed> {
        self.exclusively(|locked| locked.commit(record, Others::Moved))
    }
}

impl Superblock {
    fn set_log(&mut self, parts: &LogParts) {
        self.uuid = *parts.volume.as_bytes();
        self.log_separate = parts.place.separate;
        self.log = ByteRun { start: parts.place.start_byte, len: parts.place.len_bytes };
    }
}
