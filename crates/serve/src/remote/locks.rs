//! Locks of programs, where the server has them: `fcntl` and `flock` calls that the kernel passes on.
//!
//! What a process has locked of a file ends with any close of it by the process (FLUSH), the rest with
//! the open through which it was taken (RELEASE).

use std::ops::Range;

use bedplate_nfs::{LOCK_END, LockOwner, WHOLE_FILE};

use super::attrs::small;
use super::files::Opened;
use super::interrupts::Ticket;
use super::requests::{Asked, Done, Remote, TakenLock};
use crate::fuse::errno::{Answer, Errno};

/// `FUSE_LK_FLOCK`: it is a call of `flock`.
const FLOCK: u32 = 1;
/// Where bytes end that have no end.
const LAST: u64 = LOCK_END - 1;

/// What a program asks for (`struct fuse_lk_in`).
struct Wanted {
    handle: u64,
    owner: LockOwner,
    range: Range<u64>,
    kind: i32,
}

impl Wanted {
    fn of(asked: &Asked) -> Answer<Self> {
        let fields = asked.fields();
        let range = match fields.u32(40) & FLOCK {
            0 => {
                let (first, last) = (fields.u64(16), fields.u64(24).min(LAST));
                if first > last {
                    return Err(Errno::INVAL);
                }
                first..last + 1
            }
            _ => WHOLE_FILE,
        };
        Ok(Self {
            handle: fields.u64(0),
            owner: LockOwner { number: fields.u64(8), process: fields.u32(36) },
            range,
            kind: fields.u32(32).cast_signed(),
        })
    }
}

impl Remote {
    /// Locks or unlocks a range; waits for it if `waits`.
    pub(super) fn set_lock(&self, asked: &Asked, ticket: &Ticket, waits: bool) -> Answer<Done> {
        let Wanted { handle, owner, range, kind } = Wanted::of(asked)?;
        let opened = self.files.get(handle)?;
        if kind == libc::F_UNLCK {
            opened.file.unlock(owner, &range)?;
            return Ok(Done::default());
        }
        let (is_exclusive, gives_up) = (kind == libc::F_WRLCK, || ticket.gives_up());
        if !opened.file.lock(owner, range.clone(), is_exclusive, (waits, &gives_up))? {
            return Err(Errno::of_code(if waits { libc::EINTR } else { libc::EAGAIN }));
        }
        self.forget_attributes(&opened);
        Ok(Done { lock: Some(TakenLock { handle, owner, range }), ..Done::default() })
    }

    /// Has the kernel ask for what others changed before the lock, now and, as far as names and
    /// attributes of other files go, from now on.
    fn forget_attributes(&self, opened: &Opened) {
        self.has_locks.store(true, std::sync::atomic::Ordering::SeqCst);
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(opened.node.number, -1, 0)
        {
            tracing::debug!("the kernel kept the attributes of a file: {error}");
        }
    }

    /// Tells which lock is in the way of another one (`struct fuse_lk_out`).
    pub(super) fn get_lock(&self, asked: &Asked) -> Answer<Done> {
        let Wanted { handle, owner, range, kind } = Wanted::of(asked)?;
        let opened = self.files.get(handle)?;
        let found = opened.file.test_lock(owner, &range, kind == libc::F_WRLCK)?;
        Ok(Done::of(small(|out| match found {
            None => {
                (0..2).for_each(|_| out.u64(0));
                out.u32(libc::F_UNLCK as u32);
                out.u32(0);
            }
            Some(holder) => {
                out.u64(holder.range.start);
                out.u64(holder.range.end - 1);
                let kind = if holder.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                out.u32(kind as u32);
                out.u32(holder.process);
            }
        })))
    }

    /// Gives back a lock that its caller does not know of.
    pub(super) fn unlock_again(&self, taken: &TakenLock) {
        let unlocked = self
            .files
            .get(taken.handle)
            .and_then(|opened| opened.file.unlock(taken.owner, &taken.range).map_err(Errno::from));
        if unlocked.is_err() {
            tracing::debug!("a lock of a program that was killed ends with the open file");
        }
    }
}
