//! Unmounting, mounting, recovery and growth on a device that fails.

use bedplate_fs::ErrorKind;

use super::{Failure, Run, one_sentence};
use crate::act::Stage;
use crate::bed::{SIZE_MAX, quiet};
use crate::kept::{compare, used_numbers};
use crate::model::Model;
use crate::outcome::Promise;
use crate::view::{Seen, see};
use crate::workload::Step;
use bedplate_block::BlockDevice;

impl Run {
    /// Unmounts, or the process dies, and mounts: whatever of it fails, a mount on a device that
    /// works finds all that was promised.
    pub(super) fn mount_again(&mut self, step: &Step) -> Result<(), String> {
        let stage = self.stage.take().expect("it is mounted");
        stage.close_held();
        if *step == Step::Remount
            && let Err(error) = stage.unmount()
        {
            self.expected(&error, "nothing keeps a volume from being unmounted")?;
        }
        let at = self.history.operations();
        if !self.power_is_off() {
            self.connect()?;
        }
        if self.power_is_off() {
            return Ok(());
        }
        let seen = self.see_again()?;
        compare(&self.history, at, &seen.view).map_err(|what| format!("mounted again: {what}"))?;
        let used = used_numbers(&self.history, at);
        self.history.model = Model::recovered(self.history.model.block_size, seen, used);
        let view = self.history.model.view();
        self.push(view, Promise::All, Vec::new(), None);
        Ok(())
    }

    /// What a failed flush should have made durable is in doubt for ever: nothing but a power cut
    /// shows what is there.
    fn power_is_off(&self) -> bool {
        self.failure == Failure::Flush && self.struck() && self.stage.is_none()
    }

    fn expected(&self, error: &bedplate_fs::Error, otherwise: &str) -> Result<(), String> {
        one_sentence(error)?;
        if self.struck() { Ok(()) } else { Err(format!("{otherwise}: {error}")) }
    }

    fn connect(&mut self) -> Result<(), String> {
        self.wires.cut();
        self.wires = self.history.bed.connect();
        let mounted = match self.wires.mount(quiet()) {
            Ok(fs) => fs,
            Err(error) => {
                self.expected(&error, "the volume does not mount again")?;
                if self.failure == Failure::Flush {
                    return Ok(());
                }
                self.wires.cut();
                self.wires = self.history.bed.connect();
                self.healthy(|| self.wires.mount(quiet())).map_err(|e| {
                    format!("the volume does not mount on a device that works again: {e}")
                })?
            }
        };
        self.stage = Some(Stage::new(mounted).moving_log(self.wires.spare_log()));
        Ok(())
    }

    /// Reads all there is; if the error strikes here, once more without it.
    fn see_again(&self) -> Result<Seen, String> {
        let read = |what: &'static str| move |e: bedplate_fs::Error| format!("{what}: {e}");
        if !self.struck() {
            match see(self.fs()) {
                Err(_) if self.struck() => {}
                seen => return seen.map_err(read("a sound volume cannot be read")),
            }
        }
        self.healthy(|| see(self.fs()))
            .map_err(read("the volume cannot be read on a device that works again"))
    }

    /// The file system becomes smaller, or says why not; what lies beyond it then is left.
    pub(super) fn shrink(&mut self, mib: u8) -> Result<(), String> {
        let size = crate::bed::smaller(self.fs(), mib);
        match crate::bed::shrink(self.fs(), size) {
            Ok(()) => {}
            Err(error) if matches!(error.kind, ErrorKind::NoSpace | ErrorKind::Invalid) => {
                one_sentence(&error)?;
            }
            Err(error) if error.kind == ErrorKind::ReadOnly && self.struck() => {
                one_sentence(&error)?;
            }
            Err(error) => self.expected(&error, "the volume does not become smaller")?,
        }
        let view = self.history.model.view();
        self.push(view, Promise::None, Vec::new(), None);
        Ok(())
    }

    /// The device grows, and the file system takes it over or says why not.
    pub(super) fn grow(&mut self, mib: u8) -> Result<(), String> {
        let data = std::sync::Arc::clone(self.history.bed.data());
        let size = (data.refresh_size().map_err(|e| e.to_string())? + (u64::from(mib) << 20))
            .min(SIZE_MAX);
        data.grow(size);
        match self.fs().grow() {
            Ok(grown) if grown == size => {}
            Ok(grown) => {
                return Err(format!("the volume has {grown} bytes after it grew to {size}"));
            }
            Err(error) if error.kind == ErrorKind::ReadOnly && self.struck() => {
                one_sentence(&error)?;
            }
            Err(error) => self.expected(&error, "the volume does not grow")?,
        }
        let view = self.history.model.view();
        self.push(view, Promise::None, Vec::new(), None);
        Ok(())
    }
}
