//! Volumes under another identity, beside those that they are copies of.

use std::sync::{Arc, Mutex};

use bedplate_block::{
    BlockDevice, CrashChoice, DeviceCall, Hook, HookedDevice, MemoryDevice, SimulatedDevice,
};

use super::tests::{MIB, VOLUME, copy, format, is_filled, mount, put};
use crate::{ErrorKind, FileSystem};

/// S-400: a copy, made while the volume was mounted, is mounted beside it under another identity;
/// the log's own device of one is none of the other's.
#[test]
fn s_400_a_copy_under_a_new_identity_is_mounted_beside_the_volume() {
    let data: Arc<dyn BlockDevice> = MemoryDevice::new(VOLUME);
    let log: Arc<dyn BlockDevice> = MemoryDevice::new(4 * MIB);
    format(&data, Some(&log));
    let fs = mount(&data, Some(&log)).unwrap();
    put(&fs, "/both", 50_000, 1);
    fs.sync().unwrap();
    let (data2, log2) = (copy(&data), copy(&log));
    let second = mount(&data2, Some(&log2)).unwrap();
    let old = second.info().uuid;
    let identity = second.renew_identity().unwrap();
    assert!(identity != old && second.info().uuid == identity && fs.info().uuid == old);
    put(&second, "/second", 9000, 2);
    put(&fs, "/first", 9000, 3);
    second.sync().unwrap();
    fs.sync().unwrap();
    // As when the process just ends.
    let (data3, log3) = (copy(&data2), copy(&log2));
    let third = mount(&data3, Some(&log3)).unwrap();
    assert!(is_filled(&third, "/both", 50_000, 1) && is_filled(&third, "/second", 9000, 2));
    second.unmount().unwrap();
    fs.unmount().unwrap();
    for (data, log) in [(&data, &log2), (&data2, &log)] {
        assert_eq!(mount(data, Some(log)).err().unwrap().kind, ErrorKind::NotFound);
    }
    for (data, log) in [(&data, &log), (&data2, &log2)] {
        let report = FileSystem::check(data, Some(log), false).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert!(is_filled(&mount(data, Some(log)).unwrap(), "/both", 50_000, 1));
    }
}

#[derive(Debug)]
struct Moments {
    devices: [Arc<SimulatedDevice>; 2],
    seen: Arc<Mutex<Vec<[usize; 2]>>>,
}

impl Hook for Moments {
    fn call(
        &self,
        _: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let done = pass();
        let now = [0, 1].map(|at| self.devices[at].operation_count());
        self.seen.lock().unwrap().push(now);
        done
    }
}

/// S-401: a power cut leaves the volume under the old identity or the new one, whole, with the log's
/// own device and without.
#[test]
fn s_401_a_cut_leaves_one_identity_and_all_that_was_promised() {
    for separate in [false, true] {
        let devices = [SimulatedDevice::new(VOLUME, 1), SimulatedDevice::new(2 * MIB, 2)];
        let seen = Arc::new(Mutex::new(Vec::new()));
        let [data, log] = [0, 1].map(|at| {
            let moments = Moments { devices: devices.clone(), seen: Arc::clone(&seen) };
            HookedDevice::new(Arc::clone(&devices[at]) as _, moments) as Arc<dyn BlockDevice>
        });
        let log = separate.then_some(log);
        format(&data, log.as_ref());
        let fs = mount(&data, log.as_ref()).unwrap();
        put(&fs, "/synced", 30_000, 4);
        fs.sync().unwrap();
        seen.lock().unwrap().clear();
        let old = fs.info().uuid;
        let new = fs.renew_identity().unwrap();
        let moments = seen.lock().unwrap().clone();
        let mut found = [0; 2];
        for (at, now) in moments.iter().enumerate() {
            for choices in [
                [CrashChoice::LoseAll, CrashChoice::KeepAll],
                [CrashChoice::KeepAll, CrashChoice::LoseAll],
                [CrashChoice::Seeded(at as u64), CrashChoice::Seeded(at as u64 + 9)],
            ] {
                let [data, log]: [Arc<dyn BlockDevice>; 2] =
                    [0, 1].map(|one| devices[one].crash_image(now[one], &choices[one]) as _);
                let log = separate.then_some(log);
                let context = format!("log apart {separate}, cut {at}, {choices:?}");
                let fs = mount(&data, log.as_ref()).unwrap_or_else(|e| panic!("{context}: {e}"));
                let identity = fs.info().uuid;
                found[usize::from(identity == new)] += 1;
                assert!(identity == old || identity == new, "{context}");
                assert!(is_filled(&fs, "/synced", 30_000, 4), "{context}");
                fs.renew_identity().unwrap();
                fs.unmount().unwrap();
                let report = FileSystem::check(&data, log.as_ref(), false).unwrap();
                assert!(report.findings.is_empty(), "{context}: {:?}", report.findings);
            }
        }
        assert!(found.iter().all(|count| *count > 0), "{found:?}");
    }
}
