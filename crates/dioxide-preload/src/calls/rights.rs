//! Rights of the process and of files. Each of these calls first hands the files back.

use super::hand_back_at;
use crate::files::{self, Still};
use crate::next::interpose;
use crate::process;
use libc::{c_char, c_int, c_uint, c_void, gid_t, mode_t, size_t, uid_t};

const WHY: &str = "the rights to it change";

/// For the process itself.
fn own() -> Option<Still> {
    process::before_own_rights_change()
}

/// For the file of a descriptor.
fn of_descriptor(fd: c_int) -> Option<Still> {
    process::hand_back_and_hold(|| files::hand_back_descriptor(fd, WHY))
}

/// For the file of a path.
fn of_path(dir: c_int, path: *const c_char, flags: c_int) -> Option<Still> {
    process::hand_back_and_hold(|| {
        if !path.is_null() {
            hand_back_at(dir, path, flags, WHY);
        }
    })
}

interpose! {
    |next| fn [setuid, seteuid, setfsuid](user: uid_t) -> c_int {
        let _still = own();
        next(user)
    }
    |next| fn [setreuid](real: uid_t, effective: uid_t) -> c_int {
        let _still = own();
        next(real, effective)
    }
    |next| fn [setresuid](real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        let _still = own();
        next(real, effective, saved)
    }
    |next| fn [setgid, setegid, setfsgid](group: gid_t) -> c_int {
        let _still = own();
        next(group)
    }
    |next| fn [setregid](real: gid_t, effective: gid_t) -> c_int {
        let _still = own();
        next(real, effective)
    }
    |next| fn [setresgid](real: gid_t, effective: gid_t, saved: gid_t) -> c_int {
        let _still = own();
        next(real, effective, saved)
    }
    |next| fn [setgroups](count: size_t, groups: *const gid_t) -> c_int {
        let _still = own();
        next(count, groups)
    }
    |next| fn [initgroups](user: *const c_char, group: gid_t) -> c_int {
        let _still = own();
        next(user, group)
    }
    |next| fn [capset](header: *mut c_void, data: *const c_void) -> c_int {
        let _still = own();
        next(header, data)
    }
    |next| fn [chroot](path: *const c_char) -> c_int {
        let _still = process::before_root_changes();
        next(path)
    }
    |next| fn [setns](namespace: c_int, kind: c_int) -> c_int {
        let _still = process::before_root_changes();
        next(namespace, kind)
    }
    |next| fn [fchown](fd: c_int, user: uid_t, group: gid_t) -> c_int {
        let _still = of_descriptor(fd);
        next(fd, user, group)
    }
    |next| fn [chown](path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        let _still = of_path(libc::AT_FDCWD, path, 0);
        next(path, user, group)
    }
    |next| fn [lchown](path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        let _still = of_path(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
        next(path, user, group)
    }
    |next| fn [fchownat](
        dir: c_int,
        path: *const c_char,
        user: uid_t,
        group: gid_t,
        flags: c_int,
    ) -> c_int {
        let _still = of_path(dir, path, flags);
        next(dir, path, user, group, flags)
    }
    // The kernel removes the marker only if the owner has write permission.
    |next| fn [fchmod](fd: c_int, mode: mode_t) -> c_int {
        let _still = of_descriptor(fd);
        next(fd, mode)
    }
    |next| fn [chmod, lchmod](path: *const c_char, mode: mode_t) -> c_int {
        let _still = of_path(libc::AT_FDCWD, path, 0);
        next(path, mode)
    }
    |next| fn [fchmodat](dir: c_int, path: *const c_char, mode: mode_t, flags: c_uint) -> c_int {
        let _still = of_path(dir, path, flags as c_int);
        next(dir, path, mode, flags)
    }
}
