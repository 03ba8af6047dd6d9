use std::sync::mpsc;

use bedplate::{Arrangement, BlockDevice, FormatOptions, GroupConfig, ImportOptions, NewGroup};
use bedplate_block::{DeviceCall, DeviceQueue, Hook, HookedDevice, MemoryDevice, QueueOptions};

use super::*;

type Meddle = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Does something else first, once, when a label is written.
struct AtLabel(Meddle);

impl std::fmt::Debug for AtLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtLabel")
    }
}

impl Hook for AtLabel {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let what = matches!(call, DeviceCall::Write { offset: 0, .. })
            .then(|| self.0.lock().unwrap().take())
            .flatten();
        if let Some(what) = what {
            what();
        }
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> bedplate_block::Result<Box<dyn DeviceQueue>> {
        inner.queue(options)
    }
}

fn nobody_comes(_: &Newcomer, _: &GroupConfig) -> Result<Arc<dyn BlockDevice>> {
    Err(Failure::new("invalid", "no request comes here"))
}

/// S-93, S-111: the file system takes over the volume's room in the very moment in which the volume
/// becomes smaller.
#[test]
fn s_111_a_volume_that_shrinks_while_its_file_system_grows_keeps_all_of_it() {
    let meddle = Meddle::default();
    let members: Vec<Arc<dyn BlockDevice>> = (0..2)
        .map(|n| {
            HookedDevice::named(
                format!("m{n}"),
                MemoryDevice::new(68 << 20) as _,
                AtLabel(Arc::clone(&meddle)),
            ) as _
        })
        .collect();
    let new = NewGroup {
        name: "tank".into(),
        data: Arrangement { shape: Shape::Stripe, unit_bytes: 64 << 10, plexes: 1 },
        members: members.clone(),
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: None,
        reserve_bytes: 0,
        force: false,
    };
    bedplate::create_group(&new).unwrap();
    let group =
        Group::import(&members, &ImportOptions { background: false, ..ImportOptions::default() })
            .unwrap();
    let to = |size_bytes| Target { size_bytes: Some(size_bytes), ..Target::default() };
    group.relayout(Role::Data, &to(64 << 20), 0).unwrap();
    let volume = group.volume(Role::Data).unwrap();
    FileSystem::format(&volume, None, &FormatOptions::default()).unwrap();
    group.grow(Role::Data, None).unwrap();
    let fs = FileSystem::mount(Arc::clone(&volume), None, MountOptions::default()).unwrap();
    assert_eq!((volume.size_bytes(), fs.info().size_bytes), (128 << 20, 64 << 20));
    let (growing, handle) = (fs.clone(), Arc::new(Mutex::new(None)));
    let thread = Arc::clone(&handle);
    *meddle.lock().unwrap() = Some(Box::new(move || {
        let (tell, told) = mpsc::channel();
        *thread.lock().unwrap() = Some(std::thread::spawn(move || {
            let grown = growing.grow();
            let _heard = tell.send(());
            grown
        }));
        let _grown = told.recv_timeout(Duration::from_millis(300));
    }));
    let target = RelayoutTarget { size_bytes: Some(96 << 20), ..RelayoutTarget::default() };
    act(&group, Some(&fs), &GroupRequest::Relayout(RelayoutRequest::Begin(target)), &nobody_comes)
        .unwrap();
    let grown = handle.lock().unwrap().take().expect("a label was written").join().unwrap();
    assert_eq!(
        (grown.unwrap(), volume.size_bytes(), fs.info().size_bytes),
        (96 << 20, 96 << 20, 96 << 20)
    );
    // And never below that again.
    let target = RelayoutTarget { size_bytes: Some(80 << 20), ..RelayoutTarget::default() };
    let failure = act(
        &group,
        Some(&fs),
        &GroupRequest::Relayout(RelayoutRequest::Begin(target)),
        &nobody_comes,
    )
    .unwrap_err();
    assert!(failure.message.contains("in use by the file system"), "{failure}");
    fs.unmount().unwrap();
    assert_eq!(FileSystem::check(&volume, None, false).unwrap().findings.len(), 0);
}

/// S-111: of two commands that mean the same member the second one finds that it is gone, and not
/// another in its place.
#[test]
fn s_111_a_member_is_meant_by_its_identity_whoever_goes_meanwhile() {
    let members: Vec<Arc<dyn BlockDevice>> =
        (0..4).map(|_| MemoryDevice::new(8 << 20) as _).collect();
    let new = NewGroup {
        name: "tank".into(),
        data: Arrangement { shape: Shape::Mirror, unit_bytes: 64 << 10, plexes: 2 },
        members: members[..2].to_vec(),
        log_members: Vec::new(),
        spares: members[2..].to_vec(),
        region_bytes: None,
        reserve_bytes: 0,
        force: false,
    };
    let id = bedplate::create_group(&new).unwrap().members[2].id.to_string();
    let group = Group::import(&members, &ImportOptions::default()).unwrap();
    act(&group, None, &GroupRequest::Remove(id.clone()), &nobody_comes).unwrap();
    let failure = act(&group, None, &GroupRequest::Remove(id), &nobody_comes).unwrap_err();
    assert!(failure.kind == "not_found" && failure.message.contains("any more"), "{failure}");
    let failure = act(&group, None, &GroupRequest::Remove("2".into()), &nobody_comes).unwrap_err();
    assert!(failure.message.contains("no identity"), "a number may be another's: {failure}");
    assert_eq!(group.config().members.len(), 3);
}
