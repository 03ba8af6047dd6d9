//! On behalf of which user a request is carried out.

pub use bedplate_nfs::wire::rpc::User;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Which users of clients become the anonymous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// The superuser.
    #[default]
    Root,
    /// All.
    All,
    /// None.
    None,
}

/// The users of an export.
#[derive(Debug, Clone, Copy)]
pub struct Users {
    /// Which of them become the anonymous one.
    pub squash: Squash,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// And its group.
    pub anonymous_gid: u32,
}

impl Default for Users {
    fn default() -> Self {
        Self { squash: Squash::Root, anonymous_uid: 65_534, anonymous_gid: 65_534 }
    }
}

/// Numbers that the system takes for "leave it as it is", so no user or group has them.
const NO_ID: u32 = u32::MAX;

impl Users {
    /// Returns as whom the requests of a client's user are carried out.
    pub fn map(&self, user: Option<User>) -> User {
        let anonymous =
            User { uid: self.anonymous_uid, gid: self.anonymous_gid, groups: Vec::new() };
        let Some(mut user) = user.filter(|_| self.squash != Squash::All) else { return anonymous };
        let hides = |id: u32, root: u32| id == NO_ID || id == root && self.squash == Squash::Root;
        if hides(user.uid, 0) {
            return anonymous;
        }
        user.gid = if hides(user.gid, 0) { self.anonymous_gid } else { user.gid };
        for group in &mut user.groups {
            *group = if hides(*group, 0) { self.anonymous_gid } else { *group };
        }
        user
    }
}

/// This thread as another user. Dropped, it is the superuser again.
///
/// The real and saved users stay, so that the way back is open; the system takes the superuser's
/// rights from a thread whose effective user is another.
#[derive(Debug)]
pub struct Acting(());

impl Acting {
    /// Makes this thread act as a user.
    ///
    /// # Errors
    /// Those of the system, where the thread is not the superuser's.
    pub fn begin(user: &User) -> rustix::io::Result<Self> {
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
        let acting = Self(());
        set_thread_res_gid(None, Gid::from_raw(user.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(user.uid), None)?;
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let back = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
            .and_then(|()| set_thread_groups(&[]));
        if let Err(error) = back {
            // Nothing may go on as the wrong user.
            tracing::error!("a thread cannot become the superuser again: {error}");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Option<User> {
        Some(User { uid, gid, groups: groups.to_vec() })
    }

    #[test]
    fn s_466_the_superuser_becomes_the_anonymous_user_unless_told_otherwise() {
        let root = Users::default();
        let anonymous = User { uid: 65_534, gid: 65_534, groups: vec![] };
        assert_eq!(root.map(user(0, 0, &[0, 5])), anonymous);
        assert_eq!(root.map(None), anonymous);
        assert_eq!(root.map(user(7, 0, &[0, 5])), user(7, 65_534, &[65_534, 5]).unwrap());
        let none = Users { squash: Squash::None, ..root };
        assert_eq!(none.map(user(0, 0, &[0])), user(0, 0, &[0]).unwrap());
        assert_eq!(none.map(user(u32::MAX, 0, &[])), anonymous, "-1 would leave the superuser");
        assert_eq!(none.map(user(5, u32::MAX, &[u32::MAX])), user(5, 65_534, &[65_534]).unwrap());
        let all = Users { squash: Squash::All, anonymous_uid: 12, anonymous_gid: 13 };
        assert_eq!(all.map(user(7, 7, &[8])), User { uid: 12, gid: 13, groups: vec![] });
    }
}
