//! Reading. The bytes may be anything.

use super::{
    ABOUT, BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, Cut, END, EVENTS, FILES, HEAD_BYTES, Loaded, MAGIC,
    PROCESSES, VERSION, checksum,
};
use crate::slot::Call;
use crate::trace::{Event, Process, Trace, TracedFile};

impl Trace {
    /// Reads a trace from the bytes of its file, up to where they end or make no sense.
    ///
    /// # Errors
    /// Why the bytes are no trace at all.
    pub fn decode(bytes: &[u8]) -> Result<Loaded, String> {
        if !bytes.starts_with(MAGIC) {
            return Err("is not a trace".to_owned());
        }
        let version = bytes.get(MAGIC.len()..HEAD_BYTES).and_then(word);
        match version {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!(
                    "is a trace of version {other}, and this program reads version {VERSION}"
                ));
            }
            None => return Err("ends within its first bytes".to_owned()),
        }
        let (mut trace, mut at) = (Trace::default(), HEAD_BYTES);
        let cut = loop {
            let (kind, content) = match block(&bytes[at..]) {
                Ok((END, _)) => break None,
                Ok(block) => block,
                Err(why) => break Some(why),
            };
            if let Err(why) = take(&mut trace, kind, content) {
                break Some(why);
            }
            at += BLOCK_HEAD_BYTES + content.len();
        };
        let cut = cut.map(|why| Cut { at_bytes: at as u64, why });
        Ok(Loaded { trace, cut })
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// Returns the block that the bytes begin with.
fn block(bytes: &[u8]) -> Result<(u32, &[u8]), &'static str> {
    const SHORT: &str = "it was cut short";
    let (head, rest) = bytes.split_at_checked(BLOCK_HEAD_BYTES).ok_or(SHORT)?;
    let field = |at: usize| word(&head[at..]).ok_or(SHORT);
    let (kind, len, sum) = (field(0)?, field(4)? as usize, field(8)?);
    if len > BLOCK_BYTES_MAX {
        return Err("a block is longer than any that is written");
    }
    let content = rest.get(..len).ok_or(SHORT)?;
    if checksum(kind, content) != sum {
        return Err("a block does not match its checksum");
    }
    Ok((kind, content))
}

const SENSELESS: &str = "a block makes no sense";

fn take(trace: &mut Trace, kind: u32, content: &[u8]) -> Result<(), &'static str> {
    let mut rest = Rest(content);
    match kind {
        ABOUT => {
            trace.about = serde_json::from_slice(content).map_err(|_| SENSELESS)?;
        }
        PROCESSES => {
            while !rest.0.is_empty() {
                trace.processes.push(rest.process().ok_or(SENSELESS)?);
            }
        }
        FILES => {
            while !rest.0.is_empty() {
                trace.files.push(rest.file().ok_or(SENSELESS)?);
            }
        }
        EVENTS => {
            let mut before = 0;
            while !rest.0.is_empty() {
                let event = rest.event(before).filter(|event| is_known(trace, event));
                let event = event.ok_or(SENSELESS)?;
                before = event.begin_ns;
                trace.events.push(event);
            }
        }
        // A later program may write more.
        _ => {}
    }
    Ok(())
}

fn is_known(trace: &Trace, event: &Event) -> bool {
    let in_files = event.file.is_none_or(|file| (file as usize) < trace.files.len());
    in_files && (event.process as usize) < trace.processes.len()
}

/// What is still to be read of a block.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        let len = self.small::<usize>()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn process(&mut self) -> Option<Process> {
        Some(Process { pid: self.small()?, parent: self.small()?, program: self.text()? })
    }

    fn file(&mut self) -> Option<TracedFile> {
        Some(TracedFile {
            device: self.number()?,
            inode: self.number()?,
            size_bytes: self.number()?,
            is_device: self.number()? != 0,
            path: self.text()?,
        })
    }

    fn event(&mut self, before_ns: u64) -> Option<Event> {
        let call = Call::of(self.byte()?)?;
        let how = self.byte()?;
        let align = self.byte()?;
        Some(Event {
            call,
            how,
            memory_align: (align <= 12).then(|| 1 << align)?,
            begin_ns: self.number()?.checked_add(before_ns)?,
            took_ns: self.number()?,
            process: self.small()?,
            thread: self.small()?,
            file: match self.small::<u32>()? {
                0 => None,
                file => Some(file - 1),
            },
            errno: self.small()?,
            flags: self.small()?,
            offset: self.number()?,
            asked: self.number()?,
            moved: self.number()?,
        })
    }
}
