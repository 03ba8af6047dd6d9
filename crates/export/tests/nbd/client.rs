//! A small client, to which nothing of the server is known but the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const REQ_ONE: u16 = 8;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED: u32 = 8;
pub const SET_META: u32 = 10;

pub const ACK: u32 = 1;

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub cookie: u64,
    pub errno: u32,
    /// Data of a read, or the payload of a status.
    pub data: Vec<u8>,
}

pub struct Client<S = UnixStream> {
    pub stream: S,
    pub size: u64,
    pub flags: u16,
    pub structured: bool,
    pub cookie: u64,
    /// The lengths of reads by cookie, for simple replies.
    pub reads: std::collections::HashMap<u64, usize>,
}

impl Client {
    /// Connects and says hello.
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self::greet(stream)
    }

    /// Connects and uses an export.
    pub fn open(path: &Path, name: &str, structured: bool) -> Self {
        let mut client = Self::connect(path);
        client.go(name, structured);
        client
    }
}

impl<S: Read + Write> Client<S> {
    pub fn greet(mut stream: S) -> Self {
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(hello[17] & 3, 3, "fixed newstyle, and no zeroes");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Self {
            stream,
            size: 0,
            flags: 0,
            structured: false,
            cookie: 0,
            reads: std::collections::HashMap::new(),
        }
    }

    /// Uses an export; with structured replies also with block status.
    pub fn go(&mut self, name: &str, structured: bool) {
        if structured {
            assert_eq!(self.option(STRUCTURED, &[]), vec![(ACK, vec![])]);
            self.structured = true;
            let replies = self.option(SET_META, &contexts(name, &["base:allocation"]));
            assert_eq!(replies.len(), 2, "{replies:?}");
            assert_eq!(replies[0].1[4..], *b"base:allocation");
        }
        let replies = self.option(GO, &information(name));
        assert_eq!(replies.last().unwrap().0, ACK, "{replies:?}");
        let export = &replies.iter().find(|(_, data)| data.starts_with(&[0, 0])).unwrap().1;
        self.size = u64::from_be_bytes(export[2..10].try_into().unwrap());
        self.flags = u16::from_be_bytes(export[10..12].try_into().unwrap());
    }

    /// Sends an option; returns the kinds and data of the replies.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut message = b"IHAVEOPT".to_vec();
        message.extend(option.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message).unwrap();
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).unwrap();
            assert_eq!(head[..8], 0x3_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(head[8..12], option.to_be_bytes());
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
            self.stream.read_exact(&mut data).unwrap();
            replies.push((kind, data));
            if kind == ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// Returns the bytes of the next request.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Vec<u8> {
        self.cookie += 1;
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(self.cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        message
    }

    /// Sends a request; returns its cookie.
    pub fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        let message = self.request(kind, flags, offset, len, data);
        if kind == READ {
            self.reads.insert(self.cookie, len as usize);
        }
        self.stream.write_all(&message).unwrap();
        self.cookie
    }

    /// Receives one answer.
    pub fn answer(&mut self) -> Answer {
        let mut magic = [0; 4];
        self.stream.read_exact(&mut magic).unwrap();
        match u32::from_be_bytes(magic) {
            0x6744_6698 => self.simple_answer(),
            0x668e_33ef => self.chunk_answer(),
            other => panic!("{other:#x} begins no reply"),
        }
    }

    fn simple_answer(&mut self) -> Answer {
        let mut rest = [0; 12];
        self.stream.read_exact(&mut rest).unwrap();
        let errno = u32::from_be_bytes(rest[..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(rest[4..].try_into().unwrap());
        let len = self.reads.remove(&cookie);
        assert!(len.is_none() || !self.structured, "a read is answered in chunks");
        let mut data = vec![0; if errno == 0 { len.unwrap_or(0) } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        Answer { cookie, errno, data }
    }

    fn chunk_answer(&mut self) -> Answer {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        let kind = u16::from_be_bytes(head[2..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[4..12].try_into().unwrap());
        let mut data = vec![0; u32::from_be_bytes(head[12..].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut data).unwrap();
        assert_eq!(head[..2], [0, 1], "one chunk is the whole reply");
        self.reads.remove(&cookie);
        match kind {
            1 => Answer { cookie, errno: 0, data: data.split_off(8) },
            5 => Answer { cookie, errno: 0, data: data.split_off(4) },
            0x8001 => {
                let errno = u32::from_be_bytes(data[..4].try_into().unwrap());
                Answer { cookie, errno, data: data.split_off(6) }
            }
            other => panic!("no chunk of kind {other} is expected"),
        }
    }

    /// Sends a request and waits for its answer; returns the error number and the data.
    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> (u32, Vec<u8>) {
        let cookie = self.send(kind, flags, offset, len, &[]);
        let answer = self.answer();
        assert_eq!(answer.cookie, cookie);
        (answer.errno, answer.data)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let (errno, data) = self.ask(READ, 0, offset, len);
        assert_eq!((errno, data.len()), (0, len as usize));
        data
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send(WRITE, flags, offset, data.len() as u32, data);
        let answer = self.answer();
        assert_eq!(answer.cookie, cookie);
        answer.errno
    }

    /// Returns the runs of a range: length and flags.
    pub fn status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
        let (errno, data) = self.ask(STATUS, flags, offset, len);
        assert_eq!(errno, 0);
        data.chunks(8)
            .map(|run| {
                let number = |at: usize| u32::from_be_bytes(run[at..at + 4].try_into().unwrap());
                (number(0), number(4))
            })
            .collect()
    }
}

/// Makes the data of `INFO` and `GO`: a name, and all there is to know.
pub fn information(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend([0, 3, 0, 1, 0, 2, 0, 3]);
    data
}

/// Makes the data of `SET_META_CONTEXT`.
pub fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}
