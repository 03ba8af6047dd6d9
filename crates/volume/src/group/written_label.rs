//! What the two copies of a member's label held when this process last wrote or read them. Before
//! they are written again they are compared with that: a device that something else wrote over
//! while the group is open is no copy of anything any more (S-130).
//!
//! ```text
//!   copy on the device      as written   damaged, or unreadable,         absent, or another label       both unreadable
//!                                        the other as written
//!   what follows            nothing      it is written again             the member leaves as one       it leaves as one that fails
//!                                                                        that holds nothing that counts
//! ```

use bedplate_block::{AlignedBuf, BlockDevice, Error, ErrorKind, Operation};

use super::label::{self, COPIES, SLOT_BYTES};
use crate::planted::{Mistake, is_planted};
use crate::{Label, Result};

/// Why a member cannot be used any more.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub error: Error,
    /// Whether something else wrote over it; else its label cannot be read.
    pub overwritten: bool,
}

/// The bytes of both copies; `None` for one that could not be read, or whose last write failed.
#[derive(Debug, Default)]
pub(crate) struct WrittenLabel {
    copies: [Option<Vec<u8>>; 2],
}

impl WrittenLabel {
    /// Takes what stands on a device for what was written there last.
    pub fn learn(&mut self, device: &dyn BlockDevice) {
        self.copies = COPIES.map(|offset| {
            let slot = read_slot(device, offset)?;
            let len =
                label::len_in(&slot).unwrap_or(1).next_multiple_of(label::block_bytes(device));
            Some(slot[..len.min(SLOT_BYTES)].to_vec())
        });
    }

    /// Writes a copy of a label durably. The caller compares all copies before the first and after
    /// each: what writes over the device between the two is noticed, and a write that was lost.
    ///
    /// # Errors
    /// As [`Label::write`].
    pub fn write(&mut self, copy: usize, label: &Label, device: &dyn BlockDevice) -> Result<()> {
        let bytes = label.encode_for(device)?;
        self.copies[copy] = None;
        label::write_copy(&bytes, device, COPIES[copy])?;
        self.copies[copy] = Some(bytes.to_vec());
        Ok(())
    }

    /// Compares the copies on a device with what they held last.
    ///
    /// # Errors
    /// Where one of them holds something else, or none can be read.
    pub fn check(&self, device: &dyn BlockDevice) -> std::result::Result<(), Lost> {
        let (mut damaged, mut unreadable) = (Vec::new(), Vec::new());
        let mut as_written = 0;
        for (written, offset) in self
            .copies
            .iter()
            .zip(COPIES)
            .filter_map(|(copy, offset)| Some((copy.as_ref()?, offset)))
        {
            let mut found = AlignedBuf::zeroed(written.len());
            if let Err(error) = device.read_at(&mut found, offset) {
                unreadable.push(error);
                continue;
            }
            if found[..] == written[..] || is_planted(Mistake::LabelNotCompared) {
                as_written += 1;
                continue;
            }
            let Some(found) = read_slot(device, offset) else { continue };
            let detail = if label::is_absent(&found) {
                "the label that was written here is gone: something else wrote over the device \
                 while the group was open, and nothing that it holds counts"
            } else if label::is_damaged(&found, written) {
                "the label that was written here is damaged, as is its other copy, while the group \
                 was open: nothing that the device holds counts"
            } else {
                "another label stands here than was written last: something else wrote to the \
                 device while the group was open, and nothing that it holds counts"
            };
            let error = Error {
                kind: ErrorKind::Io,
                operation: Operation::Read,
                device: device.name().to_owned(),
                offset: Some(offset),
                detail: detail.to_owned(),
                errno: None,
            };
            if !label::is_damaged(&found, written) {
                return Err(Lost { error, overwritten: true });
            }
            damaged.push(error);
        }
        match (damaged.pop(), unreadable.pop()) {
            (Some(error), _) if as_written == 0 => Err(Lost { error, overwritten: true }),
            (None, Some(error)) if as_written == 0 => Err(Lost { error, overwritten: false }),
            _ => Ok(()),
        }
    }
}

fn read_slot(device: &dyn BlockDevice, offset: u64) -> Option<AlignedBuf> {
    let mut slot = AlignedBuf::zeroed(SLOT_BYTES);
    device.read_at(&mut slot, offset).ok().map(|()| slot)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bedplate_block::{Fault, FaultRule, ReadFault, SimulatedDevice, Trigger};

    use super::*;
    use crate::Id;

    fn written() -> (Arc<SimulatedDevice>, WrittenLabel, Label) {
        let device = SimulatedDevice::new(8 << 20, 5);
        let label = label::tests::label();
        let mut written = WrittenLabel::default();
        (0..COPIES.len()).for_each(|copy| written.write(copy, &label, &*device).unwrap());
        assert!(written.check(&*device).is_ok());
        (device, written, label)
    }

    fn detail(written: &WrittenLabel, device: &SimulatedDevice) -> String {
        let lost = written.check(device).unwrap_err();
        assert!(lost.overwritten);
        lost.error.detail
    }

    /// S-130
    #[test]
    fn a_label_that_is_gone_or_another_is_told_from_one_that_is_damaged_or_cannot_be_read() {
        let zeros = AlignedBuf::zeroed(4096);
        for offset in COPIES {
            let (device, mut written, label) = written();
            device.write_at(&zeros, offset).unwrap();
            assert!(detail(&written, &device).contains("gone"));
            written.learn(&*device);
            assert!(
                written.check(&*device).is_ok(),
                "what stood there when the group was opened is no change"
            );

            let (device, written, _) = super::tests::written();
            device.decay(offset + 300, 1);
            assert!(written.check(&*device).is_ok(), "the other copy is as it was written");
            device.decay(COPIES.into_iter().find(|other| *other != offset).unwrap() + 300, 1);
            assert!(detail(&written, &device).contains("damaged"));

            let (device, written, mut older) = super::tests::written();
            older.config.event -= 1;
            label::write_copy(&older.encode_for(&*device).unwrap(), &*device, offset).unwrap();
            assert!(detail(&written, &device).contains("another label"));
            let mut foreign = label.clone();
            foreign.config.id = Id([77; 16]);
            label::write_copy(&foreign.encode_for(&*device).unwrap(), &*device, offset).unwrap();
            device.decay(offset + 300, 1);
            assert!(
                detail(&written, &device).contains("another label"),
                "a damaged label of another group is not this one"
            );

            let (device, written, _) = super::tests::written();
            device.inject(
                FaultRule::new(Fault::Read(ReadFault::Fail), Trigger::Always)
                    .within(offset..offset + 4096),
            );
            assert!(written.check(&*device).is_ok());
            device.die();
            assert!(!written.check(&*device).unwrap_err().overwritten);
        }
    }
}
