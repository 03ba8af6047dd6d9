//! Names and attributes.

use super::{Client, Found};
use std::sync::Arc;

use crate::handle::Handle;
use crate::session::Guard;
use crate::wire::attr::{self, Attr, Changes, Kind, SetTime};
use crate::wire::numbers as n;
use crate::wire::status::Status;
use crate::wire::xdr::{Garbage, Reader, Writer};
use crate::{Error, ErrorKind, Result};

/// How much room a file system of a server has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// All.
    pub total_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// What this user may take of that.
    pub available_bytes: u64,
    /// How many files there may be.
    pub total_files: u64,
    /// How many of them there are not.
    pub free_files: u64,
}

/// Arguments that are a directory and a name.
fn place(dir: &Handle, name: &[u8]) -> Writer {
    let mut out = dir.arguments();
    out.opaque(name);
    out
}

fn shown(verb: &str, name: &[u8]) -> String {
    format!("{verb} '{}'", name.escape_ascii())
}

impl Client {
    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// The server's.
    pub fn attributes(&self, of: &Handle) -> Result<Attr> {
        self.ask("look at a file", n::GETATTR, &of.arguments(), Attr::read)
    }

    /// Changes attributes of a file. It is durable when it returns.
    ///
    /// # Errors
    /// The server's.
    pub fn set_attributes(&self, of: &Handle, changes: &Changes) -> Result<()> {
        self.set_attributes_under(None, of, changes)
    }

    /// As [`set_attributes`](Self::set_attributes), under the locks of the file.
    pub(crate) fn set_attributes_under(
        &self,
        guard: Option<&Arc<Guard>>,
        of: &Handle,
        changes: &Changes,
    ) -> Result<()> {
        let mut arguments = of.arguments();
        changes.write(&mut arguments);
        // Whatever it was changed at meanwhile.
        arguments.bool(false);
        self.ask_under(guard, "change a file's attributes", n::SETATTR, &arguments, |from| {
            attr::read_change(from).map(drop)
        })
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `NotFound` and others of the server.
    pub fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Found> {
        let doing = shown("look up", name);
        let (handle, attr) = self.ask(&doing, n::LOOKUP, &place(dir, name), |from| {
            Ok((Handle::read(from)?, attr::read_after(from)?))
        })?;
        self.whole(handle, attr)
    }

    /// Adds the attributes where a server has told none.
    fn whole(&self, handle: Handle, attr: Option<Attr>) -> Result<Found> {
        let attr = attr.map_or_else(|| self.attributes(&handle), Ok)?;
        Ok(Found { handle, attr })
    }

    /// Returns which of the rights asked for (bits of ACCESS) this user has.
    ///
    /// # Errors
    /// The server's.
    pub fn access(&self, of: &Handle, rights: u32) -> Result<u32> {
        let mut arguments = of.arguments();
        arguments.u32(rights);
        let granted = self.ask("ask for rights on a file", n::ACCESS, &arguments, |from| {
            attr::read_after(from)?;
            from.u32()
        })?;
        Ok(granted & rights)
    }

    /// Returns what a symbolic link leads to.
    ///
    /// # Errors
    /// The server's.
    pub fn read_link(&self, link: &Handle) -> Result<Vec<u8>> {
        self.ask("read a symbolic link", n::READLINK, &link.arguments(), |from| {
            attr::read_after(from)?;
            from.opaque(n::TARGET_BYTES_MAX).map(<[u8]>::to_vec)
        })
    }

    /// Makes what is described by arguments behind a directory and a name.
    fn make(
        &self,
        verb: &str,
        procedure: u32,
        dir: &Handle,
        name: &[u8],
        rest: impl FnOnce(&mut Writer),
    ) -> Result<Found> {
        let doing = shown(verb, name);
        let mut arguments = place(dir, name);
        rest(&mut arguments);
        let (handle, attr) = self.ask(&doing, procedure, &arguments, |from| {
            let made = (from.option(Handle::read)?, attr::read_after(from)?);
            attr::read_change(from)?;
            Ok(made)
        })?;
        match handle {
            Some(handle) => self.whole(handle, attr),
            None => self.lookup(dir, name),
        }
    }

    /// Makes a file, or takes the one that is there unless it has to be new.
    ///
    /// # Errors
    /// `Exists` and others of the server.
    pub fn create(&self, dir: &Handle, name: &[u8], mode: u32, is_new: bool) -> Result<Found> {
        self.make("make", n::CREATE, dir, name, |out| {
            out.u32(if is_new { n::GUARDED } else { n::UNCHECKED });
            Changes { mode: Some(mode), ..Changes::default() }.write(out);
        })
    }

    /// Makes a file that must be new, however often the server hears of it: one that started again
    /// between the creation and its answer knows its own.
    ///
    /// # Errors
    /// `Exists` and others of the server.
    pub fn create_new(&self, dir: &Handle, name: &[u8], mode: u32) -> Result<Found> {
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot make a file: no random number: {error}"))
        })?;
        let made = self.make("make", n::CREATE, dir, name, |out| {
            out.u32(n::EXCLUSIVE);
            out.u64(u64::from_be_bytes(verifier));
        });
        match made {
            Ok(mut made) => {
                // The server keeps the number in attributes of the file until they are set.
                let (atime, mtime) = (SetTime::Now, SetTime::Now);
                let changes = Changes { mode: Some(mode), atime, mtime, ..Changes::default() };
                self.set_attributes(&made.handle, &changes)?;
                made.attr = self.attributes(&made.handle)?;
                Ok(made)
            }
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.create(dir, name, mode, true)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a named pipe, a socket or a device; `device` is the latter's major and minor number.
    ///
    /// # Errors
    /// `Exists` and others of the server; `Unsupported` for other kinds.
    pub fn make_special(
        &self,
        dir: &Handle,
        name: &[u8],
        (kind, mode, device): (Kind, u32, [u32; 2]),
    ) -> Result<Found> {
        let is_device = matches!(kind, Kind::BlockDevice | Kind::CharacterDevice);
        if !is_device && !matches!(kind, Kind::Fifo | Kind::Socket) {
            return Err(Error::status(&shown("make", name), Status::BadType));
        }
        self.make("make", n::MKNOD, dir, name, |out| {
            out.u32(kind as u32);
            Changes { mode: Some(mode), ..Changes::default() }.write(out);
            if is_device {
                device.iter().for_each(|number| out.u32(*number));
            }
        })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists` and others of the server.
    pub fn make_directory(&self, dir: &Handle, name: &[u8], mode: u32) -> Result<Found> {
        self.make("make the directory", n::MKDIR, dir, name, |out| {
            Changes { mode: Some(mode), ..Changes::default() }.write(out);
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// `Exists` and others of the server.
    pub fn make_link(&self, dir: &Handle, name: &[u8], target: &[u8]) -> Result<Found> {
        self.make("make the link", n::SYMLINK, dir, name, |out| {
            Changes::default().write(out);
            out.opaque(target);
        })
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// The server's. `NotFound` where the server carried it out, started again, and is asked again.
    pub fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        let changed = |from: &mut Reader<'_>| attr::read_change(from).map(drop);
        self.ask(&shown("remove", name), n::REMOVE, &place(dir, name), changed)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty` and others of the server.
    pub fn remove_directory(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        let changed = |from: &mut Reader<'_>| attr::read_change(from).map(drop);
        self.ask(&shown("remove the directory", name), n::RMDIR, &place(dir, name), changed)
    }

    /// Gives something another name, in the place of what has it.
    ///
    /// # Errors
    /// The server's.
    pub fn rename(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<()> {
        let mut arguments = place(from.0, from.1);
        to.0.add_to(&mut arguments);
        arguments.opaque(to.1);
        self.ask(&shown("rename", from.1), n::RENAME, &arguments, twice_changed)
    }

    /// Gives a file one name more.
    ///
    /// # Errors
    /// `Exists` and others of the server.
    pub fn link(&self, file: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
        let mut arguments = file.arguments();
        dir.add_to(&mut arguments);
        arguments.opaque(name);
        self.ask(&shown("make the name", name), n::LINK, &arguments, |from| {
            attr::read_after(from)?;
            attr::read_change(from).map(drop)
        })
    }

    /// Returns how much room there is.
    ///
    /// # Errors
    /// The server's.
    pub fn room(&self) -> Result<Room> {
        self.ask("ask for the room", n::FSSTAT, &self.root().arguments(), |from| {
            attr::read_after(from)?;
            let (total_bytes, free_bytes) = (from.u64()?, from.u64()?);
            let available_bytes = from.u64()?;
            let (total_files, free_files) = (from.u64()?, from.u64()?);
            Ok(Room { total_bytes, free_bytes, available_bytes, total_files, free_files })
        })
    }
}

fn twice_changed(from: &mut Reader<'_>) -> Result<(), Garbage> {
    attr::read_change(from)?;
    attr::read_change(from).map(drop)
}
