//! The process that serves a mount: how it is started, and what it is asked and tells about its
//! group.

pub mod control;
pub mod events;
pub mod halves;
pub mod host_room;
pub mod names;
pub mod scrubbed;
pub mod signals;
pub mod spawn;
pub mod status;
pub mod system_log;
