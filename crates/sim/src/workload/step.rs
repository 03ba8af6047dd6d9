//! One step of a workload.

use bedplate_fs::IoMode;

use super::{Ailment, Back, Change, On, RenameKind};

/// Declares [`Step`], and the same steps by kind: what carries steps out goes by kinds, and the
/// compiler sees that no step is left out.
macro_rules! steps {
    (
        $($(#[$about:meta])* $kind:ident($of_kind:ident) {
            $($(#[$doc:meta])* $step:ident $(($($field:ident: $type:ty),*))?,)*
        })*
        ; recorder { $($recorders:tt)* }
    ) => {
        /// One step. Files, directories and held opens are numbered slots, so that any subset of
        /// steps can run: what cannot be carried out is refused by the file system and by the
        /// model alike.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Step {
            $($($(#[$doc])* $step $(($($type),*))?,)*)*
            $($recorders)*
        }

        /// A step by its kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum StepKind {
            $($(#[$about])* $kind($of_kind),)*
            /// Mounts or changes devices, which the recorder does, or is made of other steps.
            Recorders,
        }

        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub(crate) enum $of_kind {
                $($(#[$doc])* $step $(($($type),*))?,)*
            }
        )*

        impl Step {
            /// Tells steps apart by kind.
            pub(crate) fn kind(&self) -> StepKind {
                match *self {
                    $($(Self::$step $(($($field),*))? =>
                        StepKind::$kind($of_kind::$step $(($($field),*))?),)*)*
                    _ => StepKind::Recorders,
                }
            }
        }
    };
}

steps! {
    /// Makes, moves and removes names.
    Names(NameStep) {
        /// Makes file slot, in directory slot.
        Create(file: u8, dir: u8),
        /// Makes file slot, in directory slot, by so many programs at once, each of which opens it,
        /// appends a length of a fill, and closes it.
        CreateTogether(file: u8, dir: u8, programs: u8, len: u32, fill: u8),
        /// Makes a symbolic link to a path of this many bytes.
        Symlink(file: u8, dir: u8, len: u16),
        /// Makes a directory.
        MakeDirectory(dir: u8),
        /// Removes a file's name.
        Unlink(file: u8, dir: u8),
        /// Removes a directory.
        RemoveDirectory(dir: u8),
        /// Renames file slot in directory to another file slot in another directory.
        Rename(file: u8, dir: u8, to: u8, to_dir: u8, kind: RenameKind),
        /// Renames a directory, over another if that is empty.
        RenameDirectory(from: u8, to: u8),
        /// Gives a file another name.
        Link(file: u8, dir: u8, to: u8, to_dir: u8),
    }

    /// Changes what is known of a file besides its content.
    Attributes(AttributeStep) {
        /// Sets permission bits, and an owner that follows from them.
        SetMode(file: u8, dir: u8, mode: u32),
        /// Sets or clears the I/O mode of a file, also while it is open.
        SetIoMode(file: u8, dir: u8, mode: Option<IoMode>),
        /// Sets one of a file's attributes to so many bytes.
        SetAttribute(file: u8, dir: u8, which: u8, len: u16),
        /// Removes one of a file's attributes.
        RemoveAttribute(file: u8, dir: u8, which: u8),
        /// Sets the access control list of a file, which sets its mode, to permissions of owner,
        /// mask and others.
        SetAcl(file: u8, dir: u8, bits: u32),
        /// Lets a file slot in a directory slot, or the directory slot itself, be written untorn in
        /// units of so many bytes, or no longer.
        SetUntorn(file: Option<u8>, dir: u8, bytes: Option<u32>),
        /// Lets what is written to a file slot in a directory slot, or made in the directory slot
        /// itself, have checksums, or no longer.
        SetIntegrity(file: Option<u8>, dir: u8, on: bool),
    }

    /// Opens, closes and remembers files.
    Opens(OpenStep) {
        /// Opens a file in a mode and keeps it open in a slot, instead of what that kept.
        Hold(slot: u8, file: u8, dir: u8, mode: IoMode),
        /// Closes what a slot keeps open.
        Release(slot: u8),
        /// Remembers, in a slot, an inode that a name leads to, as a kernel does that looked it up:
        /// it lives on without names until it is forgotten.
        Retain(slot: u8, file: u8, dir: u8),
        /// Forgets what a slot remembers.
        Forget(slot: u8),
    }

    /// Writes and reads.
    Content(ContentStep) {
        /// Writes in a mode (a held file in its own): offset, length, fill; `O_DSYNC` when the last
        /// is set.
        Write(on: On, mode: IoMode, offset: u64, len: u32, fill: u8, durable: bool),
        /// Appends in a mode: length, fill; `O_DSYNC` when the last is set.
        Append(file: u8, dir: u8, mode: IoMode, len: u32, fill: u8, durable: bool),
        /// Appends to what a slot holds open: length, fill.
        AppendHeld(slot: u8, len: u32, fill: u8),
        /// Reads in a mode, and compares: offset, length.
        Read(on: On, mode: IoMode, offset: u64, len: u32),
        /// Copies a range within the file system, of files opened in a mode: from, to, offset there,
        /// offset here, length.
        CopyRange(from: On, to: On, mode: IoMode, at: u64, into: u64, len: u32),
        /// From so many KiB on aligned reads and writes of cached files pass the library cache, up
        /// to the next mount; 0: none.
        DirectAbove(kib: u8),
    }

    /// Changes sizes and where content lies.
    Extents(ExtentStep) {
        /// Sets the size.
        SetSize(on: On, size: u64),
        /// Sets the size of a file by its path, which nothing need have open.
        Truncate(file: u8, dir: u8, size: u64),
        /// `fallocate`.
        Allocate(on: On, change: Change, offset: u64, len: u64),
        /// Moves what is scattered of a file together; what checkpoints need too, when the last is
        /// set.
        Defragment(on: On, shared: bool),
        /// Places a file on a member of the volume, where it has any (2: on none), and moves it
        /// there; what checkpoints need too, when the last is set.
        Place(on: On, member: u8, shared: bool),
        /// Discards what is free.
        Trim,
        /// The intent log moves home to the volume where the first is set, else onto a device of its
        /// own if there is one: with so many MiB. Where it cannot, nothing happens.
        MoveLog(home: bool, mib: u8),
        /// The intent log gets so many MiB where it lies, if it can.
        ResizeLog(mib: u8),
    }

    /// Makes durable.
    Syncs(SyncStep) {
        /// `sync_data`.
        SyncData(on: On),
        /// `sync_all`.
        SyncAll(on: On),
        /// Syncs a directory.
        SyncDirectory(dir: u8),
        /// Syncs everything.
        Sync,
    }

    /// Makes a checkpoint.
    Captures(CaptureStep) {
        /// Makes checkpoint slot: of everything, or of a directory slot.
        Checkpoint(slot: u8, dir: Option<u8>),
        /// Makes automatic checkpoint slot, of everything; one that is kept where the last is set.
        /// The others go when the volume is full, if that is the policy.
        Automatic(slot: u8, kept: bool),
    }

    /// Compares, goes back to and deletes checkpoints, clones, and says what a full volume does.
    Checkpoints(CheckpointStep) {
        /// Sets the policy of a full volume: `delete-oldest` where it is set, otherwise `refuse`.
        Policy(delete: bool),
        /// Compares a checkpoint of everything with the present.
        Diff(slot: u8),
        /// Deletes a checkpoint.
        DeleteCheckpoint(slot: u8),
        /// Rolls back to a checkpoint; what is open too, when the last is set.
        Rollback(slot: u8, back: Back, force: bool),
        /// Clones file slot of directory slot, of a checkpoint or of the present, to a file slot of
        /// the root.
        Clone(slot: Option<u8>, file: u8, dir: u8, to: u8),
        /// Clones a directory slot, of a checkpoint or of the present, to another.
        CloneDirectory(slot: Option<u8>, from: u8, to: u8),
    }

    ; recorder {
        /// The device grows by so many MiB, and the file system takes them over.
        Grow(u8),
        /// The file system becomes smaller by so many MiB, if it has room for that, and what lies
        /// beyond it then is spoiled.
        Shrink(u8),
        /// Unmounts and mounts.
        Remount,
        /// The process dies and the volume is mounted again; the device keeps what it was told.
        Kill,
        /// The process dies in the middle of a step, after so many calls of devices, or right after
        /// it, and the volume is mounted again.
        Die(Box<Step>, u16),
        /// A member of the group answers no more, if all others hold everything.
        Vanish(u8),
        /// The member that answers no more is there again, as it was, from the next mount on.
        Return,
        /// Something else writes over a member of the group with what that held when the group was
        /// made, or with zeros, if all hold everything; the group notices it. The member does not
        /// come back.
        Overwrite(u8, bool),
        /// Something ails a member of the group, if all others hold everything.
        Ail(u8, Ailment),
        /// The group compares its copies, and what could not be read is good again.
        Scrub,
        /// Carries out a step in the middle of another, each on a thread of its own of which only
        /// one runs at a time: the first begins, and the turn goes over after so many points at
        /// which it may, and back after so many, until the numbers are used up.
        During(Box<Step>, Box<Step>, Vec<u16>),
    }
}

impl Step {
    /// Whether it mounts or changes devices, which the recorder does, or is made of other steps.
    pub(crate) fn is_recorders(&self) -> bool {
        self.kind() == StepKind::Recorders
    }

    /// The file that it finds by a path, before it does anything to it: file slot, directory slot,
    /// and whether it opens it.
    pub(crate) fn reaches(&self) -> Option<(u8, u8, bool)> {
        match *self {
            Self::Write(On::Name(file, dir), ..)
            | Self::Read(On::Name(file, dir), ..)
            | Self::SetSize(On::Name(file, dir), _) => Some((file, dir, true)),
            Self::Allocate(On::Name(file, dir), ..)
            | Self::Defragment(On::Name(file, dir), _)
            | Self::Place(On::Name(file, dir), ..)
            | Self::Append(file, dir, ..) => Some((file, dir, true)),
            Self::SyncData(On::Name(file, dir))
            | Self::SyncAll(On::Name(file, dir))
            | Self::Hold(_, file, dir, _) => Some((file, dir, true)),
            Self::SetMode(file, dir, _)
            | Self::SetIoMode(file, dir, _)
            | Self::Truncate(file, dir, _) => Some((file, dir, false)),
            Self::Retain(_, file, dir) | Self::Link(file, dir, ..) => Some((file, dir, false)),
            Self::SetAttribute(file, dir, ..)
            | Self::RemoveAttribute(file, dir, _)
            | Self::SetAcl(file, dir, _)
            | Self::SetUntorn(Some(file), dir, _)
            | Self::SetIntegrity(Some(file), dir, _) => Some((file, dir, false)),
            _ => None,
        }
    }

    /// Whether it is a clone of the present: of a moment before its records, and there with the last
    /// of them (S-75).
    pub(crate) fn clones_present(&self) -> bool {
        matches!(self, Self::Clone(None, ..) | Self::CloneDirectory(None, ..))
    }

    /// Whether what it makes gets a number or a line that is not known beforehand.
    pub(crate) fn makes(&self) -> bool {
        let made = matches!(
            self,
            Self::Create(..)
                | Self::CreateTogether(..)
                | Self::Symlink(..)
                | Self::MakeDirectory(_)
                | Self::Clone(..)
                | Self::CloneDirectory(..)
        );
        made || matches!(self, Self::Checkpoint(..) | Self::Automatic(..) | Self::Diff(_))
    }
}
