//! Mending what a setting of the running kernel mends.

use crate::report::{Mend, Setting};
use crate::system::{System, plain};

/// What became of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// The setting.
    pub setting: Setting,
    /// Why it was refused.
    pub refused: Option<String>,
}

/// Writes the settings of a mend, each only where those before it were taken. A mend by hand has
/// none, and nothing is done.
#[must_use]
pub fn apply(system: &dyn System, mend: &Mend) -> Vec<Fixed> {
    let Mend::Settings { set, .. } = mend else { return Vec::new() };
    let mut done = Vec::new();
    for setting in set {
        let refused = write(system, setting).err().map(|error| plain(&error));
        let stops = refused.is_some();
        done.push(Fixed { setting: setting.clone(), refused });
        if stops {
            break;
        }
    }
    done
}

/// Writes to a file that is there: the kernel makes them, and one of another kernel may lack it.
fn write(system: &dyn System, setting: &Setting) -> std::io::Result<()> {
    use std::io::Write;

    let path = system.at(&setting.path);
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(format!("{}\n", setting.value).as_bytes())
}
