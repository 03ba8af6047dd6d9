//! What each step does to the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{allocate, append, copy, index, write};
use super::{Model, NO_SUCH_NAME, NOT_A_FILE, Refusal, attribute, target};
use crate::acl::{acl, acl_name};
use crate::node::{Kind, Node};
use crate::outcome::Outcome;
use crate::workload::{
    AUTOMATIC_PREFIX, AttributeStep, CaptureStep, CheckpointStep, ContentStep, ExtentStep,
    NameStep, On, OpenStep, RenameKind, Step, StepKind, SyncStep, pattern,
};

impl Model {
    /// Carries a step out.
    ///
    /// # Errors
    /// Why it cannot be carried out; the model is then as before.
    pub(crate) fn apply(&mut self, step: &Step, outcome: &Outcome) -> Result<(), Refusal> {
        match step.kind() {
            StepKind::Names(step) => self.apply_to_names(step, outcome),
            StepKind::Attributes(step) => self.apply_to_attributes(step),
            StepKind::Opens(step) => self.apply_to_held(step),
            StepKind::Content(step) => self.apply_to_content(step),
            StepKind::Extents(step) => self.apply_to_extents(step),
            StepKind::Syncs(step) => self.apply_sync(step),
            StepKind::Captures(step) => self.capture(step, outcome),
            StepKind::Checkpoints(step) => self.apply_to_checkpoints(step, outcome),
            StepKind::Recorders => {
                if matches!(step, Step::Remount | Step::Kill) {
                    self.held.clear();
                    self.retained.clear();
                    self.drop_nameless();
                }
                Ok(())
            }
        }
    }

    /// Carries out a step that makes, moves or removes names.
    fn apply_to_names(&mut self, step: NameStep, outcome: &Outcome) -> Result<(), Refusal> {
        match step {
            NameStep::Create(file, dir) => self.make(
                dir,
                format!("f{file}"),
                Node::new(Kind::File(Arc::default()), 0o644),
                outcome,
            ),
            NameStep::CreateTogether(file, dir, programs, len, fill) => {
                let content = pattern(0, len, fill).repeat(programs.into());
                let node = Node::new(Kind::File(Arc::new(content)), 0o644);
                self.make(dir, format!("f{file}"), node, outcome)
            }
            NameStep::Symlink(file, dir, len) => self.make(
                dir,
                format!("f{file}"),
                Node::new(Kind::Symlink(target(len)), 0o777),
                outcome,
            ),
            NameStep::MakeDirectory(dir) => self.make(
                0,
                format!("d{dir}"),
                Node::new(Kind::Directory(BTreeMap::new()), 0o644),
                outcome,
            ),
            NameStep::Unlink(file, dir) => self.unlink(file, dir),
            NameStep::RemoveDirectory(dir) => self.remove_directory(dir),
            NameStep::Rename(file, dir, to, to_dir, kind) => {
                self.rename((dir, format!("f{file}")), (to_dir, format!("f{to}")), kind)
            }
            NameStep::RenameDirectory(from, to) => {
                self.rename((0, format!("d{from}")), (0, format!("d{to}")), RenameKind::Replace)
            }
            NameStep::Link(file, dir, to, to_dir) => self.link(file, dir, to, to_dir),
        }
    }

    /// Carries out a step that holds a file or lets go of it.
    fn apply_to_held(&mut self, step: OpenStep) -> Result<(), Refusal> {
        match step {
            OpenStep::Hold(slot, file, dir, _) => self.hold(slot, file, dir),
            OpenStep::Release(slot) => self.release(slot),
            OpenStep::Retain(slot, file, dir) => {
                self.node(file, dir)?;
                self.retained.insert(slot);
                Ok(())
            }
            OpenStep::Forget(slot) => {
                if self.retained.remove(&slot) {
                    Ok(())
                } else {
                    Err("nothing is remembered there")
                }
            }
        }
    }

    /// Carries out a step that changes what is known of a file besides its content.
    fn apply_to_attributes(&mut self, step: AttributeStep) -> Result<(), Refusal> {
        match step {
            AttributeStep::SetMode(file, dir, mode) => self.node(file, dir).map(|node| {
                node.mode = mode;
                node.uid = mode % 7;
            }),
            AttributeStep::SetIoMode(file, dir, mode) => match self.node(file, dir)? {
                node if matches!(node.kind, Kind::Symlink(_)) => Err(NOT_A_FILE),
                node => {
                    node.io_mode = mode;
                    Ok(())
                }
            },
            AttributeStep::SetAttribute(file, dir, which, len) => {
                self.node(file, dir)?.attributes.insert(attribute(which), len.into());
                Ok(())
            }
            AttributeStep::RemoveAttribute(file, dir, which) => self
                .node(file, dir)?
                .attributes
                .remove(&attribute(which))
                .map(drop)
                .ok_or("there is no such attribute"),
            AttributeStep::SetAcl(file, dir, bits) => match self.node(file, dir)? {
                node if matches!(node.kind, Kind::Symlink(_)) => Err(NOT_A_FILE),
                node => {
                    node.mode = (node.mode & !0o777) | bits;
                    node.attributes.insert(acl_name(), acl(bits).len());
                    Ok(())
                }
            },
            AttributeStep::SetUntorn(file, dir, bytes) => {
                self.marked(file, dir)?.untorn = bytes;
                Ok(())
            }
            AttributeStep::SetIntegrity(file, dir, on) => {
                self.marked(file, dir)?.integrity = on;
                Ok(())
            }
        }
    }

    /// Carries out a step that changes or reads content.
    fn apply_to_content(&mut self, step: ContentStep) -> Result<(), Refusal> {
        match step {
            ContentStep::Write(on, _, offset, len, fill, _) => {
                self.change(on, |content| write(content, offset, len, fill))
            }
            ContentStep::Append(file, dir, _, len, fill, _) => {
                self.change(On::Name(file, dir), |content| append(content, len, fill))
            }
            ContentStep::AppendHeld(slot, len, fill) => {
                self.change(On::Held(slot), |content| append(content, len, fill))
            }
            ContentStep::Read(on, ..) => self.content(on).map(drop),
            ContentStep::CopyRange(from, to, _, at, into, len) => {
                let source = self.content(from)?;
                let is_one = self.ino(from)? == self.ino(to)?;
                self.change(to, |content| {
                    copy(content, into, source.get(index(at)..).unwrap_or(&[]), len, |clipped| {
                        is_one && at < into + clipped && into < at + clipped
                    })
                })
            }
            ContentStep::DirectAbove(_) => Ok(()),
        }
    }

    /// Carries out a step that changes sizes or where content lies.
    fn apply_to_extents(&mut self, step: ExtentStep) -> Result<(), Refusal> {
        match step {
            ExtentStep::SetSize(on, size) => self.change(on, |content| {
                content.resize(index(size), 0);
                Ok(())
            }),
            ExtentStep::Truncate(file, dir, size) => {
                self.node(file, dir)?;
                self.change(On::Name(file, dir), |content| {
                    content.resize(index(size), 0);
                    Ok(())
                })
            }
            ExtentStep::Allocate(on, change, offset, len) => {
                let block = self.block_size.into();
                self.change(on, |content| allocate(content, block, change, offset, len))
            }
            ExtentStep::Defragment(on, _) | ExtentStep::Place(on, ..) => self.content(on).map(drop),
            ExtentStep::Trim | ExtentStep::MoveLog(..) | ExtentStep::ResizeLog(_) => Ok(()),
        }
    }

    /// Looks whether there is what a step syncs.
    fn apply_sync(&mut self, step: SyncStep) -> Result<(), Refusal> {
        match step {
            SyncStep::SyncData(on) | SyncStep::SyncAll(on) => self.content(on).map(drop),
            SyncStep::SyncDirectory(dir) => self.directory(dir).map(drop),
            SyncStep::Sync => Ok(()),
        }
    }

    /// Makes the checkpoint of a step.
    fn capture(&mut self, step: CaptureStep, outcome: &Outcome) -> Result<(), Refusal> {
        match step {
            CaptureStep::Checkpoint(slot, dir) => self.checkpoint(format!("c{slot}"), dir, outcome),
            CaptureStep::Automatic(slot, _) => {
                self.checkpoint(format!("{AUTOMATIC_PREFIX}{slot}"), None, outcome)
            }
        }
    }

    /// Carries out a step of checkpoints that exist, or of clones.
    fn apply_to_checkpoints(
        &mut self,
        step: CheckpointStep,
        outcome: &Outcome,
    ) -> Result<(), Refusal> {
        match step {
            CheckpointStep::Policy(delete) => {
                self.deletes_oldest = delete;
                Ok(())
            }
            CheckpointStep::Diff(slot) => self.diff(&format!("c{slot}"), outcome.diff.as_ref()),
            CheckpointStep::DeleteCheckpoint(slot) => {
                self.checkpoints.remove(&format!("c{slot}")).map(drop).ok_or(NO_SUCH_NAME)
            }
            CheckpointStep::Rollback(slot, back, force) => {
                self.roll_back(&format!("c{slot}"), back, force)
            }
            CheckpointStep::Clone(slot, file, dir, to) => {
                self.clone_file(slot, file, dir, &format!("f{to}"), outcome)
            }
            CheckpointStep::CloneDirectory(slot, from, to) => {
                self.clone_directory(slot, from, &format!("d{to}"), outcome)
            }
        }
    }
}
