//! What a test needs of the machine, and how it gets there: programs are installed where that is
//! allowed, the rest is probed.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::bed::LoopDevice;
use crate::sh;

/// Something that a test cannot run without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Mounts through FUSE.
    Fuse,
    /// Loop devices.
    Loop,
    /// The superuser.
    Root,
    /// PostgreSQL's server and tools.
    Postgres,
    /// A program of this name.
    Program(&'static str),
    /// A kernel for guests, and a busybox that needs no library.
    GuestKernel,
}

/// The packages, as Debian names them, that bring the programs.
const PACKAGES: [(&str, &str); 18] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mariadb-install-db", "mariadb-server"),
    ("sysbench", "sysbench"),
    ("db_bench", "rocksdb-tools"),
    ("fio", "fio"),
    ("sqlite3", "sqlite3"),
    ("fusermount3", "fuse3"),
    ("mkfs.xfs", "xfsprogs"),
    ("losetup", "mount"),
    ("setpriv", "util-linux"),
    ("valgrind", "valgrind"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("nfs-cp", "libnfs-utils"),
    ("setfacl", "acl"),
    ("git", "git"),
];

impl Need {
    /// Says why the need is not met here; `None` where it is.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Fuse => probe_fuse().err().map(|error| format!("no FUSE here: {error:#}")),
            Self::Loop => {
                probe_loop().err().map(|error| format!("no loop devices here: {error:#}"))
            }
            Self::Root => (!is_root()).then(|| "needs root".to_owned()),
            Self::Postgres => {
                postgres_programs().is_none().then(|| "PostgreSQL is not installed".to_owned())
            }
            Self::GuestKernel => {
                kernel().err().map(|error| format!("no kernel for a guest: {error:#}"))
            }
            Self::Program(name) => {
                find_program(name).is_none().then(|| format!("{name} is not installed"))
            }
        }
    }
}

/// Returns the directory with a kernel for guests, below the one in which cargo builds; fetches it
/// where that is allowed.
///
/// # Errors
/// When there is none, or no busybox that runs in a guest.
pub fn kernel() -> Result<PathBuf> {
    let busybox = find_program("busybox").context("busybox is not installed")?;
    let needs_libraries =
        std::fs::read(&busybox)?.windows(9).take(8192).any(|bytes| bytes == b"/ld-linux");
    ensure!(!needs_libraries, "{} needs libraries", busybox.display());
    let directory = sh::target_directory()?.join("guest-kernel");
    if !directory.join("boot").is_dir() {
        ensure!(may_install(), "it is not installed");
        super::guest::fetch_kernel(&directory)?;
    }
    Ok(directory)
}

/// Tells whether this process is the superuser's.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns where a program lies.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Returns the directory of PostgreSQL's programs: the newest that Debian installed, or the one of
/// the path.
pub fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"));
    let newest =
        versions.filter(|bin| bin.join("postgres").is_file()).max_by_key(|bin| version(bin));
    newest.or_else(|| find_program("postgres")?.parent().map(Path::to_path_buf))
}

fn version(bin: &Path) -> u32 {
    bin.parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
        .and_then(|name| name.parse().ok())
        .unwrap_or(0)
}

/// Installs the programs that are missing, as root, where there is `apt-get` and it is not
/// forbidden. Failing is not an error: the tests that need them are skipped with the reason.
pub fn install() {
    let mut wanted: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    let database = postgres_programs().is_none();
    if wanted.is_empty() && !database {
        return;
    }
    if !may_install() || find_program("apt-get").is_none() {
        println!("    not installed here: {}", wanted.join(" "));
        return;
    }
    if database {
        wanted.push("postgresql-common");
    }
    println!("    installing {}", wanted.join(" "));
    let installed =
        apt_install(&wanted).and_then(|()| if database { install_postgres() } else { Ok(()) });
    if let Err(error) = installed {
        println!("    could not install: {error:#}");
    }
}

/// Tells whether programs may be installed here.
pub fn may_install() -> bool {
    is_root() && std::env::var_os("BEDPLATE_NO_INSTALL").is_none()
}

/// Installs packages that a source tree is built with; where that is not allowed the build says
/// what it lacks.
///
/// # Errors
/// When the packages cannot be installed.
pub fn install_packages(packages: &[&str]) -> Result<()> {
    if !may_install() || find_program("apt-get").is_none() {
        return Ok(());
    }
    apt_install(packages)
}

/// Installs PostgreSQL without the cluster that Debian would make and start.
fn install_postgres() -> Result<()> {
    let place = Path::new("/etc/postgresql-common/createcluster.d");
    std::fs::create_dir_all(place)?;
    std::fs::write(place.join("bedplate.conf"), "create_main_cluster = false\n")?;
    apt_install(&["postgresql", "postgresql-contrib"])
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-q", "-y", "--no-install-recommends"])
            .args(arguments);
        sh::output(&mut command, Duration::from_secs(600))
    };
    let install = [&["install"], packages].concat();
    if apt(&install).is_err() {
        apt(&["update"])?;
        apt(&install)?;
    }
    Ok(())
}

/// Mounts and unmounts a FUSE file system that is not served: what is refused here is refused by
/// the system, not by a fault of ours.
fn probe_fuse() -> Result<()> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if !is_root() {
        // An ordinary user's helper opens the device by itself.
        return if Path::new("/dev/fuse").exists() && find_program("fusermount3").is_some() {
            Ok(())
        } else {
            bail!("no /dev/fuse, or no fusermount3")
        };
    }
    let device = device.context("cannot open /dev/fuse")?;
    let place = tempfile::tempdir()?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&device);
    let data = std::ffi::CString::new(format!("fd={number},rootmode=40000,user_id=0,group_id=0"))?;
    rustix::mount::mount(
        "bedplate-probe",
        place.path(),
        "fuse",
        MountFlags::NOSUID | MountFlags::NODEV,
        &*data,
    )
    .context("cannot mount")?;
    drop(device);
    rustix::mount::unmount(place.path(), UnmountFlags::DETACH).context("cannot unmount")
}

fn probe_loop() -> Result<()> {
    let file = tempfile::NamedTempFile::new_in("/var/tmp")?;
    file.as_file().set_len(1 << 20)?;
    LoopDevice::attach(file.path(), &[]).map(drop)
}

/// Becomes `program` with io_uring forbidden, as a container's profile would forbid it.
///
/// # Errors
/// When the filter or the program cannot be had; it does not return otherwise.
pub fn exec_without_io_uring(program: &[std::ffi::OsString]) -> Result<()> {
    let [name, arguments @ ..] = program else { bail!("name a program") };
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture =
        std::env::consts::ARCH.try_into().context("no filter for this architecture")?;
    let filter = SeccompFilter::new(
        calls.map(|call| (call, Vec::new())).into(),
        SeccompAction::Allow,
        refused,
        architecture,
    )?;
    let filter: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&filter)?;
    Err(Command::new(name).args(arguments).exec())
        .with_context(|| format!("cannot run {}", name.to_string_lossy()))
}
