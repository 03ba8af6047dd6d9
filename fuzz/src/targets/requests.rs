//! Requests about checkpoints, as the attribute of a mount's root carries them: lines of text, each
//! a request.

use std::sync::Arc;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::FileSystem;
use bedplate_serve::control::{Answer, Request, answer};

use crate::base::{base, options};
use crate::checked::Watch;

/// Requests that one input may hold.
const REQUESTS_MAX: usize = 24;

/// Carries out what of an input is a request, on a volume that has checkpoints; whatever was asked,
/// the volume is sound afterwards.
pub fn run(data: &[u8]) {
    let requests: Vec<Request> = data
        .split(|byte| *byte == b'\n')
        .take(REQUESTS_MAX)
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    if requests.is_empty() {
        return;
    }
    let base = base(3);
    let checked = Watch::over(&base.snapshot, base.regions.clone());
    let device: Arc<dyn BlockDevice> = checked.clone();
    let fs = FileSystem::mount(device, None, options(false)).expect("the base is sound");
    for request in &requests {
        let text = serde_json::to_vec(request).expect("a request is text");
        let again: Request = serde_json::from_slice(&text).expect("what was written can be read");
        let done = answer(&fs, &again).map(|(value, _)| value);
        if let Err(error) = &done {
            assert!(error.message.len() > 10, "{error:?} explains nothing");
        }
        assert!(serde_json::to_vec(&Answer::of(done)).is_ok(), "an answer is text");
    }
    fs.unmount().expect("memory does not fail");
    checked.assert_obeyed();
    let device: Arc<dyn BlockDevice> =
        MemoryDevice::from_snapshot(&checked.snapshot(), MemoryDevice::GEOMETRY);
    let report = FileSystem::check(&device, None, false).expect("it was unmounted");
    assert!(report.findings.is_empty(), "requests broke the volume: {:?}", report.findings);
}
