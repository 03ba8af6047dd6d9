//! Import under another name and identity: of members that are copies of another group's, or the
//! half of a mirror that was split off.
//!
//! ```text
//!   opened and closed in order ─► labels: one member after the other ─► opened under the new identity
//!    └ as it was                    └ cut: two identities that tell each other; the same call ends it
//! ```
//!
//! - I-REN-1: a label changes its identities and its name, and keeps its event: what is older, behind
//!   or failed stays so.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::Group;
use crate::group::Difference;
use crate::runtime::check_name;
use crate::{Error, ErrorKind, Id, ImportOptions, Label, Result};

impl Group {
    /// Opens a group on devices that the caller has claimed, after it got another name and all its
    /// members other identities: beside the group that they are copies or a part of. What another
    /// call was about to do when the power went, is done.
    ///
    /// # Errors
    /// As [`import`](Self::import); `Foreign` where the devices are of two groups of which neither is
    /// the other under the name; `Invalid` for a name that is none, or while a volume of the group
    /// changes its shape.
    pub fn import_as(
        devices: &[Arc<dyn BlockDevice>],
        name: &str,
        options: &ImportOptions,
    ) -> Result<Self> {
        check_name(name)?;
        if !is_ended(devices, name)? {
            settle(devices, options)?;
            let labels = labels_of(devices)?;
            refuse_unclean(&labels)?;
            let difference = Difference::random();
            write(devices, &labels, name, |_| Some(difference))?;
        }
        Self::import(devices, options)
    }
}

fn labels_of(devices: &[Arc<dyn BlockDevice>]) -> Result<Vec<Label>> {
    devices.iter().map(|device| Label::read(&**device)).collect()
}

/// Writes the labels of all devices for which there is a difference.
fn write(
    devices: &[Arc<dyn BlockDevice>],
    labels: &[Label],
    name: &str,
    of: impl Fn(&Label) -> Option<Difference>,
) -> Result<()> {
    for (device, label) in devices.iter().zip(labels) {
        let Some(difference) = of(label) else { continue };
        let renewed = label.renewed(difference, name);
        assert!(renewed.config.event == label.config.event, "I-REN-1: what is older stays older");
        renewed.write(&**device)?;
    }
    Ok(())
}

/// Ends what was cut short; returns whether there was anything, and all members have the new
/// identity now.
fn is_ended(devices: &[Arc<dyn BlockDevice>], name: &str) -> Result<bool> {
    let labels = labels_of(devices)?;
    let mut ids: Vec<Id> = labels.iter().map(|label| label.config.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let [one, other] = ids[..] else { return Ok(false) };
    let is_named = |id: Id| {
        labels.iter().filter(|label| label.config.id == id).all(|label| label.config.name == name)
    };
    // With the old name given again either will do, and both are renewed then.
    let (to, from, ended) = match (is_named(one), is_named(other)) {
        (true, false) => (one, other, true),
        (false, true) => (other, one, true),
        (true, true) => (one, other, false),
        (false, false) => return Ok(false),
    };
    let named = |id: Id| labels.iter().zip(devices).find(|(label, _)| label.config.id == id);
    let ((target, at), (source, of)) =
        (named(to).expect("it is one of them"), named(from).expect("it is one of them"));
    let difference = Difference::between(from, to)
        .filter(|difference| target.config.index_of(difference.apply(source.member)).is_some());
    let Some(difference) = difference else {
        let message = format!(
            "{} belongs to the group {} and {} to {}, and neither became the other: name the members \
             of one group",
            at.name(),
            target.config.name,
            of.name(),
            source.config.name
        );
        return Err(Error::new(ErrorKind::Foreign, message));
    };
    write(devices, &labels, name, |label| (label.config.id == from).then_some(difference))?;
    Ok(ended)
}

/// Refuses a group of which something is in doubt: by another identity that would not be known.
fn refuse_unclean(labels: &[Label]) -> Result<()> {
    let newest = labels.iter().map(|label| &label.config).max_by_key(|config| config.event);
    match newest.filter(|config| !config.clean) {
        None => Ok(()),
        Some(config) => Err(Error::new(
            ErrorKind::Device,
            format!(
                "group {} could not be closed in order, because one of its members fails: it keeps \
                 its identity",
                config.name
            ),
        )),
    }
}

/// Opens the group as it is and closes it in order: what a crash left in doubt is known by the
/// identity that it has.
fn settle(devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> Result<()> {
    let options = ImportOptions { background: false, read_only: false, ..options.clone() };
    let group = Group::import(devices, &options)?;
    let config = group.config();
    if config.volumes.iter().any(|volume| volume.relayout.is_some()) {
        return Err(Error::invalid(format!(
            "a volume of the group {} is changing its shape: import it as it is, and let that end \
             first",
            config.name
        )));
    }
    group.sync()?;
    group.close()
}
