//! What lists of mounts show of a mount besides what the kernel prints: its mode, and what else it
//! was asked for.

use bedplate_block::UserOptions;
use bedplate_fs::{Takes, Tunable, TunableInfo};

use super::shared::Shared;

impl Shared {
    /// Puts what is in effect into the system's list; for ordinary users there is no such list.
    pub(super) fn list_options(&self) {
        let Some(line) = self.listed_line() else { return };
        if let Err(error) = line.put(&self.options_to_list()) {
            tracing::debug!("lists of mounts show the kernel's options alone: {error}");
        }
    }

    /// Takes it out again.
    pub(super) fn unlist_options(&self) {
        let Some(line) = self.listed_line() else { return };
        if let Err(error) = line.remove() {
            tracing::debug!("the list of mounts keeps the options of a mount that ended: {error}");
        }
    }

    fn listed_line(&self) -> Option<UserOptions> {
        let dir = self.mountpoint.get()?;
        Some(UserOptions::of(self.source.as_ref(), dir))
    }

    /// The mode, every tunable that is not at its default, and the options as they were given.
    fn options_to_list(&self) -> String {
        let tunables = self.fs.tunables();
        let changed = tunables.iter().filter_map(|state| {
            let info = Tunable::named(&state.name).ok()?.info();
            let is_told = info.tunable == Tunable::Mode || state.default != Some(state.value);
            (info.takes != Takes::Format && is_told).then(|| written(info, state.value))
        });
        changed.chain(self.settings.listed.iter().cloned()).collect::<Vec<_>>().join(",")
    }
}

/// Writes a tunable as a mount option that means exactly this value.
fn written(info: &TunableInfo, value: u64) -> String {
    let shown = info.unit.format(value).replace(' ', "");
    match info.tunable.parse(&shown) {
        Ok(same) if same == value => format!("{}={shown}", info.name),
        _ => format!("{}={value}", info.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_so_that_it_is_read_as_itself() {
        for value in [0, 4096, 1_500_001, 16 << 20, (16 << 20) + 1] {
            let text = written(Tunable::Cache.info(), value);
            let (_, read) = text.split_once('=').unwrap();
            assert_eq!(Tunable::Cache.parse(read).unwrap(), value, "{text}");
            assert!(!text.contains([' ', ',']), "{text}");
        }
        assert_eq!(written(Tunable::Cache.info(), 16 << 20), "cache=16MiB");
        assert_eq!(written(Tunable::Sync.info(), 7_000_000_000), "sync=7s");
        assert_eq!(written(Tunable::Mode.info(), 4), "mode=concurrent+cache");
    }
}
