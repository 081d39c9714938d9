//! The options of a program that opens a file.

use crate::error::{Result, invalid};
use crate::sized::{self, CStruct};
use dioxide::{Durability, Growth, OpenOptions, Tail};
use std::ffi::c_int;
use std::mem::size_of;

/// Writes are stable after the next `dioxide_fdatasync` that begins after they returned.
pub const DIOXIDE_ON_SYNC: u32 = 0;
/// Each write is stable when it returns, as with O_DSYNC. Writers that wait together share flushes.
pub const DIOXIDE_EVERY_WRITE: u32 = 1;

/// Space after the end is allocated and not written. After a crash the file system knows which
/// blocks were written, and so the end. On XFS, on ext4 with extents and a journal, and on btrfs;
/// elsewhere there is no preallocation.
pub const DIOXIDE_UNWRITTEN: u32 = 0;
/// Space after the end is filled with zeros, in the background: durable appends into it cost no
/// journal commit. After a crash the end is unknown. `dioxide_recovery` reports a range; the
/// program, which knows its records, truncates with `dioxide_ftruncate`. Also on ext3 and on ext4
/// without a journal.
pub const DIOXIDE_ZEROED: u32 = 1;
/// No preallocation: every append moves the end of file in the kernel.
pub const DIOXIDE_NOT_AHEAD: u32 = 2;

/// The next append continues where the last one ended: it rewrites a partial last block.
pub const DIOXIDE_REWRITE: u32 = 0;
/// The next append begins at the next block, after zeros: no block is written twice, at the price
/// of space.
pub const DIOXIDE_PAD: u32 = 1;

/// How a file is opened. A member that is 0 means the default; so does NULL instead of the struct.
///
/// Later versions may have more members. Initialise all of it, and set `size` to its sizeof: then a
/// program and a library of different versions are compatible. A library without a member that is
/// not 0 returns E2BIG; a value that it does not know is EINVAL.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_options {
    /// sizeof(struct dioxide_options).
    pub size: u32,
    /// When writes through this handle are stable: DIOXIDE_ON_SYNC or DIOXIDE_EVERY_WRITE. Handles
    /// of one file may differ.
    pub durability: u32,
    /// How space after the end is preallocated: DIOXIDE_UNWRITTEN, DIOXIDE_ZEROED or
    /// DIOXIDE_NOT_AHEAD. The first handle of a file that may write decides.
    pub growth: u32,
    /// How a partial last block is continued: DIOXIDE_REWRITE or DIOXIDE_PAD. The first handle of a
    /// file that may write decides.
    pub tail: u32,
    /// The largest step of growth, in bytes; 0 for 64 MiB. Larger steps are rarer, smaller ones
    /// delay writers less.
    pub growth_cap_bytes: u64,
    /// The expected length of the file, in bytes, or 0: the first step of growth goes there at
    /// once, even beyond the largest step. It has at most an eighth of the free space and a quarter
    /// of the budget left. A hint, never a limit.
    pub capacity_bytes: u64,
}

// SAFETY: numbers without padding.
unsafe impl CStruct for dioxide_options {
    const NAME: &str = "dioxide_options";
    const SIZE_FIRST: usize = 32;
    const ZERO: Self = Self {
        size: size_of::<Self>() as u32,
        durability: 0,
        growth: 0,
        tail: 0,
        growth_cap_bytes: 0,
        capacity_bytes: 0,
    };
}

const ACCESS: [(c_int, bool); 3] =
    [(libc::O_RDONLY, false), (libc::O_WRONLY, true), (libc::O_RDWR, true)];

/// Flags without effect: a file is always opened so.
const ALWAYS: c_int = libc::O_DIRECT | libc::O_CLOEXEC | libc::O_NOCTTY | LARGE_FILE;

/// O_LARGEFILE in the kernel, on the machines where the library is tried; that of a C library for
/// 64-bit machines is 0. Elsewhere these bits mean other flags.
const LARGE_FILE: c_int = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
    0o400000
} else if cfg!(any(target_arch = "x86_64", target_arch = "x86", target_arch = "riscv64")) {
    0o100000
} else {
    libc::O_LARGEFILE
};
const _: () = assert!(LARGE_FILE & (libc::O_NOFOLLOW | libc::O_DIRECTORY) == 0);

/// Flags and options in Rust.
pub(crate) struct Wanted {
    pub options: OpenOptions,
    pub temporary: bool,
}

/// The request of the program.
///
/// # Safety
///
/// The options are NULL or as [`sized::take`] requires.
pub(crate) unsafe fn wanted(
    flags: c_int,
    mode: u32,
    given: *const dioxide_options,
) -> Result<Wanted> {
    let given = match given.is_null() {
        true => dioxide_options::ZERO,
        // SAFETY: as the caller promises.
        false => unsafe { sized::take(given)? },
    };
    let mut options = OpenOptions::new();
    given.tell(&mut options)?;
    let temporary = tell_flags(flags, &mut options)?;
    options.mode(mode & 0o7777);
    Ok(Wanted { options, temporary })
}

impl dioxide_options {
    fn tell(&self, options: &mut OpenOptions) -> Result<()> {
        let durabilities = [Durability::OnSync, Durability::EveryWrite];
        options.durability(choice("durability", self.durability, &durabilities)?);
        options.growth(choice(
            "growth",
            self.growth,
            &[Growth::Unwritten, Growth::Zeroed, Growth::None],
        )?);
        options.tail(choice("tail", self.tail, &[Tail::Rewrite, Tail::Pad])?);
        if self.growth_cap_bytes > 0 {
            options.growth_cap(self.growth_cap_bytes);
        }
        if self.capacity_bytes > 0 {
            options.capacity(self.capacity_bytes);
        }
        Ok(())
    }
}

fn choice<T: Copy>(name: &str, number: u32, choices: &[T]) -> Result<T> {
    let unknown = || {
        invalid(format!(
            "the member {name} of struct dioxide_options is {number}, and must be below {}",
            choices.len()
        ))
    };
    choices.get(number as usize).copied().ok_or_else(unknown)
}

/// Converts the flags of open(2). Returns whether they request a file without a name.
fn tell_flags(flags: c_int, options: &mut OpenOptions) -> Result<bool> {
    let access = ACCESS.iter().find(|(access, _)| flags & libc::O_ACCMODE == *access);
    let Some((access, write)) = access else {
        return Err(invalid("flags have no access mode: O_RDONLY or O_RDWR"));
    };
    let mut left = flags & !(ALWAYS | access);
    let mut has = |flag: c_int| {
        let has = left & flag == flag;
        left &= if has { !flag } else { !0 };
        has
    };
    // The bits of O_SYNC and O_TMPFILE include those of other flags.
    let durable = has(libc::O_SYNC) || has(libc::O_DSYNC);
    let temporary = has(libc::O_TMPFILE);
    let (create, exclusive, truncate) = (has(libc::O_CREAT), has(libc::O_EXCL), has(libc::O_TRUNC));
    if left & libc::O_APPEND != 0 {
        return Err(invalid(
            "O_APPEND is not taken: dioxide_append appends, dioxide_pwrite writes at its offset",
        ));
    }
    if left != 0 {
        return Err(invalid(format!("flags {left:#o} are not known here")));
    }
    if (create || truncate || temporary) && !write {
        return Err(invalid("O_CREAT, O_TRUNC and O_TMPFILE need O_RDWR"));
    }
    if exclusive && !create {
        return Err(invalid(
            "O_EXCL needs O_CREAT (a device that is in use is refused without it)",
        ));
    }
    options
        .write(*write)
        .create(create && !exclusive)
        .create_new(create && exclusive)
        .truncate(truncate);
    if durable {
        options.durability(Durability::EveryWrite);
    }
    Ok(temporary)
}
