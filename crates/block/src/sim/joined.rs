//! A device that says of itself that it is members one behind the other, as a concatenation does.

use std::sync::Arc;

use parking_lot::Mutex;

use super::hooked::{DeviceCall, Hook, HookedDevice};
use crate::{BlockDevice, MemberMap, MemberName, MemberRange, Result};

/// What a [`HookedDevice`] says of its members. They may change at any time.
#[derive(Debug)]
pub struct JoinedMembers(Mutex<(MemberMap, u64)>);

impl JoinedMembers {
    /// Says of a device that it is so many members of one size, one behind the other: member 0 is
    /// at `/dev/member0`.
    pub fn over(device: Arc<dyn BlockDevice>, count: u8) -> Arc<HookedDevice<Self>> {
        let map = Self::map_of(device.size_bytes(), count);
        HookedDevice::new(device, Self(Mutex::new((map, 0))))
    }

    /// Returns what is said of so many bytes on so many members.
    #[must_use]
    pub fn map_of(size_bytes: u64, count: u8) -> MemberMap {
        let edge = |member: u8| size_bytes / u64::from(count) * u64::from(member);
        let end = |member: u8| if member + 1 == count { size_bytes } else { edge(member + 1) };
        let name = |id: u8| MemberName { id: [id; 16], path: format!("/dev/member{id}") };
        let range = |member: u8| MemberRange {
            bytes: edge(member)..end(member),
            members: vec![member.into()],
        };
        MemberMap {
            members: (0..count).map(name).collect(),
            ranges: (0..count).map(range).collect(),
            is_moving: false,
        }
    }

    /// Says something else from now on.
    pub fn set(&self, map: MemberMap) {
        let mut said = self.0.lock();
        *said = (map, said.1 + 1);
    }
}

impl Hook for JoinedMembers {
    fn call(&self, _call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        pass()
    }

    fn members(&self, _inner: &Arc<dyn BlockDevice>) -> (MemberMap, u64) {
        self.0.lock().clone()
    }
}
