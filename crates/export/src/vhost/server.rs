//! Where front ends come from: one is served at a time.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use vhost::vhost_user::{BackendReqHandler, Error as Protocol};

use super::device::{self, Device};
use super::request::Serial;
use super::session::Session;
use crate::accepting::accept_until;
use crate::bound;
use crate::{Disk, Error, Result};

/// The most queues that there may be.
const QUEUES_MAX: u16 = 256;
/// The largest queue that virtio knows.
const QUEUE_SIZE_MAX: u16 = 32768;

/// How a disk is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen: a socket in the file system, for its owner alone.
    pub socket: PathBuf,
    /// How many queues a front end may use: 1 to 256.
    pub queues_max: u16,
    /// How many entries a queue may have: a power of two from 2 to 32768.
    pub queue_size_max: u16,
    /// The disk's serial number as the guest sees it: at most 20 printable ASCII characters.
    pub serial: String,
}

/// A server that runs. Dropped, it has answered what was under way.
#[derive(Debug)]
pub struct Server {
    /// Closed to end the thread.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    house: Arc<House>,
}

#[derive(Debug)]
struct House {
    disk: Arc<dyn Disk>,
    settings: Settings,
    serial: Serial,
    guest: Mutex<Guest>,
}

/// The front end that is served.
#[derive(Debug)]
enum Guest {
    None,
    /// Its socket, to end it.
    Some(UnixStream),
    /// None will be.
    Closed,
}

impl Server {
    /// Begins to serve a disk.
    ///
    /// # Errors
    /// `Usage` where a setting is out of its range; `System` where the socket cannot be listened on.
    pub fn start(disk: Arc<dyn Disk>, settings: &Settings) -> Result<Self> {
        let (settings, serial) = (settings.clone(), settings.check()?);
        let failed = |error| Error::system("listen on", &settings.socket, error);
        let (listener, bound) = bound::listen(&settings.socket).map_err(failed)?;
        let (waker, woken) = UnixStream::pair().map_err(failed)?;
        let guest = Mutex::new(Guest::None);
        let house = Arc::new(House { disk, settings: settings.clone(), serial, guest });
        let own = Arc::clone(&house);
        let thread = Builder::new()
            .name("bedplate-vhu".into())
            .spawn(move || {
                let _bound = bound;
                accept_until(&listener, &woken, || own.accept(&listener));
            })
            .map_err(failed)?;
        Ok(Self { waker: Some(waker), thread: Some(thread), house })
    }

    /// Answers what is under way, serves no more, and makes what was answered durable.
    ///
    /// # Errors
    /// The disk's.
    pub fn stop(mut self) -> Result<()> {
        self.end();
        self.house.disk.sync()
    }

    fn end(&mut self) {
        self.waker = None;
        if let Guest::Some(socket) = std::mem::replace(&mut *self.house.guest.lock(), Guest::Closed)
        {
            // One that is gone has ended, too.
            let _ended = socket.shutdown(Shutdown::Both);
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread of the server had panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Settings {
    fn check(&self) -> Result<Serial> {
        let refused = |text: String| Err(Error::Usage(text));
        if !(1..=QUEUES_MAX).contains(&self.queues_max) {
            return refused(format!("{} queues: choose 1 to {QUEUES_MAX}", self.queues_max));
        }
        let size = self.queue_size_max;
        if !size.is_power_of_two() || !(2..=QUEUE_SIZE_MAX).contains(&size) {
            return refused(format!(
                "a queue of {size} entries: choose a power of two from 2 to {QUEUE_SIZE_MAX}"
            ));
        }
        device::serial(&self.serial)
    }
}

impl House {
    fn accept(&self, listener: &UnixListener) -> io::Result<()> {
        let (socket, _) = listener.accept()?;
        let handle = socket.try_clone()?;
        match &mut *self.guest.lock() {
            Guest::Closed => return Ok(()),
            guest => *guest = Guest::Some(handle),
        }
        tracing::info!("a front end is served");
        match self.serve(socket) {
            Ok(()) => tracing::info!("the front end has gone"),
            Err(error) => tracing::warn!("the front end is not served any longer: {error}"),
        }
        let mut guest = self.guest.lock();
        if matches!(*guest, Guest::Some(_)) {
            *guest = Guest::None;
        }
        Ok(())
    }

    /// Serves a front end until it goes.
    fn serve(&self, socket: UnixStream) -> std::result::Result<(), String> {
        let Settings { queues_max, queue_size_max, .. } = self.settings;
        let device = Device::new(&self.disk, self.serial, queues_max).map_err(|e| e.to_string())?;
        let session = Session::new(Arc::new(device), queues_max, queue_size_max)
            .map_err(|error| error.to_string())?;
        // The protocol's crate asks for this kind of lock.
        let session = Arc::new(std::sync::Mutex::new(session));
        let mut handler = BackendReqHandler::from_stream(socket, session);
        loop {
            match handler.handle_request() {
                Ok(()) | Err(Protocol::SocketRetry(_)) => {}
                Err(Protocol::Disconnected | Protocol::PartialMessage) => return Ok(()),
                Err(Protocol::SocketBroken(_)) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Returns the serial number that a disk has without one being chosen: the last part of its name,
/// as far as there is room for it.
#[must_use]
pub fn serial_of(file: &Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let printable = |c: char| if matches!(c, ' '..='~') { c } else { '_' };
    name.chars().map(printable).take(Serial::default().len()).collect()
}
