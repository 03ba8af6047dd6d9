//! Leases for programs: which users may have them, and how a program gets one.
//!
//! ```text
//!   program ── ioctl on its open file ──► offer(): a token, once, for this file
//!      └────── attach, with the token ──► server.rs: user, process, descriptors, memory ── publish() ──► File::lease()
//! ```
//!
//! The token proves that its bearer has, or was given by a process that has, this very file open;
//! the socket tells the process and its user. What may be leased is decided in the file system;
//! what is added here is that the kernel keeps no pages of a file that is leased (I-PAG-1):
//!
//! - I-LEA-6: a file is published only when the kernel holds none of its pages, and the first page
//!   that it asks for on a direct open, because the file is mapped, ends the lease before it is
//!   filled.

mod packet;
mod requests;
mod server;
mod users;

pub(super) use server::LeaseServer;
pub use users::LeaseUsers;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use bedplate_fs::InodeNo;
use bedplate_lease::wire::{
    self, ODD_BYTES, OFFER_BYTES, OddRequest, Offer, Place, SocketName, TailRequest, Token,
};
use bedplate_lease::{Lease, Reason};
use parking_lot::Mutex;

use super::errno::{Answer, Errno};
use super::open_files::KernelPages;
use super::shared::Shared;

/// How many tokens wait to be used; of more the oldest is worth nothing any more.
const TOKENS_MAX: usize = 4096;

/// The ioctl by which a program asks for an offer.
pub(super) const IOCTL: u32 = wire::LEASE_IOCTL;

/// The ioctl by which it asks for the right to odd writes of the file.
pub(super) const ODD_IOCTL: u32 = wire::ODD_IOCTL;

/// The ioctl by which it asks for a tail of the file.
pub(super) const TAIL_IOCTL: u32 = wire::TAIL_IOCTL;

/// The ioctl by which it asks for a buffer for what it appends to the file.
pub(super) const APPEND_IOCTL: u32 = wire::APPEND_IOCTL;

/// The ioctl by which it has the file's data made durable.
pub(super) const SYNC_IOCTL: u32 = wire::SYNC_IOCTL;

/// What a mount that leases has at hand.
#[derive(Debug)]
pub(super) struct Desk {
    mount: u64,
    users: LeaseUsers,
    socket: SocketName,
    random: File,
    tokens: Mutex<VecDeque<Grant>>,
}

/// What a token is worth.
#[derive(Debug, Clone, Copy)]
struct Grant {
    token: Token,
    ino: InodeNo,
    writable: bool,
}

/// A file that a token stood for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) ino: InodeNo,
    /// The open that was asked on may write.
    pub(super) writable: bool,
}

impl Desk {
    /// Makes a desk with a socket's name of its own.
    fn new(users: LeaseUsers) -> io::Result<Self> {
        let random = File::open("/dev/urandom")?;
        let number = || {
            let mut bytes = [0; 8];
            (&random).read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let (mount, name) = (number()?.max(1), number()?);
        let name = format!("\0bedplate-lease-{name:016x}");
        let socket = SocketName::new(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { mount, users, socket, random, tokens: Mutex::default() })
    }

    /// The name of the socket, without the zero that says that it is no path.
    pub(super) fn name(&self) -> &[u8] {
        &self.socket.as_bytes()[1..]
    }

    pub(super) fn allows(&self, uid: u32) -> bool {
        self.users.allow(uid)
    }

    /// Returns whether a user may have the device for reading and writing whatever the open that it
    /// asks on allows.
    pub(super) fn owns(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }

    fn grant(&self, ino: InodeNo, writable: bool) -> io::Result<Token> {
        let mut token = Token::default();
        (&self.random).read_exact(&mut token)?;
        let mut tokens = self.tokens.lock();
        if tokens.len() == TOKENS_MAX {
            tokens.pop_front();
        }
        tokens.push_back(Grant { token, ino, writable });
        Ok(token)
    }

    /// Takes a token: it is worth something once.
    pub(super) fn redeem(&self, token: &Token) -> Result<Granted, Reason> {
        let mut tokens = self.tokens.lock();
        let at = tokens.iter().position(|grant| grant.token == *token).ok_or(Reason::Token)?;
        let grant = tokens.remove(at).ok_or(Reason::Token)?;
        Ok(Granted { ino: grant.ino, writable: grant.writable })
    }
}

impl Shared {
    /// Begins to lease files to the users of the mount option; says why not where that cannot be.
    pub(super) fn start_leases(&self) -> Result<(), String> {
        let desk = Desk::new(self.settings.leases.clone()).map_err(|error| error.to_string())?;
        self.fs.lease_start(desk.mount).map_err(|error| error.message)?;
        self.fs.lease_kill_after(self.settings.lease_kill);
        self.desk.get_or_init(|| desk);
        Ok(())
    }

    /// Answers a program that asks for a lease of a file that it has open.
    pub(super) fn offer(&self, uid: u32, handle: u64) -> Answer<[u8; OFFER_BYTES]> {
        let open = self.open_file(handle)?;
        let ino = open.inode.ino;
        let Some(desk) = self.desk.get() else {
            return Ok(Offer { mount: 0, inode: ino.0, leased: Err(Reason::Off) }.encode());
        };
        let place = || {
            if !desk.allows(uid) {
                return Err(Reason::User);
            }
            let mode = open.file.effective_mode();
            if !mode.may_be_leased() && !mode.may_share_cache() {
                return Err(Reason::Mode);
            }
            let token = desk.grant(ino, open.how.writable).map_err(|_| Reason::Failed)?;
            Ok(Place { token, socket: desk.socket })
        };
        let leased = place().inspect_err(|&reason| self.fs.lease_refused(Some(ino), reason));
        Ok(Offer { mount: desk.mount, inode: ino.0, leased }.encode())
    }

    /// Gives a program with leases the right to odd writes of a file that it has open for writing.
    pub(super) fn odd_writes(
        &self,
        uid: u32,
        handle: u64,
        asked: &[u8],
    ) -> Answer<[u8; ODD_BYTES]> {
        let open = self.open_file(handle)?;
        let give = || {
            let OddRequest { client } = OddRequest::decode(asked)?;
            let desk = self.desk.get().ok_or(Reason::Off)?;
            if !desk.allows(uid) || !open.how.writable {
                return Err(Reason::User);
            }
            open.file.lease_odd_writes(client)
        };
        Ok(OddRequest::answer(give()))
    }

    /// Gives a program with leases a tail of a file that it has open for writing, or a buffer for what
    /// it appends, and answers, from a worker where the kernel is to forget the size first: from now on
    /// it asks each time (S-354).
    pub(super) fn growth(
        self: &Arc<Self>,
        (uid, handle): (u32, u64),
        (command, asked): (u32, &[u8]),
        answer: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        let given = self.run("ioctl", || {
            let open = self.open_file(handle)?;
            let give = || {
                let TailRequest { client, offset, len } = TailRequest::decode(asked)?;
                let desk = self.desk.get().ok_or(Reason::Off)?;
                if !desk.allows(uid) || !open.how.writable {
                    return Err(Reason::User);
                }
                match command {
                    APPEND_IOCTL => open.file.lease_appends(client, offset, len),
                    _ => open.file.lease_tail(client, offset, len),
                }
            };
            let given = give();
            Ok((open, given))
        });
        let told = |done| TailRequest::answer(done).to_vec();
        match given {
            Ok((open, Ok(true))) => self.run_for_caches(move |shared| {
                shared.raise_size(open.inode.ino);
                answer(Ok(told(Ok(()))));
            }),
            Ok((open, done)) => {
                answer(Ok(told(done.map(drop))));
                open.file.lease_appends_given();
            }
            Err(errno) => answer(Err(errno)),
        }
    }

    /// Makes the data of a file durable beside other syncs of it, and answers. Only where the kernel
    /// keeps no pages of the file: here it does not write them first, as it does before `fsync`.
    pub(super) fn sync_beside(
        self: &Arc<Self>,
        handle: u64,
        answer: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        self.run_sync(move |shared| {
            let synced = shared.run("ioctl", || {
                let open = shared.open_file(handle)?;
                if shared.desk.get().is_none() || open.inode.kernel_pages() != KernelPages::Nothing
                {
                    return Err(Errno::NOTTY);
                }
                shared.fsync(&open, true)
            });
            answer(synced.map(|()| Vec::new()));
        });
    }

    /// Publishes a file of which the kernel keeps no pages. Not on an event thread: it waits for
    /// the kernel where pages were left behind.
    pub(super) fn publish(self: &Arc<Self>, ino: InodeNo) -> Result<Lease, Reason> {
        let open = self.files.any_of(ino).ok_or(Reason::Kind)?;
        let drop_left = || match open.inode.kernel_pages() {
            KernelPages::Nothing => Ok(()),
            KernelPages::InUse => Err(Reason::Suspended),
            KernelPages::LeftUpto(upto) => {
                self.kernel.drop_pages(ino, 0, 0);
                open.inode.dropped_left(upto);
                Ok(())
            }
        };
        drop_left()?;
        let lease = open.file.lease()?;
        // An open that came and went in between left pages that are older than what is written
        // from now on. One that is still there took the lease back.
        drop_left()?;
        Ok(lease)
    }

    /// Has the kernel ask again for the attributes of files that were written to under leases. While
    /// the size of one moves it does so by itself.
    pub(super) fn show_leased_writes(&self) {
        let files = self.fs.leased_writes().into_iter();
        files.filter(|ino| !self.size_moves(*ino)).for_each(|ino| self.raise_size(ino));
    }

    /// Hands files out again that were served another way for a while.
    pub(super) fn publish_again(self: &Arc<Self>) {
        for ino in self.fs.leases_withheld() {
            if let Err(reason) = self.publish(ino) {
                tracing::trace!("inode {} stays on the mount: {}", ino.0, reason.sentence());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-214: a token is worth one request for one file, a forged one nothing.
    #[test]
    fn s_214_a_token_is_worth_something_once() {
        let desk = Desk::new(LeaseUsers::Owner).unwrap();
        let token = desk.grant(InodeNo(7), false).unwrap();
        assert_ne!(token, Token::default());
        assert!(matches!(desk.redeem(&Token::default()), Err(Reason::Token)), "forged");
        let granted = desk.redeem(&token).unwrap();
        assert!(granted.ino == InodeNo(7) && !granted.writable);
        assert!(matches!(desk.redeem(&token), Err(Reason::Token)), "replayed");
        let first = desk.grant(InodeNo(8), true).unwrap();
        for _ in 0..TOKENS_MAX {
            desk.grant(InodeNo(9), true).unwrap();
        }
        assert!(matches!(desk.redeem(&first), Err(Reason::Token)), "too old");
        assert_eq!(desk.tokens.lock().len(), TOKENS_MAX);
    }
}
