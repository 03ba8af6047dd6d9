//! From words to targets: opens devices, mounts volumes, asks before anything is overwritten.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bedplate::{BlockDevice, FileSystem, FormatOptions, InodeLockSetting, IoMode, Label};
use bedplate_block::DeviceOptions;

use super::delayed::delayed;
use super::device::claim_device;
use super::info::mount_of;
use super::volume::{Counted, SharedVolume};
use super::{
    Caching, Composite, Directory, Kind, NfsTarget, PathTarget, Place, PlaceInfo, RawTarget, Role,
    Target, TargetInfo, TargetSpec, VolumeTarget,
};
use crate::measure::DeviceStat;
use crate::{Error, ErrorKind, Result};

/// Asks for leave to overwrite a device or file; answers whether its name was typed back.
pub type Confirm<'a> = dyn FnMut(&Path) -> bool + 'a;

/// Targets, open and ready to be measured. The first one is what the others are compared with.
pub struct Targets(pub(crate) Vec<Box<dyn Target>>);

impl Targets {
    /// Opens targets in their order. `confirm` is asked once for every device or file that will be
    /// overwritten.
    ///
    /// # Errors
    /// `NotConfirmed` when leave was refused; `Target` and `Io` for what cannot be opened; `Usage`
    /// for two targets of one name.
    pub fn open(specs: &[TargetSpec], confirm: &mut Confirm<'_>) -> Result<Self> {
        if specs.is_empty() {
            return Err(Error::usage("there is nothing to measure: give at least one --target"));
        }
        for (i, spec) in specs.iter().enumerate() {
            if specs[..i].iter().any(|other| other.label == spec.label) {
                return Err(Error::usage(format!(
                    "two targets are called '{}': give one of them a label, as in other={spec}",
                    spec.label
                )));
            }
        }
        let mut opener = Opener { confirm, volumes: HashMap::new(), directories: HashMap::new() };
        let targets = specs.iter().map(|spec| opener.target(spec)).collect::<Result<Vec<_>>>()?;
        Ok(Self(targets))
    }

    /// Describes the targets.
    #[must_use]
    pub fn describe(&self) -> Vec<TargetInfo> {
        self.0.iter().map(|target| target.info().clone()).collect()
    }
}

struct Opener<'a, 'b> {
    confirm: &'a mut Confirm<'b>,
    /// Volumes by device, with the place of their log, so that several modes share one.
    volumes: HashMap<PathBuf, (Arc<SharedVolume>, Option<Place>)>,
    directories: HashMap<(PathBuf, bool), Arc<Directory>>,
}

impl Opener<'_, '_> {
    fn target(&mut self, spec: &TargetSpec) -> Result<Box<dyn Target>> {
        let mut parts =
            spec.places.iter().map(|place| self.part(spec, place)).collect::<Result<Vec<_>>>()?;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let mut info = parts[0].info().clone();
        info.places = parts.iter().flat_map(|part| part.info().places.clone()).collect();
        Ok(Box::new(Composite::new(info, parts)))
    }

    fn part(&mut self, spec: &TargetSpec, place: &Place) -> Result<Box<dyn Target>> {
        match &spec.kind {
            Kind::Raw => self.raw(spec, place),
            Kind::Path { caching, mode } => self.path(spec, place, *caching, *mode),
            Kind::Nfs { mode } => nfs(spec, place, *mode),
            Kind::Volume { mode, whole_lock, log, cache_bytes, block_size } => {
                let volume = self.volume(spec, place, log.as_ref(), *block_size)?;
                let mut info = describe(spec, place, role_of_mode(*mode, *whole_lock));
                let inode_lock =
                    if *whole_lock { InodeLockSetting::Whole } else { InodeLockSetting::Range };
                info.engine = volume.engine();
                info.file_system = Some(format!(
                    "bedplate, {block_size} byte blocks, mode={mode}{}{}",
                    if *whole_lock { ", inode-lock=whole" } else { "" },
                    log.as_ref().map_or_else(String::new, |log| format!(", log={log}"))
                ));
                info.counted_by = volume.counted_by();
                Ok(Box::new(VolumeTarget::new(info, volume, *mode, inode_lock, *cache_bytes)))
            }
        }
    }

    fn raw(&mut self, spec: &TargetSpec, place: &Place) -> Result<Box<dyn Target>> {
        if let Place::Path(path) = place {
            self.ask(path)?;
        }
        let counted = open_place(place, spec.latency)?;
        let mut info = describe(spec, place, Role::Raw);
        info.engine = engine_of(&counted.device);
        info.counted_by = counted_by(counted.stat.as_ref());
        Ok(Box::new(RawTarget::new(info, counted)))
    }

    fn volume(
        &mut self,
        spec: &TargetSpec,
        place: &Place,
        log: Option<&Place>,
        block_size: u32,
    ) -> Result<Arc<SharedVolume>> {
        if let Place::Path(path) = place
            && let Some((known, its_log)) = self.volumes.get(path)
        {
            if its_log.as_ref() != log {
                return Err(Error::usage(format!(
                    "two targets are on {}, and their logs are not in one place: give one of them \
                     a device of its own",
                    path.display()
                )));
            }
            return Ok(Arc::clone(known));
        }
        let data = open_place(place, spec.latency)?;
        let log_device = log.map(|log| open_log(log, spec.latency)).transpose()?;
        let format = match (FileSystem::probe(&data.device), place) {
            (Ok(_), _) => None,
            (Err(e), Place::Path(path)) if e.kind == bedplate::ErrorKind::NotAVolume => {
                self.ask(path)?;
                if let Some(Place::Path(log)) = log {
                    self.ask(log)?;
                }
                Some(FormatOptions { block_size, force: true, ..FormatOptions::default() })
            }
            (Err(e), Place::Memory(_)) if e.kind == bedplate::ErrorKind::NotAVolume => {
                if let Some(Place::Path(log)) = log {
                    self.ask(log)?;
                }
                Some(FormatOptions { block_size, force: log.is_some(), ..FormatOptions::default() })
            }
            (Err(e), _) => return Err(e.into()),
        };
        let volume = SharedVolume::new(data, log_device, format.as_ref())?;
        if let Place::Path(path) = place {
            self.volumes.insert(path.clone(), (Arc::clone(&volume), log.cloned()));
        }
        Ok(volume)
    }

    fn path(
        &mut self,
        spec: &TargetSpec,
        place: &Place,
        caching: Caching,
        mode: Option<IoMode>,
    ) -> Result<Box<dyn Target>> {
        let Place::Path(path) = place else {
            unreachable!("a path target in memory is refused when its description is read")
        };
        if !path.is_dir() {
            return Err(Error::target(format!(
                "{}: a path target is a directory and this is none",
                path.display()
            )));
        }
        let role = match (caching, mode) {
            (_, Some(mode)) => role_of_mode(mode, false),
            (Caching::Buffered, None) => Role::Buffered,
            (Caching::Direct, None) => Role::Direct,
        };
        let mut info = describe(spec, place, role);
        let mount = mount_of(path);
        // A mount without a device number of its own still names what it was mounted from.
        let source =
            mount.as_ref().map(|m| PathBuf::from(&m.source)).filter(|source| source.is_absolute());
        let stat =
            DeviceStat::of(path).or_else(|| source.as_deref().and_then(DeviceStat::of_device));
        let disks = disks_of(path, source.as_deref());
        info.engine = if caching == Caching::Direct {
            "as raw devices".into()
        } else {
            "pread and pwrite".into()
        };
        info.file_system = mount.map(|m| format!("{}, {}", m.kind, m.options));
        info.counted_by = counted_by(stat.as_ref());
        let key = (path.clone(), caching == Caching::Direct);
        let directory = match self.directories.get(&key) {
            Some(known) => Arc::clone(known),
            None => Directory::new(path, caching)?,
        };
        self.directories.insert(key, Arc::clone(&directory));
        Ok(Box::new(PathTarget::new(info, directory, caching, mode, stat, disks)))
    }

    fn ask(&mut self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Err(Error::target(format!(
                "{}: there is no such device or file",
                path.display()
            )));
        }
        if (self.confirm)(path) {
            return Ok(());
        }
        let name = path.display();
        Err(Error::new(
            ErrorKind::NotConfirmed,
            format!("{name}: its content would be overwritten: give --destroy={name} if it may be"),
        ))
    }
}

fn nfs(spec: &TargetSpec, place: &Place, mode: bedplate_nfs::Mode) -> Result<Box<dyn Target>> {
    let role = match mode {
        bedplate_nfs::Mode::Cached => Role::Buffered,
        bedplate_nfs::Mode::Direct => Role::DirectWhole,
        bedplate_nfs::Mode::Concurrent => Role::Concurrent,
    };
    let url = bedplate_nfs::Url::of_path(place.as_path()).map_err(|e| Error::usage(e.message))?;
    let mut info = describe(spec, place, role);
    info.engine =
        format!("NFS in user space, {} connections, {} calls", url.connections, url.calls);
    info.counted_by = "nothing: the devices are the server's".into();
    Ok(Box::new(NfsTarget::new(info, &url, mode)?))
}

/// Returns the block devices below a directory: the one of its file system, or what it was mounted
/// from, which of a group are all its members.
fn disks_of(path: &Path, source: Option<&Path>) -> Vec<DeviceStat> {
    if let Some(one) = DeviceStat::of(path) {
        return vec![one];
    }
    // Another process has the members open.
    let beside = DeviceOptions { read_only: true, exclusive: false, ..DeviceOptions::default() };
    let label = source
        .and_then(|source| bedplate_block::open(source, &beside).ok())
        .and_then(|device| Label::read(&*device).ok());
    match label {
        Some(label) => {
            let members = label.config.members.iter().map(|member| Path::new(&member.path));
            members.filter_map(DeviceStat::of_device).collect()
        }
        None => source.and_then(DeviceStat::of_device).into_iter().collect(),
    }
}

fn role_of_mode(mode: IoMode, whole_lock: bool) -> Role {
    match mode {
        IoMode::Cached => Role::Buffered,
        IoMode::Direct if whole_lock => Role::DirectWhole,
        IoMode::Direct => Role::Direct,
        IoMode::Concurrent => Role::Concurrent,
        IoMode::ConcurrentCache => Role::ConcurrentCache,
    }
}

/// Opens what a log goes to; memory is as slow as that of the data.
fn open_log(place: &Place, latency: Duration) -> Result<Counted> {
    let latency = if matches!(place, Place::Memory(_)) { latency } else { Duration::ZERO };
    open_place(place, latency)
}

fn open_place(place: &Place, latency: Duration) -> Result<Counted> {
    match place {
        Place::Memory(size) => {
            let memory = delayed(*size, latency);
            Ok(Counted { device: memory.clone(), stat: None, delay: Some(memory) })
        }
        Place::Path(path) => Ok(Counted {
            device: claim_device(path)?,
            stat: DeviceStat::of_device(path),
            delay: None,
        }),
    }
}

fn describe(spec: &TargetSpec, place: &Place, role: Role) -> TargetInfo {
    let mut info = match place {
        Place::Path(path) => PlaceInfo::of_path(path),
        Place::Memory(size) => {
            PlaceInfo { path: "memory".into(), size_bytes: *size, ..PlaceInfo::default() }
        }
    };
    info.added_latency_us = u64::try_from(spec.latency.as_micros()).unwrap_or(u64::MAX);
    TargetInfo {
        label: spec.label.clone(),
        spec: spec.to_string(),
        kind: spec.kind.name().into(),
        role,
        engine: String::new(),
        file_system: None,
        counted_by: String::new(),
        places: vec![info],
    }
}

pub(super) fn engine_of(device: &Arc<dyn BlockDevice>) -> String {
    let report = device.engine();
    report.fallback.map_or_else(|| report.name.to_owned(), |why| format!("{} ({why})", report.name))
}

pub(super) fn counted_by(stat: Option<&DeviceStat>) -> String {
    stat.map_or_else(|| "the library".to_owned(), |stat| format!("the kernel, on {}", stat.name()))
}
