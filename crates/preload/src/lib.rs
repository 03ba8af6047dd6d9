//! `libbedplate_lease.so`, preloaded into programs: their aligned I/O on leased files goes from
//! their own threads to the device.
//!
//! ```text
//!  program ── pread ──► calls ──► direct ──► device          a lease, and no doubt
//!                         │        └─► the daemon's cache     mapped, of files in `concurrent+cache`
//!                         └─────────────────► the mount       everything else
//! ```
//!
//! `uncached` does the same for files of any file system, past the page cache; `traced` records what
//! the program calls.
//!
//! A missed call costs speed and never correctness: the program's descriptor is the mount's,
//! always, and every path that is not sure ends there. On the way of I/O nothing is allocated, no
//! lock is taken and no thread is started; nothing here panics, and if it did the program would
//! abort.

mod aio;
mod appends;
mod buffers;
mod cached;
mod calls;
mod contexts;
mod counter;
mod data_calls;
mod direct;
mod due;
mod maps;
mod mount;
mod odd;
mod open;
mod overwrites;
mod own;
mod process;
mod report;
mod rested;
mod shadow;
mod shared;
mod sys;
mod table;
mod tail;
mod thread;
mod traced;
mod uncached;
mod visit;
mod whole_calls;
