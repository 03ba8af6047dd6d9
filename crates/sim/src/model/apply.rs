//! What each step does to the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{allocate, append, index, write};
use super::{Model, NO_SUCH_NAME, NOT_A_FILE, Refusal, attribute, target};
use crate::node::{Kind, Node};
use crate::outcome::Outcome;
use crate::workload::{AUTOMATIC_PREFIX, On, RenameKind, Step};

impl Model {
    /// Carries a step out.
    ///
    /// # Errors
    /// Why it cannot be carried out; the model is then as before.
    pub(crate) fn apply(&mut self, step: &Step, outcome: &Outcome) -> Result<(), Refusal> {
        match *step {
            Step::Create(..)
            | Step::Symlink(..)
            | Step::MakeDirectory(..)
            | Step::Unlink(..)
            | Step::RemoveDirectory(..)
            | Step::Rename(..)
            | Step::RenameDirectory(..)
            | Step::Link(..) => self.apply_to_names(step, outcome),
            Step::Hold(..) | Step::Release(..) | Step::Retain(..) | Step::Forget(..) => {
                self.apply_to_held(step)
            }
            Step::SetMode(..)
            | Step::SetIoMode(..)
            | Step::SetAttribute(..)
            | Step::RemoveAttribute(..)
            | Step::SetUntorn(..) => self.apply_to_attributes(step),
            Step::Write(..)
            | Step::Append(..)
            | Step::AppendHeld(..)
            | Step::Read(..)
            | Step::SyncData(..)
            | Step::SyncAll(..)
            | Step::Defragment(..)
            | Step::SetSize(..)
            | Step::Truncate(..)
            | Step::Allocate(..) => self.apply_to_content(step),
            Step::Checkpoint(..)
            | Step::Automatic(..)
            | Step::Policy(..)
            | Step::Diff(..)
            | Step::DeleteCheckpoint(..)
            | Step::Rollback(..)
            | Step::Clone(..)
            | Step::CloneDirectory(..) => self.apply_to_checkpoints(step, outcome),
            Step::SyncDirectory(dir) => self.directory(dir).map(drop),
            Step::Sync
            | Step::Grow(_)
            | Step::Vanish(_)
            | Step::Return
            | Step::Overwrite(..)
            | Step::Ail(..)
            | Step::Scrub => Ok(()),
            Step::During(..) | Step::Die(..) => {
                unreachable!("its steps are applied one after the other")
            }
            Step::Remount | Step::Kill => {
                self.held.clear();
                self.retained.clear();
                self.drop_nameless();
                Ok(())
            }
        }
    }

    /// Carries out a step that makes, moves or removes names.
    fn apply_to_names(&mut self, step: &Step, outcome: &Outcome) -> Result<(), Refusal> {
        match *step {
            Step::Create(file, dir) => self.make(
                dir,
                format!("f{file}"),
                Node::new(Kind::File(Arc::default()), 0o644),
                outcome,
            ),
            Step::Symlink(file, dir, len) => self.make(
                dir,
                format!("f{file}"),
                Node::new(Kind::Symlink(target(len)), 0o777),
                outcome,
            ),
            Step::MakeDirectory(dir) => self.make(
                0,
                format!("d{dir}"),
                Node::new(Kind::Directory(BTreeMap::new()), 0o644),
                outcome,
            ),
            Step::Unlink(file, dir) => self.unlink(file, dir),
            Step::RemoveDirectory(dir) => self.remove_directory(dir),
            Step::Rename(file, dir, to, to_dir, kind) => {
                self.rename((dir, format!("f{file}")), (to_dir, format!("f{to}")), kind)
            }
            Step::RenameDirectory(from, to) => {
                self.rename((0, format!("d{from}")), (0, format!("d{to}")), RenameKind::Replace)
            }
            Step::Link(file, dir, to, to_dir) => self.link(file, dir, to, to_dir),
            _ => unreachable!("it changes no names"),
        }
    }

    /// Carries out a step that holds a file or lets go of it.
    fn apply_to_held(&mut self, step: &Step) -> Result<(), Refusal> {
        match *step {
            Step::Hold(slot, file, dir, _) => self.hold(slot, file, dir),
            Step::Release(slot) => self.release(slot),
            Step::Retain(slot, file, dir) => {
                self.node(file, dir)?;
                self.retained.insert(slot);
                Ok(())
            }
            Step::Forget(slot) => {
                if self.retained.remove(&slot) {
                    Ok(())
                } else {
                    Err("nothing is remembered there")
                }
            }
            _ => unreachable!("it holds no file"),
        }
    }

    /// Carries out a step that changes what is known of a file besides its content.
    fn apply_to_attributes(&mut self, step: &Step) -> Result<(), Refusal> {
        match *step {
            Step::SetMode(file, dir, mode) => self.node(file, dir).map(|node| {
                node.mode = mode;
                node.uid = mode % 7;
            }),
            Step::SetIoMode(file, dir, mode) => match self.node(file, dir)? {
                node if matches!(node.kind, Kind::Symlink(_)) => Err(NOT_A_FILE),
                node => {
                    node.io_mode = mode;
                    Ok(())
                }
            },
            Step::SetAttribute(file, dir, which, len) => {
                self.node(file, dir)?.attributes.insert(attribute(which), len.into());
                Ok(())
            }
            Step::RemoveAttribute(file, dir, which) => self
                .node(file, dir)?
                .attributes
                .remove(&attribute(which))
                .map(drop)
                .ok_or("there is no such attribute"),
            Step::SetUntorn(file, dir, bytes) => self.set_untorn(file, dir, bytes),
            _ => unreachable!("it changes no attributes"),
        }
    }

    /// Carries out a step that changes or reads content.
    fn apply_to_content(&mut self, step: &Step) -> Result<(), Refusal> {
        match *step {
            Step::Write(on, _, offset, len, fill, _) => {
                self.change(on, |content| write(content, offset, len, fill))
            }
            Step::Append(file, dir, _, len, fill, _) => {
                self.change(On::Name(file, dir), |content| append(content, len, fill))
            }
            Step::AppendHeld(slot, len, fill) => {
                self.change(On::Held(slot), |content| append(content, len, fill))
            }
            Step::Read(on, ..)
            | Step::SyncData(on)
            | Step::SyncAll(on)
            | Step::Defragment(on, _) => self.content(on).map(drop),
            Step::SetSize(on, size) => self.change(on, |content| {
                content.resize(index(size), 0);
                Ok(())
            }),
            Step::Truncate(file, dir, size) => {
                self.node(file, dir)?;
                self.change(On::Name(file, dir), |content| {
                    content.resize(index(size), 0);
                    Ok(())
                })
            }
            Step::Allocate(on, change, offset, len) => {
                let block = self.block_size.into();
                self.change(on, |content| allocate(content, block, change, offset, len))
            }
            _ => unreachable!("it is about no content"),
        }
    }

    /// Carries out a step of checkpoints and clones.
    fn apply_to_checkpoints(&mut self, step: &Step, outcome: &Outcome) -> Result<(), Refusal> {
        match *step {
            Step::Checkpoint(slot, dir) => self.checkpoint(format!("c{slot}"), dir, outcome),
            Step::Automatic(slot, _) => {
                self.checkpoint(format!("{AUTOMATIC_PREFIX}{slot}"), None, outcome)
            }
            Step::Policy(delete) => {
                self.deletes_oldest = delete;
                Ok(())
            }
            Step::Diff(slot) => self.diff(&format!("c{slot}"), outcome.diff.as_ref()),
            Step::DeleteCheckpoint(slot) => {
                self.checkpoints.remove(&format!("c{slot}")).map(drop).ok_or(NO_SUCH_NAME)
            }
            Step::Rollback(slot, back, force) => self.roll_back(&format!("c{slot}"), back, force),
            Step::Clone(slot, file, dir, to) => {
                self.clone_file(slot, file, dir, &format!("f{to}"), outcome)
            }
            Step::CloneDirectory(slot, from, to) => {
                self.clone_directory(slot, from, &format!("d{to}"), outcome)
            }
            _ => unreachable!("it is about no checkpoint"),
        }
    }
}
