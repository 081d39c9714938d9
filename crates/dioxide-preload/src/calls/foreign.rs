//! Access to a file that the engine does not see. Each of these calls first hands the file back.

use super::descriptors::{bad_number, close_range_by};
use crate::files::{self, Still};
use crate::flushes::{Effect, How};
use crate::next::interpose;
use crate::process;
use crate::transfer;
use libc::{
    aiocb, c_int, c_long, c_uint, c_ulong, c_void, mmsghdr, msghdr, off64_t, sigevent, size_t,
    ssize_t,
};

/// Hands back the files of requests of POSIX AIO.
fn of_control_blocks(list: *const *mut aiocb, count: c_int) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by the contract of `lio_listio`, the list has `count` pointers.
        of_control_block(unsafe { *list.add(index) });
    }
}

fn of_control_block(block: *const aiocb) {
    // SAFETY: by the contract of the call, null or a valid control block.
    if let Some(block) = unsafe { block.as_ref() } {
        files::hand_back_descriptor(block.aio_fildes, "the program uses POSIX AIO");
    }
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    flags: c_int,
    opcode: u16,
    priority: i16,
    descriptor: u32,
}

fn of_iocbs(count: c_long, list: *const *const Iocb) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by the contract of `io_submit`, `count` pointers, each null or to a request.
        if let Some(iocb) = unsafe { (*list.add(index)).as_ref() } {
            files::hand_back_descriptor(iocb.descriptor as c_int, "the program uses libaio");
        }
    }
}

/// Before a ring is made. A take-over after the drop of the guard sees it.
fn ring() -> Option<Still> {
    process::hand_all_back_and_hold("the program uses io_uring")
}

/// Whether an ioctl changes nothing.
fn only_asks(request: c_ulong) -> bool {
    const FIGETBSZ: c_ulong = 2;
    matches!(
        request,
        BLKGETSIZE64
            | libc::BLKSSZGET
            | libc::BLKPBSZGET
            | BLKROGET
            | libc::TCGETS
            | libc::FS_IOC_GETFLAGS
            | libc::FIOCLEX
            | libc::FIONCLEX
            | FIGETBSZ
            | BLKGETSIZE
            | BLKBSZGET
            | FSGETXATTR
    )
}
const BLKROGET: c_ulong = 0x125e;
const BLKGETSIZE: c_ulong = 0x1260;
const BLKGETSIZE64: c_ulong = 0x8008_1272;
const BLKBSZGET: c_ulong = 0x8008_1270;
const FSGETXATTR: c_ulong = 0x801c_581f;

/// Hands back the second file of an ioctl that has two. The kernel would share grown space, or
/// bypass the engine.
fn second_files(request: c_ulong, argument: c_long) {
    const WHY: &str = "it was cloned";
    const WHY_LOOP: &str = "a loop device was made of it";
    const WHY_MOVED: &str = "its blocks were moved";
    if !files::any_known() {
        return;
    }
    match request {
        FICLONE => files::hand_back_descriptor(argument as c_int, WHY),
        FICLONERANGE => {
            let range = std::ptr::with_exposed_provenance::<CloneRange>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a `struct file_clone_range`.
            if let Some(range) = unsafe { range.as_ref() } {
                files::hand_back_descriptor(range.source as c_int, WHY);
            }
        }
        FIDEDUPERANGE => {
            let range = std::ptr::with_exposed_provenance::<DedupeRange>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a `struct file_dedupe_range`.
            let Some(head) = (unsafe { range.as_ref() }) else { return };
            for index in 0..head.targets_count.into() {
                // SAFETY: by the contract of the ioctl, `targets_count` structures follow.
                let target = unsafe { &*range.add(1).cast::<DedupeTarget>().add(index) };
                files::hand_back_descriptor(target.descriptor as c_int, WHY);
            }
        }
        LOOP_SET_FD | LOOP_CHANGE_FD => files::hand_back_descriptor(argument as c_int, WHY_LOOP),
        LOOP_CONFIGURE => {
            let descriptor = std::ptr::with_exposed_provenance::<u32>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a `struct loop_config`, whose first
            // member is the descriptor.
            if let Some(descriptor) = unsafe { descriptor.as_ref() } {
                files::hand_back_descriptor(*descriptor as c_int, WHY_LOOP);
            }
        }
        EXT4_IOC_MOVE_EXT => {
            let descriptors = std::ptr::with_exposed_provenance::<[u32; 2]>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a `struct move_extent`. It begins with
            // a reserved number and the descriptor.
            if let Some([_, donor]) = unsafe { descriptors.as_ref() } {
                files::hand_back_descriptor(*donor as c_int, WHY_MOVED);
            }
        }
        XFS_IOC_EXCHANGE_RANGE | XFS_IOC_COMMIT_RANGE | F2FS_IOC_MOVE_RANGE => {
            let descriptor = std::ptr::with_exposed_provenance::<c_int>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a structure whose first member is the
            // descriptor.
            if let Some(other) = unsafe { descriptor.as_ref() } {
                files::hand_back_descriptor(*other, WHY_MOVED);
            }
        }
        XFS_IOC_SWAPEXT => {
            let numbers = std::ptr::with_exposed_provenance::<[i64; 3]>(argument as usize);
            // SAFETY: by the contract of the ioctl, null or a `struct xfs_swapext`. It begins with
            // a version and the two descriptors.
            if let Some([_, target, other]) = unsafe { numbers.as_ref() } {
                files::hand_back_descriptor(*target as c_int, WHY_MOVED);
                files::hand_back_descriptor(*other as c_int, WHY_MOVED);
            }
        }
        _ => {}
    }
}
const LOOP_SET_FD: c_ulong = 0x4c00;
const LOOP_CHANGE_FD: c_ulong = 0x4c06;
const LOOP_CONFIGURE: c_ulong = 0x4c0a;
const EXT4_IOC_MOVE_EXT: c_ulong = 0xc028_660f;
const XFS_IOC_EXCHANGE_RANGE: c_ulong = 0x4028_5881;
const XFS_IOC_COMMIT_RANGE: c_ulong = 0x4058_5883;
const XFS_IOC_SWAPEXT: c_ulong = 0xc0c0_586d;
const F2FS_IOC_MOVE_RANGE: c_ulong = 0xc020_f509;
const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;

/// `struct file_clone_range` of linux/fs.h.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_len: u64,
    target_offset: u64,
}

/// `struct file_dedupe_range` of linux/fs.h.
#[repr(C)]
struct DedupeRange {
    source_offset: u64,
    source_len: u64,
    targets_count: u16,
    reserved: (u16, u32),
}

/// `struct file_dedupe_range_info` of linux/fs.h.
#[repr(C)]
struct DedupeTarget {
    descriptor: i64,
    offset: u64,
    deduped: u64,
    status: i32,
    reserved: u32,
}

/// Hands back the files whose descriptors a message gives to another process.
fn passed_on(message: *const msghdr) {
    // SAFETY: by the contract of the call, null or a valid message.
    unsafe {
        if message.is_null() || !files::any_known() {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes =
                    ((*header).cmsg_len as usize).saturating_sub(data.addr() - header.addr());
                for index in 0..bytes / size_of::<c_int>() {
                    let fd = data.cast::<c_int>().add(index).read_unaligned();
                    files::hand_back_descriptor(fd, "it was given to another process");
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Before a call by number that closes or replaces the descriptor `to`.
fn replaced(from: c_long, to: c_long, why: &str) {
    files::hand_back_descriptor(from as c_int, why);
    files::hand_back_descriptor(to as c_int, why);
    let _ = files::close(to as c_int, || 0);
}

/// Before a call by number, whose effect the library does not see.
fn by_number(number: c_long, [first, second, third, fifth]: [c_long; 4]) {
    let why = "the program makes system calls by number";
    match number {
        libc::SYS_mmap => files::hand_back_descriptor(fifth as c_int, why),
        libc::SYS_close => replaced(first, first, why),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2
        | libc::SYS_lseek
        | libc::SYS_fstat
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_dup
        | libc::SYS_fcntl => {
            files::hand_back_descriptor(first as c_int, why);
        }
        libc::SYS_sendfile => {
            files::hand_back_descriptor(first as c_int, why);
            files::hand_back_descriptor(second as c_int, why);
        }
        libc::SYS_ioctl => {
            files::hand_back_descriptor(first as c_int, why);
            second_files(second as c_ulong, third);
        }
        libc::SYS_close_range
        | libc::SYS_copy_file_range
        | libc::SYS_splice
        | libc::SYS_io_submit
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_open_by_handle_at
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_sendmmsg
        | libc::SYS_sendmsg
        | libc::SYS_utimensat
        | libc::SYS_truncate => files::hand_back_those(why, |_| true),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => process::before_vfork(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_lstat => {
            files::hand_back_those(why, |_| true);
        }
        libc::SYS_dup3 => replaced(first, second, why),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => replaced(first, second, why),
        _ => {}
    }
}

/// Whether the kernel has a copy of a descriptor after a call, or ends the process in it. A
/// take-over by another thread must not come before its end.
fn copies_or_ends(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_io_uring_setup
            | libc::SYS_pidfd_getfd
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_exit_group
    )
}

/// The flags of a call that makes a child or a thread.
fn flags_of_clone(number: c_long, first: c_long) -> Option<c_int> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        libc::SYS_clone => Some(first as c_int),
        libc::SYS_clone3 => {
            let flags = std::ptr::with_exposed_provenance::<u64>(first as usize);
            // SAFETY: by the contract of the call, null or a `struct clone_args`, whose first
            // member is the flags.
            unsafe { flags.as_ref() }.map(|flags| *flags as c_int)
        }
        _ => None,
    }
}

/// Whether a call closes or copies a descriptor of the engine.
fn uses_engines(number: c_long, first: c_long, second: c_long) -> bool {
    let is_engines = |number: c_long| files::is_engines(number as c_int);
    match number {
        libc::SYS_close | libc::SYS_dup => is_engines(first),
        libc::SYS_fcntl => {
            is_engines(first) && [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&(second as c_int))
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => is_engines(first) || is_engines(second),
        libc::SYS_dup3 => is_engines(first) || is_engines(second),
        _ => false,
    }
}

/// Whether a call gives the process another root directory.
fn changes_root(number: c_long) -> bool {
    matches!(number, libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_setns)
}

/// Whether a call changes the rights of the process, or those to a file.
fn changes_rights(number: c_long) -> bool {
    let is_older = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown | libc::SYS_lchown | libc::SYS_chmod => true,
        _ => false,
    };
    is_older
        || matches!(
            number,
            libc::SYS_setuid
                | libc::SYS_setreuid
                | libc::SYS_setresuid
                | libc::SYS_setfsuid
                | libc::SYS_setgid
                | libc::SYS_setregid
                | libc::SYS_setresgid
                | libc::SYS_setfsgid
                | libc::SYS_setgroups
                | libc::SYS_capset
                | libc::SYS_fchown
                | libc::SYS_fchownat
                | libc::SYS_fchmod
                | libc::SYS_fchmodat
                | libc::SYS_fchmodat2
        )
}

interpose! {
    |next| fn [mmap, mmap64](
        address: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: off64_t,
    ) -> *mut c_void {
        if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
            files::hand_back_descriptor(fd, "the program maps it");
        }
        next(address, len, protection, flags, fd, offset)
    }
    |next| fn [sendfile, sendfile64](
        to: c_int,
        from: c_int,
        offset: *mut off64_t,
        len: size_t,
    ) -> ssize_t {
        files::hand_back_descriptor(to, "the kernel copies it");
        files::hand_back_descriptor(from, "the kernel copies it");
        next(to, from, offset, len)
    }
    |next| fn [splice, copy_file_range](
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t {
        files::hand_back_descriptor(from, "the kernel copies it");
        files::hand_back_descriptor(to, "the kernel copies it");
        next(from, from_offset, to, to_offset, len, flags)
    }
    |next| fn [ioctl](fd: c_int, request: c_ulong, argument: c_long) -> c_int {
        if !only_asks(request) {
            files::hand_back_descriptor(fd, "an ioctl");
            second_files(request, argument);
        }
        next(fd, request, argument)
    }
    |next| fn [sendmsg](socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        passed_on(message);
        next(socket, message, flags)
    }
    |next| fn [sendmmsg, __sendmmsg](
        socket: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int {
        for index in 0..count as usize {
            // SAFETY: by the contract of `sendmmsg`, the array has `count` messages.
            passed_on(unsafe { &raw const (*messages.add(index)).msg_hdr });
        }
        next(socket, messages, count, flags)
    }
    // The other process may be the program itself.
    |next| fn [pidfd_getfd](process: c_int, number: c_int, flags: c_uint) -> c_int {
        let why = "the program copies a descriptor of a process";
        let _still = process::hand_all_back_and_hold(why);
        next(process, number, flags)
    }
    |next| fn [aio_read, aio_read64, aio_write, aio_write64](block: *mut aiocb) -> c_int {
        of_control_block(block);
        next(block)
    }
    |next| fn [aio_fsync, aio_fsync64](operation: c_int, block: *mut aiocb) -> c_int {
        of_control_block(block);
        let kernel = || next(operation, block);
        // SAFETY: by the contract of the call, null or a valid control block.
        let Some(block) = (unsafe { block.as_ref() }) else { return kernel() };
        How::of(block.aio_fildes, Effect::FlushUnseen).perform(|| kernel() as isize) as c_int
    }
    |next| fn [lio_listio, lio_listio64](
        mode: c_int,
        list: *const *mut aiocb,
        count: c_int,
        event: *mut sigevent,
    ) -> c_int {
        of_control_blocks(list, count);
        next(mode, list, count, event)
    }
    |next| fn [io_submit](context: c_ulong, count: c_long, list: *const *const c_void) -> c_int {
        of_iocbs(count, list.cast());
        next(context, count, list)
    }
    |next| fn [io_uring_setup](entries: c_uint, parameters: *mut c_void) -> c_int {
        let _still = ring();
        next(entries, parameters)
    }
    |next| fn [io_uring_queue_init](
        entries: c_uint,
        ring_memory: *mut c_void,
        flags: c_uint,
    ) -> c_int {
        let _still = ring();
        next(entries, ring_memory, flags)
    }
    |next| fn [io_uring_queue_init_params](
        entries: c_uint,
        ring_memory: *mut c_void,
        parameters: *mut c_void,
    ) -> c_int {
        let _still = ring();
        next(entries, ring_memory, parameters)
    }
    |next| fn [io_uring_queue_init_mem](
        entries: c_uint,
        ring_memory: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        len: size_t,
    ) -> c_int {
        let _still = ring();
        next(entries, ring_memory, parameters, memory, len)
    }
    |next| fn [syscall](
        number: c_long,
        first: c_long,
        second: c_long,
        third: c_long,
        fourth: c_long,
        fifth: c_long,
        sixth: c_long,
    ) -> c_long {
        // Also before the program opens a file.
        if number == libc::SYS_unshare {
            process::before_unshare(first as c_int);
        }
        if uses_engines(number, first, second) {
            return bad_number().into();
        }
        if files::any_known() {
            by_number(number, [first, second, third, fifth]);
        }
        let kernel = || next(number, first, second, third, fourth, fifth, sixth);
        const AS_VFORK: c_int = libc::CLONE_VM | libc::CLONE_VFORK;
        let clone = flags_of_clone(number, first);
        if clone.is_some_and(|flags| flags & AS_VFORK == 0) {
            return process::raw_fork(|| kernel() as c_int).into();
        }
        let _still = match number {
            // The child has this memory, and would drop a guard as well.
            _ if clone.is_some_and(|flags| flags & AS_VFORK == AS_VFORK) => {
                process::before_vfork();
                None
            }
            _ if changes_rights(number) => process::before_own_rights_change(),
            _ if changes_root(number) => process::before_root_changes(),
            _ if clone.is_some() || copies_or_ends(number) => {
                process::hand_all_back_and_hold("the program makes system calls by number")
            }
            _ => None,
        };
        match number {
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs => {
                let flush = || kernel() as c_int;
                c_long::from(transfer::sync_by_kernel(first as c_int, flush))
            }
            // A take-over may come between the hand-back and this. The engine's descriptors stay
            // open.
            libc::SYS_close_range => {
                let by_kernel = |first: c_uint, last: c_uint, flags: c_int| {
                    let (first, last, flags) = (first.into(), last.into(), flags.into());
                    next(number, first, last, flags, fourth, fifth, sixth) as c_int
                };
                close_range_by(first as c_uint, second as c_uint, third as c_int, by_kernel).into()
            }
            _ => kernel(),
        }
    }
}
