//! Which users may have leases: the mount option `lease=`.

use nix::unistd::User;

/// Which users may have leases. One that has a lease can read and write the whole volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LeaseUsers {
    /// None.
    #[default]
    Off,
    /// Root, and the user that mounted.
    Owner,
    /// Root, and these.
    Named(Vec<u32>),
}

impl LeaseUsers {
    /// Reads the option's value: `off`, `owner`, or users by name or number, separated by colons;
    /// `owner` may be one of them.
    pub(in crate::fuse) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "owner" => Ok(Self::Owner),
            _ => text.split(':').map(user).collect::<Result<_, _>>().map(Self::Named),
        }
    }

    /// Returns whether a user may have leases.
    #[must_use]
    pub fn allow(&self, uid: u32) -> bool {
        match self {
            Self::Off => false,
            Self::Owner => uid == 0 || uid == owner(),
            Self::Named(users) => uid == 0 || users.contains(&uid),
        }
    }
}

fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn user(text: &str) -> Result<u32, String> {
    if text == "owner" {
        return Ok(owner());
    }
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!(
            "there is no user '{text}'; write off, owner, or users separated by colons"
        )),
        Err(error) => Err(format!("the user '{text}' cannot be looked up: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-214: no user has leases unless the option names it.
    #[test]
    fn s_214_the_option_says_who_may() {
        assert_eq!(LeaseUsers::parse("off"), Ok(LeaseUsers::Off));
        assert!(!LeaseUsers::default().allow(0));
        let owner = LeaseUsers::parse("owner").unwrap();
        assert!(owner.allow(0) && owner.allow(super::owner()) && !owner.allow(54_321));
        let named = LeaseUsers::parse("root:54321:owner").unwrap();
        assert!(named.allow(0) && named.allow(54_321) && !named.allow(54_322));
        for wrong in ["", "no-such-user", "root:", "-1", "owner,root"] {
            let error = LeaseUsers::parse(wrong).unwrap_err();
            assert!(error.contains("no user"), "{wrong}: {error}");
        }
    }
}
