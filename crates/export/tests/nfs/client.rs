//! A small client, to which nothing of the server is known but the protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;

pub const GETATTR: u32 = 1;
pub const SETATTR: u32 = 2;
pub const LOOKUP: u32 = 3;
pub const ACCESS: u32 = 4;
pub const READLINK: u32 = 5;
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const CREATE: u32 = 8;
pub const MKDIR: u32 = 9;
pub const SYMLINK: u32 = 10;
pub const MKNOD: u32 = 11;
pub const REMOVE: u32 = 12;
pub const RMDIR: u32 = 13;
pub const RENAME: u32 = 14;
pub const LINK: u32 = 15;
pub const READDIR: u32 = 16;
pub const READDIRPLUS: u32 = 17;
pub const FSSTAT: u32 = 18;
pub const FSINFO: u32 = 19;
pub const PATHCONF: u32 = 20;
pub const COMMIT: u32 = 21;

pub const UNSTABLE: u32 = 0;
pub const DATA_SYNC: u32 = 1;
pub const FILE_SYNC: u32 = 2;

pub const OK: u32 = 0;
pub const NOT_OWNER: u32 = 1;
pub const NOT_FOUND: u32 = 2;
pub const DENIED: u32 = 13;
pub const EXISTS: u32 = 17;
pub const INVALID: u32 = 22;
pub const READ_ONLY: u32 = 30;
pub const NOT_EMPTY: u32 = 66;
pub const STALE: u32 = 70;
pub const BAD_HANDLE: u32 = 10_001;
pub const NOT_SYNCED: u32 = 10_002;
pub const BAD_COOKIE: u32 = 10_003;

/// Arguments.
#[derive(Debug, Clone, Default)]
pub struct Args(pub Vec<u8>);

impl Args {
    pub fn of(handle: &[u8]) -> Self {
        Self::default().opaque(handle)
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn opaque(self, bytes: &[u8]) -> Self {
        let mut longer = self.u32(bytes.len() as u32);
        longer.0.extend(bytes);
        longer.0.resize(longer.0.len().next_multiple_of(4), 0);
        longer
    }

    /// Attributes to set: the mode alone, or nothing.
    pub fn mode(self, mode: Option<u32>) -> Self {
        let with = match mode {
            Some(mode) => self.u32(1).u32(mode),
            None => self.u32(0),
        };
        with.u32(0).u32(0).u32(0).u32(0).u32(0)
    }

    /// Attributes to set: the size alone.
    pub fn size(self, size: u64) -> Self {
        self.u32(0).u32(0).u32(0).u32(1).u64(size).u32(0).u32(0)
    }
}

/// A result that is read.
#[derive(Debug, Clone)]
pub struct Result(pub Vec<u8>);

impl Result {
    pub fn u32(&mut self) -> u32 {
        let rest = self.0.split_off(4);
        u32::from_be_bytes(std::mem::replace(&mut self.0, rest).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub fn opaque(&mut self) -> Vec<u8> {
        let len = self.u32() as usize;
        let rest = self.0.split_off(len.next_multiple_of(4));
        let mut bytes = std::mem::replace(&mut self.0, rest);
        bytes.truncate(len);
        bytes
    }

    pub fn attr(&mut self) -> Attr {
        let [kind, mode, nlink, uid, gid] = [0; 5].map(|_| self.u32());
        let [size, used, _rdev, fsid, number] = [0; 5].map(|_| self.u64());
        let [_atime, mtime, ctime] = [0; 3].map(|_| [self.u32(), self.u32()]);
        Attr { kind, mode, nlink, uid, gid, size, used, fsid, number, mtime, ctime }
    }

    pub fn after(&mut self) -> Option<Attr> {
        (self.u32() == 1).then(|| self.attr())
    }

    pub fn change(&mut self) -> Option<Attr> {
        assert_eq!(self.u32(), 0, "nothing of before is told");
        self.after()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    pub kind: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub fsid: u64,
    pub number: u64,
    pub mtime: [u32; 2],
    pub ctime: [u32; 2],
}

pub struct Client {
    pub stream: TcpStream,
    pub xid: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Client {
    pub fn connect(address: SocketAddr, uid: u32) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, xid: 1000, uid, gid: uid, groups: vec![] }
    }

    /// Makes the record of a call.
    pub fn record(&self, program: u32, procedure: u32, args: &Args) -> Vec<u8> {
        let mut user = Args::default().u32(0).opaque(b"host").u32(self.uid).u32(self.gid);
        user = user.u32(self.groups.len() as u32);
        for group in &self.groups {
            user = user.u32(*group);
        }
        let call = Args::default().u32(self.xid).u32(0).u32(2).u32(program).u32(3).u32(procedure);
        let mut call = call.u32(1).opaque(&user.0).u32(0).u32(0);
        call.0.extend(&args.0);
        let mut record = (call.0.len() as u32 | 1 << 31).to_be_bytes().to_vec();
        record.extend(call.0);
        record
    }

    pub fn send(&mut self, program: u32, procedure: u32, args: &Args) -> u32 {
        self.xid += 1;
        let record = self.record(program, procedure, args);
        self.stream.write_all(&record).unwrap();
        self.xid
    }

    /// Receives a reply: its number and what follows.
    pub fn reply(&mut self) -> (u32, Result) {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mark = u32::from_be_bytes(mark);
        assert_eq!(mark >> 31, 1, "a reply is one fragment");
        let mut bytes = vec![0; (mark & !(1 << 31)) as usize];
        self.stream.read_exact(&mut bytes).unwrap();
        let mut result = Result(bytes);
        let xid = result.u32();
        assert_eq!(result.u32(), 1, "a reply");
        (xid, result)
    }

    /// Calls; returns what follows the head of a reply that accepts the call.
    pub fn call(&mut self, program: u32, procedure: u32, args: &Args) -> Result {
        let sent = self.send(program, procedure, args);
        let (xid, mut result) = self.reply();
        assert_eq!(xid, sent);
        assert_eq!([0; 4].map(|_| result.u32()), [0; 4], "accepted and carried out");
        result
    }

    /// Calls NFS; returns the status and what follows it.
    pub fn nfs(&mut self, procedure: u32, args: &Args) -> (u32, Result) {
        let mut result = self.call(NFS, procedure, args);
        (result.u32(), result)
    }

    /// Calls what has to work.
    pub fn done(&mut self, procedure: u32, args: &Args) -> Result {
        let (status, result) = self.nfs(procedure, args);
        assert_eq!(status, OK, "procedure {procedure}");
        result
    }

    /// Calls what has to fail; returns the status.
    pub fn fails(&mut self, procedure: u32, args: &Args) -> u32 {
        let (status, result) = self.nfs(procedure, args);
        assert_ne!(status, OK, "procedure {procedure}");
        assert!(result.0.iter().all(|byte| *byte == 0), "no attributes are told: {result:?}");
        status
    }

    pub fn mount(&mut self, path: &str) -> std::result::Result<Vec<u8>, u32> {
        let mut result = self.call(MOUNT, 1, &Args::of(path.as_bytes()));
        match result.u32() {
            0 => {
                let handle = result.opaque();
                assert_eq!((result.u32(), result.u32()), (1, 1), "AUTH_SYS");
                Ok(handle)
            }
            status => Err(status),
        }
    }

    pub fn lookup(&mut self, dir: &[u8], name: &str) -> std::result::Result<Vec<u8>, u32> {
        match self.nfs(LOOKUP, &place(dir, name)) {
            (OK, mut result) => Ok(result.opaque()),
            (status, _) => Err(status),
        }
    }

    pub fn attr(&mut self, handle: &[u8]) -> Attr {
        self.done(GETATTR, &Args::of(handle)).attr()
    }

    pub fn create(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        made(&mut self.done(CREATE, &place(dir, name).u32(1).mode(Some(0o644))))
    }

    pub fn mkdir(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        made(&mut self.done(MKDIR, &place(dir, name).mode(Some(0o755))))
    }

    /// Writes; returns how stable it is, and the verifier.
    pub fn write(&mut self, handle: &[u8], offset: u64, data: &[u8], stable: u32) -> (u32, u64) {
        let mut result = self.done(WRITE, &write_args(handle, offset, data, stable));
        result.change().unwrap();
        assert_eq!(result.u32(), data.len() as u32);
        (result.u32(), result.u64())
    }

    /// Commits; returns the verifier.
    pub fn commit(&mut self, handle: &[u8]) -> u64 {
        let mut result = self.done(COMMIT, &Args::of(handle).u64(0).u32(0));
        result.change().unwrap();
        result.u64()
    }

    /// Reads; returns the data, and whether the file ends there.
    pub fn read(&mut self, handle: &[u8], offset: u64, count: u32) -> (Vec<u8>, bool) {
        let mut result = self.done(READ, &Args::of(handle).u64(offset).u32(count));
        result.after().unwrap();
        let count = result.u32();
        let is_end = result.u32() == 1;
        let data = result.opaque();
        assert_eq!(data.len(), count as usize);
        (data, is_end)
    }

    /// Lists names and cookies from a cookie on, with one request; also the verifier, and whether
    /// the directory ends there.
    pub fn list(
        &mut self,
        dir: &[u8],
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> (Vec<(String, u64)>, u64, bool) {
        let args = Args::of(dir).u64(cookie).u64(verifier).u32(bytes);
        let mut result = self.done(READDIR, &args);
        assert!(result.0.len() <= bytes as usize, "no more than there is room for");
        result.after().unwrap();
        let verifier = result.u64();
        let mut names = Vec::new();
        while result.u32() == 1 {
            let _number = result.u64();
            let name = String::from_utf8(result.opaque()).unwrap();
            names.push((name, result.u64()));
        }
        (names, verifier, result.u32() == 1)
    }
}

pub fn place(dir: &[u8], name: &str) -> Args {
    Args::of(dir).opaque(name.as_bytes())
}

pub fn write_args(handle: &[u8], offset: u64, data: &[u8], stable: u32) -> Args {
    Args::of(handle).u64(offset).u32(data.len() as u32).u32(stable).opaque(data)
}

/// Reads the handle of something that was made, and the attributes that follow.
pub fn made(result: &mut Result) -> Vec<u8> {
    assert_eq!(result.u32(), 1, "the handle is told");
    let handle = result.opaque();
    result.after().unwrap();
    result.change().unwrap();
    assert!(result.0.is_empty());
    handle
}
