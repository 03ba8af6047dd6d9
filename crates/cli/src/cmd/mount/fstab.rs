//! Words of `/etc/fstab` that tell mount(8) and the system when and by which users to mount. They
//! are taken, because lines are copied from there and some tools pass everything on, and change
//! nothing here.

/// The words.
pub const WORDS: [&str; 10] = [
    "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "comment=",
];

/// What words begin with that systemd and other tools have made up for themselves, as in
/// `x-systemd.automount`.
const BEGINNINGS: [&str; 3] = ["x-", "X-", "comment="];

/// Returns whether an option is for mount(8) and not for the mount.
pub fn is_word(option: &str) -> bool {
    let option = option.trim();
    WORDS.contains(&option) || BEGINNINGS.iter().any(|beginning| option.starts_with(beginning))
}

/// Names them all.
pub fn told() -> String {
    format!("{}, x-…: for mount(8) and the system, accepted", WORDS.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_fstab_are_told_from_options() {
        for word in ["nofail", "_netdev", "user", "x-systemd.device-timeout=5", "comment=mine"] {
            assert!(is_word(word), "{word}");
        }
        for option in ["ro", "x", "users=3", "mode=cached"] {
            assert!(!is_word(option), "{option}");
        }
    }
}
