//! Names: lookups, and what makes, moves and removes them.
//!
//! A server that started again between a change and its answer carries the call out once more, and
//! finds it done. What shows that it was this call that did it is taken for success: a name that was
//! there is gone, what was to be moved lies at its new name.

use std::sync::atomic::Ordering::Relaxed;

use bedplate_fuse::opcode;
use bedplate_nfs::{Client, ErrorKind, Found, Handle, Kind, Result};

use super::nodes::{Hidden, Node, NodeState};
use super::requests::{Asked, Done, Remote};
use crate::fuse::errno::{Answer, Errno};

/// Names that a hidden one may find taken, by what other clients have hidden.
const TRIES: usize = 100;

impl Remote {
    /// Serves what looks a name up or changes names.
    pub(super) fn change_names(&self, asked: &Asked) -> Answer<Done> {
        let header = asked.header();
        let client = self.callers.of(header);
        let node = self.nodes.get(header.node)?;
        let dir = &node.handle;
        match header.opcode {
            opcode::LOOKUP => Ok(self.entry(&client.lookup(dir, asked.name()?)?)),
            opcode::MKDIR => {
                let mode = asked.fields().u32(0) & 0o7777;
                Ok(self.entry(&client.make_directory(dir, asked.name()?, mode)?))
            }
            opcode::MKNOD => self.make_node(&client, dir, asked),
            opcode::SYMLINK => {
                let (name, target) = asked.names()?;
                Ok(self.entry(&client.make_link(dir, name, target)?))
            }
            opcode::LINK => {
                let file = self.nodes.get(asked.fields().u64(0))?;
                link(&client, &file.handle, dir, asked.name()?)?;
                let attr = client.attributes(&file.handle)?;
                Ok(self.entry(&Found { handle: file.handle.clone(), attr }))
            }
            opcode::READLINK => Ok(Done::of(client.read_link(dir)?)),
            opcode::UNLINK => self.unlink(&client, dir, asked.name()?),
            opcode::RMDIR => {
                let (name, done) = (asked.name()?, Ok(Done::default()));
                client.lookup(dir, name)?;
                gone(client.remove_directory(dir, name))?;
                done
            }
            opcode::RENAME => {
                let to_dir = self.nodes.get(asked.fields().u64(0))?;
                let (from, to) = asked.names()?;
                self.rename(&client, (dir, from), (&to_dir.handle, to))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn make_node(&self, client: &Client, dir: &Handle, asked: &Asked) -> Answer<Done> {
        let (fields, name) = (asked.fields(), asked.name()?);
        let (mode, device) = (fields.u32(0), fields.u32(4));
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => {
                return Ok(self.entry(&client.create_new(dir, name, mode & 0o7777)?));
            }
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::CharacterDevice,
            libc::S_IFBLK => Kind::BlockDevice,
            _ => return Err(Errno::INVAL),
        };
        let device = [device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00];
        Ok(self.entry(&client.make_special(dir, name, (kind, mode & 0o7777, device))?))
    }

    fn unlink(&self, client: &Client, dir: &Handle, name: &[u8]) -> Answer<Done> {
        let found = client.lookup(dir, name)?;
        let node = self.nodes.find(&found.handle);
        if let Some(node) = node.filter(|_| is_last_name(&found)) {
            let mut state = node.state.lock();
            if state.opens > 0 && state.hidden.is_none() {
                let hide = |hidden: &[u8]| client.rename((dir, name), (dir, hidden));
                self.hide(client, dir, &mut state, found.attr.number, hide)?;
                return Ok(Done::default());
            }
        }
        gone(client.remove(dir, name))?;
        Ok(Done::default())
    }

    fn rename(
        &self,
        client: &Client,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
    ) -> Answer<Done> {
        let source = client.lookup(from.0, from.1)?;
        let target = match client.lookup(to.0, to.1) {
            Ok(target) => Some(target),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let moved = || match client.rename(from, to) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                let now = client.lookup(to.0, to.1);
                if now.is_ok_and(|now| now.handle == source.handle) { Ok(()) } else { Err(error) }
            }
            moved => moved,
        };
        let target = target.filter(|target| target.handle != source.handle);
        let Some((node, found)) = target.and_then(|target| {
            let node = self.nodes.find(&target.handle).filter(|_| is_last_name(&target));
            node.map(|node| (node, target))
        }) else {
            moved()?;
            return Ok(Done::default());
        };
        let mut state = node.state.lock();
        if state.opens == 0 || state.hidden.is_some() {
            moved()?;
            return Ok(Done::default());
        }
        // One name more first, so that the name that is taken is never missing.
        let keep = |hidden: &[u8]| match client.link(&node.handle, to.0, hidden) {
            Err(error) if error.kind == ErrorKind::Unsupported => client.rename(to, (to.0, hidden)),
            linked => linked,
        };
        self.hide(client, to.0, &mut state, found.attr.number, keep)?;
        if let Err(error) = moved() {
            let hidden = state.hidden.take().expect("it was just hidden");
            remove_hidden(&hidden);
            return Err(error.into());
        }
        Ok(Done::default())
    }

    /// Gives a file that is open the name that it keeps until the last close.
    fn hide(
        &self,
        client: &Client,
        dir: &Handle,
        state: &mut NodeState,
        number: u64,
        hide: impl Fn(&[u8]) -> Result<()>,
    ) -> Answer<()> {
        for _ in 0..TRIES {
            let count = self.hidden.fetch_add(1, Relaxed);
            let own = std::process::id();
            let name = format!(".nfs{number:016x}{own:08x}{count:08x}").into_bytes();
            // A rename would take the name of another.
            if client.lookup(dir, &name).is_ok() {
                continue;
            }
            hide(&name)?;
            state.hidden = Some(Hidden { dir: dir.clone(), name, client: client.clone() });
            return Ok(());
        }
        Err(Errno::of_code(libc::EBUSY))
    }

    /// Removes the hidden name of a file that is open no more.
    pub(super) fn unhide(node: &Node) {
        let hidden = {
            let mut state = node.state.lock();
            if state.opens > 0 {
                return;
            }
            state.hidden.take()
        };
        hidden.iter().for_each(remove_hidden);
    }
}

/// Returns whether a file has no name beside the one it was found by.
fn is_last_name(found: &Found) -> bool {
    found.attr.kind == Kind::File && found.attr.links <= 1
}

fn remove_hidden(hidden: &Hidden) {
    if let Err(error) = gone(hidden.client.remove(&hidden.dir, &hidden.name)) {
        tracing::warn!("a file that was removed while it was open stays on the server: {error}");
    }
}

/// Takes for done what finds that a name, which was there, is gone.
fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Gives a file one name more. The kernel has just found that it is free.
fn link(client: &Client, file: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
    match client.link(file, dir, name) {
        Err(error) if error.kind == ErrorKind::Exists => {
            let there = client.lookup(dir, name);
            if there.is_ok_and(|there| there.handle == *file) { Ok(()) } else { Err(error) }
        }
        linked => linked,
    }
}
