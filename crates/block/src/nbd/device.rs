//! An export as a device.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::claim::Claim;
use super::handshake::{Export, agree};
use super::link::{Call, Failed, Link};
use super::socket::Socket;
use super::uri::Uri;
use super::wire::{command, errno, flag, transmission};
use super::{Refusal, words};
use crate::check::{Limits, assert_geometry, error};
use crate::counters::LiveCounters;
use crate::descriptor::from_errno;
use crate::inline::{Positioned, Served};
use crate::threads::Servers;
use crate::{
    BlockDevice, DeviceCounters, DeviceOptions, DeviceQueue, Engine, EngineReport, Error,
    ErrorKind, Geometry, Operation, QueueOptions, Request, Result,
};

/// How many connections there are where the server allows more than one.
const CONNECTIONS: usize = 4;
/// How long those behind the first may take: a server may serve one client only, and let others wait.
const FURTHER: Duration = Duration::from_secs(2);
/// How long the beginning may take of what only looks for a label: a server of one client lets it wait
/// for as long as that client is there.
const LOOK: Duration = Duration::from_secs(3);
/// The longest request; longer calls are several.
const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// What a disk has at least.
const SECTOR_BYTES: u32 = 512;
/// The largest unit that is believed to be written without a read.
const PHYSICAL_BYTES_MAX: u32 = 64 << 10;

/// What the device and its queues share.
#[derive(Debug)]
struct Core {
    link: Arc<Link>,
    name: String,
    export: Export,
    geometry: Geometry,
    size_bytes: u64,
    /// The longest request: whole blocks.
    request_bytes: u32,
    counters: LiveCounters,
    listeners: Vec<JoinHandle<()>>,
}

/// An export of a server, opened by [`open`].
#[derive(Debug)]
struct NbdDevice {
    core: Arc<Core>,
    servers: Servers,
}

/// Opens the export that a URI names.
///
/// # Errors
/// `Busy`, `Unsupported` (a URI that is refused, TLS, an export that takes writes and no flush), `NotFound`,
/// `Permission`, `ReadOnly` or `Io`.
pub(crate) fn open(path: &Path, options: &DeviceOptions) -> Result<Arc<dyn BlockDevice>> {
    let shown = path.display().to_string();
    let failed = |name: &str, refusal: Refusal| {
        error(name, refusal.kind, Operation::Open, None, refusal.detail)
    };
    let uri = Uri::parse(path).map_err(|refusal| failed(&shown, refusal))?;
    let name = uri.to_string();
    if options.engine == Engine::Uring {
        let detail = "an export of another machine is not served by io_uring";
        return Err(failed(&name, Refusal::new(ErrorKind::Unsupported, detail)));
    }
    let core = connect(&uri, &name, options).map_err(|refusal| failed(&name, refusal))?;
    let servers = Servers::new(options.server_threads);
    Ok(Arc::new(NbdDevice { core: Arc::new(core), servers }))
}

fn connect(uri: &Uri, name: &str, options: &DeviceOptions) -> std::result::Result<Core, Refusal> {
    let claim = if options.exclusive { Some(Claim::of(uri)?) } else { None };
    let patience = if options.exclusive { uri.timeout } else { uri.timeout.min(LOOK) };
    let (socket, export) = begin(uri, patience)?;
    let geometry = geometry(&export, options.read_only)?;
    let mut sockets = vec![socket];
    // One that only looks is gone soon.
    if export.has(transmission::CAN_MULTI_CONN) && options.exclusive {
        while sockets.len() < CONNECTIONS {
            match begin(uri, uri.timeout.min(FURTHER)) {
                Ok((socket, same)) if same == export => sockets.push(socket),
                Ok(_) => {
                    return Err(Refusal::io("the export changes from connection to connection"));
                }
                Err(refusal) => {
                    tracing::debug!(device = name, reason = refusal.detail, "fewer connections");
                    break;
                }
            }
        }
    }
    assert!(
        sockets.len() == 1 || export.has(transmission::CAN_MULTI_CONN),
        "I-NDV-2: more than one connection only where a flush on one covers all"
    );
    let block = geometry.logical_block_size;
    let [_, _, most] = export.block_bytes;
    // One that reads only had to see that nothing writes.
    let claim = claim.filter(|_| !options.read_only);
    let link = Link::new(name.to_owned(), uri.timeout, sockets, claim)
        .map_err(|error| Refusal::io(words(&error)))?;
    let mut core = Core {
        link: Arc::new(link),
        name: name.to_owned(),
        export,
        geometry,
        size_bytes: export.size_bytes - export.size_bytes % u64::from(block),
        request_bytes: REQUEST_BYTES_MAX.min(most) / block * block,
        counters: LiveCounters::default(),
        listeners: Vec::new(),
    };
    for at in 0..core.link.connections() {
        let link = Arc::clone(&core.link);
        let listener = std::thread::Builder::new().name("bedplate-nbd".into());
        let listener = listener.spawn(move || link.listen(at));
        core.listeners.push(listener.map_err(|error| Refusal::io(words(&error)))?);
    }
    Ok(core)
}

/// Connects, and comes to the point from which requests may be made.
fn begin(uri: &Uri, timeout: Duration) -> std::result::Result<(Socket, Export), Refusal> {
    let deadline = Instant::now() + timeout;
    let unreached = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            _ => ErrorKind::Io,
        };
        Refusal::new(kind, format!("the server is not reached: {}", words(&error)))
    };
    let socket = Socket::connect(&uri.place, deadline).map_err(unreached)?;
    socket.wait_for_writes(timeout).map_err(unreached)?;
    let export = agree(&socket, &uri.name, deadline)?;
    Ok((socket, export))
}

/// Makes a device's geometry of what the server tells.
fn geometry(export: &Export, read_only: bool) -> std::result::Result<Geometry, Refusal> {
    let [least, preferred, most] = export.block_bytes;
    if !read_only && export.has(transmission::READ_ONLY) {
        let detail = "the export is read-only; open it for reading only";
        return Err(Refusal::new(ErrorKind::ReadOnly, detail));
    }
    if !read_only && !export.has(transmission::SEND_FLUSH) {
        let detail = "the server takes no flush, so nothing would say when a write is durable: it \
                      can be opened for reading only";
        return Err(Refusal::new(ErrorKind::Unsupported, detail));
    }
    let block = least.max(SECTOR_BYTES);
    if most < block {
        return Err(Refusal::new(
            ErrorKind::Unsupported,
            format!("the server takes no more than {most} bytes at once"),
        ));
    }
    let is_unit = preferred.is_power_of_two() && (block..=PHYSICAL_BYTES_MAX).contains(&preferred);
    let geometry = Geometry {
        logical_block_size: block,
        physical_block_size: if is_unit { preferred } else { block },
        buffer_align: 1,
        untorn_unit: block,
        row_bytes: 0,
        volatile_cache: export.has(transmission::SEND_FLUSH),
        read_only,
    };
    assert_geometry(&geometry);
    Ok(geometry)
}

impl Core {
    fn limits(&self) -> Limits<'_> {
        Limits { geometry: &self.geometry, size_bytes: self.size_bytes }
    }

    /// Makes the error of a call that failed.
    #[cold]
    fn explain(&self, operation: Operation, offset: Option<u64>, failed: Failed) -> Error {
        match failed {
            Failed::Refused(number) => {
                // Others are not the protocol's, and mean on another system what they like.
                let known = [
                    errno::EPERM,
                    errno::EIO,
                    errno::ENOMEM,
                    errno::EINVAL,
                    errno::ENOSPC,
                    errno::EOVERFLOW,
                    errno::ENOTSUP,
                    errno::ESHUTDOWN,
                ];
                let number = if known.contains(&number) { number } else { errno::EIO };
                let mut error = from_errno(&self.name, operation, offset, number as i32);
                error.detail = format!("the server says: {}", error.detail);
                error
            }
            Failed::Broken => {
                let why = self.link.why().unwrap_or("it ended");
                let detail = format!("the connection broke, and is not made again: {why}");
                error(&self.name, ErrorKind::Io, operation, offset, detail)
            }
        }
    }

    /// Divides a range into requests: offset, and length.
    fn requests(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u32)> {
        let step = u64::from(self.request_bytes);
        (0..len.div_ceil(step))
            .map(move |at| (offset + at * step, step.min(len - at * step) as u32))
    }

    fn read_uncounted(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (len, address) = (buf.len(), buf.as_ptr() as usize);
        self.limits().transfer(&self.name, Operation::Read, offset, len, address)?;
        let mut rest = buf;
        for (offset, len) in self.requests(offset, len as u64) {
            let (part, tail) = rest.split_at_mut(len as usize);
            let call = Call { kind: command::READ, flags: 0, offset, len };
            let data = self
                .link
                .call(&call, &[])
                .map_err(|failed| self.explain(Operation::Read, Some(offset), failed))?;
            part.copy_from_slice(&data);
            rest = tail;
        }
        Ok(())
    }

    fn write_uncounted(&self, buf: &[u8], offset: u64) -> Result<()> {
        let (len, address) = (buf.len(), buf.as_ptr() as usize);
        self.limits().transfer(&self.name, Operation::Write, offset, len, address)?;
        let mut rest = buf;
        for (offset, len) in self.requests(offset, len as u64) {
            let (part, tail) = rest.split_at(len as usize);
            let call = Call { kind: command::WRITE, flags: 0, offset, len };
            self.link
                .call(&call, part)
                .map_err(|failed| self.explain(Operation::Write, Some(offset), failed))?;
            rest = tail;
        }
        Ok(())
    }

    /// Carries out a request that has a range and no data.
    fn change(&self, kind: u16, flags: u16, offset: u64, len: u64) -> Result<()> {
        for (offset, len) in self.requests(offset, len) {
            let call = Call { kind, flags, offset, len };
            self.link
                .call(&call, &[])
                .map_err(|failed| self.explain(Operation::Discard, Some(offset), failed))?;
        }
        Ok(())
    }

    /// As [`change`](Self::change), of what a server may leave; returns whether it was done.
    fn hint(&self, kind: u16, flags: u16, offset: u64, len: u64) -> Result<bool> {
        let done = match self.change(kind, flags, offset, len) {
            Err(error) if error.kind == ErrorKind::Unsupported => Ok(false),
            done => done.map(|()| true),
        };
        self.counters.count(Operation::Queue, 0, done)
    }

    fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.limits().range(&self.name, offset, len)?;
        if self.export.has(transmission::SEND_WRITE_ZEROES) {
            match self.change(command::WRITE_ZEROES, 0, offset, len) {
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                done => return done,
            }
        }
        let zeros = vec![0; len.min(u64::from(self.request_bytes)) as usize];
        self.requests(offset, len)
            .try_for_each(|(offset, len)| self.write_uncounted(&zeros[..len as usize], offset))
    }
}

impl Positioned for Core {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        let done = self.read_uncounted(buf, offset);
        self.counters.count(Operation::Read, len, done)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let done = self.write_uncounted(buf, offset);
        self.counters.count(Operation::Write, buf.len() as u64, done)
    }

    fn flush(&self) -> Result<()> {
        let call = Call { kind: command::FLUSH, flags: 0, offset: 0, len: 0 };
        let done = if self.geometry.read_only {
            Ok(())
        } else {
            self.link
                .call(&call, &[])
                .map(|_| ())
                .map_err(|failed| self.explain(Operation::Flush, None, failed))
        };
        self.counters.count(Operation::Flush, 0, done)
    }

    fn check(&self, request: &Request) -> Result<()> {
        self.counters.count(Operation::Queue, 0, self.limits().request(&self.name, request))
    }
}

impl Served for Core {
    fn name(&self) -> &str {
        &self.name
    }

    fn counters(&self) -> &LiveCounters {
        &self.counters
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.link.close();
        for listener in self.listeners.drain(..) {
            // One that panicked has reported it.
            let _ended = listener.join();
        }
    }
}

impl BlockDevice for NbdDevice {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn size_bytes(&self) -> u64 {
        self.core.size_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.core.read(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.core.write(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let done = self.core.zero(offset, len);
        self.core.counters.count(Operation::Write, len, done)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.core.limits().range(&self.core.name, offset, len)?;
        if !self.core.export.has(transmission::SEND_TRIM) {
            return Ok(false);
        }
        self.core.hint(command::TRIM, 0, offset, len)
    }

    /// Only a server that says where zeros cost no more than a hole is asked for them.
    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.core.limits().range(&self.core.name, offset, len)?;
        let needed = [transmission::SEND_WRITE_ZEROES, transmission::SEND_FAST_ZERO];
        if !needed.iter().all(|flag| self.core.export.has(*flag)) {
            return Ok(false);
        }
        self.core.hint(command::WRITE_ZEROES, flag::FAST_ZERO, offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(self.servers.queue(&self.core, options)))
    }

    fn engine(&self) -> EngineReport {
        EngineReport { name: "nbd", fallback: None, threads: Some(self.servers.told()) }
    }

    fn counters(&self) -> DeviceCounters {
        self.core.counters.snapshot()
    }
}
