//! The FUSE file system of a disk: one directory with the files `image` and `marks`. `image` is the
//! disk. A write to `marks` adds a mark to the disk's log. Reading it returns all marks with their
//! positions in the log.
//!
//! `fsync` must be answered: after ENOSYS, the default, the kernel takes every flush as done. The
//! file is opened for direct I/O, because the kernel would otherwise read lost data from its own
//! cache.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::disk::DiskState;
use super::image::BLOCK;
use super::log::mark_of;
use super::shared::SharedDisk;

pub(super) const IMAGE: &str = "image";

pub(super) const MARKS: &str = "marks";

const IMAGE_INODE: INodeNo = INodeNo(2);
const MARKS_INODE: INodeNo = INodeNo(3);
const ATTRIBUTES_VALID: Duration = Duration::from_secs(3600);
const WRITE_MAX: u32 = 1 << 20;
const REQUESTS_MAX: u16 = 64;

pub(super) struct DiskFiles {
    disk: Arc<SharedDisk>,
}

impl DiskFiles {
    pub(super) fn new(disk: Arc<SharedDisk>) -> DiskFiles {
        DiskFiles { disk }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let size = if inode == IMAGE_INODE { self.disk.wait().size() } else { 0 };
        let is_file = [IMAGE_INODE, MARKS_INODE].contains(&inode);
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }
}

fn answer(reply: ReplyEmpty, result: Result<(), i32>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

impl Filesystem for DiskFiles {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.set_max_background(REQUESTS_MAX);
        // Without it the kernel sends one direct request at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = match name {
            _ if name == IMAGE => IMAGE_INODE,
            _ if name == MARKS => MARKS_INODE,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.entry(&ATTRIBUTES_VALID, &self.attributes(inode), Generation(0));
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&ATTRIBUTES_VALID, &self.attributes(inode));
    }

    /// Changes nothing: a disk has one size.
    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&ATTRIBUTES_VALID, &self.attributes(inode));
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if inode == MARKS_INODE {
            let marks = self.disk.wait().marks();
            let start = marks.len().min(offset as usize);
            return reply.data(&marks[start..marks.len().min(start + size as usize)]);
        }
        match self.disk.wait().read(offset, size.into()) {
            Ok(data) => reply.data(data),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if inode == MARKS_INODE {
            return match data.try_into() {
                Ok(bytes) => {
                    self.disk.wait().mark(mark_of(bytes));
                    reply.written(data.len() as u32);
                }
                Err(_) => reply.error(Errno::EINVAL),
            };
        }
        match self.disk.some_time(|disk| disk.write(offset, data)) {
            Ok(len) => reply.written(len as u32),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    /// Called at every close(2) of the file; not a flush of the disk.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// The loop device maps a flush to this.
    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.disk.some_time(DiskState::flush));
    }

    /// The loop device maps a discard (punch a hole) and writing zeros to this.
    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return answer(reply, Err(libc::EOPNOTSUPP));
        }
        answer(reply, self.disk.some_time(|disk| disk.zero(offset, length)));
    }
}
