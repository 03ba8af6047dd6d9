//! The volume with the file, and the ways into it, one open at a time.
//!
//! ```text
//!   volume ──┬── this process: library
//!            ├── export nbd ─────────── NBD client
//!            ├── export vhost-user ──── guest
//!            └── mount ──┬── files of it; a program with a lease
//!                        └── export nfs ──┬── own client
//!                                         ├── fio with libnfs
//!                                         └── the kernel's client
//! ```

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bedplate::{
    AllocateMode, BlockDevice, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions,
};
use bedplate_block::DeviceOptions;
use serde_json::Value;

use super::client::Client;
use super::file::{Entrance, WayTarget};
use super::guest::{Guest, GuestSetup};
use super::libnfs::{Libnfs, lacking};
use super::program::Program;
use super::service::{Service, run_to_end};
use super::{Areas, Way};
use crate::measure::DeviceStat;
use crate::target::{Caching, Confirm, PlaceInfo, TargetInfo, VolumeFile, claim_device, fill};
use crate::{Error, ErrorKind, Result};

/// The directory of the volume that is made for the file, and removed.
const DIRECTORY: &str = "/bedplate-bench-ways";
const NAME: &str = "file";

/// A volume with the file in it. Both the file and what was started go away with it.
pub(super) struct Place<'a> {
    /// The device or image.
    device: PathBuf,
    /// The `bedplate` program.
    program: &'a Path,
    fio: &'a Path,
    /// Sockets, mount points and messages.
    dir: PathBuf,
    file_bytes: u64,
    guest: GuestSetup,
    stop: &'a AtomicBool,
    is_made: bool,
}

/// What a place is made of.
pub(super) struct Wanted<'a> {
    pub device: PathBuf,
    pub program: &'a Path,
    pub fio: &'a Path,
    pub areas: Areas,
    pub guest: GuestSetup,
    pub stop: &'a AtomicBool,
}

impl<'a> Place<'a> {
    /// Makes the file, and the volume where there is none and it may be.
    ///
    /// # Errors
    /// `NotConfirmed`, `Target` where it is too small or in use, and `Io`.
    pub fn make(wanted: Wanted<'a>, confirm: &mut Confirm<'_>) -> Result<Self> {
        let Wanted { device, program, fio, areas, guest, stop } = wanted;
        let device =
            device.canonicalize().map_err(|e| Error::io(device.display(), "cannot find", e))?;
        let dir = std::env::temp_dir().join(format!("bedplate-ways-{}", std::process::id()));
        let opened = claim_device(&device)?;
        format_if_empty(&device, &opened, confirm)?;
        make_directory(&dir)?;
        let place =
            Self { device, program, fio, dir, file_bytes: areas.end(), guest, stop, is_made: true };
        place.fill(opened)?;
        Ok(place)
    }

    fn fill(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        let fs = FileSystem::mount(device, None, MountOptions::default())?;
        let free = fs.statfs().available_bytes;
        if free < self.file_bytes {
            let (has, needs) =
                (bedplate::format_size(free), bedplate::format_size(self.file_bytes));
            return Err(Error::target(format!(
                "{}: {has} are free and the file needs {needs}: give a larger volume or a smaller \
                 --size",
                self.device.display()
            )));
        }
        fs.create_dir_all(DIRECTORY)?;
        let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
        let file = fs.open(Self::path(), &options)?;
        file.set_size(0)?;
        file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, self.file_bytes)?;
        fill(&VolumeFile { file, align: 1 }, self.file_bytes)?;
        fs.sync()?;
        Ok(fs.unmount()?)
    }

    fn path() -> String {
        format!("{DIRECTORY}/{NAME}")
    }

    /// Returns the file as commands name it.
    fn address(&self) -> String {
        format!("{}:{}", self.device.display(), Self::path())
    }

    /// Describes a way.
    pub fn info(&self, way: Way) -> TargetInfo {
        let stat = DeviceStat::of_device(&self.device);
        TargetInfo {
            label: way.label().into(),
            spec: format!("{way} into {}", self.device.display()),
            kind: way.kind().into(),
            role: way.role(),
            engine: way.engine().into(),
            file_system: None,
            counted_by: stat.map_or_else(String::new, |s| format!("the kernel, on {}", s.name())),
            places: vec![PlaceInfo::of_path(&self.device)],
        }
    }

    /// Removes the file, and says so where that fails.
    pub fn remove(mut self) -> Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_made) {
            return Ok(());
        }
        let removed = (|| {
            let fs = FileSystem::mount(claim_device(&self.device)?, None, MountOptions::default())?;
            for path in [Self::path().as_str(), DIRECTORY] {
                match fs.remove(path) {
                    Err(e) if e.kind != bedplate::ErrorKind::NotFound => return Err(e.into()),
                    _ => {}
                }
            }
            Ok(fs.unmount()?)
        })();
        let cleared = fs::remove_dir_all(&self.dir)
            .map_err(|e| Error::io(self.dir.display(), "cannot remove", e));
        removed.and(cleared)
    }

    /// Opens the file by a way that leads into the volume. What it needs is started, and ends with
    /// what is returned.
    ///
    /// # Errors
    /// `Target` where this way cannot be gone here, with the reason; `Interrupted`.
    pub fn open(&self, way: Way) -> Result<Opened<'_>> {
        let mut opened = Opened::new(self, way);
        let client: Box<dyn Client + '_> = match way {
            Way::Raw | Way::Kernel => {
                return Err(Error::target("a reference has a place of its own"));
            }
            Way::Library => opened.library()?,
            Way::Lease => opened.lease()?,
            Way::Mount => opened.mounted("concurrent", Caching::Direct)?,
            Way::MountCached => opened.mounted("cached", Caching::Buffered)?,
            Way::Nbd => opened.nbd()?,
            Way::VhostUser => opened.vhost_user()?,
            Way::Nfs => opened.nfs()?,
            Way::NfsLibnfs => opened.nfs_libnfs()?,
            Way::NfsKernel => opened.nfs_kernel()?,
        };
        opened.client = Some(client);
        Ok(opened)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // There is a failure to tell already.
        let _removed = self.take_down();
    }
}

fn format_if_empty(
    path: &Path,
    device: &Arc<dyn BlockDevice>,
    confirm: &mut Confirm<'_>,
) -> Result<()> {
    match FileSystem::probe(device) {
        Ok(_) => Ok(()),
        Err(e) if e.kind != bedplate::ErrorKind::NotAVolume => Err(e.into()),
        Err(_) if !confirm(path) => {
            let name = path.display();
            Err(Error::new(
                ErrorKind::NotConfirmed,
                format!(
                    "{name}: its content would be overwritten: give --destroy={name} if it may be"
                ),
            ))
        }
        Err(_) => {
            let options = FormatOptions { force: true, ..FormatOptions::default() };
            FileSystem::format(device, None, &options)?;
            Ok(())
        }
    }
}

fn make_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    made.map_err(|e| Error::io(path.display(), "cannot make the directory for sockets", e))
}

/// A way that is open, and what was started for it.
pub(super) struct Opened<'p> {
    place: &'p Place<'p>,
    way: Way,
    client: Option<Box<dyn Client + 'p>>,
    fs: Option<FileSystem>,
    kernel_mount: Option<PathBuf>,
    /// In the order of their start.
    services: Vec<Service>,
}

impl<'p> Opened<'p> {
    fn new(place: &'p Place<'p>, way: Way) -> Self {
        Self { place, way, client: None, fs: None, kernel_mount: None, services: Vec::new() }
    }

    /// Returns what reads and writes.
    pub fn client(&self) -> Result<&dyn Client> {
        self.client.as_deref().ok_or_else(|| Error::target("the way is closed"))
    }

    /// Closes the file, and ends what was started for it.
    ///
    /// # Errors
    /// `Target` and `Io` where something failed at its end.
    pub fn close(mut self) -> Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<()> {
        self.client = None;
        let mut done = self.fs.take().map_or(Ok(()), |fs| Ok(fs.unmount()?));
        if let Some(at) = self.kernel_mount.take() {
            let mut command = Command::new("umount");
            command.arg(&at);
            let ended = run_to_end("umount", command, &self.place.dir, &AtomicBool::new(false));
            done = done.and(ended.map(drop));
        }
        while let Some(mut service) = self.services.pop() {
            done = done.and(service.end());
        }
        done
    }

    fn start(&mut self, name: &'static str, arguments: &[&OsStr]) -> Result<Value> {
        let Place { program, dir, stop, .. } = self.place;
        let (service, told) = Service::start(name, program, arguments, dir, stop)?;
        self.services.push(service);
        Ok(told)
    }

    fn pids(&self) -> Vec<u32> {
        self.services.iter().map(Service::pid).collect()
    }

    fn target(&self, entrance: Entrance) -> Box<dyn Client + 'p> {
        Box::new(WayTarget {
            info: self.place.info(self.way),
            entrance,
            processes: self.pids(),
            stat: DeviceStat::of_device(&self.place.device),
        })
    }

    fn library(&mut self) -> Result<Box<dyn Client + 'p>> {
        let device = claim_device(&self.place.device)?;
        let fs = FileSystem::mount(device, None, MountOptions::default())?;
        self.fs = Some(fs.clone());
        Ok(self.target(Entrance::Library { fs, path: Place::path() }))
    }

    /// Mounts the volume, and returns the directory with the file.
    fn mount(&mut self, options: &str) -> Result<PathBuf> {
        let at = self.place.dir.join("mount");
        fs::create_dir_all(&at)
            .map_err(|e| Error::io(at.display(), "cannot make the mount point", e))?;
        let device = self.place.device.as_os_str();
        let words = [OsStr::new("mount"), device, at.as_os_str()];
        let more = ["-o", options, "--foreground"].map(OsStr::new);
        self.start("mount", &[&words[..], &more[..]].concat())?;
        Ok(at.join(&DIRECTORY[1..]))
    }

    fn mounted(&mut self, mode: &str, caching: Caching) -> Result<Box<dyn Client + 'p>> {
        let path = self.mount(&format!("mode={mode}"))?.join(NAME);
        Ok(self.target(Entrance::Path { path, caching }))
    }

    fn lease(&mut self) -> Result<Box<dyn Client + 'p>> {
        let file = self.mount("mode=concurrent,lease=owner")?.join(NAME);
        let Place { program, dir, stop, .. } = self.place;
        let info = self.place.info(self.way);
        Ok(Box::new(Program { program, file, dir, info, processes: self.pids(), stop }))
    }

    fn nbd(&mut self) -> Result<Box<dyn Client + 'p>> {
        let socket = self.place.dir.join("nbd.socket");
        let file = self.place.address();
        let words = ["export", "nbd", &file, "--unix"].map(OsStr::new);
        let told = self.start("nbd", &[&words[..], &[socket.as_os_str()]].concat())?;
        let uri = text(&told["exports"][0]["uris"][0])?;
        let device = bedplate_block::open(Path::new(uri), &DeviceOptions::default())?;
        let len = device.size_bytes();
        Ok(self.target(Entrance::Device { device, len }))
    }

    fn vhost_user(&mut self) -> Result<Box<dyn Client + 'p>> {
        let socket = self.place.dir.join("vhost.socket");
        let (file, setup) = (self.place.address(), self.place.guest);
        let (queues, entries) = (setup.queues.to_string(), setup.entries().to_string());
        let words = ["export", "vhost-user", &file, "--queues", &queues, "--queue-size", &entries];
        let more = [OsStr::new("--socket"), socket.as_os_str()];
        self.start("vhost-user", &[&words.map(OsStr::new)[..], &more[..]].concat())?;
        Ok(self.target(Entrance::Guest(Guest::connect(&socket, setup)?)))
    }

    /// Serves the directory of the file over a mount, and returns its URL and port.
    fn serve_nfs(&mut self) -> Result<(String, Value)> {
        let served = self.mount("mode=concurrent")?;
        let words = [OsStr::new("export"), OsStr::new("nfs"), served.as_os_str()];
        // Both sides are this process's and its children's: any port and root may be used.
        let more = ["--listen", "0", "--insecure", "--squash", "none"].map(OsStr::new);
        let told = self.start("nfs", &[&words[..], &more[..]].concat())?;
        Ok((text(&told["uri"])?.to_owned(), told))
    }

    fn nfs(&mut self) -> Result<Box<dyn Client + 'p>> {
        let (uri, _) = self.serve_nfs()?;
        let failed = |e: bedplate_nfs::Error| Error::target(e.message);
        let url: bedplate_nfs::Url = uri.parse().map_err(failed)?;
        let (client, mut path) = bedplate_nfs::Client::connect(&url).map_err(failed)?;
        path.extend_from_slice(format!("/{NAME}").as_bytes());
        let options = bedplate_nfs::OpenOptions {
            write: true,
            ..bedplate_nfs::OpenOptions::read_only(bedplate_nfs::Mode::Concurrent)
        };
        let file = client.open(&path, &options).map_err(failed)?;
        Ok(self.target(Entrance::Nfs(Arc::new(file))))
    }

    fn nfs_libnfs(&mut self) -> Result<Box<dyn Client + 'p>> {
        let Place { fio, dir, stop, .. } = self.place;
        if let Some(why) = lacking(fio) {
            return Err(Error::target(why));
        }
        let (url, _) = self.serve_nfs()?;
        let (file, processes) = (format!("/{NAME}"), self.pids());
        Ok(Box::new(Libnfs { fio, url, file, dir, processes, stop }))
    }

    fn nfs_kernel(&mut self) -> Result<Box<dyn Client + 'p>> {
        if let Some(why) = no_kernel_client() {
            return Err(Error::target(why));
        }
        let (_, told) = self.serve_nfs()?;
        let at = self.place.dir.join("nfs");
        fs::create_dir_all(&at)
            .map_err(|e| Error::io(at.display(), "cannot make the mount point", e))?;
        let mut command = Command::new("mount");
        // Without a helper, which would ask for a portmapper.
        command.args(["-i", "-t", "nfs", "-o"]).arg(format!(
            "{},addr=127.0.0.1,mountaddr=127.0.0.1,mountvers=3,mountproto=tcp",
            text(&told["mount_options"])?
        ));
        command.arg(format!("127.0.0.1:{}", text(&told["dir"])?)).arg(&at);
        run_to_end("mount -t nfs", command, &self.place.dir, self.place.stop)?;
        self.kernel_mount = Some(at.clone());
        Ok(self.target(Entrance::Path { path: at.join(NAME), caching: Caching::Direct }))
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // There is a failure to tell already.
        let _ended = self.take_down();
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| Error::target("a server did not tell where it serves"))
}

/// Says why there is no client of NFS in the kernel; `None` where there is one.
fn no_kernel_client() -> Option<String> {
    let is_known = || {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.trim_start_matches("nodev").trim() == "nfs")
    };
    if is_known() {
        return None;
    }
    // It may be a module that nothing has asked for yet.
    let mut command = Command::new("modprobe");
    command.args(["--quiet", "nfs"]);
    let loaded = command.output().is_ok_and(|output| output.status.success());
    (!loaded || !is_known())
        .then(|| "this kernel has no NFS client: /proc/filesystems does not name nfs".to_owned())
}
