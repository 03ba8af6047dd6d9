//! Replies: what a request was answered, told to the kernel.

use bedplate_fs::Attr;
use fuser::{
    FileAttr, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyXattr,
};

use super::super::errno::{Answer, Errno};
use super::super::names::Entry;
use super::Adapter;
use super::convert::generation;

impl Adapter {
    pub(super) fn reply_entry(&self, reply: ReplyEntry, answer: Answer<Entry>) {
        match answer {
            Ok(Entry { attr, name_ttl }) if attr.ino == self.0.shown.root() => {
                let root = FileAttr { ino: INodeNo::ROOT, ..self.attr(&attr) };
                reply.entry_with_ttls(&self.0.attr_ttl(attr.ino), &name_ttl, &root, Generation(0));
            }
            Ok(Entry { attr, name_ttl }) => reply.entry_with_ttls(
                &self.0.attr_ttl(attr.ino),
                &name_ttl,
                &self.attr(&attr),
                generation(&attr),
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    pub(super) fn reply_attr(&self, reply: ReplyAttr, answer: Answer<Attr>) {
        match answer {
            Ok(attr) => reply.attr(&self.0.attr_ttl(attr.ino), &self.attr(&attr)),
            Err(errno) => reply.error(errno.into()),
        }
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno.into()),
    }
}

pub(super) fn reply_xattr(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::RANGE.into()),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno.into()),
    }
}

/// Answers an ioctl whose caller has room for so many bytes.
pub(super) fn answer_ioctl(reply: ReplyIoctl, out_size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(told) if told.len() <= out_size as usize => reply.ioctl(0, &told),
        Ok(_) => reply.error(Errno::INVAL.into()),
        Err(errno) => reply.error(errno.into()),
    }
}
